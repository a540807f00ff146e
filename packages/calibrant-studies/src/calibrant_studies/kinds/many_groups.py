"""How often honest groups are marked as miscalibrated, and how often others are found.

Each honest world is held against simulated ones as `evaluate_by` does it; a false alarm is a world
in which any group is marked. Then one group in five is overconfident by 15 points: the share of
those that is found, and, for comparison, by Holm's correction of p-values that are counted over as
many simulated worlds.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from calibrant._version import __version__
from calibrant.core.arrays import FloatArray
from calibrant.evaluation.groups import evidence, step_down
from calibrant.evaluation.uncertainty import holm
from calibrant.metrics.binned import ece_of_curves
from calibrant.metrics.top_label import ResidualCurves, TopLabel
from calibrant_studies.cells import Cell
from calibrant_studies.inputs import Inputs
from calibrant_studies.kinds.base import Measure, Simulated

LEVEL = 0.05
SHARE, SHIFT = 5, 0.15


def confidences(groups: int, rng: np.random.Generator) -> list[FloatArray]:
    """Return the confidences of each group."""
    found: list[FloatArray] = []
    for group in range(groups):
        size = int(rng.integers(20, 201))
        sure = group % 2 == 0
        found.append(1 - rng.beta(0.3, 12, size) if sure else rng.uniform(0.4, 1.0, size))
    return found


def eces(confidence: FloatArray, shift: float, worlds: int, rng: np.random.Generator) -> FloatArray:
    """Return (W,) ECEs of rows that are right with probability max(c - shift, 0)."""
    rows = TopLabel.sort(confidence, np.zeros(len(confidence)))
    outcomes = rng.random((worlds, rows.n)) < np.maximum(rows.confidence - shift, 0)
    return ece_of_curves(ResidualCurves.with_labels(rows, outcomes))


def worlds_of(groups: int, draws: int, worlds: int, seed: int) -> tuple[FloatArray, FloatArray]:
    """Return (W,) whether any honest group was marked, and (W, 2) shares of bad groups found."""
    rng = np.random.default_rng(seed)
    parts = confidences(groups, rng)
    bad = np.arange(groups) % SHARE < 1
    simulated: list[FloatArray] = []
    honest: list[FloatArray] = []
    mixed: list[FloatArray] = []
    counted: list[FloatArray] = []
    for group, confidence in enumerate(parts):
        expected = float(eces(confidence, 0.0, draws, rng).mean())
        reference = eces(confidence, 0.0, draws, rng)
        fair = eces(confidence, 0.0, worlds, rng)
        shown = eces(confidence, SHIFT, worlds, rng) if bad[group] else fair
        simulated.append(evidence(reference, expected, confidence))
        honest.append(evidence(fair, expected, confidence))
        mixed.append(evidence(shown, expected, confidence))
        beyond = draws - np.searchsorted(np.sort(reference), shown)
        counted.append((1 + beyond) / (1 + draws))
    against = np.stack(simulated, axis=1)
    alarms, power = np.empty(worlds), np.empty((worlds, 2))
    for world in range(worlds):
        alarms[world] = step_down(np.array([h[world] for h in honest]), against).min() <= LEVEL
        marked = step_down(np.array([m[world] for m in mixed]), against) <= LEVEL
        by_holm = np.array(holm([c[world] for c in counted])) <= LEVEL
        power[world] = marked[bad].mean(), by_holm[bad].mean()
    return alarms, power


class ManyGroups(Simulated):
    """Simulate worlds of honest and of bad groups; those of a seed share what they are held to."""

    version: ClassVar[str] = "1"
    axes: ClassVar[tuple[str, ...]] = ("groups",)
    defaults: ClassVar[Mapping[str, Any]] = {"draws": 1000, "worlds": 200}

    @property
    def measures(self) -> Mapping[str, Measure]:
        """Shares of worlds with an alarm, and of bad groups that are found."""
        titles = {
            "false-alarms": "false alarms",
            "found": "found",
            "found-by-holm": "found by Holm",
        }
        return {name: Measure(name, title, 100.0, 1, "neither") for name, title in titles.items()}

    def method_version(self, cell: Cell) -> str:
        """Return the version of the package, whose test it is."""
        return __version__

    def run(self, cell: Cell, inputs: Inputs, work: Path) -> dict[str, Any]:
        """Return shares."""
        draws, worlds = self.setting(cell, "draws"), self.setting(cell, "worlds")
        alarms, power = worlds_of(int(cell.at["groups"]), draws, worlds, cell.seed)
        found, by_holm = power.mean(axis=0).tolist()
        values: dict[str, Any] = {
            "false-alarms": {"value": float(alarms.mean())},
            "found": {"value": found},
            "found-by-holm": {"value": by_holm},
        }
        return {"values": values}


KIND = ManyGroups()
