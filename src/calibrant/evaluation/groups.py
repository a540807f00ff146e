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
from calibrant.evaluation import printed
from calibrant.evaluation.evaluate import Evaluation, MetricResult, evaluate
from calibrant.evaluation.family_wise import Family
from calibrant.evaluation.grouping import GroupKind, grouping
from calibrant.evaluation.tables import GroupedTables
from calibrant.evaluation.uncertainty import DEFAULT_LEVEL, FAMILY_LEVEL, default_resamples
from calibrant.predictions.predictions import Predictions

# Measured in each group if the caller doesn't say: what stays cheap for a thousand classes.
GROUP_METRICS = ("ece", "adaece", "nll", "brier", "accuracy")
MIN_ROWS = 20
QUANTILES = 5


@dataclass(frozen=True, eq=False)
class GroupedEvaluation(GroupedTables):
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
        return printed.grouped_text(self)


def evaluate_by(
    predictions: Predictions | Array,
    groups: GroupKind | Array,
    labels: Array | None = None,
    *,
    sample_weight: Array | None = None,
    clusters: Array | None = None,
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
        sample_weight, clusters: as `evaluate` takes them.
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
        predictions = Predictions.from_probs(
            predictions, labels, sample_weight=sample_weight, clusters=clusters
        )
    elif sample_weight is not None or clusters is not None:
        raise InputError("weights and clusters go into the Predictions when it is made of arrays")
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
        if rows.clusters is not None and len(np.unique(rows.clusters)) < 2:
            skipped[name] = "all its rows belong to one cluster"
            continue
        if rows.weights is not None and not rows.weights.any():
            skipped[name] = "all its rows have a weight of 0"
            continue
        found[name] = evaluate(
            rows,
            metrics=GROUP_METRICS if metrics is None else metrics,
            resamples=resamples,
            level=level,
            seed=seed,
        )
        if by != "label":
            first, measured = next(iter(found[name].results.values())), found[name]
            said = measured.positive if first.metric.of_positive else measured.top
            family.add(name, first, said or measured.top, rows.counted)
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
