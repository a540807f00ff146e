"""Metrics of the probability that binary predictions give to the positive class.

Where a top-label metric asks how often the prediction is right, these ask how often a row is of the
positive class. The two differ: of a model that says .4 of one half of the rows and .6 of the other,
when each half is positive as often as not, the confidence of .6 is too high throughout, and the
mean probability of the positive class is right.

Each is the top-label metric of the same name with the probability of the positive class in place of
the confidence, and "is of the positive class" in place of "is right".
"""

from __future__ import annotations

from calibrant.metrics.binned import adaece_of_curves, ece_of_curves
from calibrant.metrics.cox import (
    in_the_large_of_curve,
    in_the_large_of_curves,
    intercept_of_curve,
    intercepts_of_curves,
    slope_of_curve,
    slopes_of_curves,
)
from calibrant.metrics.metric_types import CurveMetric, MeanMetric, Metric
from calibrant.metrics.smooth import smce_of_curve, smce_of_curves

POSITIVE_METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        CurveMetric(
            name="ece_positive",
            title="ECE, positive",
            definition="probability of the positive class, 15 equal-width bins (lo, hi], L1",
            of_positive=True,
            of_curves=ece_of_curves,
            at_breakpoints=True,
        ),
        CurveMetric(
            name="adaece_positive",
            title="AdaECE, positive",
            definition="probability of the positive class, 15 equal-mass bins by rank, L1",
            of_positive=True,
            of_curves=adaece_of_curves,
            at_breakpoints=True,
            grid="logit",
        ),
        CurveMetric(
            name="smce_positive",
            title="smCE, positive",
            definition="probability of the positive class, maximum over 1-Lipschitz witnesses",
            of_positive=True,
            of_curves=smce_of_curves,
            at_breakpoints=True,
            exact=smce_of_curve,
        ),
        CurveMetric(
            name="slope_positive",
            title="slope, positive",
            definition="regression of the outcome on the positive class's log odds; 1 is ideal",
            percent=False,
            ideal=1.0,
            of_positive=True,
            of_curves=slopes_of_curves,
            exact=slope_of_curve,
            has_floor=False,
            grid="logit",
        ),
        CurveMetric(
            name="intercept_positive",
            title="intercept, positive",
            definition="of the regression that gives the positive class's slope; 0 is ideal",
            percent=False,
            ideal=0.0,
            of_positive=True,
            of_curves=intercepts_of_curves,
            exact=intercept_of_curve,
            has_floor=False,
            grid="logit",
        ),
        CurveMetric(
            name="large_positive",
            title="in the large, positive",
            definition="calibration in the large: that intercept with the slope held at 1; 0 is "
            "ideal, below 0 the probabilities are too high",
            percent=False,
            ideal=0.0,
            of_positive=True,
            of_curves=in_the_large_of_curves,
            exact=in_the_large_of_curve,
            has_floor=False,
            grid="logit",
        ),
        MeanMetric(
            name="brier_positive",
            title="Brier, positive",
            definition="mean of (p - outcome)^2, in [0, 1]: half of the sum over both classes",
            percent=False,
            of_positive=True,
            per_row=lambda rows: rows.brier / 2,
        ),
        MeanMetric(
            name="log_loss",
            title="log loss",
            definition="mean of -log of the probability of what happened, in nats: the NLL",
            percent=False,
            of_positive=True,
            per_row=lambda rows: rows.nll,
        ),
    )
}
