"""Pictures of the study of losses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant.files.atomic import replacing
from calibrant.report.figures import PALETTE, QUIET
from calibrant.report.gate_figure import PANELS, gate_over_epochs
from calibrant.studies.losses.gate import gate_histories, gate_picture
from calibrant.studies.losses.runs import AFTER, Run
from calibrant.studies.losses.statistics import lines_of, mean, seeds_of
from calibrant.studies.losses.tables import IN_WORDS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# matplotlib's types leave keyword arguments open.
# pyright: reportUnknownMemberType=false

MARKERS = {"none": "o", "temperature": "s", "smart": "D"}


def write_figures(runs: Sequence[Run], folder: Path) -> list[Path]:
    """Write losses-ece.png and, where runs have recorded it, a picture of each FeDLaS gate."""
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    drawn = {"losses-ece.png": _errors(runs, Figure((7.2, 4.8), layout="constrained"))}
    for line, histories in gate_histories(runs).items():
        figure = Figure((11, 2.8), layout="constrained")
        axes = list(figure.subplots(1, PANELS))
        for history in histories:
            gate_over_epochs(history, axes)
        figure.suptitle(f"{line}, seeds: {len(histories)}", fontsize="medium")
        drawn[gate_picture(line)] = figure
    written: list[Path] = []
    for name, figure in drawn.items():
        written.append(folder / name)
        with replacing(written[-1]) as temporary:
            figure.savefig(temporary, dpi=130, format="png")
    return written


def _errors(runs: Sequence[Run], figure: Figure) -> Figure:
    ax = figure.subplots()
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
    return figure
