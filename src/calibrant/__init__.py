"""Calibrant makes the confidence of a classifier honest: measure, recalibrate, compare, deploy.

    import calibrant as cb

    val, test = cb.read_predictions("val.npz"), cb.read_predictions("test.npz")
    smart = cb.SMART().fit(val.logits, val.labels)
    probs = smart.predict_proba(test.logits)
    print(cb.evaluate(probs, test.labels))

Every name below is imported when it is first used, so ``import calibrant`` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from calibrant._version import __version__

if TYPE_CHECKING:
    from calibrant.comparison import Comparison, compare
    from calibrant.errors import (
        CalibrantError,
        CalibrationWarning,
        InputError,
        NotFittedError,
        PredictionsError,
    )
    from calibrant.evaluation import Evaluation, MetricResult, evaluate
    from calibrant.files import read_predictions, write_predictions
    from calibrant.metrics.binned import (
        BinSums,
        adaptive_calibration_error,
        expected_calibration_error,
    )
    from calibrant.metrics.kernel import kernel_calibration_error
    from calibrant.metrics.proper import accuracy, brier_score, negative_log_likelihood
    from calibrant.metrics.smooth import smooth_calibration_error
    from calibrant.persistence import load
    from calibrant.posthoc.base import Calibrator, Uncalibrated
    from calibrant.posthoc.confidence import HistogramBinning, IsotonicRegression
    from calibrant.posthoc.ensemble import EnsembleTemperatureScaling
    from calibrant.posthoc.linear import VectorScaling
    from calibrant.posthoc.registry import make_calibrator
    from calibrant.posthoc.smart import SMART
    from calibrant.posthoc.temperature import TemperatureScaling
    from calibrant.predictions import Predictions
    from calibrant.rows import RowSummary, softmax, summarize
    from calibrant.sample import load_sample

_HOMES = {
    "comparison": ("Comparison", "compare"),
    "errors": (
        "CalibrantError",
        "CalibrationWarning",
        "InputError",
        "NotFittedError",
        "PredictionsError",
    ),
    "evaluation": ("Evaluation", "MetricResult", "evaluate"),
    "files": ("read_predictions", "write_predictions"),
    "metrics.binned": ("BinSums", "adaptive_calibration_error", "expected_calibration_error"),
    "metrics.kernel": ("kernel_calibration_error",),
    "metrics.proper": ("accuracy", "brier_score", "negative_log_likelihood"),
    "metrics.smooth": ("smooth_calibration_error",),
    "persistence": ("load",),
    "posthoc.base": ("Calibrator", "Uncalibrated"),
    "posthoc.confidence": ("HistogramBinning", "IsotonicRegression"),
    "posthoc.ensemble": ("EnsembleTemperatureScaling",),
    "posthoc.linear": ("VectorScaling",),
    "posthoc.registry": ("make_calibrator",),
    "posthoc.smart": ("SMART",),
    "posthoc.temperature": ("TemperatureScaling",),
    "predictions": ("Predictions",),
    "rows": ("RowSummary", "softmax", "summarize"),
    "sample": ("load_sample",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "SMART",
    "BinSums",
    "CalibrantError",
    "CalibrationWarning",
    "Calibrator",
    "Comparison",
    "EnsembleTemperatureScaling",
    "Evaluation",
    "HistogramBinning",
    "InputError",
    "IsotonicRegression",
    "MetricResult",
    "NotFittedError",
    "Predictions",
    "PredictionsError",
    "RowSummary",
    "TemperatureScaling",
    "Uncalibrated",
    "VectorScaling",
    "__version__",
    "accuracy",
    "adaptive_calibration_error",
    "brier_score",
    "compare",
    "evaluate",
    "expected_calibration_error",
    "kernel_calibration_error",
    "load",
    "load_sample",
    "make_calibrator",
    "negative_log_likelihood",
    "read_predictions",
    "smooth_calibration_error",
    "softmax",
    "summarize",
    "write_predictions",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its module (PEP 562)."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'calibrant' has no attribute '{name}'")
    value = getattr(import_module(f"calibrant.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
