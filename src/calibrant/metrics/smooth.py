"""Calibration errors without bins: smCE against the worst 1-Lipschitz witness, and under a kernel.

Under a kernel: smECE, reflected exactly at 0 and 1, KDE-ECE, and MMCE of residuals.
"""

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

# Resamples are put on this many cells. That is off by at most mean|a - c| / (2 cells); on 10 000
# rows it was off by 2e-5 at most and by 1e-6 on average, far below their spread.
SMCE_CELLS = 64
# Resamples that are worked on at once, so many that their numbers stay in the cache.
MOST_AT_ONCE = 128
# More distinct confidences than this are put on cells: off by at most mean|a - c| / 65 536, below
# 1e-5.
MOST_EXACT_ROWS, LARGE_CELLS = 50_000, 1 << 15


def smooth_calibration_error(
    scores: Array,
    labels: Array,
    *,
    kind: PairKind | None = None,
    sample_weight: Array | None = None,
) -> float:
    """Return smCE = max over w of (1/N) sum_i (a_i - c_i) w(c_i), a fraction.

    w runs over the 1-Lipschitz functions from [0, 1] to [-1, 1]. There are no bins to choose, and
    the value lies within a factor of two of the distance to the nearest calibrated predictor.
    Exact up to 50 000 distinct confidences, for which the dual of the linear program over the
    sorted confidences, a monotone path, is solved by halving; above that to 1e-5.

    The smooth ECE, smECE, is another number: `smooth_ece`.

    Args:
        scores: (N, K) probabilities, or (N,) confidences.
        labels: (N,) true classes, or (N,) correctness.
        kind: what (N,) scores are: ``"confidence"``, or ``"prob"`` of the positive class; then
            labels are 0 and 1 instead of correctness.
        sample_weight: (N,) how much each row counts; by default all alike.

    References:
        Kakade & Foster, J. Comput. Syst. Sci. 2008. Blasiok, Gopalan, Hu, Nakkiran, STOC 2023.

    Examples:
        >>> import calibrant as cb
        >>> value = cb.metrics.smooth_calibration_error([0.499, 0.501], [0, 1], kind="confidence")
        >>> round(value, 3)  # an edge of a bin at .5 would make this an ECE of .5
        0.0
        >>> from calibrant.metrics import smooth_calibration_error
        >>> round(smooth_calibration_error([0.9] * 4, [1, 1, 1, 0], kind="confidence"), 3)
        0.15
    """
    rows = top_label(scores, labels, kind, sample_weight=sample_weight)
    return smce_of_curve(rows.curves())


def smce_of_curve(curve: ResidualCurves) -> float:
    """Return the smCE of one residual curve."""
    if curve.rows.distinct >= MOST_EXACT_ROWS:
        return float(smce_of_curves(curve, LARGE_CELLS)[0])
    starts = curve.rows.tie_starts
    residual = np.diff(curve.residual[0, starts]) / -curve.total[0]
    return max_lipschitz_correlation(curve.rows.confidence[starts[:-1]], residual)


def smce_of_curves(curves: ResidualCurves, cells: int = SMCE_CELLS) -> FloatArray:
    """Return the (R,) smCEs of residual curves, with confidences moved to the middle of cells."""
    masses = curves.between(curves.cuts(np.arange(cells + 1) / cells)) / -curves.total[:, None]
    if cells > SMCE_CELLS:
        used = np.abs(masses).max(axis=0) > 0
        middles = ((np.arange(cells) + 0.5) / cells)[used]
        return np.array([max_lipschitz_correlation(middles, mass) for mass in masses[:, used]])
    parts = range(0, len(masses), MOST_AT_ONCE)
    return np.concatenate([_on_even_cells(masses[i : i + MOST_AT_ONCE].T) for i in parts])


def _on_even_cells(masses: FloatArray) -> FloatArray:
    """Return the (R,) maxima of `max_lipschitz_correlation` for (C, R) masses in C even cells.

    With a bound of 1 / C on the steps of w and less than C steps, w can't reach from -1 to 1. The
    dual is then a path: with F_i the sum of the first i masses, the maximum is
    |F_C| + (1 / C) min over monotone g from 0 to F_C of sum_{i < C} |F_i - g_i|. What of F lies
    beyond 0 or F_C counts whole. For the rest each level between two neighbouring values of F asks
    where g had best cross it: every F_i above it before that place, or below it behind, costs the
    distance of the two values. So whole numbers do, counts of the F_i on either side.
    """
    sums = np.cumsum(masses, axis=0)
    total = np.abs(sums[-1])
    path = sums[:-1] * np.where(sums[-1] < 0, -1.0, 1.0)
    inside = np.clip(path, 0.0, total)
    beyond = np.abs(path - inside).sum(axis=0)
    values = np.ascontiguousarray(inside.T)
    places = np.argsort(values, axis=1)
    numbers = np.arange(len(path), dtype=np.int8)
    # More behind the last one, as many as make a power of 2, lie above all levels.
    ranks = np.full((len(total), 1 << len(path).bit_length()), len(path), dtype=np.int8)
    np.put_along_axis(ranks, places, numbers[None, :], axis=1)
    above = np.ascontiguousarray(ranks.T)[:, None, :] > numbers[:-1, None]
    # How many more of some neighbours lie above each level than below, and the least that the
    # first few of them do; first of one, then of two, of four, ...
    more = above.view(np.int8)
    more *= 2
    more -= 1
    least = np.minimum(more, 0)
    while len(more) > 1:
        left, right = more[::2], more[1::2]
        least = np.minimum(least[::2], left + least[1::2])
        more = left + right
    values.sort(axis=1)
    crossed = (np.diff(values, axis=1).T * (least[0] + numbers[1:, None])).sum(axis=0)
    return total + (beyond + crossed) / len(masses)


def max_lipschitz_correlation(positions: FloatArray, masses: FloatArray) -> float:
    """Return max of sum_i r_i w_i over |w_i| <= 1 and |w_i - w_j| <= |v_i - v_j|.

    It is |F_n| + min over monotone g from 0 to F_n of sum_i (v_(i+1) - v_i) |F_i - g_i|, with F_i
    the sum of the first i masses (see `_on_even_cells`). Whether g is above or below a level is a
    question of its own: a monotone g crosses it at one place, the one before which the F_i above it
    and behind which those below it have the least steps between them. So the middle one of all
    values of F is asked first; then, on either side of the place, the middle one of those left.

    Args:
        positions: (n,) v, ascending and distinct, in [0, 1].
        masses: (n,) r.
    """
    sums = np.cumsum(masses)
    if len(sums) < 2:
        return abs(float(masses.sum()))
    steps, total = np.diff(positions), abs(float(sums[-1]))
    path = sums[:-1] if sums[-1] >= 0 else -sums[:-1]
    inside = np.clip(path, 0.0, total)
    n, order = len(path), np.argsort(inside)
    places, ranks = np.arange(n), np.empty(n, dtype=np.int64)
    ranks[order] = places
    # g_i is the value of rank `low` to `high`; neighbours that have both in common are a group.
    low, high = np.zeros(n, dtype=np.int64), np.full(n, n - 1)
    while (undecided := low < high).any():
        middle = (low + high) >> 1
        firsts = np.flatnonzero((np.diff(low, prepend=-1) != 0) | (np.diff(high, prepend=-1) != 0))
        sizes = np.diff(firsts, append=n)
        # What it costs to have g below the level up to a place, less what it costs above.
        cost = np.cumsum(np.where(undecided, np.where(ranks > middle, steps, -steps), 0.0))
        before = np.where(firsts > 0, cost[firsts - 1], 0.0)
        least = np.minimum.reduceat(cost, firsts)
        cheapest = np.flatnonzero(cost == np.repeat(least, sizes))
        behind = cheapest[np.searchsorted(cheapest, firsts)] + 1
        crossing = np.where(before <= least, firsts, behind)
        below = places < np.repeat(crossing, sizes)
        high = np.where(undecided & below, middle, high)
        low = np.where(undecided & ~below, middle + 1, low)
    return total + float(steps @ np.abs(path - inside[order[low]]))


SMCE = CurveMetric(
    name="smce",
    title="smCE",
    definition="top label, exact maximum over 1-Lipschitz witnesses",
    function=smooth_calibration_error,
    effort="a sweep over N confidences; 64 cells for resamples",
    fails="errors that change sign within a short stretch count little, by design",
    omnibus=True,
    of_curves=smce_of_curves,
    at_breakpoints=True,
    exact=smce_of_curve,
)
SMCE_POSITIVE = SMCE.for_positive(
    "probability of the positive class, maximum over 1-Lipschitz witnesses"
)


CELLS = 4096
SMECE_CELLS = 256
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
        kind: what (N,) scores are: ``"confidence"``, or ``"prob"`` of the positive class; then
            labels are 0 and 1 instead of correctness.
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
    curves: ResidualCurves, cells: int = SMECE_CELLS, steps: int = RESAMPLING_STEPS
) -> FloatArray:
    """Return the (R,) smECEs of residual curves."""
    masses = curves.between(curves.cuts(np.arange(cells + 1) / cells)) / curves.total[:, None]
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
        kind: what (N,) scores are: ``"confidence"``, or ``"prob"`` of the positive class; then
            labels are 0 and 1 instead of correctness.
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
        kind: what (N,) scores are: ``"confidence"``, or ``"prob"`` of the positive class; then
            labels are 0 and 1 instead of correctness.
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
