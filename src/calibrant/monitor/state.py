"""The state of a monitor: everything that it has counted, as a file, and of several monitors.

A file is safetensors with a header of JSON, written whole.

To merge monitors, the hypothesis speaks of each row given all that came before, whoever saw it. For
rows of several replicas in the order of the clock the payments of alternative j multiply to one
product, which is the sum of the replicas' log products; and the sum of their R_j grows by no more
than their rows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from os import fspath
from typing import Any, cast

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
    MOST_GROUPS,
    Alarm,
    ChangePoint,
    Evidence,
    Groups,
    TwoTests,
    change_point,
)
from calibrant.monitor.trail import FOR_EVER, Trail
from calibrant.monitor.windows import WIDTH, Windows

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
        latest = {
            "latest.confidence": self.latest.confidence,
            "latest.correct": self.latest.correct,
        }
        return header, arrays | latest | self.waiting.pack()

    def unpack(self, saved: Saved) -> None:
        """Take over what `pack` returned, having counted nothing so far.

        Raises:
            Damaged: something is missing, of another shape or type, or out of its limits.
        """
        tests, windows = self.tests, self.windows
        rows = windows.rows = saved.whole(saved.header, "rows")
        windows.trail = saved.trail(windows.trail, "windows", rows, rows)
        windows.sums = saved.cells("windows.cells", rows)
        if (np.diff(windows.trail.sums, axis=0) < 0).any() or windows.trail.sums.min() < 0:
            raise Damaged("sums of windows that fall")
        if (windows.trail.sums[-1] > windows.sums).any():
            raise Damaged("sums of windows beyond those of the stream")
        tests.evidence = saved.evidence(tests.evidence, "stream", rows)
        tests.groups = saved.groups(tests.groups.known, rows)
        tests.alarms = saved.alarms(tests, rows)
        n = min(rows, self.latest.most)
        latest = saved.array("latest.confidence", np.float64, (None,), 0.0, 1.0)
        if len(latest) > n:
            raise Damaged("more latest rows than there are")
        correct = saved.array("latest.correct", np.bool_, (len(latest),))
        self.latest = Latest(self.latest.most, latest, correct)
        self.waiting = saved.waiting(self.waiting.most)
        sums = saved.part(saved.header, "unlabelled", dict)
        without = saved.whole(sums, "rows")
        # Rows are taken out again, and leave a rounding error.
        total, variance = (
            saved.number(sums, name, -1e-6 * (rows + without + 1), without * (1 + 1e-6) + 1.0)
            for name in ("total", "variance")
        )
        self.unlabelled = Unlabelled(without, total, variance)
        self.notes = saved.part(saved.header, "notes", dict)
        self.grouped = saved.header["grouped"]
        if self.grouped not in (None, True, False):
            raise Damaged("'grouped' is neither true nor false")

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
    logs = {"level": tests.log_level, "change": tests.log_mass}
    for test, bound in tests.bounds.items():
        if rows and logs[test] >= bound:
            since = _since(parts)
            tests.alarms[test] = Alarm(test, rows - 1, logs[test], bound, since)
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

# As a row's number in a file holds.
MOST_ROWS = (1 << 62) - 1
FORMAT = ParameterFormat("calibrant-monitor", 1, "the state of a monitor", "numpy")
_TRAIL = ("count", "row", "level", "sums")


class Damaged(ValueError):
    """What is wrong with a state; `damaged_is_said` makes an error of it that names the file."""


def write_state(path: StrPath, header: dict[str, Any], arrays: Arrays) -> None:
    """Write header and arrays, whole or not at all.

    Raises:
        InputError: a folder that doesn't exist, or no room.
    """
    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    whole["alternatives"] = ALTERNATIVES
    text = json.dumps(header)
    FORMAT.write(path, {"monitor": text, "checksum": _checksum(text, whole)}, whole)


def read_state(path: StrPath) -> Saved:
    """Return what is in the file of a state.

    Raises:
        CalibratorFileError: the file is missing, damaged or something else.
    """
    header, arrays = FORMAT.read(path)
    bets = arrays.get("alternatives")
    if bets is None or not np.array_equal(bets, ALTERNATIVES):
        raise CalibratorFileError(f"{fspath(path)}: was made with other bets; begin a new state")
    with damaged_is_said(path):
        text = header["monitor"]
        if header.get("checksum") != _checksum(text, arrays):
            raise Damaged("it was changed since it was written")
        found: Any = json.loads(text)
        if not isinstance(found, dict):
            raise Damaged("its header is no JSON object")
        return Saved(cast(dict[str, Any], found), arrays)


def _checksum(text: str, arrays: Arrays) -> str:
    """Return a hash of all that a state holds."""
    found = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16)
    for name, array in sorted(arrays.items()):
        found.update(f"{name} {array.dtype.str} {array.shape}".encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


@contextmanager
def damaged_is_said(path: StrPath) -> Generator[None]:
    """Turn whatever a damaged state raises in the body into one sentence."""
    try:
        yield
    except CalibrantError:
        raise
    except Exception as error:
        why = f": {error}" if isinstance(error, Damaged) else ""
        raise CalibratorFileError(
            f"{fspath(path)}: is a damaged state of a monitor{why}; begin a new one"
        ) from error


@dataclass(frozen=True)
class Saved:
    """The content of a state's file. Whatever is taken out of it is checked.

    Attributes:
        header: a JSON object; arrays: by name.
    """

    header: dict[str, Any]
    arrays: Arrays

    @staticmethod
    def part(of: dict[str, Any], name: str, kind: type[Any] | tuple[type[Any], ...]) -> Any:
        """Return an entry of an object that has to be of a type."""
        value = of.get(name)
        if not isinstance(value, kind):
            raise Damaged(f"'{name}' is missing or of another type")
        return value

    @classmethod
    def whole(cls, of: dict[str, Any], name: str, most: int = MOST_ROWS) -> int:
        """Return a whole number from 0."""
        value = cls.part(of, name, int)
        if isinstance(value, bool) or not 0 <= value <= most:
            raise Damaged(f"'{name}' is out of its limits")
        return value

    @classmethod
    def number(cls, of: dict[str, Any], name: str, low: float, high: float) -> float:
        """Return a number within limits."""
        value = cls.part(of, name, (int, float))
        if isinstance(value, bool) or not low <= value <= high:
            raise Damaged(f"'{name}' is out of its limits")
        return float(value)

    def array(
        self,
        name: str,
        dtype: type[Any],
        shape: tuple[int | None, ...],
        low: float = -np.inf,
        high: float = np.inf,
    ) -> NDArray[Any]:
        """Return a copy of an array whose type, sizes and numbers have to be such; None: any."""
        found = self.arrays.get(name)
        if found is None or found.dtype != dtype or found.ndim != len(shape):
            raise Damaged(f"'{name}' is missing or of another type")
        if any(size not in (None, own) for size, own in zip(shape, found.shape, strict=True)):
            raise Damaged(f"'{name}' has another shape")
        if not (np.isfinite(found) & (found >= low) & (found <= high)).all():
            raise Damaged(f"'{name}' holds a number out of its limits")
        return found.copy()

    def cells(self, name: str, rows: int) -> FloatArray:
        """Return the (3 C,) sums of the cells of so many rows."""
        sums = self.array(name, np.float64, (WIDTH,), 0.0, float(rows))
        count, confidence, right = sums.reshape(3, -1)
        if count.sum() != rows or (right > count).any() or (confidence > count + 1e-6).any():
            raise Damaged(f"'{name}' isn't of so many rows")
        return sums

    def trail(self, empty: Trail, name: str, count: int, rows: int) -> Trail:
        """Return the trail of `count` rows of a stream of `rows`; `empty` is one of its kind."""
        counts = self.array(f"{name}.count", np.int64, (None,), 0, count)
        row = self.array(f"{name}.row", np.int64, (len(counts),), 0, rows)
        level = self.array(f"{name}.level", np.int64, (len(counts),), 0, FOR_EVER)
        sums = self.array(f"{name}.sums", np.float64, (len(counts), empty.sums.shape[1]))
        rising = (np.diff(counts) >= 0).all() and (np.diff(row) >= 0).all()
        if not len(counts) or counts[0] != 0 or not rising or (row < counts).any():
            raise Damaged(f"the rows of '{name}' don't follow one another")
        return Trail(empty.base, empty.keep, counts, row, level, sums)

    def evidence(self, empty: Evidence, name: str, rows: int, count: int | None = None) -> Evidence:
        """Return evidence of `count` rows, or as many as it says, of a stream of `rows`."""
        own = int(self.array(f"{name}.rows", np.int64, (1,), 0, rows)[0])
        if own != (rows if count is None else count):
            raise Damaged(f"'{name}' isn't of so many rows")
        return Evidence(
            own,
            self.array(f"{name}.products", np.float64, empty.products.shape),
            self.array(f"{name}.masses", np.float64, empty.masses.shape, 0.0),
            self.trail(empty.trail, f"{name}.trail", own, rows),
        )

    def groups(self, known: int | None, rows: int) -> Groups:
        """Return the groups of a stream of so many rows."""
        names: list[Any] = self.part(self.header, "groups", list)
        if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
            raise Damaged("names of groups that aren't text, or not different")
        if len(names) > min(MOST_GROUPS, MOST_GROUPS if known is None else known):
            raise Damaged("more groups than there may be")
        found = Groups(known, list(names))
        for i in range(len(names)):
            cells = self.arrays.get(f"group{i}.cells", np.empty(0))
            count = round(float(cells[: len(cells) // 3].sum())) if len(cells) == WIDTH else 0
            found.sums.append(self.cells(f"group{i}.cells", count))
            found.evidence.append(self.evidence(Evidence.of_group(), f"group{i}", rows, count))
        if sum(evidence.rows for evidence in found.evidence) not in (0, rows):
            raise Damaged("groups don't have all rows")
        return found

    def alarms(self, tests: TwoTests, rows: int) -> dict[str, Alarm]:
        """Return the alarms that rose in so many rows."""
        found: dict[str, Alarm] = {}
        for fields in self.part(self.header, "alarms", list):
            alarm = Alarm.from_dict(fields)
            since = alarm.since
            places = (since.low, since.row, since.high, alarm.row)
            whole = all(type(place) is int for place in places)
            if alarm.test not in tests.bounds or alarm.test in found or not whole:
                raise Damaged("an alarm of no test, or without its row")
            ordered = 0 <= since.low <= since.row <= since.high <= alarm.row + 1 <= rows
            bound = self.number(fields, "threshold", -np.inf, np.inf)
            if not ordered or bound != tests.bounds[alarm.test]:
                raise Damaged("an alarm whose rows or threshold can't be")
            self.number(fields, "log_evidence", bound, np.inf)
            if not (alarm.group is None or alarm.group in tests.groups.names):
                raise Damaged("an alarm of an unknown group")
            found[alarm.test] = alarm
        return found

    def waiting(self, most: int) -> DelayedLabels:
        """Return what waits, at most so many of each kind."""
        text = self.array("waiting", np.uint8, (None,)).tobytes().decode()
        predictions, outcomes, repeated, given_up = json.loads(text)
        counts = {"repeated": repeated, "given up": given_up}
        done = self.array("done", np.int64, (None,)).tolist()
        found = DelayedLabels(
            most,
            {name: Said(*fields) for name, fields in predictions.items()},
            {name: Outcome(*fields) for name, fields in outcomes.items()},
            dict.fromkeys(done),
            *(self.whole(counts, name) for name in counts),
        )
        if max(len(found.predictions), len(found.outcomes), len(done)) > most:
            raise Damaged("more predictions or outcomes wait than may")
        for said in found.predictions.values():
            self.number(said._asdict(), "confidence", 0.0, 1.0)
            if said.predicted is not None:
                self.whole(said._asdict(), "predicted")
            if not (said.group is None or isinstance(said.group, str)):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise Damaged("a group that isn't text")
        for outcome in found.outcomes.values():
            self.whole(outcome._asdict(), "value")
            self.part(outcome._asdict(), "is_label", bool)
        return found


def pack_trail(trail: Trail, name: str) -> Arrays:
    """Return a trail as arrays that begin with `name`."""
    return {f"{name}.{part}": getattr(trail, part) for part in _TRAIL}


def pack_evidence(evidence: Evidence, name: str) -> Arrays:
    """Return evidence as arrays that begin with `name`."""
    return {
        f"{name}.rows": np.array([evidence.rows]),
        f"{name}.products": evidence.products,
        f"{name}.masses": evidence.masses,
        **pack_trail(evidence.trail, f"{name}.trail"),
    }


def pack_groups(groups: Groups) -> Arrays:
    """Return the evidence of all groups as arrays; their names go into the header."""
    arrays: Arrays = {}
    for i, (evidence, sums) in enumerate(zip(groups.evidence, groups.sums, strict=True)):
        arrays |= pack_evidence(evidence, f"group{i}") | {f"group{i}.cells": sums}
    return arrays
