"""What else may be made of the gaps of bins: their maximum, plain mean, square, or signed parts.

With gap_b = mean confidence - accuracy of bin b, weighing n_b / N: each function of `BinSums` below
reduces the last axis, so it serves one set, a batch of resamples, or the classes of a classifier.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from calibrant.core.arguments import within
from calibrant.core.arrays import Array, FloatArray
from calibrant.metrics.binned import DEFAULT_BINS, BinSums, Strategy
from calibrant.metrics.metric_types import BIASED, BINS_COST, CurveMetric
from calibrant.metrics.top_label import PairKind, ResidualCurves, top_label


def sums_of_curves(curves: ResidualCurves, n_bins: int, strategy: Strategy) -> BinSums:
    """Return (R, B) sums over bins of equal width or of equal mass."""
    if within("strategy", strategy, choices=get_args(Strategy)) == "uniform":
        return BinSums.of_curves(curves, n_bins)
    return BinSums.of_quantiles(curves, n_bins)


def sums_of(
    scores: Array,
    labels: Array,
    n_bins: int,
    strategy: Strategy,
    kind: PairKind | None = None,
    sample_weight: Array | None = None,
) -> BinSums:
    """Return the (B,) sums over bins of (N, K) scores with (N,) labels."""
    sums = sums_of_curves(
        top_label(scores, labels, kind, sample_weight=sample_weight).curves(), n_bins, strategy
    )
    return BinSums(sums.count[0], sums.confidence[0], sums.correct[0])


def gaps_of(sums: BinSums) -> FloatArray:
    """Return (..., B) mean confidence minus accuracy, 0 where a bin is empty."""
    none = np.zeros(sums.residual.shape)
    return np.divide(sums.residual, sums.count, out=none, where=sums.count > 0)


# Parameters: the arguments of binned errors, and two conventions of this one.
def maximum_calibration_error(
    scores: Array,
    labels: Array,
    n_bins: int = DEFAULT_BINS,
    *,
    strategy: Strategy = "uniform",
    n_min: int = 1,
    convention: Literal["plain", "procal"] = "plain",
    kind: PairKind | None = None,
    sample_weight: Array | None = None,
) -> float:
    """Return the MCE, the largest |mean confidence - accuracy| of a bin, a fraction.

    Convention: top label, bins (lo, hi], over the bins that hold at least `n_min` rows; 0 if there
    are none. A bin of one row has a gap of up to 1, so the MCE of many bins is mostly noise, and
    the bootstrap, which isn't made for a maximum, gives it too narrow an interval.
    ``convention="procal"`` repeats that method's code, which weighs the gaps by n_b / N first.

    Args:
        scores: (N, K) probabilities, or (N,) confidences.
        labels: (N,) true classes, or (N,) correctness.
        kind: what (N,) scores are: ``"confidence"``, or ``"prob"`` of the positive class; then
            labels are 0 and 1 instead of correctness.
        sample_weight: (N,) how much each row counts; by default all alike.
        n_bins: number of bins.
        strategy: ``"uniform"`` for bins of equal width, ``"quantile"`` for equal mass.
        n_min: fewest rows of a bin that counts.
        convention: see above.

    Raises:
        PredictionsError: unusable arrays.
        InputError: fewer than one bin, or an unknown option.

    References:
        Naeini, Cooper, Hauskrecht, AAAI 2015.

    Examples:
        >>> import calibrant as cb
        >>> c, a = [0.8] * 9 + [0.3], [1] * 9 + [0]
        >>> # a bin of one row
        >>> round(cb.metrics.maximum_calibration_error(c, a, kind="confidence"), 3)
        0.3
        >>> round(cb.metrics.maximum_calibration_error(c, a, n_min=2, kind="confidence"), 3)
        0.2
    """
    sums = sums_of(scores, labels, n_bins, strategy, kind, sample_weight)
    if within("convention", convention, choices=("plain", "procal")) == "procal":
        return float(np.abs(sums.residual).max() / sums.total)
    return float(largest_gap(sums, n_min))


def largest_gap(sums: BinSums, n_min: int = 1) -> FloatArray:
    """Return the (...,) largest |gap| over bins of at least `n_min` rows."""
    return np.where(sums.count >= n_min, np.abs(gaps_of(sums)), 0.0).max(axis=-1)


def average_calibration_error(
    scores: Array,
    labels: Array,
    n_bins: int = DEFAULT_BINS,
    *,
    strategy: Strategy = "uniform",
    kind: PairKind | None = None,
    sample_weight: Array | None = None,
) -> float:
    """Return the average calibration error, the plain mean of |gap| over non-empty bins.

    Convention: top label, bins (lo, hi]; a bin counts as much as any other, however few rows it
    holds. This is the ACE of netcal and of the focal-loss code. The ACE of Nixon et al. is
    `classwise_adaptive_calibration_error`, that of ProCal `adaptive_calibration_error`.

    Args:
        scores: (N, K) probabilities, or (N,) confidences.
        labels: (N,) true classes, or (N,) correctness.
        kind: what (N,) scores are: ``"confidence"``, or ``"prob"`` of the positive class; then
            labels are 0 and 1 instead of correctness.
        sample_weight: (N,) how much each row counts; by default all alike.
        n_bins: number of bins.
        strategy: ``"uniform"`` for bins of equal width, ``"quantile"`` for equal mass.

    Raises:
        PredictionsError: unusable arrays.
        InputError: fewer than one bin, or an unknown option.

    References:
        Neumann, Zisserman, Vedaldi, NeurIPS workshop 2018.

    Examples:
        >>> import calibrant as cb
        >>> c, a = [0.8] * 9 + [0.3], [1] * 9 + [0]
        >>> round(cb.metrics.average_calibration_error(c, a, kind="confidence"), 3)  # (.2 + .3) / 2
        0.25
        >>> # .9 * .2 + .1 * .3
        >>> round(cb.metrics.expected_calibration_error(c, a, kind="confidence"), 3)
        0.21
    """
    return float(average_gap(sums_of(scores, labels, n_bins, strategy, kind, sample_weight)))


def average_gap(sums: BinSums) -> FloatArray:
    """Return the (...,) mean |gap| over non-empty bins."""
    return np.abs(gaps_of(sums)).sum(axis=-1) / (sums.count > 0).sum(axis=-1)


def rms_calibration_error(
    scores: Array,
    labels: Array,
    n_bins: int = DEFAULT_BINS,
    *,
    strategy: Strategy = "uniform",
    kind: PairKind | None = None,
    sample_weight: Array | None = None,
) -> float:
    """Return the root of sum_b (n_b / N) gap_b^2, a fraction; never below the ECE.

    Convention: top label, bins (lo, hi], plug-in (biased upwards; see
    `debiased_rms_calibration_error`).

    Args:
        scores: (N, K) probabilities, or (N,) confidences.
        labels: (N,) true classes, or (N,) correctness.
        kind: what (N,) scores are: ``"confidence"``, or ``"prob"`` of the positive class; then
            labels are 0 and 1 instead of correctness.
        sample_weight: (N,) how much each row counts; by default all alike.
        n_bins: number of bins.
        strategy: ``"uniform"`` for bins of equal width, ``"quantile"`` for equal mass.

    Raises:
        PredictionsError: unusable arrays.
        InputError: fewer than one bin, or an unknown option.

    References:
        Nguyen & O'Connor, EMNLP 2015. Hendrycks, Mazeika, Dietterich, ICLR 2019.

    Examples:
        >>> import calibrant as cb
        >>> c, a = [0.9, 0.9, 0.6, 0.6], [1, 0, 1, 0]
        >>> # root of (.4^2 + .1^2) / 2
        >>> round(cb.metrics.rms_calibration_error(c, a, kind="confidence"), 3)
        0.292
        >>> # (.4 + .1) / 2
        >>> round(cb.metrics.expected_calibration_error(c, a, kind="confidence"), 3)
        0.25
    """
    return float(rms_gap(sums_of(scores, labels, n_bins, strategy, kind, sample_weight)))


def rms_gap(sums: BinSums) -> FloatArray:
    """Return the (...,) root of sum_b (n_b / N) gap_b^2."""
    return np.sqrt((sums.residual * gaps_of(sums)).sum(axis=-1) / sums.total)


def overconfidence_error(
    scores: Array,
    labels: Array,
    n_bins: int = DEFAULT_BINS,
    *,
    convention: Literal["plain", "thulasidasan"] = "plain",
    kind: PairKind | None = None,
    sample_weight: Array | None = None,
) -> float:
    """Return the part of the ECE from overconfident bins, sum_b (n_b / N) max(gap_b, 0).

    With `underconfidence_error` it adds up to the ECE; their difference is mean confidence minus
    accuracy. Opposite gaps within one bin cancel, so both are lower bounds.
    ``convention="thulasidasan"`` multiplies each gap by the bin's mean confidence, which is that
    paper's overconfidence error.

    Args:
        scores: (N, K) probabilities, or (N,) confidences.
        labels: (N,) true classes, or (N,) correctness.
        kind: what (N,) scores are: ``"confidence"``, or ``"prob"`` of the positive class; then
            labels are 0 and 1 instead of correctness.
        sample_weight: (N,) how much each row counts; by default all alike.
        n_bins: number of equal-width bins (lo, hi].
        convention: see above.

    Raises:
        PredictionsError: unusable arrays.
        InputError: fewer than one bin, or an unknown option.

    References:
        Thulasidasan et al., NeurIPS 2019.

    Examples:
        >>> import calibrant as cb
        >>> c, a = [0.9, 0.9, 0.6, 0.6], [1, 0, 1, 1]
        >>> round(cb.metrics.overconfidence_error(c, a, kind="confidence"), 3)  # half of .9 - .5
        0.2
        >>> round(cb.metrics.underconfidence_error(c, a, kind="confidence"), 3)  # half of 1 - .6
        0.2
    """
    sums = sums_of(scores, labels, n_bins, "uniform", kind, sample_weight)
    if within("convention", convention, choices=("plain", "thulasidasan")) == "thulasidasan":
        weight = np.nan_to_num(sums.mean_confidence)
        return float((weight * np.maximum(sums.residual, 0.0)).sum() / sums.total)
    return float(over_gap(sums))


def over_gap(sums: BinSums) -> FloatArray:
    """Return (...,) sum_b (n_b / N) max(gap_b, 0)."""
    return np.maximum(sums.residual, 0.0).sum(axis=-1) / sums.total


def underconfidence_error(
    scores: Array,
    labels: Array,
    n_bins: int = DEFAULT_BINS,
    *,
    kind: PairKind | None = None,
    sample_weight: Array | None = None,
) -> float:
    """Return the part of the ECE from underconfident bins, sum_b (n_b / N) max(-gap_b, 0).

    See `overconfidence_error`.

    Args:
        scores: (N, K) probabilities, or (N,) confidences.
        labels: (N,) true classes, or (N,) correctness.
        kind: what (N,) scores are: ``"confidence"``, or ``"prob"`` of the positive class; then
            labels are 0 and 1 instead of correctness.
        sample_weight: (N,) how much each row counts; by default all alike.
        n_bins: number of equal-width bins (lo, hi].

    Raises:
        PredictionsError: unusable arrays.
        InputError: fewer than one bin.

    References:
        Thulasidasan et al., NeurIPS 2019, who count the other direction.

    Examples:
        >>> import calibrant as cb
        >>> round(cb.metrics.underconfidence_error([0.7] * 4, [1] * 4, kind="confidence"), 3)
        0.3
    """
    return float(under_gap(sums_of(scores, labels, n_bins, "uniform", kind, sample_weight)))


def under_gap(sums: BinSums) -> FloatArray:
    """Return (...,) sum_b (n_b / N) max(-gap_b, 0)."""
    return np.maximum(-sums.residual, 0.0).sum(axis=-1) / sums.total


def ks_error(
    scores: Array,
    labels: Array,
    *,
    kind: PairKind | None = None,
    sample_weight: Array | None = None,
) -> float:
    """Return max_t |(1/N) sum over c_i <= t of (c_i - a_i)|, a fraction.

    There are no bins. Where all residuals have one sign the value is |mean confidence - accuracy|.
    Rows of equal confidence are taken together.

    Args:
        scores: (N, K) probabilities, or (N,) confidences.
        labels: (N,) true classes, or (N,) correctness.
        kind: what (N,) scores are: ``"confidence"``, or ``"prob"`` of the positive class; then
            labels are 0 and 1 instead of correctness.
        sample_weight: (N,) how much each row counts; by default all alike.

    Raises:
        PredictionsError: unusable arrays.

    References:
        Gupta et al.: Calibration of neural networks using splines. ICLR 2021.

    Examples:
        >>> import calibrant as cb
        >>> value = cb.metrics.ks_error([0.6, 0.6, 0.9, 0.9], [1, 1, 1, 0], kind="confidence")
        >>> round(value, 3)  # up to .6 there are two rows, each said .4 too little: 2 * .4 / 4
        0.2
    """
    rows = top_label(scores, labels, kind, sample_weight=sample_weight)
    return float(ks_of_curves(rows.curves())[0])


def ks_of_curves(curves: ResidualCurves) -> FloatArray:
    """Return the (R,) KS errors of residual curves."""
    return np.abs(curves.residual[:, curves.rows.tie_starts]).max(axis=1) / curves.total


@dataclass(frozen=True)
class OfBins:
    """A function of bins as one of curves, over 15 bins of equal width.

    Attributes:
        reduce: makes (R,) values of (R, B) sums.
    """

    reduce: Callable[[BinSums], FloatArray]

    def __call__(self, curves: ResidualCurves) -> FloatArray:
        """Return (R,) values of R curves."""
        return self.reduce(BinSums.of_curves(curves, DEFAULT_BINS))


MCE = CurveMetric(
    name="mce",
    title="MCE",
    definition="top label, largest gap of 15 equal-width bins, however few rows it holds",
    function=maximum_calibration_error,
    effort=BINS_COST,
    fails="bins of few rows: it is mostly noise, and its interval is too narrow",
    of_curves=OfBins(largest_gap),
)
AVERAGE_CE = CurveMetric(
    name="average_ce",
    title="avg. CE",
    definition="top label, plain mean over non-empty bins of 15 equal-width ones",
    function=average_calibration_error,
    effort=BINS_COST,
    fails="bins of few rows count as much as all others",
    sums_gaps=True,
    of_curves=OfBins(average_gap),
)
RMSCE = CurveMetric(
    name="rmsce",
    title="RMSCE",
    definition="top label, root mean square gap of 15 equal-width bins (lo, hi]",
    function=rms_calibration_error,
    effort=BINS_COST,
    fails=f"{BIASED}; it can't be compared with an ECE",
    sums_gaps=True,
    of_curves=OfBins(rms_gap),
)
OVERCONFIDENCE = CurveMetric(
    name="overconfidence",
    title="ECE, over",
    definition="the part of the ECE from bins whose confidence exceeds their accuracy",
    function=overconfidence_error,
    effort=BINS_COST,
    fails="small for a model that errs the other way",
    of_curves=OfBins(over_gap),
)
UNDERCONFIDENCE = CurveMetric(
    name="underconfidence",
    title="ECE, under",
    definition="the part of the ECE from bins whose accuracy exceeds their confidence",
    function=underconfidence_error,
    effort=BINS_COST,
    fails="small for a model that errs the other way",
    of_curves=OfBins(under_gap),
)
KS = CurveMetric(
    name="ks",
    title="KS error",
    definition="top label, largest cumulative residual over sorted confidences",
    function=ks_error,
    effort="a sort; then one pass",
    fails="errors of alternating sign cancel",
    omnibus=True,
    of_curves=ks_of_curves,
)
