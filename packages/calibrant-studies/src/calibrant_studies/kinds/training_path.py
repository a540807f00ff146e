"""SMART's network trained as published, epoch by epoch: Figures 2 (right) and 3 of its paper."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from calibrant.core.arrays import FloatArray
from calibrant_studies.cells import Cell
from calibrant_studies.inputs import Inputs
from calibrant_studies.kinds.base import PREDICTIONS, Kind, Measure, Need
from calibrant_studies.smart.figures import draw_paths
from calibrant_studies.smart.objectives import objective_named
from calibrant_studies.smart.training_path import TrainingPath, train_by_adam

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from calibrant_studies.results import StudyResult


class TrainingPaths(Kind):
    """Train for `epochs` epochs on the rows to fit on, and measure on the others after each."""

    version: ClassVar[str] = "2"
    axes: ClassVar[tuple[str, ...]] = ("input", "objective")
    defaults: ClassVar[Mapping[str, Any]] = {
        "epochs": 80,
        "rate": 5e-3,
        "between": [30, 80],
        "fit_size": 0.5,
    }

    @property
    def measures(self) -> Mapping[str, Measure]:
        """Where the path ends, how soon, how smoothly, and what two epochs differ by."""
        found = [
            Measure("ece", "ECE at the end", 100.0, 2),
            Measure("nll", "NLL at the end", 1.0, 4),
            Measure("settled", "epochs until settled", 1.0, 0),
            Measure("late_gradient", "late gradient, 1/1000", 1000.0, 1),
            Measure("unrest", "its step an epoch, 1/1000", 1000.0, 1),
            Measure("nll_change", "NLL between the epochs", 100.0, 1, "neither"),
            Measure("ece_change", "ECE between the epochs", 100.0, 1, "neither"),
        ]
        return {each.name: each for each in found}

    def needs(self, cell: Cell) -> tuple[Need, ...]:
        """Return the predictions."""
        return (Need(cell.input, PREDICTIONS),)

    def configuration(self, cell: Cell, inputs: Inputs) -> dict[str, Any]:
        """Return everything: the first weights are random."""
        settings = {name: self.setting(cell, name) for name in self.defaults}
        return {"objective": cell.at["objective"], "seed": cell.seed, **settings}

    def draw(self, result: StudyResult) -> Figure | None:
        """Return the figure of the paper."""
        return draw_paths(result)

    def run(self, cell: Cell, inputs: Inputs, work: Path) -> dict[str, Any]:
        """Return the measures and the whole path."""
        fit, test = inputs[cell.input].rows(cell.seed, fit_size=self.setting(cell, "fit_size"))
        path = train_by_adam(
            fit,
            test,
            objective_named(cell.at["objective"]),
            epochs=self.setting(cell, "epochs"),
            rate=self.setting(cell, "rate"),
            seed=cell.seed,
        )
        return path_result(path, self.setting(cell, "between"))


def path_result(path: TrainingPath, between: tuple[int, int] | list[int]) -> dict[str, Any]:
    """Return the measures of a path, and the path, as JSON takes them."""
    last = len(path.loss) - 1
    start, end = (min(epoch, last) for epoch in between)
    values: dict[str, float] = {
        "ece": float(path.ece[-1]),
        "nll": float(path.nll[-1]),
        "settled": path.epochs_to_settle,
        "late_gradient": path.late_gradient,
        "unrest": path.unrest,
        "nll_change": path.change("nll", start, end),
        "ece_change": path.change("ece", start, end),
    }

    def short(series: FloatArray) -> list[float]:
        return [float(f"{value:.6g}") for value in series]

    return {
        "values": {name: {"value": value} for name, value in values.items()},
        "path": {name: short(getattr(path, name)) for name in ("loss", "gradient", "ece", "nll")},
    }


KIND = TrainingPaths()
