"""Pictures of the study of losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.report.figures import PALETTE, PANELS, QUIET, gate_over_epochs
from calibrant_studies.losses.probes import gate_histories
from calibrant_studies.losses.statistics import AFTER, Run, lines_of, mean, seeds_of
from calibrant_studies.losses.tables import IN_WORDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# matplotlib's types leave keyword arguments open.
# pyright: reportUnknownMemberType=false

MARKERS = {"none": "o", "temperature": "s", "smart": "D"}


def drawn(runs: Sequence[Run]) -> Figure:
    """Return the ECE of every line, and below it each FeDLaS gate that runs have recorded."""
    from matplotlib.figure import Figure

    histories_of = gate_histories(runs)
    errors, gate = 0.7 + 0.34 * len(lines_of(runs)), 2.8
    figure = Figure((11, errors + gate * len(histories_of)), layout="constrained")
    heights = [errors, *[gate] * len(histories_of)]
    parts = np.ravel(figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False))
    _errors(runs, parts[0].subplots())
    for part, (line, histories) in zip(parts[1:], histories_of.items(), strict=True):
        axes = list(part.subplots(1, PANELS))
        for history in histories:
            gate_over_epochs(history, axes)
        part.suptitle(f"{line}, seeds: {len(histories)}", fontsize="medium")
    return figure


def _errors(runs: Sequence[Run], ax: Axes) -> None:
    lines = lines_of(runs)[::-1]
    for number, after in enumerate(AFTER):
        color, shift = PALETTE[(1, 0, 2)[number]], 0.24 * (1 - number)
        style: dict[str, Any] = {"marker": MARKERS[after], "linestyle": "", "ms": 4.5}
        for place, line in enumerate(lines):
            found = [run.scores[after, "ece"] for run in runs if run.line == line]
            # Seeds side by side, or their intervals would hide each other.
            middle = (len(found) - 1) / 2
            heights = [place + shift + 0.05 * (middle - i) for i in range(len(found))]
            for height, each in zip(heights, found, strict=True):
                ends = [100 * each.low, 100 * each.high]
                ax.plot(ends, [height] * 2, color=color, linewidth=0.8, alpha=0.5)
            label = IN_WORDS[after] if place == 0 else None
            values = [100 * each.value for each in found]
            ax.plot(values, heights, mec="none", color=color, label=label, **style)
            floor = 100 * (mean(runs, (line, after), "ece").floor or 0)
            last = place == 0 and after == AFTER[-1]
            ends = [place + shift - 0.11, place + shift + 0.11]
            label = "floor" if last else None
            ax.plot([floor] * 2, ends, color=QUIET, linewidth=1.5, label=label)
    ax.set_yticks(range(len(lines)), [f"{line} ({len(seeds_of(runs, line))})" for line in lines])
    ax.set_xlim(left=0)
    ax.set_xlabel("ECE on the test images, %")
    ax.grid(axis="x", color=QUIET, alpha=0.25, linewidth=0.6)
    ax.set_axisbelow(True)
    ax.legend(frameon=False, fontsize="small")
