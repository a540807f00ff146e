"""One residual curve of very many rows, kept as what was drawn: two bytes a row, not sixteen.

Running sums over a million rows take 8 MB each, and every thread that works on resamples would hold
several. The usual metrics want those sums at a few places only. `DrawnCurve` finds them there from
how often each row was drawn, or from which rows were right, a stretch of rows at a time; metrics
that ask for whole running sums still get them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import BoolArray, FloatArray, IntArray
from calibrant.metrics.top_label import Crossing, ResidualCurves, TopLabel, accumulate

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
