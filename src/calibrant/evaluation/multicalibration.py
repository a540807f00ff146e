"""Multicalibration: which of many groups, of columns and of pairs of columns, is least honest.

Groups overlap: a row is of an age and of a region, and of both. Each group's rows are sorted by
confidence; its error is the range of their residual curve, the largest minus the smallest of

    D_k = (1 / W) sum_{i <= k} w_i (c_i - a_i),   D_0 = 0,   taken between unlike confidences,

which is the largest gap of any stretch of confidences, over all of the group's weight (Kuiper's
statistic; ECCE of Arrieta-Ibarra et al.). MCGrad's metric has it in units of its spread under
calibration, sigma^2 = sum w^2 c (1 - c) / W^2, and so does the table here. But a confident group
with hardly an error has many sigmas by a single one. So groups of any size and confidence are
compared by the exponent of Bennett's inequality, as `evaluate_by` does (`evidence`).

The largest of many numbers is large by noise alone. So outcomes are simulated as calibrated
confidences would have them, the same for all groups that share a row, and each group is held
against the largest of all in each simulated set (Westfall and Young's steps, `step_down`): the
p-values are family-wise, and know how the groups overlap.

References:
    Arrieta-Ibarra et al.: Metrics of calibration for probabilistic predictions. JMLR 2022. Guy,
    Haimovich, Linder, Okati, Perini, Tax, Tygert: Measuring multi-calibration. arXiv 2506.11251.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import Array, FloatArray, IntArray, to_numpy
from calibrant.core.errors import InputError, PredictionsError
from calibrant.core.result import Drawn, Table
from calibrant.core.text import counted, wrap
from calibrant.evaluation.formatting import percent
from calibrant.evaluation.grouping import GroupKind, grouping
from calibrant.evaluation.groups import (
    MIN_ROWS,
    PRINTED_GROUPS,
    QUANTILES,
    evidence,
    step_down,
)
from calibrant.evaluation.sample import RowSample
from calibrant.evaluation.uncertainty import (
    DEFAULT_LEVEL,
    FAMILY_LEVEL,
    check_drawing,
    default_resamples,
    less_rounding,
)
from calibrant.metrics.resampling import HonestDraws
from calibrant.predictions.predictions import NO_PROBABILITY, Predictions
from calibrant.predictions.scoring import score_rows
from calibrant.scale.shards import Shards

# Columns of more values than this are no groups; their pairs would be too many.
MOST_VALUES = 200
# Numbers of simulated outcomes at a time.
BLOCK = 1 << 22
AND = " & "
EVERYTHING = "all rows"


@dataclass(frozen=True)
class GroupError:
    """How far one group is from honest.

    Attributes:
        group: its name, as in "age=old & region=north".
        n: number of rows.
        confidence: their mean confidence, or probability of the positive class.
        accuracy: share of right, or positive, rows.
        error: range of the residual curve, a fraction.
        sigmas: the same in units of its spread under calibration.
        p_adjusted: chance that any calibrated group of all would have as many.
    """

    group: str
    n: int
    confidence: float
    accuracy: float
    error: float
    sigmas: float
    p_adjusted: float


@dataclass(frozen=True, eq=False, repr=False)
class Multicalibration(Drawn):
    """What `multicalibration` found; prints the worst groups.

    Attributes:
        source: where the rows came from; by: names of the columns.
        groups: the worst first; the one of all rows is among them.
        left_out: groups that have too few rows, by name with their number.
        draws: simulated calibrated data sets.

    Examples:
        >>> import numpy as np
        >>> import calibrant as cb
        >>> rng = np.random.default_rng(0)
        >>> p, (old, far) = rng.uniform(size=4000), rng.integers(2, size=(2, 4000))
        >>> right = rng.uniform(size=4000) < p + np.where(old == far, 0.1, -0.1) * (1 - p) * p * 4
        >>> rows = cb.Predictions.from_binary(p, right, kind="prob")
        >>> found = cb.metrics.multicalibration(rows, {"old": old, "far": far})
        >>> found.worst.group in {f"old={a} & far={b}" for a in (0, 1) for b in (0, 1)}
        True
        >>> {each.group for each in found.miscalibrated}.isdisjoint({"old=0", "far=1", "all rows"})
        True
    """

    source: str
    by: tuple[str, ...]
    groups: tuple[GroupError, ...]
    left_out: dict[str, int]
    draws: int
    binary: bool = field(default=False)

    @property
    def worst(self) -> GroupError:
        """The group that is furthest from calibrated, in units of its noise."""
        return self.groups[0]

    @property
    def miscalibrated(self) -> list[GroupError]:
        """Groups that noise can't explain, at 5 % for all of them together."""
        return [each for each in self.groups if each.p_adjusted <= FAMILY_LEVEL]

    def headline(self) -> str:
        """Return the worst group, and whether it is more than noise."""
        worst, many = self.worst, counted(len(self.groups), "group")
        said = "probability" if self.binary else "confidence"
        true = "share" if self.binary else "accuracy"
        text = (
            f"The worst of {many} is {worst.group}: error {percent(worst.error)} points "
            f"({worst.sigmas:.1f} sigma; p = {worst.p_adjusted:.2g} among all groups), mean {said} "
            f"{percent(worst.confidence)} %, {true} {percent(worst.accuracy)} %."
        )
        if not self.miscalibrated:
            return f"{text} No group shows more than noise."
        marked = counted(len(self.miscalibrated), "group")
        verb = "shows" if len(self.miscalibrated) == 1 else "show"
        return f"{text} {marked} {verb} more than noise."

    def as_table(self) -> Table:
        """Return the table of all groups, the worst first."""
        said = ["probability", "share"] if self.binary else ["confidence", "accuracy"]
        lines = [
            [
                each.group,
                str(each.n),
                percent(each.confidence),
                percent(each.accuracy),
                percent(each.error) + ("*" if each.p_adjusted <= FAMILY_LEVEL else ""),
                f"{each.sigmas:.1f}",
                f"{each.p_adjusted:.3f}",
            ]
            for each in self.groups
        ]
        notes = (
            f"Error: the sum of {said[0]} minus outcome over the worst range of {said[0]}, divided "
            "by all rows of the group, in points (Kuiper's statistic). Sigma: the error in units "
            "of its noise. p: the probability that, if all groups are calibrated, any of them has "
            "as many sigma, from "
            f"{counted(self.draws, 'simulated data set')}. * more than noise, at 5 % for all "
            "groups together."
        )
        return Table(["group", "rows", *said, "error", "sigma", "p"], lines, notes=notes)

    def records(self) -> list[dict[str, Any]]:
        """Return a row a group."""
        return [vars(each).copy() for each in self.groups]

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON takes it; fractions, not percent."""
        return {
            "file": self.source,
            "by": list(self.by),
            "groups": self.records(),
            "miscalibrated": [each.group for each in self.miscalibrated],
            "left_out": self.left_out,
            "draws": self.draws,
        }

    def __str__(self) -> str:
        table = self.as_table()
        shown = Table(table.head, table.rows[:PRINTED_GROUPS])
        lines = [wrap(self.headline()), shown.to_text()]
        if len(table.rows) > PRINTED_GROUPS:
            lines.append(f"and {len(table.rows) - PRINTED_GROUPS} more groups, with smaller errors")
        lines.append(wrap(table.notes))
        if self.left_out:
            few = [f"{name} ({n})" for name, n in list(self.left_out.items())[:PRINTED_GROUPS]]
            more = len(self.left_out) - len(few)
            rest = f" and {more} more" if more else ""
            lines.append(wrap(f"Left out, with too few rows: {', '.join(few)}{rest}."))
        return "\n\n".join(lines)


# Parameters: the rows, what groups are and how small, and the draws.
def multicalibration(
    predictions: Predictions | Shards,
    groups: Mapping[str, Array | str],
    *,
    pairs: bool = True,
    min_rows: int = MIN_ROWS,
    draws: int | None = None,
    seed: int = 0,
) -> Multicalibration:
    """Find the worst calibrated group of rows among the groups of all columns.

    For binary predictions it measures the probability of the positive class, otherwise the
    confidence in the predicted class.

    Args:
        predictions: with labels. If rows have clusters, simulated outcomes within a cluster
            correlate as the measured ones do. For many files one number for each row is kept in
            memory, with its groups.
        groups: columns by name: (N,) values, or what `evaluate_by` takes for a kind of group, such
            as ``"predicted"``. True labels can't be groups, because a model doesn't know them. For
            many files any other text is the name of a column.
        pairs: whether groups of two columns are included.
        min_rows: smaller groups are left out, and named.
        draws: simulated calibrated data sets; None for 1 000, fewer of more than 100 000 rows.
        seed: for these.

    Raises:
        InputError: no column, too many values in one, or no group that is large enough.
        PredictionsError: a column of another length, or scores that are no probabilities.

    Examples:
        >>> import calibrant as cb
        >>> test = cb.load_sample("test")
        >>> found = cb.metrics.multicalibration(test, {"class": "predicted"}, draws=200)
        >>> found.worst.group, found.groups[1].group  # "cat"
        ('all rows', 'class=3')
    """
    check_drawing(2 if draws is None else draws, DEFAULT_LEVEL, seed)
    if isinstance(predictions, Shards):
        predictions, groups = _in_memory(predictions, groups)
    if predictions.kind == "score":
        raise PredictionsError(f"{predictions.source}: a comparison of groups {NO_PROBABILITY}")
    if not groups:
        raise InputError("groups must name at least one column, as in {'age': age}")
    members = {name: _members(predictions, name, of) for name, of in groups.items()}
    kept = slice(None) if predictions.weights is None else predictions.weights > 0
    members = {name: (names, of[kept]) for name, (names, of) in members.items()}
    sample = RowSample.of(predictions)
    if sample.binary:
        sample = sample.of_positive()
    rows = sample.rows
    weight = np.ones(rows.n) if rows.weight is None else rows.weight
    found, left_out = _groups(members, rows.order, pairs, min_rows)
    draws = default_resamples(rows.n) if draws is None else draws
    confidence = rows.confidence
    spread = confidence * (1 - confidence)
    totals = np.array([float(weight[at].sum()) for at in found.values()])
    # What no calibrated draw could move has no noise to be compared with.
    sums = np.array([max(float(weight[at] ** 2 @ spread[at]), 1e-12) for at in found.values()])
    ends = {n: np.append(np.diff(confidence[at]) > 0, True) for n, at in found.items()}

    def ranges(residual: FloatArray) -> FloatArray:
        """Return the (B, G) errors of (B, N) weighted residuals."""
        each = [_range(residual[:, at], ends[n]) for n, at in found.items()]
        return np.stack(each, axis=1) / totals

    observed = ranges((weight * (confidence - rows.correct))[None, :])[0]
    drawing, rng = HonestDraws.like(rows, sample.groups), np.random.default_rng(seed)
    honest = list[FloatArray]()
    step = max(1, BLOCK // rows.n)
    for first in range(0, draws, step):
        outcomes = drawing.outcomes(rng, confidence, min(step, draws - first))
        honest.append(ranges(weight * (confidence - outcomes)))
    simulated = np.concatenate(honest)
    parts = [weight[at] for at in found.values()]
    laws = zip(
        simulated.mean(axis=0).tolist(),
        [float(part.sum() ** 2 / (part @ part)) for part in parts],
        (np.array([float(weight[at] @ spread[at]) for at in found.values()]) / totals).tolist(),
        strict=True,
    )
    # Rounding mustn't decide between a value and itself.
    scaled = [
        (evidence(less_rounding(observed[g]), *law), evidence(simulated[:, g], *law))
        for g, law in enumerate(laws)
    ]
    against = np.array([float(value) for value, _ in scaled])
    p_values = step_down(against, np.stack([values for _, values in scaled], axis=1))
    errors = [
        GroupError(
            name,
            len(at),
            float(weight[at] @ confidence[at] / totals[g]),
            float(weight[at] @ rows.correct[at] / totals[g]),
            float(observed[g]),
            float(observed[g] * totals[g] / sums[g] ** 0.5),
            float(p_values[g]),
        )
        for g, (name, at) in enumerate(found.items())
    ]
    order = sorted(range(len(errors)), key=lambda g: (errors[g].p_adjusted, -against[g]))
    return Multicalibration(
        predictions.source,
        tuple(groups),
        tuple(errors[g] for g in order),
        left_out,
        draws,
        sample.binary,
    )


def _in_memory(
    shards: Shards, groups: Mapping[str, Array | str]
) -> tuple[Predictions, dict[str, Array | str]]:
    """Return one number a row of many files, and the columns that groups are of."""
    shards.refuse_clusters()

    def kept(rows: Predictions) -> Predictions:
        if rows.n_classes is None or rows.kind == "score":
            return rows
        weights = rows.weights
        if rows.binary:
            said = to_numpy(rows.positive_probs)
            return Predictions.from_binary(said, rows.labels, kind="prob", sample_weight=weights)
        scored = score_rows(rows)
        return Predictions.from_confidence(
            scored.confidence, scored.predicted, rows.labels, sample_weight=weights
        )

    names = {
        name: of
        for name, of in groups.items()
        if isinstance(of, str) and of not in get_args(GroupKind)
    }
    if any(isinstance(of, str) and of == "margin" for of in groups.values()):
        raise InputError(
            f"{shards.source}: margins aren't kept for many files; take 'confidence', or one file"
        )
    parts, read = list[Predictions](), dict[str, list[NDArray[Any]]]()
    for shard in shards:
        parts += [kept(batch.predictions) for batch in shard.batches()]
        for name, column in names.items():
            own = [batch.column for batch in shard.batches(column, checked=True)]
            read.setdefault(name, []).extend(each for each in own if each is not None)
    columns = {name: np.concatenate(values) for name, values in read.items()}
    return Predictions.concatenate(parts, source=shards.source), {**groups, **columns}


def _members(predictions: Predictions, name: str, of: Array | str) -> tuple[list[str], IntArray]:
    """Return the names of a column's groups, and the (N,) group of each row."""
    if isinstance(of, str) and of == "label":
        raise InputError(
            "groups by true label have no floor: within a true label even calibrated "
            "confidences differ from the accuracy; take 'predicted'"
        )
    names, member = grouping(predictions, of, QUANTILES)
    if len(names) > MOST_VALUES:
        raise InputError(
            f"'{name}' has {len(names)} values, and at most {MOST_VALUES} can be groups; merge "
            "values, such as ages into decades"
        )
    return [f"{name}={each}" for each in names], member


def _groups(
    members: Mapping[str, tuple[list[str], IntArray]],
    order: IntArray,
    pairs: bool,
    min_rows: int,
) -> tuple[dict[str, NDArray[np.intp]], dict[str, int]]:
    """Return the places of each group's rows among those sorted by confidence; and small groups."""
    found: dict[str, NDArray[np.intp]] = {}
    small: dict[str, int] = {}

    def take(names: list[str], member: IntArray) -> None:
        sizes = np.bincount(member, minlength=len(names))
        by_group = np.split(np.argsort(member, kind="stable"), np.cumsum(sizes)[:-1])
        for name, at in zip(names, by_group, strict=True):
            if 0 < len(at) < min_rows:
                small[name] = len(at)
            elif len(at):
                found[name] = at

    take([EVERYTHING], np.zeros(len(order), dtype=np.int64))
    for names, member in members.values():
        take(names, member[order])
    for first, second in combinations(members.values(), 2) if pairs else ():
        names = [f"{a}{AND}{b}" for a in first[0] for b in second[0]]
        take(names, (first[1] * len(second[0]) + second[1])[order])
    if not found:
        raise InputError(f"there are only {len(order)} rows, and a group needs at least {min_rows}")
    return found, small


def _range(residual: FloatArray, ends: NDArray[np.bool_]) -> FloatArray:
    """Return (B,) ranges of the running sums of (B, n) residuals, at the ends of ties and at 0."""
    sums = np.cumsum(residual, axis=1)[:, ends]
    return np.maximum(sums.max(axis=1), 0.0) - np.minimum(sums.min(axis=1), 0.0)
