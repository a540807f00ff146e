"""Streams whose truth is known: honest ones, slightly wrong ones, ones that go off."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from calibrant.core.arguments import unknown
from calibrant.core.arrays import BoolArray, FloatArray, IntArray
from calibrant.core.errors import InputError
from calibrant.metrics.binned import DEFAULT_BINS, bin_edges, bin_index
from calibrant.monitor.monitor import Monitor
from calibrant.predictions.scoring import score_top
from calibrant_studies.cells import Cell
from calibrant_studies.inputs import Inputs
from calibrant_studies.kinds.base import RESAMPLED, Measure, Simulated
from calibrant_studies.kinds.networks import NetworkKind
from calibrant_studies.kinds.simulations import share
from calibrant_studies.networks.plans import NONE
from calibrant_studies.networks.trained import Network
from calibrant_studies.significance import mean_with_interval

ROWS, CHANGE = 10_000, 5_000

# Log odds that were said, and row numbers, to log odds that are true.
Truth = Callable[[FloatArray, FloatArray], FloatArray]


class Stream(NamedTuple):
    """One kind of stream: from which row on it is wrong, and how."""

    change: int | None
    truth: Truth

    @property
    def sudden(self) -> bool:
        """Whether it goes off from one row to the next."""
        return bool(self.change) and self.truth is not _drifting


def _before(change: int, truth: Truth) -> Truth:
    return lambda odds, row: np.where(row < change, odds, truth(odds, row))


def _tempered(slope: float) -> Truth:
    return lambda odds, row: slope * odds


def _shifted(shift: float) -> Truth:
    return lambda odds, row: odds + shift


def _drifting(odds: FloatArray, row: FloatArray) -> FloatArray:
    """Return log odds that shrink from row CHANGE on, to half at row ROWS."""
    return odds * (1 - 0.5 * np.clip((row - CHANGE) / (ROWS - CHANGE), 0, 1))


def _one_point_low(odds: FloatArray, row: FloatArray) -> FloatArray:
    p = np.clip(1 / (1 + np.exp(-odds)) - 0.01, 1e-6, 1)
    return np.log(p) - np.log1p(-p)


STREAMS = {
    "honest": Stream(None, _tempered(1.0)),
    "one-point-low": Stream(None, _one_point_low),
    "tempered": Stream(0, _tempered(0.7)),
    "tempered-later": Stream(CHANGE, _before(CHANGE, _tempered(0.7))),
    "shifted-later": Stream(CHANGE, _before(CHANGE, _shifted(-0.5))),
    "drifting": Stream(CHANGE, _drifting),
}


def draw(kind: Stream, seed: int, rows: int = ROWS) -> tuple[FloatArray, BoolArray]:
    """Return (n,) confidences, logit p ~ N(2.2, 1.6), and whether each row is right."""
    rng = np.random.default_rng(seed)
    odds = rng.normal(2.2, 1.6, rows)
    true = kind.truth(odds, np.arange(rows, dtype=np.float64))
    return 1 / (1 + np.exp(-odds)), rng.random(rows) < 1 / (1 + np.exp(-true))


# The checks that people run on a stream, each looked at every hundred rows.

EVERY, WINDOW = 100, 1_000
ECE_THRESHOLD = 0.05
# Two-sided normal and ten-degree chi-square, each at 5 %.
CRITICAL_Z, GROUPS, CRITICAL_CHI_SQUARE = 1.959964, 10, 18.307038

# Returns the row at which a check first raises an alarm, or None.
Check = Callable[[FloatArray, BoolArray], "int | None"]


def _first(rows: IntArray, high: BoolArray) -> int | None:
    return int(rows[high.argmax()]) if high.any() else None


def z_test(said: FloatArray, right: BoolArray) -> int | None:
    """Spiegelhalter's z of all rows so far, significant at 5 %."""
    top = np.cumsum((right - said) * (1 - 2 * said))
    under = np.cumsum((1 - 2 * said) ** 2 * said * (1 - said))
    at = np.arange(EVERY - 1, len(said), EVERY)
    return _first(at, np.abs(top[at]) > CRITICAL_Z * np.sqrt(under[at]))


def chi_square(said: FloatArray, right: BoolArray) -> int | None:
    """Hosmer and Lemeshow's chi-square of all rows so far, significant at 5 %."""
    cuts = np.quantile(said[:WINDOW], np.arange(1, GROUPS) / GROUPS)
    one = np.eye(GROUPS)[np.searchsorted(cuts, said)]
    at = np.arange(WINDOW - 1, len(said), EVERY)
    off = np.cumsum(one * (right - said)[:, None], axis=0)[at]
    spread = np.cumsum(one * (said * (1 - said))[:, None], axis=0)[at]
    return _first(at, (off**2 / spread).sum(axis=1) > CRITICAL_CHI_SQUARE)


def ece_threshold(said: FloatArray, right: BoolArray) -> int | None:
    """ECE of the latest thousand rows above 5 %."""
    one = np.eye(DEFAULT_BINS)[bin_index(said, bin_edges(DEFAULT_BINS))]
    sums = np.cumsum(one * (said - right)[:, None], axis=0)
    sums = np.vstack([np.zeros(DEFAULT_BINS), sums])
    end = np.arange(WINDOW, len(said) + 1, EVERY)
    ece = np.abs(sums[end] - sums[end - WINDOW]).sum(axis=1) / WINDOW
    return _first(end - 1, ece > ECE_THRESHOLD)


def monitored(said: FloatArray, right: BoolArray, tolerance: float) -> Monitor:
    """Return a monitor that has seen the rows, with c = 20 000 and alpha = 5 %."""
    monitor = Monitor(tolerance=tolerance, average_run_length=20_000)
    monitor.update(said, right)
    return monitor


CHECKS: dict[str, Check] = {
    "z": z_test,
    "chi-square": chi_square,
    "ece": ece_threshold,
}


# How often the monitor and the usual checks raise false alarms, and how soon true ones.
#
# Streams of 10 000 rows with logit p ~ N(2.2, 1.6) are honest, slightly off, or go off at row 5
# 000: true log odds a + b logit p. The monitor has alpha 5 % and c = 20 000; the usual checks are
# looked at every hundred rows.

_ALARM_MEASURES = (
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

    own_measures: ClassVar[tuple[Measure, ...]] = _ALARM_MEASURES

    def run(self, cell: Cell, inputs: Inputs, work: Path) -> dict[str, Any]:
        stream, test, streams = cell.at["stream"], cell.at["test"], self.setting(cell, "streams")
        if stream not in STREAMS:
            raise unknown(STREAMS, stream, "kind of stream")
        seeds = range(cell.seed * streams, (cell.seed + 1) * streams)
        held: list[bool] = []
        rows: list[int | None]
        if test in CHECKS:
            rows = [CHECKS[test](*draw(STREAMS[stream], seed)) for seed in seeds]
        else:
            name, tolerance = _of_monitor(test)
            alarms = [monitor.alarms.get(name) for monitor in _watched(stream, tolerance, seeds)]
            rows = [None if alarm is None else alarm.row for alarm in alarms]
            change = STREAMS[stream].change or 0
            if name == "change" and STREAMS[stream].sudden:
                true = [alarm for alarm in alarms if alarm is not None and alarm.row >= change]
                held = [alarm.since.low <= change <= alarm.since.high for alarm in true]
        return {"values": alarm_values(rows, STREAMS[stream].change, held)}


def alarm_values(rows: list[int | None], change: int | None, held: list[bool]) -> dict[str, Any]:
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
    return [monitored(*draw(STREAMS[stream], seed), tolerance) for seed in seeds]


# A network on images whose corruption gets worse: when does the monitor notice?

SEVERITIES = (1, 2, 3, 4, 5)
_IMAGE_MEASURES = (
    *(
        Measure(f"gap-{s}", f"gap {s}", 100, 1, "neither", "confidence minus accuracy")
        for s in SEVERITIES
    ),
    Measure("level", "level alarm", 1, 0, "neither", "row of the alarm"),
    Measure("change", "change alarm", 1, 0, "neither", "row of the alarm"),
    Measure("since", "off since", 1, 0, "neither", "row; the monitor's own interval"),
)


class AlarmsOnImages(NetworkKind):
    """Let a monitor watch clean test images, then each severity of one corruption, none twice."""

    version: ClassVar[str] = "1"
    unread: ClassVar[tuple[str, ...]] = RESAMPLED
    axes: ClassVar[tuple[str, ...]] = ("input", "network", "method", "corruption")
    defaults: ClassVar[Mapping[str, Any]] = {
        **NetworkKind.defaults,
        "clean": 4000,  # images
        "each": 1200,  # images of each severity
        "order": 0,  # seed of the order of the images
    }

    own_measures: ClassVar[tuple[Measure, ...]] = _IMAGE_MEASURES

    def measuring(self, cell: Cell) -> dict[str, Any]:
        sizes = self.settings(cell, "clean", "each", "order")
        return {"corruption": cell.at["corruption"], **sizes}

    def measure(self, cell: Cell, network: Network, inputs: Inputs) -> dict[str, Any]:
        import torch

        from calibrant_studies.networks.images import CORRUPTIONS, corrupt

        corruption = cell.at["corruption"]
        if corruption not in (NONE, *CORRUPTIONS):
            raise unknown((NONE, *CORRUPTIONS), corruption, "corruption")
        clean, each = self.setting(cell, "clean"), self.setting(cell, "each")
        images = network.test_images()
        order = np.random.default_rng(self.setting(cell, "order")).permutation(len(images))
        if len(order) < clean + each * len(SEVERITIES):
            raise InputError(
                f"{network.plan.name}: has {len(order)} test images, not {clean} clean ones and "
                f"{each} for each of {len(SEVERITIES)} severities; --set clean=, each= fewer"
            )
        speak = network.speaker(network.head())
        parts: list[tuple[FloatArray, BoolArray]] = []
        for severity in (0, *SEVERITIES):
            start = clean + (severity - 1) * each if severity else 0
            chosen = order[start : start + (each if severity else clean)]
            part = images.take(torch.as_tensor(chosen))
            if severity and corruption != NONE:
                part = corrupt(part, corruption, severity)
            top = score_top(speak(network.says_of(part)))
            parts.append((top.confidence, top.correct))
        values = {
            f"gap-{severity}": mean_with_interval(confidence - correct)
            for severity, (confidence, correct) in zip(SEVERITIES, parts[1:], strict=True)
        }
        monitor = Monitor()
        said, right = (np.concatenate(column) for column in zip(*parts, strict=True))
        monitor.update(said, right)
        for name, alarm in monitor.alarms.items():
            values[name] = {"value": alarm.row}
        change = monitor.alarms.get("change")
        if change is not None:
            since = change.since
            values["since"] = {"value": since.row, "low": since.low, "high": since.high}
        return {"values": values}


# Documents, whose rows are each honest and depend on one another.

_DOCUMENT_MEASURES = (
    Measure("false", "false alarms", 100, 1, "low", "streams of calibrated rows with an alarm"),
    Measure("found", "true alarms", 100, 1, "high", "streams with an alarm"),
    Measure("delay", "documents", 1, 0, "low", "median up to the alarm; ends are quartiles"),
)


def documents(
    count: int, rows: int, correlation: float, slope: float, seed: int
) -> tuple[FloatArray, BoolArray]:
    """Return confidences and outcomes of `count` documents of so many rows.

    Whether a row is right depends on a normal number, which correlates with those of its document;
    by itself it is right with logit p' = slope logit p.
    """
    from scipy.special import ndtr

    rng = np.random.default_rng(seed)
    odds = rng.normal(2.2, 1.6, (count, rows))
    shared, own = rng.normal(size=(count, 1)), rng.normal(size=(count, rows))
    mixed = correlation**0.5 * shared + (1 - correlation) ** 0.5 * own
    right: BoolArray = np.asarray(ndtr(mixed) < 1 / (1 + np.exp(-slope * odds)), dtype=np.bool_)
    return 1 / (1 + np.exp(-odds.ravel())), right.ravel()


class AlarmsOfDocuments(Simulated):
    """Draw streams of documents, and look when a monitor of rows or of clusters raises an alarm."""

    version: ClassVar[str] = "2"
    axes: ClassVar[tuple[str, ...]] = ("slope", "unit", "test")
    defaults: ClassVar[Mapping[str, Any]] = {
        "streams": 300,
        "documents": 500,
        "rows": 20,
        "correlation": 0.3,
    }

    own_measures: ClassVar[tuple[Measure, ...]] = _DOCUMENT_MEASURES

    def run(self, cell: Cell, inputs: Inputs, work: Path) -> dict[str, Any]:
        slope, unit = float(cell.at["slope"]), cell.at["unit"]
        sizes = self.settings(cell, "documents", "rows", "correlation")
        streams, rows = self.setting(cell, "streams"), int(sizes["rows"])
        name, tolerance = _of_monitor(cell.at["test"])
        if unit not in ("rows", "documents"):
            raise unknown(("rows", "documents"), unit, "unit")
        seeds = range(cell.seed * streams, (cell.seed + 1) * streams)
        whole = _seen(slope, unit, tolerance, tuple(sizes.values()), seeds)
        alarms = [found.get(name) for found in whole]
        risen = share(np.array([row is not None for row in alarms]))
        values: dict[str, Any] = {"false" if slope == 1 else "found": risen}
        taken = [row // rows + 1 for row in alarms if row is not None]
        if taken and slope != 1:
            low, middle, high = np.quantile(taken, (0.25, 0.5, 0.75)).tolist()
            values["delay"] = {"value": middle, "low": low, "high": high}
        return {"values": values}


@lru_cache(maxsize=2)
def _seen(
    slope: float, unit: str, tolerance: float, sizes: tuple[Any, ...], seeds: range
) -> list[dict[str, int]]:
    """Return the rows of the alarms of each stream, by test; c is ten times the stream."""
    count, rows, correlation = int(sizes[0]), int(sizes[1]), float(sizes[2])
    names = np.repeat(np.arange(count), rows).tolist()
    found: list[dict[str, int]] = []
    for seed in seeds:
        drawn = documents(count, rows, correlation, slope, seed)
        units = count if unit == "documents" else count * rows
        monitor = Monitor(tolerance=tolerance, average_run_length=10 * units)
        monitor.update(*drawn, clusters=names if unit == "documents" else None)
        monitor.close_clusters()
        found.append({test: alarm.row for test, alarm in monitor.alarms.items()})
    return found
