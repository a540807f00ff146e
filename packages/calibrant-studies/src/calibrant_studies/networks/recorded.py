"""Numbers that were kept of networks whose files are gone: ``docs/results/losses.json``.

The study of losses trained them on CIFAR-10.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from calibrant_studies.inputs import Given
from calibrant_studies.networks.plans import SELDOM, Plan

DATA = "cifar10"


@dataclass(frozen=True)
class Recorded:
    """What was kept of one network.

    Attributes:
        values: by metric, as results of cells have them.
        epochs: what was kept of each epoch of the training; empty if nothing was.
        line: what it is called there.
        smart_fit: how SMART was fitted to it.
        document: all that was kept, of other networks, too.
    """

    values: dict[str, dict[str, Any]]
    epochs: list[dict[str, Any]]
    line: str
    smart_fit: str
    document: dict[str, Any]


def recorded_of(given: Given, plan: Plan) -> Recorded | None:
    """Return what a file of results holds of the network of a plan, or None."""
    if plan.input != DATA or plan.stage or given.path.suffix != ".json":
        return None
    document = _read(given.path, given.path.stat().st_mtime_ns) if given.path.is_file() else None
    if document is None:
        return None
    told: dict[str, Any] = {**dict.fromkeys(SELDOM), **document["settings"]}
    if any(plan.run.get(name) != value for name, value in told.items()):
        return None
    for name, line in document["lines"].items():
        settings: dict[str, Any] = line["settings"]
        asked = {key: plan.run[key] for key in settings if key in plan.run}
        if asked != settings:
            continue
        run = _of(document, "runs", name, plan.seed)
        values = run.get("after", {}).get(plan.after)
        epochs = _of(document, "gate_by_epoch", name, plan.seed).get("epochs", [])
        if values is None:
            return None
        return Recorded(values, epochs, name, run["smart_fit"], document)
    return None


def _of(document: dict[str, Any], key: str, line: str, seed: int) -> dict[str, Any]:
    for row in cast("list[dict[str, Any]]", document.get(key, [])):
        if (row["line"], row["seed"]) == (line, seed):
            return row
    return {}


@lru_cache(maxsize=8)
def _read(path: Path, state: int) -> dict[str, Any] | None:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(document, dict) or not {"lines", "settings", "runs"} <= set(
        cast("dict[str, Any]", document)
    ):
        return None
    return cast("dict[str, Any]", document)
