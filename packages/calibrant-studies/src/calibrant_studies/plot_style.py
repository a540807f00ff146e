"""What all figures of studies share: colours with marks and strokes that grey print tells apart."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from calibrant.report.figures import PALETTE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# matplotlib's types leave keyword arguments open.
# pyright: reportUnknownMemberType=false

MARKERS = "osD^vP*X"
STROKES: tuple[Any, ...] = ("-", "--", "-.", (0, (1, 1.2)), (0, (6, 1, 1, 1, 1, 1)))
HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\")
SMALL = 8
# Inches that a letter of a small legend takes, the stroke before it, and a line of it.
_LETTER, _STROKE, _LINE = 0.075, 0.6, 0.2


def colour(number: int) -> str:
    """Return the colour of a series."""
    return PALETTE[number % len(PALETTE)]


def stroke(number: int) -> dict[str, Any]:
    """Return colour and dashes of a line without marks."""
    return {"color": colour(number), "linestyle": STROKES[number % len(STROKES)]}


def mark(number: int) -> dict[str, Any]:
    """Return colour and mark of points."""
    return {"color": colour(number), "marker": MARKERS[number % len(MARKERS)]}


def fill(number: int) -> dict[str, Any]:
    """Return colour and hatching of bars."""
    hatch = HATCHES[number % len(HATCHES)]
    return {"color": colour(number), "hatch": hatch, "edgecolor": "white", "linewidth": 0}


def quiet(ax: Axes) -> None:
    """Leave out what says nothing: two of the four sides; and draw a faint grid behind the rest."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.25, lw=0.6)
    ax.set_axisbelow(True)


def few_ticks(ax: Axes, which: str, most: int = 5) -> None:
    """Write so few whole numbers along an axis ("x" or "y") that they don't run into each other."""
    from matplotlib.ticker import MaxNLocator, ScalarFormatter

    axis = ax.xaxis if which == "x" else ax.yaxis
    axis.set_major_locator(MaxNLocator(most, steps=[1, 2, 2.5, 5, 10]))
    # 1.3861, not 0.0001 with +1.386 somewhere at the edge.
    axis.set_major_formatter(ScalarFormatter(useOffset=False))


def headed(ax: Axes, text: str, letters: int = 42) -> None:
    """Write what a panel shows above it, in as many lines as it takes."""
    lines = [line for part in text.split("\n") for line in textwrap.wrap(part, letters)]
    ax.set_title("\n".join(lines), fontsize=SMALL)


def legend_below(figure: Figure) -> None:
    """Write one legend for all panels below them, where it hides nothing; none for one series."""
    found: dict[str, Any] = {}
    for ax in figure.axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    if len(found) < 2:
        return
    entries = [_STROKE + _LETTER * len(label) for label in found]
    wide = figure.get_figwidth()
    across = len(found) if sum(entries) < wide else max(1, int(wide / max(entries)))
    figure.set_figheight(figure.get_figheight() + _LINE * -(-len(found) // across))
    figure.legend(
        list(found.values()),
        list(found),
        loc="outside lower center",
        ncols=across,
        frameon=False,
        fontsize=SMALL,
    )


def shifts(number: int, wide: float) -> Sequence[float]:
    """Return how far so many series are moved aside, lest one hides the next; `wide` in all."""
    return [wide * ((i + 0.5) / number - 0.5) for i in range(number)]
