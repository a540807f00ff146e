"""Every calibrator by name: those of the package, and those that other packages plug in."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from calibrant.core.errors import InputError, UnknownMethodError
from calibrant.core.settings import split_settings
from calibrant.posthoc.auto import AutoCalibrator
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.chains.probit_top_rest import ProbitTopRestScaling
from calibrant.posthoc.chains.svs_top_rest import StructuredTopRestScaling
from calibrant.posthoc.confidence import (
    BayesianBinning,
    HistogramBinning,
    IsotonicRegression,
    ScalingBinning,
    SplineCalibration,
    VennAbers,
)
from calibrant.posthoc.confidence.multiclass_isotonic import MulticlassIsotonic
from calibrant.posthoc.confidence.top_rest import TopRestScaling
from calibrant.posthoc.features import (
    BinMeanShift,
    DensityAwareCalibration,
    FeatureClipping,
    GroupCalibration,
    ProximityDensityRatio,
)
from calibrant.posthoc.linear import (
    ClassTemperatureScaling,
    DirichletCalibration,
    GradientClassTemperatureScaling,
    MatrixScaling,
    StructuredMatrixScaling,
    StructuredVectorScaling,
    VectorScaling,
)
from calibrant.posthoc.noise.consistency import ConsistencyCalibration
from calibrant.posthoc.noise.probit import ProbitScaling
from calibrant.posthoc.plug_ins import plugged_in
from calibrant.posthoc.temperature.ensemble import EnsembleTemperatureScaling
from calibrant.posthoc.temperature.laplace import LaplaceTemperatureScaling
from calibrant.posthoc.temperature.logit_clipping import LogitClipping
from calibrant.posthoc.temperature.parameterised import ParameterisedTemperature
from calibrant.posthoc.temperature.predicted_class import PredictedClassTemperature
from calibrant.posthoc.temperature.single import TemperatureScaling
from calibrant.posthoc.temperature.smart import SMART
from calibrant.posthoc.temperature.uncalibrated import Uncalibrated

BUILT_IN: dict[str, type[Calibrator]] = {
    calibrator.method: calibrator
    for calibrator in (
        Uncalibrated,
        TemperatureScaling,
        LaplaceTemperatureScaling,
        PredictedClassTemperature,
        ClassTemperatureScaling,
        GradientClassTemperatureScaling,
        EnsembleTemperatureScaling,
        VectorScaling,
        StructuredVectorScaling,
        StructuredMatrixScaling,
        MatrixScaling,
        DirichletCalibration,
        IsotonicRegression,
        HistogramBinning,
        BayesianBinning,
        ScalingBinning,
        SplineCalibration,
        VennAbers,
        MulticlassIsotonic,
        SMART,
        ParameterisedTemperature,
        LogitClipping,
        ConsistencyCalibration,
        ProbitScaling,
        TopRestScaling,
        GroupCalibration,
        ProximityDensityRatio,
        BinMeanShift,
        FeatureClipping,
        DensityAwareCalibration,
        ProbitTopRestScaling,
        StructuredTopRestScaling,
        AutoCalibrator,
    )
}


class _Methods(Mapping[str, type[Calibrator]]):
    """The built-in methods and, once anything else is asked for, those of plug-ins."""

    def __getitem__(self, method: str) -> type[Calibrator]:
        return BUILT_IN[method] if method in BUILT_IN else self._plugged_in()[method]

    def __iter__(self) -> Iterator[str]:
        return iter([*BUILT_IN, *self._plugged_in()])

    def __len__(self) -> int:
        return len(BUILT_IN) + len(self._plugged_in())

    def _plugged_in(self) -> Mapping[str, type[Calibrator]]:
        return plugged_in(tuple(BUILT_IN))


METHODS: Mapping[str, type[Calibrator]] = _Methods()


def calibrator_class(method: str) -> type[Calibrator]:
    """Return the class that goes by `method`.

    Raises:
        UnknownMethodError: there is none; the message lists those that there are.
    """
    if method in METHODS:
        return METHODS[method]
    close = difflib.get_close_matches(method.lower().replace("_", "-"), METHODS, n=1)
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


EXPECTED_OF = {"bool": "true or false", "int": "a whole number", "float": "a number"}


def parse_arguments(method: str, settings: list[str]) -> dict[str, Any]:
    """Return constructor arguments from ``key=value`` texts, typed like the method's defaults.

    Raises:
        InputError: no such argument, or a value of another type.
    """
    defaults = calibrator_class(method)().get_params()
    arguments: dict[str, Any] = {}
    for key, text in split_settings(settings):
        if key not in defaults:
            known = ", ".join(defaults) or "none"
            raise InputError(f"method '{method}' has no argument '{key}'; it has: {known}")
        wanted = cast(Callable[[str], Any], type(defaults[key]))
        # bool("false") is True.
        convert = _as_bool if wanted is bool else wanted
        try:
            arguments[key] = convert(text)
        except ValueError:
            expected = EXPECTED_OF.get(wanted.__name__, f"of type {wanted.__name__}")
            raise InputError(
                f"argument '{key}' of method '{method}' must be {expected}, not '{text}'"
            ) from None
    return arguments


def _as_bool(text: str) -> bool:
    """Return what ``true`` and ``false`` say, in any case; anything else raises `ValueError`."""
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"
