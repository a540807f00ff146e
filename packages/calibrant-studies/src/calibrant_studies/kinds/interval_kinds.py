"""How far intervals from sums over cells are from those from rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from calibrant._version import __version__
from calibrant.evaluation.evaluate import evaluate
from calibrant.metrics.registry import metrics_named
from calibrant.predictions.scoring import score_rows
from calibrant.scale.measuring import evaluate_sums
from calibrant.scale.row_sums import RowSums
from calibrant.scale.sums import Plan, ShardSums
from calibrant.synthetic import tempered
from calibrant_studies.cells import Cell
from calibrant_studies.inputs import Inputs
from calibrant_studies.kinds.base import Measure, Simulated

# Logits are so many times too large unless a setting says otherwise; 1 is honest.
TEMPERATURE = 1.5
NAMES = ("ece", "adaece", "smce", "nll", "brier", "accuracy")
CLASSES = 10


class IntervalKinds(Simulated):
    """Measure drawn rows both ways, with other seeds of the resamples."""

    version: ClassVar[str] = "1"
    axes: ClassVar[tuple[str, ...]] = ("size",)
    defaults: ClassVar[Mapping[str, Any]] = {"resamples": 2000, "temperature": TEMPERATURE}

    @property
    def measures(self) -> Mapping[str, Measure]:
        """For each metric how far either end is from the other kind's, as a share of the width."""
        return {
            f"{metric.name}-{end}": Measure(
                f"{metric.name}-{end}", f"{metric.title} {end}", 100.0, 1, "neither"
            )
            for metric in metrics_named(NAMES)
            for end in ("low", "high")
        }

    def method_version(self, cell: Cell) -> str:
        """Return the version of the package, whose intervals they are."""
        return __version__

    def run(self, cell: Cell, inputs: Inputs, work: Path) -> dict[str, Any]:
        """Return differences of ends."""
        size, seed = int(cell.at["size"]), 1 + 2 * cell.seed
        options: dict[str, Any] = {"metrics": NAMES, "resamples": self.setting(cell, "resamples")}
        temperature = self.setting(cell, "temperature")
        rows = tempered(size, CLASSES, temperature=temperature, seed=seed).predictions
        sums = ShardSums(Plan(), rows.kind, rows.n_classes, RowSums.of(score_rows(rows)))
        from_cells = evaluate_sums(sums, **options, seed=seed)
        from_rows = evaluate(rows, **options, seed=seed + 1)
        values: dict[str, Any] = {}
        for name in NAMES:
            ours, theirs = from_cells[name], from_rows[name]
            width = theirs.high - theirs.low
            values[f"{name}-low"] = {"value": (ours.low - theirs.low) / width}
            values[f"{name}-high"] = {"value": (ours.high - theirs.high) / width}
        return {"values": values}


KIND = IntervalKinds()
