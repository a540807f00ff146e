"""Compare methods over several data sets: means, ranks, and what the ranks can tell.

On one data set rows are the sample, and the paired bootstrap says what they can tell. Here the data
sets are the sample: each gives one value a method, the mean over its seeds, and a method is better
if it is better on data sets in general. Seeds of one data set share their rows, so their spread is
shown and is no ground for a test.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from calibrant.comparison.compare import compare
from calibrant.comparison.comparison import Comparison
from calibrant.core.arrays import FloatArray
from calibrant.core.errors import InputError
from calibrant.core.progress import Watcher, part_of
from calibrant.core.result import Result, Table
from calibrant.core.text import counted, listed, wrap
from calibrant.evaluation.best_set import (
    critical_difference,
    friedman_p,
    ranks_within,
    signed_rank_p,
    t_interval,
)
from calibrant.evaluation.formatting import sentence, show
from calibrant.evaluation.uncertainty import DEFAULT_LEVEL, ROUNDING, holm
from calibrant.metrics.metric_types import Metric
from calibrant.metrics.registry import all_metrics
from calibrant.posthoc.base import Calibrator
from calibrant.predictions.predictions import Predictions

# Fewer data sets than this can't tell two methods apart at 5 %, however their values fall.
FEWEST_TO_TEST = 6
TABLE_METRICS = ("nll", "ece", "brier")
NAMED = 4


class OverDataSets(NamedTuple):
    """How far a method is from the best one, over data sets.

    Attributes:
        difference: mean over data sets of its value minus the best one's, turned so that above 0 is
            worse.
        low: lower end of the t interval of that mean; high: upper end; None with one data set.
        wins: on how many data sets it is better than the best one.
        p_value: Wilcoxon's signed-rank test, exact for few data sets; None with one.
        p_adjusted: the same after Holm's correction over the methods.
    """

    difference: float
    low: float | None
    high: float | None
    wins: int
    p_value: float | None
    p_adjusted: float | None


@dataclass(frozen=True, eq=False, repr=False)
class ManyComparisons(Result):
    """What `compare_over` found; prints as tables.

    Attributes:
        comparisons: data set to its comparisons, one a seed.
        methods: those that took part everywhere, by mean rank, best first.
        left_out: method to where it couldn't take part, and why.
        rank_by: the metric that ranks.
        level: nominal coverage of intervals, and one minus the level of tests.

    Examples:
        >>> import calibrant as cb
        >>> sets = {"test": cb.load_sample("test"), "validation": cb.load_sample("validation")}
        >>> found = cb.compare_over(sets, ["none", "temperature"], resamples=20)
        >>> found.table("nll").head
        ['method', 'test', 'validation', 'rank']
    """

    comparisons: Mapping[str, Sequence[Comparison]]
    methods: Sequence[str]
    left_out: Mapping[str, str]
    rank_by: str
    level: float

    @property
    def datasets(self) -> list[str]:
        """Names of the data sets."""
        return list(self.comparisons)

    def values(self, metric: str, method: str) -> dict[str, FloatArray]:
        """Return data set to the (S,) values of a method, one a seed."""
        return {
            name: np.array([each[method].evaluation[metric].value for each in found])
            for name, found in self.comparisons.items()
        }

    def costs(self, metric: str) -> FloatArray:
        """Return (data sets, methods) means over seeds without rounding, lower for better."""
        of = all_metrics()[metric]
        columns = [
            [of.cost(float(each.mean())) for each in self.values(metric, method).values()]
            for method in self.methods
        ]
        return np.round(np.array(columns).T / ROUNDING) * ROUNDING

    @cached_property
    def ranks(self) -> dict[str, float]:
        """Method to its mean rank over data sets by `rank_by`, 1 for the best; ties share ranks."""
        means = ranks_within(self.costs(self.rank_by)).mean(axis=0)
        return dict(zip(self.methods, means.tolist(), strict=True))

    @property
    def best(self) -> str:
        """The method of the lowest mean rank."""
        return self.methods[0]

    @property
    def critical_difference(self) -> float | None:
        """How far apart two mean ranks must be to differ (Nemenyi); None for one method."""
        return critical_difference(len(self.methods), len(self.comparisons), self.level)

    @property
    def friedman_p(self) -> float | None:
        """P-value of Friedman's test that all methods rank alike; None where it can't be done."""
        return friedman_p(ranks_within(self.costs(self.rank_by)))

    @cached_property
    def to_best(self) -> dict[str, OverDataSets]:
        """Method to its difference to the best one over data sets, by `rank_by`."""
        costs = self.costs(self.rank_by)
        others = [
            (method, costs[:, i] - costs[:, 0]) for i, method in enumerate(self.methods) if i > 0
        ]
        p_values = [signed_rank_p(d) for _, d in others]
        tested = [p for p in p_values if p is not None]
        adjusted = iter(holm(tested))
        found = {self.best: OverDataSets(0.0, None, None, 0, None, None)}
        for (method, d), p in zip(others, p_values, strict=True):
            low, high = t_interval(d, self.level)
            after = None if p is None else next(adjusted)
            wins = int(np.sum(d < 0))
            found[method] = OverDataSets(float(d.mean()), low, high, wins, p, after)
        return found

    def headline(self) -> str:
        """Return the finding in a sentence or two."""
        metric, n = all_metrics()[self.rank_by], len(self.comparisons)
        said = f"Best mean rank in {metric.title} over {counted(n, 'data set')}: {self.best}"
        said += f" ({self.ranks[self.best]:.2f} of {len(self.methods)})."
        if len(self.methods) == 1:
            return said
        if n < FEWEST_TO_TEST:
            return f"{said} {self._too_few(n)}"
        alike = [m for m, d in self.to_best.items() if m != self.best and not self._worse(d)]
        if not alike:
            return f"{said} All others are worse."
        if len(alike) > NAMED:
            alike = [*alike[: NAMED - 1], f"{len(alike) - NAMED + 1} others"]
        return f"{said} Not shown to be worse: {listed(alike)}."

    def _too_few(self, n: int) -> str:
        """Return what so few data sets can tell, which is never which of two methods is better."""
        few = counted(n, "data set")
        pairs = f"{few} can't show which of two methods is better; use {FEWEST_TO_TEST} or more."
        p = self.friedman_p
        if p is None or p > 1 - self.level:
            return sentence(pairs)
        return f"The methods don't all rank alike (Friedman's test, p = {p:.2g}), but {pairs}"

    def _worse(self, difference: OverDataSets) -> bool:
        p = difference.p_adjusted
        return p is not None and p <= 1 - self.level and difference.difference > 0

    def table(self, metric: str) -> Table:
        """Return values of one metric: methods down, data sets across, and the mean rank.

        A value is the mean over seeds, with their standard deviation where there are several. Bold:
        the best of a column.
        """
        of, costs = all_metrics()[metric], self.costs(metric)
        several = any(len(found) > 1 for found in self.comparisons.values())
        rows: list[list[str]] = []
        ranks = ranks_within(costs).mean(axis=0)
        for j, method in enumerate(self.methods):
            cells = [_with_spread(of, each) for each in self.values(metric, method).values()]
            rows.append([method, *cells, f"{ranks[j]:.2f}"])
        bold = {(int(np.argmin(of_one)), i + 1) for i, of_one in enumerate(costs)}
        unit = " in percent" if of.percent else ""
        spread = "; +- is the standard deviation over seeds" if several else ""
        notes = f"{of.title}{unit}, mean over seeds{spread}. Rank: mean over data sets, 1 is best."
        return Table(["method", *self.datasets, "rank"], rows, bold, notes)

    def ranking_table(self) -> Table:
        """Return mean ranks and paired differences to the best method over data sets."""
        metric = all_metrics()[self.rank_by]
        unit = " (points)" if metric.percent else ""
        head = ["method", "rank", f"behind the best{unit}", "interval", "better on", "p (Holm)"]
        rows: list[list[str]] = []
        for method, found in self.to_best.items():
            rank = f"{self.ranks[method]:.2f}"
            if method == self.best:
                rows.append([method, rank, "", "", "", ""])
                continue
            ends = [show(metric, end) for end in (found.low, found.high)]
            rows.append(
                [
                    method,
                    rank,
                    show(metric, found.difference),
                    f"{ends[0]} .. {ends[1]}" if all(ends) else "",
                    f"{found.wins} of {len(self.comparisons)}",
                    "" if found.p_adjusted is None else f"{found.p_adjusted:.3f}",
                ]
            )
        notes = (
            f"Ranks by {metric.title}. Differences over data sets, above 0 is worse; "
            f"{100 * self.level:g} % t interval; Wilcoxon's signed-rank test, Holm's correction."
        )
        cd, p = self.critical_difference, self.friedman_p
        if cd is not None:
            notes += f" Critical difference of mean ranks (Nemenyi): {cd:.2f}."
        if p is not None:
            notes += f" Friedman's test that all rank alike: p = {p:.3g}."
        return Table(head, rows, set(), notes)

    def as_table(self) -> Table:
        """Return mean ranks and paired differences to the best method; see `table` for values."""
        return self.ranking_table()

    def records(self) -> list[dict[str, Any]]:
        """Return a row for each data set, seed, method and metric, in fractions."""
        return [
            {"dataset": name, "seed": i} | row
            for name, found in self.comparisons.items()
            for i, one in enumerate(found)
            for row in one.records()
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON takes it; fractions, not percent."""
        metrics = list(next(iter(self.comparisons.values()))[0].methods[0].evaluation.results)
        return {
            "datasets": self.datasets,
            "seeds": {name: len(found) for name, found in self.comparisons.items()},
            "rank_by": self.rank_by,
            "headline": self.headline(),
            "best": self.best,
            "critical_difference": self.critical_difference,
            "friedman_p": self.friedman_p,
            "methods": [
                {
                    "method": method,
                    "rank": self.ranks[method],
                    "to_best": self.to_best[method]._asdict(),
                    "values": {
                        metric: {
                            name: each.tolist()
                            for name, each in self.values(metric, method).items()
                        }
                        for metric in metrics
                    },
                    "recommended": {
                        name: sum(one.recommended == method for one in found)
                        for name, found in self.comparisons.items()
                    },
                }
                for method in self.methods
            ],
            "left_out": dict(self.left_out),
        }

    def __str__(self) -> str:
        metrics = list(dict.fromkeys([self.rank_by, *TABLE_METRICS]))
        measured = next(iter(self.comparisons.values()))[0].methods[0].evaluation.results
        parts = [wrap(self.headline())]
        for metric in metrics:
            if metric in measured:
                table = self.table(metric)
                parts += [table.to_text(), wrap(table.notes)]
        ranking = self.ranking_table()
        parts += [ranking.to_text(), wrap(ranking.notes)]
        parts += [wrap(f"{method} left out: {why}") for method, why in self.left_out.items()]
        return "\n\n".join(parts)


def _with_spread(metric: Metric, values: FloatArray) -> str:
    mean = show(metric, float(values.mean()))
    if len(values) == 1:
        return mean
    return f"{mean} +- {show(metric, float(values.std(ddof=1)))}"


def compare_over(
    datasets: Mapping[str, Predictions | tuple[Predictions, Predictions]],
    methods: Sequence[str | Calibrator] | str = "all",
    *,
    seeds: Sequence[int] = (0,),
    fit_size: float = 0.5,
    stratify: bool = False,
    rank_by: str = "nll",
    watch: Watcher | None = None,
    **options: Any,
) -> ManyComparisons:
    """Compare methods on several data sets, each with a new split for every seed.

    Args:
        datasets: name to predictions, which are split, or to a pair of rows to fit on and rows to
            measure on. A pair isn't split, so it is measured once.
        methods: as `compare` takes them.
        seeds: of the splits.
        fit_size: rows to fit on, or a fraction below 1.
        stratify: whether splits keep label shares.
        rank_by: the metric that ranks.
        watch: called with a `Progress` before each data set, seed and method.
        options: others of `compare`, such as ``metrics`` and ``resamples``.

    Raises:
        InputError: no data set or no seed, or what `compare` refuses.

    Examples:
        >>> import calibrant as cb
        >>> halves = cb.load_sample("test").split(0.5, seed=0)
        >>> found = cb.compare_over(
        ...     {"one": halves[0], "two": halves[1]},
        ...     ["none", "temperature"], seeds=[0, 1], resamples=20,
        ... )
        >>> found.best, found.ranks
        ('temperature', {'temperature': 1.0, 'none': 2.0})
    """
    if not datasets:
        raise InputError("compare_over needs at least one data set")
    if not seeds:
        raise InputError("compare_over needs at least one seed")
    level = float(options.get("level", DEFAULT_LEVEL))
    found: dict[str, list[Comparison]] = {}
    splits = sum(len(seeds) if isinstance(rows, Predictions) else 1 for rows in datasets.values())
    for name, rows in datasets.items():
        found[name] = []
        whole = isinstance(rows, Predictions)
        for seed in seeds if whole else seeds[:1]:
            fit, test = rows.split(fit_size, seed, stratify=stratify) if whole else rows
            before = sum(map(len, found.values()))

            found[name].append(
                compare(
                    methods,
                    fit=fit,
                    test=test,
                    rank_by=rank_by,
                    seed=seed,
                    watch=part_of(watch, f"{name}, seed {seed}", before, splits),
                    **options,
                )
            )
    everywhere, left_out = _taking_part(found)
    unsorted = ManyComparisons(found, everywhere, left_out, rank_by, level)
    order = sorted(everywhere, key=lambda method: unsorted.ranks[method])
    return ManyComparisons(found, order, left_out, rank_by, level)


def _taking_part(
    comparisons: Mapping[str, Sequence[Comparison]],
) -> tuple[list[str], dict[str, str]]:
    """Return the methods that took part in all comparisons, and why others didn't."""
    each = [(name, one) for name, found in comparisons.items() for one in found]
    names = dict.fromkeys(method.name for _, one in each for method in one.methods)
    left_out: dict[str, str] = {}
    for name, one in each:
        for method, reason in one.skipped.items():
            left_out.setdefault(method, f"on {name}, {reason}")
    everywhere = [name for name in names if name not in left_out]
    if not everywhere:
        reasons = "; ".join(f"{method} {why}" for method, why in left_out.items())
        raise InputError(f"no method could be fitted on every data set: {reasons}")
    return everywhere, left_out
