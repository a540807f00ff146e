"""Static figures for papers, with the numbers of the report page.

Every function draws into the axes that it is given and returns them; without axes it makes its own
with pyplot. None of them touches the user's style: what isn't said here is left to matplotlib's
settings. matplotlib is imported when a figure is drawn.

    fig, (left, right) = plt.subplots(1, 2, layout="constrained")
    figures.reliability_diagram(before, left)
    figures.reliability_diagram(after, right, strategy="smooth")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from calibrant.comparison.comparison import Comparison
from calibrant.comparison.models import ModelComparison
from calibrant.comparison.verdict import ComparedMethod
from calibrant.core.arrays import FloatArray
from calibrant.core.errors import InputError
from calibrant.decision.cost import CostDecision
from calibrant.decision.grouped import GroupedDecision
from calibrant.decision.risk import RiskDecision
from calibrant.decision.sets import SetDecision
from calibrant.evaluation.groups import PRINTED_GROUPS, GroupedEvaluation
from calibrant.evaluation.history import History
from calibrant.evaluation.multicalibration import Multicalibration
from calibrant.evaluation.results import Evaluation, MetricResult
from calibrant.metrics.binned import DEFAULT_BINS
from calibrant.metrics.top_label import TopLabel
from calibrant.posthoc.temperature.scaling import MarginTemperature, RowTemperature
from calibrant.posthoc.temperature.scaling import margin_temperature as by_margin
from calibrant.posthoc.worth import CrossValidated
from calibrant.predictions.predictions import Predictions
from calibrant.report import series

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# matplotlib passes most settings on as untyped keywords.
# pyright: reportUnknownMemberType=false

# Blue and vermilion of Okabe and Ito: told apart by everyone, and by their lightness in print.
AFTER, BEFORE, QUIET = "#0072B2", "#D55E00", "#767676"
Strategy = Literal["uniform", "quantile", "smooth"]
PALETTE = (AFTER, BEFORE, "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")


def reliability_diagram(
    evaluation: Evaluation,
    ax: Axes | None = None,
    *,
    strategy: Strategy = "uniform",
    n_bins: int = DEFAULT_BINS,
    color: str = AFTER,
    label: str | None = None,
    hollow: bool = False,
) -> Axes:
    """Draw accuracy over confidence, with Wilson intervals or, smoothed, a bootstrap band.

    Args:
        evaluation: what to draw.
        ax: where.
        strategy: ``"uniform"`` for equal-width bins, ``"quantile"`` for bins of equally many
            rows, or ``"smooth"`` for a curve without bins.
        n_bins: how many.
        color: of the points or the curve.
        label: for a legend.
        hollow: draw empty points and a dashed curve, to tell two series apart without colour.

    Raises:
        InputError: no such strategy.
    """
    return reliability_of_rows(
        series.rows_in_worth(evaluation, evaluation.top),
        ax,
        level=evaluation.level,
        strategy=strategy,
        n_bins=n_bins,
        color=color,
        label=label,
        hollow=hollow,
    )


# Parameters: those of `reliability_diagram`, and the coverage.
def reliability_of_rows(
    rows: TopLabel,
    ax: Axes | None = None,
    *,
    level: float,
    strategy: Strategy = "uniform",
    n_bins: int = DEFAULT_BINS,
    color: str = AFTER,
    label: str | None = None,
    hollow: bool = False,
) -> Axes:
    """Draw what `reliability_diagram` draws, of sorted rows; intervals have coverage `level`."""
    if strategy not in get_args(Strategy):
        raise InputError(f"strategy must be 'uniform', 'quantile' or 'smooth', not {strategy!r}")
    ax = _axes(ax)
    ax.plot([0, 1], [0, 1], color=QUIET, linewidth=0.8, linestyle=(0, (1, 3)), zorder=1)
    if strategy == "smooth":
        curve = series.smoothed_reliability(rows, level=level)
        for piece in _pieces(curve.confidence):
            x = curve.confidence[piece]
            ax.fill_between(
                x, curve.low[piece], curve.high[piece], color=color, alpha=0.2, linewidth=0
            )
            style = "--" if hollow else "-"
            ax.plot(x, curve.accuracy[piece], style, color=color, label=label)
            label = None
    else:
        points = series.binned_reliability(rows, n_bins, level, strategy=strategy)
        _points(ax, points, color, label, hollow)
    ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xlabel="Confidence", ylabel="Accuracy")
    return ax


def confidence_histogram(
    evaluation: Evaluation,
    ax: Axes | None = None,
    *,
    n_bins: int = series.HISTOGRAM_BINS,
    color: str = AFTER,
) -> Axes:
    """Draw how many rows have which confidence, with the mean confidence and the accuracy.

    The hatched part of a bar is wrong.
    """
    ax = _axes(ax)
    histogram = series.confidence_histogram(
        series.rows_in_worth(evaluation, evaluation.top), n_bins
    )
    left, width = histogram.edges[:-1], 1 / n_bins
    wrong = histogram.count - histogram.correct
    ax.bar(left, histogram.correct, width, align="edge", color=color, label="right")
    ax.bar(
        left,
        wrong,
        width,
        histogram.correct,
        align="edge",
        facecolor="none",
        edgecolor=color,
        hatch="////",
        linewidth=0.5,
        label="wrong",
    )
    ax.axvline(histogram.confidence, color="black", linewidth=1, label="mean confidence")
    ax.axvline(histogram.accuracy, color="black", linewidth=1, linestyle="--", label="accuracy")
    ax.set(xlim=(0, 1), xlabel="Confidence", ylabel="Rows")
    return ax


def margin_groups(
    evaluation: Evaluation,
    axes: Sequence[Axes] | None = None,
    *,
    groups: int = series.DEFAULT_GROUPS,
    color: str = AFTER,
    label: str | None = None,
    hollow: bool = False,
) -> list[Axes]:
    """Draw a reliability diagram for each quantile group of the logit margin.

    Args:
        evaluation: what to draw; of a method in a comparison, its rows are grouped by the margin
            that they had before recalibration.
        axes: one for each group; a second call with them adds a second method.
        groups: how many.
        color: of the points.
        label: for a legend.
        hollow: draw empty points.

    Raises:
        InputError: rows without margins (the top-label form, many files), or too few axes.
    """
    margins = evaluation.sample.margins
    if margins is None:
        raise InputError(f"{evaluation.source}: rows of this form have no margin")
    found = series.margin_groups(evaluation.scores, margins, groups, level=evaluation.level)
    if axes is None:
        import matplotlib.pyplot as plt

        size = (2.6 * len(found), 2.8)
        figure, grid = plt.subplots(
            1, len(found), squeeze=False, figsize=size, layout="constrained"
        )
        figure.supxlabel("Confidence", fontsize="medium")
        axes = list(grid[0])
    if len(axes) < len(found):
        raise InputError(f"{len(found)} groups need as many axes, not {len(axes)}")
    for ax, group in zip(axes, found, strict=False):
        _points(ax, group.points, color, label, hollow, same_size=True)
        middle = group.confidence
        ax.axline(
            (middle, middle), slope=1, color=QUIET, linewidth=0.8, linestyle=(0, (1, 3)), zorder=1
        )
        # Zoomed to all that is drawn, and square, so that the diagonal is one.
        extent = ax.dataLim.get_points()
        low, high = float(np.min(extent)), float(np.max(extent))
        room = max(0.05 * (high - low), 0.002)
        limits = (low - room, high + room)
        ax.set(xlim=limits, ylim=limits, aspect="equal")
        ax.set_title(f"margin {group.margin[0]:.2f} to {group.margin[1]:.2f}", fontsize="medium")
    axes[0].set_ylabel("Accuracy")
    return list(axes[: len(found)])


def margin_temperature(
    method: ComparedMethod | RowTemperature,
    predictions: Predictions | None = None,
    ax: Axes | None = None,
    *,
    color: str = AFTER,
    label: str | None = None,
    linestyle: str = "-",
) -> Axes:
    """Draw the temperature of each row over its logit margin.

    Args:
        method: a method of a comparison, or a fitted one, that gives each row a temperature.
        predictions: of a fitted one the rows to draw, with a score for every class.
        ax: where.
        color: of the curve, or of the points where the temperature isn't a function of the margin.
        label: for a legend.
        linestyle: of the curve.

    Raises:
        InputError: no such method, no rows, or rows in the top-label form.
    """
    curve = _by_margin(method, predictions)
    ax = _axes(ax)
    cloud: dict[str, Any] = {"linestyle": "", "marker": "o", "ms": 2.5}
    style: dict[str, Any] = {"linestyle": linestyle} if curve.is_function else cloud
    ax.plot(curve.margin, curve.temperature, color=color, label=label, **style)
    ax.axhline(1.0, color=QUIET, linewidth=0.8, zorder=1)
    ax.set(xlabel="Margin between the two largest logits", ylabel="Temperature")
    return ax


def _by_margin(
    method: ComparedMethod | RowTemperature, predictions: Predictions | None
) -> MarginTemperature:
    if isinstance(method, ComparedMethod):
        if method.by_margin is None:
            raise InputError(f"'{method.name}' gives the rows no temperature of their own")
        return method.by_margin
    if predictions is None:
        raise InputError("a fitted calibrator needs predictions, whose temperatures are drawn")
    rows = predictions.counted
    return by_margin(method, rows.logits, rows.margins)


def risk_coverage(
    evaluation: Evaluation,
    ax: Axes | None = None,
    *,
    color: str = AFTER,
    label: str | None = None,
    hollow: bool = False,
) -> Axes:
    """Draw the share of wrong predictions among the accepted over the share that is accepted."""
    ax = _axes(ax)
    curve = series.risk_coverage(series.rows_in_worth(evaluation, evaluation.top))
    ax.plot(curve.coverage, curve.error, "--" if hollow else "-", color=color, label=label)
    ax.set(xlim=(0, 1), xlabel="Accepted", ylabel="Wrong among the accepted")
    ax.set_ylim(bottom=0)
    return ax


def _points(
    ax: Axes,
    points: series.Reliability,
    color: str,
    label: str | None,
    hollow: bool,
    *,
    same_size: bool = False,
) -> None:
    ax.vlines(points.confidence, points.low, points.high, color=color, linewidth=1, zorder=2)
    size = 22.0 if same_size else 12 + 60 * points.count / points.count.max()
    face = "white" if hollow else color
    ax.scatter(
        points.confidence,
        points.accuracy,
        size,
        facecolor=face,
        edgecolor=color,
        label=label,
        zorder=3,
        clip_on=False,
    )


def _pieces(positions: FloatArray) -> list[NDArray[np.intp]]:
    """Return the indices of the runs of evenly spaced positions: the curve stops at a hole."""
    index: NDArray[np.intp] = np.arange(len(positions))
    if len(positions) < 2:
        return [index]
    steps = np.diff(positions)
    return list(np.split(index, np.flatnonzero(steps > 1.5 * steps.min()) + 1))


def _axes(ax: Axes | None) -> Axes:
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(layout="constrained")[1]


# --- results, as their `plot` draws them

# Inches for each row of names.
ROW_HEIGHT, FEWEST_INCHES = 0.28, 1.6


def plot(result: Any, ax: Axes | None = None, **options: Any) -> Axes:
    """Draw a result; see `calibrant.core.result.Drawn.plot`.

    Raises:
        InputError: another result, or a metric that wasn't measured.
    """
    if isinstance(result, Evaluation):
        return reliability_diagram(result, ax, **options)
    measured: dict[str, Evaluation] | None = None
    lead, marked = "", None
    if isinstance(result, GroupedEvaluation):
        measured, lead, marked = result.groups, result.metric, result.miscalibrated
    elif isinstance(result, Comparison):
        measured, lead = {m.name: m.evaluation for m in result.methods}, result.rank_by
    elif isinstance(result, ModelComparison):
        measured, lead = {entry.said: entry.evaluation for entry in result.entries}, result.score
    elif isinstance(result, History):
        measured, lead = dict(result.evaluations), result.metrics[0]
    elif isinstance(result, CrossValidated):
        measured, lead = {"as it is": result.before, result.method: result.after}, result.score
    if measured is not None:
        results = {name: found.results for name, found in measured.items()}
        marked = list(results) if marked is None else marked
        return _intervals(results, options.pop("metric", lead), ax, marked, **options)
    if isinstance(result, RiskDecision):
        return _risk_with_bound(result, ax, **options)
    if isinstance(result, CostDecision) and result.benefit:
        return _net_benefit(result, ax, **options)
    if isinstance(result, SetDecision):
        return _sizes_of_sets(result, ax, **options)
    if isinstance(result, GroupedDecision):
        return _kept_by_group(result, ax, **options)
    if isinstance(result, Multicalibration):
        return _errors_of_groups(result, ax, **options)
    raise InputError(f"there is no picture of a {type(result).__name__}")


def _risk_with_bound(decision: RiskDecision, ax: Axes | None = None, *, color: str = AFTER) -> Axes:
    """Draw the error rate among answered rows over coverage, with its upper bound.

    A cross marks the threshold that is taken, and a dotted line the wanted risk.
    """
    ax, curve = _axes(ax), decision.curve
    ax.fill_between(curve["coverage"], curve["error"], curve["bound"], color=color, alpha=0.2)
    ax.plot(curve["coverage"], curve["error"], color=color)
    ax.axhline(decision.risk, color=QUIET, linestyle=":")
    if decision.threshold is not None:
        ax.plot(decision.coverage.value, decision.error.value, "x", color=color)
    across, risk = decision.axis_titles
    ax.set(xlim=(0, 1), ylim=(0, decision.most_shown), xlabel=across, ylabel=risk)
    return ax


def _net_benefit(decision: CostDecision, ax: Axes | None = None, *, color: str = AFTER) -> Axes:
    """Draw the net benefit over thresholds with its band; dashed for all rows, at 0 for none."""
    ax, found = _axes(ax), decision.benefit
    at = found["threshold"]
    ax.fill_between(at, found["low"], found["high"], color=color, alpha=0.2, linewidth=0)
    ax.plot(at, found["benefit"], color=color, label=f"of {decision.event}")
    ax.plot(at, found["all"], "--", color=BEFORE, label="all rows")
    if "uncalibrated" in found:
        ax.plot(at, found["uncalibrated"], ":", color=BEFORE, label="uncalibrated")
    ax.axhline(0, color=QUIET, linewidth=0.8, label="none")
    limits = decision.benefit_shown
    ax.set(xlim=(0, 1), ylim=limits, xlabel="Threshold", ylabel="Net benefit a row")
    ax.legend(frameon=False, fontsize="small")
    return ax


def _sizes_of_sets(decision: SetDecision, ax: Axes | None = None, *, color: str = AFTER) -> Axes:
    """Draw the mean size of sets by true class, the largest on top, beside that of all rows."""
    ax = _bars(dict(decision.largest), "Classes in a set", ax, color)
    ax.axvspan(decision.size.low, decision.size.high, color=QUIET, alpha=0.4, linewidth=0)
    return ax


def _kept_by_group(
    decision: GroupedDecision, ax: Axes | None = None, *, color: str = AFTER
) -> Axes:
    """Draw how much of each group is answered, or how large its sets are."""
    values = {name: share.value for name, (share, _) in decision.measured.items()}
    title = "Classes in a set" if decision.each == "set" else f"{decision.acted} of its rows"
    return _bars(values, title, ax, color)


def _errors_of_groups(
    found: Multicalibration, ax: Axes | None = None, *, color: str = AFTER
) -> Axes:
    """Draw the error of the worst groups in sigmas; those within noise are pale."""
    worst = found.groups[:PRINTED_GROUPS]
    ax = _bars({each.group: each.sigmas for each in worst}, "Error, in sigmas", ax, color)
    for bar, each in zip(ax.patches, worst, strict=True):
        bar.set_alpha(1.0 if each in found.miscalibrated else 0.35)
    return ax


def _bars(values: Mapping[str, float], title: str, ax: Axes | None, color: str) -> Axes:
    """Draw a bar for each name, the first on top."""
    ax = _a_row_each(list(values), ax)
    ax.barh(range(len(values)), list(values.values()), color=color)
    ax.set_xlabel(title)
    return ax


def _a_row_each(names: Sequence[str], ax: Axes | None) -> Axes:
    """Return axes with a row for each name, the first on top."""
    import matplotlib.pyplot as plt

    if ax is None:
        height = max(FEWEST_INCHES, 0.8 + ROW_HEIGHT * len(names))
        ax = plt.subplots(figsize=(5.5, height), layout="constrained")[1]
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.5, -0.5)
    return ax


def _intervals(
    results: Mapping[str, Mapping[str, MetricResult]],
    metric: str,
    ax: Axes | None,
    marked: list[str],
    *,
    color: str = AFTER,
) -> Axes:
    """Draw a value with its interval and its floor for each name, the first on top.

    Points of names that aren't `marked` are hollow.
    """
    missing = [name for name, found in results.items() if metric not in found]
    if missing:
        measured = ", ".join(next(iter(results.values())))
        raise InputError(f"'{metric}' was not measured; there are: {measured}")
    ax = _a_row_each(list(results), ax)
    one = next(iter(results.values()))[metric].metric
    scale = 100 if one.percent else 1
    for place, (name, found) in enumerate(results.items()):
        value = found[metric]
        ax.plot([scale * value.low, scale * value.high], [place, place], color=color, linewidth=1)
        face = color if name in marked else "white"
        ax.plot(scale * value.value, place, "o", color=color, mfc=face, ms=5)
        if value.floor_95 is not None:
            ax.plot(scale * value.floor_95, place, "|", color=QUIET, markersize=10)
    ax.set_xlabel(f"{one.title}, %" if one.percent else one.title)
    return ax


# --- the gate of a training run

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
