"""The figure of a study: lines over an axis, or numbers side by side with what was published."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant.core.errors import InputError
from calibrant.report.figures import PALETTE, QUIET
from calibrant.studies.declaration import Figure as Declared
from calibrant.studies.kinds import kind_named
from calibrant.studies.rendering import layout_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from calibrant.studies.kinds.base import Measure
    from calibrant.studies.results import Estimate, StudyResult

# matplotlib's types leave keyword arguments open.
# pyright: reportUnknownMemberType=false

FORMATS = (".svg", ".png", ".pdf")
MARKERS = "osD^vP*X"
STYLES = ("-", "--", "-.", ":")


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
    return _points(result) if declared is None else _lines(result, declared)


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
    """Return lines over an axis: a row of panels for each metric, a column for each panel."""
    from matplotlib.figure import Figure

    study, found = result.study, _relative(result, declared.minus)
    panels = list(dict.fromkeys(layout_words(study, declared.panels, e.at) for e in found))
    lines = list(dict.fromkeys(layout_words(study, declared.lines, e.at) for e in found))
    size = (1.2 + 3.6 * len(panels), 1.0 + 2.6 * len(declared.y))
    figure = Figure(size, layout="constrained")
    axes = figure.subplots(len(declared.y), len(panels), squeeze=False, sharex=True)
    names = [value.name for value in study.axes[declared.x]]
    place, numeric = _places(names)
    for i, metric in enumerate(declared.y):
        measure = result.measures[metric]
        for j, panel in enumerate(panels):
            ax = axes[i][j]
            for k, line in enumerate(lines):
                chosen = [
                    e
                    for e in found
                    if e.measure.name == metric
                    and layout_words(study, declared.panels, e.at) == panel
                    and layout_words(study, declared.lines, e.at) == line
                ]
                _line(ax, chosen, place, declared.x, k, line, banded=len(lines) <= 3)
            if declared.log and numeric:
                ax.set_xscale("log")
            if not numeric or len(names) <= 8:
                labels = [study.value(declared.x, name).label for name in names]
                tilt = 45 if max(map(len, labels)) > 4 else 0
                ax.set_xticks([place[name] for name in names], labels, rotation=tilt)
                ax.minorticks_off()
            if i == 0 and panel:
                ax.set_title(panel, fontsize="medium")
            if j == 0:
                ax.set_ylabel(
                    _title(measure) + (f" less {declared.minus}'s" * bool(declared.minus))
                )
            if i == len(declared.y) - 1:
                ax.set_xlabel(declared.x)
            if declared.minus:
                ax.axhline(0, color=QUIET, lw=1)
            _quiet(ax)
    handles, labels = axes[0][0].get_legend_handles_labels()
    if len(lines) > 1:
        columns = max(1, min(4 if len(panels) > 1 else 3, len(handles)))
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
    return figure


def _relative(result: StudyResult, rival: str) -> list[Estimate]:
    """Return the numbers less those of one competitor, seed by seed; "" leaves them as they are."""
    axis = result.study.compare
    if not rival or axis is None:
        return result.estimates
    base = {
        (e.measure.name, *_others(e.at, axis)): e.values
        for e in result.estimates
        if e.at[axis] == rival
    }
    found: list[Estimate] = []
    for estimate in result.estimates:
        theirs = base.get((estimate.measure.name, *_others(estimate.at, axis)))
        if estimate.at[axis] == rival or theirs is None:
            continue
        ours = estimate.values
        # Where seeds change nothing there is one value for all of them.
        size = max(len(ours), len(theirs))
        pairs = zip(*(of * (size // len(of)) for of in (ours, theirs)), strict=False)
        values = tuple(a - b for a, b in pairs)
        found.append(replace(estimate, values=values, low=None, high=None, published=None))
    return found


def _others(at: Mapping[str, str], axis: str) -> tuple[tuple[str, str], ...]:
    return tuple((key, name) for key, name in at.items() if key != axis)


def _line(
    ax: Axes,
    chosen: Sequence[Estimate],
    place: Mapping[str, float],
    x: str,
    number: int,
    label: str,
    *,
    banded: bool,
) -> None:
    """Draw one line with its spread over seeds, or its intervals; what was published is hollow."""
    if not chosen:
        return
    scale, color = chosen[0].measure.scale, PALETTE[number % len(PALETTE)]
    at = [place[e.at[x]] for e in chosen]
    style: dict[str, Any] = {
        "color": color,
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": STYLES[number // len(PALETTE) % len(STYLES)],
    }
    values = [scale * e.value for e in chosen]
    spread = [scale * (e.spread or 0.0) for e in chosen]
    if any(spread):
        ax.errorbar(at, values, spread, label=label, ms=4, lw=1.4, elinewidth=0.8, **style)
    else:
        ax.plot(at, values, label=label, ms=4, lw=1.4, **style)
    ends = [(e.low, e.high) for e in chosen]
    if banded and not any(spread) and not any(None in pair for pair in ends):
        low, high = ([scale * float(end) for end in of] for of in zip(*ends, strict=True))  # type: ignore[arg-type]
        ax.fill_between(at, low, high, color=color, alpha=0.15, lw=0)
    printed = [(p, e.published.value) for p, e in zip(at, chosen, strict=True) if e.published]
    if printed:
        ax.plot(*zip(*printed, strict=True), linestyle="", marker="o", ms=7, mfc="none", mec=color)


def _points(result: StudyResult) -> Figure:
    """Return the numbers of a table: a panel for each row and metric, a line for each column."""
    from matplotlib.figure import Figure

    study, found = result.study, result.estimates
    columns = list(dict.fromkeys(layout_words(study, study.columns, e.at) for e in found))
    groups = list(
        dict.fromkeys((layout_words(study, study.rows, e.at), e.measure.name) for e in found)
    )[:MOST_PANELS]
    wide = min(3, len(groups))
    high = -(-len(groups) // wide)
    size = (1.4 + 3.2 * wide, 0.5 + high * (0.7 + 0.24 * len(columns)))
    figure = Figure(size, layout="constrained")
    axes = figure.subplots(high, wide, squeeze=False, sharey=True).ravel()
    for ax, (row, metric) in zip(axes, groups, strict=False):
        measure = result.measures[metric]
        for estimate in found:
            if (layout_words(study, study.rows, estimate.at), estimate.measure.name) == (
                row,
                metric,
            ):
                height = columns.index(layout_words(study, study.columns, estimate.at))
                _point(ax, estimate, height)
        ax.set_title(row, fontsize="medium")
        ax.set_xlabel(_title(measure))
        ax.set_yticks(range(len(columns)), columns)
        ax.set_ylim(len(columns) - 0.5, -0.5)
        _quiet(ax)
    for ax in axes[len(groups) :]:
        ax.set_visible(False)
    said = "dot: value with its 95 % interval; bar: floor"
    if any(estimate.published is not None for estimate in found):
        said += "; diamond: published"
    figure.supxlabel(said, fontsize="small", color=QUIET)
    return figure


MOST_PANELS = 24


def _point(ax: Axes, estimate: Estimate, height: int) -> None:
    scale, color = estimate.measure.scale, PALETTE[0]
    if estimate.low is not None and estimate.high is not None:
        ax.hlines(height, scale * estimate.low, scale * estimate.high, color=color, lw=1)
    if estimate.floor is not None:
        ax.plot(scale * estimate.floor, height, marker="|", color=QUIET, ms=9)
    ax.plot(scale * estimate.value, height, marker="o", color=color, ms=5)
    if estimate.published is not None:
        ax.plot(estimate.published.value, height, marker="D", mfc="none", mec=PALETTE[1], ms=6)


def _places(names: Sequence[str]) -> tuple[dict[str, float], bool]:
    """Return where values stand along x, and whether they are numbers."""
    try:
        return {name: float(name) for name in names}, True
    except ValueError:
        return {name: float(i) for i, name in enumerate(names)}, False


def _title(measure: Measure) -> str:
    return f"{measure.title} in %" if measure.scale == 100 else measure.title


def _quiet(ax: Axes) -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.25, lw=0.6)
    ax.set_axisbelow(True)
