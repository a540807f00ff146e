"""What a monitor found, as JSON takes it and as people read it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from calibrant.core.text import counted, format_table, listed, wrap
from calibrant.evaluation.formatting import percent
from calibrant.monitor.two_tests import Alarm, TwoTests
from calibrant.monitor.windows import Window

if TYPE_CHECKING:
    from calibrant.monitor.monitor import Monitor

# A table on a terminal shows no more windows than this: the first and the latest.
SHOWN_WINDOWS = 14


@dataclass(frozen=True)
class GroupFound:
    """What one group shows.

    Attributes:
        group: its name; rows: how many it has.
        log_e: its own evidence of the level test, in nats.
        off: whether that alone is enough, at alpha for all groups together.
        gap: confidence less accuracy; gap_low, gap_high: ends of its interval.
    """

    group: str
    rows: int
    log_e: float
    off: bool
    gap: float
    gap_low: float
    gap_high: float


def groups_found(tests: TwoTests) -> list[GroupFound]:
    """Return what each group shows."""
    flagged, groups = tests.flagged(), tests.groups
    found: list[GroupFound] = []
    for name, evidence, sums in zip(groups.names, groups.evidence, groups.sums, strict=True):
        if evidence.rows:
            whole = Window.of_sums(0, sums)
            gap = (whole.gap, whole.gap_low, whole.gap_high)
            found.append(GroupFound(name, evidence.rows, evidence.log_level, name in flagged, *gap))
    return found


def document(monitor: Monitor, *, details: bool) -> dict[str, Any]:
    """Return what was found as JSON takes it."""
    level, change = monitor.alarms.get("level"), monitor.alarms.get("change")
    found: dict[str, Any] = {
        "rows": monitor.rows,
        "level": {
            "alarm": level is not None,
            "row": None if level is None else level.row,
            "log_e": monitor.log_e,
        },
        "change": {
            "alarm": change is not None,
            "row": None if change is None else change.row,
            "since": None if change is None else change.since.row,
        },
        "windows": [window.as_dict() for window in monitor.windows()],
    }
    if details:
        diagnosis = monitor.diagnosis()
        found["details"] = {
            "tolerance": monitor.tolerance,
            "alpha": monitor.alpha,
            "average_run_length": monitor.average_run_length,
            "log_r": monitor.log_r,
            "alarms": [alarm.as_dict() for alarm in monitor.alarms.values()],
            "diagnosis": None if diagnosis is None else diagnosis.as_dict(),
            "groups": [asdict(group) for group in monitor.groups()],
            "unlabelled": monitor.unlabelled.as_dict(),
        }
    return found


def headline(monitor: Monitor) -> str:
    """Return the finding in one sentence."""
    alarms = monitor.alarms
    if not monitor.rows:
        return "No row with an outcome yet."
    if not alarms:
        return (
            f"No alarm in {counted(monitor.rows, 'row')}: nothing shows that confidences are off "
            f"by more than {100 * monitor.tolerance:g} points."
        )
    change = alarms.get("change")
    if change is None:
        return f"Confidences are off: an alarm rose at row {alarms['level'].row}."
    since = change.since
    if since.low == 0:
        first = min(alarm.row for alarm in alarms.values())
        return f"Confidences are off, perhaps from the start: an alarm rose at row {first}."
    return (
        f"Confidences have gone off: an alarm rose at row {change.row}, and they have probably "
        f"been off since row {since.row} ({since.low} to {since.high})."
    )


def alarm_words(alarm: Alarm, monitor: Monitor) -> str:
    """Return what an alarm says and what it is worth, as a sentence."""
    off = f"off by more than {100 * monitor.tolerance:g} points"
    where = "" if alarm.group is None else f", most plainly in group {alarm.group}"
    since = f"row {alarm.since.row} (95 % interval {alarm.since.low} to {alarm.since.high})"
    if alarm.test == "level":
        return (
            f"at row {alarm.row}: they are {off}{where}, probably since {since}. A false alarm has "
            f"a probability of {100 * monitor.alpha:g} % at most, however long the stream."
        )
    return (
        f"at row {alarm.row}: they have gone {off}{where}, probably since {since}. A false alarm "
        f"comes after {spaced(monitor.average_run_length)} rows on average, or later."
    )


def spaced(number: float) -> str:
    """Return a large number with spaces between thousands, or with an exponent."""
    return f"{number:,.0f}".replace(",", " ") if number < 1e12 else f"{number:.3g}"


def evidence_words(monitor: Monitor) -> str:
    """Return where both tests stand."""
    bounds = -math.log(monitor.alpha), math.log(monitor.average_run_length)
    return (
        f"Evidence now, in nats: level {monitor.log_e:.2f} (alarm at {bounds[0]:.2f}), change "
        f"{monitor.log_r:.2f} (alarm at {bounds[1]:.2f})."
    )


def text(monitor: Monitor) -> str:
    """Return what was found as a terminal shows it."""
    parts = [wrap(headline(monitor))]
    if monitor.rows:
        parts += [wrap(f"{a.test}: {alarm_words(a, monitor)}") for a in monitor.alarms.values()]
        parts.append(wrap(evidence_words(monitor)))
        diagnosis = monitor.diagnosis()
        if diagnosis is not None:
            way = diagnosis.which_way()
            parts.append(wrap(f"{way[:1].upper()}{way[1:]}. {diagnosis.what_a_refit_gives()}"))
        parts.append(windows_table(monitor.windows()))
    off = [group.group for group in monitor.groups() if group.off]
    if off:
        together = f"at {100 * monitor.alpha:g} % for all groups together"
        parts.append(wrap(f"Off by their own evidence, {together}: {listed(off)}."))
    if monitor.unlabelled.rows:
        parts.append(wrap(str(monitor.unlabelled)))
    return "\n\n".join(parts)


def windows_table(windows: Sequence[Window]) -> str:
    """Return the windows as a table, those in the middle left out if there are many."""
    head = ["rows", "said", "right", "gap", "interval", "ECE", "interval", "floor 95 %"]
    lines = [_line(window) for window in windows]
    if len(lines) > SHOWN_WINDOWS:
        half = SHOWN_WINDOWS // 2
        lines = [*lines[:half], ["..."] + [""] * (len(head) - 1), *lines[-half:]]
    note = (
        "In percent. Said: mean confidence; right: accuracy; gap: the one less the other. Floor "
        "95 %: what the ECE of honest confidences would stay below in 95 % of cases."
    )
    return f"{format_table(head, lines)}\n\n{wrap(note)}"


def _line(window: Window) -> list[str]:
    numbers = [percent(n) for n in (window.confidence, window.accuracy, window.gap)]
    return [
        f"{window.first} to {window.first + window.rows - 1}",
        *numbers,
        f"{percent(window.gap_low)} to {percent(window.gap_high)}",
        percent(window.ece),
        f"{percent(window.ece_low)} to {percent(window.ece_high)}",
        percent(window.floor_95),
    ]
