"""The page of a decision: its finding, its promise, one picture and the table."""

from __future__ import annotations

from markupsafe import Markup

from calibrant.decision.base import Decision
from calibrant.decision.cost import CostDecision
from calibrant.decision.risk import RiskDecision
from calibrant.decision.sets import SetDecision
from calibrant.report.engine import PageTable, render_page, typeset
from calibrant.report.svg import (
    Area,
    axes,
    dot,
    element,
    fixed,
    in_percent,
    line,
    path,
    picture,
    px,
    rect,
    scale,
    text,
    ticks,
    within,
)

WIDTH, HEIGHT, ROW = 780, 340, 24


def decision_page(decision: Decision) -> str:
    """Return the page."""
    title, how, drawn = "", "", None
    if isinstance(decision, RiskDecision) and len(decision.curve["coverage"]):
        title = "Risk against coverage"
        how = (
            "Line: what is measured. Shaded: up to the upper bound of the risk. Dotted: the risk "
            "that isn't to be passed. Dot: the threshold that is taken."
        )
        drawn = risk_chart(decision)
    elif isinstance(decision, CostDecision) and decision.benefit:
        title = "Net benefit"
        how = (
            f"Of {decision.event}: hits a row, less false alarms at odds of t to 1 - t. Line: from "
            "a probability of t on, shaded its interval. Dashed: for all rows. Zero: for none."
        )
        drawn = benefit_chart(decision)
    elif isinstance(decision, SetDecision):
        title = "Sizes of sets"
        how = "Mean number of classes in a set, by true class. Grey: of all rows, with interval."
        drawn = sizes_chart(decision)
    table = decision.as_table()
    return render_page(
        "decision.html.jinja",
        headline=typeset(decision.headline()),
        of=typeset(decision.rows_in_words),
        promise=typeset(decision.promise()),
        title=title,
        how=typeset(how),
        chart=None if drawn is None else Markup(drawn),
        shown=PageTable.of(table, "What was found"),
        notes=[typeset(note) for note in (table.notes, *decision.notes)],
    )


def risk_chart(decision: RiskDecision) -> str:
    """Return the risk over coverage with its bound."""
    area = Area(56, WIDTH - 12, 26, HEIGHT - 44)
    coverage, error = decision.curve["coverage"], decision.curve["error"]
    most = decision.most_shown
    x, y = scale(0, 1, area.left, area.right), scale(0, most, area.bottom, area.top)
    out = axes(area, (x, ticks(0, 1, 5), 100), (y, ticks(0, most, 5), 100))
    places = [x(at) for at in coverage]
    measured = [(at, y(min(value, most))) for at, value in zip(places, error, strict=True)]
    bound = zip(places, decision.curve["bound"], strict=True)
    above = [(at, y(min(float(value), most))) for at, value in bound]
    drawn = element("path", "area", d=path([*measured, *above[::-1]]) + "Z")
    drawn += element("path", "line", d=path(measured))
    if decision.threshold is not None:
        found = f"{in_percent(decision.coverage.value)}, risk {in_percent(decision.error.value)}"
        words = f"threshold {fixed(decision.threshold, 3)}: {found}"
        drawn += dot(x(decision.coverage.value), y(min(decision.error.value, most)), 6, words)
    out += line(x(0), y(decision.risk), x(1), y(decision.risk), "diagonal")
    out += within("after", drawn) + _titles(area, *decision.axis_titles)
    return picture(WIDTH, HEIGHT, "Risk over coverage, with its upper bound.", out)


def benefit_chart(decision: CostDecision) -> str:
    """Return the net benefit over thresholds, beside acting on all rows and on none."""
    area, found = Area(56, WIDTH - 12, 26, HEIGHT - 44), decision.benefit
    low, high = decision.benefit_shown
    x, y = scale(0, 1, area.left, area.right), scale(low, high, area.bottom, area.top)
    out = axes(area, (x, ticks(0, 1, 5), 100), (y, ticks(low, high, 5), 1))
    at = [x(threshold) for threshold in found["threshold"]]

    def curve(name: str) -> list[tuple[float, float]]:
        return [(a, y(min(max(v, low), high))) for a, v in zip(at, found[name], strict=True)]

    shown = int((found["all"] >= low).sum())
    out += within("before", element("path", "line", d=path(curve("all")[: max(shown, 1)])))
    band = element("path", "area", d=path([*curve("low"), *curve("high")[::-1]]) + "Z")
    out += within("after", band + element("path", "line", d=path(curve("benefit"))))
    out += line(area.left, y(0), area.right, y(0), "axis")
    out += _titles(area, "Threshold t", "Net benefit a row")
    return picture(WIDTH, HEIGHT, f"Net benefit of {decision.event} over thresholds.", out)


def sizes_chart(decision: SetDecision) -> str:
    """Return the mean size of the sets of each class, the largest first."""
    sizes = decision.largest
    height = 26 + ROW * len(sizes) + 44
    area = Area(150, WIDTH - 40, 26, height - 44)
    most = max([decision.size.high, *(size for _, size in sizes)])
    x = scale(0, most, area.left, area.right)
    low, high = x(decision.size.low), x(decision.size.high)
    out = axes(area, (x, ticks(0, most, 6), 1), (x, [], 1))
    out += rect("floor", low, area.top, max(high - low, 1), area.bottom - area.top)
    bars = ""
    for i, (name, size) in enumerate(sizes):
        top = area.top + ROW * i
        bars += rect("bar", area.left, top + 4, x(size) - area.left, ROW - 8)
        short = name if len(name) <= 20 else f"{name[:19]}…"
        out += text(area.left - 8, top + 16, short, anchor="end")
        out += text(px(x(size) + 6), top + 16, fixed(size, 2), "strong")
    out += within("after", bars) + _titles(area, "Classes in a set", "")
    return picture(WIDTH, height, "Mean size of the sets by true class.", out)


def _titles(area: Area, x: str, y: str) -> str:
    """Return what the axes are called."""
    above = text(px(area.left - 40), 12, y, "strong") if y else ""
    return above + text(area.right, area.bottom + 36, x, "strong", "end")
