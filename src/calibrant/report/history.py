"""The page of several sets of rows side by side: a line for each metric, and the table."""

from __future__ import annotations

from markupsafe import Markup

from calibrant.evaluation.history import History
from calibrant.evaluation.results import MetricResult
from calibrant.report.engine import PageTable, render_page, typeset
from calibrant.report.svg import (
    Area,
    axes,
    dot,
    element,
    line,
    path,
    picture,
    rect,
    scale,
    text,
    ticks,
    whole,
    within,
)

WIDTH, HEIGHT = 780, 260
# Names of sets below the picture: as many as have room.
MOST_NAMES = 8


def history_page(history: History) -> str:
    """Return the page."""
    table = history.as_table()
    found = [history.results(name) for name in history.metrics]
    charts = [(results, Markup(line_chart(results))) for results in found]
    return render_page(
        "history.html.jinja",
        headline=typeset(history.headline()),
        charts=charts,
        shown=PageTable.of(table, "What was measured"),
        notes=typeset(table.notes),
        count=len(history.evaluations),
    )


def line_chart(results: dict[str, MetricResult]) -> str:
    """Return one metric over the sets, in their order: values, intervals, and the floor's band."""
    metric = next(iter(results.values())).metric
    area = Area(56, WIDTH - 12, 12, HEIGHT - 34)
    found = list(results.values())
    floors = [each.floor_95 for each in found if each.floor_95 is not None]
    low = 0.0 if floors else min(each.low for each in found)
    high = max([each.high for each in found] + floors)
    room = 0.06 * (high - low) or 0.01
    low = low if floors else low - room
    y = scale(low, high + room, area.bottom, area.top)
    x = scale(-0.5, len(found) - 0.5, area.left, area.right)
    unit = 100.0 if metric.percent else 1.0
    out = axes(area, (x, [], 1), (y, ticks(low, high + room, 4), unit))
    for i, each in enumerate(found):
        if each.floor_95 is not None:
            top, left = y(each.floor_95), x(i - 0.5)
            out += rect("floor", left, top, x(i + 0.5) - left, area.bottom - top)
    points = [(x(i), y(each.value)) for i, each in enumerate(found)]
    drawn = element("path", "line", d=path(points))
    names = list(results)
    for i, (name, each) in enumerate(results.items()):
        drawn += line(x(i), y(each.low), x(i), y(each.high), "whisker")
        value, least, most = (f"{unit * v:.4g}" for v in each.ends)
        drawn += dot(x(i), y(each.value), 4.5, f"{name}: {value} ({least} to {most})")
    out += within("after", drawn) + line(area.left, area.bottom, area.right, area.bottom, "axis")
    step = -(-len(names) // MOST_NAMES)
    most = WIDTH // (7 * min(len(names), MOST_NAMES))
    for i in range(0, len(names), step):
        # The end of a path tells files apart, its beginning rarely does.
        short = names[i] if len(names[i]) <= most else f"…{names[i][1 - most :]}"
        out += text(x(i), area.bottom + 20, short, anchor="middle")
    label = (
        f"{metric.title} of {whole(len(found))} sets of rows. The numbers are in the table below."
    )
    return picture(WIDTH, HEIGHT, label, out)
