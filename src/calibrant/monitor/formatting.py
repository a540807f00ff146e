"""What a monitor found, as JSON takes it and as people read it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any, NamedTuple

from calibrant.core.errors import InputError
from calibrant.core.outputs import StrPath
from calibrant.core.result import ENGINE, Result, Table
from calibrant.core.text import counted, listed, wrap
from calibrant.evaluation.formatting import percent
from calibrant.monitor.delayed_labels import Pending, Unlabelled, Waiting
from calibrant.monitor.diagnosis import Diagnosis
from calibrant.monitor.latest import Neighbours
from calibrant.monitor.promise import PromiseFound
from calibrant.monitor.sequential_tests import Alarm, TwoTests
from calibrant.monitor.state import PastAlarm, State
from calibrant.monitor.windows import Window

# A share of rows without a bet that is said in words of its own.
MUCH = 0.1
NONE_PENDING = Pending({}, {})
# The page is drawn of what is found here, and known by name only.
PAGE = "calibrant.monitor.page"
# A table on a terminal shows no more windows than this: the first and the latest.
SHOWN_WINDOWS = 14


@dataclass(frozen=True)
class GroupFound:
    """What one group shows.

    Attributes:
        group: its name; rows: how many it has.
        log_e: its own evidence of the level test, in nats.
        off: whether that alone is enough, at alpha for all groups together.
        gap: confidence minus accuracy; gap_low, gap_high: ends of its interval.
        first: number of its first row; last: of its latest.
    """

    group: str
    rows: int
    log_e: float
    off: bool
    gap: float
    gap_low: float
    gap_high: float
    first: int
    last: int


@dataclass(frozen=True)
class ClustersFound:
    """What is known of the clusters of a stream.

    Attributes:
        counted: how many were counted; unfinished: how many weren't yet.
        late: rows that the tests left out, because their cluster was counted before; share: of
            all rows.
        beyond: rows that the tests left out, because their cluster is larger than those before.
        correlation: of the residuals of two rows of a cluster; None where none has two.
        effect: how many rows say as much as one that stands alone.
    """

    counted: int
    unfinished: int
    late: int
    correlation: float | None
    effect: float
    share: float
    beyond: int = 0

    def __str__(self) -> str:
        text = f"{counted(self.counted, 'cluster')} counted"
        if self.unfinished:
            text += f", {self.unfinished} unfinished"
        if self.correlation is not None:
            text += (
                f"; outcomes of two rows of a cluster correlate by {self.correlation:.2f} beyond "
                f"their confidences, so that {self.effect:.1f} rows count as one independent row; "
                "the intervals allow for it"
            )
        if self.beyond:
            text += (
                f". {counted(self.beyond, 'row')} of clusters that are much larger than those "
                "before are shown in reports, and left out of the tests"
            )
        if self.late:
            text += (
                f". {counted(self.late, 'row')} came after their cluster was counted: reports show "
                "them, and the tests leave them out"
            )
        if self.share > MUCH:
            text += (
                f". That is {percent(self.share)} % of all rows, and neither test uses them: "
                "keep more clusters open (--open-clusters, open_clusters=), or make clusters "
                "shorter, such as a user's day instead of the user, if rows depend on each "
                "other only within a day"
            )
        return f"{text}."


def clusters_found(state: State) -> ClustersFound | None:
    """Return what is known of the clusters; None where rows have none."""
    if not state.clustered:
        return None
    clusters, dependence = state.clusters, state.clusters.dependence
    return ClustersFound(
        dependence.clusters,
        len(clusters.unfinished),
        clusters.late,
        dependence.correlation,
        dependence.effect,
        clusters.late / max(state.windows.rows, 1),
        clusters.beyond,
    )


def groups_found(tests: TwoTests, effect: float = 1.0) -> list[GroupFound]:
    """Return what each group shows; see `Window.of_sums` for `effect`."""
    flagged, groups = tests.flagged(), tests.groups
    found: list[GroupFound] = []
    parts = zip(groups.names, groups.evidence, groups.sums, groups.spans, strict=True)
    for name, evidence, sums, span in parts:
        if sums.any():
            whole = Window.of_sums(0, sums, effect=effect)
            gap = (whole.gap, whole.gap_low, whole.gap_high)
            shown = (evidence.log_level, name in flagged, *gap, *span)
            found.append(GroupFound(name, whole.rows, *shown))
    return found


class Unreadable(NamedTuple):
    """Lines that were left out for want of a usable row.

    Attributes:
        lines: how many; first: what is wrong with the first of them.
        read: how many lines were read, with those; 0 where that isn't known.
    """

    lines: int = 0
    first: str = ""
    read: int = 0

    @classmethod
    def of_notes(cls, notes: Mapping[str, Any]) -> Unreadable:
        """Return what a monitor's notes say.

        Raises:
            InputError: they aren't of this kind.
        """
        try:
            found = cls(**notes.get("unreadable", {}))
            return cls(int(found.lines), str(found.first), int(found.read))
        except (TypeError, ValueError) as error:
            raise InputError("the state's notes of unreadable lines are damaged") from error

    def add(self, why: str) -> Unreadable:
        """Return this with one more."""
        return self._replace(lines=self.lines + 1, first=self.first or why)

    def __str__(self) -> str:
        share = f" ({percent(self.lines / self.read)} % of those read)" if self.read else ""
        lines = counted(self.lines, "line")
        return f"Left out: {lines} without a usable row{share}. The first: {self.first}."


NONE_LEFT_OUT = Unreadable()


@dataclass(frozen=True, repr=False)
class MonitorFindings(Result):
    """What a monitor has found so far, as a value: all that its text, its JSON and its page show.

    Attributes:
        rows: rows with outcomes.
        tolerance: how far a probability may be off; alpha: of the level test.
        average_run_length: of the change test.
        log_e: evidence of the level test; log_r: of the change test; in nats.
        alarms: those that rose, by test.
        windows: calibration over stretches of the stream.
        diagnosis: what is wrong; None without rows.
        groups: what each group shows.
        unlabelled: rows without outcome.
        hours: calibration by hour of the clock, of rows whose time is known.
        waiting: predictions and outcomes without each other.
        clusters: what is known of the clusters; None where each row stands alone.
        neighbours: how much rows without clusters depend on their neighbours; None for few rows.
        promise: what is known of the promise of a decision, where one is watched.
        past: alarms that were dealt with, before the tests began anew at row `begun`.
        pending: what waits for its outcome, by hour and by group.
        unreadable: lines that were left out.
        late: whether outcomes came apart from their predictions.
    """

    rows: int
    tolerance: float
    alpha: float
    average_run_length: float
    log_e: float
    log_r: float
    alarms: dict[str, Alarm]
    windows: list[Window]
    diagnosis: Diagnosis | None
    groups: list[GroupFound]
    unlabelled: Unlabelled
    waiting: Waiting
    hours: list[tuple[str, Window]]
    clusters: ClustersFound | None = None
    neighbours: Neighbours | None = None
    promise: PromiseFound | None = None
    past: tuple[PastAlarm, ...] = ()
    begun: int = 0
    pending: Pending = NONE_PENDING
    unreadable: Unreadable = NONE_LEFT_OUT
    late: bool = False

    @property
    def doubt(self) -> str:
        """Why the promises are in doubt, as sentences; empty if nothing shows it."""
        found = self.neighbours
        return str(found) if found is not None and found.doubtful else ""

    @property
    def unit(self) -> str:
        """What the tests count."""
        return "row" if self.clusters is None else "cluster"

    @property
    def condition(self) -> str:
        """Under which condition the promises hold, as a sentence."""
        of_group = "its group and " if self.groups else ""
        before = f"given {of_group}all rows before it"
        if self.clusters is not None:
            before = (
                f"given {of_group}all clusters before its own, however many rows a cluster has and "
                "however they depend"
            )
        delays = (
            " The promised rates need outcomes that take as long for right rows as for wrong ones."
        )
        return (
            "An alarm is false if the confidence of each row was within "
            f"{100 * self.tolerance:g} points of its probability of being right, {before}."
            f"{delays * self.late}"
        )

    def headline(self) -> str:
        """Return the finding in one sentence."""
        if not self.rows:
            return "No row with an outcome yet."
        if self.rows == self.begun:
            return "No row with an outcome since the tests started again."
        if not self.alarms:
            if self.clusters is not None and not self.clusters.counted:
                return (
                    f"No cluster is finished yet, so the tests have counted none of "
                    f"{counted(self.rows, 'row')}."
                )
            tested = counted(self.rows - self.begun, "row")
            return (
                f"No alarm in {tested}: nothing shows that the probability of any row is more "
                f"than {100 * self.tolerance:g} points from its confidence."
            )
        if self.promise is not None and self.promise.alarm is not None:
            return (
                f"The promise that {self.promise.promise.in_words} no longer holds: an alarm rose "
                f"at row {self.promise.alarm.row}."
            )
        change = self.alarms.get("change")
        if change is None:
            return f"The confidences are wrong: an alarm rose at row {self.alarms['level'].row}."
        since = change.since
        if since.low <= self.begun:
            first = min(alarm.row for alarm in self.alarms.values())
            return (
                f"An alarm rose at row {first}: the confidences are wrong, and may have been wrong "
                "from the first row on."
            )
        return (
            f"The confidences have become wrong, probably at row {since.row} ({since.low} to "
            f"{since.high}): an alarm rose at row {change.row}."
        )

    def alarm_sentence(self, alarm: Alarm) -> str:
        """Return what an alarm says and what it is worth, as a sentence."""
        if alarm.test == "promise":
            return f"at row {alarm.row}. {self.promise}"
        off = f"some confidences are wrong by more than {100 * self.tolerance:g} points"
        where = "" if alarm.group is None else f", most plainly in group {alarm.group}"
        since = f"row {alarm.since.row} (95 % interval {alarm.since.low} to {alarm.since.high})"
        if alarm.test == "level":
            return (
                f"at row {alarm.row}: {off}{where}, probably since {since}. A false alarm has a "
                f"probability of at most {100 * self.alpha:g} %, however long the stream."
            )
        return (
            f"at row {alarm.row}: {off}{where}, probably since {since}. A false alarm comes after "
            f"at least {spaced(self.average_run_length)} {self.unit}s on average."
        )

    @property
    def past_sentence(self) -> str:
        """When the tests began anew, and which alarms were before; empty if they never did."""
        if not self.begun and not self.past:
            return ""
        known = listed([f"{one.alarm.test} at row {one.alarm.row}" for one in self.past[-3:]])
        more = f", the latest {known}" if self.past else ""
        return (
            f"The tests started again at row {self.begun}, after {counted(len(self.past), 'alarm')}"
            f"{more}. Each start may raise a false alarm of its own."
        )

    @property
    def evidence_sentence(self) -> str:
        """Where both tests stand."""
        bounds = -math.log(self.alpha), math.log(self.average_run_length)
        return (
            f"Evidence (natural logarithm): level test {self.log_e:.2f} (alarm at "
            f"{bounds[0]:.2f}), change test {self.log_r:.2f} (alarm at {bounds[1]:.2f})."
        )

    @property
    def which_way(self) -> str:
        """Which way the latest rows are off, as a sentence; empty without rows."""
        clause = "" if self.diagnosis is None else self.diagnosis.which_way()
        return f"{clause[:1].upper()}{clause[1:]}." if clause else ""

    def as_table(self) -> Table:
        """Return the windows, one a row."""
        return windows_table(self.windows)

    def records(self) -> list[dict[str, Any]]:
        """Return the numbers of each window: fractions, not percent."""
        return [window.as_dict() for window in self.windows]

    def to_html(self, path: StrPath, **options: Any) -> None:
        """Write the page; see `Monitor.to_html`."""
        page = import_module(PAGE).monitor_page(self, **options)
        import_module(ENGINE).write_page(path, page)

    def as_dict(self, *, details: bool = False) -> dict[str, Any]:
        """Return what was found as JSON takes it; see `Monitor.as_dict`."""
        level, change = self.alarms.get("level"), self.alarms.get("change")
        found: dict[str, Any] = {
            "rows": self.rows,
            "level": {
                "alarm": level is not None,
                "row": None if level is None else level.row,
                "log_e": self.log_e,
            },
            "change": {
                "alarm": change is not None,
                "row": None if change is None else change.row,
                "since": None if change is None else change.since.row,
            },
            "windows": [window.as_dict() for window in self.windows],
        }
        if self.promise is not None:
            found["promise"] = self.promise.as_dict()
        if details:
            found["details"] = {
                "tolerance": self.tolerance,
                "alpha": self.alpha,
                "average_run_length": self.average_run_length,
                "log_r": self.log_r,
                "alarms": [alarm.as_dict() for alarm in self.alarms.values()],
                "diagnosis": None if self.diagnosis is None else self.diagnosis.as_dict(),
                "groups": [asdict(group) for group in self.groups],
                "unlabelled": self.unlabelled.as_dict(),
                "waiting": self.waiting._asdict(),
                "hours": [{"hour": hour} | found.as_dict() for hour, found in self.hours],
                "clusters": None if self.clusters is None else asdict(self.clusters),
                "neighbours": None if self.neighbours is None else self.neighbours.as_dict(),
                "condition": self.condition,
                "begun": self.begun,
                "past": [one.as_dict() for one in self.past],
                "pending": self.pending._asdict(),
                "unreadable": self.unreadable._asdict(),
            }
        return found

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self, refit: str = "") -> str:
        """Return all of it as text, with what became of the refit that was written, if any."""
        parts = [wrap(self.headline())]
        if self.rows:
            alarms = sorted(self.alarms.values(), key=lambda alarm: alarm.row)
            parts += [wrap(f"{alarm.test}: {self.alarm_sentence(alarm)}") for alarm in alarms]
            if self.promise is not None and self.promise.alarm is None:
                parts.append(wrap(str(self.promise)))
            if self.rows > self.begun:
                parts.append(wrap(f"{self.condition} {self.evidence_sentence}"))
            if self.past_sentence:
                parts.append(wrap(self.past_sentence))
            if self.doubt:
                parts.append(wrap(self.doubt))
            if self.clusters is not None:
                parts.append(wrap(str(self.clusters)))
            if self.diagnosis is not None:
                gains = refit or self.diagnosis.what_a_refit_gives()
                parts.append(wrap(f"{self.which_way} {gains}"))
            parts.append(for_terminal(windows_table(self.windows), ["floor"]))
        if self.hours:
            parts.append(for_terminal(hours_table(self.hours[-SHOWN_WINDOWS:])))
        if len(self.hours) > SHOWN_WINDOWS:
            parts.append(f"{counted(len(self.hours) - SHOWN_WINDOWS, 'earlier hour')} left out.")
        if self.groups:
            most = sorted(self.groups, key=lambda group: group.log_e)[-SHOWN_WINDOWS:]
            shown = [group for group in self.groups if group in most]
            parts.append(for_terminal(groups_table(shown), ["finding"]))
        if len(self.groups) > SHOWN_WINDOWS:
            left = counted(len(self.groups) - SHOWN_WINDOWS, "group")
            parts.append(f"{left} with less evidence left out.")
        off = [group.group for group in self.groups if group.off]
        if off:
            together = f"at {100 * self.alpha:g} % for all groups together"
            parts.append(wrap(f"Wrong by their own evidence, {together}: {listed(off)}."))
        if self.unlabelled.rows:
            parts.append(wrap(str(self.unlabelled)))
        if self.unreadable.lines:
            parts.append(wrap(str(self.unreadable)))
        return "\n\n".join(parts)


def spaced(number: float) -> str:
    """Return a large number with spaces between thousands, or with an exponent."""
    return f"{number:,.0f}".replace(",", " ") if number < 1e12 else f"{number:.3g}"


def windows_table(windows: Sequence[Window]) -> Table:
    """Return the windows as a table; gap and ECE, which it is about, stand out."""
    head = ["rows", "confidence", "accuracy", "gap", "interval"]
    head += ["ECE", "interval", "floor", "floor 95 %"]
    lines = [
        [f"{window.first} to {window.first + window.rows - 1}", *_cells(window)]
        for window in windows
    ]
    bold = {(i, j) for i in range(len(lines)) for j in (3, 5)}
    note = (
        "In percent. Confidence: its mean; gap: confidence minus accuracy, with its 95 % interval. "
        "Floor 95 %: the ECE of calibrated confidences stays below it in 95 % of cases."
    )
    return Table(head, lines, bold, note)


def hours_table(hours: Sequence[tuple[str, Window]]) -> Table:
    """Return the hours as a table."""
    head = ["hour, UTC", "rows", "confidence", "accuracy", "gap", "interval"]
    lines = [[hour, str(found.rows), *_cells(found)[:4]] for hour, found in hours]
    return Table(head, lines, {(i, 4) for i in range(len(lines))})


def groups_table(groups: Sequence[GroupFound]) -> Table:
    """Return the groups as a table."""
    head = ["group", "rows", "first to latest", "gap, points", "interval"]
    head += ["evidence, nats", "finding"]
    lines = [
        [
            " ".join(group.group.split())[:40],
            str(group.rows),
            f"{group.first} to {group.last}",
            percent(group.gap),
            ends(group.gap_low, group.gap_high),
            f"{group.log_e:.1f}",
            "wrong" if group.off else "",
        ]
        for group in groups
    ]
    return Table(head, lines, {(i, 3) for i in range(len(lines))})


def for_terminal(table: Table, but: Sequence[str] = ()) -> str:
    """Return a table without some columns, and without the middle of many rows."""
    kept = [j for j, name in enumerate(table.head) if name not in but]
    lines = [[row[j] for j in kept] for row in table.rows]
    if len(lines) > SHOWN_WINDOWS:
        half = SHOWN_WINDOWS // 2
        lines = [*lines[:half], ["..."] + [""] * (len(kept) - 1), *lines[-half:]]
    text = Table([table.head[j] for j in kept], lines).to_text()
    return f"{text}\n\n{wrap(table.notes)}" if table.notes else text


def _cells(window: Window) -> list[str]:
    """Return confidence, accuracy, gap, its interval, ECE, its interval, and both floors."""
    return [
        percent(window.confidence),
        percent(window.accuracy),
        percent(window.gap),
        ends(window.gap_low, window.gap_high),
        percent(window.ece),
        ends(window.ece_low, window.ece_high),
        percent(window.floor),
        percent(window.floor_95),
    ]


def ends(low: float, high: float) -> str:
    """Return the ends of an interval, in percent."""
    return f"{percent(low)} to {percent(high)}"
