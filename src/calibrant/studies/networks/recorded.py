"""Numbers that were kept of networks whose files are gone: ``docs/results/losses.json``.

They are means over seeds with their standard deviation, of networks trained on CIFAR-10.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from calibrant.studies.inputs import Given
from calibrant.studies.networks.plans import Plan

DATA = "cifar10"


@dataclass(frozen=True)
class Recorded:
    """What was kept of networks that differ in their seeds.

    Attributes:
        values: by metric, as results of cells have them; the interval is that of the mean over
            seeds.
        seeds: which there were.
        epochs: by seed, what was kept of each epoch of the training; empty if nothing was.
    """

    values: dict[str, dict[str, Any]]
    seeds: tuple[int, ...]
    epochs: list[list[dict[str, Any]]]


def recorded_of(given: Given, plan: Plan) -> Recorded | None:
    """Return what a file of results holds of the network of a plan, or None."""
    if plan.input != DATA or plan.stage or given.path.suffix != ".json":
        return None
    document = _read(given.path, given.path.stat().st_mtime_ns) if given.path.is_file() else None
    if document is None:
        return None
    if any(plan.run.get(name) != value for name, value in document.get("settings", {}).items()):
        return None
    for name, line in document["lines"].items():
        settings: dict[str, Any] = line["settings"]
        asked = {key: plan.run[key] for key in settings if key in plan.run}
        # Where a loss has one set of arguments for all data sets, it doesn't matter which it is.
        same = asked | {"loss_settings_for": settings["loss_settings_for"]} == settings
        if same and plan.after in line["after"]:
            return Recorded(
                {metric: _value(found) for metric, found in line["after"][plan.after].items()},
                tuple(line["seeds"]),
                document.get("gate_by_epoch", {}).get(name, []),
            )
    return None


@lru_cache(maxsize=8)
def _read(path: Path, state: int) -> dict[str, Any] | None:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(document, dict) or "lines" not in document:
        return None
    return cast("dict[str, Any]", document)


def _value(found: dict[str, Any]) -> dict[str, Any]:
    from scipy.stats import t

    value: dict[str, Any] = {"value": found["value"], "floor": found["floor"]}
    seeds, deviation = found["seeds"], found["deviation"]
    if seeds > 1 and deviation is not None:
        half = float(t.ppf(0.975, seeds - 1)) * deviation / math.sqrt(seeds)
        value |= {"low": found["value"] - half, "high": found["value"] + half}
    return value
