"""How long methods take, as multiples of temperature scaling: SMART's Table 5."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from calibrant.posthoc.base import Calibrator
from calibrant.predictions.predictions import Predictions
from calibrant_studies.cells import Cell
from calibrant_studies.inputs import Inputs
from calibrant_studies.kinds.base import RESAMPLED, Measure
from calibrant_studies.kinds.posthoc import PostHoc
from calibrant_studies.measuring import quietly

BASE = "temperature"
WARM_UP_ROWS = 200


class Runtime(PostHoc):
    """Fit and apply a method and temperature scaling in turn; medians over `repeats`.

    Both are run side by side, after a run of each on few rows that loads what they need, and it is
    processor time that counts: what else the machine does slows both. The ratio has the quartiles
    of single ratios in place of an interval.
    """

    version: ClassVar[str] = "2"
    unread: ClassVar[tuple[str, ...]] = RESAMPLED
    defaults: ClassVar[Mapping[str, Any]] = {**PostHoc.defaults, "repeats": 5}

    @property
    def measures(self) -> Mapping[str, Measure]:
        """Seconds and the ratio."""
        return {
            "seconds": Measure("seconds", "processor seconds", digits=4),
            "ratio": Measure("ratio", "times TS", digits=1),
        }

    def configuration(self, cell: Cell, inputs: Inputs) -> dict[str, Any]:
        """Return that of `posthoc`, with the repeats and the machine: times hold for no other."""
        machine = [platform.machine(), os.cpu_count()]
        repeats = {"repeats": self.setting(cell, "repeats"), "machine": machine}
        return super().configuration(cell, inputs) | repeats

    def run(self, cell: Cell, inputs: Inputs, work: Path) -> dict[str, Any]:
        """Return medians, and the quartiles of the ratio."""
        fit, test = self.rows(cell, inputs)
        base_cell = Cell(cell.study, cell.kind, {**cell.at, "method": BASE}, cell.seed)
        few = fit.take(np.arange(min(fit.n, WARM_UP_ROWS)))
        for one in (base_cell, cell):
            seconds_of(self.calibrator(one), few, few)
        times = np.empty((self.setting(cell, "repeats"), 2))
        for both in times:
            both[0] = seconds_of(self.calibrator(base_cell), fit, test)
            both[1] = seconds_of(self.calibrator(cell), fit, test)
        if cell.method == BASE:  # held against itself it says how steady the machine is
            times[:, 1] = times[:, 0]
        ratio = times[:, 1] / times[:, 0]
        low, middle, high = (float(part) for part in np.quantile(ratio, [0.25, 0.5, 0.75]))
        return {
            "values": {
                "seconds": {"value": float(np.median(times[:, 1]))},
                "ratio": {"value": middle, "low": low, "high": high},
            },
            "seconds": times[:, 1].tolist(),
            "base_seconds": times[:, 0].tolist(),
            "fit_rows": fit.n,
            "test_rows": test.n,
            "classes": fit.n_classes,
        }


def seconds_of(calibrator: Calibrator, fit: Predictions, test: Predictions) -> float:
    """Return the processor seconds of a fit and an application, of which nothing is known yet."""
    fresh = [rows.take(np.arange(rows.n)) for rows in (fit, test)]
    with quietly():
        began = time.process_time()
        calibrator.fit_predictions(fresh[0])
        calibrator.apply_predictions(fresh[1])
        return time.process_time() - began


KIND = Runtime()
