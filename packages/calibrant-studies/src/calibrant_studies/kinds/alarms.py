"""How often the monitor and the usual checks raise false alarms, and how soon true ones.

Streams of 10 000 rows with logit p ~ N(2.2, 1.6) are honest, slightly off, or go off at row 5 000:
true log odds a + b logit p. The monitor has alpha 5 % and c = 20 000; the usual checks are looked
at every hundred rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from calibrant._version import __version__
from calibrant.core.arguments import unknown
from calibrant.core.errors import InputError
from calibrant.monitor.monitor import Monitor
from calibrant_studies.cells import Cell
from calibrant_studies.inputs import Inputs
from calibrant_studies.kinds.base import Measure, Simulated
from calibrant_studies.kinds.coverage import share
from calibrant_studies.monitoring.checks import CHECKS, monitored
from calibrant_studies.monitoring.streams import KINDS, draw

_MEASURES = (
    Measure("false", "false alarms", 100, 1, "low", "streams with an alarm before they go off"),
    Measure("found", "true alarms", 100, 1, "high", "streams whose first alarm is behind that row"),
    Measure("delay", "delay, rows", 1, 0, "low", "median of the true alarms; ends are quartiles"),
    Measure("held", "since held", 100, 1, "neither", "intervals of the change that hold its row"),
)
_OF_MONITOR = ("level", "change")


class Alarms(Simulated):
    """Draw streams of one kind, and look at which row a test raises its first alarm."""

    version: ClassVar[str] = "1"
    axes: ClassVar[tuple[str, ...]] = ("stream", "test")
    defaults: ClassVar[Mapping[str, Any]] = {"streams": 400}

    @property
    def measures(self) -> Mapping[str, Measure]:
        """Shares of streams, and delays."""
        return {measure.name: measure for measure in _MEASURES}

    def method_version(self, cell: Cell) -> str:
        """Return the version of the package, whose monitor it is."""
        return __version__

    def run(self, cell: Cell, inputs: Inputs, work: Path) -> dict[str, Any]:
        """Return shares with 95 % intervals, and the median delay with its quartiles."""
        stream, test, streams = cell.at["stream"], cell.at["test"], self.setting(cell, "streams")
        if stream not in KINDS:
            raise unknown(KINDS, stream, "kind of stream")
        seeds = range(cell.seed * streams, (cell.seed + 1) * streams)
        held: list[bool] = []
        rows: list[int | None]
        if test in CHECKS:
            rows = [CHECKS[test](*draw(KINDS[stream], seed)) for seed in seeds]
        else:
            name, tolerance = _of_monitor(test)
            alarms = [monitor.alarms.get(name) for monitor in _watched(stream, tolerance, seeds)]
            rows = [None if alarm is None else alarm.row for alarm in alarms]
            change = KINDS[stream].change or 0
            if name == "change" and KINDS[stream].sudden:
                true = [alarm for alarm in alarms if alarm is not None and alarm.row >= change]
                held = [alarm.since.low <= change <= alarm.since.high for alarm in true]
        return {"values": told(rows, KINDS[stream].change, held)}


def told(rows: list[int | None], change: int | None, held: list[bool]) -> dict[str, Any]:
    """Return what comes of first alarms, as results of cells have it.

    Args:
        rows: of the first alarm on each stream; None where there is none.
        change: from which row on an alarm is a true one; None for never.
        held: for each true alarm of a change, whether its interval holds that row.
    """
    off = math.inf if change is None else change
    true = [row - off for row in rows if row is not None and row >= off]
    values: dict[str, Any] = {"held": share(np.array(held))} if held else {}
    if off > 0:
        values["false"] = share(np.array([row is not None and row < off for row in rows]))
    if change is not None:
        values["found"] = share(np.array([row is not None and row >= off for row in rows]))
    if true:
        low, middle, high = np.quantile(true, (0.25, 0.5, 0.75)).tolist()
        values["delay"] = {"value": middle, "low": low, "high": high}
    return values


def _of_monitor(test: str) -> tuple[str, float]:
    """Return which test of the monitor a name such as ``level-0.02`` means, and its tolerance."""
    name, _, tolerance = test.partition("-")
    try:
        if name in _OF_MONITOR:
            return name, float(tolerance)
    except ValueError:
        pass
    raise InputError(
        f"no test '{test}'; there are {', '.join(CHECKS)}, and level-TOLERANCE and change-TOLERANCE"
    )


@lru_cache(maxsize=2)  # both tests of a monitor, which are cells side by side
def _watched(stream: str, tolerance: float, seeds: range) -> list[Monitor]:
    """Return monitors that have seen a stream each."""
    return [monitored(*draw(KINDS[stream], seed), tolerance) for seed in seeds]


KIND = Alarms()
