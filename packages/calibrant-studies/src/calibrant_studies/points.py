"""The table of a study as points with their intervals, floors and what was published."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from calibrant.report.figures import QUIET
from calibrant_studies import looks
from calibrant_studies.declaration import Study
from calibrant_studies.rendering import layout_words, levels_in_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from calibrant_studies.kinds.base import Measure
    from calibrant_studies.results import Estimate, StudyResult

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
    figure.supxlabel(_said(found, len(groups), len(lines)), fontsize="small", color=QUIET)
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


def _said(found: Sequence[Estimate], panels: int, lines: int) -> str:
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
    """Return what an axis says of a measure."""
    return f"{measure.title} in %" if measure.scale == 100 else measure.title
