"""What a map fitted on one set of rows is worth on another: tasks, subjects, versions of a model.

Each set is split in two. A map is fitted to the first half of a set, and measured on the second
halves of all sets, so that a column holds numbers of the same rows, its own set among them. A row
``all others`` is fitted to the first halves of all sets but the one of the column.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrant.core.errors import InputError, NotApplicableError
from calibrant.core.progress import Watcher, steps
from calibrant.core.result import Result, Table
from calibrant.evaluation.evaluate import evaluate
from calibrant.evaluation.formatting import in_percent, interval_of, show
from calibrant.evaluation.results import MetricResult
from calibrant.evaluation.uncertainty import DEFAULT_LEVEL, difference_of
from calibrant.metrics.proper import TOP_NLL
from calibrant.metrics.registry import metrics_named
from calibrant.posthoc.registry import METHODS
from calibrant.predictions.predictions import Predictions

RAW, OTHERS = "as they are", "all others"
# More sets than these are told in words, not as a matrix.
WIDEST = 6
FEWEST_ROWS = 40


@dataclass(frozen=True, eq=False, repr=False)
class Transfer(Result):
    """What `transfer` found; prints as a matrix, or for many sets as a line a set.

    Attributes:
        method: what was fitted.
        metric: name of the metric.
        sets: names of the sets.
        cells: (fitted on, measured on) to the metric there; fitted on "as they are" is the scores
            without a map.
        differences: the same to the difference from the scores without a map, with its paired
            interval; below 0 is better where less is.
        left_out: sets too small to be split, or that the method couldn't be fitted to, and why.
        level: coverage of all intervals.
    """

    method: str
    metric: str
    sets: tuple[str, ...]
    cells: Mapping[tuple[str, str], MetricResult]
    differences: Mapping[tuple[str, str], tuple[float, float, float]]
    left_out: Mapping[str, str]
    level: float

    def counts(self, fitted_on: str) -> tuple[int, int, int]:
        """Return on how many other sets a map helps, harms, and neither can be told."""
        ends = [d[1:] for (f, m), d in self.differences.items() if f == fitted_on and f != m]
        helps, harms = sum(high < 0 for _, high in ends), sum(low > 0 for low, _ in ends)
        return helps, harms, len(ends) - helps - harms

    def headline(self) -> str:
        """Return how often a map of one set helps another."""
        found = np.array([self.counts(name) for name in self.sets]).sum(axis=0)
        own = [self.differences[name, name] for name in self.sets]
        return (
            f"Fitted on one set and measured on another, {self.method} lowers {self.metric} in "
            f"{found[0]} of {found.sum()} pairs and raises it in {found[1]}, beyond the "
            f"{interval_of(self.level)}. Measured on held-out rows of its own set, it lowers "
            f"{self.metric} in {sum(d[2] < 0 for d in own)} of {len(own)} sets and raises it in "
            f"{sum(d[1] > 0 for d in own)}."
        )

    def _cell(self, fitted_on: str, measured_on: str) -> str:
        found = self.cells.get((fitted_on, measured_on))
        if found is None:
            return ""
        texts = [show(found.metric, x) for x in (found.value, found.low, found.high)]
        mark = ""
        if (fitted_on, measured_on) in self.differences:
            _, low, high = self.differences[fitted_on, measured_on]
            mark = " -" if high < 0 else " +" if low > 0 else ""
        return f"{texts[0]} ({texts[1]} .. {texts[2]}){mark}"

    def as_table(self) -> Table:
        """Return the matrix; of many sets how often the map of each helps."""
        (metric,) = metrics_named([self.metric])
        unit = in_percent([metric])
        rows = (RAW, *self.sets, *([OTHERS] if len(self.sets) > 2 else []))
        if len(self.sets) <= WIDEST:
            lines = [[f, *(self._cell(f, m) for m in self.sets)] for f in rows]
            notes = (
                f"{self.metric} with its {interval_of(self.level)}. {unit} - and +: lower and "
                "higher than without a map, beyond the interval of the paired difference."
            )
            return Table(["fitted on", *self.sets], lines, notes=notes)
        lines: list[list[str]] = []
        for name in (*self.sets, OTHERS):
            counts = [str(count) for count in self.counts(name)]
            own = self._cell(RAW, name) if name != OTHERS else ""
            with_own = self._cell(name, name) if name != OTHERS else ""
            lines.append([name, own, with_own, *counts])
        head = ["fitted on", RAW, "own map", "helps", "harms", "can't tell"]
        notes = (
            f"{self.metric} with its {interval_of(self.level)} on the set itself, and on how many "
            f"other sets its map lowers and raises {self.metric}. {unit}"
        )
        return Table(head, lines, notes=notes)

    def below(self) -> tuple[str, ...]:
        """Return which sets were left out, and why."""
        return tuple(f"left out {name}: {why}" for name, why in self.left_out.items())

    def records(self) -> list[dict[str, Any]]:
        """Return a row a cell."""
        found: list[dict[str, Any]] = []
        for (fitted_on, measured_on), cell in self.cells.items():
            row: dict[str, Any] = {"fitted_on": fitted_on, "measured_on": measured_on}
            row |= {self.metric: cell.value, "low": cell.low, "high": cell.high}
            ends = self.differences.get((fitted_on, measured_on), (0.0, 0.0, 0.0))
            row |= dict(zip(("difference", "difference_low", "difference_high"), ends, strict=True))
            found.append(row)
        return found

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON takes it."""
        return {
            "method": self.method,
            "metric": self.metric,
            "sets": list(self.sets),
            "level": self.level,
            "cells": self.records(),
            "left_out": dict(self.left_out),
        }


# Parameters: sets, what is fitted, and how `evaluate` draws.
def transfer(
    sets: Mapping[str, Predictions],
    method: str = "temperature",
    *,
    metric: str | None = None,
    resamples: int = 500,
    level: float = DEFAULT_LEVEL,
    seed: int = 0,
    watch: Watcher | None = None,
) -> Transfer:
    """Fit a method to each of several sets, and measure it on all.

    Args:
        sets: rows by name, of one form and as many classes.
        method: name of the method; one without numbers a class, as classes of questions with
            choices are positions.
        metric: name of a metric for which lower is better; None for the negative log-likelihood,
            of confidences that of being right.
        resamples: bootstrap resamples behind each interval.
        level: coverage of the intervals.
        seed: for splits and resamples.
        watch: called with a `Progress` before a set is fitted to.

    Raises:
        InputError: fewer than two sets of at least 40 rows, or no such metric.
        UnknownMethodError: no such method.

    Examples:
        >>> import calibrant as cb
        >>> from calibrant.comparison.transfer import transfer
        >>> draw = cb.synthetic.tempered
        >>> sets = {
        ...     "a": draw(2000, 4, temperature=2.0, seed=0).predictions,
        ...     "b": draw(2000, 4, temperature=2.0, seed=1).predictions,
        ... }
        >>> found = transfer(sets, resamples=100)
        >>> found.counts("a")  # the map of one mends the other
        (1, 0, 0)
    """
    if len(sets) < 2:
        raise InputError(f"transfer needs at least two sets of {FEWEST_ROWS} rows")
    if metric is None:
        metric = TOP_NLL.name if next(iter(sets.values())).kind == "toplabel" else "nll"
    (measured,) = metrics_named([metric])
    if not measured.lower_is_better:
        raise InputError(f"transfer takes a metric for which lower is better, not {metric}")
    kind = METHODS.named(method)
    left_out = {
        n: f"{r.n} rows, and {FEWEST_ROWS} are needed" for n, r in sets.items() if r.n < FEWEST_ROWS
    }
    halves = {n: r.split(0.5, seed) for n, r in sets.items() if n not in left_out}
    if len(halves) < 2:
        raise InputError(f"transfer needs at least two sets of {FEWEST_ROWS} rows")
    options: Any = {"metrics": [metric], "resamples": resamples, "level": level, "seed": seed}
    tests = {name: test for name, (_, test) in halves.items()}
    cells: dict[tuple[str, str], MetricResult] = {}
    for name, test in tests.items():
        found = evaluate(test, **options)
        if metric in found.skipped:
            raise InputError(f"{metric} can't be measured here: {found.skipped[metric]}")
        cells[RAW, name] = found[metric]

    begin = steps(watch, len(halves) + (len(tests) if len(tests) > 2 else 0))

    def measure(fitted_on: str, rows: Predictions, on: list[str]) -> None:
        begin(f"fitting to {fitted_on}")
        fitted = kind().fit_predictions(rows)
        for name in on:
            after = fitted.apply_predictions(tests[name])
            cells[fitted_on, name] = evaluate(after, **options)[metric]

    for name, (fit, _) in halves.items():
        try:
            measure(name, fit, list(tests))
        except NotApplicableError as reason:
            left_out[name] = str(reason)
    for name in tests if len(tests) > 2 else ():
        others = [fit for other, (fit, _) in halves.items() if other != name]
        pooled = Predictions.concatenate(others, source=OTHERS)
        measure(OTHERS, pooled, [name])
    return Transfer(
        method,
        metric,
        tuple(name for name in tests if name not in left_out),
        cells,
        {
            key: _difference(cells[RAW, key[1]], cell, level)
            for key, cell in cells.items()
            if key[0] != RAW
        },
        left_out,
        level,
    )


def _difference(
    before: MetricResult, after: MetricResult, level: float
) -> tuple[float, float, float]:
    """Return a difference with the interval of its paired resamples."""
    drawn = difference_of(after.replicates, before.replicates)
    ends = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return after.value - before.value, float(ends[0]), float(ends[1])
