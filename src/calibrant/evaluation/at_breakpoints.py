"""Residual curves of many resamples, or of many calibrated outcomes, known at breakpoints only.

Sums over the stretches between breakpoints are products of small matrices, which hold the residuals
of neighbouring rows, with how often each of them was drawn, a resample a column; no running sums of
all rows are written down. Rows without weights are in whole numbers (`InUnits`), so that the sums
are exact and the same as running ones.

One residual curve of very many rows, kept as what was drawn: two bytes a row, not sixteen.

Running sums over a million rows take 8 MB each, and every thread that works on resamples would hold
several. The usual metrics want those sums at a few places only. `DrawnCurve` finds them there from
how often each row was drawn, or from which rows were right, a stretch of rows at a time; metrics
that ask for whole running sums still get them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import BoolArray, FloatArray, IntArray
from calibrant.metrics.top_label import (
    Breakpoints,
    Crossing,
    DenseBreakpoints,
    ResidualCurves,
    TopLabel,
    accumulate,
)

# Rows of a stretch, whose numbers stay in the cache.
STRETCH = 1 << 15
Counts = NDArray[np.uint16]


def stretches(rows: int) -> Iterator[slice]:
    """Yield slices that cover so many rows."""
    for start in range(0, rows, STRETCH):
        yield slice(start, min(start + STRETCH, rows))


def draw_counts(rng: np.random.Generator, rows: int) -> Counts:
    """Return (N,) how often each row is drawn in a resample, as `rng.integers(N, size=N)` says."""
    counts, once = np.zeros(rows, dtype=np.uint16), np.uint16(1)
    for part in stretches(rows):
        np.add.at(counts, rng.integers(rows, size=len(counts[part])), once)
    return counts


def draw_outcomes(rng: np.random.Generator, confidence: FloatArray) -> BoolArray:
    """Return (N,) whether each row is right, with its confidence for the chance."""
    outcomes = np.empty(len(confidence), dtype=np.bool_)
    for part in stretches(len(confidence)):
        outcomes[part] = rng.random(len(outcomes[part])) < confidence[part]
    return outcomes


class DrawnCurve(ResidualCurves):
    """A batch of one residual curve; see `ResidualCurves` for what it holds and does.

    Args:
        rows: the rows, sorted by confidence.
        counts: (N,) how often each of them was drawn, N in all, or None for once.
        outcomes: (N,) whether each is right; None for as it is.
    """

    def __init__(
        self, rows: TopLabel, counts: Counts | None = None, outcomes: BoolArray | None = None
    ) -> None:
        for name, value in (("rows", rows), ("_counts", counts), ("_outcomes", outcomes)):
            object.__setattr__(self, name, value)

    _counts: Counts | None
    _outcomes: BoolArray | None
    _shrunk = False

    def shrink_gaps(self) -> None:
        """Draw small gaps towards 0, in place: see `ShrunkGaps`."""
        object.__setattr__(self, "_shrunk", True)
        for name in ("residual", "correct"):  # they were made of the curve as it was
            self.__dict__.pop(name, None)

    @property
    def total(self) -> FloatArray:
        """(1,) number of rows that the curve counts."""
        return np.array([float(self.rows.n)])

    @cached_property
    def residual(self) -> FloatArray:  # pyright: ignore[reportIncompatibleVariableOverride]
        """(1, N + 1) sums of c - a over the first k rows."""
        return accumulate(self._residuals(slice(None))[None, :])

    @cached_property
    def weight(self) -> FloatArray | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """(1, N + 1) how many drawn rows they are; None if each row counts once."""
        if self._counts is None:
            return None
        return accumulate(self._counts[None, :].astype(np.float64))

    def _residuals(self, part: slice) -> FloatArray:
        """Return sums of c - a of single rows."""
        rows = self.rows
        right = rows.correct if self._outcomes is None else self._outcomes
        residual = rows.confidence[part] - right[part]
        if self._counts is not None:
            residual *= self._counts[part]
        if self._shrunk:
            residual += rows.shrinkage(part)
        return residual

    def between(self, cuts: IntArray) -> FloatArray:
        """Return (1, B) residual sums between the B + 1 row positions `cuts`."""
        return np.diff(self._sums(cuts, self._residuals))[None, :]

    def at_ranks(self, ranks: IntArray) -> FloatArray:
        """Return (1, B) values of R(k) at ranks in [0, N]; see `ResidualCurves.at_ranks`."""
        crossing = self.crossing(ranks)
        low, high = (self._sums(at[0], self._residuals) for at in (crossing.below, crossing.above))
        return (low + crossing.share[0] * (high - low))[None, :]

    def crossing(self, ranks: IntArray) -> Crossing:
        """Return where the curve has counted as many rows as the ascending `ranks` say."""
        counts, above = self._counts, self._places(ranks)
        below = np.maximum(above - 1, 0)
        if self.rows.distinct < self.rows.n:
            starts = self.rows.tie_starts
            run = np.searchsorted(starts, above)
            above, below = starts[run], starts[np.maximum(run - 1, 0)]
        if counts is None:
            low, high = below.astype(np.float64), above.astype(np.float64)
        else:
            low, high = (self._sums(at, counts.__getitem__) for at in (below, above))
        width = high - low
        share = np.divide(ranks - low, width, out=np.zeros(len(ranks)), where=width > 0)
        return Crossing(below[None, :], above[None, :], share[None, :])

    def _places(self, ranks: IntArray) -> IntArray:
        """Return the fewest first rows that count each of the `ranks`."""
        counts = self._counts
        if counts is None:
            return ranks
        parts = list(stretches(self.rows.n))
        held = np.array([int(counts[part].sum(dtype=np.int64)) for part in parts])
        reached = np.cumsum(held)
        found = np.zeros(len(ranks), dtype=np.int64)
        for i, rank in enumerate(ranks.tolist()):
            if rank == 0:
                continue
            at = int(np.count_nonzero(reached < rank))
            within = np.cumsum(counts[parts[at]], dtype=np.int64)
            missing = rank - (reached[at] - held[at])
            found[i] = parts[at].start + 1 + np.searchsorted(within, missing)
        return found

    def _sums(self, places: IntArray, values: Callable[[slice], NDArray[np.generic]]) -> FloatArray:
        return sums_at(places, values, self.rows.n)


def sums_at(
    places: IntArray, values: Callable[[slice], NDArray[np.generic]], rows: int
) -> FloatArray:
    """Return (B,) sums of the rows' values over the first k rows, at ascending places k."""
    ends, back = np.unique(places, return_inverse=True)
    found, total = np.zeros(len(ends), dtype=np.float64), 0.0
    for part in stretches(rows):
        if int(part.start) >= int(ends[-1]):
            break
        first, last = np.searchsorted(ends, [part.start, part.stop], side="right")
        inside = ends[first:last] - part.start  # in (0, length of the stretch]
        stretch = values(part)
        bounds: list[int] = [0, *inside[inside < len(stretch)].tolist()]
        pieces: FloatArray = np.add.reduceat(np.asarray(stretch, dtype=np.float64), bounds)
        sums = total + np.cumsum(pieces)
        found[first:last] = sums[: len(inside)]
        total = float(sums[-1])
    return found[back]


# Stretches whose sums are made at once, so few that the times their rows were drawn stay in the
# cache.
STRETCHES = 8
ROUNDING = 1e-12


class CurvesAtBreakpoints(ResidualCurves):
    """R residual curves whose rows all count as they do in `rows`.

    Args:
        rows: the sorted rows.
        breakpoints: of the rows.
        sums: (P + 1, R) sums of c - a over the rows before each breakpoint.
    """

    breakpoints: Breakpoints
    sums: FloatArray

    def __init__(self, rows: TopLabel, breakpoints: Breakpoints, sums: FloatArray) -> None:
        for name, value in (("rows", rows), ("breakpoints", breakpoints), ("sums", sums)):
            object.__setattr__(self, name, value)

    @property
    def total(self) -> FloatArray:
        """(1,) how many rows each curve counts."""
        return np.array([self.rows.total])

    def between(self, cuts: IntArray) -> FloatArray:
        """Return (R, B) residual sums between the B + 1 breakpoints `cuts`."""
        return np.diff(self.sums[self.breakpoints.places(cuts)], axis=0).T

    def at_ranks(self, ranks: NDArray[Any]) -> FloatArray:
        """Return (R, B) values of R(k) at (B,) ranks in [0, N]; see `ResidualCurves.at_ranks`."""
        crossing = DrawnCurve(self.rows).crossing(ranks)
        places = (self.breakpoints.places(at[0]) for at in (crossing.below, crossing.above))
        low, high = (self.sums[each] for each in places)
        return (low + crossing.share[0][:, None] * (high - low)).T


@dataclass(frozen=True, eq=False)
class Resampling:
    """What makes curves of how often rows, or clusters of them, were drawn.

    Attributes:
        rows: the sorted rows.
        columns: (N,) which of what is drawn each sorted row belongs to: its cluster, or its place
            in the caller's arrays.
        residual: (N,) c - a of each, with its weight, in units.
        unit: how many of them are 1.
        weight: (N,) how much each counts.
        alike: whether every resample counts N rows.
        others: (M, N) what each adds to sums of other numbers, the last of which is how many rows
            there are, unless that is always N.
    """

    rows: TopLabel
    columns: IntArray
    residual: FloatArray
    unit: float
    weight: FloatArray
    alike: bool
    others: FloatArray

    @classmethod
    def of_rows(
        cls,
        rows: TopLabel,
        columns: IntArray,
        number: int,
        means: Sequence[FloatArray] = (),
    ) -> Self:
        """Return what resamples rows.

        Args:
            rows: the sorted rows.
            columns: (N,) see above.
            number: G, how many clusters there are, or N.
            means: (N,) other numbers of each sorted row, whose means are wanted.
        """
        if rows.weight is None:
            unit, weight = float(rows.in_units.unit), np.ones(rows.n)
            residual = (rows.in_units.confidence - rows.in_units.correct).astype(np.float64)
        else:
            unit, weight = 1.0, rows.weight
            residual = weight * (rows.confidence - rows.correct)
        alike = rows.weight is None and number == rows.n
        others = [weight * each for each in means] + ([] if alike else [weight])
        stacked = np.array(others).reshape(len(others), rows.n)
        return cls(rows, columns, residual, unit, weight, alike, stacked)

    def curves(self, drawn: NDArray[Any], *, residuals: bool = True) -> ResampledAtBreakpoints:
        """Return the curves of (G, R) numbers of times that each row or cluster was drawn.

        Args:
            drawn: see above.
            residuals: whether anybody wants more than the means.
        """
        resamples, stretches = drawn.shape[1], self.rows.dense_breakpoints.stretches
        sums = np.empty((stretches if residuals else 0, resamples))
        others = np.zeros((len(self.others), resamples))
        for block, found in _products(
            self.adding, drawn, lambda block: 0 if residuals else block.size
        ):
            if residuals:
                sums[block.first : block.first + block.size] = found[: block.size]
            others += found[len(found) - len(others) :]
        means, total = others, np.full(resamples, float(self.rows.n))
        if not self.alike:
            means, total = others[:-1], others[-1]
        means /= total
        running = running_columns(sums)
        running *= 1 / self.unit
        return ResampledAtBreakpoints(self, drawn, running, total, means)

    @cached_property
    def adding(self) -> list[Block]:
        """What makes sums of residuals within each stretch, and of `others` over all rows."""
        return list(self._blocks(self.residual, self.others))

    @cached_property
    def counting(self) -> list[Block]:
        """What makes numbers of rows within each stretch."""
        # Numbers of single precision serve whole ones as well, and take half the time.
        exact = np.float32 if self.rows.weight is None else np.float64
        return list(self._blocks(self.weight.astype(exact), self.others[:0]))

    def _blocks(self, values: NDArray[Any], others: FloatArray) -> Iterator[Block]:
        positions = self.rows.dense_breakpoints.positions
        for first in range(0, len(positions) - 1, STRETCHES):
            ends = positions[first : first + STRETCHES + 1]
            widths, rows = np.diff(ends), slice(ends[0], ends[-1])
            matrix = np.zeros((len(widths) + len(others), int(widths.sum())), dtype=values.dtype)
            row = np.repeat(np.arange(len(widths)), widths)
            matrix[row, np.arange(len(row))] = values[rows]
            matrix[len(widths) :] = others[:, rows]
            yield Block(first, len(widths), self.columns[rows], matrix)


class Block(NamedTuple):
    """Some stretches side by side, and what each of their rows adds to which sum.

    A product with such a matrix takes less time than a sum within each stretch, though most of it
    is zeros.

    Attributes:
        first: the first of the stretches.
        size: how many they are.
        columns: (n,) which of what is drawn their rows belong to.
        matrix: (size + M, n) what they add to the sum of each stretch, and to M other ones.
    """

    first: int
    size: int
    columns: IntArray
    matrix: NDArray[Any]


def _products(
    blocks: Sequence[Block], drawn: NDArray[Any], without: Callable[[Block], int] = lambda _: 0
) -> Iterator[tuple[Block, NDArray[Any]]]:
    """Yield each block with its sums of (G, R) numbers of times that rows were drawn.

    Args:
        blocks: of which to make sums.
        drawn: see above.
        without: how many of the first sums of a block nobody wants.
    """
    # Written over again and again: fresh memory would take as long as the products.
    size = max(len(block.columns) for block in blocks), drawn.shape[1]
    times, often = np.empty(size, drawn.dtype), np.empty(size, blocks[0].matrix.dtype)
    for block in blocks:
        n = len(block.columns)
        drawn.take(block.columns, axis=0, out=times[:n], mode="clip")
        often[:n] = times[:n]
        # `dot` lets go of the lock, which `matmul` holds.
        yield block, np.dot(block.matrix[without(block) :], often[:n])


class ResampledAtBreakpoints(CurvesAtBreakpoints):
    """R residual curves of resamples.

    Args:
        resampling: of the rows.
        drawn: (G, R) how often each row or cluster was drawn.
        sums: (P + 1, R) sums of c - a over the rows before each breakpoint.
        total: (R,) how many rows each resample has.
        means: (M, R) means of other numbers.
    """

    breakpoints: DenseBreakpoints  # pyright: ignore[reportIncompatibleVariableOverride]
    resampling: Resampling
    drawn: NDArray[Any]
    means: FloatArray
    _total: FloatArray
    _shrunk: bool

    def __init__(
        self,
        resampling: Resampling,
        drawn: NDArray[Any],
        sums: FloatArray,
        total: FloatArray,
        means: FloatArray,
    ) -> None:
        super().__init__(resampling.rows, resampling.rows.dense_breakpoints, sums)
        more = {"resampling": resampling, "drawn": drawn, "means": means, "_total": total}
        for name, value in (more | {"_shrunk": False}).items():
            object.__setattr__(self, name, value)

    @property
    def total(self) -> FloatArray:
        """(R,) how many rows each curve counts."""
        return self._total

    @cached_property
    def counts(self) -> FloatArray:
        """(P + 1, R) how many rows there are before each breakpoint, with their weights."""
        found = np.empty((self.breakpoints.stretches, self.drawn.shape[1]))
        for block, numbers in _products(self.resampling.counting, self.drawn):
            found[block.first : block.first + block.size] = numbers
        return running_columns(found)

    def shrink_gaps(self) -> None:
        """Draw small gaps towards 0, in place: see `ShrunkGaps`."""
        np.add(self.sums, self.rows.null_shift[self.breakpoints.positions, None], out=self.sums)
        object.__setattr__(self, "_shrunk", True)

    def at_ranks(self, ranks: NDArray[Any]) -> FloatArray:
        """Return (R, B) values of R(k) at ranks in [0, total]; see `ResidualCurves.at_ranks`."""
        wanted = np.broadcast_to(np.atleast_2d(ranks).T, (ranks.shape[-1], self.drawn.shape[1]))
        if self.rows.weight is not None:
            # Sums in another order mustn't count rows that weren't drawn, beyond the last one.
            wanted = wanted * (1 - ROUNDING)
        both = self.counts, self.sums
        stretch = self._stretches(wanted)
        mass, low = (_at(sums, stretch) for sums in both)
        width, gap = (_at(sums, stretch + 1) for sums in both)
        width -= mass
        gap -= low
        many = ~self.breakpoints.single[stretch]
        if many.any():
            missing = (wanted - mass)[many]
            before, within = self._runs_within(stretch[many], np.nonzero(many)[1], missing)
            mass[many] += before[0]
            low[many] += before[1]
            width[many], gap[many] = within
        share = np.divide(wanted - mass, width, out=np.zeros_like(width), where=width > 0)
        return (low + np.clip(share, 0.0, 1.0) * gap).T

    def _stretches(self, wanted: FloatArray) -> IntArray:
        """Return (B, R) the first stretch of each resample that ends with so many rows, or more.

        All resamples are looked through at once, each behind the one before it.
        """
        ends, resamples = len(self.counts), self.drawn.shape[1]
        before = np.arange(resamples, dtype=np.float64) * (float(self.total.max()) + 1.0)
        behind = np.add(self.counts.T, before[:, None], order="C").reshape(-1)
        found = np.searchsorted(behind, wanted + before)
        found -= np.arange(resamples, dtype=np.int64) * ends
        return np.clip(found - 1, 0, ends - 2)

    def _runs_within(
        self, stretch: IntArray, resample: IntArray, missing: FloatArray
    ) -> tuple[tuple[FloatArray, FloatArray], tuple[FloatArray, FloatArray]]:
        """Return what comes before the run that a stretch's missing rows end in, and in that run.

        Args:
            stretch: (M,) which.
            resample: (M,) of which resample.
            missing: (M,) how many rows of the stretch to count.

        Returns:
            Twice the (M,) number of rows and their sum of c - a.
        """
        rows, how, marks = self.rows, self.resampling, self.breakpoints
        start, end = marks.positions[stretch], marks.positions[stretch + 1]
        # What lies beyond the end of a stretch is read, too, but never counted.
        row = np.minimum(start + np.arange(marks.width)[:, None], rows.n - 1)
        cell = (how.columns * self.drawn.shape[1]).take(row)
        cell += resample
        often = self.drawn.reshape(-1).take(cell)
        weight = often if rows.weight is None else often * rows.weight.take(row)
        reached = np.cumsum(weight, axis=0, dtype=np.int64 if rows.weight is None else np.float64)
        at = np.minimum((reached < missing).sum(axis=0), end - start - 1)
        if rows.distinct < rows.n:
            run = np.searchsorted(rows.tie_starts, start + at, side="right")
            first, last = rows.tie_starts[run - 1] - start, rows.tie_starts[run] - start
        else:
            first, last = at, at + 1
        residual = np.cumsum(how.residual.take(row) * often, axis=0)
        before, within = zip(
            *(_split(sums, first, last) for sums in (reached, residual)), strict=True
        )
        gaps = [each[1] / how.unit for each in (before, within)]
        if self._shrunk:
            moved = rows.null_shift
            gaps[0] += moved[start + first] - moved[start]
            gaps[1] += moved[start + last] - moved[start + first]
        return (before[0], gaps[0]), (within[0], gaps[1])


def _split(sums: NDArray[Any], first: IntArray, last: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return what (W, M) running sums come to before `first`, and from there to `last`."""
    before = np.where(first > 0, _at(sums, np.maximum(first - 1, 0)[None])[0], 0.0)
    return before, _at(sums, last[None] - 1)[0] - before


def running_columns(values: NDArray[Any]) -> FloatArray:
    """Return (P + 1, R) running sums of (P, R) values, from 0."""
    sums = np.empty((len(values) + 1, values.shape[1]))
    sums[0] = 0.0
    np.cumsum(values, axis=0, out=sums[1:])
    return sums


def _at(sums: NDArray[Any], index: IntArray) -> FloatArray:
    """Return (B, R) values of (P + 1, R) sums at (B, R) indices."""
    return np.take_along_axis(sums, index, axis=0)
