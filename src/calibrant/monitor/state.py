"""The state of a monitor: everything that it has counted, as a file, and of several monitors.

A file is safetensors with a header of JSON, written whole.

To merge monitors, the hypothesis speaks of each row given all that came before, whoever saw it. For
rows of several replicas in the order of the clock the payments of alternative j multiply to one
product, which is the sum of the replicas' log products; and the sum of their R_j grows by no more
than their rows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from os import fspath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import BoolArray, FloatArray, IntArray
from calibrant.core.errors import CalibrantError, CalibratorFileError, InputError
from calibrant.files.atomic import StrPath
from calibrant.files.parameters import ParameterFormat
from calibrant.monitor.delayed_labels import DelayedLabels, Joined, Outcome, Said, Unlabelled
from calibrant.monitor.diagnosis import Latest
from calibrant.monitor.sequential_tests import (
    ALTERNATIVES,
    Alarm,
    ChangePoint,
    Evidence,
    Groups,
    TwoTests,
    change_point,
)
from calibrant.monitor.trail import FOR_EVER, Trail
from calibrant.monitor.windows import Windows

# As many rows as are worked on at once: their payments should stay in the cache.
ROWS_AT_ONCE = 2048


@dataclass
class State:
    """What was counted.

    Attributes:
        tests: the two tests.
        windows: sums over the stream.
        latest: the latest rows.
        waiting: predictions and outcomes without each other.
        unlabelled: sums over rows without an outcome.
        notes: of whoever feeds the monitor.
        grouped: whether rows have groups; None before the first.
    """

    tests: TwoTests
    windows: Windows
    latest: Latest
    waiting: DelayedLabels
    unlabelled: Unlabelled = field(default_factory=Unlabelled)
    notes: dict[str, Any] = field(default_factory=dict[str, Any])
    grouped: bool | None = None

    @classmethod
    def start(cls, settings: Mapping[str, Any]) -> State:
        """Return what a monitor of these settings has counted before the first row."""
        tests = TwoTests(
            settings["tolerance"],
            settings["alpha"],
            settings["average_run_length"],
            groups=Groups(settings["n_groups"]),
        )
        return cls(
            tests,
            Windows.start(settings["window"]),
            Latest.start(settings["latest"]),
            DelayedLabels(settings["most_waiting"]),
        )

    def add(
        self, said: FloatArray, right: BoolArray, names: Sequence[str] | None
    ) -> tuple[Alarm, ...]:
        """Count (n,) rows with their outcomes, and return the alarms that rose.

        Raises:
            InputError: groups for some rows only, or more of them than there were to be.
        """
        tests, member = self.tests, self._members(names)
        risen: list[Alarm] = []
        for start in range(0, len(said), ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            some, hits, first = said[part], right[part], self.windows.rows
            row = np.arange(first, first + len(some))
            risen += tests.add(some, hits, row, None if member is None else member[part])
            self.windows.add(some, hits)
            self.latest.add(some, hits)
        return tuple(risen)

    def _members(self, names: Sequence[str] | None) -> IntArray | None:
        """Return the index of each row's group, or None where rows have none."""
        if self.grouped not in (None, names is not None):
            raise InputError("groups must be given for all rows or for none")
        self.grouped = names is not None
        return None if names is None else self.tests.groups.index_of(names)

    def predict(
        self,
        keys: Sequence[Any],
        said: FloatArray,
        classes: Sequence[int | None],
        names: Sequence[str] | None,
    ) -> tuple[Alarm, ...]:
        """Take (n,) predictions, whose outcomes may be there or come.

        Raises:
            PredictionsError: the label that is there needs the class; nothing is taken then.
            InputError: see `add`.
        """
        # So groups get their places in the order of the predictions, which no outcome changes.
        self._members(names)
        for key, predicted in zip(keys, classes, strict=True):
            self.waiting.check(key, predicted)
        joined: list[Joined | None] = []
        waiting: list[float] = []
        groups: Sequence[str | None] = [None] * len(keys) if names is None else names
        for key, p, predicted, name in zip(keys, said.tolist(), classes, groups, strict=True):
            new, row = self.waiting.predict(key, Said(p, predicted, name))
            joined.append(row)
            if new and row is None:
                waiting.append(p)
        self.unlabelled.add(np.array(waiting))
        return self._add_joined(joined)

    def learn(self, keys: Sequence[Any], outcomes: Sequence[Outcome]) -> tuple[Alarm, ...]:
        """Take (n,) outcomes, whose predictions may be there or come.

        Raises:
            PredictionsError: a label of a prediction without its class; nothing is taken then.
        """
        for key, outcome in zip(keys, outcomes, strict=True):
            self.waiting.check(key, None, outcome)
        joined = [self.waiting.learn(k, y) for k, y in zip(keys, outcomes, strict=True)]
        self.unlabelled.add(np.array([row.confidence for row in joined if row is not None]), -1)
        return self._add_joined(joined)

    def _add_joined(self, joined: Iterable[Joined | None]) -> tuple[Alarm, ...]:
        rows = [row for row in joined if row is not None]
        if not rows:
            return ()
        said, right = np.array([row.confidence for row in rows]), [row.correct for row in rows]
        names = [str(row.group) for row in rows if row.group is not None]
        return self.add(said, np.array(right, dtype=np.bool_), names or None)

    def pack(self) -> tuple[dict[str, Any], Arrays]:
        """Return everything as a header and arrays."""
        header = {
            "notes": self.notes,
            "groups": self.tests.groups.names,
            "alarms": [alarm.as_dict() for alarm in self.tests.alarms.values()],
            "unlabelled": vars(self.unlabelled),
            "rows": self.windows.rows,
            "grouped": self.grouped,
        }
        arrays = pack_evidence(self.tests.evidence, "stream") | pack_groups(self.tests.groups)
        arrays |= pack_trail(self.windows.trail, "windows")
        arrays |= {"windows.cells": self.windows.sums}
        return header, arrays | self.latest.pack() | self.waiting.pack()

    def unpack(self, header: dict[str, Any], arrays: Arrays) -> None:
        """Take over what `pack` returned, having counted nothing so far."""
        tests, windows = self.tests, self.windows
        tests.evidence = unpack_evidence(tests.evidence, arrays, "stream")
        tests.groups = unpack_groups(tests.groups.known, header["groups"], arrays)
        tests.alarms = {alarm["test"]: Alarm.from_dict(alarm) for alarm in header["alarms"]}
        windows.trail = unpack_trail(windows.trail, arrays, "windows")
        windows.rows, windows.sums = header["rows"], arrays["windows.cells"].copy()
        self.latest = Latest.unpack(self.latest.most, arrays)
        self.waiting = DelayedLabels.unpack(self.waiting.most, arrays)
        self.unlabelled = Unlabelled(**header["unlabelled"])
        self.notes, self.grouped = header["notes"], header["grouped"]

    @classmethod
    def merged(cls, parts: Sequence[State]) -> State:
        """Return what several monitors of the same settings have counted together."""
        unlabelled = Unlabelled()
        for part in parts:
            unlabelled += part.unlabelled
        return cls(
            merged_tests([part.tests for part in parts]),
            merged_windows([part.windows for part in parts]),
            Latest.merged([part.latest for part in parts]),
            parts[0].waiting.merge(part.waiting for part in parts[1:]),
            unlabelled,
            grouped=next((p.grouped for p in parts if p.grouped is not None), None),
        )


def merged_tests(parts: Sequence[TwoTests]) -> TwoTests:
    """Return the tests of all rows together, with the alarms that rise by what they sum to.

    Raises:
        InputError: there are groups, but it isn't known how many.
    """
    first = parts[0]
    rows = sum(part.evidence.rows for part in parts)
    tests = TwoTests(
        first.tolerance,
        first.alpha,
        first.average_run_length,
        _summed([part.evidence for part in parts], Evidence(), rows),
        _merged_groups([part.groups for part in parts], rows),
    )
    bounds = {"level": -math.log(first.alpha), "change": math.log(first.average_run_length)}
    logs = {"level": tests.log_level, "change": tests.log_mass}
    for test in ("level", "change"):
        if rows and logs[test] >= bounds[test]:
            since = _since(parts)
            tests.alarms[test] = Alarm(test, rows - 1, logs[test], bounds[test], since)
    return tests


def merged_windows(parts: Sequence[Windows]) -> Windows:
    """Return the windows of all parts, one part after the other."""
    trail = parts[0].trail
    counts, levels, sums = [trail.count[:1]], [trail.level[:1]], [trail.sums[:1]]
    rows, total = 0, np.zeros_like(parts[0].sums)
    for part in parts:
        counts.append(part.trail.count[1:] + rows)
        levels.append(part.trail.level[1:])
        sums.append(part.trail.sums[1:] + total)
        rows, total = rows + part.rows, total + part.sums
        # Where a part ends, a window does.
        if part.rows and counts[-1][-1:] != rows:
            counts.append(np.array([rows], dtype=np.int64))
            levels.append(np.array([FOR_EVER], dtype=np.int64))
            sums.append(total[None, :])
    count = np.concatenate(counts)
    whole = Trail(
        trail.base, trail.keep, count, count.copy(), np.concatenate(levels), np.concatenate(sums)
    )
    return Windows(rows, total, whole)


def _summed(parts: Sequence[Evidence], empty: Evidence, rows: int) -> Evidence:
    """Return the sum of evidence; where in the parts a change lies is forgotten."""
    count = sum(part.rows for part in parts)
    products = np.sum([part.products for part in parts], axis=0)
    empty.trail.mark(count, rows, products)
    masses = np.sum([part.masses for part in parts], axis=0)
    return replace(empty, rows=count, products=products, masses=masses)


def _merged_groups(parts: Sequence[Groups], rows: int) -> Groups:
    merged = Groups(parts[0].known)
    if not any(part.names for part in parts):
        return merged
    if merged.known is None:
        raise InputError(
            "monitors with groups can be merged only if n_groups says how many there are, because "
            "the groups' weights must not change from one merging to the next"
        )
    merged.index_of([name for part in parts for name in part.names])
    for i, name in enumerate(merged.names):
        held = [(part, part.names.index(name)) for part in parts if name in part.names]
        own = [part.evidence[k] for part, k in held]
        merged.evidence[i] = _summed(own, Evidence.of_group(), rows)
        merged.sums[i] = np.sum([part.sums[k] for part, k in held], axis=0)
    return merged


def _since(parts: Sequence[TwoTests]) -> ChangePoint:
    """Return since when, by the part with the most evidence, in the numbers of the whole."""
    starts = np.cumsum([0, *(part.evidence.rows for part in parts)])
    most = int(np.argmax([part.evidence.mass for part in parts]))
    found, start = change_point(parts[most].evidence), int(starts[most])
    return ChangePoint(found.row + start, found.low + start, found.high + start)


Arrays = dict[str, NDArray[Any]]

FORMAT = ParameterFormat("calibrant-monitor", 1, "the state of a monitor", "numpy")
_TRAIL = ("count", "row", "level", "sums")


def write_state(path: StrPath, header: dict[str, Any], arrays: Arrays) -> None:
    """Write header and arrays, whole or not at all.

    Raises:
        InputError: a folder that doesn't exist, or no room.
    """
    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    whole["alternatives"] = ALTERNATIVES
    FORMAT.write(path, {"monitor": json.dumps(header)}, whole)


def read_state(path: StrPath) -> tuple[dict[str, Any], Arrays]:
    """Return header and arrays of a file.

    Raises:
        CalibratorFileError: the file is missing, damaged or something else.
    """
    header, arrays = FORMAT.read(path)
    bets = arrays.get("alternatives")
    if bets is None or not np.array_equal(bets, ALTERNATIVES):
        raise CalibratorFileError(f"{fspath(path)}: was made with other bets; begin a new state")
    with damaged_is_said(path):
        return json.loads(header["monitor"]), arrays


@contextmanager
def damaged_is_said(path: StrPath) -> Generator[None]:
    """Turn whatever a damaged state raises in the body into one sentence."""
    try:
        yield
    except CalibrantError:
        raise
    except Exception as error:
        raise CalibratorFileError(f"{fspath(path)}: is a damaged state of a monitor") from error


def pack_trail(trail: Trail, name: str) -> Arrays:
    """Return a trail as arrays that begin with `name`."""
    return {f"{name}.{part}": getattr(trail, part) for part in _TRAIL}


def unpack_trail(trail: Trail, arrays: Arrays, name: str) -> Trail:
    """Return the trail packed under `name`, with the base of an empty one."""
    parts = {part: arrays[f"{name}.{part}"].copy() for part in _TRAIL}
    if parts["sums"].shape != (len(parts["count"]), trail.sums.shape[1]):
        raise ValueError("a trail of another width")
    return Trail(trail.base, trail.keep, **parts)


def pack_evidence(evidence: Evidence, name: str) -> Arrays:
    """Return evidence as arrays that begin with `name`."""
    return {
        f"{name}.rows": np.array([evidence.rows]),
        f"{name}.products": evidence.products,
        f"{name}.masses": evidence.masses,
        **pack_trail(evidence.trail, f"{name}.trail"),
    }


def unpack_evidence(empty: Evidence, arrays: Arrays, name: str) -> Evidence:
    """Return the evidence packed under `name`; `empty` is such evidence before any row."""
    return Evidence(
        int(arrays[f"{name}.rows"][0]),
        arrays[f"{name}.products"].copy(),
        arrays[f"{name}.masses"].copy(),
        unpack_trail(empty.trail, arrays, f"{name}.trail"),
    )


def pack_groups(groups: Groups) -> Arrays:
    """Return the evidence of all groups as arrays; their names go into the header."""
    arrays: Arrays = {}
    for i, (evidence, sums) in enumerate(zip(groups.evidence, groups.sums, strict=True)):
        arrays |= pack_evidence(evidence, f"group{i}") | {f"group{i}.cells": sums}
    return arrays


def unpack_groups(known: int | None, names: list[str], arrays: Arrays) -> Groups:
    """Return the groups packed by `pack_groups`."""
    every = range(len(names))
    return Groups(
        known,
        list(names),
        [unpack_evidence(Evidence.of_group(), arrays, f"group{i}") for i in every],
        [arrays[f"group{i}.cells"].copy() for i in every],
    )
