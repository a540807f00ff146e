"""How often intervals hold what they promise, on data sets whose truth is known.

Confidences are drawn from a distribution piled up near 1, as those of real networks are; a row is
right with probability c - gap. Each interval is held to two truths: the expected measured value at
this number of rows, and the limit of the metric for ever more rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from calibrant._version import __version__
from calibrant.core.arrays import BoolArray, FloatArray
from calibrant.evaluation.evaluate import evaluate
from calibrant.metrics.registry import CurveMetric, metrics_named
from calibrant.metrics.top_label import TopLabel
from calibrant.predictions.predictions import Predictions
from calibrant.report.series import wilson_interval
from calibrant_studies.cells import Cell
from calibrant_studies.inputs import Inputs
from calibrant_studies.kinds.base import Measure, Simulated

NAMES = ("ece", "adaece", "smce", "smece", "accuracy")
# What is said of each metric: name, title, and which direction is better.
SAID = {
    "held": "held",
    "limit-held": "limit held",
    "expected": "expected",
    "limit": "limit",
    "low": "mean low",
    "high": "mean high",
}


class Coverage(Simulated):
    """Draw data sets, measure each, and count the intervals that hold the truth."""

    version: ClassVar[str] = "1"
    axes: ClassVar[tuple[str, ...]] = ("gap",)
    defaults: ClassVar[Mapping[str, Any]] = {
        "rows": 2000,
        "sets": 300,
        "resamples": 500,
        "truth_sets": 2000,  # which the expected value is a mean of
        "limit_rows": 2_000_000,
    }

    @property
    def measures(self) -> Mapping[str, Measure]:
        """For each metric what intervals hold, and what they should."""
        return {
            f"{metric.name}-{what}": Measure(
                f"{metric.name}-{what}", f"{metric.title} {title}", 100.0, 2, "neither"
            )
            for metric in metrics_named(NAMES)
            for what, title in SAID.items()
        }

    def configuration(self, cell: Cell, inputs: Inputs) -> dict[str, Any]:
        """Return the gap, the seed and the sizes."""
        sizes = {name: self.setting(cell, name) for name in self.defaults}
        return {"gap": float(cell.at["gap"]), "seed": cell.seed, **sizes}

    def method_version(self, cell: Cell) -> str:
        """Return the version of the package, whose intervals they are."""
        return __version__

    def run(self, cell: Cell, inputs: Inputs, work: Path) -> dict[str, Any]:
        """Return shares with their intervals, and the truths."""
        gap, rows, sets = (
            float(cell.at["gap"]),
            self.setting(cell, "rows"),
            self.setting(cell, "sets"),
        )
        rng = np.random.default_rng(cell.seed)
        drawn = [_values(*draw(rows, gap, rng)) for _ in range(self.setting(cell, "truth_sets"))]
        expected = np.mean(drawn, axis=0)
        limit = np.array(_values(*draw(self.setting(cell, "limit_rows"), gap, rng)))
        low, high = np.empty((sets, len(NAMES))), np.empty((sets, len(NAMES)))
        for i in range(sets):
            confidence, correct = draw(rows, gap, rng)
            said = Predictions.from_confidence(confidence, np.zeros(rows, dtype=int), ~correct * 1)
            found = evaluate(said, metrics=NAMES, resamples=self.setting(cell, "resamples"), seed=i)
            low[i] = [found[name].low for name in NAMES]
            high[i] = [found[name].high for name in NAMES]
        values: dict[str, Any] = {}
        for j, name in enumerate(NAMES):
            values[f"{name}-held"] = share((low[:, j] <= expected[j]) & (expected[j] <= high[:, j]))
            values[f"{name}-limit-held"] = share((low[:, j] <= limit[j]) & (limit[j] <= high[:, j]))
            values[f"{name}-expected"] = {"value": float(expected[j])}
            values[f"{name}-limit"] = {"value": float(limit[j])}
            values[f"{name}-low"] = {"value": float(low[:, j].mean())}
            values[f"{name}-high"] = {"value": float(high[:, j].mean())}
        return {"values": values}


def draw(rows: int, gap: float, rng: np.random.Generator) -> tuple[FloatArray, BoolArray]:
    """Return (N,) confidences in [0.5, 1) and whether each row is right."""
    confidence = 1 - 0.5 * rng.beta(0.5, 2.0, rows)
    return confidence, rng.random(rows) < confidence - gap


def _values(confidence: FloatArray, correct: BoolArray) -> list[float]:
    """Return every metric's value."""
    sorted_rows = TopLabel.sort(confidence, correct)
    curve = [m.value(sorted_rows) for m in metrics_named(NAMES) if isinstance(m, CurveMetric)]
    return [*curve, float(correct.mean())]


def share(held: NDArray[np.bool_]) -> dict[str, float]:
    """Return a share with its 95 % interval, that of Wilson."""
    low, high = wilson_interval(np.array([held.sum()]), np.array([len(held)]))
    return {"value": float(held.mean()), "low": float(low[0]), "high": float(high[0])}


KIND = Coverage()
