"""The page of a monitor: one HTML file in the style of the other reports, without a script."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np
from markupsafe import Markup

from calibrant.core.result import Table
from calibrant.evaluation.formatting import percent
from calibrant.monitor.delayed_labels import Pending
from calibrant.monitor.diagnosis import Band
from calibrant.monitor.formatting import (
    MonitorFindings,
    ends,
    groups_table,
    hours_table,
    spaced,
    windows_table,
)
from calibrant.monitor.sequential_tests import ChangePoint
from calibrant.monitor.state import PastAlarm
from calibrant.monitor.windows import Window
from calibrant.report.charts import (
    Area,
    Place,
    axes,
    dot,
    line,
    picture,
    px,
    rect,
    scale,
    text,
    ticks,
    within,
)
from calibrant.report.engine import Cell, PageTable, grouped, render_page, typeset

# Columns of numbers of rows.
OF_ROWS = {"rows", "first to latest", "alarm at row", "wrong since", "begun anew at row", "waiting"}


def monitor_page(found: MonitorFindings, refresh: float | None = None) -> str:
    """Return the page as text; see `Monitor.to_html`."""
    windows, diagnosis = found.windows, found.diagnosis
    alarm = found.alarms.get("change") or found.alarms.get("level")
    row, since = (None, None) if alarm is None else (alarm.row, alarm.since)
    return render_page(
        "monitor.html.jinja",
        "calibrant.monitor",
        monitor=found,
        headline=typeset(found.headline()),
        evidence=typeset(found.evidence_sentence),
        condition=typeset(found.condition),
        hours_table=_shown("Table of hours", hours_table(found.hours)) if found.hours else None,
        unreadable=typeset(str(found.unreadable)) if found.unreadable.lines else "",
        waiting=typeset(str(found.waiting)) if any(found.waiting) else "",
        pending_table=_shown("Table of predictions that wait", _pending_table(found.pending), (1,))
        if any(found.pending)
        else None,
        past=typeset(found.past_sentence),
        past_table=_shown("Table of alarms that were dealt with", _past_table(found.past), (3,))
        if found.past
        else None,
        refresh=None if refresh is None else max(round(refresh), 1),
        written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        doubt=typeset(found.doubt),
        clusters="" if found.clusters is None else typeset(str(found.clusters)),
        alarms=[
            (alarm.test, typeset(found.alarm_sentence(alarm)))
            for alarm in sorted(found.alarms.values(), key=lambda one: one.row)
        ],
        windows=windows,
        gaps=Markup(gap_chart(windows, found.tolerance, row, since)) if windows else "",
        eces=Markup(ece_chart(windows, row, since)) if windows else "",
        diagnosis=diagnosis,
        deck=typeset(found.which_way),
        refit="" if diagnosis is None else typeset(diagnosis.what_a_refit_gives()),
        bands_table=_shown(
            "Table of bands of confidence",
            _bands_table(() if diagnosis is None else diagnosis.bands),
            (4,),
        ),
        groups=found.groups,
        groups_table=_shown("Table of groups", groups_table(found.groups), (6,)),
        windows_table=_shown("Table of windows", windows_table(windows)),
        unlabelled=typeset(str(found.unlabelled)) if found.unlabelled.rows else "",
        run_length=typeset(spaced(found.average_run_length)),
    )


def _shown(label: str, table: Table, words: Sequence[int] = ()) -> PageTable:
    """Return a table as one of the page; columns of rows have spaces between thousands."""

    def cell(text: str, column: int, *, bold: bool) -> Cell:
        if table.head[column] in OF_ROWS:
            text = re.sub(r"\d+", lambda found: grouped(int(found[0])), text)
        return Cell(typeset(text) if column else text, bold=bold)

    rows = [
        [cell(text, j, bold=(i, j) in table.bold) for j, text in enumerate(row)]
        for i, row in enumerate(table.rows)
    ]
    head = [name[:1].upper() + name[1:] for name in table.head]
    return PageTable(label, head, rows, words=words, tall=True)


def _bands_table(bands: Sequence[Band]) -> Table:
    lines = [
        [
            f"{band.low:.3f} to {band.high:.3f}",
            str(band.rows),
            percent(band.gap),
            ends(band.gap_low, band.gap_high),
            ("too high" if band.gap > 0 else "too low")
            if band.off
            else "not distinguishable from zero",
        ]
        for band in bands
    ]
    head = ["confidence", "rows", "gap, points", "interval", "finding"]
    return Table(head, lines, {(i, 2) for i in range(len(lines))})


def _past_table(past: Sequence[PastAlarm]) -> Table:
    lines = [
        [
            one.alarm.test,
            str(one.alarm.row),
            f"{since.low} to {since.high}",
            one.alarm.group or "",
            str(one.until),
        ]
        for one in past
        for since in [one.alarm.since]
    ]
    head = ["test", "alarm at row", "wrong since", "group", "begun anew at row"]
    return Table(head, lines, {(i, 1) for i in range(len(lines))})


def _pending_table(pending: Pending) -> Table:
    lines = [
        [of, name, str(n)]
        for of, counts in (("hour", pending.hours), ("group", pending.groups))
        for name, n in counts.items()
    ]
    return Table(["of", "hour, UTC, or group", "waiting"], lines)


# --- charts, as the text of SVG elements in the classes of the page's style

WIDTH, HEIGHT = 860, 322
AREA = Area(left=52, right=846, top=52, bottom=278)
MOST_LABELS = 9
MOST_STEPS = 5


def gap_chart(
    windows: Sequence[Window], tolerance: float, alarm: int | None, since: ChangePoint | None
) -> str:
    """Return confidence minus accuracy of each window, with intervals and the tolerance."""
    ends = [end for window in windows for end in (window.gap_low, window.gap_high)]
    low, high = min(*ends, -tolerance, 0.0), max(*ends, tolerance, 0.0)
    y = _upright(low, high)
    out = _frame(windows, low, high, "Confidence minus accuracy")
    if tolerance:
        top = y(tolerance)
        out += rect("floor", AREA.left, top, AREA.right - AREA.left, y(-tolerance) - top)
    out += _marks(windows, alarm, since)
    out += line(AREA.left, y(0), AREA.right, y(0), "axis")
    out += within("before", _dots(windows, y, "gap"))
    worst = max(windows, key=lambda window: abs(window.gap))
    label = (
        f"Confidence minus accuracy in {len(windows)} windows; the largest is "
        f"{percent(worst.gap)} points, from row {worst.first} on. The numbers are in the table."
    )
    return picture(WIDTH, HEIGHT, typeset(label), out)


def ece_chart(windows: Sequence[Window], alarm: int | None, since: ChangePoint | None) -> str:
    """Return the ECE of each window with its interval, above what noise alone would give."""
    high = max(max(window.ece_high, window.floor_95) for window in windows)
    y, step = _upright(0.0, high), (AREA.right - AREA.left) / len(windows)
    out = _frame(windows, 0.0, high, "ECE")
    for i, window in enumerate(windows):
        top = y(window.floor_95)
        out += rect("floor", px(AREA.left + i * step), top, step + 0.2, AREA.bottom - top)
    out += _marks(windows, alarm, since)
    out += within("before", _dots(windows, y, "ece"))
    above = sum(not window.at_floor for window in windows)
    label = (
        f"ECE in {len(windows)} windows, {above} of them above what noise gives. The numbers are "
        "in the table."
    )
    return picture(WIDTH, HEIGHT, typeset(label), out)


def _upright(low: float, high: float) -> Place:
    room = 0.06 * (high - low)
    return scale(low - room if low < 0 else low, high + room, AREA.bottom, AREA.top)


def _position(windows: Sequence[Window], row: float) -> float:
    """Return where a row is: windows are drawn equally wide, however long they are."""
    step = (AREA.right - AREA.left) / len(windows)
    firsts = [window.first for window in windows]
    i = max(int(np.searchsorted(firsts, row, side="right")) - 1, 0)
    return px(AREA.left + step * (i + min((row - firsts[i]) / windows[i].rows, 1.0)))


def _frame(windows: Sequence[Window], low: float, high: float, title: str) -> str:
    y, step = _upright(low, high), (AREA.right - AREA.left) / len(windows)
    out = text(AREA.left - 44, 12, title, "strong")
    out += axes(AREA, (y, [], 1), (y, ticks(low, high, MOST_STEPS), 100))
    for i in range(0, len(windows), -(-len(windows) // MOST_LABELS)):
        at = px(AREA.left + i * step)
        out += line(at, AREA.top, at, AREA.bottom, "grid")
        out += text(at, AREA.bottom + 17, grouped(windows[i].first), anchor="middle")
    return out + text(AREA.right, AREA.bottom + 36, "Row", "strong", "end")


def _marks(windows: Sequence[Window], alarm: int | None, since: ChangePoint | None) -> str:
    """Return the change point with its interval, and the alarm."""
    out = ""
    if since is not None:
        low, high = _position(windows, since.low), _position(windows, since.high + 1)
        out += rect("bar rows", low, AREA.top, max(high - low, 2), AREA.bottom - AREA.top)
    for row, words, height in (
        (None if since is None else since.row, "wrong since", -26),
        (alarm, "alarm", -5),
    ):
        if row is not None:
            at = _position(windows, row)
            end = at > WIDTH - 170
            out += line(at, AREA.top, at, AREA.bottom, "marker")
            beside, anchor = (at - 6, "end") if end else (at + 6, "start")
            place = AREA.top + height
            out += text(beside, place, f"{words} {grouped(row)}", "strong halo", anchor)
    return out


def _dots(windows: Sequence[Window], y: Place, name: str) -> str:
    step, out = (AREA.right - AREA.left) / len(windows), ""
    for i, window in enumerate(windows):
        x = px(AREA.left + (i + 0.5) * step)
        value, low, high = (getattr(window, f"{name}{end}") for end in ("", "_low", "_high"))
        words = (
            f"rows {grouped(window.first)} to {grouped(window.first + window.rows - 1)}: "
            f"{percent(value)} ({percent(low)} to {percent(high)})"
        )
        out += line(x, y(low), x, y(high), "whisker")
        out += dot(x, y(value), 4 if step > 12 else 3, typeset(words))
    return out
