"""How often an interval of top-rest scaling for a row holds the row's true confidence."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from calibrant.core.arrays import FloatArray
from calibrant.posthoc.confidence.top_rest import TopRestScaling
from calibrant_studies.cells import Cell
from calibrant_studies.data import synthetic
from calibrant_studies.inputs import Inputs
from calibrant_studies.kinds.base import Measure, Simulated
from calibrant_studies.kinds.posthoc import method_code
from calibrant_studies.measuring import mean_with_interval, quietly

JUDGED = 2000


class RowIntervals(Simulated):
    """Fit to several draws, and hold each row's interval to what is known of the row."""

    version: ClassVar[str] = "1"
    axes: ClassVar[tuple[str, ...]] = ("size", "knots")
    defaults: ClassVar[Mapping[str, Any]] = {"draws": 10, "level": 0.95}

    @property
    def measures(self) -> Mapping[str, Measure]:
        """Coverage and width of intervals, bias and spread of the confidence."""
        names = ("coverage", "width", "bias", "spread")
        return {name: Measure(name, name, 100.0, 2, "neither") for name in names}

    def method_version(self, cell: Cell) -> str:
        """Return that of top-rest scaling."""
        return method_code("top-rest")

    def run(self, cell: Cell, inputs: Inputs, work: Path) -> dict[str, Any]:
        """Return means over draws."""
        size, draws = int(cell.at["size"]), self.setting(cell, "draws")
        # What class biases change, a map of the margin can't see.
        judged = synthetic(1, 1_000_000, bias=0.0)
        assert judged.truth is not None
        logits = judged.test.logits[:JUDGED]
        truth = judged.truth[np.arange(JUDGED), logits.argmax(axis=1)]
        covered: list[float] = []
        width: list[float] = []
        confidence: list[FloatArray] = []
        for seed in range(draws * cell.seed, draws * (cell.seed + 1)):
            fit = synthetic(size, seed, bias=0.0).fit
            with quietly():
                calibrator = TopRestScaling(knots=int(cell.at["knots"]))
                calibrator.fit(fit.logits, fit.labels)
            low, high = calibrator.confidence_interval(logits, self.setting(cell, "level"))
            covered.append(float(np.mean((low <= truth) & (truth <= high))))
            width.append(float(np.mean(high - low)))
            confidence.append(calibrator.predict_confidence(logits)[1])
        drawn: FloatArray = np.stack(confidence)
        away: FloatArray = drawn.mean(axis=0) - truth
        variance: FloatArray = drawn.var(axis=0, ddof=1)
        values: dict[str, Any] = {
            "coverage": mean_with_interval(covered),
            "width": mean_with_interval(width),
            "bias": {"value": float(np.sqrt(np.mean(away**2)))},
            "spread": {"value": float(np.sqrt(variance.mean()))},
        }
        return {"values": values}


KIND = RowIntervals()
