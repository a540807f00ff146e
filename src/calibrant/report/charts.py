"""The charts of the page as it opens, drawn without a script; ``drawing.js`` draws other views.

Both draw from the same document (`calibrant.report.document`), in the same way:
``tests/test_report_in_a_browser.py`` compares them.

Their classes are those of ``page/page.css``. The scripts of a page have the same few functions in
``charts.js``, because they draw again when another method is chosen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from html import escape
from typing import Any

from calibrant.report.engine import grouped, typeset

Place = Callable[[float], float]
THIN = "\N{NARROW NO-BREAK SPACE}"


@dataclass(frozen=True)
class Area:
    """The rectangle of a plot, in units of the picture."""

    left: float
    right: float
    top: float
    bottom: float


def px(value: float) -> float:
    """Return a place to a tenth of a unit."""
    return math.floor(value * 10 + 0.5) / 10


def fixed(value: float, digits: int) -> str:
    """Return a number with so many digits, as the page sets it; a half is rounded as scripts do."""
    step = Decimal(1).scaleb(-digits)
    return typeset(str(Decimal(float(value)).quantize(step, ROUND_HALF_UP)))


def in_percent(fraction: float | None, digits: int = 1) -> str:
    """Return a fraction in percent; nothing for one that isn't there."""
    return "" if fraction is None else f"{fixed(100 * fraction, digits)}{THIN}%"


def whole(count: float) -> str:
    """Return a count with thin spaces between thousands."""
    return grouped(math.floor(count + 0.5))


def element(tag: str, name: str = "", content: str = "", **attributes: float | str) -> str:
    """Return an element; an underscore in the name of an attribute stands for a hyphen."""
    given = [("class", name)] if name else []
    parts = "".join(
        f' {key.replace("_", "-")}="{_written(value)}"'
        for key, value in [*given, *attributes.items()]
    )
    return f"<{tag}{parts}>{content}</{tag}>" if content else f"<{tag}{parts}/>"


def _written(value: float | str) -> str:
    return escape(value) if isinstance(value, str) else f"{value:.7g}"


def line(x1: float, y1: float, x2: float, y2: float, name: str, **more: float | str) -> str:
    """Return a line from (x1, y1) to (x2, y2)."""
    return element("line", name, "", x1=x1, y1=y1, x2=x2, y2=y2, **more)


def rect(name: str, left: float, top: float, width: float, height: float) -> str:
    """Return a rectangle."""
    return element("rect", name, x=left, y=top, width=px(width), height=px(height))


def text(x: float, y: float, words: str, name: str = "", anchor: str = "") -> str:
    """Return words that begin at (x, y), or end or have their middle there."""
    more = {"text_anchor": anchor} if anchor else {}
    return element("text", name, escape(words), x=x, y=y, **more)


def dot(x: float, y: float, radius: float, title: str = "") -> str:
    """Return a round mark, and what is read when one points at it."""
    content = f"<title>{escape(title)}</title>" if title else ""
    return element("circle", "dot", content, cx=x, cy=y, r=px(radius))


def path(points: Iterable[tuple[float, float]]) -> str:
    """Return the value of `d` of a path through points."""
    return "".join(f"{'L' if i else 'M'}{x:.7g} {y:.7g}" for i, (x, y) in enumerate(points))


def within(name: str, content: str) -> str:
    """Return a group of a class, such as the role of a method."""
    return element("g", name, content) if content else ""


def picture(width: float, height: float, label: str, content: str) -> str:
    """Return an SVG element, and what it is called for those who hear the page."""
    view = f"0 0 {width:.7g} {height:.7g}"
    return element("svg", "", content, viewBox=view, role="img", aria_label=label)


def scale(d0: float, d1: float, r0: float, r1: float) -> Place:
    """Return the map of [d0, d1] to [r0, r1]."""
    return lambda value: px(r0 + (value - d0) / ((d1 - d0) or 1) * (r1 - r0))


def ticks(low: float, high: float, count: int) -> list[float]:
    """Return round numbers that cover [low, high] in about `count` steps."""
    rough = (high - low) / count or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next(m for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


def tick_digits(values: Sequence[float], unit: float = 100) -> int:
    """Return how many digits tell ticks apart."""
    step = unit * (values[1] - values[0]) if len(values) > 1 else 1.0
    scaled = ((d, step * 10**d) for d in range(4))
    return next((d for d, value in scaled if abs(value - round(value)) < 1e-6), 3)


def axes(
    area: Area,
    x: tuple[Place, Sequence[float], float],
    y: tuple[Place, Sequence[float], float],
    *,
    x_grid: bool = True,
    x_text_at: float | None = None,
) -> str:
    """Return gridlines and labels of both axes.

    Args:
        area: of the plot.
        x: the map, the ticks, and what they are multiplied with where they are read: 100 is in
            percent.
        y: the same of the other axis.
        x_grid: whether there are upright gridlines.
        x_text_at: above the labels of the first axis; the lower end of the area if None.
    """
    out = ""
    (x_place, xs, _), (y_place, ys, _) = x, y
    for value, words in zip(ys, _labels(ys, y[2]), strict=True):
        at = y_place(value)
        out += line(area.left, at, area.right, at, "grid")
        out += text(area.left - 7, at + 4, words, anchor="end")
    below = area.bottom if x_text_at is None else x_text_at
    for value, words in zip(xs, _labels(xs, x[2]), strict=True):
        at = x_place(value)
        if x_grid:
            out += line(at, area.top, at, area.bottom, "grid")
        out += text(at, below + 17, words, anchor="middle")
    return out


def _labels(values: Sequence[float], unit: float) -> list[str]:
    digits = tick_digits(values, unit)
    labels = [fixed(unit * value, digits) for value in values]
    if unit == 100 and labels:
        labels[-1] += f"{THIN}%"
    return labels


Json = dict[str, Any]
# A method of the document, and the part it plays in a picture: "after" or "before".
Role = tuple[Json, str]

# Widths of the pictures, which a screen stretches to its own.
HALF, QUARTER, WHOLE = 440, 260, 780
CONFIDENCE_WORDS = ("Share that is right", "underconfident", "overconfident", "right", "confident")
POSITIVE_WORDS = ("Share that is positive", "too low", "too high", "positive", "said")


def charts_of(document: Json) -> dict[str, str]:
    """Return the HTML of each chart of the page as it opens, by the name of its section."""
    shown = shown_methods(document)
    found = {
        "reliability": _reliability_panels(document, shown),
        "accept": _legend(shown) + accept_chart(shown, document["risk_point"], document["worth"]),
    }
    if document["margin_histogram"]:
        found["margins"] = _margin_panels(shown)
    drawn = with_temperature(document, shown)
    if drawn:
        histogram = document["margin_histogram"]
        found["temperature"] = _legend(drawn) + temperature_chart(drawn, histogram)
    return found


def shown_methods(document: Json) -> list[Role]:
    """Return the methods that the page opens with."""
    named = {method["name"]: method for method in document["methods"]}
    shown = [(named[document["after"]], "after")]
    if document["before"] not in (None, document["after"]):
        shown.append((named[document["before"]], "before"))
    return shown


def with_temperature(document: Json, shown: Sequence[Role]) -> list[Role]:
    """Return the methods of the picture of temperatures: those shown that have one, and others."""
    drawn = [(method, role) for method, role in shown if method["temperature"]]
    having = [method for method in document["methods"] if method["temperature"]]
    if not shown[0][0]["temperature"]:
        others = [method for method in having if all(method is not one for one, _ in drawn)]
        drawn = [(method, "after") for method in others[:1]] + drawn
    single = [method for method in having if method["name"] == "temperature"]
    if single and len(drawn) == 1 and drawn[0][0] is not single[0]:
        drawn.append((single[0], "before"))
    return drawn


def _key(role: str, kind: str = "key") -> str:
    return f'<span class="{kind} {role}" aria-hidden="true"></span>'


def _legend(shown: Sequence[Role]) -> str:
    keys = (
        f"<span>{_key(role, 'key stroke')}{escape(method['name'])}</span>" for method, role in shown
    )
    return f'<p class="legend">{"".join(keys)}</p>'


def _figure(caption: str, drawn: str) -> str:
    return f"<figure><figcaption>{caption}</figcaption><div>{drawn}</div></figure>"


# --- reliability


def _reliability_panels(document: Json, shown: Sequence[Role]) -> str:
    out = ""
    for method, role in reversed(shown):
        words = method.get("stands_for")
        title = f" <span>{escape(words)}</span>" if words else ""
        caption = f"{_key(role)} <b>{escape(method['name'])}</b>{title}"
        out += _figure(caption, reliability_chart(method, role, of_positive=document["positive"]))
    return out


def reliability_chart(
    method: Json, role: str, *, of_positive: str | None, width: int = HALF
) -> str:
    """Return the diagram of equal-width bins above the histogram of confidences."""
    seen = method["positive"] if of_positive else method
    share, below, above, hit, said = POSITIVE_WORDS if of_positive else CONFIDENCE_WORDS
    axis = "Probability of the positive class" if of_positive else "Confidence"
    side = width - 52
    area, steps = Area(42, 42 + side, 28, 28 + side), [0, 0.2, 0.4, 0.6, 0.8, 1.0]
    foot = Area(area.left, area.right, area.bottom + 46, area.bottom + 128)
    x, y = scale(0, 1, area.left, area.right), scale(0, 1, area.bottom, area.top)
    out = axes(area, (x, steps, 100), (y, steps, 100), x_text_at=foot.bottom)
    out += line(x(0), y(0), x(1), y(1), "diagonal")
    out += text(area.left - 28, 12, share, "strong")
    out += text(area.left + 8, area.top + 18, below)
    out += text(area.right - 8, area.bottom - 10, above, anchor="end")
    out += within(role, _dots(seen["bins"]["uniform"], (x, y), 8, by_size=True))
    out += within(role, _bars(seen["histogram"], foot, hit))
    out += line(foot.left, foot.bottom, foot.right, foot.bottom, "axis")
    rows = whole(sum(seen["histogram"]["count"]))
    out += text(area.left, foot.top - 22, f"{rows} predictions, by {axis.lower()}", "strong")
    out += text(area.right, foot.bottom + 33, axis, "strong", "end")
    confidence, accuracy = in_percent(seen["confidence"]), in_percent(seen["accuracy"])
    means = [(seen["accuracy"], f"{hit} {accuracy}"), (seen["confidence"], f"{said} {confidence}")]
    label = (
        f"Reliability diagram of {method['name']}: mean {axis.lower()} {confidence}, "
        f"{hit} {accuracy}. The numbers are in the table below."
    )
    return picture(width, foot.bottom + 38, label, out + _means(x, foot, means))


def _dots(points: Json, places: Any, biggest: float, *, by_size: bool) -> str:
    (x, y), most = places, max(points["count"], default=1)
    columns = [points[key] for key in ("count", "confidence", "accuracy", "low", "high")]
    lines = dots = ""
    for count, confidence, accuracy, low, high in zip(*columns, strict=True):
        at = x(confidence)
        lines += line(at, y(confidence), at, y(accuracy), "gap", stroke_width=7 if by_size else 5)
        lines += line(at, y(low), at, y(high), "whisker")
        radius = 3 + (biggest - 3) * math.sqrt(count / most) if by_size else biggest
        title = (
            f"confidence {in_percent(confidence)}, right {in_percent(accuracy)} "
            f"({in_percent(low)} to {in_percent(high)}), {whole(count)} rows"
        )
        dots += dot(at, y(accuracy), radius, title)
    return lines + dots


def _bars(histogram: Json, foot: Area, hit: str) -> str:
    count, correct = histogram["count"], histogram["correct"]
    h, out = scale(0, max(count), foot.bottom, foot.top), ""
    bin_width = (foot.right - foot.left) / len(count)
    for i, (rows, right) in enumerate(zip(count, correct, strict=True)):
        if not rows:
            continue
        low, high = (in_percent(end / len(count), 0) for end in (i, i + 1))
        title = f"<title>{low} to {high}: {whole(rows)} rows, {whole(right)} {hit}</title>"
        left, wide = px(foot.left + i * bin_width + 0.5), bin_width - 1
        bars = (
            rect(name, left, h(value), wide, foot.bottom - h(value))
            for name, value in (("bar wrong", rows), ("bar", right))
        )
        out += f"<g>{title}{''.join(bars)}</g>"
    return out


def _means(x: Any, foot: Area, means: list[tuple[float, str]]) -> str:
    """Return two labelled lines whose labels cross neither line."""
    first, second = sorted(means, key=lambda mean: mean[0])
    if first[0] > 0.36:
        placed = [(second, "end"), (first, "end")]
    else:
        placed = [(first, "start"), (second, "start" if second[0] < 0.62 else "end")]
    out = ""
    for i, ((value, label), anchor) in enumerate(placed):
        at, top = x(value), foot.top - 2 + 17 * i
        out += line(at, top, at, foot.bottom, "marker")
        beside = at + (-6 if anchor == "end" else 6)
        out += text(beside, top + 10, label, "strong halo", anchor)
    return out


# --- margins


def _margin_panels(shown: Sequence[Role]) -> str:
    out, count = "", len(shown[0][0]["margin_groups"])
    for i in range(count):
        lines = [f"<b>{_quarter(i, count)}</b>"]
        group = shown[-1][0]["margin_groups"][i]
        low, high = (fixed(end, 2) for end in group["margin"])
        lines.append(f"<span>{low} to {high}, {whole(group['rows'])} rows</span>")
        for method, role in reversed(shown):
            found = method["margin_groups"][i]
            gap = found["confidence"] - found["accuracy"]
            words = f"{fixed(100 * abs(gap), 1)} points {'over' if gap >= 0 else 'under'}"
            lines.append(f"{_key(role)} {escape(method['name'])} <b>{words}</b>")
        out += _figure("<br>".join(lines), margin_chart(shown[::-1], i))
    return out


def _quarter(i: int, count: int) -> str:
    if count == 1:
        return "All rows"
    if i in (0, count - 1):
        return "Largest margins" if i else "Smallest margins"
    return f"{['Second', 'Third'][i - 1]} quarter"


def margin_chart(shown: Sequence[Role], index: int, width: int = QUARTER) -> str:
    """Return the diagram of one margin group, zoomed to its rows."""
    groups = [(method["margin_groups"][index], role) for method, role in shown]
    ends = [
        end
        for group, _ in groups
        for key in ("confidence", "low", "high")
        for end in group["points"][key]
    ]
    low, high = min(ends), max(ends)
    room = max(0.06 * (high - low), 0.002)
    low, high = max(0.0, low - room), min(1.0, high + room)
    side = width - 54
    area, steps = Area(46, 46 + side, 6, 6 + side), ticks(low, high, 4)
    x, y = scale(low, high, area.left, area.right), scale(low, high, area.bottom, area.top)
    out = axes(area, (x, steps, 100), (y, steps, 100))
    out += line(x(low), y(low), x(high), y(high), "diagonal")
    for group, role in groups:
        out += within(role, _dots(group["points"], (x, y), 4.5, by_size=False))
    words = (
        f"{method['name']}: confidence {in_percent(group['confidence'])}, "
        f"right {in_percent(group['accuracy'])}"
        for (method, _), (group, _) in zip(shown, groups, strict=True)
    )
    return picture(width, area.bottom + 24, "; ".join(words), out)


# --- temperatures


def temperature_chart(shown: Sequence[Role], histogram: Json, width: int = WHOLE) -> str:
    """Return the temperature of each row over its margin, above how many rows have which margin."""
    height = 380
    area = Area(42, width - 10, 26, height - 84)
    curves = [(method, role, method["temperature"]) for method, role in shown]
    values = [1.0, *(value for *_, curve in curves for value in curve["temperature"])]
    least, most = min(values), max(values)
    room = 0.08 * (most - least) + 0.02
    x = scale(0, histogram["high"], area.left, area.right)
    y = scale(least - room, most + room, area.bottom, area.top)
    xs, ys = ticks(0, histogram["high"], 8), ticks(least - room, most + room, 5)
    foot = Area(area.left, area.right, area.bottom + 12, height - 24)
    out = axes(area, (x, xs, 1), (y, ys, 1), x_grid=False, x_text_at=foot.bottom)
    out += text(area.left - 28, 12, "Temperature", "strong")
    words = "Margin between the two largest logits"
    out += text(area.right, height - 24 + 17 + 15, words, "strong", "end")
    out += line(area.left, y(1), area.right, y(1), "axis")
    out += text(area.right, y(1) + 16, "1: unchanged", "halo", "end")
    h = scale(0, max(histogram["count"]), foot.bottom, foot.top)
    step = (histogram["high"] - histogram["low"]) / len(histogram["count"])
    for i, rows in enumerate(histogram["count"]):
        left, right = (x(histogram["low"] + end * step) for end in (i, i + 1))
        out += rect("bar rows", left, h(rows), max(1.0, right - left - 1), foot.bottom - h(rows))
    for _, role, curve in curves:
        points = [
            (x(margin), y(value))
            for margin, value in zip(curve["margin"], curve["temperature"], strict=True)
        ]
        whole_curve = f'<path class="line" d="{path(points)}"/>'
        out += within(
            role, whole_curve if curve["is_function"] else "".join(dot(*p, 2.6) for p in points)
        )
    label = (
        f"{method['name']}: temperature from {fixed(min(curve['temperature']), 2)} "
        f"to {fixed(max(curve['temperature']), 2)}"
        for method, _, curve in curves
    )
    return picture(width, height + 12, "; ".join(label), out)


# --- accepting


def accept_chart(shown: Sequence[Role], point: Json, rows: float, width: int = WHOLE) -> str:
    """Return the risk-coverage curves with a mark at the threshold that was taken."""
    height = 400
    area = Area(42, width - 12, 26, height - 40)
    curves = [
        (
            role,
            [
                (accepted / rows, wrong / accepted)
                for accepted, wrong in zip(
                    method["risk"]["accepted"], method["risk"]["wrong"], strict=True
                )
            ],
        )
        for method, role in shown
    ]
    errors = (error for _, at in curves for coverage, error in at if coverage > 0.02)
    top = max(0.001, *errors) * 1.12
    x, y = scale(0, 1, area.left, area.right), scale(0, top, area.bottom, area.top)
    out = axes(area, (x, ticks(0, 1, 5), 100), (y, ticks(0, top, 5), 100))
    out += text(area.left - 28, 12, "Wrong among the accepted", "strong")
    out += text(area.right, height - 4, "Accepted, of all inputs", "strong", "end")
    role, at = curves[0]
    bounds = zip(at, shown[0][0]["risk"]["bound"], strict=True)
    above = [(x(coverage), y(min(high, top))) for (coverage, _), high in bounds]
    below = [(x(coverage), y(min(error, top))) for coverage, error in at]
    out += within(role, f'<path class="area" d="{path([*below, *above[::-1]])}Z"/>')
    for role, at in reversed(curves):
        points = [(x(coverage), y(min(error, top))) for coverage, error in at]
        out += within(role, f'<path class="line" d="{path(points)}"/>')
    at_x, at_y = x(point["coverage"]), y(min(point["error"], top))
    out += line(at_x, at_y, at_x, area.bottom, "marker")
    out += line(area.left, at_y, at_x, at_y, "marker")
    out += within("after", dot(at_x, at_y, 7))
    side = -1 if point["coverage"] > 0.5 else 1
    coverage, error = in_percent(point["coverage"]), in_percent(point["error"], 2)
    words, anchor = f"{coverage} accepted, {error} wrong", "end" if side < 0 else "start"
    out += text(at_x + 12 * side, at_y - 12, words, "strong halo", anchor)
    label = (
        f"Risk-coverage curve. At a confidence of {in_percent(point['threshold'])} or more, "
        f"{coverage} are accepted and {error} of those are wrong."
    )
    return picture(width, height, label, out)


# --- pictures in the cells of tables


def strip(result: Json, ends: Sequence[float], best: float) -> str:
    """Return value, interval and floor on a scale that all rows of a table share."""
    if result["value"] is None:
        return ""
    (low, high), width = ends, 400
    x, keep, out = scale(low, high, 8, width - 8), {"vector_effect": "non-scaling-stroke"}, ""
    if result["floor_95"] is not None:
        right = x(min(max(result["floor_95"], low), high))
        out += rect("floor", x(low), 0, right - x(low), 30)
    out += line(x(best), 0, x(best), 30, "diagonal", **keep)
    value = result["value"]
    if not low <= value <= high:
        far, tip = (width - 24, width - 8) if value > high else (24, 8)
        arrow = path([(far, 9), (tip, 15), (far, 21)])
        out += f'<path class="line" d="{arrow}" vector-effect="non-scaling-stroke"/>'
    if result["low"] is not None:
        first, last = max(result["low"], low), min(result["high"], high)
        if first < last:
            out += line(x(first), 15, x(last), 15, "whisker", **keep)
    if low <= value <= high:
        out += line(x(value), 15, x(value), 15, "point", **keep)
    return _in_a_cell(width, 30, out, ' preserveAspectRatio="none"')


def gap_bar(gap: float, low: float, high: float, other: float | None, ends: Sequence[float]) -> str:
    """Return the gap of a class with its interval; hollow: that of the other method."""
    x = scale(ends[0], ends[1], 6, 154)

    def at(value: float) -> float:
        return x(min(max(value, ends[0]), ends[1]))

    out = line(x(0), 0, x(0), 18, "axis")
    if other is not None:
        out += within("before", dot(at(other), 9, 3.5))
    out += line(at(low), 9, at(high), 9, "whisker") + dot(at(gap), 9, 4)
    return _in_a_cell(160, 18, out)


def _in_a_cell(width: int, height: int, content: str, more: str = "") -> str:
    view = f'viewBox="0 0 {width} {height}"{more} aria-hidden="true"'
    return f"<svg {view}>{within('after', content)}</svg>"
