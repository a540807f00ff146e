"""What else may be made of the gaps of bins: their maximum, plain mean, square, or signed parts.

With gap_b = mean confidence - accuracy of bin b, weighing n_b / N: each function of `BinSums` below
reduces the last axis, so it serves one set, a batch of resamples, or the classes of a classifier.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from calibrant.core.arrays import Array, FloatArray
from calibrant.core.errors import InputError
from calibrant.metrics.bins import DEFAULT_BINS, BinSums, Strategy
from calibrant.metrics.top_label import ResidualCurves, top_label


def sums_of_curves(curves: ResidualCurves, n_bins: int, strategy: Strategy) -> BinSums:
    """Return (R, B) sums over bins of equal width or of equal mass."""
    if strategy == "uniform":
        return BinSums.of_curves(curves, n_bins)
    if strategy != "quantile":
        raise InputError(f"strategy must be 'uniform' or 'quantile', not '{strategy}'")
    return BinSums.of_quantiles(curves, n_bins)


def _sums(scores: Array, labels: Array, n_bins: int, strategy: Strategy) -> BinSums:
    sums = sums_of_curves(top_label(scores, labels).curves(), n_bins, strategy)
    return BinSums(sums.count[0], sums.confidence[0], sums.correct[0], sums.strategy)


def _gaps(sums: BinSums) -> FloatArray:
    """Return (..., B) mean confidence less accuracy, 0 where a bin is empty."""
    none = np.zeros(sums.residual.shape)
    return np.divide(sums.residual, sums.count, out=none, where=sums.count > 0)


def maximum_calibration_error(
    scores: Array,
    labels: Array,
    n_bins: int = DEFAULT_BINS,
    *,
    strategy: Strategy = "uniform",
    n_min: int = 1,
    convention: Literal["plain", "procal"] = "plain",
) -> float:
    """Return the MCE, the largest |mean confidence - accuracy| of a bin, a fraction.

    Convention: top label, bins (lo, hi], over the bins that hold at least `n_min` rows; 0 if there
    are none. A bin of one row has a gap of up to 1, so the MCE of many bins is mostly noise, and
    the bootstrap, which isn't made for a maximum, gives it too narrow an interval.
    ``convention="procal"`` repeats that method's code, which weighs the gaps by n_b / N first.

    Args:
        scores: (N, K) probabilities, or (N,) confidences.
        labels: (N,) true classes, or (N,) correctness.
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
        >>> confidence, right = [0.8] * 9 + [0.3], [1] * 9 + [0]
        >>> round(cb.maximum_calibration_error(confidence, right), 3)  # a bin of one row
        0.3
        >>> round(cb.maximum_calibration_error(confidence, right, n_min=2), 3)
        0.2
    """
    sums = _sums(scores, labels, n_bins, strategy)
    if convention == "procal":
        return float(np.abs(sums.residual).max() / sums.total)
    if convention != "plain":
        raise InputError(f"convention must be 'plain' or 'procal', not '{convention}'")
    return float(largest_gap(sums, n_min))


def largest_gap(sums: BinSums, n_min: int = 1) -> FloatArray:
    """Return the (...,) largest |gap| over bins of at least `n_min` rows."""
    return np.where(sums.count >= n_min, np.abs(_gaps(sums)), 0.0).max(axis=-1)


def average_calibration_error(
    scores: Array, labels: Array, n_bins: int = DEFAULT_BINS, *, strategy: Strategy = "uniform"
) -> float:
    """Return the average calibration error, the plain mean of |gap| over non-empty bins.

    Convention: top label, bins (lo, hi]; a bin counts as much as any other, however few rows it
    holds. This is the ACE of netcal and of the focal-loss code. The ACE of Nixon et al. is
    `classwise_adaptive_calibration_error`, that of ProCal `adaptive_calibration_error`.

    Args:
        scores: (N, K) probabilities, or (N,) confidences.
        labels: (N,) true classes, or (N,) correctness.
        n_bins: number of bins.
        strategy: ``"uniform"`` for bins of equal width, ``"quantile"`` for equal mass.

    Raises:
        PredictionsError: unusable arrays.
        InputError: fewer than one bin, or an unknown option.

    References:
        Neumann, Zisserman, Vedaldi, NeurIPS workshop 2018.

    Examples:
        >>> import calibrant as cb
        >>> confidence, right = [0.8] * 9 + [0.3], [1] * 9 + [0]
        >>> round(cb.average_calibration_error(confidence, right), 3)  # (|.8 - 1| + |.3 - 0|) / 2
        0.25
        >>> round(cb.expected_calibration_error(confidence, right), 3)  # .9 * .2 + .1 * .3
        0.21
    """
    return float(average_gap(_sums(scores, labels, n_bins, strategy)))


def average_gap(sums: BinSums) -> FloatArray:
    """Return the (...,) mean |gap| over non-empty bins."""
    return np.abs(_gaps(sums)).sum(axis=-1) / (sums.count > 0).sum(axis=-1)


def rms_calibration_error(
    scores: Array, labels: Array, n_bins: int = DEFAULT_BINS, *, strategy: Strategy = "uniform"
) -> float:
    """Return the root of sum_b (n_b / N) gap_b^2, a fraction; never below the ECE.

    Convention: top label, bins (lo, hi], plug-in (biased upwards; see
    `debiased_rms_calibration_error`).

    Args:
        scores: (N, K) probabilities, or (N,) confidences.
        labels: (N,) true classes, or (N,) correctness.
        n_bins: number of bins.
        strategy: ``"uniform"`` for bins of equal width, ``"quantile"`` for equal mass.

    Raises:
        PredictionsError: unusable arrays.
        InputError: fewer than one bin, or an unknown option.

    References:
        Nguyen & O'Connor, EMNLP 2015. Hendrycks, Mazeika, Dietterich, ICLR 2019.

    Examples:
        >>> import calibrant as cb
        >>> confidence, right = [0.9, 0.9, 0.6, 0.6], [1, 0, 1, 0]
        >>> round(cb.rms_calibration_error(confidence, right), 3)  # root of (.4^2 + .1^2) / 2
        0.292
        >>> round(cb.expected_calibration_error(confidence, right), 3)  # (.4 + .1) / 2
        0.25
    """
    return float(np.sqrt(mean_square_gap(_sums(scores, labels, n_bins, strategy))))


def mean_square_gap(sums: BinSums) -> FloatArray:
    """Return (...,) sum_b (n_b / N) gap_b^2."""
    return (sums.residual * _gaps(sums)).sum(axis=-1) / sums.total


def debiased_rms_calibration_error(
    scores: Array, labels: Array, n_bins: int = DEFAULT_BINS, *, strategy: Strategy = "uniform"
) -> float:
    """Return the RMS calibration error with the noise of the bin accuracies taken off, a fraction.

    sqrt(max(0, sum_b (n_b / N) (gap_b^2 - acc_b (1 - acc_b) / (n_b - 1)))): the sum is an unbiased
    estimate of the binned mean square. It is an RMS, so don't hold it against an ECE.

    Convention: top label, bins (lo, hi]; a bin of one row has no variance to take off and is left
    out. The published code of Kumar et al. has bins of equal mass by default.

    Args:
        scores: (N, K) probabilities, or (N,) confidences.
        labels: (N,) true classes, or (N,) correctness.
        n_bins: number of bins.
        strategy: ``"uniform"`` for bins of equal width, ``"quantile"`` for equal mass.

    Raises:
        PredictionsError: unusable arrays.
        InputError: fewer than one bin, or an unknown option.

    References:
        Broecker, Clim. Dyn. 2012. Ferro & Fricker, Q. J. R. Meteorol. Soc. 2012. Kumar, Liang, Ma,
        NeurIPS 2019.

    Examples:
        >>> import calibrant as cb
        >>> confidence, right = [0.9] * 5, [1, 1, 1, 1, 0]
        >>> round(cb.rms_calibration_error(confidence, right), 3)  # .9 - .8
        0.1
        >>> cb.debiased_rms_calibration_error(confidence, right)  # noise alone would show more
        0.0
    """
    square = debiased_mean_square_gap(_sums(scores, labels, n_bins, strategy))
    return float(np.sqrt(np.maximum(square, 0.0)))


def debiased_mean_square_gap(sums: BinSums) -> FloatArray:
    """Return the (...,) unbiased estimate of sum_b (n_b / N) gap_b^2, which may be negative."""
    usable = sums.count > 1
    square = sums.residual * _gaps(sums) - sums.count * _accuracy_variance(sums)
    return np.where(usable, square, 0.0).sum(axis=-1) / sums.total


def _accuracy_variance(sums: BinSums) -> FloatArray:
    """Return (..., B) acc (1 - acc) / (n - 1), the variance of a bin's accuracy; 0 for n < 2."""
    spread = sums.correct * (sums.count - sums.correct)
    scale = sums.count * sums.count * (sums.count - 1)
    none = np.zeros(spread.shape)
    return np.maximum(np.divide(spread, scale, out=none, where=sums.count > 1), 0.0)


def debiased_expected_calibration_error(
    scores: Array, labels: Array, n_bins: int = DEFAULT_BINS, *, strategy: Strategy = "uniform"
) -> float:
    """Return the ECE less an estimate of its own bias, max(0, 2 ECE - E ECE*), a fraction.

    E ECE* is the mean ECE when each bin's accuracy is drawn anew from a normal distribution with
    its estimated mean and variance acc (1 - acc) / n. Kumar et al. average 1 000 random draws; the
    mean of |gap + s Z| is known in closed form, so nothing here is random.

    Args:
        scores: (N, K) probabilities, or (N,) confidences.
        labels: (N,) true classes, or (N,) correctness.
        n_bins: number of bins.
        strategy: ``"uniform"`` for bins of equal width, ``"quantile"`` for equal mass.

    Raises:
        PredictionsError: unusable arrays.
        InputError: fewer than one bin, or an unknown option.

    References:
        Kumar, Liang, Ma, NeurIPS 2019.

    Examples:
        >>> import calibrant as cb
        >>> confidence, right = [0.9] * 4, [1, 1, 1, 0]  # an ECE of .15
        >>> round(cb.debiased_expected_calibration_error(confidence, right), 2)  # much may be noise
        0.09
        >>> round(cb.debiased_expected_calibration_error(confidence * 100, right * 100), 2)
        0.15
    """
    return float(debiased_mean_gap(_sums(scores, labels, n_bins, strategy)))


def debiased_mean_gap(sums: BinSums) -> FloatArray:
    """Return the (...,) ECE less its estimated bias, at least 0."""
    from scipy.special import ndtr

    gap = np.abs(_gaps(sums))
    none = np.zeros(gap.shape)
    spread = np.maximum(sums.correct * (sums.count - sums.correct), 0.0)
    deviation = np.sqrt(np.divide(spread, sums.count**3, out=none, where=sums.count > 0))
    ratio = np.divide(gap, deviation, out=np.full(gap.shape, np.inf), where=deviation > 0)
    density = np.exp(-0.5 * ratio**2) * np.sqrt(2 / np.pi)
    folded = deviation * density + gap * (2 * ndtr(ratio) - 1)
    return np.maximum((sums.count * (2 * gap - folded)).sum(axis=-1) / sums.total, 0.0)


def overconfidence_error(
    scores: Array,
    labels: Array,
    n_bins: int = DEFAULT_BINS,
    *,
    convention: Literal["plain", "thulasidasan"] = "plain",
) -> float:
    """Return the part of the ECE from bins that say too much, sum_b (n_b / N) max(gap_b, 0).

    With `underconfidence_error` it adds up to the ECE; their difference is mean confidence less
    accuracy. Opposite gaps within one bin cancel, so both are lower bounds.
    ``convention="thulasidasan"`` multiplies each gap by the bin's mean confidence, which is that
    paper's overconfidence error.

    Args:
        scores: (N, K) probabilities, or (N,) confidences.
        labels: (N,) true classes, or (N,) correctness.
        n_bins: number of equal-width bins (lo, hi].
        convention: see above.

    Raises:
        PredictionsError: unusable arrays.
        InputError: fewer than one bin, or an unknown option.

    References:
        Thulasidasan et al., NeurIPS 2019.

    Examples:
        >>> import calibrant as cb
        >>> confidence, right = [0.9, 0.9, 0.6, 0.6], [1, 0, 1, 1]
        >>> round(cb.overconfidence_error(confidence, right), 3)  # half the rows, .9 - .5 too high
        0.2
        >>> round(cb.underconfidence_error(confidence, right), 3)  # half the rows, 1 - .6 too low
        0.2
    """
    sums = _sums(scores, labels, n_bins, "uniform")
    if convention == "thulasidasan":
        weight = np.nan_to_num(sums.mean_confidence)
        return float((weight * np.maximum(sums.residual, 0.0)).sum() / sums.total)
    if convention != "plain":
        raise InputError(f"convention must be 'plain' or 'thulasidasan', not '{convention}'")
    return float(over_gap(sums))


def over_gap(sums: BinSums) -> FloatArray:
    """Return (...,) sum_b (n_b / N) max(gap_b, 0)."""
    return np.maximum(sums.residual, 0.0).sum(axis=-1) / sums.total


def underconfidence_error(scores: Array, labels: Array, n_bins: int = DEFAULT_BINS) -> float:
    """Return the part of the ECE from bins that say too little, sum_b (n_b / N) max(-gap_b, 0).

    See `overconfidence_error`.

    Args:
        scores: (N, K) probabilities, or (N,) confidences.
        labels: (N,) true classes, or (N,) correctness.
        n_bins: number of equal-width bins (lo, hi].

    Raises:
        PredictionsError: unusable arrays.
        InputError: fewer than one bin.

    Examples:
        >>> import calibrant as cb
        >>> round(cb.underconfidence_error([0.7, 0.7, 0.7, 0.7], [1, 1, 1, 1]), 3)
        0.3
    """
    return float(under_gap(_sums(scores, labels, n_bins, "uniform")))


def under_gap(sums: BinSums) -> FloatArray:
    """Return (...,) sum_b (n_b / N) max(-gap_b, 0)."""
    return np.maximum(-sums.residual, 0.0).sum(axis=-1) / sums.total
