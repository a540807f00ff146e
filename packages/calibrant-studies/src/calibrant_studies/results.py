"""What a study found: its cells gathered over seeds, the best of each group, and the published."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from calibrant.evaluation.over_data_sets import ranks_within, t_interval
from calibrant_studies.cells import Cell
from calibrant_studies.declaration import Study
from calibrant_studies.kept import as_kept
from calibrant_studies.kinds import kind_named
from calibrant_studies.kinds.base import Measure
from calibrant_studies.marks import competing, marked
from calibrant_studies.needing import Missing
from calibrant_studies.published import Published
from calibrant_studies.rendering import as_text

# How much of the noise counts, and the standard deviations of normal noise that hold as much: a
# paper doesn't say of how many seeds its spread is.
_LEVEL, _NORMAL = 0.95, 1.96


class Ran(NamedTuple):
    """A cell with its result, and whether that was kept from before."""

    cell: Cell
    result: Mapping[str, Any]
    reused: bool


class Failed(NamedTuple):
    """A cell that could not be computed, and why, in a sentence."""

    cell: Cell
    error: str


@dataclass(frozen=True)
class Estimate:
    """One number of a point of the grid, over seeds.

    Attributes:
        at: axis to value.
        measure: what it is.
        values: one a seed; one in all where seeds change nothing.
        low, high: ends of the interval, means over seeds; None where there is none.
        floor, floor_95: what honest confidences would show on average and in 95 % of cases.
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
    level: float = _LEVEL

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
        """The value less the published one, in the paper's units."""
        if self.published is None:
            return None
        return self.measure.scale * self.value - self.published.value

    @property
    def within_noise(self) -> bool | None:
        """Whether the published value lies within the noise of both; None where neither is known.

        Nor can it be said where the interval was asked for at another level than 95 %.

        Noise is the distance to the end of the interval on that side, half the t interval of the
        mean over seeds, and 1.96 times the spread that the paper prints, taken together as
        independent, and half a digit of rounding.
        """
        if self.published is None or self.difference is None or self.level != _LEVEL:
            return None
        end = self.low if self.difference > 0 else self.high
        parts = [] if end is None else [self.measure.scale * (self.value - end)]
        _, over_seeds = t_interval(np.array(self.values), _LEVEL)
        if over_seeds is not None:
            parts.append(self.measure.scale * (over_seeds - self.value))
        if self.published.spread is not None:
            parts.append(_NORMAL * self.published.spread)
        if not parts:
            return None
        return abs(self.difference) <= math.hypot(*parts) + self.published.half_digit


@dataclass(frozen=True)
class StudyResult:
    """What a run of a study came to.

    Attributes:
        study: what was asked.
        ran: cells with their results.
        missing: inputs that weren't there.
        failed: cells that could not be computed.
        left_out: what was given and no cell takes, with reasons.
    """

    study: Study
    ran: Sequence[Ran]
    missing: Sequence[Missing]
    failed: Sequence[Failed]
    left_out: Sequence[str] = ()

    @property
    def computed(self) -> int:
        """How many cells were computed now."""
        return sum(not ran.reused for ran in self.ran)

    @property
    def measures(self) -> Mapping[str, Measure]:
        """What the cells measure, by name."""
        return kind_named(self.study.kind).measures

    @cached_property
    def estimates(self) -> list[Estimate]:
        """Every number that the study shows, gathered over seeds, with marks."""
        points: dict[tuple[tuple[str, str], ...], list[Ran]] = {}
        for ran in self.ran:
            points.setdefault(tuple(ran.cell.at.items()), []).append(ran)
        found = [
            estimate
            for name in self.study.metrics
            for at, of_point in points.items()
            if (estimate := _estimate(self.study, dict(at), self.measures[name], of_point))
            is not None
        ]
        return marked(found, self.study.compare)

    def ranks(self, metric: str) -> dict[str, float]:
        """Return each competitor's mean rank, 1 for the best, over groups that hold all of them."""
        axis = self.study.compare
        if axis is None:
            return {}
        groups = competing([e for e in self.estimates if e.measure.name == metric], axis)
        names = list(dict.fromkeys(e.at[axis] for group in groups for e in group))
        whole = [{e.at[axis]: e.measure.cost(e.value) for e in group} for group in groups]
        costs = [[group[name] for name in names] for group in whole if len(group) == len(names)]
        if not costs or len(names) < 2:
            return {}
        means = ranks_within(np.array(costs)).mean(axis=0)
        return dict(zip(names, means.tolist(), strict=True))

    def records(self) -> list[dict[str, Any]]:
        """Return a row for each number, in the units that tables have."""
        return [
            {
                **estimate.at,
                "metric": estimate.measure.name,
                "value": estimate.measure.scale * estimate.value,
                "spread": _scaled(estimate.measure, estimate.spread),
                "seeds": len(estimate.values),
                "low": _scaled(estimate.measure, estimate.low),
                "high": _scaled(estimate.measure, estimate.high),
                "floor": _scaled(estimate.measure, estimate.floor),
                "floor_95": _scaled(estimate.measure, estimate.floor_95),
                "best": estimate.best,
                "may_be_best": estimate.may_be_best,
                "published": None if estimate.published is None else estimate.published.value,
                "difference": estimate.difference,
                "within_noise": estimate.within_noise,
            }
            for estimate in self.estimates
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON takes it."""
        kind = kind_named(self.study.kind)
        return {
            "name": self.study.name,
            "title": self.study.title,
            "paper": self.study.paper,
            "cells": len(self.ran) + len(self.failed),
            "computed": self.computed,
            "missing": [missing._asdict() for missing in self.missing],
            "left_out": list(self.left_out),
            "failed": [
                {**failed.cell.at, "seed": failed.cell.seed, "error": failed.error}
                for failed in self.failed
            ],
            "ranks": {metric: self.ranks(metric) for metric in self.study.metrics},
            "results": self.records(),
            "footnotes": list(self.study.footnotes),
            "kept": as_kept(self.study.name, kind.version, ((r.cell, r.result) for r in self.ran)),
            **kind.document(self),
        }

    def __str__(self) -> str:
        return as_text(self)


def _scaled(measure: Measure, value: float | None) -> float | None:
    return None if value is None else measure.scale * value


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
