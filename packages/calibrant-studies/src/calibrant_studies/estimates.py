"""The numbers of a study: gathered over seeds, the best of each group, and paired differences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from calibrant.core.arrays import FloatArray
from calibrant.evaluation.best_set import t_interval
from calibrant_studies.cells import CellResults, Ran
from calibrant_studies.declaration import Published, Study
from calibrant_studies.kinds import kind_named
from calibrant_studies.kinds.base import Measure
from calibrant_studies.significance import LEVEL, Difference, may_be_best_over_seeds, paired

# The standard deviations of normal noise that hold 95 %: a paper doesn't say from how many seeds
# its spread is.
_NORMAL = 1.96
# With fewer, the scatter of seeds is known too badly to say whether a published value differs.
FEWEST_SEEDS = 3


@dataclass(frozen=True)
class Estimate:
    """One number of a point of the grid, over seeds.

    Attributes:
        at: axis to value.
        measure: what it is.
        values: one a seed; one in all where seeds change nothing.
        low, high: ends of the interval, means over seeds; None where there is none.
        floor, floor_95: what calibrated confidences would show on average and in 95 % of cases.
        replicates: R on resamples for each seed; empty where there are none.
        pairing: what they are paired by.
        published: the paper's number, or None.
        best: whether it is the best of those that compete.
        may_be_best: whether it may be; None where that can't be said.
        of_seed: seed to the place of its value in `values`; what seeds don't change has one.
        level: of the interval.
    """

    at: Mapping[str, str]
    measure: Measure
    values: tuple[float, ...]
    low: float | None
    high: float | None
    floor: float | None
    floor_95: float | None
    replicates: tuple[tuple[float, ...], ...]
    pairing: tuple[str, ...]
    published: Published | None
    best: bool = False
    may_be_best: bool | None = None
    of_seed: Mapping[int, int] = field(default_factory=dict[int, int])
    level: float = LEVEL

    @property
    def value(self) -> float:
        """The mean over seeds."""
        # Not the sum of equal values over their number, which may differ in the last digit.
        first = self.values[0]
        return first + sum(value - first for value in self.values) / len(self.values)

    @property
    def spread(self) -> float | None:
        """The standard deviation over seeds; None where there is one value."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else None

    @property
    def difference(self) -> float | None:
        """The value minus the published one, in the paper's units."""
        if self.published is None:
            return None
        return self.measure.scale * self.value - self.published.value

    @property
    def difference_ends(self) -> tuple[float, float] | None:
        """The ends of the difference's interval; None where nothing is known of either's noise.

        Nor is there one where intervals were asked for at another level than 95 %.

        It reaches as far as the end of the own interval on that side, half the t interval of the
        mean over seeds, and 1.96 times the spread that the paper prints, taken together as
        independent, and half a digit of rounding.
        """
        if self.published is None or self.difference is None or self.level != LEVEL:
            return None
        _, over_seeds = t_interval(np.array(self.values), LEVEL)
        shared = [] if over_seeds is None else [self.measure.scale * (over_seeds - self.value)]
        if self.published.spread is not None:
            shared.append(_NORMAL * self.published.spread)
        ends: list[float] = []
        for sign, end in ((-1, self.low), (1, self.high)):
            parts = [] if end is None else [self.measure.scale * (end - self.value)]
            if not parts and not shared:
                return None
            reach = math.hypot(*parts, *shared) + self.published.half_digit
            ends.append(self.difference + sign * reach)
        return ends[0], ends[1]

    @property
    def verdict(self) -> str:
        """Whether it differs from the published value; "" where there is none.

        The scatter of fewer than three seeds is known too badly to say.
        """
        if self.published is None:
            return ""
        if self.difference_ends is None or len(self.values) < FEWEST_SEEDS:
            return "undecided"
        low, high = self.difference_ends
        return "may be equal" if low <= 0 <= high else "differs"


def estimates_of(result: CellResults) -> list[Estimate]:
    """Return every number that a study shows, gathered over seeds, with marks."""
    study = result.study
    measures = kind_named(study.kind).measures
    points: dict[tuple[tuple[str, str], ...], list[Ran]] = {}
    for ran in result.ran:
        points.setdefault(tuple(ran.cell.at.items()), []).append(ran)
    found = [
        estimate
        for name in study.metrics
        for at, of_point in points.items()
        if (estimate := _estimate(study, dict(at), measures[name], of_point)) is not None
    ]
    return marked(found, study.compare)


def _estimate(
    study: Study, at: Mapping[str, str], measure: Measure, ran: Sequence[Ran]
) -> Estimate | None:
    """Return the number of a point, or None where none of its cells has it."""
    # Cells of seeds that change nothing are one.
    distinct = {id(each.result): each.result for each in ran}
    found = [
        (result, result["values"][measure.name])
        for result in distinct.values()
        if result["values"].get(measure.name, {}).get("value") is not None
    ]
    if not found:
        return None

    def mean(key: str) -> float | None:
        numbers = [each.get(key) for _, each in found]
        return None if None in numbers else sum(numbers) / len(numbers)

    published = study.published_at(at, measure.name)
    places = {id(result): place for place, (result, _) in enumerate(found)}
    drawn = [result.get("replicates", {}).get(measure.name, ()) for result, _ in found]
    same = len({len(each) for each in drawn}) == 1
    return Estimate(
        at,
        measure,
        tuple(each["value"] for _, each in found),
        mean("low"),
        mean("high"),
        mean("floor"),
        mean("floor_95"),
        tuple(tuple(each) for each in drawn) if same and drawn[0] else (),
        tuple(sorted({str(result.get("pairing")) for result, _ in found})),
        None if any(result.get("apart") for result, _ in found) else published,
        of_seed={r.cell.seed: places[id(r.result)] for r in ran if id(r.result) in places},
        level=kind_named(study.kind).level(ran[0].cell),
    )


def competing(estimates: Sequence[Estimate], axis: str) -> list[list[Estimate]]:
    """Return the estimates of one metric that compete: alike in all but one axis."""
    groups: dict[tuple[Any, ...], list[Estimate]] = {}
    for estimate in estimates:
        key = (estimate.measure.name, *((k, v) for k, v in estimate.at.items() if k != axis))
        groups.setdefault(key, []).append(estimate)
    return list(groups.values())


def marked(estimates: list[Estimate], axis: str | None) -> list[Estimate]:
    """Return the estimates with the best of each group marked, and those that may be it."""
    if axis is None:
        return estimates
    marks: dict[int, tuple[bool, bool | None]] = {}
    for group in competing(estimates, axis):
        if len(group) < 2 or group[0].measure.better == "neither":
            continue
        costs = np.array([e.measure.cost(e.value) for e in group])
        best = int(np.argmin(costs))
        may: Sequence[bool | None] = [None] * len(group)
        together = _together(group)
        if together is not None:
            sign = -1.0 if group[0].measure.better == "high" else 1.0
            values, replicates = (sign * each for each in together)
            may = may_be_best_over_seeds(values, replicates, LEVEL).tolist()
        for i, estimate in enumerate(group):
            marks[id(estimate)] = (i == best, may[i])
    return [
        replace(e, best=best, may_be_best=may)
        for e in estimates
        for best, may in [marks.get(id(e), (False, None))]
    ]


def _together(group: Sequence[Estimate]) -> tuple[FloatArray, FloatArray] | None:
    """Return (M, S) values and (M, S, R) replicates, or None where they can't be paired.

    What doesn't depend on the seed is the same for all of them. Where some seeds of some are
    missing, what stands side by side would be of different seeds.
    """
    if len({frozenset(e.of_seed) for e in group}) > 1:
        return None
    seeds = max(len(e.replicates) for e in group)
    sizes = {len(each) for e in group for each in e.replicates}
    alike = all(len(e.replicates) in (1, seeds) for e in group) and len(sizes) == 1
    if not alike or len({e.pairing for e in group}) != 1:
        return None
    values = np.array([np.broadcast_to(e.values, (seeds,)) for e in group])
    return values, np.array([np.broadcast_to(e.replicates, (seeds, *sizes)) for e in group])


class Pair(NamedTuple):
    """Two competitors at one point of the grid.

    Attributes:
        rest: where, as axis to value, without the axis of the competitors.
        words: the one and the other.
        found: the difference in each metric; None where results aren't on the same resamples.
    """

    rest: dict[str, str]
    words: str
    found: dict[Measure, Difference | None]


def all_pairs(result: CellResults) -> Iterator[Pair]:
    """Yield each competitor with each of those that the study sets it against, point by point."""
    study, axis = result.study, result.study.compare
    measures = kind_named(study.kind).measures
    metrics = [measures[name] for name in study.metrics]
    points: dict[tuple[tuple[str, str], ...], dict[str, list[Ran]]] = {}
    for ran in result.ran if axis is not None else ():
        rest = tuple((key, name) for key, name in ran.cell.at.items() if key != axis)
        points.setdefault(rest, {}).setdefault(ran.cell.at[str(axis)], []).append(ran)
    for rest, group in points.items():
        for rival in study.against:
            for name, ours in group.items():
                theirs = group.get(rival, [])
                if name == rival or name in study.against[: study.against.index(rival)]:
                    continue
                if [r.cell.seed for r in ours] != [r.cell.seed for r in theirs]:
                    continue
                a, b = ([ran.result for ran in of] for of in (ours, theirs))
                found = {measure: paired(a, b, measure.name) for measure in metrics}
                yield Pair(dict(rest), f"{name} - {rival}", found)
