"""The figures of a result as files for a paper: PDF, SVG and PNG."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant.comparison.comparison import Comparison
from calibrant.comparison.verdict import ComparedMethod
from calibrant.evaluation.results import Evaluation
from calibrant.files import StrPath, replacing
from calibrant.report.figures import (
    AFTER,
    BEFORE,
    PALETTE,
    confidence_histogram,
    margin_groups,
    margin_temperature,
    reliability_diagram,
    risk_coverage,
)
from calibrant.report.series import DEFAULT_GROUPS

# matplotlib passes most settings on as untyped keywords.
# pyright: reportUnknownMemberType=false

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LINES = ("-", "--", "-.", ":")
FORMATS = ("pdf", "svg", "png")
Shown = list[tuple[Evaluation, dict[str, Any]]]


def save_figures(
    directory: StrPath,
    result: Evaluation | Comparison,
    *,
    formats: Sequence[str] = FORMATS,
    dpi: float = 200,
) -> list[Path]:
    """Write every available figure of a result into a folder, and return the files.

    For a comparison they show its best method beside the uncalibrated network, if that was
    compared.

    Args:
        directory: the folder, which is created if needed.
        result: what `evaluate` or `compare` found.
        formats: file extensions that matplotlib can write.
        dpi: resolution of pixel formats.

    Examples:
        >>> import calibrant as cb
        >>> from calibrant.report import save_figures
        >>> rows = cb.synthetic.top_label(1_000).predictions
        >>> found = cb.evaluate(rows, metrics=["ece"], resamples=100)
        >>> [file.name for file in save_figures("figures", found, formats=["svg"])]
        ['reliability.svg', 'confidence.svg', 'risk-coverage.svg']
    """
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for name, figure in _figures(result).items():
        for extension in formats:
            path = folder / f"{name}.{extension}"
            # Files of equal content should be equal: no dates.
            key = {"pdf": "CreationDate", "svg": "Date"}.get(extension)
            with replacing(path) as temporary:
                figure.savefig(temporary, dpi=dpi, metadata=None if key is None else {key: None})
            written.append(path)
    return written


def _figures(result: Evaluation | Comparison) -> dict[str, Figure]:
    shown = _shown(result)
    found = {
        "reliability": _side_by_side(shown, 3.5, reliability_diagram),
        "confidence": _side_by_side(shown, 2.6, _plain_histogram),
        "risk-coverage": _risk(shown),
    }
    if all(evaluation.sample.margins is not None for evaluation, _ in shown):
        found["margin-groups"] = _margin_groups(shown)
    if isinstance(result, Comparison):
        curves = [method for method in result.methods if method.by_margin is not None]
        if curves:
            found["margin-temperature"] = _temperatures(curves)
    return found


def _shown(result: Evaluation | Comparison) -> Shown:
    if isinstance(result, Evaluation):
        return [(result, {"color": AFTER})]
    before, best = result.uncalibrated, result.best_calibrated
    shown: list[tuple[Evaluation, dict[str, Any]]] = []
    if before is not None:
        alone = {"color": AFTER, "label": before.name}
        beside = {"color": BEFORE, "label": before.name, "hollow": True}
        shown.append((before.evaluation, alone if best is None else beside))
    if best is not None:
        shown.append((best.evaluation, {"color": AFTER, "label": best.name}))
    return shown


def _blank(width: float, height: float, columns: int = 1) -> tuple[Figure, list[Axes]]:
    # Not pyplot's: these figures are saved and forgotten, and need no window.
    from matplotlib.figure import Figure

    figure = Figure((width, height), layout="constrained")
    return figure, list(figure.subplots(1, columns, squeeze=False)[0])


def _side_by_side(shown: Shown, height: float, draw: Callable[..., Axes]) -> Figure:
    figure, axes = _blank(3.4 * len(shown), height, len(shown))
    for ax, (evaluation, style) in zip(axes, shown, strict=True):
        draw(evaluation, ax, **style)
        ax.set_title(style.get("label", ""), fontsize="medium")
    return figure


def _plain_histogram(evaluation: Evaluation, ax: Axes, color: str, **_: Any) -> Axes:
    confidence_histogram(evaluation, ax, color=color).legend(fontsize="small", frameon=False)
    return ax


def _risk(shown: Shown) -> Figure:
    figure, [ax] = _blank(4.2, 3.2)
    for evaluation, style in shown:
        risk_coverage(evaluation, ax, **style)
    if len(shown) > 1:
        ax.legend(frameon=False)
    return figure


def _margin_groups(shown: Shown) -> Figure:
    figure, axes = _blank(2.6 * DEFAULT_GROUPS, 2.9, DEFAULT_GROUPS)
    used = axes
    for evaluation, style in shown:
        used = margin_groups(evaluation, axes, **style)
    for ax in axes[len(used) :]:
        ax.remove()
    figure.supxlabel("Confidence", fontsize="medium")
    if len(shown) > 1:
        used[0].legend(frameon=False, fontsize="small")
    return figure


def _temperatures(methods: Sequence[ComparedMethod]) -> Figure:
    figure, [ax] = _blank(4.2, 3.2)
    for i, method in enumerate(methods):
        look: dict[str, Any] = {
            "color": PALETTE[i % len(PALETTE)],
            "linestyle": LINES[i % len(LINES)],
        }
        margin_temperature(method, ax=ax, label=method.name, **look)
    ax.legend(frameon=False, fontsize="small")
    return figure
