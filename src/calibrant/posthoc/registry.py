"""Calibrators by name, with their descriptions: ours, chains, those of other packages.

A method of the package is one line here, its name and its place, as a plug-in is one line among its
package's entry points. Either is imported when it is first asked for.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, cast

from calibrant.core import plug_ins
from calibrant.core.arguments import parse_settings, unknown
from calibrant.core.docstrings import Argument, Docstring, as_json
from calibrant.core.errors import UnknownMethodError
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.chain import Chain, chain_of
from calibrant.posthoc.facts import Facts

GROUP = "calibrant.methods"
# Steps of a chain at most.
MOST_STEPS = 6

BUILT_IN = {
    "none": "temperature.scaling:Uncalibrated",
    "temperature": "temperature.scaling:TemperatureScaling",
    "temperature-laplace": "temperature.mixtures:LaplaceTemperatureScaling",
    "predicted-class": "temperature.scaling:PredictedClassTemperature",
    "cts": "linear.class_temperatures:ClassTemperatureScaling",
    "cts-gradient": "linear.class_temperatures:GradientClassTemperatureScaling",
    "ets": "temperature.mixtures:EnsembleTemperatureScaling",
    "vector": "linear.vector:VectorScaling",
    "svs": "linear.vector:StructuredVectorScaling",
    "sms": "linear.vector:StructuredMatrixScaling",
    "tva": "linear.top_versus_all:TopVersusAll",
    "mcct": "linear.by_rank:RankScaling",
    "ridge": "linear.matrix:RidgeMatrixScaling",
    "matrix": "linear.matrix:MatrixScaling",
    "dirichlet": "linear.matrix:DirichletCalibration",
    "platt": "log_odds:PlattScaling",
    "affine": "log_odds:AffineScaling",
    "quadratic": "log_odds:QuadraticScaling",
    "beta": "log_odds:BetaCalibration",
    "natural-spline": "natural_spline:NaturalSpline",
    "isotonic": "confidence.isotonic:IsotonicRegression",
    "histogram": "confidence.binning:HistogramBinning",
    "bbq": "confidence.binning:BayesianBinning",
    "scaling-binning": "confidence.binning:ScalingBinning",
    "spline": "confidence.spline:SplineCalibration",
    "venn-abers": "confidence.isotonic:VennAbers",
    "irm": "confidence.isotonic:MulticlassIsotonic",
    "smart": "temperature.smart.calibrator:SMART",
    "h-calibration": "h_calibration:HCalibration",
    "pts": "temperature.parameterised:ParameterisedTemperature",
    "logit-clipping": "temperature.logit_clipping:LogitClipping",
    "consistency": "noise:ConsistencyCalibration",
    "probit": "noise:ProbitScaling",
    "top-rest": "confidence.top_rest:TopRestScaling",
    "group": "features.group:GroupCalibration",
    "given-groups": "features.given_groups:GivenGroups",
    "procal-dr": "features.proximity:ProximityDensityRatio",
    "procal-bms": "features.proximity:BinMeanShift",
    "feature-clipping": "features.feature_clipping:FeatureClipping",
    "dac": "features.density_aware:DensityAwareCalibration",
    "probit-top-rest": "chain:ProbitTopRestScaling",
    "svs-top-rest": "chain:StructuredVectorTopRestScaling",
    "auto": "auto:AutoCalibrator",
}

# Methods as their authors fit them where the package's own fit differs: by name, for whoever wants
# a paper's numbers, and not among the methods that `compare` takes when it is asked for all.
AS_PUBLISHED = {"smart:published": "temperature.smart.published:PublishedSMART"}


class Methods(Mapping[str, type[Calibrator]]):
    """Methods by name. Plug-ins are looked for once anything else is asked for.

    A chain such as ``svs+top-rest`` goes by its steps' names joined by ``+``; there is no end to
    chains, so only those with a name of their own are counted. Those of `AS_PUBLISHED` are found
    and not counted.
    """

    def __getitem__(self, method: str) -> type[Calibrator]:
        place = BUILT_IN.get(method) or AS_PUBLISHED.get(method)
        if place is not None:
            module, _, name = place.partition(":")
            found = getattr(import_module(f"calibrant.posthoc.{module}"), name)
            return cast(type[Calibrator], found)
        steps = method.split("+")
        if 1 < len(steps) <= MOST_STEPS:
            return chain_of(*(self[step] for step in steps))
        return self._plugged_in()[method]

    def __iter__(self) -> Iterator[str]:
        return iter([*BUILT_IN, *self._plugged_in()])

    def __len__(self) -> int:
        return len(BUILT_IN) + len(self._plugged_in())

    def _plugged_in(self) -> Mapping[str, type[Calibrator]]:
        return plug_ins.plugged_in(GROUP, "method", _checked, tuple(BUILT_IN))

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


METHODS = Methods()


def _checked(name: str, kind: Any) -> type[Calibrator]:
    """Return the calibrator that an entry point names, or raise for the reason why it is none."""
    if not (inspect.isclass(kind) and issubclass(kind, Calibrator)):
        raise TypeError("it is not a class derived from calibrant.Calibrator")
    if inspect.isabstract(kind):
        missing = ", ".join(sorted(cast(Any, kind).__abstractmethods__))
        raise TypeError(f"{kind.__name__} lacks {missing}")
    for attribute in ("method", "keeps_prediction"):
        if not hasattr(kind, attribute):
            raise TypeError(f"{kind.__name__} has no class attribute '{attribute}'")
    if kind.method != name:
        raise ValueError(f"its class calls itself '{kind.method}'; the two names must be the same")
    kind()  # its arguments must have defaults
    return kind


def make_calibrator(method: str, **arguments: Any) -> Calibrator:
    """Return an unfitted calibrator.

    Raises:
        UnknownMethodError: no such method.
        InputError: no such argument.

    Examples:
        >>> import calibrant as cb
        >>> cb.make_calibrator("smart", n_bins=20).n_bins
        20
        >>> cb.make_calibrator("smarty")
        Traceback (most recent call last):
            ...
        calibrant.core.errors.UnknownMethodError: no method is called 'smarty'; did you mean
        'smart'? there are: ...
    """
    return METHODS.named(method)().set_params(**arguments)


def parse_arguments(method: str, settings: list[str]) -> dict[str, Any]:
    """Return constructor arguments from ``key=value`` texts, typed like the method's defaults.

    Raises:
        InputError: no such argument, or a value of another type.
    """
    return parse_settings(settings, METHODS.named(method)().get_params(), f"method '{method}'")


@dataclass(frozen=True)
class Described:
    """What there is to know of one method.

    Attributes:
        method: its name.
        formula: what it computes, in one line.
        text: the rest of its description, paragraphs.
        arguments: name to default and meaning.
        keeps: whether it keeps every predicted class with its default arguments.
        needs: what it needs besides logits.
        facts: title, cost and failures; None for a class that doesn't say.
        sources: papers, a line each.
    """

    method: str
    formula: str
    text: tuple[str, ...]
    arguments: dict[str, Argument]
    keeps: bool
    needs: tuple[str, ...]
    facts: Facts | None
    sources: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON takes it."""
        facts = self.facts._asdict() if self.facts else dict.fromkeys(Facts._fields)
        return {
            "name": self.method,
            "formula": self.formula,
            **facts,
            "keeps_prediction": self.keeps,
            "needs": list(self.needs),
            "arguments": as_json(self.arguments),
            "sources": list(self.sources),
        }


def described(method: str) -> Described:
    """Return what there is to know of a method, by name; chains and plug-ins too.

    Raises:
        UnknownMethodError: no such method.

    Examples:
        >>> from calibrant.posthoc.registry import described
        >>> described("temperature").formula
        'One temperature for all rows: softmax(z / T), T by maximum likelihood.'
        >>> described("histogram").arguments["n_bins"][0]
        15
    """
    kind: type[Calibrator] = METHODS.named(method)
    text = Docstring.of(kind)
    defaults = kind().get_params()
    meanings = {key: _meaning(key, text) for key in defaults}
    return Described(
        method,
        formula_of(kind),
        text.paragraphs,
        {name: Argument(default, meanings[name]) for name, default in defaults.items()},
        kind.keeps_prediction,
        tuple(kind.needs),
        kind.facts,
        _sources(kind),
    )


def formula_of(kind: type[Calibrator]) -> str:
    """Return the first sentence; of a chain without a docstring of its own, those of its steps."""
    if not issubclass(kind, Chain) or kind.__doc__ != Chain.__doc__:
        return Docstring.of(kind).summary
    steps = ", then ".join(step.method for step in kind.kinds)
    return f"{steps}: {' Then: '.join(formula_of(step) for step in kind.kinds)}"


def title_of(kind: type[Calibrator]) -> str:
    """Return what the name of a method stands for; of a class that doesn't say, its own name."""
    if kind.facts is not None:
        return kind.facts.title
    if issubclass(kind, Chain) and kind.kinds:
        return ", then ".join(map(title_of, kind.kinds))
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z][a-z0-9]*|[a-z0-9]+", kind.__name__)
    return " ".join(word if len(word) > 1 and word.isupper() else word.lower() for word in words)


def _sources(kind: type[Calibrator]) -> tuple[str, ...]:
    """Return the sources of a class; of a chain without its own those of its steps."""
    own = Docstring.of(kind).sentences("References")
    if not own and issubclass(kind, Chain):
        own = [source for step in kind.kinds for source in _sources(step)]
    return tuple(dict.fromkeys(own))


def _meaning(argument: str, text: Docstring) -> str:
    """Return what an argument is; one of a chain's step stands in that step's docstring."""
    step, separator, own = argument.partition("__")
    if separator:
        kind = step.rstrip("0123456789").replace("_", "-")
        text, argument = Docstring.of(METHODS.named(kind)), own
    return text.items("Args").get(argument, "")


def all_described() -> list[Described]:
    """Return what there is to know of every method that has a name of its own."""
    return [described(name) for name in METHODS]
