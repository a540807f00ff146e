"""Pictures of results, as their `plot` method draws them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from calibrant.comparison.comparison import Comparison
from calibrant.core.errors import InputError
from calibrant.evaluation.groups import GroupedEvaluation
from calibrant.evaluation.results import Evaluation, MetricResult
from calibrant.report.figures import AFTER, QUIET, reliability_diagram

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# matplotlib passes most settings on as untyped keywords.
# pyright: reportUnknownMemberType=false

# Inches for each row of names.
ROW_HEIGHT, FEWEST_INCHES = 0.28, 1.6


def plot(result: Any, ax: Axes | None = None, **options: Any) -> Axes:
    """Draw an evaluation, groups or a comparison; see `calibrant.core.result.Result.plot`.

    Raises:
        InputError: another result, or a metric that wasn't measured.
    """
    if isinstance(result, Evaluation):
        return reliability_diagram(result, ax, **options)
    if isinstance(result, GroupedEvaluation):
        name = options.pop("metric", result.metric)
        groups = {group: one.results for group, one in result.groups.items()}
        return _intervals(groups, name, ax, result.miscalibrated, **options)
    if isinstance(result, Comparison):
        name = options.pop("metric", result.rank_by)
        methods = {one.name: one.evaluation.results for one in result.methods}
        return _intervals(methods, name, ax, list(methods), **options)
    raise InputError(f"there is no picture of a {type(result).__name__}")


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
    import matplotlib.pyplot as plt

    missing = [name for name, found in results.items() if metric not in found]
    if missing:
        measured = ", ".join(next(iter(results.values())))
        raise InputError(f"'{metric}' was not measured; there are: {measured}")
    if ax is None:
        height = max(FEWEST_INCHES, 0.8 + ROW_HEIGHT * len(results))
        ax = plt.subplots(figsize=(5.5, height), layout="constrained")[1]
    one = next(iter(results.values()))[metric].metric
    scale = 100 if one.percent else 1
    for place, (name, found) in enumerate(results.items()):
        value = found[metric]
        ax.plot([scale * value.low, scale * value.high], [place, place], color=color, linewidth=1)
        face = color if name in marked else "white"
        ax.plot(scale * value.value, place, "o", color=color, mfc=face, ms=5)
        if value.floor_95 is not None:
            ax.plot(scale * value.floor_95, place, "|", color=QUIET, markersize=10)
    ax.set_yticks(range(len(results)), list(results))
    ax.set_ylim(len(results) - 0.5, -0.5)
    ax.set_xlabel(f"{one.title}, %" if one.percent else one.title)
    return ax
