"""Everything that a monitor has counted, and how it is kept in a file and put together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from calibrant.core.arrays import BoolArray, FloatArray, IntArray
from calibrant.core.errors import InputError
from calibrant.monitor import merging
from calibrant.monitor.groups import Groups
from calibrant.monitor.latest import Latest
from calibrant.monitor.state import (
    Arrays,
    pack_evidence,
    pack_groups,
    pack_trail,
    unpack_evidence,
    unpack_groups,
    unpack_trail,
)
from calibrant.monitor.two_tests import Alarm, TwoTests
from calibrant.monitor.unlabelled import Unlabelled
from calibrant.monitor.waiting import Joined, Outcome, Said, Waiting
from calibrant.monitor.windows import Windows

# As many rows as are worked on at once: their payments should stay in the cache.
ROWS_AT_ONCE = 2048


@dataclass
class Counted:
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
    waiting: Waiting
    unlabelled: Unlabelled = field(default_factory=Unlabelled)
    notes: dict[str, Any] = field(default_factory=dict[str, Any])
    grouped: bool | None = None

    @classmethod
    def start(cls, settings: Mapping[str, Any]) -> Counted:
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
            Waiting(settings["most_waiting"]),
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
        self.waiting = Waiting.unpack(self.waiting.most, arrays)
        self.unlabelled = Unlabelled(**header["unlabelled"])
        self.notes, self.grouped = header["notes"], header["grouped"]

    @classmethod
    def merged(cls, parts: Sequence[Counted]) -> Counted:
        """Return what several monitors of the same settings have counted together."""
        unlabelled = Unlabelled()
        for part in parts:
            unlabelled += part.unlabelled
        return cls(
            merging.merged_tests([part.tests for part in parts]),
            merging.merged_windows([part.windows for part in parts]),
            Latest.merged([part.latest for part in parts]),
            parts[0].waiting.merge(part.waiting for part in parts[1:]),
            unlabelled,
            grouped=next((p.grouped for p in parts if p.grouped is not None), None),
        )
