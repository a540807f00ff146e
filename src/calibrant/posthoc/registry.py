"""Every calibrator by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any, cast

from calibrant.errors import InputError, UnknownMethodError
from calibrant.posthoc.base import Calibrator, Uncalibrated
from calibrant.posthoc.confidence import (
    BayesianBinning,
    HistogramBinning,
    IsotonicRegression,
    ScalingBinning,
    SplineCalibration,
    VennAbers,
)
from calibrant.posthoc.ensemble import EnsembleTemperatureScaling
from calibrant.posthoc.features import (
    BinMeanShift,
    DensityAwareCalibration,
    FeatureClipping,
    GroupCalibration,
    ProximityDensityRatio,
)
from calibrant.posthoc.laplace import LaplaceTemperatureScaling
from calibrant.posthoc.linear import VectorScaling
from calibrant.posthoc.multiclass_isotonic import MulticlassIsotonic
from calibrant.posthoc.predicted_class import PredictedClassTemperature
from calibrant.posthoc.smart import SMART
from calibrant.posthoc.structured import StructuredMatrixScaling, StructuredVectorScaling
from calibrant.posthoc.temperature import TemperatureScaling
from calibrant.posthoc.top_rest import TopRestScaling

METHODS: dict[str, type[Calibrator]] = {
    calibrator.method: calibrator
    for calibrator in (
        Uncalibrated,
        TemperatureScaling,
        LaplaceTemperatureScaling,
        PredictedClassTemperature,
        EnsembleTemperatureScaling,
        VectorScaling,
        StructuredVectorScaling,
        StructuredMatrixScaling,
        IsotonicRegression,
        HistogramBinning,
        BayesianBinning,
        ScalingBinning,
        SplineCalibration,
        VennAbers,
        MulticlassIsotonic,
        SMART,
        TopRestScaling,
        GroupCalibration,
        ProximityDensityRatio,
        BinMeanShift,
        FeatureClipping,
        DensityAwareCalibration,
    )
}


def calibrator_class(method: str) -> type[Calibrator]:
    """Return the class that goes by `method`.

    Raises:
        UnknownMethodError: there is none; the message lists those that there are.
    """
    if method in METHODS:
        return METHODS[method]
    close = difflib.get_close_matches(method, METHODS, n=1)
    hint = f" did you mean '{close[0]}'?" if close else ""
    raise UnknownMethodError(
        f"no method is called '{method}';{hint} there are: {', '.join(METHODS)}"
    )


def make_calibrator(method: str, **arguments: Any) -> Calibrator:
    """Return an unfitted calibrator.

    Raises:
        UnknownMethodError: no such method.
        InputError: no such argument.
    """
    return calibrator_class(method)().set_params(**arguments)


def parse_arguments(method: str, settings: list[str]) -> dict[str, Any]:
    """Return constructor arguments from ``key=value`` texts, typed like the method's defaults.

    Raises:
        InputError: no such argument, or a value of another type.
    """
    defaults = calibrator_class(method)().get_params()
    arguments: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise InputError(f"'{setting}' is not of the form key=value")
        if key not in defaults:
            known = ", ".join(defaults) or "none"
            raise InputError(f"method '{method}' has no argument '{key}'; it has: {known}")
        wanted = cast(Callable[[str], Any], type(defaults[key]))
        try:
            arguments[key] = text if wanted is str else wanted(text)
        except ValueError:
            raise InputError(
                f"argument '{key}' of method '{method}' must be of type "
                f"{type(defaults[key]).__name__}, "
                f"not '{text}'"
            ) from None
    return arguments
