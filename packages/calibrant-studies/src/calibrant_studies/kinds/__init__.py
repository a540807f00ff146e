"""Kinds of cells: those of this package, and those of others by entry points.

A package that has in its ``pyproject.toml``

    [project.entry-points."calibrant.study_kinds"]
    my-kind = "my_package:MyKind"

with a class derived from `Kind` adds ``kind = "my-kind"`` to what studies can be declared with.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any

from calibrant.core.arguments import unknown
from calibrant.core.plug_ins import plugged_in
from calibrant_studies.kinds.base import Kind

GROUP = "calibrant.study_kinds"
# Where each stands; a module is imported when a study asks for one of its kinds.
KINDS: Mapping[str, str] = {
    "alarms": "monitoring:Alarms",
    "alarms-of-documents": "monitoring:AlarmsOfDocuments",
    "alarms-on-images": "monitoring:AlarmsOnImages",
    "calarena": "calarena:CalArena",
    "corrupted-images": "networks:CorruptedImages",
    "coverage": "simulations:Coverage",
    "dependence": "simulations:Dependence",
    "feature-norm": "network_parts:FeatureNorm",
    "first-steps": "choices:FirstSteps",
    "gate": "network_parts:Gate",
    "heads": "second_stages:Heads",
    "interval-kinds": "simulations:IntervalKinds",
    "kappa-curve": "network_parts:KappaCurve",
    "losses": "losses:Losses",
    "many-groups": "simulations:ManyGroups",
    "margin-groups": "smart_margins:MarginGroups",
    "margin-temperature": "smart_margins:MarginTemperature",
    "masking": "network_parts:Masking",
    "mismatch": "smart_margins:Mismatch",
    "objectives": "smart_training:Objectives",
    "ood": "networks:OutOfDistribution",
    "perturbation": "smart_margins:Perturbation",
    "posthoc": "posthoc:PostHoc",
    "prototypes": "network_parts:Prototypes",
    "reduction": "posthoc:Reduction",
    "retention": "network_parts:Retention",
    "row-intervals": "simulations:RowIntervals",
    "runtime": "posthoc:Runtime",
    "sample-cost": "simulations:SampleCost",
    "solved-temperatures": "smart_training:SolvedTemperatures",
    "training": "networks:Training",
    "training-path": "smart_training:TrainingPaths",
    "trainings-beside": "networks:TrainingsBeside",
    "training-time": "network_parts:TrainingTime",
    "verdicts": "choices:Verdicts",
    "whole-networks": "second_stages:WholeNetworks",
    "wrappers": "scikit_learn:Wrappers",
}


def kind_named(name: str) -> Kind:
    """Return a kind.

    Raises:
        UnknownMethodError: there is none of that name.
    """
    if name in KINDS:
        return _own(name)
    others = plugged_in(GROUP, "kind of cell", _plugged_in, tuple(KINDS))
    if name not in others:
        raise unknown([*KINDS, *others], name, "kind of cell")
    return others[name]


@cache
def _own(name: str) -> Kind:
    module, _, kind = KINDS[name].partition(":")
    return getattr(import_module(f"{__name__}.{module}"), kind)()


def _plugged_in(name: str, found: Any) -> Kind:
    if not (inspect.isclass(found) and issubclass(found, Kind)):
        raise TypeError("it is not a class derived from calibrant_studies.Kind")
    return found()
