"""The temperature that a method learnt as a function of the margin: SMART's Figure 16."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from calibrant.core.errors import InputError
from calibrant.posthoc.temperature.scaling import RowTemperature
from calibrant.report.margins import margin_temperature
from calibrant_studies.cells import Cell
from calibrant_studies.inputs import Inputs
from calibrant_studies.kinds.base import RESAMPLED, Measure
from calibrant_studies.kinds.posthoc import PostHoc
from calibrant_studies.smart.figures import draw_temperatures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from calibrant_studies.results import StudyResult


class MarginTemperature(PostHoc):
    """Fit, and look at the temperatures of the rows to measure on."""

    version: ClassVar[str] = "1"
    unread: ClassVar[tuple[str, ...]] = RESAMPLED

    @property
    def measures(self) -> Mapping[str, Measure]:
        """How linear, how monotone, and how far temperatures range."""
        found = [
            Measure("pearson", "Pearson's r", 1.0, 2, "neither"),
            Measure("spearman", "Spearman's rho", 1.0, 2, "neither"),
            Measure("lowest", "lowest T", 1.0, 2, "neither"),
            Measure("highest", "highest T", 1.0, 2, "neither"),
        ]
        return {each.name: each for each in found}

    def configuration(self, cell: Cell, inputs: Inputs) -> dict[str, Any]:
        """Return that of `posthoc`; nothing is resampled here."""
        return super().configuration(cell, inputs) | {"resamples": None, "metrics": []}

    def draw(self, result: StudyResult) -> Figure | None:
        """Return the figure of the paper."""
        return draw_temperatures(result)

    def run(self, cell: Cell, inputs: Inputs, work: Path) -> dict[str, Any]:
        """Return the correlations and the curve."""
        from scipy.stats import spearmanr

        fit, test = self.rows(cell, inputs)
        calibrator = self.fitted(cell, fit)
        if not isinstance(calibrator, RowTemperature):
            raise InputError(f"{cell.method}: gives rows no temperature")
        heat, margin = np.asarray(calibrator.temperatures(test.logits)), test.margins
        heat = np.ones(len(margin)) * heat
        even = heat.std() == 0
        values = {
            "pearson": None if even else float(np.corrcoef(margin, heat)[0, 1]),
            "spearman": None if even else float(spearmanr(margin, heat).statistic),
            "lowest": float(heat.min()),
            "highest": float(heat.max()),
        }
        curve = margin_temperature(calibrator, test.logits, margin)
        return {
            "values": {name: {"value": value} for name, value in values.items()},
            "curve": {"margin": curve.margin.tolist(), "temperature": curve.temperature.tolist()},
        }


KIND = MarginTemperature()
