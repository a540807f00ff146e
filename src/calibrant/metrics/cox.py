"""Calibration slope and intercept: Cox's logistic regression of correctness on logit confidence."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np

from calibrant.core.arrays import Array, FloatArray, IntArray
from calibrant.core.errors import BoundaryWarning, NotIdentifiedWarning
from calibrant.metrics.binned import BinSums, logit
from calibrant.metrics.metric_types import CurveMetric, Part
from calibrant.metrics.top_label import PairKind, ResidualCurves, TopLabel, top_label

RESAMPLING_CELLS = 512
# Holds slope and intercept to (1, 0) with the weight of a millionth of a row or less: it changes
# no fit that exists, and keeps those finite that have no optimum.
RIDGE = 1e-6
MAX_STEPS = 100
HALVINGS = 30
TOLERANCE = 1e-10


class CoxFit(NamedTuple):
    """P(right) = sigmoid(intercept + slope * logit c)."""

    slope: float
    intercept: float


def calibration_slope_intercept(
    scores: Array,
    labels: Array,
    *,
    kind: PairKind | None = None,
    sample_weight: Array | None = None,
) -> CoxFit:
    """Return slope and intercept of the logistic regression of correctness on logit confidence.

    Slope 1 and intercept 0 are ideal. A slope below 1 means that the confidences spread too far:
    high ones are too high, low ones too low. Convention: top label, confidences kept 1e-7 away from
    0 and 1, maximum likelihood. If a threshold on the confidence divides right from wrong
    predictions, or all are right, there is no optimum; a penalty worth a millionth of a row then
    keeps the numbers finite, with a `BoundaryWarning`. If all confidences are equal, only one
    combination of the two is known, and a `NotIdentifiedWarning` says that.

    Args:
        scores: (N, K) probabilities, or (N,) confidences.
        labels: (N,) true classes, or (N,) correctness.
        kind: what (N,) scores are: ``"confidence"``, or ``"prob"`` of the positive class; then
            labels are 0 and 1 instead of correctness.
        sample_weight: (N,) how much each row counts; by default all alike.

    Raises:
        PredictionsError: unusable arrays.

    References:
        Cox, Biometrika 1958. Van Calster et al., J. Clin. Epidemiol. 2016.

    Examples:
        >>> import calibrant as cb
        >>> rows = cb.synthetic.tempered(20_000, 2, temperature=2.0).predictions
        >>> slope, _ = cb.metrics.calibration_slope_intercept(rows.probs, rows.labels)
        >>> round(slope, 1)  # log odds that go twice too far
        0.5
    """
    rows = top_label(scores, labels, kind, sample_weight=sample_weight)
    _warn_of_no_optimum(rows)
    return fit_of_curve(rows.curves())


def calibration_in_the_large(
    scores: Array,
    labels: Array,
    *,
    kind: PairKind | None = None,
    sample_weight: Array | None = None,
) -> float:
    """Return the intercept of the same regression with the slope held at 1; 0 is ideal.

    Args:
        scores: (N, K) probabilities, or (N,) confidences.
        labels: (N,) true classes, or (N,) correctness.
        kind: what (N,) scores are: ``"confidence"``, or ``"prob"`` of the positive class; then
            labels are 0 and 1 instead of correctness.
        sample_weight: (N,) how much each row counts; by default all alike.

    Raises:
        PredictionsError: unusable arrays.

    References:
        Cox, Biometrika 1958. Van Calster et al., J. Clin. Epidemiol. 2016.

    Examples:
        >>> import calibrant as cb
        >>> value = cb.metrics.calibration_in_the_large([0.9] * 4, [1, 1, 1, 0], kind="confidence")
        >>> round(value, 3)  # log odds should be log 3 instead of log 9
        -1.099
    """
    rows = top_label(scores, labels, kind, sample_weight=sample_weight)
    if rows.correct.min() == rows.correct.max():
        warnings.warn("all predictions are right, or all are wrong", BoundaryWarning, stacklevel=2)
    return in_the_large_of_curve(rows.curves())


def _warn_of_no_optimum(rows: TopLabel) -> None:
    wrong, right = (rows.confidence[rows.correct == outcome] for outcome in (0.0, 1.0))
    mixed = len(wrong) > 0 and len(right) > 0
    if mixed and rows.confidence[0] == rows.confidence[-1]:
        warnings.warn(
            "all confidences are equal: slope and intercept can't be told apart",
            NotIdentifiedWarning,
            stacklevel=3,
        )
    elif not mixed or right[0] >= wrong[-1] or wrong[0] >= right[-1]:
        warnings.warn(
            "a threshold on the confidence separates right from wrong predictions (or all are "
            "alike): slope and intercept have no finite optimum",
            BoundaryWarning,
            stacklevel=3,
        )


class CoxFits(NamedTuple):
    """The same for each of R residual curves."""

    slope: FloatArray
    intercept: FloatArray


def fit_of_curve(curve: ResidualCurves) -> CoxFit:
    """Return slope and intercept of one residual curve."""
    slope, intercept = _fit_of_ties(curve)
    return CoxFit(float(slope), float(intercept))


def fits_of_curves(curves: ResidualCurves) -> CoxFits:
    """Return (R,) slopes and intercepts of R curves, with confidences on cells of logit c."""
    return CoxFits(*_fit_of_cells(curves).T)


def in_the_large_of_curve(curve: ResidualCurves) -> float:
    """Return the intercept with the slope held at 1 of one residual curve."""
    return float(_fit_of_ties(curve, fixed_slope=True)[1])


def in_the_large_of_curves(curves: ResidualCurves) -> FloatArray:
    """Return the (R,) intercepts with the slope held at 1, on cells as for `fits_of_curves`."""
    return _fit_of_cells(curves, fixed_slope=True)[:, 1]


slope_of_curve: Part[float] = Part(fit_of_curve, "slope")
intercept_of_curve: Part[float] = Part(fit_of_curve, "intercept")
slopes_of_curves: Part[FloatArray] = Part(fits_of_curves, "slope")
intercepts_of_curves: Part[FloatArray] = Part(fits_of_curves, "intercept")


def _fit_of_ties(curve: ResidualCurves, *, fixed_slope: bool = False) -> FloatArray:
    """Return the slope and the intercept of one curve, exact: equal confidences are one cell."""
    confidence, count, correct = curve.ties()
    return _fit(logit(confidence), count, correct, fixed_slope=fixed_slope)[0]


def _fit_of_cells(curves: ResidualCurves, *, fixed_slope: bool = False) -> FloatArray:
    whole = BinSums.of(curves.rows, RESAMPLING_CELLS, "logit")
    used = whole.count > 0
    sums = BinSums.of_curves(curves, RESAMPLING_CELLS, "logit")
    position = logit(whole.mean_confidence[used])
    return _fit(position, sums.count[:, used], sums.correct[:, used], fixed_slope=fixed_slope)


def _solved(curvature: FloatArray, slope: FloatArray) -> FloatArray:
    """Return (R, 2) solutions of symmetric 2 x 2 systems."""
    a, b, d = curvature[:, 0, 0], curvature[:, 0, 1], curvature[:, 1, 1]
    g, h = slope.T
    return np.stack([d * g - b * h, a * h - b * g], axis=1) / (a * d - b * b)[:, None]


def _fit(
    position: FloatArray, count: FloatArray, correct: FloatArray, *, fixed_slope: bool = False
) -> FloatArray:
    """Return (R, 2) slopes and intercepts by Newton's method with halved steps.

    Args:
        position: (G,) logit confidences.
        count: (R or 1, G) rows there.
        correct: (R, G) how many of them are right.
        fixed_slope: hold the slope at 1.
    """
    design = np.stack([position, np.ones_like(position)])
    ideal = np.array([1.0, 0.0])
    count = np.broadcast_to(count, correct.shape)

    def objective(at: FloatArray, part: IntArray) -> FloatArray:
        linear = at @ design
        loss: FloatArray = count[part] * np.logaddexp(0.0, linear) - correct[part] * linear
        return loss.sum(axis=1) + RIDGE / 2 * ((at - ideal) ** 2).sum(axis=1)

    found = np.tile(ideal, (len(correct), 1))
    active: IntArray = np.arange(len(found))
    for _ in range(MAX_STEPS):
        at = found[active]
        p = 1 / (1 + np.exp(-np.clip(at @ design, -700, 700)))
        slope = (count[active] * p - correct[active]) @ design.T + RIDGE * (at - ideal)
        weight = count[active] * p * (1 - p)
        curvature = np.einsum("rg,ig,jg->rij", weight, design, design, optimize=True)
        curvature += RIDGE * np.eye(2)
        if fixed_slope:
            slope[:, 0], curvature[:, 0, 1], curvature[:, 1, 0] = 0.0, 0.0, 0.0
        step = _solved(curvature, slope)
        before, size = objective(at, active), np.ones((len(active), 1))
        for _ in range(HALVINGS):
            # A step that gains nothing in floating point is as good as one that gains.
            worse = objective(at - size * step, active) > before + 1e-12 * np.abs(before)
            if not worse.any():
                break
            size[worse] /= 2
        found[active] = at - size * step
        moving = np.abs(step).max(axis=1) > TOLERANCE * (1 + np.abs(at).max(axis=1))
        active = active[moving]
        if not len(active):
            break
    return found


SLOPE = CurveMetric(
    name="slope",
    title="slope",
    definition="regression of correctness on logit confidence; 1 is ideal",
    function=calibration_slope_intercept,
    effort="a few passes over N numbers",
    fails="errors that aren't linear in the log odds",
    percent=False,
    ideal=1.0,
    of_curves=slopes_of_curves,
    exact=slope_of_curve,
    has_floor=False,
)
INTERCEPT = CurveMetric(
    name="intercept",
    title="intercept",
    definition="of the regression that gives the slope; 0 is ideal",
    function=calibration_slope_intercept,
    effort="a few passes over N numbers",
    fails="read it with the slope",
    percent=False,
    ideal=0.0,
    of_curves=intercepts_of_curves,
    exact=intercept_of_curve,
    has_floor=False,
)
SLOPE_POSITIVE = SLOPE.for_positive(
    "regression of the outcome on the positive class's log odds; 1 is ideal"
)
INTERCEPT_POSITIVE = INTERCEPT.for_positive(
    "of the regression that gives the positive class's slope; 0 is ideal"
)
LARGE_POSITIVE = CurveMetric(
    name="large_positive",
    title="in the large, positive",
    definition="calibration in the large: that intercept with the slope fixed at 1; 0 is "
    "ideal, below 0 the probabilities are too high",
    function=calibration_in_the_large,
    effort="a few passes over N numbers",
    fails="errors that cancel between high and low probabilities aren't seen",
    percent=False,
    ideal=0.0,
    of_positive=True,
    of_curves=in_the_large_of_curves,
    exact=in_the_large_of_curve,
    has_floor=False,
)
