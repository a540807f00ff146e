"""A study's result as tables: in the paper's layout, and number by number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from calibrant.core.tables import Table
from calibrant.core.text import wrap
from calibrant.studies.declaration import Study
from calibrant.studies.needing import told

if TYPE_CHECKING:
    from calibrant.studies.results import Estimate, StudyResult

MAY_BE_BEST = "+"
LEGEND = (
    "In brackets the published value. {}+ may be the best among those it competes with (of these, "
    "the truly best is among those marked in 95 % of cases)."
)


def layout(result: StudyResult) -> Table:
    """Return the table in the layout that the study declares; bold is the best of each group."""
    study = result.study
    slots: dict[tuple[tuple[str, ...], tuple[str, ...]], list[Estimate]] = {}
    for estimate in result.estimates:
        down = tuple(study.word(key, estimate.at) for key in study.rows)
        across = tuple(study.word(key, estimate.at) for key in study.columns)
        if len(study.metrics) > 1:
            across = (*across, estimate.measure.title)
        slots.setdefault((down, across), []).append(estimate)
    rows = list(dict.fromkeys(down for down, _ in slots))
    columns = sorted(dict.fromkeys(across for _, across in slots), key=_order_of(study))
    head = [*study.rows, *(" ".join(across) for across in columns)]
    cells: list[list[str]] = []
    bold: set[tuple[int, int]] = set()
    for i, down in enumerate(rows):
        line = list(down)
        for across in columns:
            of_slot = slots.get((down, across), [])
            if of_slot and all(estimate.best for estimate in of_slot):
                bold.add((i, len(line)))
            line.append(_cell(of_slot))
        cells.append(line)
    spread = any(estimate.spread is not None for estimate in result.estimates)
    said = LEGEND.format("+- is the standard deviation over seeds. " if spread else "")
    return Table(head, cells, bold, " ".join([said, *study.footnotes]))


def _order_of(study: Study) -> Callable[[tuple[str, ...]], tuple[int, ...]]:
    """Return what sorts columns as the study declares them."""
    orders: list[dict[str, int]] = []
    for key in study.columns:
        values = [value for axis in study.axes.values() for value in axis]
        words = (
            [value.label for value in study.axes[key]]
            if key in study.axes
            else [value.attributes.get(key, "") for value in values]
        )
        orders.append({word: i for i, word in reversed(list(enumerate(words)))})

    def place(across: tuple[str, ...]) -> tuple[int, ...]:
        return tuple(order.get(word, -1) for order, word in zip(orders, across, strict=False))

    return place


def _cell(of_slot: Sequence[Estimate]) -> str:
    """Return the value, its spread, its mark and what was published."""
    if not of_slot:
        return ""
    measure = of_slot[0].measure
    text = measure.show(sum(e.value for e in of_slot) / len(of_slot))
    if len(of_slot) > 1:
        return text
    (only,) = of_slot
    if only.spread is not None:
        text += f" +- {measure.show(only.spread)}"
    if only.may_be_best:
        text += MAY_BE_BEST
    if only.published is not None:
        text += f" ({only.published.value:g})"
    return text


def details(result: StudyResult) -> Table:
    """Return a row for each number: interval, floor, published value, difference and noise."""
    study = result.study
    keys = [*study.rows, *study.columns]
    head = [*keys, "metric", "value", "interval", "floor", "published", "difference", "noise"]
    rows: list[list[str]] = []
    for estimate in result.estimates:
        measure = estimate.measure
        value = measure.show(estimate.value)
        if estimate.spread is not None:
            value += f" +- {measure.show(estimate.spread)}"
        both = estimate.low is not None and estimate.high is not None
        ends = f"{measure.show(estimate.low)} .. {measure.show(estimate.high)}" if both else ""
        published, difference, noise = "", "", ""
        if estimate.published is not None and estimate.difference is not None:
            published = f"{estimate.published.value:g}" + "*" * estimate.published.doubtful
            difference = f"{estimate.difference:+.{measure.digits}f}"
            noise = {True: "within", False: "beyond", None: "unknown"}[estimate.within_noise]
        words = [study.word(key, estimate.at) for key in keys]
        floor = measure.show(estimate.floor)
        rows.append([*words, measure.title, value, ends, floor, published, difference, noise])
    notes = (
        "interval: 95 % bootstrap interval; floor: what honest confidences would show on average; "
        "noise: whether the published value lies within the noise of both."
    )
    return Table(head, rows, set(), notes)


def as_text(result: StudyResult) -> str:
    """Return what a terminal shows."""
    study = result.study
    parts = [f"{study.name}: {study.title}"]
    if result.missing:
        parts.append(f"Not there, and left out (--data gives it):\n{told(result.missing)}")
    if result.ran:
        table = layout(result)
        parts += [table.to_text(), wrap(table.notes)]
        long = details(result)
        parts += [long.to_text(), wrap(long.notes)]
    if result.failed:
        lines = [f"- {failed.cell}: {failed.error}" for failed in result.failed]
        parts.append("\n".join(["Failed, and tried again by the next run:", *lines]))
    return "\n\n".join(parts)


def written_for(result: StudyResult, path: str | Path) -> str:
    """Return the text of a file whose name ends in .md, .tex, .csv or .html.

    Raises:
        InputError: it ends otherwise.
    """
    if Path(path).suffix.lower() == ".csv":
        return details(result).to_csv() + "\n"
    return layout(result).written_for(path)
