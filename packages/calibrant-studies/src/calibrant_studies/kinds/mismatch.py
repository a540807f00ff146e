"""Does likelihood gain where calibration loses? Section 3.3 of the SMART paper as an experiment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from calibrant.core.errors import InputError
from calibrant.posthoc.temperature.scaling import RowTemperature, Uncalibrated
from calibrant_studies.cells import Cell
from calibrant_studies.inputs import Inputs
from calibrant_studies.kinds.base import Measure, Need
from calibrant_studies.kinds.posthoc import PostHoc
from calibrant_studies.smart.figures import draw_mismatch
from calibrant_studies.smart.mismatch import (
    SHARPENING,
    Change,
    SliceMove,
    known_move,
    measured_moves,
)

SLICES = 5

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from calibrant_studies.results import StudyResult


class Mismatch(PostHoc):
    """Sharpen a margin slice after a fit, or a `population` of known truth, and measure again."""

    version: ClassVar[str] = "1"
    unread: ClassVar[tuple[str, ...]] = ("level",)
    axes: ClassVar[tuple[str, ...]] = ("input", "method", "slice", "population")
    defaults: ClassVar[Mapping[str, Any]] = {
        **PostHoc.defaults,
        "slices": SLICES,
        "sharpening": SHARPENING,
        "resamples": 200,
    }

    @property
    def measures(self) -> Mapping[str, Measure]:
        """What changes, and whether the signs are opposed beyond noise."""
        return {
            "nll_change": Measure("nll_change", "NLL, 1/1000 nats", 1000.0, 3, "neither"),
            "smce_change": Measure("smce_change", "smCE, points", 100.0, 3, "neither"),
            "mismatch": Measure("mismatch", "mismatch", 1.0, 0, "neither"),
        }

    def needs(self, cell: Cell) -> tuple[Need, ...]:
        """Return the predictions; a population of known truth needs nothing."""
        return () if "population" in cell.at else super().needs(cell)

    def configuration(self, cell: Cell, inputs: Inputs) -> dict[str, Any]:
        """Return which slice or population, and how much it is sharpened."""
        sharpening = {"sharpening": self.setting(cell, "sharpening")}
        if "population" in cell.at:
            return sharpening | {"population": cell.at["population"]}
        slices = {"slice": cell.at["slice"], "slices": self.setting(cell, "slices")}
        return super().configuration(cell, inputs) | sharpening | slices

    def method_version(self, cell: Cell) -> str:
        """Return that of the method, if one is fitted."""
        return "" if "population" in cell.at else super().method_version(cell)

    def draw(self, result: StudyResult) -> Figure | None:
        """Return the figure of the paper."""
        return draw_mismatch(result)

    def run(self, cell: Cell, inputs: Inputs, work: Path) -> dict[str, Any]:
        """Return both changes."""
        sharpening = self.setting(cell, "sharpening")
        if "population" in cell.at:
            return _result(known_move(cell.at["population"], sharpening))
        fit, test = self.rows(cell, inputs)
        calibrator = self.fitted(cell, fit)
        beta = np.ones(test.n)
        if isinstance(calibrator, RowTemperature):
            beta = beta * np.asarray(calibrator.inverse_temperatures(test.logits))
        elif not isinstance(calibrator, Uncalibrated):
            raise InputError(f"{cell.method}: gives rows no temperature that could be sharpened")
        moves = measured_moves(
            test,
            beta,
            slices=self.setting(cell, "slices"),
            resamples=self.setting(cell, "resamples"),
            sharpening=sharpening,
        )
        place = int(cell.at["slice"]) - 1
        if place >= len(moves):
            raise InputError(f"margins are so alike that there are only {len(moves)} slices")
        return _result(moves[place])


def _result(move: SliceMove) -> dict[str, Any]:
    def of(change: Change) -> dict[str, float]:
        return {"value": change.value, "low": change.low, "high": change.high}

    return {
        "values": {
            "nll_change": of(move.nll),
            "smce_change": of(move.smce),
            "mismatch": {"value": float(move.mismatch)},
        },
        "rows": move.rows,
        "margin": list(move.margin),
    }


KIND = Mismatch()
