"""Calibration within groups of the margin, and what a method does there: SMART's Figure 15."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from calibrant.predictions.predictions import Predictions
from calibrant.predictions.scoring import RowScores, score_rows
from calibrant.report.margins import MarginGroup, margin_groups
from calibrant_studies.cells import Cell
from calibrant_studies.inputs import Inputs
from calibrant_studies.kinds.base import RESAMPLED, Measure
from calibrant_studies.kinds.posthoc import PostHoc
from calibrant_studies.measuring import mean_with_interval
from calibrant_studies.smart.figures import draw_groups
from calibrant_studies.smart.mismatch import slices_of

GROUPS = ("low", "middle", "high")

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from calibrant_studies.results import StudyResult


class MarginGroups(PostHoc):
    """Rows by thirds of the margin: mean confidence less accuracy, and how far confidence moved."""

    version: ClassVar[str] = "1"
    unread: ClassVar[tuple[str, ...]] = RESAMPLED

    @property
    def measures(self) -> Mapping[str, Measure]:
        """A gap for all rows and for each third, with Wilson's interval, and each third's move."""
        gaps = [Measure("gap", "gap", 100.0, 2, "neither")]
        gaps += [Measure(f"gap_{g}", f"gap, {g} margins", 100.0, 2, "neither") for g in GROUPS]
        moves = [Measure(f"moved_{g}", f"moved, {g} margins", 100.0, 2, "neither") for g in GROUPS]
        return {each.name: each for each in (*gaps, *moves)}

    def configuration(self, cell: Cell, inputs: Inputs) -> dict[str, Any]:
        """Return that of `posthoc`; nothing is resampled here, and all is measured."""
        return super().configuration(cell, inputs) | {"resamples": None, "metrics": []}

    def draw(self, result: StudyResult) -> Figure | None:
        """Return the figure of the paper."""
        return draw_groups(result)

    def run(self, cell: Cell, inputs: Inputs, work: Path) -> dict[str, Any]:
        """Return gaps and moves, and the reliability within each third."""
        fit, test = self.rows(cell, inputs)
        after = self.fitted(cell, fit).apply_predictions(test)
        before, now = score_rows(test), score_rows(after)
        return grouped(test, before, now)


def grouped(test: Predictions, before: RowScores, now: RowScores) -> dict[str, Any]:
    """Return the result for rows scored before and after a method."""
    margin = test.margins
    (whole,) = margin_groups(now, margin, 1, 15)
    found = margin_groups(now, margin, len(GROUPS), 10)
    values = {"gap": _gap(whole)}
    moved = now.confidence - before.confidence
    for name, group, rows in zip(GROUPS, found, slices_of(margin, len(GROUPS)), strict=False):
        values[f"gap_{name}"] = _gap(group)
        values[f"moved_{name}"] = mean_with_interval(moved[rows])
    named = zip(("all", *GROUPS), (whole, *found), strict=False)
    return {"values": values, "groups": {name: _points(group) for name, group in named}}


def _gap(group: MarginGroup) -> dict[str, float]:
    """Return confidence less accuracy; the interval is that of the accuracy."""
    low, high = group.confidence - group.high, group.confidence - group.low
    return {"value": group.gap, "low": low, "high": high}


def _points(group: MarginGroup) -> dict[str, Any]:
    points = {key: np.asarray(value).tolist() for key, value in asdict(group.points).items()}
    return {"margin": list(group.margin), "rows": group.rows, "points": points}


KIND = MarginGroups()
