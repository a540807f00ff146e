"""Calibrant makes the confidence of a classifier honest: measure, recalibrate, compare, deploy.

    import calibrant as cb

    val, test = cb.read_predictions("val.npz"), cb.read_predictions("test.npz")
    smart = cb.SMART().fit(val.logits, val.labels)
    probs = smart.predict_proba(test.logits)
    print(cb.evaluate(probs, test.labels))

Every name below is imported when it is first used, so ``import calibrant`` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from calibrant._version import __version__
from calibrant.lazy import lazy_names

if TYPE_CHECKING:
    from calibrant import synthetic
    from calibrant.compared import Comparison
    from calibrant.comparison import compare
    from calibrant.errors import (
        CalibrantError,
        CalibrationWarning,
        InputError,
        NotApplicableError,
        NotFittedError,
        PredictionsError,
    )
    from calibrant.evaluation import Evaluation, MetricResult, evaluate
    from calibrant.files import read_predictions, write_predictions
    from calibrant.groups import GroupedEvaluation, evaluate_by
    from calibrant.head import Head
    from calibrant.metrics.binned import (
        BinSums,
        adaptive_calibration_error,
        expected_calibration_error,
    )
    from calibrant.metrics.canonical import (
        canonical_calibration_error,
        squared_kernel_calibration_error,
    )
    from calibrant.metrics.classwise import (
        classwise_adaptive_calibration_error,
        classwise_bin_sums,
        classwise_error,
        classwise_expected_calibration_error,
    )
    from calibrant.metrics.cox import calibration_in_the_large, calibration_slope_intercept
    from calibrant.metrics.cumulative import ks_calibration_error
    from calibrant.metrics.decomposition import (
        ScoreDecomposition,
        corp_decomposition,
        murphy_decomposition,
    )
    from calibrant.metrics.density import kde_calibration_error
    from calibrant.metrics.detection import aupr, auroc, fpr_at_tpr, ood_scores
    from calibrant.metrics.gaps import (
        average_calibration_error,
        debiased_expected_calibration_error,
        debiased_rms_calibration_error,
        maximum_calibration_error,
        overconfidence_error,
        rms_calibration_error,
        underconfidence_error,
    )
    from calibrant.metrics.kernel import kernel_calibration_error
    from calibrant.metrics.mmce import maximum_mean_calibration_error
    from calibrant.metrics.proper import accuracy, brier_score, negative_log_likelihood
    from calibrant.metrics.refit import RefinementSplit, refinement_split
    from calibrant.metrics.registry import CORE_METRICS, METRICS
    from calibrant.metrics.selective import (
        RiskCoverage,
        area_under_risk_coverage,
        coverage_at_risk,
        excess_area_under_risk_coverage,
        risk_at_coverage,
        risk_coverage,
    )
    from calibrant.metrics.smooth import smooth_calibration_error
    from calibrant.metrics.streaming import MetricSums
    from calibrant.metrics.sweep import sweep_calibration_error
    from calibrant.persistence import load
    from calibrant.posthoc.auto import AutoCalibrator
    from calibrant.posthoc.base import Calibrator, FitReport
    from calibrant.posthoc.confidence import (
        BayesianBinning,
        HistogramBinning,
        IsotonicRegression,
        ScalingBinning,
        SplineCalibration,
        VennAbers,
    )
    from calibrant.posthoc.consistency import ConsistencyCalibration
    from calibrant.posthoc.ensemble import EnsembleTemperatureScaling
    from calibrant.posthoc.features import (
        BinMeanShift,
        DensityAwareCalibration,
        FeatureClipping,
        GroupCalibration,
        ProximityDensityRatio,
    )
    from calibrant.posthoc.laplace import LaplaceTemperatureScaling
    from calibrant.posthoc.linear import (
        ClassTemperatureScaling,
        DirichletCalibration,
        GradientClassTemperatureScaling,
        MatrixScaling,
        StructuredMatrixScaling,
        StructuredVectorScaling,
        VectorScaling,
    )
    from calibrant.posthoc.logit_clipping import LogitClipping
    from calibrant.posthoc.multiclass_isotonic import MulticlassIsotonic
    from calibrant.posthoc.parameterised import ParameterisedTemperature
    from calibrant.posthoc.predicted_class import PredictedClassTemperature
    from calibrant.posthoc.probit import ProbitScaling
    from calibrant.posthoc.probit_top_rest import ProbitTopRestScaling
    from calibrant.posthoc.registry import make_calibrator
    from calibrant.posthoc.smart import SMART
    from calibrant.posthoc.svs_top_rest import StructuredTopRestScaling
    from calibrant.posthoc.temperature import TemperatureScaling
    from calibrant.posthoc.top_rest import TopRestScaling
    from calibrant.posthoc.uncalibrated import Uncalibrated
    from calibrant.power import SampleSize, rows_needed
    from calibrant.predictions import Predictions
    from calibrant.rows import RowSummary, softmax, summarize
    from calibrant.sample import load_sample

_HOMES = {
    "compared": ("Comparison",),
    "comparison": ("compare",),
    "errors": (
        "CalibrantError",
        "CalibrationWarning",
        "InputError",
        "NotApplicableError",
        "NotFittedError",
        "PredictionsError",
    ),
    "evaluation": ("Evaluation", "MetricResult", "evaluate"),
    "files": ("read_predictions", "write_predictions"),
    "groups": ("GroupedEvaluation", "evaluate_by"),
    "head": ("Head",),
    "metrics.binned": ("BinSums", "adaptive_calibration_error", "expected_calibration_error"),
    "metrics.canonical": ("canonical_calibration_error", "squared_kernel_calibration_error"),
    "metrics.classwise": (
        "classwise_adaptive_calibration_error",
        "classwise_bin_sums",
        "classwise_error",
        "classwise_expected_calibration_error",
    ),
    "metrics.cox": ("calibration_in_the_large", "calibration_slope_intercept"),
    "metrics.cumulative": ("ks_calibration_error",),
    "metrics.decomposition": ("ScoreDecomposition", "corp_decomposition", "murphy_decomposition"),
    "metrics.density": ("kde_calibration_error",),
    "metrics.detection": ("aupr", "auroc", "fpr_at_tpr", "ood_scores"),
    "metrics.gaps": (
        "average_calibration_error",
        "debiased_expected_calibration_error",
        "debiased_rms_calibration_error",
        "maximum_calibration_error",
        "overconfidence_error",
        "rms_calibration_error",
        "underconfidence_error",
    ),
    "metrics.kernel": ("kernel_calibration_error",),
    "metrics.mmce": ("maximum_mean_calibration_error",),
    "metrics.proper": ("accuracy", "brier_score", "negative_log_likelihood"),
    "metrics.refit": ("RefinementSplit", "refinement_split"),
    "metrics.registry": ("CORE_METRICS", "METRICS"),
    "metrics.selective": (
        "RiskCoverage",
        "area_under_risk_coverage",
        "coverage_at_risk",
        "excess_area_under_risk_coverage",
        "risk_at_coverage",
        "risk_coverage",
    ),
    "metrics.smooth": ("smooth_calibration_error",),
    "metrics.streaming": ("MetricSums",),
    "metrics.sweep": ("sweep_calibration_error",),
    "persistence": ("load",),
    "posthoc.auto": ("AutoCalibrator",),
    "posthoc.base": ("Calibrator", "FitReport"),
    "posthoc.confidence": (
        "BayesianBinning",
        "HistogramBinning",
        "IsotonicRegression",
        "ScalingBinning",
        "SplineCalibration",
        "VennAbers",
    ),
    "posthoc.consistency": ("ConsistencyCalibration",),
    "posthoc.ensemble": ("EnsembleTemperatureScaling",),
    "posthoc.features": (
        "BinMeanShift",
        "DensityAwareCalibration",
        "FeatureClipping",
        "GroupCalibration",
        "ProximityDensityRatio",
    ),
    "posthoc.linear": (
        "ClassTemperatureScaling",
        "DirichletCalibration",
        "GradientClassTemperatureScaling",
        "MatrixScaling",
        "StructuredMatrixScaling",
        "StructuredVectorScaling",
        "VectorScaling",
    ),
    "posthoc.laplace": ("LaplaceTemperatureScaling",),
    "posthoc.logit_clipping": ("LogitClipping",),
    "posthoc.multiclass_isotonic": ("MulticlassIsotonic",),
    "posthoc.parameterised": ("ParameterisedTemperature",),
    "posthoc.predicted_class": ("PredictedClassTemperature",),
    "posthoc.registry": ("make_calibrator",),
    "posthoc.smart": ("SMART",),
    "posthoc.probit": ("ProbitScaling",),
    "posthoc.probit_top_rest": ("ProbitTopRestScaling",),
    "posthoc.svs_top_rest": ("StructuredTopRestScaling",),
    "posthoc.temperature": ("TemperatureScaling",),
    "posthoc.top_rest": ("TopRestScaling",),
    "posthoc.uncalibrated": ("Uncalibrated",),
    "power": ("SampleSize", "rows_needed"),
    "predictions": ("Predictions",),
    "rows": ("RowSummary", "softmax", "summarize"),
    "sample": ("load_sample",),
}
# Modules that are public as a whole.
_MODULES = ("synthetic", "training")

__all__ = [
    "CORE_METRICS",
    "METRICS",
    "SMART",
    "AutoCalibrator",
    "BayesianBinning",
    "BinMeanShift",
    "BinSums",
    "CalibrantError",
    "CalibrationWarning",
    "Calibrator",
    "ClassTemperatureScaling",
    "Comparison",
    "ConsistencyCalibration",
    "DensityAwareCalibration",
    "DirichletCalibration",
    "EnsembleTemperatureScaling",
    "Evaluation",
    "FeatureClipping",
    "FitReport",
    "GradientClassTemperatureScaling",
    "GroupCalibration",
    "GroupedEvaluation",
    "Head",
    "HistogramBinning",
    "InputError",
    "IsotonicRegression",
    "LaplaceTemperatureScaling",
    "LogitClipping",
    "MatrixScaling",
    "MetricResult",
    "MetricSums",
    "MulticlassIsotonic",
    "NotApplicableError",
    "NotFittedError",
    "ParameterisedTemperature",
    "PredictedClassTemperature",
    "Predictions",
    "PredictionsError",
    "ProbitScaling",
    "ProbitTopRestScaling",
    "ProximityDensityRatio",
    "RefinementSplit",
    "RiskCoverage",
    "RowSummary",
    "SampleSize",
    "ScalingBinning",
    "ScoreDecomposition",
    "SplineCalibration",
    "StructuredMatrixScaling",
    "StructuredTopRestScaling",
    "StructuredVectorScaling",
    "TemperatureScaling",
    "TopRestScaling",
    "Uncalibrated",
    "VectorScaling",
    "VennAbers",
    "__version__",
    "accuracy",
    "adaptive_calibration_error",
    "area_under_risk_coverage",
    "aupr",
    "auroc",
    "average_calibration_error",
    "brier_score",
    "calibration_in_the_large",
    "calibration_slope_intercept",
    "canonical_calibration_error",
    "classwise_adaptive_calibration_error",
    "classwise_bin_sums",
    "classwise_error",
    "classwise_expected_calibration_error",
    "compare",
    "corp_decomposition",
    "coverage_at_risk",
    "debiased_expected_calibration_error",
    "debiased_rms_calibration_error",
    "evaluate",
    "evaluate_by",
    "excess_area_under_risk_coverage",
    "expected_calibration_error",
    "fpr_at_tpr",
    "kde_calibration_error",
    "kernel_calibration_error",
    "ks_calibration_error",
    "load",
    "load_sample",
    "make_calibrator",
    "maximum_calibration_error",
    "maximum_mean_calibration_error",
    "murphy_decomposition",
    "negative_log_likelihood",
    "ood_scores",
    "overconfidence_error",
    "read_predictions",
    "refinement_split",
    "risk_at_coverage",
    "risk_coverage",
    "rms_calibration_error",
    "rows_needed",
    "smooth_calibration_error",
    "softmax",
    "squared_kernel_calibration_error",
    "summarize",
    "sweep_calibration_error",
    "synthetic",
    "underconfidence_error",
    "write_predictions",
]


__getattr__ = lazy_names("calibrant", _HOMES, _MODULES)


def __dir__() -> list[str]:
    return sorted(__all__)
