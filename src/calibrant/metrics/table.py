"""Every metric there is, in the three shapes that there are (`calibrant.metrics.metric_types`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from calibrant.core.arrays import FloatArray
from calibrant.metrics.binned import adaece_of_curves, ece_of_curves
from calibrant.metrics.bins import DEFAULT_BINS, BinSums
from calibrant.metrics.canonical import measure_skce
from calibrant.metrics.classwise import MOST_CLASSES_SUMMED, ClasswiseSums, measure_classwise
from calibrant.metrics.cox import (
    intercept_of_curve,
    intercepts_of_curves,
    slope_of_curve,
    slopes_of_curves,
)
from calibrant.metrics.cumulative import ks_of_curves
from calibrant.metrics.debiased import debiased_mean_square_gap
from calibrant.metrics.decomposition import (
    corp_miscalibrations_of_curves,
    corp_refinements_of_curves,
)
from calibrant.metrics.density import kde_of_curve, kde_of_curves
from calibrant.metrics.gaps import (
    average_gap,
    largest_gap,
    mean_square_gap,
    over_gap,
    under_gap,
)
from calibrant.metrics.kernel import smece_of_curve, smece_of_curves
from calibrant.metrics.metric_types import CurveMetric, MeanMetric, Metric, RowsMetric
from calibrant.metrics.mmce import mmce_of_curves
from calibrant.metrics.refit import RefitSums, measure_calibration, measure_refinement
from calibrant.metrics.selective import aurc_of_curves, excess_aurc_of_curves
from calibrant.metrics.smooth import smce_of_curve, smce_of_curves
from calibrant.metrics.sweep import sweep_of_curves
from calibrant.metrics.top_label import ResidualCurves


def _binned(reduce: Callable[[BinSums], FloatArray]) -> Callable[[ResidualCurves], FloatArray]:
    return lambda curves: reduce(BinSums.of_curves(curves, DEFAULT_BINS))


def _debiased_rms(sums: BinSums) -> FloatArray:
    return np.sqrt(np.maximum(debiased_mean_square_gap(sums), 0.0))


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        CurveMetric(
            name="ece",
            title="ECE",
            definition="top label, 15 equal-width bins (lo, hi], L1",
            omnibus=True,
            sums_gaps=True,
            of_curves=ece_of_curves,
            at_breakpoints=True,
        ),
        CurveMetric(
            name="adaece",
            title="AdaECE",
            definition="top label, 15 equal-mass bins by rank, L1",
            omnibus=True,
            sums_gaps=True,
            of_curves=adaece_of_curves,
            at_breakpoints=True,
            grid="logit",
        ),
        CurveMetric(
            name="smce",
            title="smCE",
            definition="top label, exact maximum over 1-Lipschitz witnesses",
            omnibus=True,
            of_curves=smce_of_curves,
            at_breakpoints=True,
            exact=smce_of_curve,
        ),
        CurveMetric(
            name="smece",
            title="smECE",
            definition="top label, reflected Gaussian kernel at its fixed-point bandwidth",
            omnibus=True,
            of_curves=smece_of_curves,
            at_breakpoints=True,
            exact=smece_of_curve,
        ),
        MeanMetric(
            name="nll",
            title="NLL",
            definition="mean of -log p_y in nats",
            percent=False,
            needs_classes=True,
            per_row=lambda rows: rows.nll,
        ),
        MeanMetric(
            name="brier",
            title="Brier",
            definition="mean of sum_k (p_k - onehot_k)^2, in [0, 2]",
            percent=False,
            needs_classes=True,
            per_row=lambda rows: rows.brier,
        ),
        MeanMetric(
            name="accuracy",
            title="accuracy",
            definition="share of rows whose predicted label is the true one",
            lower_is_better=False,
            per_row=lambda rows: rows.correct.astype(float),
        ),
        CurveMetric(
            name="mce",
            title="MCE",
            definition="top label, largest gap of 15 equal-width bins, however few rows it holds",
            of_curves=_binned(largest_gap),
        ),
        CurveMetric(
            name="average_ce",
            title="avg. CE",
            definition="top label, plain mean over non-empty bins of 15 equal-width ones",
            sums_gaps=True,
            of_curves=_binned(average_gap),
        ),
        CurveMetric(
            name="rmsce",
            title="RMSCE",
            definition="top label, root mean square gap of 15 equal-width bins (lo, hi]",
            sums_gaps=True,
            of_curves=_binned(lambda sums: np.sqrt(mean_square_gap(sums))),
        ),
        CurveMetric(
            name="debiased_rmsce",
            weighs="counts",
            title="debiased RMSCE",
            definition="RMSCE less the variance of the bins' accuracies; an RMS, not an ECE",
            of_curves=_binned(_debiased_rms),
        ),
        CurveMetric(
            name="sweep",
            title="ECE-sweep",
            definition="top label, as many equal-mass bins as keep accuracies ascending, L1",
            sums_gaps=True,
            of_curves=sweep_of_curves,
            grid="logit",
        ),
        CurveMetric(
            name="overconfidence",
            title="ECE, over",
            definition="the part of the ECE from bins whose confidence exceeds their accuracy",
            of_curves=_binned(over_gap),
        ),
        CurveMetric(
            name="underconfidence",
            title="ECE, under",
            definition="the part of the ECE from bins whose accuracy exceeds their confidence",
            of_curves=_binned(under_gap),
        ),
        CurveMetric(
            name="ks",
            title="KS error",
            definition="top label, largest cumulative residual over sorted confidences",
            omnibus=True,
            of_curves=ks_of_curves,
            grid="logit",
        ),
        CurveMetric(
            name="kde_ece",
            title="KDE-ECE",
            definition="top label, L1, reflected triweight kernel, bandwidth by rule",
            of_curves=kde_of_curves,
            exact=kde_of_curve,
        ),
        CurveMetric(
            name="mmce",
            title="MMCE",
            definition="top label, root of the V-statistic, Laplacian kernel of width 0.4",
            of_curves=mmce_of_curves,
        ),
        CurveMetric(
            name="slope",
            title="slope",
            definition="regression of correctness on logit confidence; 1 is ideal",
            percent=False,
            ideal=1.0,
            of_curves=slopes_of_curves,
            exact=slope_of_curve,
            has_floor=False,
            grid="logit",
        ),
        CurveMetric(
            name="intercept",
            title="intercept",
            definition="of the regression that gives the slope; 0 is ideal",
            percent=False,
            ideal=0.0,
            of_curves=intercepts_of_curves,
            exact=intercept_of_curve,
            has_floor=False,
            grid="logit",
        ),
        CurveMetric(
            name="brier_calibration",
            title="Brier, calibration",
            definition="what isotonic recalibration takes off the top-label score (c - a)^2",
            percent=False,
            of_curves=corp_miscalibrations_of_curves,
            grid="logit",
        ),
        CurveMetric(
            name="brier_refinement",
            title="Brier, refinement",
            definition="top-label score (c - a)^2 after isotonic recalibration",
            percent=False,
            of_curves=corp_refinements_of_curves,
            has_floor=False,
            grid="logit",
        ),
        CurveMetric(
            name="aurc",
            title="AURC",
            definition="mean over k of the error rate of the k most confident rows",
            of_curves=aurc_of_curves,
            has_floor=False,
            grid="logit",
        ),
        CurveMetric(
            name="eaurc",
            title="E-AURC",
            definition="AURC less that of the ideal ranking with as many errors, exact",
            of_curves=excess_aurc_of_curves,
            has_floor=False,
            grid="logit",
        ),
        RowsMetric(
            name="classwise_ece",
            title="classwise ECE",
            definition="mean over K classes, 15 equal-width bins (lo, hi] of p_k over all rows, L1",
            needs_classes=True,
            measure=measure_classwise,
            sums=ClasswiseSums,
            most_classes=MOST_CLASSES_SUMMED,
        ),
        RowsMetric(
            name="classwise_adaece",
            title="classwise AdaECE",
            definition="mean over K classes, 15 equal-mass bins of p_k, L1 (Nixon's ACE)",
            needs_classes=True,
            measure=partial(measure_classwise, strategy="quantile"),
            not_summed="it sorts the rows by the probability of each class, which sums can't "
            "carry; measure a sample as one file",
        ),
        RowsMetric(
            name="skce",
            weighs="none",
            takes_clusters=False,
            fewest_rows=2,
            title="SKCE",
            definition="unbiased squared kernel error of whole rows, exp(-|p - q| / median)",
            percent=False,
            needs_classes=True,
            measure=measure_skce,
            not_summed="it compares pairs of rows, which sums can't carry; measure a sample as "
            "one file",
        ),
        RowsMetric(
            name="nll_calibration",
            title="NLL, calibration",
            definition="what the best temperature of these rows takes off the NLL, in nats",
            percent=False,
            needs_classes=True,
            measure=measure_calibration,
            sums=RefitSums,
        ),
        RowsMetric(
            name="nll_refinement",
            title="NLL, refinement",
            definition="NLL at the best temperature of these rows, in nats",
            percent=False,
            needs_classes=True,
            measure=measure_refinement,
            sums=RefitSums,
        ),
    )
}
