"""The figure of a study: its kind's own, lines over an axis, or numbers side by side."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from calibrant.core.errors import InputError
from calibrant.report.figures import QUIET
from calibrant_studies import plot_style as looks
from calibrant_studies.declaration import Figure as Declared
from calibrant_studies.declaration import Study
from calibrant_studies.kinds import kind_named
from calibrant_studies.results import layout_words, levels_in_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from calibrant_studies.estimates import Estimate
    from calibrant_studies.kinds.base import Measure
    from calibrant_studies.results import StudyResult

# matplotlib's types leave keyword arguments open.
# pyright: reportUnknownMemberType=false

FORMATS = (".svg", ".png", ".pdf")


def draw(result: StudyResult) -> Figure:
    """Return the figure of the kind, or that the study declares, or its table as points.

    Raises:
        InputError: there is no number to draw.
    """
    if not result.estimates:
        raise InputError(f"{result.study.name}: there is no number to draw")
    declared = result.study.figure
    own = kind_named(result.study.kind).draw(result)
    if own is not None:
        return own
    return draw_points(result) if declared is None else _lines(result, declared)


def drawn_for(result: StudyResult, path: Path) -> bytes:
    """Return the content of a file whose name ends in .svg, .png or .pdf.

    Raises:
        InputError: it ends otherwise, or there is nothing to draw.
    """
    check_ending(path)
    return content(draw(result), path.suffix.lower()[1:])


def check_ending(path: Path) -> None:
    """Refuse a name that ends in nothing that figures are written as; see `drawn_for`."""
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"{path}: figures are written as {', '.join(FORMATS)}; name it so")


def content(figure: Figure, form: str) -> bytes:
    """Return a figure as a file has it; equal figures give equal files, without dates."""
    import matplotlib as mpl

    held = io.BytesIO()
    dated = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}
    with mpl.rc_context({"svg.hashsalt": "calibrant"}):
        figure.savefig(held, format=form, dpi=150, metadata=dated.get(form))
    return held.getvalue()


def _lines(result: StudyResult, declared: Declared) -> Figure:
    """Return lines over an axis: a row of panels for each metric, a column for each panel.

    Values that are no numbers have no way from one to the next: they stand below one another.
    """
    from matplotlib.figure import Figure

    study, found = result.study, relative_to(result, declared.minus)
    panels = list(dict.fromkeys(layout_words(study, declared.panels, e.at) for e in found))
    lines = list(dict.fromkeys(layout_words(study, declared.lines, e.at) for e in found))
    there = {e.at[declared.x] for e in found}
    names = [value.name for value in study.axes[declared.x] if value.name in there]
    place, numeric = _places(names)
    high = 2.6 if numeric else 0.5 + 0.07 * len(names) * max(3, len(lines))
    size = (1.2 + 3.6 * len(panels), 1.0 + high * len(declared.y))
    figure = Figure(size, layout="constrained")
    axes = figure.subplots(len(declared.y), len(panels), squeeze=False, sharex=numeric)
    labels = [study.value(declared.x, name).label for name in names]
    for i, metric in enumerate(declared.y):
        title = titled(result.measures[metric]) + f" minus {declared.minus}" * bool(declared.minus)
        for j, panel in enumerate(panels):
            ax = axes[i][j]
            series = [
                [
                    e
                    for e in found
                    if e.measure.name == metric
                    and layout_words(study, declared.panels, e.at) == panel
                    and layout_words(study, declared.lines, e.at) == line
                ]
                for line in lines
            ]
            if numeric:
                _over_numbers(ax, series, lines, place, declared)
                if len(names) <= 8:
                    ax.set_xticks([place[name] for name in names], labels)
                    ax.minorticks_off()
                if i == len(declared.y) - 1:
                    ax.set_xlabel(declared.label or declared.x)
                if j == 0:
                    ax.set_ylabel(title)
            else:
                _over_names(ax, series, lines, place, declared.x)
                ax.set_yticks(range(len(names)), labels if j == 0 else [""] * len(names))
                ax.set_xlabel(title)
            if i == 0 and panel:
                looks.headed(ax, panel)
            if declared.minus:
                (ax.axhline if numeric else ax.axvline)(0, color=QUIET, lw=1)
            looks.quiet(ax)
    looks.legend_below(figure)
    return figure


def relative_to(result: StudyResult, rival: str) -> list[Estimate]:
    """Return the numbers less those of one competitor, seed by seed; "" leaves them as they are."""
    axis = result.study.compare
    if not rival or axis is None:
        return result.estimates
    base = {
        (e.measure.name, *_others(e.at, axis)): e for e in result.estimates if e.at[axis] == rival
    }
    found: list[Estimate] = []
    for estimate in result.estimates:
        theirs = base.get((estimate.measure.name, *_others(estimate.at, axis)))
        if estimate.at[axis] == rival or theirs is None:
            continue
        # Where seeds change nothing there is one value for all of them, and one difference.
        pairs = dict.fromkeys(
            (place, theirs.of_seed[seed])
            for seed, place in estimate.of_seed.items()
            if seed in theirs.of_seed
        )
        values = tuple(estimate.values[a] - theirs.values[b] for a, b in pairs)
        if values:
            found.append(replace(estimate, values=values, low=None, high=None, published=None))
    return found


def _others(at: Mapping[str, str], axis: str) -> tuple[tuple[str, str], ...]:
    return tuple((key, name) for key, name in at.items() if key != axis)


class _Series(NamedTuple):
    """One of several series in a panel: its place in the list, its name, how far it is aside."""

    number: int
    name: str
    aside: float
    points: Sequence[Estimate]


def _side_by_side(
    series: Sequence[Sequence[Estimate]], names: Sequence[str], wide: float
) -> Iterator[_Series]:
    """Yield the series that have points, each moved aside lest one hides the next."""
    shifts = looks.shifts(len(series), wide)
    for number, (points, name) in enumerate(zip(series, names, strict=True)):
        if points:
            yield _Series(number, name, shifts[number], points)


def _over_numbers(
    ax: Axes,
    series: Sequence[Sequence[Estimate]],
    names: Sequence[str],
    place: Mapping[str, float],
    declared: Declared,
) -> None:
    """Draw lines with their spreads over seeds, or intervals; what was published is hollow."""
    spans = np.array(sorted(place.values()))
    if declared.log:
        ax.set_xscale("log")
        spans = np.log(spans)
    wide = 0.012 * len(series) * float(spans[-1] - spans[0])
    banded = len(series) <= 3
    for number, name, aside, chosen in _side_by_side(series, names, wide):
        scale, color = chosen[0].measure.scale, looks.colour(number)
        at = np.array([place[e.at[declared.x]] for e in chosen])
        values = [scale * e.value for e in chosen]
        spread = [scale * (e.spread or 0.0) for e in chosen]
        style = looks.mark(number) | looks.stroke(number)
        if any(spread):
            at = at * np.exp(aside) if declared.log else at + aside
            ax.errorbar(at, values, spread, label=name, ms=4, lw=1.4, elinewidth=0.8, **style)
        else:
            ax.plot(at, values, label=name, ms=4, lw=1.4, **style)
        ends = [(e.low, e.high) for e in chosen]
        if banded and not any(spread) and not any(None in pair for pair in ends):
            low, high = ([scale * float(end) for end in of] for of in zip(*ends, strict=True))  # type: ignore[arg-type]
            ax.fill_between(at, low, high, color=color, alpha=0.15, lw=0)
        printed = [(p, e.published.value) for p, e in zip(at, chosen, strict=True) if e.published]
        if printed:
            hollow: dict[str, Any] = {"linestyle": "", "marker": "o", "ms": 7, "mfc": "none"}
            ax.plot(*zip(*printed, strict=True), mec=color, **hollow)


def _over_names(
    ax: Axes,
    series: Sequence[Sequence[Estimate]],
    names: Sequence[str],
    place: Mapping[str, float],
    axis: str,
) -> None:
    """Draw points with their spreads over seeds, or intervals, one name below the other."""
    for number, name, aside, chosen in _side_by_side(series, names, 0.7):
        for estimate in chosen:
            scale, value = estimate.measure.scale, estimate.value
            height = place[estimate.at[axis]] + aside
            ends = (estimate.low, estimate.high)
            if estimate.spread is not None:
                ends = (value - estimate.spread, value + estimate.spread)
            if None not in ends:
                reach = [scale * float(end) for end in ends]  # type: ignore[arg-type]
                ax.plot(reach, [height] * 2, color=looks.colour(number), lw=0.8)
            style: dict[str, Any] = {"linestyle": "", "ms": 4.5, **looks.mark(number)}
            ax.plot(scale * value, height, label=name, **style)
    ax.set_ylim(len(place) - 0.5, -0.5)


def _places(names: Sequence[str]) -> tuple[dict[str, float], bool]:
    """Return where values stand along an axis, and whether they are numbers."""
    try:
        return {name: float(name) for name in names}, True
    except ValueError:
        return {name: float(i) for i, name in enumerate(names)}, False


# The table of a study as points with their intervals, floors and what was published.
# matplotlib's types leave keyword arguments open.
# pyright: reportUnknownMemberType=false

MOST_PANELS = 24
MOST_LINES = 40


def draw_points(result: StudyResult) -> Figure:
    """Return the numbers of a table: lines below one another, in panels side by side."""
    from matplotlib.figure import Figure

    study, found = result.study, result.estimates
    down, apart = _split(study, found)
    groups: dict[tuple[str, str], list[Estimate]] = {}
    for estimate in found:
        key = (layout_words(study, apart, estimate.at), estimate.measure.name)
        groups.setdefault(key, []).append(estimate)
    lines = list(dict.fromkeys(layout_words(study, down, e.at) for e in found))
    shown, drawn = list(groups)[:MOST_PANELS], lines[:MOST_LINES]
    wide = min(3, len(shown))
    high = -(-len(shown) // wide)
    # A line of text below panels, wherever there is more than one row of them.
    size = (1.4 + 3.2 * wide, 0.6 + high * (0.75 + 0.24 * len(drawn)))
    figure = Figure(size, layout="constrained")
    axes = figure.subplots(high, wide, squeeze=False, sharey=True).ravel()
    for ax, key in zip(axes, shown, strict=False):
        for estimate in groups[key]:
            line = layout_words(study, down, estimate.at)
            if line in drawn:
                _point(ax, estimate, drawn.index(line))
        if key[0]:
            looks.headed(ax, key[0])
        ax.set_xlabel(titled(result.measures[key[1]]))
        ax.set_yticks(range(len(drawn)), drawn)
        ax.set_ylim(len(drawn) - 0.5, -0.5)
        if ax in axes[::wide] and not any(letter.isalpha() for letter in "".join(drawn)):
            ax.set_ylabel(", ".join(down))  # numbers don't say what they are
        looks.few_ticks(ax, "x")
        looks.quiet(ax)
    for ax in axes[len(shown) :]:
        ax.set_visible(False)
    figure.supxlabel(_marks_in_words(found, len(groups), len(lines)), fontsize="small", color=QUIET)
    return figure


def _split(study: Study, found: Sequence[Estimate]) -> tuple[Sequence[str], Sequence[str]]:
    """Return which axes stand below one another, and which tell panels apart.

    What the table has across is set side by side; if that is nothing, then what competes; if that
    is nothing either, all.
    """
    keys = [*study.rows, *study.columns]
    compared = [key for key in keys if key == study.compare]
    for down in (study.columns, compared):
        if len({layout_words(study, down, e.at) for e in found}) > 1:
            return down, [key for key in keys if key not in down]
    return keys, []


def _marks_in_words(found: Sequence[Estimate], panels: int, lines: int) -> str:
    """Return what the marks are, those that there are, and what was left out for want of room."""
    marks = [
        "dot: value"
        + f" with its {levels_in_words(found)} interval" * any(e.low is not None for e in found)
    ]
    marks += ["bar: floor"] * any(e.floor is not None for e in found)
    marks += ["diamond: published"] * any(e.published is not None for e in found)
    if panels > MOST_PANELS:
        marks.append(f"the first {MOST_PANELS} of {panels} panels")
    if lines > MOST_LINES:
        marks.append(f"the first {MOST_LINES} of {lines} lines")
    return "; ".join(marks)


def _point(ax: Axes, estimate: Estimate, height: int) -> None:
    scale, color = estimate.measure.scale, looks.colour(0)
    if estimate.low is not None and estimate.high is not None:
        ax.hlines(height, scale * estimate.low, scale * estimate.high, color=color, lw=1)
    if estimate.floor is not None:
        ax.plot(scale * estimate.floor, height, marker="|", color=QUIET, ms=9)
    ax.plot(scale * estimate.value, height, marker="o", color=color, ms=5)
    if estimate.published is not None:
        ax.plot(estimate.published.value, height, marker="D", mfc="none", mec=looks.colour(1), ms=6)


def titled(measure: Measure) -> str:
    """Return the label of a measure's axis."""
    return f"{measure.title} in %" if measure.scale == 100 else measure.title
