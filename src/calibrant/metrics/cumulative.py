"""The Kolmogorov-Smirnov calibration error: the largest height of the residual curve."""

from __future__ import annotations

import numpy as np

from calibrant.core.arrays import Array, FloatArray
from calibrant.metrics.metric_types import CurveMetric
from calibrant.metrics.pairs import PairKind, top_label
from calibrant.metrics.top_label import ResidualCurves


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
        kind: of (N,) scores, ``"confidence"``, or ``"prob"`` of the positive class, with labels 0
            and 1 in place of correctness.
        sample_weight: (N,) how much each row counts; by default all alike.

    Raises:
        PredictionsError: unusable arrays.

    References:
        Gupta et al.: Calibration of neural networks using splines. ICLR 2021.

    Examples:
        >>> import calibrant as cb
        >>> value = cb.ks_error([0.6, 0.6, 0.9, 0.9], [1, 1, 1, 0], kind="confidence")
        >>> round(value, 3)  # up to .6 there are two rows, each said .4 too little: 2 * .4 / 4
        0.2
    """
    return float(
        ks_of_curves(top_label(scores, labels, kind, sample_weight=sample_weight).curves())[0]
    )


def ks_of_curves(curves: ResidualCurves) -> FloatArray:
    """Return the (R,) KS errors of residual curves."""
    return np.abs(curves.residual[:, curves.rows.tie_starts]).max(axis=1) / curves.total


KS = CurveMetric(
    name="ks",
    title="KS error",
    definition="top label, largest cumulative residual over sorted confidences",
    function=ks_error,
    effort="a sort; then one pass",
    fails="errors that take turns in sign cancel",
    omnibus=True,
    of_curves=ks_of_curves,
)
