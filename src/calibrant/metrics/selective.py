"""Selective prediction: the risk of answering only where the classifier is confident.

The k most confident rows are answered (coverage k / N), and the risk is the share of errors among
them. Rows of equal confidence have no order; where k falls among them, the errors are those of a
random order, on average. All of this depends on the ranking of rows, which a temperature changes
for more than two classes: measure again after calibration.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from calibrant.core.arrays import Array, FloatArray
from calibrant.core.errors import InputError
from calibrant.metrics.metric_types import CurveMetric
from calibrant.metrics.top_label import PairKind, ResidualCurves, top_label

ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class RiskCoverage:
    """Risk and coverage at each threshold, one entry for each distinct confidence.

    Attributes:
        threshold: (G,) lowest confidence answered, descending.
        coverage: (G,) share of rows answered, ascending, the last 1.
        risk: (G,) share of errors among them.

    Examples:
        >>> import calibrant as cb
        >>> curve = cb.metrics.risk_coverage([0.9, 0.9, 0.6, 0.5], [1, 1, 0, 1], kind="confidence")
        >>> curve.coverage
        array([0.5 , 0.75, 1.  ])
        >>> curve.risk.round(2)
        array([0.  , 0.33, 0.25])
    """

    threshold: FloatArray
    coverage: FloatArray
    risk: FloatArray


def risk_coverage(
    scores: Array,
    labels: Array,
    *,
    kind: PairKind | None = None,
    sample_weight: Array | None = None,
) -> RiskCoverage:
    """Return risk and coverage at every threshold.

    Args:
        scores: (N, K) probabilities, or (N,) confidences.
        labels: (N,) true classes, or (N,) correctness.
        kind: what (N,) scores are: ``"confidence"``, or ``"prob"`` of the positive class; then
            labels are 0 and 1 instead of correctness.
        sample_weight: (N,) how much each row counts; by default all alike.

    Raises:
        PredictionsError: unusable arrays.

    Examples:
        >>> import calibrant as cb
        >>> curve = cb.metrics.risk_coverage([0.9, 0.8, 0.6, 0.5], [1, 1, 0, 1], kind="confidence")
        >>> curve.threshold[curve.risk == 0]  # answer from .8 up: no error
        array([0.9, 0.8])
    """
    curve = top_label(scores, labels, kind, sample_weight=sample_weight, top=True).curves()
    counted, errors = (sums[0, 1:] for sums in from_the_top(curve))
    threshold = curve.rows.confidence[curve.rows.tie_starts[:-1]][::-1]
    some = counted > 0  # rows of weight 0 answer nothing
    counted, errors = counted[some], errors[some]
    return RiskCoverage(threshold[some], counted / curve.total[0], errors / counted)


def aurc(
    scores: Array,
    labels: Array,
    *,
    kind: PairKind | None = None,
    sample_weight: Array | None = None,
) -> float:
    """Return the AURC, (1/N) sum_k (errors among the k most confident) / k, a fraction.

    Often printed times 1 000. Other code integrates by trapezoids, or over distinct confidences
    only.

    Args:
        scores: (N, K) probabilities, or (N,) confidences.
        labels: (N,) true classes, or (N,) correctness.
        kind: what (N,) scores are: ``"confidence"``, or ``"prob"`` of the positive class; then
            labels are 0 and 1 instead of correctness.
        sample_weight: (N,) how much each row counts; by default all alike.

    Raises:
        PredictionsError: unusable arrays.

    References:
        Geifman & El-Yaniv, NeurIPS 2017.

    Examples:
        >>> import calibrant as cb
        >>> c = [0.9, 0.8, 0.7, 0.6]
        >>> value = cb.metrics.aurc(c, [1, 1, 0, 0], kind="confidence")
        >>> round(value, 3)  # (0 + 0 + 1/3 + 2/4) / 4
        0.208
        >>> round(cb.metrics.aurc(c, [0, 0, 1, 1], kind="confidence"), 3)  # surest of its errors
        0.792
    """
    return float(
        aurc_of_curves(
            top_label(scores, labels, kind, sample_weight=sample_weight, top=True).curves()
        )[0]
    )


def eaurc(
    scores: Array,
    labels: Array,
    *,
    kind: PairKind | None = None,
    sample_weight: Array | None = None,
) -> float:
    """Return the E-AURC, the AURC minus that of a ranking with all errors last, a fraction.

    The AURC of that ranking is computed exactly, (1/N) sum_k max(0, k - (N - E)) / k for E errors,
    and not by its limit for many rows, r + (1 - r) log(1 - r).

    Args:
        scores: (N, K) probabilities, or (N,) confidences.
        labels: (N,) true classes, or (N,) correctness.
        kind: what (N,) scores are: ``"confidence"``, or ``"prob"`` of the positive class; then
            labels are 0 and 1 instead of correctness.
        sample_weight: (N,) how much each row counts; by default all alike.

    Raises:
        PredictionsError: unusable arrays.

    References:
        Geifman, Uziel, El-Yaniv, ICLR 2019.

    Examples:
        >>> import calibrant as cb
        >>> c = [0.9, 0.8, 0.7, 0.6]
        >>> cb.metrics.eaurc(c, [1, 1, 0, 0], kind="confidence") < 1e-9  # the best order
        True
        >>> round(cb.metrics.eaurc(c, [0, 0, 1, 1], kind="confidence"), 3)
        0.583
    """
    return float(
        excess_aurc_of_curves(
            top_label(scores, labels, kind, sample_weight=sample_weight, top=True).curves()
        )[0]
    )


def risk_at_coverage(
    scores: Array,
    labels: Array,
    coverage: float,
    *,
    kind: PairKind | None = None,
    sample_weight: Array | None = None,
) -> float:
    """Return the share of errors among the ceil(coverage N) most confident rows.

    Args:
        scores: (N, K) probabilities, or (N,) confidences.
        labels: (N,) true classes, or (N,) correctness.
        kind: what (N,) scores are: ``"confidence"``, or ``"prob"`` of the positive class; then
            labels are 0 and 1 instead of correctness.
        sample_weight: (N,) how much each row counts; by default all alike.
        coverage: share of rows to answer, in (0, 1].

    Raises:
        PredictionsError: unusable arrays.
        InputError: coverage out of range.

    Examples:
        >>> import calibrant as cb
        >>> c, a = [0.9, 0.8, 0.6, 0.5], [1, 1, 0, 1]
        >>> cb.metrics.risk_at_coverage(c, a, coverage=0.5, kind="confidence")
        0.0
        >>> cb.metrics.risk_at_coverage(c, a, coverage=1.0, kind="confidence")
        0.25
    """
    if not 0 < coverage <= 1:
        raise InputError(f"coverage must lie in (0, 1], not {coverage}")
    curve = top_label(scores, labels, kind, sample_weight=sample_weight, top=True).curves()
    # Less a rounding error, so that 0.07 of 100 rows are 7 of them.
    answered = math.ceil(coverage * float(curve.total[0]) * (1 - 1e-12))
    counted, errors = from_the_top(curve)
    after = int(np.searchsorted(counted[0], answered))
    low, high = counted[0, after - 1], counted[0, after]
    share = (answered - low) / (high - low)
    return float(errors[0, after - 1] * (1 - share) + errors[0, after] * share) / answered


def coverage_at_risk(
    scores: Array,
    labels: Array,
    risk: float,
    *,
    kind: PairKind | None = None,
    sample_weight: Array | None = None,
) -> float:
    """Return the largest coverage of a threshold whose risk is at most `risk`; 0 if there is none.

    A threshold answers all rows of one confidence or none.

    Args:
        scores: (N, K) probabilities, or (N,) confidences.
        labels: (N,) true classes, or (N,) correctness.
        kind: what (N,) scores are: ``"confidence"``, or ``"prob"`` of the positive class; then
            labels are 0 and 1 instead of correctness.
        sample_weight: (N,) how much each row counts; by default all alike.
        risk: share of errors to tolerate, in [0, 1].

    Raises:
        PredictionsError: unusable arrays.
        InputError: risk out of range.

    Examples:
        >>> import calibrant as cb
        >>> c, a = [0.9, 0.8, 0.6, 0.5], [1, 1, 0, 1]
        >>> cb.metrics.coverage_at_risk(c, a, risk=0.1, kind="confidence")
        0.5
        >>> cb.metrics.coverage_at_risk(c, a, risk=0.25, kind="confidence")
        1.0
    """
    if not 0 <= risk <= 1:
        raise InputError(f"risk must lie in [0, 1], not {risk}")
    curve = risk_coverage(scores, labels, kind=kind, sample_weight=sample_weight)
    within = curve.coverage[curve.risk <= risk + 1e-12]
    return float(within.max(initial=0.0))


def from_the_top(curves: ResidualCurves) -> tuple[FloatArray, FloatArray]:
    """Return (R, G + 1) counts and errors of the most confident runs, from none to all."""
    starts = curves.rows.tie_starts[::-1]
    counted = curves.weights[:, -1:] - curves.weights[:, starts]
    errors = counted - (curves.correct[:, -1:] - curves.correct[:, starts])
    return counted, errors


def aurc_of_curves(curves: ResidualCurves) -> FloatArray:
    """Return the (R,) AURCs of residual curves."""
    counted, errors = from_the_top(curves)
    size, more = np.diff(counted, axis=1), np.diff(errors, axis=1)
    before = counted[:, :-1]
    rate = np.divide(more, size, out=np.zeros(more.shape), where=size > 0)
    # Among a run of ties the errors grow by `rate` a row, so each k adds rate + (what is left) / k.
    rest = errors[:, :-1] - rate * before
    return (more + rest * np.diff(_harmonic(counted), axis=1)).sum(axis=1) / curves.total


def excess_aurc_of_curves(curves: ResidualCurves) -> FloatArray:
    """Return the (R,) E-AURCs of residual curves."""
    right = curves.correct[:, -1]
    # Sums of residuals leave rounding errors; whole rows are right in whole numbers.
    near = np.round(right)
    right = np.where(np.abs(right - near) < ROUNDING * curves.total, near, right)
    total = np.broadcast_to(curves.total, right.shape)
    oracle = (total - right) - right * (_harmonic(total) - _harmonic(right))
    return aurc_of_curves(curves) - oracle / curves.total


def _harmonic(k: FloatArray) -> FloatArray:
    """Return 1 + 1/2 + ... + 1/k."""
    from scipy.special import digamma

    return digamma(k + 1.0) + np.euler_gamma


AURC = CurveMetric(
    name="aurc",
    title="AURC",
    definition="mean over k of the error rate of the k most confident rows",
    function=aurc,
    effort="a sort; then one pass",
    fails="it ranks: no map that keeps the order changes it",
    of_curves=aurc_of_curves,
    has_floor=False,
    by_rank=True,
)
EAURC = CurveMetric(
    name="eaurc",
    title="E-AURC",
    definition="AURC minus that of the ideal ranking with as many errors, exact",
    function=eaurc,
    effort="a sort; then one pass",
    fails="it ranks: no map that keeps the order changes it",
    of_curves=excess_aurc_of_curves,
    has_floor=False,
    by_rank=True,
)
