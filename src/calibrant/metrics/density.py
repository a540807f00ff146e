"""KDE-ECE: the calibration error under kernel estimates of accuracy and density."""

from __future__ import annotations

import numpy as np

from calibrant.core.arrays import Array, FloatArray
from calibrant.core.errors import InputError
from calibrant.metrics.bins import BinSums
from calibrant.metrics.metric_types import BIASED, CELLS_COST, CurveMetric
from calibrant.metrics.pairs import PairKind, top_label
from calibrant.metrics.top_label import ResidualCurves

CELLS = 4096
RESAMPLING_CELLS = 512


def kde_ece(
    scores: Array,
    labels: Array,
    bandwidth: float | None = None,
    norm: int = 1,
    *,
    kind: PairKind | None = None,
    sample_weight: Array | None = None,
) -> float:
    """Return KDE-ECE, int |t - acc(t)|^p density(t) dt, a fraction (for p = 1).

    acc and density are kernel estimates on [0, 1] with one triweight kernel, reflected at 0 and 1
    so that no mass is lost there. Conventions: top label for any K (the paper's code takes p_1 for
    K = 2); `bandwidth` is the standard deviation of the kernel, a third of its half-width, by
    default the paper's rule, the standard deviation of the confidences of right predictions times
    (2N)^(-1/5); for p > 1 no root is taken, as in the paper. Computed on 4 096 cells; a bandwidth
    below the width of a cell counts as none.

    Smoothing adds a bias of its own: where confidences crowd at 1 and drop off steeply, the mean t
    under the kernel is no longer the mean confidence.

    Args:
        scores: (N, K) probabilities, or (N,) confidences.
        labels: (N,) true classes, or (N,) correctness.
        kind: of (N,) scores, ``"confidence"``, or ``"prob"`` of the positive class, with labels 0
            and 1 in place of correctness.
        sample_weight: (N,) how much each row counts; by default all alike.
        bandwidth: see above.
        norm: p, at least 1.

    Raises:
        PredictionsError: unusable arrays.
        InputError: a negative bandwidth, or norm below 1.

    References:
        Zhang, Kailkhura, Han: Mix-n-Match. ICML 2020.

    Examples:
        >>> import calibrant as cb
        >>> truth = cb.synthetic.top_label(20_000)  # P(right | c) = c^2
        >>> rows = truth.predictions
        >>> right = rows.predicted == rows.labels
        >>> value = cb.metrics.kde_ece(rows.scores, right, kind="confidence")
        >>> abs(value - truth.true_calibration_error()) < 0.02
        True
    """
    if bandwidth is not None and not bandwidth >= 0:
        raise InputError(f"bandwidth must not be negative, but is {bandwidth}")
    if norm < 1:
        raise InputError(f"norm must be at least 1, not {norm}")
    curves = top_label(scores, labels, kind, sample_weight=sample_weight).curves()
    return float(kde_of_curves(curves, CELLS, bandwidth, norm)[0])


def kde_of_curve(curve: ResidualCurves) -> float:
    """Return the KDE-ECE of one residual curve on the fine cells."""
    return float(kde_of_curves(curve, CELLS)[0])


def kde_of_curves(
    curves: ResidualCurves,
    cells: int = RESAMPLING_CELLS,
    bandwidth: float | None = None,
    norm: int = 1,
) -> FloatArray:
    """Return the (R,) KDE-ECEs of residual curves."""
    sums = BinSums.of_curves(curves, cells)
    middles = (np.arange(cells) + 0.5) / cells
    if bandwidth is None:
        widths = _bandwidth_rule(sums.correct, middles, curves.total)
    else:
        widths = np.full(len(sums.correct), float(bandwidth))
    response = _triweight_response(3 * widths, cells)
    density, right = (
        _smoothed(mass / curves.total[:, None], response) for mass in (sums.count, sums.correct)
    )
    # The transform leaves rounding errors where no row is near.
    density = np.maximum(density, 0.0)
    right = np.clip(right, 0.0, density)
    excess = np.abs(middles * density - right)
    if norm == 1:
        return excess.sum(axis=1)
    ratio = np.divide(excess, density, out=np.zeros(excess.shape), where=density > 0)
    return (density * ratio**norm).sum(axis=1)


def _bandwidth_rule(right: FloatArray, middles: FloatArray, total: FloatArray) -> FloatArray:
    """Return (R,) standard deviations of the right rows' confidences times (2N)^(-1/5)."""
    right = np.maximum(right, 0.0)
    share = right / np.maximum(right.sum(axis=1, keepdims=True), 1.0)
    mean = (share * middles).sum(axis=1, keepdims=True)
    shrink = np.array([(2 * each) ** -0.2 for each in total.tolist()])
    return np.sqrt((share * (middles - mean) ** 2).sum(axis=1)) * shrink


def _triweight_response(half_widths: FloatArray, cells: int) -> FloatArray:
    """Return (R, cells + 1) gains of the sampled kernels at the frequencies of a mirrored grid."""
    distance = np.minimum(np.arange(2 * cells), 2 * cells - np.arange(2 * cells)) / cells
    spread = np.maximum(half_widths, 1 / cells)[:, None]
    kernel = np.maximum(1 - (distance / spread) ** 2, 0.0) ** 3
    return np.fft.rfft(kernel / kernel.sum(axis=1, keepdims=True), axis=1).real


def _smoothed(mass: FloatArray, response: FloatArray) -> FloatArray:
    """Convolve (R, cells) masses with kernels that are reflected at both ends."""
    mirrored = np.concatenate([mass, mass[:, ::-1]], axis=1)
    spectrum = np.fft.rfft(mirrored, axis=1) * response
    return np.fft.irfft(spectrum, mirrored.shape[1], axis=1)[:, : mass.shape[1]]


KDE_ECE = CurveMetric(
    name="kde_ece",
    title="KDE-ECE",
    definition="top label, L1, reflected triweight kernel, bandwidth by rule",
    function=kde_ece,
    effort=CELLS_COST,
    fails=f"{BIASED}; its bandwidth blurs the crowd of confidences near 1",
    of_curves=kde_of_curves,
    exact=kde_of_curve,
)
