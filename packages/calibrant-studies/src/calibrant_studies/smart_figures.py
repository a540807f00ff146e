"""SMART's figures, drawn from the results of cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from textwrap import wrap
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from calibrant.core.arrays import FloatArray
from calibrant.report.figures import AFTER, QUIET
from calibrant_studies import plot_style as looks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from calibrant_studies.cells import CellResults, Ran

# matplotlib passes most settings on as untyped keywords.
# pyright: reportUnknownMemberType=false

Panel = Callable[["Axes"], None]
WIDTH, HEIGHT, MOST_ACROSS = 3.1, 2.7, 4
INDICATOR_TITLES = {
    "margin": "margin",
    "max": "largest logit",
    "max-mean": "largest logit minus the mean",
}


def panelled(panels: Sequence[Panel], most_across: int = MOST_ACROSS) -> Figure:
    """Return a figure of panels, so many beside one another at most, with one legend below."""
    from matplotlib.figure import Figure

    across = min(len(panels), most_across)
    down = -(-len(panels) // across)
    figure = Figure(figsize=(WIDTH * across, HEIGHT * down), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False).ravel()
    for draw, ax in zip(panels, axes, strict=False):
        draw(ax)
        looks.quiet(ax)
    for ax in axes[len(panels) :]:
        ax.set_visible(False)
    looks.legend_below(figure)
    return figure


def called(result: CellResults, ran: Ran, *axes: str) -> str:
    """Return what panels call a cell: the words of some axes, or of all but the seed."""
    words: list[str] = []
    for axis in axes or ran.cell.at:
        value = result.study.value(axis, ran.cell.at[axis])
        # Data set and network say more than the name of a file.
        words += (
            value.attributes.values() if axis == "input" and value.attributes else [value.label]
        )
    return ", ".join(words)


def first_seeds(result: CellResults) -> list[Ran]:
    """Return one cell for each point: curves of several seeds would hide one another."""
    found: dict[tuple[tuple[str, str], ...], Ran] = {}
    for ran in result.ran:
        found.setdefault(tuple(ran.cell.at.items()), ran)
    return list(found.values())


def draw_paths(result: CellResults) -> Figure:
    """Draw training loss and gradient norm over epochs: Figure 3."""
    inputs: dict[str, list[Ran]] = {}
    for ran in first_seeds(result):
        inputs.setdefault(ran.cell.at["input"], []).append(ran)
    panels: list[Panel] = []
    for ran_of_input in inputs.values():
        for series, name in (("loss", "training loss"), ("gradient", "gradient norm")):

            def draw(
                ax: Axes, of: list[Ran] = ran_of_input, series: str = series, name: str = name
            ) -> None:
                for number, ran in enumerate(of):
                    label = called(result, ran, "objective")
                    ax.plot(ran.result["path"][series], lw=1, label=label, **looks.stroke(number))
                ax.set(yscale="log", xlabel="epoch", ylabel=name)
                looks.headed(ax, called(result, of[0], "input"))

            panels.append(draw)
    return panelled(panels)


def draw_solved(result: CellResults) -> Figure:
    """Draw temperatures over indicators, and NLL and ECE over epochs: Figure 2."""
    panels: list[Panel] = []
    for ran in first_seeds(result):
        if "points" in ran.result:
            if not any(panel.__name__ == "scatter" for panel in panels):
                panels += [_scatter(ran, n) for n in ran.result["points"] if n != "temperature"]
        else:
            panels.append(_two_curves(called(result, ran, "input"), ran.result["path"]))
    return panelled(panels)


def _scatter(ran: Ran, indicator: str) -> Panel:
    def scatter(ax: Axes) -> None:
        points = ran.result["points"]
        ax.plot(points[indicator], points["temperature"], ".", ms=3, color=AFTER, alpha=0.6)
        left = 100 * ran.result["values"][f"open_{indicator}"]["value"]
        ax.set(xlabel=INDICATOR_TITLES[indicator], ylabel="temperature", yscale="log")
        looks.headed(ax, f"{left:.0f} % of the variance left open")

    return scatter


def _two_curves(title: str, path: Mapping[str, list[float]]) -> Panel:
    def curves(ax: Axes) -> None:
        ax.plot(path["nll"], label="NLL", **looks.stroke(0))
        other = ax.twinx()
        other.plot(100 * np.array(path["ece"]), label="ECE", **looks.stroke(1))
        other.spines[["top", "left"]].set_visible(False)
        other.set_ylabel("ECE in %")
        ax.set(xlabel="epoch", ylabel="NLL")
        looks.headed(ax, title)

    return curves


def draw_steps(result: CellResults) -> Figure:
    """Draw the smallest step over the margin, and reliability by margin: Figure 1."""
    panels: list[Panel] = []
    for ran in first_seeds(result):
        title = called(result, ran, "input")
        if "steps" in ran.result:
            panels.append(_steps(title, ran.result))
        panels += _reliabilities(title, ran.result)
    return panelled(panels)


def _steps(title: str, of: Mapping[str, Any]) -> Panel:
    def draw(ax: Axes) -> None:
        ax.plot(of["steps"]["margin"], of["steps"]["smallest"], ".", ms=3, color=AFTER, alpha=0.5)
        ax.set(xlabel="margin", ylabel="smallest step that\nchanges the class")
        looks.headed(ax, f"{title}: r = {of['values']['pearson']['value']:.2f}")

    return draw


def _reliabilities(title: str, of: Mapping[str, Any]) -> list[Panel]:
    """Return what was said and what was right, bin by bin, for all rows and each margin group.

    Not the one over the other: confidences of high margins differ from the seventh digit on.
    """

    def panel(name: str) -> Panel:
        def draw(ax: Axes) -> None:
            points = of["groups"][name]["points"]
            said, right = (np.array(points[key]) for key in ("confidence", "accuracy"))
            reach = np.abs(np.array([points["low"], points["high"]]) - right)
            places = np.arange(1, len(said) + 1)
            ax.plot(places, said, label="confidence", **looks.stroke(1))
            look: dict[str, Any] = {"fmt": "o", "ms": 3.5, "lw": 0.8, "color": looks.colour(0)}
            ax.errorbar(places, right, reach, label="accuracy", **look)
            group = "all rows" if name == "all" else f"{name} margins"
            ax.set(xlabel="bin of rows, by confidence", ylabel="mean")
            looks.few_ticks(ax, "y")
            looks.headed(ax, f"{title}: {group}")

        return draw

    return [panel(name) for name in of["groups"]]


def draw_groups(result: CellResults) -> Figure:
    """Draw reliability by margin before, and what methods move in each group: Figure 15."""
    panels: list[Panel] = []
    inputs: dict[str, list[Ran]] = {}
    for ran in first_seeds(result):
        inputs.setdefault(ran.cell.at["input"], []).append(ran)
    for of_input in inputs.values():
        plain = next((ran for ran in of_input if ran.cell.method == "none"), of_input[0])
        title = called(result, plain, "input")
        panels += [*_reliabilities(title, plain.result), _moves(result, title, of_input)]
    return panelled(panels, 5)  # a row for each input


def _moves(result: CellResults, title: str, of: Sequence[Ran]) -> Panel:
    def draw(ax: Axes) -> None:
        groups = ("low", "middle", "high")
        moved = [ran for ran in of if ran.cell.method != "none"]
        aside = looks.shifts(len(moved), 0.8)
        for number, ran in enumerate(moved):
            values = [100 * ran.result["values"][f"moved_{group}"]["value"] for group in groups]
            places, label = np.arange(3) + aside[number], called(result, ran, "method")
            ax.bar(places, values, 0.76 / len(moved), label=label, **looks.fill(number))
        ax.axhline(0, color=QUIET, lw=0.8)
        ax.set_xticks(range(3), groups)
        ax.set(xlabel="margin", ylabel="confidence moved,\npoints")
        looks.headed(ax, title)

    return draw


def draw_temperatures(result: CellResults) -> Figure:
    """Draw the temperature over the margin: Figure 16."""
    panels: list[Panel] = []
    for ran in first_seeds(result):

        def draw(ax: Axes, ran: Ran = ran) -> None:
            curve, r = ran.result["curve"], ran.result["values"]["pearson"]["value"]
            ax.plot(curve["margin"], curve["temperature"], ".-", ms=3, lw=0.8, color=AFTER)
            ax.set(xlabel="margin", ylabel="temperature")
            said = "" if r is None else f"\nr = {r:.2f}"
            looks.headed(ax, called(result, ran, "input", "method") + said)

        panels.append(draw)
    return panelled(panels)


def draw_mismatch(result: CellResults) -> Figure:
    """Draw what sharpening each slice, or all rows of known truth, does to NLL and smCE."""
    along = [axis for axis in ("slice", "population") if axis in result.study.axes]
    groups: dict[tuple[str, ...], list[Ran]] = {}
    for ran in first_seeds(result):
        key = tuple(name for axis, name in ran.cell.at.items() if axis not in along)
        groups.setdefault(key, []).append(ran)

    def panel(of: list[Ran]) -> Panel:
        def draw(ax: Axes) -> None:
            places = np.arange(len(of))
            changes = (("nll_change", "NLL, 1/1000 nats"), ("smce_change", "smCE, 1/10 points"))
            for number, (name, label) in enumerate(changes):
                shift = (-0.1, 0.1)[number]
                middle, reach = _with_reach([ran.result["values"][name] for ran in of], 1000)
                look: dict[str, Any] = {"linestyle": "", "ms": 4, **looks.mark(number)}
                ax.errorbar(places + shift, middle, reach, label=label, **look)
            ax.axhline(0, color=QUIET, lw=0.8)
            ticks = ["\n".join(wrap(called(result, ran, *along), 18)) for ran in of]
            ax.set_xticks(places, ticks)
            ax.set_xlim(-0.5, len(of) - 0.5)
            ax.set(ylabel="change when\n5 % sharper")
            if "slice" in along:
                ax.set(xlabel="slice of the margin")
            named = [axis for axis in of[0].cell.at if axis not in along]
            if named:
                looks.headed(ax, called(result, of[0], *named))

        return draw

    return panelled([panel(of) for of in groups.values()])


def _with_reach(
    values: Sequence[Mapping[str, float]], scale: float
) -> tuple[FloatArray, FloatArray]:
    """Return scaled values, and how far their intervals reach below and above."""
    ends = np.array([[each["value"], each["low"], each["high"]] for each in values]) * scale
    middle, low, high = ends.T
    return middle, np.maximum(np.stack([middle - low, high - middle]), 0)


def prototypes(result: CellResults, cells: Sequence[Ran]) -> Figure:
    """Return a row of panels for each head: its rows as t-SNE, its classes' angles, reliability."""
    panels: list[Panel] = []
    for ran in cells:
        title = called(result, ran, "method")
        panels += [partial(_embedded, ran, title), partial(_angles, ran), partial(_curve, ran)]
    return panelled(panels, most_across=3)


def _embedded(ran: Ran, title: str, ax: Axes) -> None:
    """Draw rows where t-SNE puts their logits, in the colour of their class, pale where unsure."""
    rows = ran.result["rows"]
    logits, labels = np.array(rows["logits"]), np.array(rows["labels"])
    sure = 1 - np.array(rows["entropy"]) / np.log(logits.shape[1])
    places = _t_sne(logits)
    shown = np.clip(0.15 + 0.85 * sure, 0, 1)
    ax.scatter(*places.T, c=labels, cmap="tab10", alpha=shown, s=8, linewidths=0)
    ax.set_title(title, fontsize="small")
    ax.set_xticks([])
    ax.set_yticks([])


def _t_sne(logits: FloatArray) -> FloatArray:
    """Return (N, 2) places by t-SNE; by the first two principal axes without scikit-learn."""
    try:
        manifold = import_module("sklearn.manifold")
    except ImportError:
        centred = logits - logits.mean(axis=0)
        return centred @ np.linalg.svd(centred, full_matrices=False)[2][:2].T
    perplexity = min(30, (len(logits) - 1) / 3)
    return manifold.TSNE(random_state=0, perplexity=perplexity, init="pca").fit_transform(logits)


def _angles(ran: Ran, ax: Axes) -> None:
    angles = np.array(ran.result["angles"])
    image = ax.imshow(angles, vmin=0, vmax=180, cmap="viridis")
    cast("Figure", ax.figure).colorbar(image, ax=ax, label="angle, degrees")
    ax.set_xlabel("class")
    ax.set_ylabel("class")


def _curve(ran: Ran, ax: Axes) -> None:
    confidence, accuracy = np.array(ran.result["curve"]).T
    ax.plot([0, 1], [0, 1], color=QUIET, linewidth=0.8, linestyle=(0, (1, 3)))
    ax.plot(confidence, accuracy, "o-", color=AFTER, markersize=4)
    ax.set_xlabel("confidence")
    ax.set_ylabel("accuracy")
