"""Errors under a kernel: smECE, reflected exactly at 0 and 1, KDE-ECE, and MMCE of residuals."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arguments import within
from calibrant.core.arrays import Array, FloatArray, IntArray
from calibrant.metrics.binned import BinSums
from calibrant.metrics.metric_types import BIASED, CELLS_COST, CurveMetric
from calibrant.metrics.top_label import PairKind, ResidualCurves, accumulate, top_label

CELLS = 4096
RESAMPLING_CELLS = 256
DENSITY_CELLS = 512
# Steps to the bandwidth, which they find to 1e-9; resamples do with fewer. Of 300 rows or more that
# was off by 1e-6 on average and 3e-5 at most, where resamples scatter by 5e-4 and more.
STEPS, RESAMPLING_STEPS = 16, 3
TINY = float(np.finfo(np.float64).tiny)
# A product of frequency and bandwidth at which a Gaussian is 2e-22.
DAMPED = 10.0
# Of anything less the exponential counts as 4e-44: smaller numbers take four times as long.
LEAST_EXPONENT = -100.0


def smooth_ece(
    scores: Array,
    labels: Array,
    *,
    kind: PairKind | None = None,
    sample_weight: Array | None = None,
) -> float:
    """Return smECE: int |r_s(t)| dt at the bandwidth s that equals its own value, a fraction.

    r_s is the residual density (1/N) sum_i (c_i - a_i) K_s(c_i, t) under a Gaussian kernel
    reflected at 0 and 1 with all its images. The integral falls with s, so there is one fixed point
    and no parameter to choose. Confidences are put on 4 096 cells; there the reflected kernel is
    applied by a cosine transform, which treats both ends exactly: confidences at 1 keep their whole
    weight. The smooth calibration error, smCE, is another number: `smooth_calibration_error`.

    Args:
        scores: (N, K) probabilities, or (N,) confidences.
        labels: (N,) true classes, or (N,) correctness.
        kind: of (N,) scores, ``"confidence"``, or ``"prob"`` of the positive class, with labels 0
            and 1 in place of correctness.
        sample_weight: (N,) how much each row counts; by default all alike.

    References:
        Blasiok & Nakkiran: Smooth ECE. ICLR 2024.

    Examples:
        >>> import calibrant as cb
        >>> truth = cb.synthetic.top_label(20_000)  # P(right | c) = c^2
        >>> rows = truth.predictions
        >>> right = rows.predicted == rows.labels
        >>> value = cb.metrics.smooth_ece(rows.scores, right, kind="confidence")
        >>> abs(value - truth.true_calibration_error()) < 0.02
        True
    """
    rows = top_label(scores, labels, kind, sample_weight=sample_weight)
    return smece_of_curve(rows.curves())


def smece_of_curve(curve: ResidualCurves) -> float:
    """Return the smECE of one residual curve on the fine cells."""
    return float(smece_of_curves(curve, CELLS, STEPS)[0])


def smece_of_curves(
    curves: ResidualCurves, cells: int = RESAMPLING_CELLS, steps: int = RESAMPLING_STEPS
) -> FloatArray:
    """Return the (R,) smECEs of residual curves."""
    masses = curves.between_edges(np.arange(cells + 1) / cells) / curves.total[:, None]
    # Reflection about the outer edges of the first and last cell makes the kernel a plain one on
    # cosines.
    transform = CosineTransform.of(cells)
    spectrum = transform.forwards(masses)
    frequencies = np.pi * np.arange(cells)

    def smoothed(bandwidth: FloatArray) -> FloatArray:
        # Higher frequencies are damped by more than 1e-21, or all of them are there.
        kept = int(np.searchsorted(frequencies * float(bandwidth.min()), DAMPED))
        damped: FloatArray = np.multiply.outer(
            bandwidth * bandwidth, -0.5 * frequencies[:kept] ** 2
        )
        np.maximum(damped, LEAST_EXPONENT, out=damped)
        np.exp(damped, out=damped)
        damped *= spectrum[:, :kept]
        density = transform.backwards(damped)  # in any order
        return np.abs(density).sum(axis=1)

    # The integral lies between the sum's size and the sum of sizes, so the fixed point does too.
    # As it falls with the bandwidth, the fixed point isn't below the integral at the upper end.
    high: FloatArray = np.abs(masses).sum(axis=1)
    reached = smoothed(high)
    low: FloatArray = np.maximum(np.abs(masses.sum(axis=1)), reached)
    above, below = smoothed(low) - low, reached - high
    for _ in range(steps):
        # Where the chord crosses 0, but never so near an end that the other one stays for long.
        share = np.clip(above / np.maximum(above - below, TINY), 0.02, 0.98)
        middle = low + share * (high - low)
        rest = smoothed(middle) - middle
        left = rest > 0
        # An end that stays counts less, which draws the next step towards it (Anderson, Bjorck).
        end = np.where(left, above, below)
        less = 1 - np.divide(rest, end, out=np.zeros_like(rest), where=end != 0)
        less = np.where(less > 0, less, 0.5)
        above, below = np.where(left, rest, above * less), np.where(left, below * less, rest)
        low, high = np.where(left, middle, low), np.where(left, high, middle)
    return low + np.clip(above / np.maximum(above - below, TINY), 0, 1) * (high - low)


class CosineTransform(NamedTuple):
    """The cosine transform of C numbers a row, and back, by real Fourier transforms of C numbers.

    SciPy has it too, but loading that takes as long as a thousand resamples of ten thousand rows.

    Attributes:
        order: (C,) the even places in ascending, then the odd ones in descending order (Makhoul, A
            fast cosine transform in one and two dimensions. IEEE Trans. ASSP, 1980).
        turns: (C / 2 + 1,) factors between the two transforms.
    """

    order: IntArray
    turns: NDArray[np.complex128]

    @classmethod
    @cache
    def of(cls, cells: int) -> CosineTransform:
        """Return the transform of an even number of cells."""
        places = np.arange(cells)
        order = np.concatenate([places[::2], places[::-2]])
        return cls(order, np.exp(-0.5j * np.pi * np.arange(cells // 2 + 1) / cells))

    def forwards(self, rows: FloatArray) -> FloatArray:
        """Return (R, C) sums over j of r_j cos(pi k (j + 1/2) / C)."""
        turned = np.fft.rfft(rows[:, self.order]) * self.turns
        found = np.empty(rows.shape)
        half = len(self.turns)
        found[:, :half] = turned.real
        found[:, half:] = -turned.imag[:, half - 2 : 0 : -1]
        return found

    def backwards(self, spectrum: FloatArray) -> FloatArray:
        """Return the (R, C) rows, in the places `order`, of which `forwards` makes this.

        Args:
            spectrum: (R, F) numbers of the F <= C lowest frequencies; those of others are 0.
        """
        width, given = len(self.order), spectrum.shape[1]
        kept = min(given, len(self.turns))
        turned = np.zeros((len(spectrum), kept), dtype=np.complex128)
        turned.real = spectrum[:, :kept]
        first = max(1, width - given + 1)
        if first < kept:
            turned.imag[:, first:] = -spectrum[:, width - first : width - kept : -1]
        turned *= self.turns[:kept].conj()
        return np.fft.irfft(turned, width)


SMECE = CurveMetric(
    name="smece",
    title="smECE",
    definition="top label, reflected Gaussian kernel at its fixed-point bandwidth",
    function=smooth_ece,
    effort=CELLS_COST,
    fails=f"{BIASED}; its bandwidth shrinks with the error that it finds",
    omnibus=True,
    of_curves=smece_of_curves,
    at_breakpoints=True,
    exact=smece_of_curve,
)


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
    within("norm", norm, at_least=1)
    if bandwidth is not None:
        within("bandwidth", bandwidth, at_least=0)
    curves = top_label(scores, labels, kind, sample_weight=sample_weight).curves()
    return float(kde_of_curves(curves, CELLS, bandwidth, norm)[0])


def kde_of_curve(curve: ResidualCurves) -> float:
    """Return the KDE-ECE of one residual curve on the fine cells."""
    return float(kde_of_curves(curve, CELLS)[0])


def kde_of_curves(
    curves: ResidualCurves,
    cells: int = DENSITY_CELLS,
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


KERNEL_WIDTH = 0.4
# exp(1 / width) must stay a float64.
SMALLEST_WIDTH = 0.002


def mmce(
    scores: Array,
    labels: Array,
    width: float = KERNEL_WIDTH,
    *,
    squared: bool = False,
    kind: PairKind | None = None,
    sample_weight: Array | None = None,
) -> float:
    """Return the MMCE, sqrt((1/N^2) sum_ij e_i e_j exp(-|c_i - c_j| / width)), e = a - c.

    Convention: top label, the V-statistic, which counts i = j too and so is biased upwards by about
    mean(e^2) / N in the square. The root is netcal's; the training loss of the focal-loss code is
    the square. Exact in O(N log N): over sorted confidences the Laplacian kernel is a product of
    one factor for each of the two rows, so the double sum becomes a running sum.

    Args:
        scores: (N, K) probabilities, or (N,) confidences.
        labels: (N,) true classes, or (N,) correctness.
        kind: of (N,) scores, ``"confidence"``, or ``"prob"`` of the positive class, with labels 0
            and 1 in place of correctness.
        sample_weight: (N,) how much each row counts; by default all alike.
        width: of the kernel, at least 0.002.
        squared: return the square.

    Raises:
        PredictionsError: unusable arrays.
        InputError: too small a width.

    References:
        Kumar, Sarawagi, Jain: Trainable calibration measures. ICML 2018.

    Examples:
        >>> import calibrant as cb
        >>> c, a = [0.9, 0.9, 0.9, 0.9], [1, 1, 1, 0]
        >>> round(cb.metrics.mmce(c, a, kind="confidence"), 4)  # .9 - .75
        0.15
        >>> round(cb.metrics.mmce(c, a, squared=True, kind="confidence"), 4)
        0.0225
    """
    square = squared_mmce_of_curves(
        top_label(scores, labels, kind, sample_weight=sample_weight).curves(), width
    )[0]
    return float(square if squared else np.sqrt(square))


def squared_mmce_of_curves(curves: ResidualCurves, width: float = KERNEL_WIDTH) -> FloatArray:
    """Return the (R,) squared MMCEs of residual curves."""
    within("width", width, at_least=SMALLEST_WIDTH)
    starts = curves.rows.tie_starts
    mass = np.diff(curves.residual[:, starts], axis=1)
    rise = np.exp(curves.rows.confidence[starts[:-1]] / width)
    before = accumulate(mass * rise)[:, :-1] / rise
    return np.maximum((mass * (mass + 2 * before)).sum(axis=1), 0.0) / curves.total**2


def mmce_of_curves(curves: ResidualCurves) -> FloatArray:
    """Return the (R,) MMCEs of residual curves."""
    return np.sqrt(squared_mmce_of_curves(curves))


MMCE = CurveMetric(
    name="mmce",
    title="MMCE",
    definition="top label, root of the V-statistic, Laplacian kernel of width 0.4",
    function=mmce,
    effort=CELLS_COST,
    fails="its size means nothing by itself; compare it only between similar sets",
    of_curves=mmce_of_curves,
)
