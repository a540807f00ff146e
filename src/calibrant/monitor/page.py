"""The page of a monitor: one HTML file in the style of the other reports, without a script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any

import numpy as np

from calibrant._version import __version__
from calibrant.evaluation.formatting import percent
from calibrant.monitor.formatting import MonitorFindings, spaced
from calibrant.monitor.sequential_tests import ChangePoint
from calibrant.monitor.windows import Window
from calibrant.report.render import grouped, resource, typeset


def monitor_page(found: MonitorFindings) -> str:
    """Return the page as text."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    source = files("calibrant.monitor").joinpath("page.html.jinja").read_text(encoding="utf-8")
    return environment.from_string(source).render(**_content(found))


def _content(found: MonitorFindings) -> dict[str, Any]:
    windows, diagnosis = found.windows, found.diagnosis
    alarm = found.alarms.get("change") or found.alarms.get("level")
    row, since = (None, None) if alarm is None else (alarm.row, alarm.since)
    return {
        "version": __version__,
        "monitor": found,
        "headline": typeset(found.headline),
        "evidence": typeset(found.evidence_sentence),
        "alarms": [
            (alarm.test, typeset(found.alarm_sentence(alarm))) for alarm in found.alarms.values()
        ],
        "windows": windows,
        "gaps": gap_chart(windows, found.tolerance, row, since) if windows else "",
        "eces": ece_chart(windows, row, since) if windows else "",
        "diagnosis": diagnosis,
        "deck": typeset(found.which_way),
        "refit": "" if diagnosis is None else typeset(diagnosis.what_a_refit_gives()),
        "groups": found.groups,
        "unlabelled": typeset(str(found.unlabelled)) if found.unlabelled.rows else "",
        "run_length": typeset(spaced(found.average_run_length)),
        "percent": _percent,
        "grouped": grouped,
        "typeset": typeset,
        "css": resource("page.css"),
    }


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
