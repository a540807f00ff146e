"""The text of SVG elements: what the charts of all pages are put together from.

Their classes are those of ``page/page.css``. The scripts of a page have the same few functions in
``charts.js``, because they draw again when another method is chosen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from html import escape

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
