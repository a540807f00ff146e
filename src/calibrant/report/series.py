"""The numbers behind the charts: what the page draws and what the static figures draw.

Everything here is a function of scored rows (`Evaluation.top`, `Evaluation.scores`) and returns
small arrays: a chart of a million rows needs a few hundred points. What goes by class is in
`calibrant.report.classes`.

References:
    Margins: Sample Margin-Aware Recalibration of Temperature (2025), Figure 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import FloatArray
from calibrant.core.errors import InputError
from calibrant.core.weights import times
from calibrant.evaluation.results import Evaluation
from calibrant.evaluation.sample import RowSample
from calibrant.evaluation.uncertainty import DEFAULT_LEVEL, wilson_interval
from calibrant.metrics.binned import DEFAULT_BINS, BinSums, Strategy, bin_edges, mass_cuts
from calibrant.metrics.selective import from_the_top
from calibrant.metrics.top_label import TopLabel
from calibrant.predictions.scoring import RowScores

CURVE_POINTS = 160
HISTOGRAM_BINS = 30
# Wide enough to be calm at a few thousand rows, narrow against the range where diagrams bend.
SMOOTHING_WIDTH = 0.04
SMOOTHING_CELLS = 500
SMOOTHING_RESAMPLES = 300
# A kernel mean of fewer rows than this says nothing, so the curve stops there.
SMALLEST_KERNEL_MASS = 10.0


def in_worth(evaluation: Evaluation) -> tuple[TopLabel, RowScores | None]:
    """Return what was measured, sorted and not, with weights that sum to the rows' worth.

    Intervals of pictures take sums of weights for numbers of independent rows. Where rows have
    weights or clusters, `Evaluation.effective_rows` says how many they are worth. Of many files
    only sorted cells are known.
    """
    rows = rows_in_worth(evaluation, evaluation.top)
    if not isinstance(evaluation.sample, RowSample):
        return rows, None
    scores = evaluation.scores
    if rows is evaluation.top:
        return rows, scores
    weights = np.empty(rows.n)
    weights[rows.order] = rows.weight
    return rows, replace(scores, weights=weights)


def rows_in_worth(evaluation: Evaluation, rows: TopLabel) -> TopLabel:
    """Return sorted rows of an evaluation with such weights, or as they are without any."""
    if not evaluation.weighted and evaluation.clusters is None:
        return rows
    weight = np.ones(rows.n) if rows.weight is None else rows.weight
    return replace(rows, weight=evaluation.effective_rows / rows.total * weight)


@dataclass(frozen=True, eq=False)
class Reliability:
    """Points of a reliability diagram: groups of rows of similar confidence; all arrays (B,).

    Attributes:
        count: rows in the group, never 0. Equal-mass groups may share the rows of a tie.
        confidence: their mean confidence.
        accuracy: share of right predictions among them.
        low: lower end of Wilson's interval of the accuracy.
        high: its upper end.
    """

    count: FloatArray
    confidence: FloatArray
    accuracy: FloatArray
    low: FloatArray
    high: FloatArray

    @classmethod
    def of_sums(cls, sums: BinSums, level: float = DEFAULT_LEVEL) -> Reliability:
        """Return the points of bins that hold rows."""
        used = sums.count > 0
        low, high = wilson_interval(sums.correct, sums.count, level)
        return cls(
            sums.count[used],
            sums.mean_confidence[used],
            sums.accuracy[used],
            low[used],
            high[used],
        )


def binned_reliability(
    rows: TopLabel,
    n_bins: int = DEFAULT_BINS,
    level: float = DEFAULT_LEVEL,
    *,
    strategy: Strategy = "uniform",
) -> Reliability:
    """Return the reliability of `n_bins` bins.

    ``"uniform"`` bins (lo, hi] are of equal width, those of the ECE; ``"quantile"`` bins hold
    equally many rows, those of AdaECE. Rows of equal confidence have no order: a cut through them
    takes its share of all of them.
    """
    if strategy == "uniform":
        return Reliability.of_sums(BinSums.of(rows, n_bins), level)
    sums = BinSums.of_quantiles(rows.curves(), min(n_bins, rows.n))
    count = sums.count[0]
    # Differences of running sums may miss 0 and the count by rounding.
    correct = np.clip(sums.correct[0], 0.0, count)
    return Reliability.of_sums(BinSums(count, sums.confidence[0], correct), level)


def quantile_ends(rows: TopLabel, n_bins: int = DEFAULT_BINS) -> FloatArray:
    """Return (B, 2) the least and the greatest confidence in each bin of equally many rows."""
    weight = np.ones(rows.n) if rows.weight is None else rows.weight
    ranks = mass_cuts(np.array([rows.total]), min(n_bins, rows.n)).reshape(-1)
    sums = np.cumsum(weight)
    slack = 1e-9 * rows.total
    first = np.searchsorted(sums, ranks[:-1] + slack, side="right")
    last = np.searchsorted(sums, ranks[1:] - slack, side="left")
    least, most = (np.minimum(end, rows.n - 1) for end in (first, last))
    return np.round(np.stack([rows.confidence[least], rows.confidence[most]], axis=1), 6)


@dataclass(frozen=True, eq=False)
class SmoothedReliability:
    """A reliability diagram without bins; all arrays (G,).

    Attributes:
        confidence: positions in [0, 1] with enough rows around them.
        accuracy: the smoothed accuracy there.
        low: lower end of the pointwise bootstrap interval.
        high: its upper end.
    """

    confidence: FloatArray
    accuracy: FloatArray
    low: FloatArray
    high: FloatArray


def smoothed_reliability(
    rows: TopLabel,
    *,
    width: float = SMOOTHING_WIDTH,
    points: int = 101,
    level: float = DEFAULT_LEVEL,
    resamples: int = SMOOTHING_RESAMPLES,
    seed: int = 0,
) -> SmoothedReliability:
    """Return x + the kernel mean around x of (correct - confidence).

    Smoothing the residual and not the correctness keeps a perfectly calibrated model on the
    diagonal, at the ends of [0, 1] and where the rows crowd on one side too.

    Args:
        rows: N sorted rows.
        width: standard deviation of the Gaussian kernel.
        points: G positions, equally spaced over [0, 1].
        level: coverage of the pointwise percentile band.
        resamples: bootstrap resamples of the rows.
        seed: for the resamples.

    Raises:
        InputError: width, points or resamples out of range.
    """
    if not width > 0 or points < 2 or resamples < 2:
        raise InputError("width must be positive, points and resamples at least 2")
    # Rows become counts in cells far narrower than the kernel, right and wrong ones apart. A
    # bootstrap of the rows is then one multinomial draw, whose cost doesn't depend on N.
    cell = np.minimum((rows.confidence * SMOOTHING_CELLS).astype(np.int64), SMOOTHING_CELLS - 1)
    category = 2 * cell + rows.correct.astype(np.int64)
    size = 2 * SMOOTHING_CELLS
    count = np.bincount(category, rows.weight, size)
    residual = np.bincount(category, times(rows.correct - rows.confidence, rows.weight), size)
    used = np.flatnonzero(count)
    count, mean = count[used], residual[used] / count[used]
    middles = (used // 2 + 0.5) / SMOOTHING_CELLS
    grid = np.linspace(0.0, 1.0, points)
    kernel = np.exp(-0.5 * ((grid - middles[:, None]) / width) ** 2)

    grid_used = count @ kernel >= min(SMALLEST_KERNEL_MASS, rows.total / 2)
    grid, kernel = grid[grid_used], kernel[:, grid_used]

    def curve(counts: FloatArray) -> FloatArray:
        mass = np.maximum(counts @ kernel, np.finfo(np.float64).tiny)
        return np.clip(grid + (counts * mean) @ kernel / mass, 0.0, 1.0)

    every = max(round(rows.total), 1)
    drawn = np.random.default_rng(seed).multinomial(every, count / count.sum(), resamples)
    low, high = np.quantile(curve(drawn.astype(np.float64)), [(1 - level) / 2, (1 + level) / 2], 0)
    return SmoothedReliability(grid, curve(count.astype(np.float64)), low, high)


@dataclass(frozen=True, eq=False)
class ConfidenceHistogram:
    """How often which confidence is given.

    Attributes:
        edges: (B + 1,) of equal-width bins (lo, hi].
        count: (B,) rows.
        correct: (B,) how many of them are right.
        confidence: mean confidence of all rows.
        accuracy: share of right predictions among all rows.
    """

    edges: FloatArray
    count: FloatArray
    correct: FloatArray
    confidence: float
    accuracy: float


def confidence_histogram(rows: TopLabel, n_bins: int = HISTOGRAM_BINS) -> ConfidenceHistogram:
    """Return the histogram of confidences in `n_bins` equal-width bins."""
    sums = BinSums.of(rows, n_bins)
    return ConfidenceHistogram(
        bin_edges(n_bins),
        sums.count,
        sums.correct,
        rows.mean_confidence,
        rows.accuracy,
    )


@dataclass(frozen=True, eq=False)
class RiskCoverage:
    """What accepting only confident predictions buys; all arrays (P,), by rising coverage.

    Attributes:
        threshold: accept rows whose confidence is at least this.
        accepted: how many rows that accepts, with weights their sum.
        wrong: how many of those are wrong.
        rows: N, or the sum of all weights.
    """

    threshold: FloatArray
    accepted: NDArray[Any]
    wrong: NDArray[Any]
    rows: float

    @property
    def coverage(self) -> FloatArray:
        """(P,) share of the rows that is accepted."""
        return np.asarray(self.accepted / self.rows, dtype=np.float64)

    @property
    def error(self) -> FloatArray:
        """(P,) share of wrong predictions among the accepted ones."""
        return np.asarray(self.wrong / self.accepted, dtype=np.float64)

    def bound(self, level: float = DEFAULT_LEVEL) -> FloatArray:
        """(P,) upper bounds of the error, each of a threshold that was chosen beforehand.

        Exact for that many rows (Clopper & Pearson); one-sided.
        """
        from scipy.special import betaincinv

        right = np.maximum(self.accepted - self.wrong, 1e-9)
        found = betaincinv(self.wrong + 1.0, right, level)
        return np.where(self.accepted > self.wrong, found, 1.0)


def risk_coverage(rows: TopLabel, points: int = CURVE_POINTS) -> RiskCoverage:
    """Return the risk-coverage curve at `points` thresholds or fewer, evenly spaced in coverage.

    Rows of equal confidence are accepted together, so every point is reachable by a threshold.
    """
    of_all, wrong = from_the_top(rows.curves())
    counted: NDArray[Any] = of_all[0, 1:]
    errors: NDArray[Any] = wrong[0, 1:]
    if rows.weight is None:
        counted, errors = np.rint(counted).astype(np.int64), np.rint(errors).astype(np.int64)
    wanted: FloatArray = np.arange(1, points + 1) * counted[-1] / points
    kept = np.unique(np.minimum(np.searchsorted(counted, wanted), len(counted) - 1))
    return RiskCoverage(
        rows.confidence[rows.tie_starts[:-1]][::-1][kept],
        counted[kept],
        # Differences of running sums may miss 0 by rounding.
        np.maximum(errors[kept], 0),
        counted[-1].item(),
    )


# --- groups of the margin

DEFAULT_GROUPS = 4
POINTS_PER_GROUP = 6


@dataclass(frozen=True, eq=False)
class MarginGroup:
    """The rows of one quantile range of the margin.

    Attributes:
        margin: smallest and largest margin among them.
        rows: how many there are.
        confidence: mean confidence.
        accuracy: share of right predictions.
        low: lower end of Wilson's interval of the accuracy.
        high: its upper end.
        points: reliability within the group, in bins of equally many rows.
    """

    margin: tuple[float, float]
    rows: int
    confidence: float
    accuracy: float
    low: float
    high: float
    points: Reliability

    @property
    def gap(self) -> float:
        """Mean confidence minus accuracy."""
        return self.confidence - self.accuracy


def margin_groups(
    scores: RowScores,
    margin: NDArray[Any],
    groups: int = DEFAULT_GROUPS,
    n_bins: int = POINTS_PER_GROUP,
    level: float = DEFAULT_LEVEL,
) -> list[MarginGroup]:
    """Return the reliability within quantile groups of the margin, smallest margins first.

    Rows of equal margin stay together, so there may be fewer groups than asked for.

    Args:
        scores: N scored rows.
        margin: (N,) margins of the same rows, from `Predictions.margins`.
        groups: how many.
        n_bins: points of each group's diagram.
        level: coverage of the intervals.

    Raises:
        InputError: margins of other rows, or no group.
    """
    if len(margin) != len(scores.confidence):
        raise InputError(f"{len(margin)} margins don't go with {len(scores.confidence)} rows")
    if groups < 1:
        raise InputError(f"groups must be at least 1, not {groups}")
    inner = np.quantile(margin, np.arange(1, groups) / groups)
    index = np.searchsorted(inner, margin, side="left")
    found: list[MarginGroup] = []
    for group in range(groups):
        chosen = index == group
        if not chosen.any():
            continue
        weights = None if scores.weights is None else scores.weights[chosen]
        rows = TopLabel.sort(scores.confidence[chosen], scores.correct[chosen], weights)
        right = times(rows.correct, rows.weight).sum(keepdims=True)
        low, high = wilson_interval(right, np.array([rows.total]), level)
        found.append(
            MarginGroup(
                (float(margin[chosen].min()), float(margin[chosen].max())),
                rows.n,
                rows.mean_confidence,
                rows.accuracy,
                float(low[0]),
                float(high[0]),
                binned_reliability(rows, n_bins, level, strategy="quantile"),
            )
        )
    return found
