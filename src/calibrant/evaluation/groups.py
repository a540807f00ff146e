"""Measure within groups of rows: classes, quantiles of the margin, or whatever a column says.

A classifier may be honest on the whole and wrong on every part of it: overconfident on one class,
underconfident on another. Each group is measured on its own rows, with its own interval and floor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrant.core.arrays import (
    Array,
)
from calibrant.core.errors import InputError
from calibrant.core.text import counted, format_table, wrap
from calibrant.evaluation.evaluate import Evaluation, MetricResult, evaluate, show
from calibrant.evaluation.family_wise import Family
from calibrant.evaluation.grouping import GroupKind, grouping
from calibrant.evaluation.uncertainty import DEFAULT_LEVEL, default_resamples
from calibrant.predictions.predictions import Predictions

# Measured in each group if the caller doesn't say: what stays cheap for a thousand classes.
GROUP_METRICS = ("ece", "adaece", "nll", "brier", "accuracy")
MIN_ROWS = 20
# What groups are called in print, where that isn't what the argument is called.
HEADINGS = {"predicted": "predicted class", "label": "true label", "margin": "margin of logits"}
QUANTILES = 5
# More groups than this are printed worst first, and only so many of them.
PRINTED_GROUPS = 25
FAMILY_LEVEL = 0.05


@dataclass(frozen=True, eq=False)
class GroupedEvaluation:
    """What `evaluate_by` found; prints as a table, and `result["3"]` is the group's `Evaluation`.

    Attributes:
        source: where the rows came from.
        by: what the groups are.
        metric: name of the metric that leads: the first that was asked for.
        groups: evaluation of each group, by name.
        skipped: group name to the reason why it was not measured.
        p_adjusted: group name to the chance that any honest group would stand out as much, all
            groups considered (see `evaluation.family_wise`). Empty for groups by true label, where
            honest confidences have no floor (a model doesn't know the label), and for a leading
            metric without one.
        least_p: the least that an adjusted p-value can be: 1 / (1 + simulated data sets).

    Examples:
        >>> import calibrant as cb
        >>> test = cb.load_sample("test")
        >>> found = cb.evaluate_by(test, "predicted", metrics=["ece"], resamples=200)
        >>> found.worst, round(found[found.worst]["ece"].value, 2)  # class 3 is "cat"
        ('3', 0.13)
    """

    source: str
    by: str
    metric: str
    groups: dict[str, Evaluation]
    skipped: dict[str, str]
    p_adjusted: dict[str, float]
    least_p: float

    def __getitem__(self, name: str) -> Evaluation:
        """Return the evaluation of one group.

        Raises:
            KeyError: it was not measured.
        """
        return self.groups[name]

    def results(self, metric: str | None = None) -> dict[str, MetricResult]:
        """Return one metric's result in every group, of the leading metric if None."""
        return {name: group[metric or self.metric] for name, group in self.groups.items()}

    @property
    def worst(self) -> str:
        """Name of the group with the worst value of the leading metric."""
        return max(self.results().items(), key=lambda item: item[1].cost)[0]

    @property
    def miscalibrated(self) -> list[str]:
        """Groups whose leading metric noise can't explain, at 5 % for all of them together."""
        return [name for name, p in self.p_adjusted.items() if p <= FAMILY_LEVEL]

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON takes it; fractions, not percent."""
        return {
            "file": self.source,
            "by": self.by,
            "groups": {name: group.as_dict() for name, group in self.groups.items()},
            "miscalibrated": self.miscalibrated,
            "p_adjusted": self.p_adjusted,
            "skipped": [{"group": n, "reason": reason} for n, reason in self.skipped.items()],
        }

    def __str__(self) -> str:
        results = self.results()
        names = list(results)
        if len(names) > PRINTED_GROUPS:
            names.sort(key=lambda n: results[n].cost, reverse=True)
        marked = set(self.miscalibrated)
        metric = results[self.worst].metric
        by = HEADINGS.get(self.by, self.by)
        head = [by, "rows", "confidence", "accuracy", metric.title, "interval", "floor 95 %"]
        rows = [_table_row(n, self.groups[n], results[n], n in marked) for n in names]
        if not any(row[-1] for row in rows) or self.by == "label":
            head, rows = head[:-1], [row[:-1] for row in rows]
        lines = [
            f"{self.source}: {counted(len(names), 'group')} by {HEADINGS.get(self.by, self.by)}",
            "",
        ]
        lines.append(format_table(head, rows[:PRINTED_GROUPS]))
        if len(rows) > PRINTED_GROUPS:
            lines.append(f"and {len(rows) - PRINTED_GROUPS} more groups, less bad")
        lines += ["", wrap(self._legend(head))]
        if len(self.skipped) > PRINTED_GROUPS:
            lines += ["", f"{len(self.skipped)} groups left out: too few rows"]
        elif self.skipped:
            lines += ["", *(f"{name} left out: {reason}" for name, reason in self.skipped.items())]
        return "\n".join(lines)

    def _legend(self, head: Sequence[str]) -> str:
        """Return what the columns and the marks mean."""
        first = self.groups[self.worst]
        metric, count = first[self.metric].metric, len(self.groups)
        if metric.percent:
            text = "All but the rows in percent."
        else:
            text = f"Confidence and accuracy in percent, {metric.title} as it is."
        text += f" Interval: of {metric.title}, {100 * first.level:g} %."
        if self.by == "label":
            return f"{text} No floor: honest confidences need not fit within a true label."
        if "floor 95 %" not in head:
            return f"{text} {metric.title} has no floor, so no group is marked."
        text += (
            " Floor 95 %: what honest confidences would stay below on these rows in 95 % of cases, "
            "looking at one group alone; of many honest groups one in 20 exceeds it."
        )
        together = "one group alone" if count == 1 else f"all {count} groups together"
        if self.least_p > FAMILY_LEVEL:
            few = round(1 / self.least_p) - 1
            return f"{text} With {few} resamples no group can be marked; it takes 19 or more."
        if not self.miscalibrated:
            return f"{text} No group shows more than noise, at 5 % for {together}."
        return f"{text} * more than noise, at 5 % for {together} (Holm's steps, simulated)."


def _table_row(name: str, group: Evaluation, result: MetricResult, marked: bool) -> list[str]:
    metric = result.metric
    return [
        name,
        str(group.n),
        f"{100 * group.rows.confidence.mean():.1f}",
        f"{100 * group.rows.correct.mean():.1f}",
        show(metric, result.value) + ("*" if marked else ""),
        f"{show(metric, result.low)} .. {show(metric, result.high)}",
        show(metric, result.floor_95),
    ]


def evaluate_by(
    predictions: Predictions | Array,
    groups: GroupKind | Array,
    labels: Array | None = None,
    *,
    metrics: Sequence[str] | str | None = None,
    quantiles: int = QUANTILES,
    min_rows: int = MIN_ROWS,
    resamples: int | None = None,
    level: float = DEFAULT_LEVEL,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> GroupedEvaluation:
    """Measure predictions within groups of rows.

    Args:
        predictions: a `Predictions`, or an (N, K) array of probabilities (not logits).
        groups: ``"predicted"`` or ``"label"``, a group for each class; ``"margin"`` (largest minus
            second largest logit) or ``"confidence"``, a group for each quantile, rows of equal
            value together; or an (N,) column, a group for each distinct value.
        labels: (N,) true classes, with an array.
        metrics: as `evaluate` takes them, the first one leads; None for `GROUP_METRICS`.
        quantiles: number of groups by margin or confidence.
        min_rows: smaller groups are left out.
        resamples: bootstrap resamples in each group, and simulated honest data sets; None for as
            many as `evaluate` takes.
        level: nominal coverage of the intervals.
        seed: of the resamples.
        progress: called with the name of each group before it is measured.

    Raises:
        PredictionsError: unusable arrays, or a column of another length.
        UnknownMethodError: no such metric.
        InputError: unknown kind of group, or no group that is large enough.

    Examples:
        >>> import calibrant as cb
        >>> test = cb.load_sample("test")
        >>> found = cb.evaluate_by(test, "margin", metrics=["ece"], quantiles=4, resamples=200)
        >>> [f"{group['ece'].value:.2f}" for group in found.groups.values()]  # small margins first
        ['0.11', '0.11', '0.03', '0.00']
    """
    if not isinstance(predictions, Predictions):
        if labels is None:
            raise InputError("evaluate_by needs labels with an array of probabilities")
        predictions = Predictions.from_probs(predictions, labels)
    names, member = grouping(predictions, groups, quantiles)
    sizes = np.bincount(member, minlength=len(names))
    ends = np.cumsum(sizes)
    order = np.argsort(member, kind="stable")
    found: dict[str, Evaluation] = {}
    skipped: dict[str, str] = {}
    by = groups if isinstance(groups, str) else "group"
    family = Family(default_resamples(int(sizes.max())) if resamples is None else resamples, seed)
    for name, size, end in zip(names, sizes.tolist(), ends.tolist(), strict=True):
        if progress is not None:
            progress(name)
        if size < min_rows:
            skipped[name] = f"{size} rows are fewer than {min_rows}"
            continue
        rows = predictions.take(order[end - size : end])
        found[name] = evaluate(
            rows,
            metrics=GROUP_METRICS if metrics is None else metrics,
            resamples=resamples,
            level=level,
            seed=seed,
        )
        if by != "label":
            family.add(name, next(iter(found[name].results.values())), found[name].rows, rows)
    if not found:
        raise InputError(
            f"no group has the {min_rows} rows that it takes (min_rows); the largest has "
            f"{int(sizes.max())}"
        )
    return GroupedEvaluation(
        predictions.source,
        by,
        next(iter(next(iter(found.values())).results)),
        found,
        skipped,
        *family.adjusted(),
    )
