"""The margin against the smallest step that changes a prediction: SMART's Figure 1."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from calibrant.predictions.scoring import score_rows
from calibrant_studies.cells import Cell
from calibrant_studies.inputs import Given, Inputs
from calibrant_studies.kinds.base import Kind, Measure, Need
from calibrant_studies.kinds.margin_groups import GROUPS, grouped
from calibrant_studies.smart.figures import draw_steps
from calibrant_studies.smart.perturbation import (
    Perturbations,
    through_the_head,
    through_the_network,
)

FORM = (
    "a run of `calibrant train` whose data set is still there, for steps in the pixels; or "
    "predictions with features and last layer, for steps in the features; logits and labels alone "
    "give the reliability of margin groups only"
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from calibrant_studies.results import StudyResult


class Perturbation(Kind):
    """Search for the smallest step of FGSM on the first `rows` rows; groups are of all rows."""

    version: ClassVar[str] = "1"
    axes: ClassVar[tuple[str, ...]] = ("input",)
    defaults: ClassVar[Mapping[str, Any]] = {"rows": 1000, "fit_size": 0.5}

    @property
    def measures(self) -> Mapping[str, Measure]:
        """Correlations of margin and step, and the gap of each third of the margin."""
        found = [
            Measure("pearson", "Pearson's r", 1.0, 2, "neither"),
            Measure("spearman", "Spearman's rho", 1.0, 2, "neither"),
            Measure("changed", "rows that change", 100.0, 0, "neither"),
        ]
        found += [Measure(f"gap_{g}", f"gap, {g} margins", 100.0, 2, "neither") for g in GROUPS]
        return {each.name: each for each in found}

    def needs(self, cell: Cell) -> tuple[Need, ...]:
        """Return the network or its predictions."""
        return (Need(cell.input, FORM),)

    def configuration(self, cell: Cell, inputs: Inputs) -> dict[str, Any]:
        """Return the rows; the seed only where one file is split."""
        split = inputs[cell.input].is_split
        settings = {"rows": self.setting(cell, "rows")}
        return settings | (
            {"seed": cell.seed, "fit_size": self.setting(cell, "fit_size")} if split else {}
        )

    def draw(self, result: StudyResult) -> Figure | None:
        """Return the figure of the paper."""
        return draw_steps(result)

    def run(self, cell: Cell, inputs: Inputs, work: Path) -> dict[str, Any]:
        """Return what can be said of this input."""
        given, rows = inputs[cell.input], int(self.setting(cell, "rows"))
        _, test = given.rows(cell.seed, fit_size=self.setting(cell, "fit_size"))
        scores = score_rows(test)
        result = grouped(test, scores, scores)
        found: Perturbations | None = None
        if _has_images(given):
            found, said = through_the_network(given.path, rows), "steps in the pixels"
        elif test.features is not None and test.head is not None:
            found, said = through_the_head(test, rows), "steps in the features"
        else:
            said = "no network and no features, so no steps"
        result["notes"] = [said]
        if found is not None:
            done = np.isfinite(found.smallest)
            result["values"] |= {
                "pearson": {"value": found.pearson},
                "spearman": {"value": found.spearman},
                "changed": {"value": found.flipped},
            }
            result["steps"] = {
                "margin": found.margin[done].tolist(),
                "smallest": found.smallest[done].tolist(),
            }
        return result


def _has_images(given: Given) -> bool:
    """Return whether an input is a run whose data set is still where it was."""
    return given.is_run and Path(str(given.configuration.get("data"))).exists()


KIND = Perturbation()
