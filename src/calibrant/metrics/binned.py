"""Bins of confidence and the sums over them; the ECE, and its equal-mass form, AdaECE."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arguments import within
from calibrant.core.arrays import Array, FloatArray, IntArray
from calibrant.core.errors import InputError
from calibrant.core.weights import times, total
from calibrant.metrics.metric_types import BIASED, BINS_COST, CurveMetric
from calibrant.metrics.top_label import (
    PairKind,
    ResidualCurves,
    TopLabel,
    checked_weight,
    confidence_and_correct,
    top_label,
)

DEFAULT_BINS = 15
# Cells even in logit c end this far from 0 and 1; all that lies beyond is in the last.
LOGIT_CELLS_END = 1e-12
# Confidences beyond this are taken as it when logits are asked for.
LOGIT_CLIP = 1e-7

Strategy = Literal["uniform", "quantile"]
EdgeConvention = Literal["right-closed", "left-closed", "torchmetrics"]
Cells = Literal["uniform", "logit"]


def bin_edges(n_bins: int) -> FloatArray:
    """Return the B + 1 edges of equal-width bins, each the float64 nearest to b / B."""
    within("n_bins", n_bins, whole=True, at_least=1)
    return np.arange(n_bins + 1) / n_bins


def logit(confidence: FloatArray, nearest: float = LOGIT_CLIP) -> FloatArray:
    """Return log(c / (1 - c)) with c kept so far away from 0 and 1."""
    clipped = np.clip(confidence, nearest, 1 - nearest)
    return np.log(clipped) - np.log1p(-clipped)


def cell_edges(n_bins: int, strategy: Strategy | Cells) -> FloatArray:
    """Return the B + 1 edges from 0 to 1, evenly spaced in c or in logit c."""
    if strategy == "uniform":
        return bin_edges(n_bins)
    if strategy != "logit":
        raise InputError(f"strategy '{strategy}' has no fixed edges")
    within("n_bins", n_bins, whole=True, at_least=1)
    end = -math.log(LOGIT_CELLS_END)
    edges = 1 / (1 + np.exp(-np.linspace(-end, end, n_bins + 1)))
    edges[0], edges[-1] = 0.0, 1.0
    return edges


def equal_mass_cuts(n: int, n_bins: int) -> IntArray:
    """Return the B + 1 ranks that cut n rows into bins whose sizes differ by at most one.

    The larger bins come first, as in `numpy.array_split`.
    """
    return mass_cuts(np.array([float(n)]), n_bins)


def mass_cuts(total: FloatArray, n_bins: int) -> NDArray[Any]:
    """Return the ranks that cut each of the (R,) totals into bins of equal mass.

    Whole totals are cut as `equal_mass_cuts` says, others into equal parts.

    Returns:
        (B + 1,) if all totals are the same whole number, else (R, B + 1).
    """
    within("n_bins", n_bins, whole=True, at_least=1)
    index, whole = np.arange(n_bins + 1), total == np.round(total)
    alike = bool(whole[0]) and bool((total == total[0]).all())
    totals: Any = int(total[0]) if alike else total[:, None]
    size, larger = np.divmod(totals, n_bins)
    cuts: NDArray[Any] = index * size + np.minimum(index, larger)
    return cuts if alike else np.where(whole[:, None], cuts, totals * index / n_bins)


@dataclass(frozen=True, eq=False)
class BinSums:
    """Sufficient statistics of a reliability diagram with B bins (lo, hi]; 0 is in the first.

    The arrays may have leading axes, say one for resamples or classes: (..., B).

    Attributes:
        count: (B,) rows in the bin, or the sum of their weights.
        confidence: (B,) sum of their confidences.
        correct: (B,) how many of them are right.
    """

    count: FloatArray
    confidence: FloatArray
    correct: FloatArray

    @classmethod
    def of(cls, rows: TopLabel, n_bins: int = DEFAULT_BINS, strategy: Cells = "uniform") -> BinSums:
        """Sum rows into bins. A confidence of 0 counts in the first bin."""
        index = bin_index(rows.confidence, cell_edges(n_bins, strategy))
        return cls(
            np.bincount(index, rows.weight, n_bins).astype(np.float64),
            np.bincount(index, times(rows.confidence, rows.weight), n_bins).astype(np.float64),
            np.bincount(index, times(rows.correct, rows.weight), n_bins).astype(np.float64),
        )

    @classmethod
    def of_curves(cls, curves: ResidualCurves, n_bins: int, strategy: Cells = "uniform") -> BinSums:
        """Return the (R, B) sums of residual curves."""
        cuts = curves.cuts(cell_edges(n_bins, strategy))
        count, confidence = (
            np.diff(sums[:, cuts], axis=1) for sums in (curves.weights, curves.confidence)
        )
        return cls._broadcast(count, confidence, curves.between(cuts))

    @classmethod
    def of_quantiles(cls, curves: ResidualCurves, n_bins: int) -> BinSums:
        """Return the (R, B) sums over bins of equal mass, whose sizes differ by at most one."""
        ranks = mass_cuts(curves.total, n_bins)
        crossing = curves.crossing(ranks)
        confidence, gap = (
            np.diff(crossing.of(sums), axis=1) for sums in (curves.confidence, curves.residual)
        )
        count = np.diff(ranks, axis=-1).astype(np.float64)
        return cls._broadcast(count, confidence, gap)

    @classmethod
    def _broadcast(cls, count: FloatArray, confidence: FloatArray, gap: FloatArray) -> BinSums:
        shape = gap.shape
        return cls(
            np.broadcast_to(count, shape),
            np.broadcast_to(confidence, shape),
            confidence - gap,
        )

    @property
    def total(self) -> FloatArray:
        """(...,) number of rows."""
        return self.count.sum(axis=-1)

    @property
    def residual(self) -> FloatArray:
        """(..., B) sum of c - a of each bin."""
        return self.confidence - self.correct

    @property
    def mean_confidence(self) -> FloatArray:
        """(..., B) mean confidence of each bin, NaN where it is empty."""
        return self._mean(self.confidence)

    @property
    def accuracy(self) -> FloatArray:
        """(..., B) share of right predictions in each bin, NaN where it is empty."""
        return self._mean(self.correct)

    def _mean(self, total: FloatArray) -> FloatArray:
        empty = np.full(total.shape, np.nan)
        return np.divide(total, self.count, out=empty, where=self.count > 0)


def bin_index(confidence: NDArray[np.floating], edges: FloatArray) -> IntArray:
    """Return the index of the bin (lo, hi] that each confidence lies in."""
    return np.searchsorted(edges[1:-1], confidence, side="left")


def even_bin_index(confidence: NDArray[np.floating], n_bins: int) -> IntArray:
    """Return `bin_index` for the edges b / B: a product says which it is, but for rounding."""
    edges = bin_edges(n_bins)
    index = np.clip((confidence * n_bins).astype(np.int64), 0, n_bins - 1)
    index += confidence > edges.take(index + 1)
    index -= confidence <= edges.take(index)
    return np.clip(index, 0, n_bins - 1, out=index)


__all__ = [
    "DEFAULT_BINS",
    "BinSums",
    "adaece_of_curves",
    "adaptive_calibration_error",
    "bin_edges",
    "ece_of_curves",
    "equal_mass_cuts",
    "expected_calibration_error",
]


def expected_calibration_error(
    scores: Array,
    labels: Array,
    n_bins: int = DEFAULT_BINS,
    convention: EdgeConvention = "right-closed",
    *,
    kind: PairKind | None = None,
    sample_weight: Array | None = None,
) -> float:
    """Return the ECE, sum_b (n_b / N) |mean confidence - accuracy|, a fraction.

    Convention: top label, `n_bins` equal-width bins (lo, hi] with 0 in the first, L1 norm, edges
    and confidences compared in float64. The value is biased upwards: a perfectly calibrated model
    shows about sqrt(2 / pi) sum_b sqrt(V_b) / N, V_b = sum of c (1 - c) in bin b.

    ``convention="left-closed"`` takes bins [lo, hi), the last one closed. ``"torchmetrics"``
    repeats that library's code (1.9): bins [lo, hi), and one more bin for a confidence of exactly
    1.

    Args:
        scores: (N, K) probabilities, or (N,) confidences.
        labels: (N,) true classes, or (N,) correctness.
        kind: what (N,) scores are: ``"confidence"``, or ``"prob"`` of the positive class; then
            labels are 0 and 1 instead of correctness.
        sample_weight: (N,) how much each row counts; by default all alike.
        n_bins: number of bins.
        convention: see above.

    Raises:
        PredictionsError: unusable arrays.
        InputError: fewer than one bin, or an unknown `convention`.

    References:
        Naeini, Cooper, Hauskrecht, AAAI 2015. Guo, Pleiss, Sun, Weinberger, ICML 2017.

    Examples:
        >>> import calibrant as cb
        >>> ece = cb.metrics.expected_calibration_error([0.9] * 4, [1, 1, 1, 0], kind="confidence")
        >>> round(ece, 3)  # says 90 %, and 75 % are right
        0.15
    """
    confidence, correct = confidence_and_correct(scores, labels, kind)
    weight = checked_weight(sample_weight, len(confidence))
    if convention == "right-closed":  # sums over bins need no sorted rows
        index = even_bin_index(confidence, n_bins)
        residual = np.minimum(confidence, 1.0) - correct
        sums = np.bincount(index, times(residual, weight))
        return float(np.abs(sums).sum() / total(len(confidence), weight))
    within("convention", convention, choices=get_args(EdgeConvention))
    rows = TopLabel.sort(confidence, correct, weight)
    cuts = np.searchsorted(rows.confidence, bin_edges(n_bins), side="left")
    if convention == "left-closed":
        cuts[-1] = rows.n
    else:
        cuts = np.append(cuts, rows.n)
    return float(np.abs(rows.curves().between(cuts)).sum() / rows.total)


def ece_of_curves(curves: ResidualCurves, n_bins: int = DEFAULT_BINS) -> FloatArray:
    """Return the (R,) ECEs of residual curves."""
    return np.abs(curves.between(curves.cuts(bin_edges(n_bins)))).sum(axis=1) / curves.total


def adaptive_calibration_error(
    scores: Array,
    labels: Array,
    n_bins: int = DEFAULT_BINS,
    convention: Literal["ranks", "focal"] = "ranks",
    *,
    kind: PairKind | None = None,
    sample_weight: Array | None = None,
) -> float:
    """Return AdaECE, the ECE over bins that hold equally many rows, a fraction.

    Convention: top label, bins by rank whose sizes differ by at most one, L1 norm. Rows of equal
    confidence have no order: a cut through them takes its share of their mean residual, so the
    value doesn't depend on the order of the rows. ``convention="focal"`` repeats the widely copied
    code of the focal-loss calibration paper: edges interpolated between sorted confidences and bins
    (lo, hi], which leaves out the least confident row and all that tie with it.

    Two other numbers are called ACE: see `average_calibration_error` and
    `classwise_adaptive_calibration_error`.

    Args:
        scores: (N, K) probabilities, or (N,) confidences.
        labels: (N,) true classes, or (N,) correctness.
        kind: what (N,) scores are: ``"confidence"``, or ``"prob"`` of the positive class; then
            labels are 0 and 1 instead of correctness.
        sample_weight: (N,) how much each row counts; by default all alike.
        n_bins: number of bins.
        convention: see above.

    Raises:
        PredictionsError: unusable arrays.
        InputError: fewer than one bin, or an unknown `convention`.

    References:
        Nguyen & O'Connor, EMNLP 2015. Mukhoti et al., NeurIPS 2020.

    Examples:
        >>> import calibrant as cb
        >>> c, a = [0.8, 0.8, 0.9, 0.9], [1, 1, 1, 0]
        >>> value = cb.metrics.adaptive_calibration_error(c, a, n_bins=2, kind="confidence")
        >>> round(value, 3)  # (|.8 - 1| + |.9 - .5|) / 2; bins of equal width hold none or all
        0.3
        >>> # |.85 - .75|
        >>> round(cb.metrics.expected_calibration_error(c, a, 2, kind="confidence"), 3)
        0.1
    """
    within("convention", convention, choices=("ranks", "focal"))
    rows = top_label(scores, labels, kind, sample_weight=sample_weight)
    if convention == "ranks":
        return float(adaece_of_curves(rows.curves(), n_bins)[0])
    if rows.weight is not None:
        raise InputError(
            "convention='focal' takes no weights, because the code that it repeats takes none"
        )
    return _focal_adaptive_calibration_error(rows, n_bins)


def adaece_of_curves(curves: ResidualCurves, n_bins: int = DEFAULT_BINS) -> FloatArray:
    """Return the (R,) AdaECEs of residual curves."""
    at_cuts = curves.at_ranks(mass_cuts(curves.total, n_bins))
    return np.abs(np.diff(at_cuts, axis=1)).sum(axis=1) / curves.total


def _focal_adaptive_calibration_error(rows: TopLabel, n_bins: int) -> float:
    ranks = np.linspace(0, rows.n, n_bins + 1)
    edges = np.interp(ranks, np.arange(rows.n), rows.confidence)
    cuts = np.searchsorted(rows.confidence, edges, side="right")
    return float(np.abs(rows.curves().between(cuts)).sum() / rows.n)


ECE = CurveMetric(
    name="ece",
    title="ECE",
    definition="top label, 15 equal-width bins (lo, hi], L1",
    function=expected_calibration_error,
    effort=BINS_COST,
    fails=f"{BIASED}; errors that cancel within a bin aren't seen, and it jumps at the bins' edges",
    omnibus=True,
    sums_gaps=True,
    of_curves=ece_of_curves,
    at_breakpoints=True,
)
ADAECE = CurveMetric(
    name="adaece",
    title="AdaECE",
    definition="top label, 15 equal-mass bins by rank, L1",
    function=adaptive_calibration_error,
    effort=BINS_COST,
    fails=f"{BIASED}; a wide bin where rows are few hides what happens there",
    omnibus=True,
    sums_gaps=True,
    of_curves=adaece_of_curves,
    at_breakpoints=True,
)
ECE_POSITIVE = ECE.for_positive(
    "probability of the positive class, 15 equal-width bins (lo, hi], L1", sums_gaps=False
)
ADAECE_POSITIVE = ADAECE.for_positive(
    "probability of the positive class, 15 equal-mass bins by rank, L1", sums_gaps=False
)


def binned_gaps(confidence: FloatArray, correct: FloatArray, n_bins: int) -> FloatArray:
    """Return the (M,) ECEs of (M, N) confidences, binned as in `calibrant.metrics`.

    Bins are closed on the right. `correct` may be a fraction, for rows whose prediction is one of
    several tied classes.
    """
    several, rows = len(confidence), int(confidence.shape[1])
    search = cast(Any, np.searchsorted)  # its types don't know of (M, N) values
    cell: IntArray = search(bin_edges(n_bins)[1:-1], confidence, side="left")
    first: IntArray = np.arange(several)
    cell = cell + n_bins * first.reshape(-1, 1)
    gaps = np.bincount(cell.ravel(), (confidence - correct).ravel(), n_bins * several)
    return np.abs(gaps.reshape(several, n_bins)).sum(axis=1) / rows


def binned_gap(confidence: FloatArray, correct: FloatArray, n_bins: int) -> float:
    """Return the ECE of (N,) confidences; see `binned_gaps`."""
    return float(binned_gaps(confidence[None], correct[None], n_bins)[0])
