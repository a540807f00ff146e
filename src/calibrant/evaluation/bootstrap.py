"""Resamples and calibrated data sets of rows in memory: drawn in batches, by a seed, once.

Batches and their random numbers depend on the number of rows and on the seed alone, so that results
don't depend on the number of threads, and resamples of several calibrators on one test set are
paired. What intervals and floors are made of them, `calibrant.evaluation.uncertainty` says.

Calibrated outcomes, drawn not row by row but as numbers of right rows.

If the confidences are calibrated, how many rows of a stretch are right is a sum of independent
outcomes with known chances. Its distribution is computed exactly, a row at a time, and drawn from.
So nothing is approximated, and ten thousand rows take a few hundred random numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any, Self, TypeVar

import numpy as np

from calibrant.core.arrays import FloatArray, IntArray, places_in_runs
from calibrant.core.threads import mapped
from calibrant.evaluation.at_breakpoints import (
    CurvesAtBreakpoints,
    DrawnCurve,
    Resampling,
    draw_counts,
    draw_outcomes,
    running_columns,
    stretches,
    sums_at,
)
from calibrant.metrics.metric_types import CurveMetric, MeanMetric, Metric, values_of_curves
from calibrant.metrics.resampling import Clusters, Counts, HonestDraws, draw_columns, resampled
from calibrant.metrics.top_label import Breakpoints, ResidualCurves, TopLabel, unit_of
from calibrant.predictions.scoring import RowScores

# Rows whose number of right ones is drawn at once: its distribution takes so many squared steps.
PIECE = 64
# So many of them that their numbers stay in the cache.
AT_ONCE = 32
# Places at which a table says how many of a piece's rows are right; a power of 2.
GUIDES = 256


def honest_curves(rows: TopLabel, right: FloatArray) -> CurvesAtBreakpoints:
    """Return the curves of rows without weights of which (P, R) of each stretch are right."""
    unit = unit_of(rows.n)
    sums = running_columns(right * -float(unit))
    confidence = rows.confidence
    said = sums_at(
        rows.breakpoints.positions, lambda part: np.rint(confidence[part] * unit), rows.n
    )
    sums += said[:, None]
    sums *= 1 / unit
    return CurvesAtBreakpoints(rows, rows.breakpoints, sums)


@dataclass(frozen=True)
class Pieces:
    """Pieces of stretches, of at most `PIECE` rows.

    Attributes:
        bounds: (M + 1,) first row of each, and N.
        stretch: (M,) which it belongs to.
    """

    bounds: IntArray
    stretch: IntArray

    @classmethod
    def of(cls, breakpoints: Breakpoints) -> Self:
        """Return the pieces of all stretches."""
        widths = np.diff(breakpoints.positions)
        number = -(-widths // PIECE)
        stretch = np.repeat(np.arange(len(widths)), number)
        along = places_in_runs(number) * widths[stretch] // number[stretch]
        first = breakpoints.positions[stretch] + along
        return cls(np.append(first, breakpoints.positions[-1]), stretch)


def numbers_right(
    rng: np.random.Generator, confidence: FloatArray, pieces: Pieces, part: slice, size: int
) -> tuple[IntArray, IntArray]:
    """Return how many rows are right, if each is with its confidence for the chance.

    Args:
        rng: makes the random numbers.
        confidence: (N,) sorted.
        pieces: of the rows.
        part: which pieces.
        size: R, how many times.

    Returns:
        (S,) ascending stretches, and (S, R) the numbers of right rows of these pieces in them.
    """
    bounds, stretch = pieces.bounds[part.start : part.stop + 1], pieces.stretch[part]
    below = _distribution(confidence, bounds)
    places = stretch - stretch[0]
    right = np.zeros((places[-1] + 1, size), dtype=np.int64)
    for start in range(0, len(stretch), AT_ONCE):
        some = slice(start, start + AT_ONCE)
        drawn, place = _drawn(below[some], rng.random((len(below[some]), size))), places[some]
        first = np.diff(place, prepend=-1) > 0
        right[place[first]] += drawn[first]
        for at, each in zip(place[~first].tolist(), drawn[~first], strict=True):
            right[at] += each
    return np.arange(stretch[0], stretch[-1] + 1, dtype=np.int64), right


def _drawn(below: FloatArray, uniform: FloatArray) -> IntArray:
    """Return (M, R) how many of (M, L) ascending chances aren't above (M, R) uniform numbers.

    A table says it for multiples of 1 / `GUIDES`; from there it is hardly ever more than a step.
    """
    pieces, longest = below.shape
    piece = np.arange(pieces, dtype=np.int64)[:, None]
    cell = np.minimum(np.ceil(below * GUIDES).astype(np.int64), GUIDES) + piece * (GUIDES + 1)
    table = np.bincount(cell.reshape(-1), minlength=pieces * (GUIDES + 1))
    table = table.reshape(pieces, GUIDES + 1).cumsum(axis=1) + piece * longest
    guide = (uniform * GUIDES).astype(np.int64)
    guide += piece * (GUIDES + 1)
    place: IntArray = table.reshape(-1).take(guide)
    chances = below.reshape(-1)
    short = np.flatnonzero(np.less_equal(chances.take(place), uniform))
    found, numbers = place.reshape(-1), uniform.reshape(-1)
    while len(short):
        found[short] += 1
        short = short[chances[found[short]] <= numbers[short]]
    place -= piece * longest
    return place


def _distribution(confidence: FloatArray, bounds: IntArray) -> FloatArray:
    """Return (M, L) chances that at most k of a piece's rows are right, 2 from all of them on."""
    widths = np.diff(bounds)
    longest = int(widths.max())
    chance = np.zeros((longest + 1, len(widths)))
    chance[0] = 1.0
    for k in range(longest):
        # A row more: one that isn't there is never right.
        row = np.minimum(bounds[:-1] + k, len(confidence) - 1)
        p = np.where(k < widths, confidence[row], 0.0)
        moved = chance[: k + 1] * p
        chance[: k + 1] -= moved
        chance[1 : k + 2] += moved
    below = np.cumsum(chance, axis=0)
    below[np.arange(longest + 1)[:, None] >= widths] = 2.0
    return np.ascontiguousarray(below.T)


T = TypeVar("T")
AnyDraws = TypeVar("AnyDraws", bound="Draws")

# Resamples are drawn in batches of about this many rows in all, 2 MB an array.
BATCH_ROWS = 1 << 18
# Sums at breakpoints are made of so many numbers of a resample's rows together, 1 MB.
ROWS_TOGETHER = 1 << 20
# Draws of more bytes than this are made anew for every evaluation.
MOST_KEPT = 1 << 26
# Pieces whose distributions, and data sets whose metrics, are computed at once.
PIECES_TOGETHER, SETS_TOGETHER = 256, 100

INDEPENDENT = HonestDraws(None, 0.0)

Replicates = dict[str, FloatArray]


def batch_sizes(rows: int, resamples: int) -> list[int]:
    """Return how many resamples of so many rows each batch holds."""
    size = max(1, min(resamples, BATCH_ROWS // rows))
    return [min(size, resamples - start) for start in range(0, resamples, size)]


def in_batches(
    batch: Callable[[np.random.Generator, int], Replicates], rows: int, resamples: int, seed: int
) -> Replicates:
    """Return what `batch` makes of generators and numbers of resamples, on every core."""
    sizes = batch_sizes(rows, resamples)
    generators = [np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(len(sizes))]
    given = list(zip(generators, sizes, strict=True))
    return joined(mapped(lambda of_batch: batch(*of_batch), given))


def joined(parts: Sequence[Replicates]) -> Replicates:
    """Return the values of all parts, one behind the other."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


@dataclass(frozen=True, eq=False)
class Draws:
    """Resamples of N rows, or of G clusters of them.

    Attributes:
        number: G, or N.
        sizes: how many resamples each batch holds.
        seed: for the random numbers.
        kept: what `of` returns, where it serves several evaluations.
    """

    number: int
    sizes: list[int]
    seed: int
    kept: dict[range, Counts] = field(default_factory=dict[range, Counts])

    @classmethod
    def of_rows(
        cls, rows: int, resamples: int, seed: int, clusters: Clusters | None = None
    ) -> Self:
        """Return what draws so many resamples of so many rows; see `drawn_once`."""
        number = rows if clusters is None else clusters.number
        found, store = cls(number, batch_sizes(rows, resamples), seed), _store.get()
        return found if store is None else store.kept(found)

    def kept_if_small(self) -> Self:
        """Return the same with all of it drawn, unless it is too much to be kept."""
        if sum(self.sizes) * self.number > MOST_KEPT:
            return self
        batches = self.batches()
        return replace(self, kept=dict(zip(batches, mapped(self.of, batches), strict=True)))

    def batches(self) -> list[range]:
        """Return batches that are worked on together: some `ROWS_TOGETHER` numbers in all."""
        together, last = max(1, ROWS_TOGETHER // (self.number * self.sizes[0])), len(self.sizes)
        return [range(i, min(i + together, last)) for i in range(0, last, together)]

    def of(self, batches: range) -> Counts:
        """Return (G, R) how often each row was drawn in the resamples of batches."""
        if batches in self.kept:
            return self.kept[batches]
        each = (self._batch(i) for i in batches)
        return np.ascontiguousarray(np.concatenate(list(each), axis=1))

    def _batch(self, index: int) -> Counts:
        own = np.random.SeedSequence(self.seed, spawn_key=(index,))
        return draw_columns(np.random.default_rng(own), self.number, self.sizes[index])


class _Store:
    """Draws that were kept, by what decides of them."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._draws: dict[tuple[int, ...], Any] = {}

    def kept(self, draws: AnyDraws) -> AnyDraws:
        key = (draws.number, draws.seed, *draws.sizes)
        with self._lock:  # whoever comes second waits, and draws nothing
            if key not in self._draws:
                self._draws[key] = draws.kept_if_small()
            return self._draws[key]


_store: ContextVar[_Store | None] = ContextVar("store", default=None)


@contextmanager
def drawn_once() -> Generator[None]:
    """Let all evaluations inside share what is drawn by the same seed for as many rows.

    Threads that are started inside have to inherit the context.
    """
    token = _store.set(_store.get() or _Store())
    try:
        yield
    finally:
        _store.reset(token)


def bootstrap(
    scores: RowScores,
    rows: TopLabel,
    metrics: Sequence[Metric],
    resamples: int,
    seed: int,
    clusters: Clusters | None = None,
) -> Replicates:
    """Return the (R,) values of every metric on R bootstrap resamples.

    The same seed draws the same rows whatever the scores, so the values of two calibrators on one
    test set are paired.

    Args:
        scores: N scored rows.
        rows: the same, sorted by confidence.
        metrics: what to compute; those of whole rows bring their own resamples.
        resamples: R.
        seed: for the random numbers.
        clusters: of the rows, drawn whole; None where every row stands alone.
    """
    if not metrics:
        return {}
    if rows.n > BATCH_ROWS and rows.weight is None and clusters is None:
        return in_batches(
            lambda rng, _: _one_of_many_rows(scores, rows, metrics, rng), rows.n, resamples, seed
        )
    drawn = Draws.of_rows(rows.n, resamples, seed, clusters)
    means = [metric for metric in metrics if isinstance(metric, MeanMetric)]
    quick, whole = _at_breakpoints(metrics)
    columns = rows.order if clusters is None else clusters.codes[rows.order]
    numbers = [metric.per_row(scores)[rows.order] for metric in means]
    sums = Resampling.of_rows(rows, columns, drawn.number, numbers)

    def by_running_sums(counts: Counts) -> Replicates:
        in_order = np.ascontiguousarray(counts.take(columns, axis=0).T)
        return values_of_resamples(whole, resampled(rows, in_order))

    def batch(batches: range) -> Replicates:
        counts, size = drawn.of(batches), drawn.sizes[0]
        found: Replicates = {}
        if whole:  # on so few resamples that their running sums stay in the cache
            starts = range(0, counts.shape[1], size)
            found = joined([by_running_sums(counts[:, i : i + size]) for i in starts])
        if means or quick:
            curves = sums.curves(counts, residuals=bool(quick))
            found |= {m.name: mean for m, mean in zip(means, curves.means, strict=True)}
            found |= values_of_resamples(quick, curves)
        return found

    return joined(mapped(batch, drawn.batches()))


def _at_breakpoints(metrics: Sequence[Metric]) -> tuple[list[Metric], list[Metric]]:
    """Return the curve metrics that read curves at breakpoints only, and those that read it all."""
    curves = [metric for metric in metrics if isinstance(metric, CurveMetric)]
    return [m for m in curves if m.at_breakpoints], [m for m in curves if not m.at_breakpoints]


def floor(
    rows: TopLabel,
    metrics: Sequence[Metric],
    resamples: int,
    seed: int,
    honest: HonestDraws = INDEPENDENT,
) -> Replicates:
    """Return the (R,) values of every curve metric under perfect calibration.

    Args:
        rows: N sorted rows, of which only the confidences are used.
        metrics: what to compute; metrics without a floor are passed over.
        resamples: R.
        seed: for the random numbers.
        honest: how outcomes of these rows depend on one another.
    """

    floored = [metric for metric in metrics if isinstance(metric, CurveMetric) and metric.has_floor]
    quick, whole = _at_breakpoints(floored)
    if rows.weight is not None or honest.correlation:
        quick, whole = [], floored

    def batch(rng: np.random.Generator, size: int) -> Replicates:
        if rows.n > BATCH_ROWS and rows.weight is None and honest.clusters is None:
            drawn = DrawnCurve(rows, outcomes=draw_outcomes(rng, rows.confidence))
            return values_of_curves(whole, drawn)
        outcomes = honest.outcomes(rng, rows.confidence, size)
        return values_of_curves(whole, ResidualCurves.with_labels(rows, outcomes))

    found = in_batches(batch, rows.n, resamples, seed) if whole else {}
    return found | floor_at_breakpoints(rows, quick, resamples, seed) if quick else found


def _one_of_many_rows(
    scores: RowScores, rows: TopLabel, metrics: Sequence[Metric], rng: np.random.Generator
) -> Replicates:
    """Return the values on one resample, in little more memory than the rows have."""
    counts = draw_counts(rng, rows.n)
    means = [metric for metric in metrics if isinstance(metric, MeanMetric)]
    totals = np.zeros(len(means))
    for part in stretches(rows.n) if means else ():
        often, some = counts[part].astype(np.float64), scores.take(part)
        totals += [float(often @ metric.per_row(some)) for metric in means]
    found = {m.name: np.array([t / rows.n]) for m, t in zip(means, totals.tolist(), strict=True)}
    if len(means) < len(metrics):
        found |= values_of_resamples(metrics, DrawnCurve(rows, counts[rows.order]))
    return found


def values_of_resamples(metrics: Sequence[Metric], curves: ResidualCurves) -> Replicates:
    """Return the (R,) values of all curve metrics on R resamples.

    Those made of many gaps scatter around gaps drawn towards 0.
    """
    errors = [each for each in metrics if isinstance(each, CurveMetric) and each.sums_gaps]
    others = [each for each in metrics if each not in errors]
    found = values_of_curves(others, curves)
    if errors:
        curves.shrink_gaps()
        found |= values_of_curves(errors, curves)
    return found


def floor_at_breakpoints(
    rows: TopLabel, metrics: Sequence[Metric], resamples: int, seed: int
) -> Replicates:
    """Return the (R,) values of metrics that want to know how many rows of a stretch are right."""
    pieces = Pieces.of(rows.breakpoints)
    parts = [slice(i, i + PIECES_TOGETHER) for i in range(0, len(pieces.stretch), PIECES_TOGETHER)]
    generators = np.random.default_rng([seed, 4]).spawn(len(parts))
    right = np.zeros((rows.breakpoints.stretches, resamples))

    def draw(part: slice, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
        return numbers_right(rng, rows.confidence, pieces, part, resamples)

    def batch(start: int) -> Replicates:
        return values_of_curves(
            metrics, honest_curves(rows, right[:, start : start + SETS_TOGETHER])
        )

    for stretch, found in mapped(
        lambda part: draw(*part), list(zip(parts, generators, strict=True))
    ):
        right[stretch] += found
    return joined(mapped(batch, range(0, resamples, SETS_TOGETHER)))
