"""What the gate of FeDLaS did over a training run, as the figures of its paper draw it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from calibrant.core.arrays import FloatArray
from calibrant.core.errors import InputError
from calibrant.report.figures import AFTER, BEFORE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# matplotlib passes most settings on as untyped keywords.
# pyright: reportUnknownMemberType=false

PANELS = 4


def gate_over_epochs(
    history: Sequence[Mapping[str, float | None]], axes: Sequence[Axes] | None = None
) -> list[Axes]:
    """Draw share of each mode, flip rate, mean alpha and correlation with correctness by epoch.

    Bahavan et al. 2026 (FeDLaS), figure 3, and the two quantities that it leaves out.

    Args:
        history: rows of history.json of a run of `calibrant train` with FeDLaS.
        axes: four to draw in; a second call with them adds a second run.

    Raises:
        InputError: the history has no such columns, or there are too few axes.
    """
    if not history or "gate_positive" not in history[0]:
        raise InputError(
            "the history has no columns 'gate_...'; runs with FeDLaS and without mixing have them"
        )
    if axes is None:
        import matplotlib.pyplot as plt

        grid = plt.subplots(1, PANELS, figsize=(11, 2.6), layout="constrained")[1]
        axes = list(grid)
    if len(axes) < PANELS:
        raise InputError(f"the figure needs {PANELS} axes, not {len(axes)}")
    epoch = _column(history, "epoch")
    shares, flips, alpha, correlation = axes[:PANELS]
    for name, color, style in (("positive", AFTER, "-"), ("negative", BEFORE, "--")):
        # Of several runs one entry in the legend is enough.
        known = {text.get_label() for text in shares.get_lines()}
        label = f"psi {'+' if name == 'positive' else '-'}1"
        column = _column(history, f"gate_{name}")
        shares.plot(
            epoch, column, style, color=color, label=f"_{label}" if label in known else label
        )
    shares.set(ylim=(0, 1), ylabel="Share of the images")
    shares.legend(frameon=False, fontsize="small")
    for ax, name, words in (
        (flips, "gate_flip_rate", "Flip rate"),
        (alpha, "gate_alpha", "Mean alpha"),
        (correlation, "gate_correlation", "Correlation of NCI\nwith correctness"),
    ):
        ax.plot(epoch, _column(history, name), color=AFTER)
        ax.set_ylabel(words)
    flips.set_ylim(bottom=0)
    for ax in axes[:PANELS]:
        ax.set_xlabel("Epoch")
    return list(axes[:PANELS])


def _column(history: Sequence[Mapping[str, float | None]], name: str) -> FloatArray:
    return np.array([np.nan if row[name] is None else row[name] for row in history], np.float64)
