"""Which metrics sums of rows carry, and why they don't carry the others."""

from __future__ import annotations

from collections.abc import Sequence

from calibrant.metrics.metric_types import NO_CLASSES, NOT_BINARY, ONLY_COUNTS, Metric, RowsMetric
from calibrant.metrics.registry import metrics_named
from calibrant.scale.row_sums import RowSums
from calibrant.scale.sums import ShardSums
from calibrant.scale.whole_rows import CARRIED, MOST_CLASSES

NOT_CARRIED = {
    "skce": "it compares pairs of rows, which sums can't carry; measure a sample as one file",
    "classwise_adaece": "it sorts the rows by the probability of each class, which sums can't "
    "carry; measure a sample as one file",
}


def carried(metrics: Sequence[str] | str | None, classes: int | None) -> tuple[str, ...]:
    """Return the metrics among these that want sums of whole probability vectors."""
    names = {metric.name for metric in metrics_named(metrics)}
    wanted = [name for name in CARRIED if name in names and classes is not None]
    return tuple(n for n in wanted if n != "classwise_ece" or (classes or 0) <= MOST_CLASSES)


def usable(
    wanted: list[Metric], sums: ShardSums, rows: RowSums
) -> tuple[list[Metric], dict[str, str]]:
    """Return the metrics that follow from these sums, and why the others don't."""
    skipped: dict[str, str] = {}
    usable: list[Metric] = []
    for metric in wanted:
        if metric.of_positive and not sums.binary:
            skipped[metric.name] = NOT_BINARY
        elif metric.needs_rows and sums.n_classes is None:
            skipped[metric.name] = NO_CLASSES
        elif rows.n < metric.fewest_rows:
            skipped[metric.name] = f"it needs at least {metric.fewest_rows} rows"
        elif metric.name in NOT_CARRIED:
            skipped[metric.name] = NOT_CARRIED[metric.name]
        elif isinstance(metric, RowsMetric) and metric.name not in sums.plan.whole_rows:
            skipped[metric.name] = _why_not_whole(metric.name, sums)
        elif metric.weighs == "counts" and not rows.cells.counts:
            skipped[metric.name] = ONLY_COUNTS
        else:
            usable.append(metric)
    return usable, skipped


def _why_not_whole(name: str, sums: ShardSums) -> str:
    if sums.rows is not None and sums.rows.weight is not None:
        return "its sums aren't kept for rows with weights; measure a sample as one file"
    if name == "classwise_ece" and (sums.n_classes or 0) > MOST_CLASSES:
        return f"its sums would be too large for more than {MOST_CLASSES} classes"
    if sums.plan.by is not None:
        return "its sums aren't kept for each group"
    if sums.plan.clustered:
        return "its sums aren't kept for each cluster"
    return "the sums weren't made for it"
