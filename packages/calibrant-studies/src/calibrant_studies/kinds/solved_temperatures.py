"""How well indicators pin down temperatures, and a path of training: SMART's Figure 2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from calibrant_studies.cells import Cell
from calibrant_studies.inputs import Inputs
from calibrant_studies.kinds.base import Measure, Need
from calibrant_studies.kinds.training_path import TrainingPaths
from calibrant_studies.smart.figures import draw_solved
from calibrant_studies.smart.indicators import INDICATORS, solve_temperatures

SHOWN = 400

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from calibrant_studies.results import StudyResult


class SolvedTemperatures(TrainingPaths):
    """Two parts: ``indicators``, on random rows, which needs nothing, and ``training``."""

    version: ClassVar[str] = "2"
    axes: ClassVar[tuple[str, ...]] = ("input", "part")
    defaults: ClassVar[Mapping[str, Any]] = {
        **TrainingPaths.defaults,
        "objective": "nll",
        "rows": 1000,
        "classes": 10,
        "confidence": 0.8,
    }

    @property
    def measures(self) -> Mapping[str, Measure]:
        """Those of a path, and the share of the variance of log T that an indicator leaves open."""
        open_ = (Measure(f"open_{n}", f"left open by {n}", 100.0, 0) for n in INDICATORS)
        return {**super().measures, **{each.name: each for each in open_}}

    def needs(self, cell: Cell) -> tuple[Need, ...]:
        """Return the predictions for the second part."""
        return super().needs(cell) if cell.at["part"] == "training" else ()

    def configuration(self, cell: Cell, inputs: Inputs) -> dict[str, Any]:
        """Return the settings of the part."""
        part = {"part": cell.at["part"], "seed": cell.seed}
        if part["part"] == "training":
            names = [*TrainingPaths.defaults, "objective"]
        else:
            names = ["rows", "classes", "confidence"]
        return part | {name: self.setting(cell, name) for name in names}

    def draw(self, result: StudyResult) -> Figure | None:
        """Return the figure of the paper."""
        return draw_solved(result)

    def run(self, cell: Cell, inputs: Inputs, work: Path) -> dict[str, Any]:
        """Return the measures of the part, and its points."""
        if cell.at["part"] == "training":
            objective = self.setting(cell, "objective")
            at = {**cell.at, "objective": objective}
            return super().run(replace(cell, at=at), inputs, work)
        settings = {name: self.setting(cell, name) for name in ("rows", "classes", "confidence")}
        found = solve_temperatures(**settings, seed=cell.seed)
        points = {name: values[:SHOWN].tolist() for name, values in found.indicator.items()}
        return {
            "values": {f"open_{name}": {"value": found.left_open(name)} for name in INDICATORS},
            "points": {"temperature": found.temperature[:SHOWN].tolist(), **points},
        }


KIND = SolvedTemperatures()
