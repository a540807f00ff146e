"""The file in which a monitor's state is kept: safetensors with a header of JSON, written whole.

Whatever is read from it is checked: a state decides whether an alarm rises.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from os import fspath
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import FloatArray
from calibrant.core.errors import CalibrantError, CalibratorFileError
from calibrant.files.atomic import StrPath
from calibrant.files.parameters import ParameterFormat
from calibrant.monitor.clusters import ALL, PROMISE, Clusters, Dependence, Part, Unfinished
from calibrant.monitor.delayed_labels import DelayedLabels, Outcome, Said
from calibrant.monitor.latest import NUMBERS, Form, Scores
from calibrant.monitor.promise import Watched
from calibrant.monitor.sequential_tests import (
    ALTERNATIVES,
    COUNT,
    MOST_GROUPS,
    Alarm,
    Evidence,
    Groups,
    TwoTests,
)
from calibrant.monitor.windows import FOR_EVER, HOURS_KEPT, MOST_HOURS, WIDTH, Hours, Trail

# Alarms that are remembered, the latest.
MOST_ALARMS = 100


@dataclass(frozen=True)
class PastAlarm:
    """An alarm that was dealt with.

    Attributes:
        alarm: as it rose; until: number of the row at which the tests began anew.
    """

    alarm: Alarm
    until: int

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as JSON takes them."""
        return asdict(self)


@dataclass
class History:
    """When the tests began, and the alarms before that.

    Attributes:
        begun: number of the row with which the present tests began.
        before: how many rows were counted before that, of all replicas together.
        alarms: those before it, the oldest first.
    """

    begun: int = 0
    before: int = 0
    alarms: list[PastAlarm] = field(default_factory=list[PastAlarm])

    def begin(self, row: int, alarms: Iterable[Alarm]) -> None:
        """Note that the tests begin anew at a row, after these alarms."""
        self.begun = self.before = row
        self.alarms = [*self.alarms, *(PastAlarm(alarm, row) for alarm in alarms)][-MOST_ALARMS:]

    @classmethod
    def merged(cls, parts: Sequence[History], starts: Sequence[int]) -> History:
        """Return the history of parts whose rows begin at `starts`, as their numbers are there."""
        past = [
            PastAlarm(one.alarm.moved(start), one.until + start)
            for part, start in zip(parts, starts, strict=True)
            for one in part.alarms
        ]
        return cls(0, sum(part.before for part in parts), past[-MOST_ALARMS:])


Arrays = dict[str, NDArray[Any]]

# As a row's number in a file holds.
MOST_ROWS = (1 << 62) - 1
FORMAT = ParameterFormat("calibrant-monitor", 2, "the state of a monitor", "numpy")
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
        if (
            not len(counts)
            or counts[0]
            or level[0] != FOR_EVER
            or not rising
            or (row < counts).any()
        ):
            raise Damaged(f"the rows of '{name}' don't follow one another")
        return Trail(empty.base, empty.keep, counts, row, level, sums)

    def evidence(self, empty: Evidence, name: str, rows: int, count: int | None) -> Evidence:
        """Return evidence of `count` units, or as many as it says, of a stream of `rows`."""
        own = int(self.array(f"{name}.units", np.int64, (1,), 0, rows)[0])
        if own != (own if count is None else count):
            raise Damaged(f"'{name}' isn't of so many rows or clusters")
        return Evidence(
            own,
            self.array(f"{name}.products", np.float64, empty.products.shape),
            self.array(f"{name}.masses", np.float64, empty.masses.shape, 0.0),
            self.trail(empty.trail, f"{name}.trail", own, rows),
        )

    def history(self, rows: int) -> History:
        """Return when the tests of a stream of so many rows began, and alarms before that."""
        if "history" not in self.header:  # in states of old versions
            return History()
        own: dict[str, Any] = self.part(self.header, "history", dict)
        found = History(self.whole(own, "begun", rows), self.whole(own, "before", rows))
        for one in self.part(own, "alarms", list)[:MOST_ALARMS]:
            fields: dict[str, Any] = self.part(one, "alarm", dict)
            bounds = {fields.get("test"): self.number(fields, "threshold", -np.inf, np.inf)}
            alarm = self.alarm(fields, bounds, rows)
            found.alarms.append(PastAlarm(alarm, self.whole(one, "until", rows)))
        return found

    def groups(self, known: int | None, rows: int, *, rowwise: bool) -> Groups:
        """Return the groups of a stream of so many rows; `rowwise` if each was bet on by itself."""
        names: list[Any] = self.part(self.header, "groups", list)
        if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
            raise Damaged("names of groups that aren't text, or not different")
        if len(names) > min(MOST_GROUPS, MOST_GROUPS if known is None else known):
            raise Damaged("more groups than there may be")
        found = Groups(known, list(names))
        spans: Any = self.header.get("group_rows", [[0, max(rows - 1, 0)] for _ in names])
        if not isinstance(spans, list) or len(cast(list[Any], spans)) != len(names):
            raise Damaged("rows of groups that can't be")
        for first, last in cast(list[list[Any]], spans):
            if not (type(first) is type(last) is int and -1 <= first <= last < max(rows, 1)):
                raise Damaged("rows of groups that can't be")
            found.spans.append((first, last))
        for i in range(len(names)):
            cells = self.arrays.get(f"group{i}.cells", np.empty(0))
            count = round(float(cells[: len(cells) // 3].sum())) if len(cells) == WIDTH else 0
            found.sums.append(self.cells(f"group{i}.cells", count))
            units = count if rowwise else None
            found.evidence.append(self.evidence(Evidence.of_group(), f"group{i}", rows, units))
            if found.evidence[-1].units > count:
                raise Damaged(f"'group{i}' has fewer rows than clusters")
        if round(sum(float(sums[: len(sums) // 3].sum()) for sums in found.sums)) not in (0, rows):
            raise Damaged("groups don't have all rows")
        return found

    def of_three(self, of: dict[str, Any], name: str) -> bool | None:
        """Return true, false or None."""
        if of.get(name, "") not in (None, True, False):
            raise Damaged(f"'{name}' is neither true nor false")
        return of[name]

    def clusters(self, empty: Clusters, closed: int, groups: int, rows: int) -> Clusters:
        """Return the clusters of a stream of so many rows, of which so many were closed."""
        names: list[Any] = self.part(self.header, "unfinished", list)
        if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
            raise Damaged("names of clusters that aren't text, or not different")
        count = len(names)
        last = self.array("open.last", np.int64, (count,), 0, max(rows - 1, 0))
        moments = self.array("open.moments", np.float64, (count, 3), -float(rows), float(rows))
        pairs = zip(last.tolist(), moments, strict=True)
        found = [Unfinished(row, own) for row, own in pairs]
        sizes = dict[int, FloatArray]()
        if "open.part" in self.arrays:
            self._parts(found, groups, rows)
            part = self.array("sizes.part", np.int64, (None,), PROMISE, groups - 1)
            size = self.array("sizes", np.float64, (len(part), 3), 1.0, float(rows) ** 2 + 1)
            if (size[:, 0] > size[:, 1]).any() or (size[:, 1] > size[:, 2]).any():
                raise Damaged("sizes of clusters that can't be")
            sizes = dict(zip(part.tolist(), size, strict=True))
        known = self.array("closed", np.int64, (None,)).tolist()
        sums = self.array("dependence", np.float64, (6,))
        if len(known) > min(closed, empty.most_known) or sums[0] > rows:
            raise Damaged("more clusters than there may be")
        return replace(
            empty,
            unfinished=dict(zip(names, found, strict=True)),
            closed=dict.fromkeys(known),
            late=self.whole(self.header, "late", rows),
            beyond=self.whole(self.header, "beyond", rows) if sizes else 0,
            dependence=Dependence(self.whole(self.header, "clusters", rows), sums),
            sizes=sizes,
        )

    def _parts(self, unfinished: Sequence[Unfinished], groups: int, rows: int) -> None:
        """Fill the parts of unfinished clusters of a stream of so many groups and rows."""
        cluster = self.array("open.cluster", np.int64, (None,), 0, max(len(unfinished) - 1, 0))
        part = self.array("open.part", np.int64, (len(cluster),), PROMISE, groups - 1)
        # How many rows, the most that are bet on, how many of them.
        held = self.array("open.rows", np.int64, (len(cluster), 3), 1)
        paid = self.array("open.payments", np.float64, (len(cluster), COUNT), 0.0)
        if (held[:, 2] != held[:, :2].min(axis=1)).any() or (held[:, 0] > rows).any():
            raise Damaged("a part of a cluster isn't of so many rows")
        places: list[tuple[int, int]] = list(zip(cluster.tolist(), part.tolist(), strict=True))
        for (i, key), (count, most, some), sums in zip(places, held.tolist(), paid, strict=True):
            unfinished[i].counts[key] = count
            unfinished[i].parts[key] = Part(most, some, sums)
        if any(one.counts[ALL] != one.moments[0] for one in unfinished):
            raise Damaged("a cluster isn't of so many rows")

    def old_clusters(self, clusters: Clusters, promise: Watched | None, *, grouped: bool) -> None:
        """Fill the parts of unfinished clusters from a state of before 0.3.

        It has the sums of a cluster's payments by group, and how many rows keep and break a
        promise. They are bet on as they are then; rows that follow aren't.
        """
        unfinished = list(clusters.unfinished.values())
        cluster = self.array("open.cluster", np.int64, (None,), 0, max(len(unfinished) - 1, 0))
        groups = len(self.part(self.header, "groups", list))
        group = self.array("open.group", np.int64, (len(cluster),), 0, max(groups - 1, 0))
        held = self.array("open.rows", np.int64, (len(cluster),), 1)
        paid = self.array("open.payments", np.float64, (len(cluster), COUNT), 0.0)
        for i, one in enumerate(unfinished):
            at = cluster == i
            if held[at].sum() != one.moments[0]:
                raise Damaged("a cluster isn't of so many rows")
            parts: dict[int, tuple[int, FloatArray]] = {}
            parts[ALL] = int(held[at].sum()), paid[at].sum(axis=0)
            if grouped:
                own = zip(group[at].tolist(), held[at].tolist(), paid[at], strict=True)
                parts |= {g: (n, payments) for g, n, payments in own}
            if promise is not None and "open.promised" in self.arrays:
                shape = len(unfinished), 2
                kept, broken = self.array("open.promised", np.float64, shape, 0.0, 2.0**53)[i]
                pays = kept * promise.pays[0] + broken * promise.pays[1]
                parts |= {PROMISE: (int(kept + broken), pays)} if kept + broken else {}
            for key, (n, payments) in parts.items():
                one.parts[key], one.counts[key] = Part(n, n, payments), n

    def hours(self, rows: int) -> Hours:
        """Return the sums by hour of so many rows at most."""
        hour: list[int] = self.array("hours", np.int64, (None,), 0, MOST_HOURS).tolist()
        sums = self.array("hours.cells", np.float64, (len(hour), WIDTH), 0.0, float(rows))
        count, confidence, right = sums.reshape(len(hour), 3, WIDTH // 3).transpose(1, 0, 2)
        beyond = (right > count).any() or (confidence > count + 1e-6).any()
        if beyond or count.sum() > rows or len(set(hour)) < len(hour) or len(hour) > HOURS_KEPT:
            raise Damaged("sums of hours that can't be")
        return Hours(dict(zip(hour, sums, strict=True)))

    def scores(self, empty: Scores, rows: int) -> Scores:
        """Return the scores of the latest of so many rows; states of old versions have none."""
        if self.header.get("scores") is None:
            return empty
        own: dict[str, Any] = self.part(self.header, "scores", dict)
        names: Any = own.get("class_names")
        width = self.whole(own, "width", NUMBERS)
        waiting: list[Any] = self.part(own, "waiting", list)
        texts: list[Any] = [*waiting, *(names or ())]
        known = own.get("kind") in ("logits", "probs") and own.get("binary") in (True, False)
        if not known or width < 2 or not all(isinstance(text, str) for text in texts):
            raise Damaged("scores of an unknown form")
        form = Form(own["kind"], own["binary"], width, None if names is None else tuple(names))
        low, high = (0.0, 1.0) if form.kind == "probs" else (-np.inf, np.inf)
        found = replace(empty, form=form)
        label = self.array("scores.labels", np.int64, (None,), 0, width - 1)
        number = self.array("scores.row", np.int64, (len(label),), 0, max(rows - 1, 0))
        origin = self.array("scores.origin", np.int64, (len(label),))
        kept = self.array("scores.kept", np.float32, (len(label), width), low, high)
        scores = self.array("scores.waiting", np.float32, (len(waiting), width), low, high)
        most = max(len(label), len(waiting))
        if most > found.most or len(label) > rows or len(names or range(width)) != width:
            raise Damaged("more scores than there may be")
        found.waiting = dict(zip(waiting, scores, strict=True))
        found.parts = [(kept, label, number, origin)] if len(label) else []
        return found

    def alarms(self, tests: TwoTests, rows: int) -> dict[str, Alarm]:
        """Return the alarms that rose in so many rows."""
        found: dict[str, Alarm] = {}
        for fields in self.part(self.header, "alarms", list):
            alarm = self.alarm(fields, tests.bounds, rows)
            if alarm.test in found:
                raise Damaged("two alarms of a test")
            if not (alarm.group is None or alarm.group in tests.groups.names):
                raise Damaged("an alarm of an unknown group")
            found[alarm.test] = alarm
        return found

    def alarm(self, fields: dict[str, Any], bounds: Mapping[Any, float], rows: int) -> Alarm:
        """Return the alarm of one of these tests that rose in so many rows."""
        alarm = Alarm.from_dict(fields)
        since = alarm.since
        whole = all(type(at) is int for at in (since.low, since.row, since.high, alarm.row))
        if alarm.test not in bounds or not whole:
            raise Damaged("an alarm of no test, or without its row")
        ordered = 0 <= since.low <= since.row <= since.high <= alarm.row + 1 <= rows
        bound = self.number(fields, "threshold", -np.inf, np.inf)
        if not ordered or bound != bounds[alarm.test]:
            raise Damaged("an alarm whose rows or threshold can't be")
        self.number(fields, "log_evidence", bound, np.inf)
        return alarm

    def promise(self, empty: Watched | None, rows: int) -> Watched | None:
        """Return the evidence against a promise."""
        if empty is None:
            return None
        own: dict[str, Any] = self.part(self.header, "promise", dict)
        about = self.whole(own, "rows", rows)
        fields, bounds = own.get("alarm"), {"promise": empty.bound}
        return replace(
            empty,
            evidence=self.evidence(empty.evidence, "promise", rows, None),
            rows=about,
            broken=self.whole(own, "broken", about),
            alarm=None if fields is None else self.alarm(fields, bounds, rows),
        )

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
            if said.hour is not None:
                self.whole(said._asdict(), "hour", MOST_HOURS)
            names: tuple[Any, ...] = said.group, said.cluster
            if not all(name is None or isinstance(name, str) for name in names):
                raise Damaged("a group or a cluster that isn't text")
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
        f"{name}.units": np.array([evidence.units]),
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


def pack_clusters(clusters: Clusters) -> Arrays:
    """Return the sums of unfinished clusters, and which were closed; names go into the header."""
    unfinished = clusters.unfinished.values()
    parts = [
        (i, key, part, [one.counts[key], part.most, part.rows])
        for i, one in enumerate(unfinished)
        for key, part in one.parts.items()
    ]
    whole = {
        "open.last": [one.last for one in unfinished],
        "open.cluster": [i for i, _, _, _ in parts],
        "open.part": [key for _, key, _, _ in parts],
        "closed": list(clusters.closed),
        "sizes.part": list(clusters.sizes),
    }
    sums = {
        "open.moments": (3, [one.moments for one in unfinished]),
        "open.payments": (COUNT, [part.payments for _, _, part, _ in parts]),
        "sizes": (3, list(clusters.sizes.values())),
    }
    arrays: Arrays = {name: np.array(own, dtype=np.int64) for name, own in whole.items()}
    arrays["open.rows"] = np.array([rows for *_, rows in parts], dtype=np.int64).reshape(-1, 3)
    arrays |= {name: np.array(own).reshape(-1, width) for name, (width, own) in sums.items()}
    return arrays | {"dependence": clusters.dependence.sums}


def pack_scores(scores: Scores) -> Arrays:
    """Return the scores of the latest rows as arrays; their form goes into the header."""
    names = ("kept", "labels", "row", "origin")
    arrays = {f"scores.{n}": part for n, part in zip(names, scores.together(), strict=True)}
    width = 0 if scores.form is None else scores.form.width
    waiting = np.array([*scores.waiting.values()], dtype=np.float32).reshape(-1, width)
    return arrays | {"scores.waiting": waiting}


def pack_hours(hours: Hours) -> Arrays:
    """Return the sums by hour as arrays."""
    return {
        "hours": np.array(list(hours.sums), dtype=np.int64),
        "hours.cells": np.array(list(hours.sums.values())).reshape(-1, WIDTH),
    }
