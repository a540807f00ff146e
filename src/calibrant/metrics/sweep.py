"""ECE-sweep: the ECE over as many equal-mass bins as leave the accuracies in ascending order."""

from __future__ import annotations

import numpy as np

from calibrant.core.arrays import Array, FloatArray
from calibrant.core.errors import InputError
from calibrant.metrics.bins import BinSums
from calibrant.metrics.metric_types import BIASED, CurveMetric
from calibrant.metrics.pairs import PairKind, top_label
from calibrant.metrics.top_label import ResidualCurves

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
        kind: of (N,) scores, ``"confidence"``, or ``"prob"`` of the positive class, with labels 0
            and 1 in place of correctness.
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
    if norm < 1:
        raise InputError(f"norm must be at least 1, not {norm}")
    return float(
        sweep_of_curves(
            top_label(scores, labels, kind, sample_weight=sample_weight).curves(), norm
        )[0]
    )


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
