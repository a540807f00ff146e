"""Calibrators by name: those of the package, chains of them, and those that other packages plug in.

`auto`, which chooses among all of these, is none of them; `calibrant.posthoc.registry` adds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from calibrant.core.arguments import unknown
from calibrant.core.errors import UnknownMethodError
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.chain import chain_of
from calibrant.posthoc.confidence.binning import BayesianBinning, HistogramBinning, ScalingBinning
from calibrant.posthoc.confidence.isotonic import IsotonicRegression, MulticlassIsotonic
from calibrant.posthoc.confidence.spline import SplineCalibration
from calibrant.posthoc.confidence.top_rest import TopRestScaling
from calibrant.posthoc.confidence.venn_abers import VennAbers
from calibrant.posthoc.features.density_aware import DensityAwareCalibration
from calibrant.posthoc.features.feature_clipping import FeatureClipping
from calibrant.posthoc.features.group import GroupCalibration
from calibrant.posthoc.features.proximity import BinMeanShift, ProximityDensityRatio
from calibrant.posthoc.linear.class_temperatures import (
    ClassTemperatureScaling,
    GradientClassTemperatureScaling,
)
from calibrant.posthoc.linear.matrix import DirichletCalibration, MatrixScaling
from calibrant.posthoc.linear.vector import (
    StructuredMatrixScaling,
    StructuredVectorScaling,
    VectorScaling,
)
from calibrant.posthoc.log_odds import (
    AffineScaling,
    BetaCalibration,
    PlattScaling,
    QuadraticScaling,
)
from calibrant.posthoc.named_chains import ProbitTopRestScaling
from calibrant.posthoc.noise import ConsistencyCalibration, ProbitScaling
from calibrant.posthoc.plug_ins import plugged_in
from calibrant.posthoc.temperature.logit_clipping import LogitClipping
from calibrant.posthoc.temperature.mixtures import (
    EnsembleTemperatureScaling,
    LaplaceTemperatureScaling,
)
from calibrant.posthoc.temperature.parameterised import ParameterisedTemperature
from calibrant.posthoc.temperature.scaling import (
    PredictedClassTemperature,
    TemperatureScaling,
    Uncalibrated,
)
from calibrant.posthoc.temperature.smart.calibrator import SMART

# Steps of a chain at most.
MOST_STEPS = 6

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
        PlattScaling,
        AffineScaling,
        QuadraticScaling,
        BetaCalibration,
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
        chain_of(StructuredVectorScaling, TopRestScaling, name="svs-top-rest"),
    )
}


class Methods(Mapping[str, type[Calibrator]]):
    """Methods by name. Plug-ins are looked for once anything else is asked for.

    A chain such as ``svs+top-rest`` goes by its steps' names joined by ``+``; there is no end to
    chains, so only those with a name of their own are counted.

    Args:
        more: others than those of this module.
    """

    def __init__(self, more: Iterable[type[Calibrator]] = ()) -> None:
        self._more = {kind.method: kind for kind in more}

    def __getitem__(self, method: str) -> type[Calibrator]:
        for known in (BUILT_IN, self._more):
            if method in known:
                return known[method]
        steps = method.split("+")
        if 1 < len(steps) <= MOST_STEPS:
            return chain_of(*(self[step] for step in steps))
        return self._plugged_in()[method]

    def __iter__(self) -> Iterator[str]:
        return iter([*BUILT_IN, *self._more, *self._plugged_in()])

    def __len__(self) -> int:
        return len(BUILT_IN) + len(self._more) + len(self._plugged_in())

    def _plugged_in(self) -> Mapping[str, type[Calibrator]]:
        return plugged_in((*BUILT_IN, "auto"))

    def named(self, method: str) -> type[Calibrator]:
        """Return the class that goes by `method`.

        Raises:
            UnknownMethodError: there is none; the message lists those that there are.
        """
        for name in method.split("+"):
            if name not in self:
                raise unknown(self, name, "method")
        try:
            return self[method]
        except KeyError:
            raise UnknownMethodError(f"a chain has at most {MOST_STEPS} steps") from None


CANDIDATES = Methods()
"""What a chain can be made of, and what `auto` can choose among."""
