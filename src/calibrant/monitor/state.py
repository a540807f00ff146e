"""The state of a monitor: everything that it has counted, and of several monitors together.

To merge monitors, the hypothesis speaks of each row given all that came before, whoever saw it. For
rows of several replicas in the order of the clock the payments of alternative j multiply to one
product, which is the sum of the replicas' log products; and the sum of their R_j grows by no more
than their rows. The same goes for clusters, if all rows of one come to the same replica.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from calibrant.core.arrays import BoolArray, FloatArray, IntArray
from calibrant.core.errors import InputError
from calibrant.monitor.clusters import (
    ALL,
    PROMISE,
    Clusters,
    Unfinished,
    bets_of_clusters,
    factors_of,
)
from calibrant.monitor.delayed_labels import (
    DelayedLabels,
    Joined,
    Outcome,
    Said,
    Unlabelled,
    hash_of_name,
)
from calibrant.monitor.latest import Latest, Scores
from calibrant.monitor.promise import Watched
from calibrant.monitor.sequential_tests import (
    Alarm,
    ChangePoint,
    Evidence,
    Groups,
    TwoTests,
    bets_of_rows,
    change_point,
    payments,
)
from calibrant.monitor.windows import FOR_EVER, Hours, Trail, Windows
from calibrant.predictions.predictions import Predictions

# As many rows as are worked on at once: their payments should stay in the cache.
ROWS_AT_ONCE = 2048


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


@dataclass
class State:
    """What was counted.

    Attributes:
        tests: the two tests.
        windows: sums over the stream.
        latest: the latest rows; scores: of those that came with them.
        waiting: predictions and outcomes without each other.
        clusters: which are unfinished, and which were counted.
        unlabelled: sums over rows without an outcome.
        notes: of whoever feeds the monitor.
        grouped: whether rows have groups; clustered: whether they have clusters; None before the
            first.
        hours: sums by hour of the clock, of rows whose time is known.
        promise: the evidence against what a decision promised, or None.
        history: when the tests began, and alarms before that.
    """

    tests: TwoTests
    windows: Windows
    latest: Latest
    scores: Scores
    waiting: DelayedLabels
    clusters: Clusters
    unlabelled: Unlabelled = field(default_factory=Unlabelled)
    notes: dict[str, Any] = field(default_factory=dict[str, Any])
    grouped: bool | None = None
    clustered: bool | None = None
    hours: Hours = field(default_factory=Hours)
    promise: Watched | None = None
    history: History = field(default_factory=History)

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
            Scores(settings["latest"]),
            DelayedLabels(settings["most_waiting"]),
            Clusters(settings["open_clusters"], settings["most_waiting"]),
            promise=settings["promise"] and Watched(settings["promise"], settings["alpha"]),
        )

    def add(
        self,
        said: FloatArray,
        right: BoolArray,
        names: Sequence[str] | None,
        clusters: Sequence[str] | None = None,
        origin: IntArray | None = None,
        hours: IntArray | None = None,
    ) -> tuple[Alarm, ...]:
        """Count (n,) rows with their outcomes, and return the alarms that rose.

        Raises:
            InputError: groups or clusters for some rows only, or more groups than there were to be.
        """
        tests, member = self.tests, self._members(names, clusters)
        risen: list[Alarm] = []
        for start in range(0, len(said), ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            some, hits, first = said[part], right[part], self.windows.rows
            of = None if member is None else member[part]
            number = first + np.arange(len(some))
            bets = bets_of_rows(payments(some, hits, tests.tolerance), number, of)
            own = None if names is None else names[part]
            about = None if self.promise is None else self.promise.count(some, hits, own)
            if clusters is None:
                if self.promise is not None and about is not None:
                    risen += self.promise.bet(about[1], number[about[0]])
                risen += tests.add(bets)
                origins = None if origin is None else origin[part]
            else:
                parts = {ALL: (number - first, bets.paid, np.ones(len(some)))} | bets.groups
                parts |= {} if about is None else {PROMISE: about}
                closed = self.clusters.add(clusters[part], some - hits, first, parts)
                risen += self._bet_on(closed)
                origins = np.array([hash_of_name(name) for name in clusters[part]])
            if of is not None:
                tests.groups.count(some, hits, of, first)
            self.windows.add(some, hits)
            self.latest.add(some, hits, origins)
            if hours is not None:
                self.hours.add(hours[part], some, hits)
        return tuple(risen)

    def begin_anew(self, alarms: Iterable[Alarm]) -> None:
        """Begin all tests anew with the next row, after these alarms; what is shown stays."""
        row = self.windows.rows
        self.history.begin(row, alarms)
        self.tests.begin(row)
        # Their later rows depend on what was seen; they aren't bet on.
        self.clusters.close()
        self.clusters.sizes.clear()
        self.latest, self.scores = Latest.start(self.latest.most), Scores(self.scores.latest)
        if self.promise is not None:
            self.promise = Watched(self.promise.promise, self.promise.alpha)
            self.promise.evidence.trail.row[:] = row

    def close_clusters(self) -> tuple[Alarm, ...]:
        """Count the unfinished clusters, and return the alarms that rose."""
        return tuple(self._bet_on(self.clusters.close()))

    def _bet_on(self, closed: Sequence[Unfinished]) -> list[Alarm]:
        if not closed:
            return []
        risen = self.tests.add(bets_of_clusters(closed, self.tests.tolerance))
        if self.promise is not None:
            about = [one for one in closed if PROMISE in one.parts]
            paid = factors_of([one.parts[PROMISE] for one in about], self.promise.largest)
            last = np.array([one.last for one in about], dtype=np.int64)
            risen += self.promise.bet(paid, last)
        return risen

    def _members(
        self, names: Sequence[str] | None, clusters: Sequence[str] | None
    ) -> IntArray | None:
        """Return the index of each row's group, or None where rows have none."""
        if self.grouped not in (None, names is not None):
            raise InputError("groups must be given for all rows or for none")
        if self.clustered not in (None, clusters is not None):
            raise InputError(
                "clusters must be given for all rows or for none; begin a new state for rows that "
                f"come {'without' if self.clustered else 'with'} them"
            )
        self.grouped, self.clustered = names is not None, clusters is not None
        return None if names is None else self.tests.groups.index_of(names)

    def predict(
        self,
        keys: Sequence[Any],
        said: FloatArray,
        classes: Sequence[int | None],
        names: Sequence[str] | None,
        clusters: Sequence[str] | None = None,
        hours: Sequence[int] | None = None,
    ) -> tuple[Alarm, ...]:
        """Take (n,) predictions, whose outcomes may be there or come.

        Raises:
            PredictionsError: the label that is there needs the class; nothing is taken then.
            InputError: see `add`.
        """
        # So groups get their places in the order of the predictions, which no outcome changes.
        self._members(names, clusters)
        for key, predicted in zip(keys, classes, strict=True):
            self.waiting.check(key, predicted)
        joined: list[Joined | None] = []
        waiting: list[float] = []
        none: Sequence[str | None] = [None] * len(keys)
        times: Sequence[int | None] = [None] * len(keys) if hours is None else hours
        rows = map(Said, said.tolist(), classes, names or none, clusters or none, times)
        for key, one in zip(keys, rows, strict=True):
            new, row = self.waiting.predict(key, one)
            joined.append(row)
            if new and row is None:
                waiting.append(one.confidence)
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
        clusters = [str(row.cluster) for row in rows if row.cluster is not None]
        origin = np.array([row.origin for row in rows])
        hits, number = np.array(right, dtype=np.bool_), self.windows.rows + np.arange(len(rows))
        risen = self.add(said, hits, names or None, clusters or None, origin)
        # Times are for reports alone, and some rows may have none.
        at = np.array([row.hour is not None for row in rows])
        hours = np.array([row.hour for row in rows if row.hour is not None], dtype=np.int64)
        self.hours.add(hours, said[at], hits[at])
        keys, labels = [row.key for row in rows], [row.label for row in rows]
        self.scores.learn(keys, labels, number, _hashes(clusters))
        return risen

    def keep_scores(
        self, rows: Predictions, labels: IntArray, number: IntArray, clusters: Sequence[str] | None
    ) -> None:
        """Keep the scores of (n,) rows that were counted as these numbers."""
        self.scores.add(rows, labels, number, _hashes(clusters or ()))

    @classmethod
    def merged(cls, parts: Sequence[State]) -> State:
        """Return what several monitors of the same settings have counted together."""
        unlabelled = Unlabelled()
        starts: list[int] = np.cumsum([0, *(part.windows.rows for part in parts)]).tolist()
        for part in parts:
            unlabelled += part.unlabelled
        known = {part.clustered for part in parts} - {None}
        if len(known) > 1:
            raise InputError("only monitors that all have clusters, or all none, can be merged")
        tests = merged_tests([part.tests for part in parts], starts)
        place = {name: i for i, name in enumerate(tests.groups.names)}
        clusters = [
            part.clusters.moved(
                starts[-1] - 1, {i: place[n] for i, n in enumerate(part.tests.groups.names)}
            )
            for part in parts
        ]
        return cls(
            tests,
            merged_windows([part.windows for part in parts]),
            Latest.merged([part.latest for part in parts]),
            Scores.merged([part.scores for part in parts], starts[:-1]),
            parts[0].waiting.merge(part.waiting for part in parts[1:]),
            clusters[0].merge(clusters[1:]),
            unlabelled,
            grouped=next((p.grouped for p in parts if p.grouped is not None), None),
            clustered=next(iter(known), None),
            hours=parts[0].hours.merge([part.hours for part in parts[1:]]),
            promise=_merged_promise([part.promise for part in parts], starts[-1]),
            history=History.merged([part.history for part in parts], starts[:-1]),
        )


def _hashes(names: Sequence[str]) -> IntArray | None:
    return np.array([hash_of_name(name) for name in names]) if names else None


def _merged_promise(parts: Sequence[Watched | None], rows: int) -> Watched | None:
    """Return the evidence of all parts against one promise."""
    known = [part for part in parts if part is not None]
    if not known:
        return None
    found = replace(
        known[0],
        evidence=_summed([part.evidence for part in known], Evidence(), rows),
        rows=sum(part.rows for part in known),
        broken=sum(part.broken for part in known),
        alarm=None,
    )
    log_e = found.evidence.log_level
    if found.rows and log_e >= found.bound:  # when it began is forgotten
        since = ChangePoint(0, 0, rows - 1)
        found.alarm = Alarm("promise", rows - 1, log_e, found.bound, since)
    return found


def merged_tests(parts: Sequence[TwoTests], starts: Sequence[int]) -> TwoTests:
    """Return the tests of all rows together, with the alarms that rise by what they sum to.

    Args:
        parts: the tests of each monitor.
        starts: the number of the first row of each among all rows, and how many there are.

    Raises:
        InputError: there are groups, but it isn't known how many.
    """
    first = parts[0]
    rows = starts[-1]
    tests = TwoTests(
        first.tolerance,
        first.alpha,
        first.average_run_length,
        _summed([part.evidence for part in parts], Evidence(), rows),
        _merged_groups([part.groups for part in parts], starts),
    )
    logs = {"level": tests.log_level, "change": tests.log_mass}
    for test, bound in tests.bounds.items():
        if rows and logs[test] >= bound:
            since = _since(parts, starts)
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
        if part.rows and counts[-1][-1:].tolist() != [rows]:
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
    count = sum(part.units for part in parts)
    products = np.sum([part.products for part in parts], axis=0)
    empty.trail.mark(count, rows, products)
    masses = np.sum([part.masses for part in parts], axis=0)
    return replace(empty, units=count, products=products, masses=masses)


def _merged_groups(parts: Sequence[Groups], starts: Sequence[int]) -> Groups:
    merged = Groups(parts[0].known)
    if not any(part.names for part in parts):
        return merged
    if merged.known is None:
        raise InputError(
            "monitors with groups can be merged only if they were begun with --n-groups "
            "(n_groups=), because the groups' weights must not change from one merging to the next"
        )
    merged.index_of([name for part in parts for name in part.names])
    for i, name in enumerate(merged.names):
        held = [(j, part.names.index(name)) for j, part in enumerate(parts) if name in part.names]
        own = [parts[j].evidence[k] for j, k in held]
        merged.evidence[i] = _summed(own, Evidence.of_group(), starts[-1])
        merged.sums[i] = np.sum([parts[j].sums[k] for j, k in held], axis=0)
        spans = [(starts[j], parts[j].spans[k]) for j, k in held]
        rows = [start + row for start, span in spans for row in span if row >= 0]
        merged.spans[i] = (min(rows), max(rows)) if rows else (-1, -1)
    return merged


def _since(parts: Sequence[TwoTests], starts: Sequence[int]) -> ChangePoint:
    """Return since when, by the part with the most evidence, in the numbers of the whole."""
    most = int(np.argmax([part.evidence.mass for part in parts]))
    start = starts[most]
    found = change_point(parts[most].evidence, starts[most + 1] - start - 1)
    return ChangePoint(found.row + start, found.low + start, found.high + start)
