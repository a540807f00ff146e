"""Every metric by name: those of this package, those of plug-ins, and those registered here.

A metric is one object beside the function that computes it (`calibrant.metrics.metric_types`). What
it says of itself is all that tables, the catalogue, help and pages know of it; its type says what
it needs of a row, so that it has a value, an interval and a floor of rows in memory and of many
files, with weights and in clusters.
"""

from __future__ import annotations

import copyreg
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from calibrant.core.arguments import unknown
from calibrant.core.docstrings import Argument, Docstring, as_json
from calibrant.core.plug_ins import plugged_in
from calibrant.metrics import (
    binned,
    canonical,
    classwise,
    cox,
    debiased,
    decomposition,
    gaps,
    proper,
    refit,
    selective,
    smooth,
)
from calibrant.metrics.metric_types import CurveMetric, MeanMetric, Metric, RowsMetric

__all__ = [
    "CORE_METRICS",
    "METRICS",
    "POSITIVE_METRICS",
    "CurveMetric",
    "MeanMetric",
    "Metric",
    "RowsMetric",
    "all_described",
    "all_metrics",
    "described",
    "metrics_named",
    "register_metric",
]

# In the order of tables.
BUILT_IN = (
    binned.ECE,
    binned.ADAECE,
    smooth.SMCE,
    smooth.SMECE,
    proper.NLL,
    proper.BRIER,
    proper.ACCURACY,
    proper.TOP_NLL,
    gaps.MCE,
    gaps.AVERAGE_CE,
    gaps.RMSCE,
    debiased.DEBIASED_RMSCE,
    debiased.SWEEP,
    gaps.OVERCONFIDENCE,
    gaps.UNDERCONFIDENCE,
    gaps.KS,
    smooth.KDE_ECE,
    smooth.MMCE,
    cox.SLOPE,
    cox.INTERCEPT,
    decomposition.BRIER_CALIBRATION,
    decomposition.BRIER_REFINEMENT,
    selective.AURC,
    selective.EAURC,
    classwise.CLASSWISE_ECE,
    classwise.CLASSWISE_ADAECE,
    canonical.SKCE,
    refit.NLL_CALIBRATION,
    refit.NLL_REFINEMENT,
)
# Each is the top-label metric of the same name with the probability of the positive class in place
# of the confidence, and "is of the positive class" in place of "is right". The two differ: of a
# model that says .4 of one half of the rows and .6 of the other, when each half is positive as
# often as not, the confidence of .6 is too high throughout, and the mean probability is right.
OF_POSITIVE = (
    binned.ECE_POSITIVE,
    binned.ADAECE_POSITIVE,
    smooth.SMCE_POSITIVE,
    cox.SLOPE_POSITIVE,
    cox.INTERCEPT_POSITIVE,
    cox.LARGE_POSITIVE,
    proper.BRIER_POSITIVE,
    proper.LOG_LOSS,
)
METRICS: dict[str, Metric] = {metric.name: metric for metric in BUILT_IN}
POSITIVE_METRICS: dict[str, Metric] = {metric.name: metric for metric in OF_POSITIVE}
CORE_METRICS = ("ece", "adaece", "smce", "smece", "nll", "brier", "accuracy")
"""What is measured unless something else is asked for."""

BINARY_METRICS = (
    "ece",
    "accuracy",
    "ece_positive",
    "slope_positive",
    "large_positive",
    "brier_positive",
    "log_loss",
)
"""Of those of binary predictions the ones that are printed unless others are asked for."""

RANK_METRICS = ("accuracy", "aurc", "eaurc")
"""The same of scores that are no probabilities."""

_registered: dict[str, Metric] = {}


def register_metric(metric: Metric) -> None:
    """Let a metric be asked for by its name, in this process.

    Workers on many files are processes of their own: there it is known by an entry point of the
    group ``calibrant.metrics``, or where the module that registers it is the script itself.

    Raises:
        ValueError: the name is taken.

    Examples:
        >>> import calibrant as cb
        >>> from calibrant.metrics.metric_types import MeanMetric
        >>> from calibrant.metrics.registry import register_metric
        >>> doubt = MeanMetric(
        ...     name="doubt",
        ...     title="doubt",
        ...     definition="mean of 1 - c",
        ...     per_row=lambda rows: 1 - rows.confidence,
        ... )
        >>> register_metric(doubt)
        >>> found = cb.evaluate(cb.load_sample("test"), metrics=["doubt"], resamples=100)
        >>> round(found["doubt"].value + found.mean_confidence, 9)
        1.0
    """
    if _registered.get(metric.name) != metric:
        _checked(metric.name, metric)
        if metric.name in all_metrics():
            raise ValueError(f"another metric is called '{metric.name}' already")
    _registered[metric.name] = metric


def _checked(name: str, metric: object) -> Metric:
    """Return a metric of a plug-in, unless nobody could measure it."""
    if not isinstance(metric, CurveMetric | MeanMetric | RowsMetric):
        raise TypeError(f"{metric!r} is no CurveMetric, MeanMetric or RowsMetric")
    if metric.name != name or name == "all":
        raise ValueError(f"a metric called '{metric.name}' can't go by the name '{name}'")
    return metric


def all_metrics() -> Mapping[str, Metric]:
    """Return every metric by name, those of the positive class after the package's others."""
    own = METRICS | POSITIVE_METRICS
    return own | dict(plugged_in("calibrant.metrics", "metric", _checked, tuple(own))) | _registered


def metrics_named(
    names: Sequence[str] | str | None, *, binary: bool = False, ranks: bool = False
) -> list[Metric]:
    """Return the metrics of `names`.

    Args:
        names: names, or one; ``"all"`` among them stands for every metric. None: `CORE_METRICS`.
        binary: whether both of these hold those of the positive class too.
        ranks: whether None stands for `RANK_METRICS`.

    Raises:
        UnknownMethodError: no metric goes by a name; the message lists those that there are.
    """
    if names is None:
        names = RANK_METRICS if ranks else (*CORE_METRICS, *(POSITIVE_METRICS if binary else ()))
    asked = [names] if isinstance(names, str) else names
    known: Mapping[str, Metric] = METRICS | POSITIVE_METRICS | _registered
    if not known.keys() >= {*asked}:  # to look for plug-ins takes time
        known = all_metrics()
    found: dict[str, Metric] = {}
    for name in asked:
        if name == "all":
            found |= {n: metric for n, metric in known.items() if binary or not metric.of_positive}
        elif name in known:
            found[name] = known[name]
        else:
            raise unknown([*known, "all"], name, "metric")
    return list(found.values())


def _metric(name: str) -> Metric:
    return all_metrics()[name]


def _reduced(metric: Metric) -> Any:
    """Pickle a metric of the package by its name, others by what they are made of."""
    if (METRICS | POSITIVE_METRICS).get(metric.name) is metric:
        return _metric, (metric.name,)
    return metric.__reduce_ex__(2)


for _type in (CurveMetric, MeanMetric, RowsMetric):
    copyreg.pickle(_type, _reduced)


@dataclass(frozen=True)
class Described:
    """What a person should know of one metric.

    Attributes:
        metric: its name, title and convention, what it costs and when it misleads.
        formula: what it computes, in one line.
        text: the rest of its description, paragraphs.
        arguments: of the function: name to default and meaning.
        sources: papers.
    """

    metric: Metric
    formula: str
    text: tuple[str, ...]
    arguments: dict[str, Argument]
    sources: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON takes it."""
        function = self.metric.function
        return {
            "name": self.metric.name,
            "title": self.metric.title,
            "convention": self.metric.definition,
            "formula": self.formula,
            "function": f"calibrant.metrics.{function.__name__}" if function else None,
            "cost": self.metric.effort or None,
            "fails": self.metric.fails or None,
            "lower_is_better": self.metric.lower_is_better,
            "percent": self.metric.percent,
            "arguments": as_json(self.arguments),
            "sources": list(self.sources),
        }


def described(name: str) -> Described:
    """Return what there is to know of a metric, by name.

    Raises:
        UnknownMethodError: no such metric.

    Examples:
        >>> from calibrant.metrics.registry import described
        >>> described("nll").formula
        'Return the mean of -log p_y, in nats.'
    """
    (metric,) = metrics_named([name])
    if metric.function is None:
        return Described(metric, "", (), {}, ())
    text = Docstring.of(metric.function)
    meanings = text.items("Args")
    parameters = inspect.signature(metric.function).parameters.values()
    given = {p.name: Argument(p.default, meanings.get(p.name, "")) for p in parameters}
    options = {n: v for n, v in given.items() if v.default is not inspect.Parameter.empty}
    sources = tuple(text.sentences("References"))
    return Described(metric, text.summary, text.paragraphs, options, sources)


def all_described() -> list[Described]:
    """Return what there is to know of every metric."""
    return [described(name) for name in all_metrics()]
