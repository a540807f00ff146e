"""The maximum mean calibration error MMCE: residuals against a Laplacian kernel of confidence."""

from __future__ import annotations

import numpy as np

from calibrant.core.arrays import Array, FloatArray
from calibrant.core.errors import InputError
from calibrant.metrics.metric_types import CELLS_COST, CurveMetric
from calibrant.metrics.pairs import PairKind, top_label
from calibrant.metrics.running_sums import accumulate
from calibrant.metrics.top_label import ResidualCurves

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
    if not width >= SMALLEST_WIDTH:
        raise InputError(f"width must be at least {SMALLEST_WIDTH}, not {width}")
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
