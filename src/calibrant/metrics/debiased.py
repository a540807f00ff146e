"""Gaps of bins minus what chance puts into them: debiased ECE and its square, and ECE-sweep."""

from __future__ import annotations

import numpy as np

from calibrant.core.arguments import within
from calibrant.core.arrays import Array, FloatArray
from calibrant.metrics.binned import DEFAULT_BINS, BinSums, Strategy
from calibrant.metrics.gaps import OfBins, gaps_of, sums_of
from calibrant.metrics.metric_types import BIASED, BINS_COST, CurveMetric
from calibrant.metrics.top_label import PairKind, ResidualCurves, refuse_fractions, top_label


def debiased_rms_calibration_error(
    scores: Array,
    labels: Array,
    n_bins: int = DEFAULT_BINS,
    *,
    strategy: Strategy = "uniform",
    kind: PairKind | None = None,
    sample_weight: Array | None = None,
) -> float:
    """Return the RMS calibration error with the noise of the bin accuracies taken off, a fraction.

    sqrt(max(0, sum_b (n_b / N) (gap_b^2 - acc_b (1 - acc_b) / (n_b - 1)))): the sum is an unbiased
    estimate of the binned mean square. It is an RMS, so don't compare it with an ECE.

    Convention: top label, bins (lo, hi]; a bin of one row has no variance to take off and is left
    out. The published code of Kumar et al. has bins of equal mass by default.

    Args:
        scores: (N, K) probabilities, or (N,) confidences.
        labels: (N,) true classes, or (N,) correctness.
        kind: what (N,) scores are: ``"confidence"``, or ``"prob"`` of the positive class; then
            labels are 0 and 1 instead of correctness.
        sample_weight: (N,) whole numbers, how often each row counts; by default once.
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
        >>> c, a = [0.9] * 5, [1, 1, 1, 1, 0]
        >>> round(cb.metrics.rms_calibration_error(c, a, kind="confidence"), 3)  # .9 - .8
        0.1
        >>> cb.metrics.debiased_rms_calibration_error(c, a, kind="confidence")  # noise shows more
        0.0
    """
    refuse_fractions(sample_weight)
    return float(debiased_rms_gap(sums_of(scores, labels, n_bins, strategy, kind, sample_weight)))


def debiased_mean_square_gap(sums: BinSums) -> FloatArray:
    """Return the (...,) unbiased estimate of sum_b (n_b / N) gap_b^2, which may be negative."""
    usable = sums.count > 1
    square = sums.residual * gaps_of(sums) - sums.count * _accuracy_variance(sums)
    return np.where(usable, square, 0.0).sum(axis=-1) / sums.total


def debiased_rms_gap(sums: BinSums) -> FloatArray:
    """Return the (...,) root of that, 0 of what is negative."""
    return np.sqrt(np.maximum(debiased_mean_square_gap(sums), 0.0))


def _accuracy_variance(sums: BinSums) -> FloatArray:
    """Return (..., B) acc (1 - acc) / (n - 1), the variance of a bin's accuracy; 0 for n < 2."""
    spread = sums.correct * (sums.count - sums.correct)
    scale = sums.count * sums.count * (sums.count - 1)
    none = np.zeros(spread.shape)
    return np.maximum(np.divide(spread, scale, out=none, where=sums.count > 1), 0.0)


def debiased_expected_calibration_error(
    scores: Array,
    labels: Array,
    n_bins: int = DEFAULT_BINS,
    *,
    strategy: Strategy = "uniform",
    kind: PairKind | None = None,
    sample_weight: Array | None = None,
) -> float:
    """Return the ECE less an estimate of its own bias, max(0, 2 ECE - E ECE*), a fraction.

    E ECE* is the mean ECE when each bin's accuracy is drawn anew from a normal distribution with
    its estimated mean and variance acc (1 - acc) / n. Kumar et al. average 1 000 random draws; the
    mean of |gap + s Z| is known in closed form, so nothing here is random.

    Args:
        scores: (N, K) probabilities, or (N,) confidences.
        labels: (N,) true classes, or (N,) correctness.
        kind: what (N,) scores are: ``"confidence"``, or ``"prob"`` of the positive class; then
            labels are 0 and 1 instead of correctness.
        sample_weight: (N,) whole numbers, how often each row counts; by default once.
        n_bins: number of bins.
        strategy: ``"uniform"`` for bins of equal width, ``"quantile"`` for equal mass.

    Raises:
        PredictionsError: unusable arrays.
        InputError: fewer than one bin, or an unknown option.

    References:
        Kumar, Liang, Ma, NeurIPS 2019.

    Examples:
        >>> import calibrant as cb
        >>> c, a = [0.9] * 4, [1, 1, 1, 0]  # an ECE of .15
        >>> round(cb.metrics.debiased_expected_calibration_error(c, a, kind="confidence"), 2)
        0.09
        >>> from calibrant.metrics import debiased_expected_calibration_error
        >>> round(debiased_expected_calibration_error(c * 100, a * 100, kind="confidence"), 2)
        0.15
    """
    refuse_fractions(sample_weight)
    return float(debiased_mean_gap(sums_of(scores, labels, n_bins, strategy, kind, sample_weight)))


def debiased_mean_gap(sums: BinSums) -> FloatArray:
    """Return the (...,) ECE less its estimated bias, at least 0."""
    from scipy.special import ndtr

    gap = np.abs(gaps_of(sums))
    none = np.zeros(gap.shape)
    spread = np.maximum(sums.correct * (sums.count - sums.correct), 0.0)
    deviation = np.sqrt(np.divide(spread, sums.count**3, out=none, where=sums.count > 0))
    ratio = np.divide(gap, deviation, out=np.full(gap.shape, np.inf), where=deviation > 0)
    density = np.exp(-0.5 * ratio**2) * np.sqrt(2 / np.pi)
    folded = deviation * density + gap * (2 * ndtr(ratio) - 1)
    return np.maximum((sums.count * (2 * gap - folded)).sum(axis=-1) / sums.total, 0.0)


DEBIASED_RMSCE = CurveMetric(
    name="debiased_rmsce",
    title="debiased RMSCE",
    definition="RMSCE minus the variance of the bins' accuracies; an RMS, not an ECE",
    function=debiased_rms_calibration_error,
    effort=BINS_COST,
    fails="it is 0 for many small errors",
    weighs="counts",
    of_curves=OfBins(debiased_rms_gap),
)


# Running sums leave rounding errors; accuracies this close count as equal.
TIE = 1e-10
# Accuracies of this many bins in order would take a nearly noiseless set; it bounds the work.
MOST_BINS = 1024


def ece_sweep(
    scores: Array,
    labels: Array,
    norm: int = 1,
    *,
    kind: PairKind | None = None,
    sample_weight: Array | None = None,
) -> float:
    """Return ECE-sweep, a fraction.

    Convention: top label, equal-mass bins as in `adaptive_calibration_error`. The number of bins
    grows from 2 while the accuracies don't decrease from one bin to the next, and stops before it
    exceeds N or 1 024; the last number that passed is used. If not even two bins pass, one bin
    remains and the value is |mean confidence - accuracy| (some code returns 0 there).

    Args:
        scores: (N, K) probabilities, or (N,) confidences.
        labels: (N,) true classes, or (N,) correctness.
        kind: what (N,) scores are: ``"confidence"``, or ``"prob"`` of the positive class; then
            labels are 0 and 1 instead of correctness.
        sample_weight: (N,) how much each row counts; by default all alike.
        norm: p of (sum_b (n_b / N) |gap_b|^p)^(1/p), at least 1.

    Raises:
        PredictionsError: unusable arrays.
        InputError: norm below 1.

    References:
        Roelofs, Cain, Shlens, Mozer, AISTATS 2022.

    Examples:
        >>> import calibrant as cb
        >>> c = [0.6, 0.6, 0.9, 0.9]
        >>> # two bins, each .1 off
        >>> round(cb.metrics.ece_sweep(c, [1, 0, 1, 1], kind="confidence"), 3)
        0.1
        >>> round(cb.metrics.ece_sweep(c, [1, 1, 0, 1], kind="confidence"), 3)  # falls: one bin
        0.0
    """
    within("norm", norm, at_least=1)
    rows = top_label(scores, labels, kind, sample_weight=sample_weight)
    return float(sweep_of_curves(rows.curves(), norm)[0])


def sweep_of_curves(curves: ResidualCurves, norm: int = 1) -> FloatArray:
    """Return the (R,) ECE-sweeps of residual curves."""
    value = _norm(BinSums.of_quantiles(curves, 1), norm)
    sweeping = np.arange(len(value))
    part = curves
    for n_bins in range(2, min(int(curves.total.min()), MOST_BINS) + 1):
        sums = BinSums.of_quantiles(part, n_bins)
        ascending = (np.diff(sums.accuracy, axis=1) >= -TIE).all(axis=1)
        if not ascending.any():
            break
        value[sweeping[ascending]] = _norm(sums, norm)[ascending]
        if not ascending.all():
            sweeping = sweeping[ascending]
            weight = part.weight
            if weight is not None and len(weight) > 1:
                weight = weight[ascending]
            part = ResidualCurves(part.rows, part.residual[ascending], weight)
    return value


def _norm(sums: BinSums, norm: int) -> FloatArray:
    size = np.abs(sums.residual) / sums.count
    return ((sums.count * size**norm).sum(axis=1) / sums.total) ** (1 / norm)


SWEEP = CurveMetric(
    name="sweep",
    title="ECE-sweep",
    definition="top label, as many equal-mass bins as keep accuracies ascending, L1",
    function=ece_sweep,
    effort="a sort; then as many binnings as it takes",
    fails=f"{BIASED}; it chooses its bins",
    sums_gaps=True,
    of_curves=sweep_of_curves,
)
