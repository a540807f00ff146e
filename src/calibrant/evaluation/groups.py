"""Measure within groups of rows: classes, quantiles of the margin, or whatever a column says.

A classifier may be calibrated on the whole and wrong on every part of it: overconfident on one
class, underconfident on another. Each group is measured on its own rows, with its own interval and
floor.

Which of many groups show more than noise, if one allows for their number (`Family`)? A group's
p-value, counted over R simulated calibrated data sets, is at least 1 / (R + 1), and corrected for G
groups one by one at least G / (R + 1): with more than 50 groups, a thousand data sets could never
mark any of them at 5 %. Instead all groups are simulated together, and each is held against the
*largest* value that any group shows in a data set in which all are calibrated (Westfall and Young's
step-down maxima; Holm's steps, with the joint distribution instead of its bound). That takes no
more data sets for a thousand groups than for one, and no formula for a tail.

Values of groups of other sizes and confidences must be made comparable before a largest one means
anything: `evidence` does that by the exponent of Bennett's inequality. What that gets wrong costs
power, but makes no false alarms, since the simulated groups are put on the same scale.

Measured with 1 000 simulated data sets (`calibrant study run many-groups`): of
calibrated worlds of 10, 100 and 1 000 groups of 20 to 200 rows .053, .056 and .047 raised an alarm
(standard error .005 each), for a nominal .05. Of groups that were 15 points too sure, 79, 64 and
53 % were found; counting and Holm's bound found 79, 0 and 0 %.

Clusters that reach into several groups make the groups depend on one another. They are simulated
each on its own all the same, dependent within: of independent groups the largest value is larger
than of groups that go together, so this marks too few rather than too many.

References:
    Westfall and Young, Resampling-Based Multiple Testing, Wiley 1993, algorithm 4.1.
    Bennett, J. Am. Stat. Assoc. 1962.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import Array, FloatArray, IntArray
from calibrant.core.errors import InputError, PredictionsError
from calibrant.core.progress import Progress, Watcher
from calibrant.core.result import Drawn, Table
from calibrant.core.text import counted, format_table, wrap
from calibrant.evaluation.evaluate import evaluate_sample, sharing
from calibrant.evaluation.formatting import left_out, left_out_text, percent, show
from calibrant.evaluation.grouping import GroupKind, groups_in_memory, groups_of_files
from calibrant.evaluation.results import Evaluation, MetricResult
from calibrant.evaluation.sample import Sample
from calibrant.evaluation.sample_sources import checked
from calibrant.evaluation.uncertainty import (
    DEFAULT_LEVEL,
    FAMILY_LEVEL,
    check_drawing,
    less_rounding,
)
from calibrant.metrics.metric_types import Metric, RowsMetric
from calibrant.predictions.predictions import NO_PROBABILITY, Predictions
from calibrant.scale.engines import Engine
from calibrant.scale.shards import Shards

# Measured in each group if the caller doesn't say: what stays cheap for a thousand classes.
GROUP_METRICS = ("ece", "adaece", "nll", "brier", "accuracy")
MIN_ROWS = 20
QUANTILES = 5
# What groups are said to be, and what is measured of each of many labels, if nobody says.
MANY_LABELS = "many labels"
LABEL_METRICS = ("ece_positive", "adaece_positive", "slope_positive", "brier_positive", "log_loss")
# What groups are called in print, where that isn't what the argument is called.
HEADINGS = {
    "many labels": "label",
    "predicted": "predicted class",
    "label": "true label",
    "margin": "margin of logits",
}
# More groups than this are printed worst first, and only so many of them.
PRINTED_GROUPS = 25
# A group whose confidences are all 1 has no noise; its evidence stays finite.
SMALLEST_VARIANCE = 1e-12


@dataclass(frozen=True, eq=False, repr=False)
class GroupedEvaluation(Drawn):
    """What `evaluate_by` found; prints as a table, and `result["3"]` is the group's `Evaluation`.

    Attributes:
        source: where the rows came from.
        by: what the groups are.
        metric: name of the leading metric, the first one that was asked for.
        groups: evaluation of each group, by name.
        skipped: group name to the reason why it was not measured.
        p_adjusted: group name to the probability that any of the groups would differ as much if all
            were calibrated (see `Family`). Empty for groups by true label and for a leading metric
            without a floor: within a true label even calibrated confidences differ from the
            accuracy.
        least_p: the smallest possible adjusted p-value, 1 / (1 + simulated data sets).
        shards: number of files that were read; None for rows in memory.
        broken: files that were left out, with the reason.
        members: group name to the numbers of its rows, for rows in memory.

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
    shards: int | None = None
    broken: dict[str, str] = field(default_factory=dict[str, str])
    members: dict[str, IntArray] = field(default_factory=dict[str, IntArray])

    def __getitem__(self, name: str) -> Evaluation:
        """Return the evaluation of one group.

        Raises:
            KeyError: it was not measured.
        """
        return self.groups[name]

    @property
    def heading(self) -> str:
        """What the groups are called in print."""
        return HEADINGS.get(self.by, self.by)

    def results(self, metric: str | None = None) -> dict[str, MetricResult]:
        """Return the result of a metric in every group; None for the leading metric."""
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
        } | (
            {}
            if self.shards is None
            else {"shards": self.shards, "shards_left_out": left_out(self.broken)}
        )

    def as_table(self) -> Table:
        """Return the printed table, a row for each group; of very many the worst first."""
        results = self.results()
        names = list(results)
        if len(names) > PRINTED_GROUPS:
            names.sort(key=lambda n: results[n].cost, reverse=True)
        marked = set(self.miscalibrated)
        metric = results[self.worst].metric
        said = ["probability", "share"] if metric.of_positive else ["confidence", "accuracy"]
        head = [self.heading, "rows", *said, metric.title, "interval", "floor 95 %"]
        rows = [_group_row(n, self.groups[n], results[n], n in marked) for n in names]
        if not any(row[-1] for row in rows) or self.by == "label":
            head, rows = head[:-1], [row[:-1] for row in rows]
        return Table(head, rows, notes=_legend(self, head))

    def records(self) -> list[dict[str, Any]]:
        """Return a row for each group and metric, with the number of rows in the group."""
        return [
            {"group": name, "n": group.n, "metric": metric} | result.as_dict()
            for name, group in self.groups.items()
            for metric, result in group.results.items()
        ]

    def headline(self) -> str:
        """Return what is worst, in a sentence."""
        title = self.results()[self.worst].metric.title
        return f"{len(self.groups)} groups by {self.heading}; {title} is worst in {self.worst}."

    def __str__(self) -> str:
        table = self.as_table()
        rows = table.rows
        lines = [f"{self.source}: {counted(len(rows), 'group')} by {self.heading}", ""]
        lines.append(format_table(table.head, rows[:PRINTED_GROUPS]))
        if len(rows) > PRINTED_GROUPS:
            lines.append(f"and {len(rows) - PRINTED_GROUPS} more groups, with smaller errors")
        lines += ["", wrap(table.notes)]
        if len(self.skipped) > PRINTED_GROUPS:
            lines += ["", f"{len(self.skipped)} groups left out: too few rows"]
        elif self.skipped:
            lines += ["", *(f"{name} left out: {reason}" for name, reason in self.skipped.items())]
        return "\n".join(lines) + left_out_text(self.broken)


# Parameters: those of `evaluate`, and what groups are and how small.
def evaluate_by(
    predictions: Predictions | Shards | Array,
    groups: GroupKind | str | Array,
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
    engine: Engine | None = None,
    skip_broken: bool = False,
    watch: Watcher | None = None,
) -> GroupedEvaluation:
    """Measure predictions within groups of rows.

    For `Shards`, groups by margin or confidence take one more pass over the files, to find where
    the groups begin.

    Args:
        predictions: a `Predictions`, the files of `Shards`, or an (N, K) array of probabilities
            (not logits).
        groups: ``"predicted"`` or ``"label"``, a group for each class; ``"margin"`` (largest minus
            second largest logit) or ``"confidence"``, a group for each quantile, with rows of equal
            value together; or an (N,) column (its name for `Shards`), a group for each distinct
            value.
        labels: (N,) true classes, with an array.
        sample_weight, clusters: as `evaluate` takes them, with an array.
        metrics: as `evaluate` takes them, the first one leads; None for `GROUP_METRICS`.
        quantiles: number of groups by margin or confidence.
        min_rows: smaller groups are left out.
        resamples: bootstrap resamples in each group, and simulated calibrated data sets; None for
            as many as `evaluate` takes.
        level: nominal coverage of the intervals.
        seed: for the resamples.
        engine, skip_broken: as `evaluate` takes them.
        watch: called with a `Progress` as files are done, and before each group with its name.

    Raises:
        PredictionsError: unusable arrays, a column of another length, or a row of a file that
            can't be used.
        UnknownMethodError: no such metric.
        InputError: unknown kind of group, no group that is large enough, or too many groups.

    Examples:
        >>> import calibrant as cb
        >>> test = cb.load_sample("test")
        >>> found = cb.evaluate_by(test, "margin", metrics=["ece"], quantiles=4, resamples=200)
        >>> [f"{group['ece'].value:.2f}" for group in found.groups.values()]  # small margins first
        ['0.11', '0.11', '0.03', '0.00']

        Of many files:

        >>> cb.write_predictions(test, "all.npz")
        >>> one = cb.Engine(workers=1)
        >>> found = cb.evaluate_by(cb.Shards("all.npz"), "predicted", resamples=200, engine=one)
        >>> found.worst  # class 3 is "cat"
        '3'
    """
    check_drawing(2 if resamples is None else resamples, level, seed)
    if isinstance(predictions, Predictions | Shards) and predictions.kind == "score":
        raise PredictionsError(f"{predictions.source}: a comparison of groups {NO_PROBABILITY}")
    metrics = GROUP_METRICS if metrics is None else metrics
    by = groups if isinstance(groups, str) else "group"
    files: dict[str, Any] = {}
    if isinstance(predictions, Shards):
        whole = (labels, sample_weight, clusters) == (None, None, None)
        if not whole or not isinstance(groups, str):
            raise InputError("files hold labels, weights and columns; name a column as the groups")
        if predictions.options.cluster is not None:
            raise InputError(
                "many files take either groups or clusters; leave out the groups (--by) or "
                "cluster (--cluster)"
            )
        options = (quantiles, metrics, seed, engine or Engine(), skip_broken, watch)
        sample, parts = groups_of_files(predictions, groups, *options)
        files = {"shards": sample.shards, "broken": sample.broken}
    else:
        predictions = checked(predictions, labels, sample_weight, clusters, "evaluate_by")
        parts = groups_in_memory(predictions, groups, quantiles)
    found: dict[str, Evaluation] = {}
    skipped: dict[str, str] = {}
    most = max((part.rows for part in parts), default=0)
    family = Family(seed)
    rows, of_rows, began = 0, sum(part.rows for part in parts), time.monotonic()
    for done, part in enumerate(parts):
        if watch is not None:
            passed = time.monotonic() - began
            watch(Progress(done, len(parts), rows, of_rows, passed, part.name))
        rows += part.rows
        if part.rows < min_rows:
            skipped[part.name] = f"{part.rows} rows are fewer than {min_rows}"
            continue
        sample = part.make()
        if isinstance(sample, str):
            skipped[part.name] = sample
            continue
        found[part.name] = evaluate_sample(sample, metrics, resamples, level, seed)
        if by != "label":
            lead = next(iter(found[part.name].results.values()))
            about = sample.of_positive() if lead.metric.of_positive else sample
            draws = about.resamples_of(most) if resamples is None else resamples
            family.add(part.name, lead, about, draws)
    if not found:
        raise InputError(f"no group has {min_rows} rows (min_rows); the largest has {most}")
    return GroupedEvaluation(
        predictions.source,
        by,
        next(iter(next(iter(found.values())).results)),
        found,
        skipped,
        *family.adjusted(),
        **files,
        members={part.name: part.members for part in parts if part.members is not None},
    )


def evaluate_labels(
    predictions: Predictions,
    *,
    metrics: Sequence[str] | str | None = None,
    min_rows: int = MIN_ROWS,
    resamples: int | None = None,
    level: float = DEFAULT_LEVEL,
    seed: int = 0,
    watch: Watcher | None = None,
) -> GroupedEvaluation:
    """Measure each of many labels by itself; `evaluate` pools them, with each row as a cluster.

    Args:
        predictions: from `Predictions.from_many_labels`.
        metrics: as `evaluate` takes them, the first one leads; None for those of the probability
            that a label is true (`LABEL_METRICS`).
        min_rows: labels with fewer rows are left out.
        resamples, level, seed: as `evaluate` takes them.
        watch: called with a `Progress` before each label.

    Raises:
        PredictionsError: the rows don't have many labels.
        InputError: what `evaluate` refuses.

    Examples:
        >>> import numpy as np
        >>> import calibrant as cb
        >>> rng = np.random.default_rng(0)
        >>> true = rng.random((2_000, 2))
        >>> labels = rng.random((2_000, 2)) < true * [1.0, 0.5]  # the second half as often
        >>> rows = cb.Predictions.from_many_labels(true, labels, label_names=["honest", "not"])
        >>> cb.evaluate_labels(rows, resamples=100).miscalibrated
        ['not']
    """
    names, index = predictions.label_names, predictions.label_index
    if names is None or index is None:
        raise PredictionsError(
            f"{predictions.source}: has no rows with many labels; make them with "
            "Predictions.from_many_labels, or read them with kind='many-labels'"
        )
    clusters = predictions.clusters
    if clusters is not None and len(np.unique(clusters * len(names) + index)) == len(index):
        clusters = None  # there is one row of each cluster, so rows of one label are independent
    rows = predictions.by_rows_given
    found = evaluate_by(
        replace(rows, clusters=clusters, grid=None, label_names=None, label_index=None),
        np.array(names)[index],
        metrics=LABEL_METRICS if metrics is None else metrics,
        min_rows=min_rows,
        resamples=resamples,
        level=level,
        seed=seed,
        watch=watch,
    )
    present = [name for name in names if name in found.groups]
    groups = dict(zip(present, sharing(found.groups[name] for name in present), strict=True))
    # A page lists rows of groups, and none of many labels.
    return replace(found, by=MANY_LABELS, groups=groups, members={})


def evidence(
    values: FloatArray | float, expected: float, rows: float, variance: float
) -> NDArray[np.float64]:
    """Return how much values of a metric speak against calibration, on a scale for all groups.

    N v h(x / v) with x the excess over `expected`, v the mean of c (1 - c) and h(u) = (1 + u)
    log(1 + u) - u: about minus the logarithm of the chance of such an excess, for metrics in which
    each row has a weight of 1 / N at most. Few errors among confident rows, which come as Poisson
    counts do, and many among unsure ones, which are nearly normal, get their due.

    Args:
        values: of the metric, any shape.
        expected: what calibrated confidences show on average; not from `values` themselves.
        rows: N, of the group.
        variance: v.

    Returns:
        As many numbers: rising in the value, 0 at `expected`.
    """
    variance = max(variance, SMALLEST_VARIANCE)
    excess = np.asarray(values, dtype=np.float64) - expected
    u = np.maximum(excess, 0.0) / variance
    exponent = rows * variance * ((1 + u) * np.log1p(u) - u)
    return np.where(excess < 0, excess, exponent)


def step_down(observed: FloatArray, honest: FloatArray) -> FloatArray:
    """Return p-values adjusted for looking at all groups.

    The chance that any calibrated group has an adjusted p-value of alpha or less is at most alpha,
    however the groups' values are distributed, if the data sets were drawn as the data were.

    Args:
        observed: (G,) one value a group, larger for worse.
        honest: (R, G) the same on R simulated data sets in which every group is honest.
    """
    order = np.argsort(-observed, kind="stable")
    # Of the groups from the i-th worst on, the largest value of each simulated data set.
    largest = np.maximum.accumulate(honest[:, order[::-1]], axis=1)[:, ::-1]
    beyond = (largest >= observed[order]).sum(axis=0)
    adjusted = np.empty(len(observed))
    adjusted[order] = np.maximum.accumulate((1 + beyond) / (1 + len(honest)))
    return adjusted


class Family:
    """Groups of rows, to be told from calibrated ones all together; one metric for all of them.

    Args:
        seed: for the calibrated data sets that are simulated.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._names: list[str] = []
        self._observed: list[FloatArray] = []
        self._honest: list[FloatArray] = []

    def add(self, name: str, result: MetricResult, sample: Sample, draws: int) -> None:
        """Take a group up, unless its metric has no floor.

        Args:
            name: of the group.
            result: of the metric on it; its floor was simulated apart from what is drawn here.
            sample: the group's rows.
            draws: calibrated data sets to simulate; metrics of whole rows may take fewer.
        """
        metric, floor = result.metric, result.floor
        if floor is None:
            return
        # A seed for each group: the same one would err in the same way on all of them.
        own = int(np.random.SeedSequence([self.seed, 1 + len(self._names)]).generate_state(1)[0])
        if isinstance(metric, RowsMetric):
            honest = sample.whole_rows([metric], draws, own)[metric.name].honest
        else:
            honest = sample.honest([metric], draws, own)[metric.name]
        assert honest is not None
        law = (floor, sample.n, sample.outcome_variance)
        self._names.append(name)
        self._observed.append(evidence(less_rounding(result.value), *law))
        self._honest.append(evidence(honest, *law))

    def adjusted(self) -> tuple[dict[str, float], float]:
        """Return each group's adjusted p-value, and the least that one could be."""
        if not self._names:
            return {}, 1.0
        draws = min(len(values) for values in self._honest)
        honest = np.stack([values[:draws] for values in self._honest], axis=1)
        p_values = step_down(np.array(self._observed), honest).tolist()
        return dict(zip(self._names, p_values, strict=True)), 1 / (1 + draws)


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
        return f"{text} No floor: even calibrated confidences don't match within a true label."
    if "floor 95 %" not in head:
        return f"{text} {metric.title} has no floor, so no group is marked."
    text += (
        " Floor 95 %: in one group alone, perfectly calibrated confidences stay below it in 95 % "
        "of cases; of many calibrated groups, one in 20 exceeds it."
    )
    together = {1: "one group alone", 2: "both groups together"}.get(count)
    together = together or f"all {count} groups together"
    if grouped.least_p > FAMILY_LEVEL:
        few = round(1 / grouped.least_p) - 1
        return f"{text} With {few} resamples no group can be marked; it takes 19 or more."
    if not grouped.miscalibrated:
        return f"{text} No group shows more than noise, at 5 % for {together}."
    return f"{text} * more than noise, at 5 % for {together} (Holm's method, simulated)."


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
