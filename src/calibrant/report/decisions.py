"""The page of a decision: its finding, its promise, a picture to move along, and the table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from calibrant.decision.base import Decision, Share
from calibrant.decision.cost import CostDecision
from calibrant.decision.grouped import GroupedDecision
from calibrant.decision.risk import CURVE, RiskDecision
from calibrant.decision.sets import SetDecision
from calibrant.evaluation.groups import PRINTED_GROUPS
from calibrant.evaluation.multicalibration import Multicalibration
from calibrant.report.charts import (
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
from calibrant.report.engine import PageTable, render_page, typeset

WIDTH, HEIGHT, ROW = 780, 340, 24


class Chart(NamedTuple):
    """A picture of a page.

    Attributes:
        title: its heading; how: how it is read.
        drawn: the SVG element.
        points: of each place along its line where it stands, and what is read there.
        at: the place that the page opens with.
        along: what one moves along.
    """

    title: str
    how: str
    drawn: str
    points: Sequence[tuple[float, float, str]] = ()
    at: int = 0
    along: str = ""


def decision_page(decision: Decision) -> str:
    """Return the page."""
    charts = list[Chart]()
    if isinstance(decision, RiskDecision) and len(decision.curve["coverage"]):
        charts.append(risk_chart(decision))
    elif isinstance(decision, CostDecision) and decision.benefit:
        charts.append(benefit_chart(decision))
    elif isinstance(decision, SetDecision):
        charts.append(sizes_chart(decision))
    elif isinstance(decision, GroupedDecision):
        charts += [kept_chart(decision), group_risks_chart(decision)]
    table = decision.as_table()
    small = [decision.small_in_words] if isinstance(decision, GroupedDecision) else []
    return render_page(
        "decision.html.jinja",
        kind="Decision",
        headline=typeset(decision.headline()),
        of=typeset(decision.rows_in_words),
        promise=typeset(decision.promise()),
        charts=[each._replace(drawn=Markup(each.drawn), how=typeset(each.how)) for each in charts],
        moved=next((each for each in charts if each.points), None),
        shown=PageTable.of(table, "What was found"),
        notes=[typeset(note) for note in (table.notes, *decision.notes, *small) if note],
    )


def groups_page(found: Multicalibration) -> str:
    """Return the page of the worst of many groups: a bar for each, and the table."""
    lead, _, rest = found.headline().partition(": error ")
    values = {each.group: each.sigmas for each in found.groups[:PRINTED_GROUPS]}
    how = (
        "Error of the worst groups in units of its noise: the range of their residual curves over "
        "its spread if their probabilities were calibrated."
    )
    chart = Chart("The worst groups", how, Markup(_bars(values, "Error, in sigmas", 1)))
    few = [f"{name} ({n})" for name, n in found.left_out.items()]
    small = [f"Left out, with too few rows: {', '.join(few)}."] if few else []
    table = found.as_table()
    return render_page(
        "decision.html.jinja",
        kind="Calibration of groups",
        headline=typeset(f"{lead}."),
        of=typeset(f"{found.source}, by {', '.join(found.by)}"),
        promise=typeset(f"Error {rest}"),
        charts=[chart],
        moved=None,
        shown=PageTable.of(table, "Groups, the worst first"),
        notes=[typeset(note) for note in (table.notes, *small)],
    )


def _marked(x: float, y: float, area: Area) -> str:
    """Return the mark that is moved along a line."""
    upright = element("line", "marker", x1=x, y1=area.top, x2=x, y2=area.bottom)
    return element("g", "after", upright + element("circle", "dot", cx=x, cy=y, r=7), id="mark")


def risk_chart(decision: RiskDecision) -> Chart:
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
    words, at = list[str](), 0
    across, risk = (title[0].lower() + title[1:] for title in decision.axis_titles)
    for i, (threshold, share, value, high) in enumerate(
        zip(*(decision.curve[name].tolist() for name in CURVE), strict=True)
    ):
        taken = threshold == decision.threshold
        at = i if taken else at
        words.append(
            f"From {threshold:.4g} on: {across} {in_percent(share)}; {risk} {in_percent(value)}, "
            f"at most {in_percent(high)} by its bound{', the chosen threshold' * taken}."
        )
    out += line(x(0), y(decision.risk), x(1), y(decision.risk), "diagonal")
    if decision.threshold is not None:
        found = f"{in_percent(decision.coverage.value)}, risk {in_percent(decision.error.value)}"
        about = f"threshold {fixed(decision.threshold, 3)}: {found}"
        drawn += dot(x(decision.coverage.value), y(min(decision.error.value, most)), 4, about)
    out += within("after", drawn) + _marked(*measured[at], area)
    out += _titles(area, *decision.axis_titles)
    how = (
        f"Line: what is measured. Shaded: up to the {in_percent(decision.sure, 0)} upper bound of "
        "the risk at each threshold alone. Dotted: the highest risk allowed. Small dot: the chosen "
        "threshold."
    )
    drawn = picture(WIDTH, HEIGHT, "Risk over coverage, with its upper bound.", out)
    points = [(*place, typeset(word)) for place, word in zip(measured, words, strict=True)]
    return Chart("Risk against coverage", how, drawn, points, at, "Move the threshold")


def benefit_chart(decision: CostDecision) -> Chart:
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
    if "uncalibrated" in found:
        out += within("before", element("path", "line thin", d=path(curve("uncalibrated"))))
    out += line(area.left, y(0), area.right, y(0), "axis")
    middle = len(at) // 2
    out += _marked(*curve("benefit")[middle], area) + _titles(
        area, "Threshold t", "Net benefit a row"
    )
    drawn = picture(WIDTH, HEIGHT, f"Net benefit of {decision.event} over thresholds.", out)
    words = [_benefit_at(decision, i) for i in range(len(at))]
    how = (
        f"For {decision.event}: hits per row, minus false alarms weighted by t / (1 - t). Line: "
        "acting from a probability of t on; shaded: its interval. Dashed: acting on all rows"
        f"{'; dotted: with the uncalibrated probabilities' * ('gain' in found)}. Zero: on none."
    )
    points = [(*place, word) for place, word in zip(curve("benefit"), words, strict=True)]
    return Chart("Net benefit", how, drawn, points, middle, "Move the threshold t")


def _benefit_at(decision: CostDecision, i: int) -> str:
    """Return what the net benefit is at a threshold, in a sentence."""
    found = {name: float(column[i]) for name, column in decision.benefit.items()}
    words = (
        f"At t = {found['threshold']:.2f}: {found['benefit']:.3g} a row ({found['low']:.3g} to "
        f"{found['high']:.3g}), for all rows {found['all']:.3g}"
    )
    if "gain" not in found:
        return typeset(f"{words}.")
    return typeset(
        f"{words}, uncalibrated {found['uncalibrated']:.3g}: calibration gains {found['gain']:.3g} "
        f"({found['gain_low']:.3g} to {found['gain_high']:.3g})."
    )


def sizes_chart(decision: SetDecision) -> Chart:
    """Return the mean size of the sets of each class, the largest first."""
    drawn = _bars(dict(decision.largest), "Classes in a set", 2, decision.size)
    how = "Mean number of classes in a set, by true class. Grey: of all rows, with interval."
    return Chart("Sizes of sets", how, drawn)


def kept_chart(decision: GroupedDecision) -> Chart:
    """Return how much of each group is answered, or how large its sets are."""
    values = {name: share.value for name, (share, _) in decision.measured.items()}
    if decision.each == "set":
        drawn = _bars(values, "Classes in a set", 2)
        return Chart("Sizes of sets", "Mean number of classes in a set of each group.", drawn)
    shares = {name: 100 * value for name, value in values.items()}
    drawn = _bars(shares, f"{decision.acted} of its rows, in percent", 1, most=100)
    return Chart("What is kept", "Share of the rows of each group that is acted on.", drawn)


def group_risks_chart(decision: GroupedDecision) -> Chart:
    """Return the risk of each group with its interval, or the coverage of its sets."""
    found = {n: share for n, (_, share) in decision.measured.items() if share is not None}
    sets = decision.each == "set"
    height = 26 + ROW * len(found) + 44
    area = Area(150, WIDTH - 60, 26, height - 44)
    ends = [end for share in found.values() for end in (share.low, share.high)]
    low = min([decision.wanted, *ends]) - 0.01 if sets else 0.0
    high = 1.0 if sets else 1.1 * max([decision.wanted, *ends])
    x = scale(low, high, area.left, area.right)
    out = axes(area, (x, ticks(low, high, 5), 100), (x, [], 1))
    out += line(x(decision.wanted), area.top, x(decision.wanted), area.bottom, "diagonal")
    drawn = ""
    for i, (name, share) in enumerate(found.items()):
        middle = area.top + ROW * (i + 0.5)
        out += text(area.left - 8, middle + 4, _short(name), anchor="end")
        drawn += line(x(share.low), middle, x(share.high), middle, "whisker")
        words = f"{name}: {in_percent(share.value)} ({in_percent(share.low)} to "
        drawn += dot(x(share.value), middle, 4.5, f"{words}{in_percent(share.high)})")
    what = "True class in the set" if sets else "Risk"
    out += within("after", drawn) + _titles(area, what, "")
    how = (
        f"Dots: of each group on these rows; lines: intervals. Dotted: what "
        f"{'is promised at least' if sets else 'is promised at most'}."
    )
    label = f"{what} of each group with its interval."
    return Chart(f"{what}, group by group", how, picture(WIDTH, height, label, out))


def _bars(
    values: dict[str, float],
    title: str,
    digits: int,
    overall: Share | None = None,
    most: float = 0.0,
) -> str:
    """Return a bar for each name, and grey behind them the interval of all rows."""
    height = 26 + ROW * len(values) + 44
    area = Area(150, WIDTH - 60, 26, height - 44)
    most = max([most, *values.values(), 0.0 if overall is None else overall.high]) or 1.0
    x = scale(0, most, area.left, area.right)
    out = axes(area, (x, ticks(0, most, 6), 1), (x, [], 1))
    if overall is not None:
        low, high = x(overall.low), x(overall.high)
        out += rect("floor", low, area.top, max(high - low, 1), area.bottom - area.top)
    bars = ""
    for i, (name, value) in enumerate(values.items()):
        top = area.top + ROW * i
        bars += rect("bar", area.left, top + 4, x(value) - area.left, ROW - 8)
        out += text(area.left - 8, top + 16, _short(name), anchor="end")
        out += text(px(x(value) + 6), top + 16, fixed(value, digits), "strong")
    out += within("after", bars) + _titles(area, title, "")
    return picture(WIDTH, height, f"{title}, a bar each.", out)


def _short(name: str) -> str:
    return name if len(name) <= 20 else f"{name[:19]}…"


def _titles(area: Area, x: str, y: str) -> str:
    """Return what the axes are called."""
    above = text(px(area.left - 40), 12, y, "strong") if y else ""
    return above + text(area.right, area.bottom + 36, x, "strong", "end")
