"""What a method takes away from the uncalibrated error: SMART's Figures 11 to 14."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from calibrant.evaluation.evaluate import evaluate
from calibrant.evaluation.uncertainty import paired_difference
from calibrant.metrics.registry import METRICS
from calibrant_studies.cells import Cell
from calibrant_studies.inputs import Inputs
from calibrant_studies.kinds.base import Measure
from calibrant_studies.kinds.posthoc import PostHoc

TAKEN = "_taken"
# Measured in any case, so that figures of different metrics share their cells.
USUAL = ("ece", "adaece")


class Reduction(PostHoc):
    """As `posthoc`; ``ece_taken`` is the uncalibrated ECE less the method's, and so on."""

    version: ClassVar[str] = "2"

    @property
    def measures(self) -> Mapping[str, Measure]:
        """Every metric of the catalogue, as what is taken from it."""
        found = (replace(Measure.of(m), better="high") for m in METRICS.values())
        return {
            f"{one.name}{TAKEN}": replace(
                one, name=f"{one.name}{TAKEN}", title=f"{one.title} taken away"
            )
            for one in found
        }

    def configuration(self, cell: Cell, inputs: Inputs) -> dict[str, Any]:
        """Return that of `posthoc`, with the metrics that are taken from."""
        return super().configuration(cell, inputs) | {"metrics": sorted(_metrics(cell))}

    def run(self, cell: Cell, inputs: Inputs, work: Path) -> dict[str, Any]:
        """Return differences with paired bootstrap intervals."""
        fit, test = self.rows(cell, inputs)
        level = self.setting(cell, "level")
        options: dict[str, Any] = {
            "metrics": _metrics(cell),
            "resamples": self.setting(cell, "resamples"),
            "level": level,
            "seed": cell.seed if inputs[cell.input].is_split else 0,
        }
        after = self.fitted(cell, fit).apply_predictions(test)
        before, now = evaluate(test, **options), evaluate(after, **options)
        values: dict[str, dict[str, float]] = {}
        replicates: dict[str, list[float]] = {}
        for name in _metrics(cell):
            drawn = before[name].replicates, now[name].replicates
            taken = paired_difference(*drawn, (before[name].value, now[name].value), level)
            values[name + TAKEN] = {"value": taken.value, "low": taken.low, "high": taken.high}
            replicates[name + TAKEN] = [float(f"{each:.7g}") for each in drawn[0] - drawn[1]]
        split = f" split {cell.seed}" if inputs[cell.input].is_split else ""
        pairing = f"{inputs[cell.input].digest}{split}"
        return {"values": values, "replicates": replicates, "pairing": pairing}


def _metrics(cell: Cell) -> list[str]:
    return list(dict.fromkeys([*USUAL, *(name.removesuffix(TAKEN) for name in cell.metrics)]))


KIND = Reduction()
