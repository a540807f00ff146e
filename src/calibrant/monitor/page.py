"""The page of a monitor: one HTML file in the style of the other reports, without a script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import numpy as np
from markupsafe import Markup

from calibrant.evaluation.formatting import percent
from calibrant.monitor.diagnosis import Band
from calibrant.monitor.formatting import GroupFound, MonitorFindings, spaced
from calibrant.monitor.sequential_tests import ChangePoint
from calibrant.monitor.windows import Window
from calibrant.report.engine import Cell, PageTable, grouped, render_page, typeset


def monitor_page(found: MonitorFindings, refresh: float | None = None) -> str:
    """Return the page as text; see `Monitor.to_html`."""
    windows, diagnosis = found.windows, found.diagnosis
    alarm = found.alarms.get("change") or found.alarms.get("level")
    row, since = (None, None) if alarm is None else (alarm.row, alarm.since)
    return render_page(
        "monitor.html.jinja",
        "calibrant.monitor",
        monitor=found,
        headline=typeset(found.headline),
        evidence=typeset(found.evidence_sentence),
        condition=typeset(found.condition),
        hours_table=_hours_table(found.hours) if found.hours else None,
        waiting=typeset(str(found.waiting)) if any(found.waiting) else "",
        refresh=None if refresh is None else max(round(refresh), 1),
        written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        doubt=typeset(found.doubt),
        clusters="" if found.clusters is None else typeset(str(found.clusters)),
        alarms=[
            (alarm.test, typeset(found.alarm_sentence(alarm))) for alarm in found.alarms.values()
        ],
        windows=windows,
        gaps=Markup(gap_chart(windows, found.tolerance, row, since)) if windows else "",
        eces=Markup(ece_chart(windows, row, since)) if windows else "",
        diagnosis=diagnosis,
        deck=typeset(found.which_way),
        refit="" if diagnosis is None else typeset(diagnosis.what_a_refit_gives()),
        bands_table=_bands_table(() if diagnosis is None else diagnosis.bands),
        groups=found.groups,
        groups_table=_groups_table(found.groups),
        windows_table=_windows_table(windows),
        unlabelled=typeset(str(found.unlabelled)) if found.unlabelled.rows else "",
        run_length=typeset(spaced(found.average_run_length)),
    )


def _bands_table(bands: Sequence[Band]) -> PageTable:
    rows: list[list[Cell | str]] = [
        [
            f"{band.low:.3f} to {band.high:.3f}",
            grouped(band.rows),
            Cell(_percent(band.gap), bold=True),
            _ends(band.gap_low, band.gap_high),
            ("too high" if band.gap > 0 else "too low") if band.off else "not told from zero",
        ]
        for band in bands
    ]
    head = ["Confidence", "Rows", "Gap, points", "Interval", "Finding"]
    return PageTable("Table of bands of confidence", head, rows, words=(4,))


def _groups_table(groups: Sequence[GroupFound]) -> PageTable:
    rows: list[list[Cell | str]] = [
        [
            group.group,
            grouped(group.rows),
            Cell(_percent(group.gap), bold=True),
            _ends(group.gap_low, group.gap_high),
            typeset(f"{group.log_e:.1f}"),
            "off" if group.off else "",
        ]
        for group in groups
    ]
    head = ["Group", "Rows", "Gap, points", "Interval", "Evidence, nats", "Finding"]
    return PageTable("Table of groups", head, rows, words=(5,), tall=True)


def _hours_table(hours: Sequence[tuple[str, Window]]) -> PageTable:
    rows: list[list[Cell | str]] = [
        [
            hour,
            grouped(window.rows),
            _percent(window.confidence),
            _percent(window.accuracy),
            Cell(_percent(window.gap), bold=True),
            _ends(window.gap_low, window.gap_high),
        ]
        for hour, window in hours
    ]
    head = ["Hour, UTC", "Rows", "Confidence", "Accuracy", "Gap", "Interval"]
    return PageTable("Table of hours", head, rows, tall=True)


def _windows_table(windows: Sequence[Window]) -> PageTable:
    rows: list[list[Cell | str]] = [
        [
            f"{grouped(window.first)} to {grouped(window.first + window.rows - 1)}",
            _percent(window.confidence),
            _percent(window.accuracy),
            Cell(_percent(window.gap), bold=True),
            _ends(window.gap_low, window.gap_high),
            Cell(_percent(window.ece), bold=True),
            _ends(window.ece_low, window.ece_high),
            _percent(window.floor),
            _percent(window.floor_95),
        ]
        for window in windows
    ]
    head = ["Rows", "Confidence", "Accuracy", "Gap", "Interval"]
    head += ["ECE", "Interval", "Floor", "Floor, 95 %"]
    return PageTable("Table of windows", head, rows, tall=True)


def _ends(low: float, high: float) -> str:
    return f"{_percent(low)} to {_percent(high)}"


def _percent(fraction: float) -> str:
    return typeset(percent(fraction))


# --- charts, as the text of SVG elements in the classes of the page's style

WIDTH, HEIGHT = 860, 322
LEFT, RIGHT, TOP, BOTTOM = 52, 846, 52, 278
MOST_LABELS = 9
STEPS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
MOST_STEPS = 7

Place = Callable[[float], float]


def gap_chart(
    windows: Sequence[Window], tolerance: float, alarm: int | None, since: ChangePoint | None
) -> str:
    """Return confidence less accuracy of each window, with intervals and the tolerance."""
    ends = [end for window in windows for end in (window.gap_low, window.gap_high)]
    low, high = min(*ends, -tolerance, 0.0), max(*ends, tolerance, 0.0)
    y = _scale(low, high)
    out = _frame(windows, low, high, "Confidence less accuracy, points")
    if tolerance:
        band = f'y="{y(tolerance)}" height="{_px(y(-tolerance) - y(tolerance))}"'
        out += f'<rect class="floor" x="{LEFT}" width="{RIGHT - LEFT}" {band}/>'
    out += _marks(windows, alarm, since)
    out += f'<line class="axis" x1="{LEFT}" x2="{RIGHT}" y1="{y(0)}" y2="{y(0)}"/>'
    out += f'<g class="before">{_dots(windows, y, "gap")}</g>'
    worst = max(windows, key=lambda window: abs(window.gap))
    label = (
        f"Confidence less accuracy in {len(windows)} windows; the largest is "
        f"{percent(worst.gap)} points, from row {worst.first} on. The numbers are in the table."
    )
    return _svg(label, out)


def ece_chart(windows: Sequence[Window], alarm: int | None, since: ChangePoint | None) -> str:
    """Return the ECE of each window with its interval, above what noise alone would give."""
    high = max(max(window.ece_high, window.floor_95) for window in windows)
    y, step = _scale(0.0, high), (RIGHT - LEFT) / len(windows)
    out = _frame(windows, 0.0, high, "ECE, percent")
    for i, window in enumerate(windows):
        top = y(window.floor_95)
        out += (
            f'<rect class="floor" x="{_px(LEFT + i * step)}" y="{top}" width="{_px(step + 0.2)}" '
            f'height="{_px(BOTTOM - top)}"/>'
        )
    out += _marks(windows, alarm, since)
    out += f'<g class="before">{_dots(windows, y, "ece")}</g>'
    above = sum(not window.at_floor for window in windows)
    label = (
        f"ECE in {len(windows)} windows, {above} of them above what noise gives. The numbers are "
        "in the table."
    )
    return _svg(label, out)


def _px(value: float) -> float:
    return round(value, 1)


def _scale(low: float, high: float) -> Place:
    room = 0.06 * (high - low)
    top, bottom = high + room, low - room if low < 0 else low
    return lambda value: _px(BOTTOM - (value - bottom) / (top - bottom) * (BOTTOM - TOP))


def _position(windows: Sequence[Window], row: float) -> float:
    """Return where a row is: windows are drawn equally wide, however long they are."""
    step = (RIGHT - LEFT) / len(windows)
    firsts = [window.first for window in windows]
    i = max(int(np.searchsorted(firsts, row, side="right")) - 1, 0)
    return _px(LEFT + step * (i + min((row - firsts[i]) / windows[i].rows, 1.0)))


def _frame(windows: Sequence[Window], low: float, high: float, title: str) -> str:
    y, step = _scale(low, high), (RIGHT - LEFT) / len(windows)
    unit = next((s for s in STEPS if (high - low) / s <= MOST_STEPS), STEPS[-1])
    out = f'<text class="strong" x="{LEFT - 44}" y="12">{title}</text>'
    for k in range(int(np.ceil(low / unit - 1e-9)), int(np.floor(high / unit + 1e-9)) + 1):
        at = y(k * unit)
        out += f'<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{at}" y2="{at}"/>'
        digits = 1 if unit < 0.01 else 0
        text = typeset(f"{100 * k * unit:.{digits}f}")
        out += f'<text x="{LEFT - 7}" y="{at + 4}" text-anchor="end">{text}</text>'
    every = -(-len(windows) // MOST_LABELS)
    for i in range(0, len(windows), every):
        at = _px(LEFT + i * step)
        out += f'<line class="grid" x1="{at}" x2="{at}" y1="{TOP}" y2="{BOTTOM}"/>'
        text = grouped(windows[i].first)
        out += f'<text x="{at}" y="{BOTTOM + 17}" text-anchor="middle">{text}</text>'
    return (
        out + f'<text class="strong" x="{RIGHT}" y="{BOTTOM + 36}" text-anchor="end">First row of '
        "the window</text>"
    )


def _marks(windows: Sequence[Window], alarm: int | None, since: ChangePoint | None) -> str:
    """Return the change point with its interval, and the alarm."""
    out = ""
    if since is not None:
        low, high = _position(windows, since.low), _position(windows, since.high + 1)
        out += (
            f'<rect class="bar rows" opacity=".55" x="{low}" y="{TOP}" '
            f'width="{_px(max(high - low, 2))}" height="{BOTTOM - TOP}"/>'
        )
    for row, words, height in (
        (None if since is None else since.row, "off since", -20),
        (alarm, "alarm", -5),
    ):
        if row is not None:
            at = _position(windows, row)
            end = at > WIDTH - 170
            out += f'<line class="marker" x1="{at}" x2="{at}" y1="{TOP}" y2="{BOTTOM}"/>'
            out += (
                f'<text class="strong halo" x="{at + (-6 if end else 6)}" y="{TOP + height}" '
                f'text-anchor="{"end" if end else "start"}">{words} {grouped(row)}</text>'
            )
    return out


def _dots(windows: Sequence[Window], y: Place, name: str) -> str:
    step, out = (RIGHT - LEFT) / len(windows), ""
    for i, window in enumerate(windows):
        x = _px(LEFT + (i + 0.5) * step)
        value, low, high = (getattr(window, f"{name}{end}") for end in ("", "_low", "_high"))
        out += f'<line class="whisker" x1="{x}" x2="{x}" y1="{y(low)}" y2="{y(high)}"/>'
        words = (
            f"rows {grouped(window.first)} to {grouped(window.first + window.rows - 1)}: "
            f"{percent(value)} ({percent(low)} to {percent(high)})"
        )
        out += (
            f'<circle class="dot" cx="{x}" cy="{y(value)}" r="{4 if step > 12 else 3}">'
            f"<title>{typeset(words)}</title></circle>"
        )
    return out


def _svg(label: str, content: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{typeset(label)}">'
        f"{content}</svg>"
    )
