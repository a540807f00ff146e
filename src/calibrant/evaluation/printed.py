"""Evaluations as text for terminals: a headline, a table, and what its columns mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from calibrant.core.tables import Table
from calibrant.core.text import counted, format_table, wrap
from calibrant.evaluation.findings import FLOOR
from calibrant.evaluation.numbers import in_percent, interval_of, percent, show
from calibrant.evaluation.uncertainty import FAMILY_LEVEL

if TYPE_CHECKING:
    from calibrant.evaluation.evaluate import Evaluation, MetricResult
    from calibrant.evaluation.groups import GroupedEvaluation
    from calibrant.metrics.shapes import Metric

# What groups are called in print, where that isn't what the argument is called.
HEADINGS = {
    "many labels": "label",
    "predicted": "predicted class",
    "label": "true label",
    "margin": "margin of logits",
}
# What forms are called in print, where that isn't the word of `--kind`.
FORMS = {
    "prob": "probability of the positive class",
    "logit": "log odds of the positive class",
    "toplabel": "confidence of the top label",
}
# More groups than this are printed worst first, and only so many of them.
PRINTED_GROUPS = 25


def evaluation_text(evaluation: Evaluation) -> str:
    """Return what an evaluation prints."""
    classes = None if evaluation.positive is not None else evaluation.n_classes
    width = "" if classes is None else f", {classes} classes"
    form = FORMS.get(evaluation.kind, evaluation.kind)
    table = evaluation_table(evaluation)
    rows = counted(evaluation.n, "row")
    if evaluation.label_names is not None:
        labels = counted(len(evaluation.label_names), "label")
        rows = f"{counted(evaluation.n, 'prediction')} of {labels}, pooled"
    parts = [
        wrap(evaluation.headline()),
        f"{evaluation.source}: {rows}{width}, {form}",
        wrap(weighing(evaluation)),
        table.to_text(),
        "\n".join(f"{name} left out: {reason}" for name, reason in evaluation.skipped.items()),
        wrap(
            f"In {counted(evaluation.clipped_nll_rows, 'row')} the true class has a probability of "
            "nearly 0; NLL counts each of them as 87.3."
        )
        if evaluation.clipped_nll_rows
        else "",
        wrap(table.notes),
    ]
    return "\n\n".join(part for part in parts if part)


def evaluation_table(evaluation: Evaluation) -> Table:
    """Return the table of an evaluation, a metric a row."""
    head = ["metric", "value", interval_of(evaluation.level), "floor", "floor 95 %"]
    results = list(evaluation.results.values())
    legend = in_percent([result.metric for result in results])
    if any(result.floor is not None for result in results):
        legend += f" {FLOOR}"
    return Table(head, [_table_row(result) for result in results], notes=legend)


def weighing(evaluation: Evaluation) -> str:
    """Return what weights and clusters make of the rows, in a sentence or two, or nothing."""
    worth = f"{evaluation.effective_rows:.0f}"
    if evaluation.clusters is None:
        return f"Weighted: worth {worth} rows of equal weight." if evaluation.weighted else ""
    weighed = "weighted and " if evaluation.weighted else ""
    return (
        f"The rows are {weighed}in {evaluation.clusters} clusters, worth {worth} independent rows. "
        "Intervals draw whole clusters; honest outcomes of two rows of a cluster correlate by "
        f"{evaluation.correlation:.2f} (normal scale), as those seen do."
    )


def _table_row(result: MetricResult) -> list[str]:
    metric = result.metric
    low, high = show(metric, result.low), show(metric, result.high)
    return [
        metric.title,
        show(metric, result.value),
        f"{low} .. {high}",
        show(metric, result.floor),
        show(metric, result.floor_95),
    ]


def grouped_text(grouped: GroupedEvaluation) -> str:
    """Return what an evaluation by groups prints."""
    table, by = grouped_table(grouped), HEADINGS.get(grouped.by, grouped.by)
    rows = table.rows
    lines = [f"{grouped.source}: {counted(len(rows), 'group')} by {by}", ""]
    lines.append(format_table(table.head, rows[:PRINTED_GROUPS]))
    if len(rows) > PRINTED_GROUPS:
        lines.append(f"and {len(rows) - PRINTED_GROUPS} more groups, less bad")
    lines += ["", wrap(table.notes)]
    if len(grouped.skipped) > PRINTED_GROUPS:
        lines += ["", f"{len(grouped.skipped)} groups left out: too few rows"]
    elif grouped.skipped:
        lines += ["", *(f"{name} left out: {reason}" for name, reason in grouped.skipped.items())]
    return "\n".join(lines)


def grouped_table(grouped: GroupedEvaluation) -> Table:
    """Return the table of all groups; of very many the worst first."""
    results = grouped.results()
    names = list(results)
    if len(names) > PRINTED_GROUPS:
        names.sort(key=lambda n: results[n].cost, reverse=True)
    marked = set(grouped.miscalibrated)
    metric = results[grouped.worst].metric
    by = HEADINGS.get(grouped.by, grouped.by)
    said = ["probability", "share"] if metric.of_positive else ["confidence", "accuracy"]
    head = [by, "rows", *said, metric.title, "interval", "floor 95 %"]
    rows = [_group_row(n, grouped.groups[n], results[n], n in marked) for n in names]
    if not any(row[-1] for row in rows) or grouped.by == "label":
        head, rows = head[:-1], [row[:-1] for row in rows]
    return Table(head, rows, notes=_legend(grouped, head))


def _legend(grouped: GroupedEvaluation, head: Sequence[str]) -> str:
    """Return what the columns and the marks mean."""
    first = grouped.groups[grouped.worst]
    metric, count = first[grouped.metric].metric, len(grouped.groups)
    if metric.percent:
        text = "All but the rows in percent."
    else:
        text = f"Confidence and accuracy in percent, {metric.title} as it is."
    text += f" Interval: of {metric.title}, {100 * first.level:g} %."
    if grouped.by == "label":
        return f"{text} No floor: honest confidences need not fit within a true label."
    if "floor 95 %" not in head:
        return f"{text} {metric.title} has no floor, so no group is marked."
    text += (
        " Floor 95 %: what honest confidences would stay below on these rows in 95 % of cases, "
        "looking at one group alone; of many honest groups one in 20 exceeds it."
    )
    together = "one group alone" if count == 1 else f"all {count} groups together"
    if grouped.least_p > FAMILY_LEVEL:
        few = round(1 / grouped.least_p) - 1
        return f"{text} With {few} resamples no group can be marked; it takes 19 or more."
    if not grouped.miscalibrated:
        return f"{text} No group shows more than noise, at 5 % for {together}."
    return f"{text} * more than noise, at 5 % for {together} (Holm's steps, simulated)."


def said_and_true(group: Evaluation, metric: Metric) -> tuple[float, float]:
    """Return the mean confidence and accuracy of a group, or what a metric is about instead.

    Of the positive class these are its mean probability and its share.
    """
    mean, share = group.mean_probability, group.positive_share
    if metric.of_positive and mean is not None and share is not None:
        return mean, share
    return group.mean_confidence, group.accuracy


def _group_row(name: str, group: Evaluation, result: MetricResult, marked: bool) -> list[str]:
    metric = result.metric
    mean, share = said_and_true(group, metric)
    return [
        name,
        str(group.n),
        percent(mean),
        percent(share),
        show(metric, result.value) + ("*" if marked else ""),
        f"{show(metric, result.low)} .. {show(metric, result.high)}",
        show(metric, result.floor_95),
    ]
