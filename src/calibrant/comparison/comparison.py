"""What a comparison found: methods ranked, told apart or not, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from calibrant.comparison.verdict import (
    UNCALIBRATED,
    ComparedMethod,
    DifferenceToBest,
    Verdict,
    differences_to_best,
)
from calibrant.core.result import Drawn, Table
from calibrant.core.text import counted, listed, names_by_text, wrap
from calibrant.evaluation.evaluate import evaluate
from calibrant.evaluation.formatting import in_percent, sentence, show, with_interval
from calibrant.evaluation.results import (
    Evaluation,
    MetricResult,
    finding,
    honest_would_show,
    state_of,
    weighing,
)
from calibrant.evaluation.sample import Sample
from calibrant.metrics.metric_types import Metric, RowsMetric

# A sentence names no more methods than this.
NAMED = 5
# What the printed table shows; everything is in `Comparison.as_dict`.
TABLE_METRICS = ("ece", "ece_positive", "adaece", "smce", "nll", "top_nll", "brier", "accuracy")
# Of more methods than this the printed table shows the ones to choose from only.
MOST_SHOWN = 12
# Beside the numbers of those that may be the best in a column.
MAY_BE_BEST = "+"


@dataclass(frozen=True, eq=False)
class Network:
    """What a comparison keeps of the network's own confidences.

    Attributes:
        sample: the test rows; None where the method "none" took part, and has them.
        resamples: as `evaluate` takes it; seed: of the resamples.
        fit_accuracy: share of right rows among those that methods were fitted on.
        fit_confidence: mean confidence of these.
    """

    sample: Sample | None
    resamples: int | None
    seed: int
    fit_accuracy: float
    fit_confidence: float


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Drawn):
    """What `compare` found; prints as a table.

    Attributes:
        fit_source, test_source: where the rows came from.
        fit_rows, test_rows: how many there were.
        rank_by: the metric that ranks.
        methods: sorted by it, best first.
        skipped: method to the reason why it could not take part.
        network: the test rows before recalibration, and the arguments of `evaluate`.
        verdict: which method to use, and why; see `calibrant.comparison.verdict` for the rule.

    Examples:
        >>> import calibrant as cb
        >>> val, test = cb.load_sample("validation"), cb.load_sample("test")
        >>> found = cb.compare(["none", "smart"], fit=val, test=test, metrics=["ece"], resamples=99)
        >>> [(method.name, round(method.evaluation["ece"].value, 2)) for method in found.methods]
        [('smart', 0.01), ('none', 0.06)]
    """

    fit_source: str
    test_source: str
    fit_rows: int
    test_rows: int
    rank_by: str
    methods: list[ComparedMethod]
    skipped: dict[str, str]
    network: Network
    verdict: Verdict

    def __getitem__(self, name: str) -> ComparedMethod:
        """Return the part of one method.

        Raises:
            KeyError: it didn't take part.
        """
        return {method.name: method for method in self.methods}[name]

    @property
    def differences(self) -> dict[str, DifferenceToBest]:
        """Paired difference of each method to the best one by `rank_by`."""
        return self.differences_by(self.rank_by)

    def differences_by(self, metric: str) -> dict[str, DifferenceToBest]:
        """Return the paired difference of each method to the best one by any metric, by name.

        Holm's correction takes all pairs of methods into account.

        Raises:
            KeyError: the metric was not measured.
        """
        # Table, page and JSON ask for the same ones.
        if metric not in self._differences:
            results = {method.name: method.evaluation[metric] for method in self.methods}
            level = self.methods[0].evaluation.level
            self._differences[metric] = differences_to_best(results, self.best_by(metric), level)
        return self._differences[metric]

    @cached_property
    def _differences(self) -> dict[str, dict[str, DifferenceToBest]]:
        return {}

    @property
    def recommended(self) -> str:
        """Name of the method to use."""
        return self.verdict.recommended

    @property
    def may_be_best(self) -> dict[str, list[str]]:
        """Metric to the names of the methods that may be the best in it, best first.

        Each set contains the truly best method with the probability of the intervals' level.
        """
        return {metric: list(names) for metric, names in self.verdict.may_be_best.items()}

    @property
    def best(self) -> str:
        """Name of the method with the best value of `rank_by`."""
        return self.methods[0].name

    @property
    def uncalibrated(self) -> ComparedMethod | None:
        """The network's own confidences, if `none` was compared."""
        return next((method for method in self.methods if method.name == UNCALIBRATED), None)

    @cached_property
    def before(self) -> Evaluation:
        """The network's own confidences, measured as the methods were.

        If `none` wasn't compared, metrics of whole probability vectors are missing, and with hardly
        any wrong rows the intervals are too narrow.
        """
        if self.network.sample is None:
            return self[UNCALIBRATED].evaluation
        like = self.methods[0].evaluation
        names = [n for n, r in like.results.items() if not isinstance(r.metric, RowsMetric)]
        return evaluate(
            self.network.sample,
            metrics=names,
            resamples=self.network.resamples,
            level=like.level,
            seed=self.network.seed,
        )

    @property
    def best_calibrated(self) -> ComparedMethod | None:
        """The best method other than `none`, if there is one."""
        return next((method for method in self.methods if method.name != UNCALIBRATED), None)

    @property
    def tied_with_best(self) -> list[str]:
        """Names of the methods that may be as good as the best, corrected for all comparisons."""
        return self.tied_by(self.rank_by)

    def tied_by(self, metric: str) -> list[str]:
        """Return the names of the methods that may be as good as the best by a metric."""
        differences, best = self.differences_by(metric), self.best_by(metric)
        return [
            name
            for name in self.ranked_by(metric)
            if name != best and not differences[name].significant
        ]

    def ranked_by(self, metric: str) -> list[str]:
        """Return the names of all methods, best first by any metric."""
        ranked = sorted(self.methods, key=lambda method: method.place(metric))
        return [method.name for method in ranked]

    def headline(self) -> str:
        """Return which method to use, and why."""
        return str(self.verdict) if len(self.methods) > 1 else self.ranking()

    def ranking(self, metric: str | None = None) -> str:
        """Return which method is best by a metric, by default `rank_by`, in a sentence or two."""
        metric = metric or self.rank_by
        best = self[self.best_by(metric)]
        tied = self.tied_by(metric) if len(self.methods) > 1 else None
        return ranking(best.evaluation[metric], best.name, best.evaluation.level, tied)

    def records(self) -> list[dict[str, Any]]:
        """Return a row for each method and metric, in fractions."""
        return [
            {"method": method.name, "metric": name} | result.as_dict()
            for method in self.methods
            for name, result in method.evaluation.results.items()
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON takes it; fractions, not percent."""
        results = self.methods[0].evaluation.results
        return {
            "fit": self.fit_source,
            "test": self.test_source,
            "fit_rows": self.fit_rows,
            "test_rows": self.test_rows,
            "weighted": self.methods[0].evaluation.weighted,
            "clusters": self.methods[0].evaluation.clusters,
            "effective_rows": self.methods[0].evaluation.effective_rows,
            "methods": [
                method.as_dict() | {"difference_to_best": vars(self.differences[method.name])}
                for method in self.methods
            ],
            "rank_by": self.rank_by,
            **self.verdict.as_dict(),
            "headline": self.ranking(),
            "best": self.best,
            "tied_with_best": self.tied_with_best,
            "best_by_metric": {name: self.best_by(name) for name in results},
            "skipped": [{"method": m, "reason": reason} for m, reason in self.skipped.items()],
        }

    @cached_property
    def _best(self) -> dict[str, str]:
        """What `best_by` has found; a page asks it for every method."""
        return {}

    def best_by(self, metric: str) -> str:
        """Return the name of the method with the best value of a metric."""
        if metric not in self._best:
            self._best[metric] = min(self.methods, key=lambda method: method.place(metric)).name
        return self._best[metric]

    def shown(self) -> list[ComparedMethod]:
        """Return the methods to choose from; if there are few, all of them.

        If there are many, these are the recommended method, the best one, `none`, the verdict's
        alternatives, and the best of each family in the score that decides.
        """
        if len(self.methods) <= MOST_SHOWN:
            return self.methods
        score = self.verdict.score
        names = {self.recommended, self.best, UNCALIBRATED}
        names |= {each.name for each in self.verdict.alternatives}
        families: set[str] = set()
        for method in sorted(self.methods, key=lambda method: method.place(score)):
            facts = method.calibrator.facts
            if facts is not None and facts.family not in families:
                families.add(facts.family)
                names.add(method.name)
        return [method for method in self.methods if method.name in names]

    def as_table(self, *, every: bool = True) -> Table:
        """Return the table, a method a row.

        Args:
            every: whether it holds all methods, or only those to choose from (`shown`).
        """
        shown = [metric.name for metric in _shown(self)]
        titles = [metric.title for metric in _shown(self)]
        rows: list[list[str]] = []
        for method in self.methods if every else self.shown():
            mark = "*" if method.name in (self.best, *self.tied_with_best) else ""
            measured = [method.evaluation[name] for name in shown]
            rows.append(
                [
                    method.name + mark,
                    *[_cell(self, result, method.name) for result in measured],
                    "yes" if method.keeps_accuracy else "no",
                    str(method.calibrator.n_parameters),
                    f"{method.fit_seconds:.2f}",
                ]
            )
        head = ["method", *titles, "kept", "params", "fit s"]
        marks = dict.fromkeys(range(1, len(titles) + 1), MAY_BE_BEST)
        return Table(head, rows, notes=_legend(self), marks=marks)

    def to_text(self, *, every: bool = False) -> str:
        """Return what it prints: the verdict, the table, what was left out.

        Args:
            every: whether the table holds all methods, or only those to choose from (`shown`).
        """
        table, several = self.as_table(every=every), len(self.methods) > 1
        left = len(self.methods) - len(table.rows)
        parts = [
            wrap(self.verdict.lead) if several else "",
            wrap(self.verdict.or_else) if several else "",
            wrap(self.ranking()),
            self._rows(),
            wrap(weighing(self.methods[0].evaluation)),
            table.to_text(),
            f"and {counted(left, 'more method')} of the same families, none better" if left else "",
            wrap(table.notes),
            _said_of_each(self.skipped.items(), " left out"),
            _said_of_each((m.name, text) for m in self.methods for text in m.said),
        ]
        return "\n\n".join(part for part in parts if part)

    def _rows(self) -> str:
        """Return which rows were fitted to, and which were measured."""
        fit, test = counted(self.fit_rows, "row"), counted(self.test_rows, "row")
        if self.fit_source == self.test_source:
            return f"{self.fit_source}: fit on {fit}, measured on {test}"
        return f"fit on {self.fit_source} ({fit}), measured on {self.test_source} ({test})"

    def __str__(self) -> str:
        return self.to_text()


def _said_of_each(said: Iterable[tuple[str, str]], verb: str = "") -> str:
    """Return a paragraph for each text, with the names of all that it was said of."""
    lines: list[str] = []
    for text, names in names_by_text(said).items():
        what = text.replace("it needs", "they need", 1) if ", " in names else text
        lines.append(wrap(f"{names}{verb}: {what}"))
    return "\n".join(lines)


def change(
    before: Evaluation,
    after: Evaluation,
    method: str | None,
    rank_by: str,
    rank: str = "the best of these methods",
) -> str:
    """Return what a method of a comparison makes of a network's own confidences.

    Args:
        before: the network's own confidences.
        after: those of the method, on the same rows.
        method: its name; None if no method does better than the network's own confidences.
        rank_by: the metric that ranks.
        rank: what to call the method where its confidences aren't honest.
    """
    start, states = finding(before, rank_by), [state_of(e, rank_by) for e in (before, after)]
    if method is None:
        return sentence(f"{start}; no method does better")
    if states == ["honest", "honest"]:
        return sentence(f"{start}, before and after {method}")
    which = method if states[1] == "honest" else f"{method}, {rank},"
    return sentence(f"{start}; after {which} {finding(after, rank_by)}")


def ranking(best: MetricResult, method: str, level: float, tied: Sequence[str] | None) -> str:
    """Return who is best, and who can't be told apart from it, in one or two sentences.

    Args:
        best: what the best method has of the metric that ranks.
        method: its name.
        level: nominal coverage of the intervals.
        tied: names of the others that can't be told apart from it; None if there are no others.
    """
    text = f"{best.metric.superlative}: {method}, {with_interval(best.metric, best.ends, level)}"
    if best.at_floor:
        judges = best.metric.omnibus
        text += ", not distinguishable from perfect" if judges else ", no more than noise gives"
    if tied is None:
        return f"{text}."
    if not tied:
        return f"{text}. No other method ties with it."
    names = list(tied)
    if len(names) > NAMED:
        names = [*names[: NAMED - 1], f"{len(names) - NAMED + 1} others"]
    return f"{text}. Can't be told apart from it: {listed(names)}."


def marks(
    result: MetricResult, *, best: bool, significant: bool, may_be_best: bool = False
) -> list[str]:
    """Return the marks of a method's rank by a metric.

    Args:
        result: its value.
        best: whether it is the best.
        significant: whether it can be told apart from the best.
        may_be_best: whether it is in the set that holds the truly best one.
    """
    rank = "best" if best else "" if significant else "tied"
    said = {
        rank: rank,
        "may be the best": may_be_best and not best,
        "at the floor": result.at_floor,
    }
    return [mark for mark, holds in said.items() if holds]


def _cell(of: Comparison, result: MetricResult, method: str) -> str:
    """Return a value, marked where the method may be the best in it."""
    of_several = len(of.methods) > 1
    marked = of_several and method in of.may_be_best.get(result.metric.name, ())
    return show(result.metric, result.value) + (MAY_BE_BEST if marked else "")


def _shown(of: Comparison) -> list[Metric]:
    """Return the metrics that the table shows: the ranking one and the usual ones."""
    results = of.methods[0].evaluation.results
    names = [name for name in TABLE_METRICS if name in results]
    left = {"top_nll"} - {of.verdict.score}
    if "ece_positive" in names:
        # With these the table would be wider than a terminal.
        left |= {"adaece", "smce"} - {of.rank_by}
    names = [name for name in names if name not in left]
    if of.rank_by not in names:
        names.insert(0, of.rank_by)
    return [results[name].metric for name in names]


def _legend(of: Comparison) -> str:
    best, level = of.methods[0].evaluation[of.rank_by], of.methods[0].evaluation.level
    text = (
        f"{MAY_BE_BEST} may be the best in this column: in {100 * level:g} % of cases the "
        f"truly best method has a {MAY_BE_BEST}. "
        f"* not distinguishable from the best in {best.metric.title} (paired bootstrap, Holm's "
        "correction for all pairs). kept: whether the predicted class of every row measured here "
        "stayed. "
        f"{in_percent(_shown(of))}"
    )
    if best.floor is None:
        return text
    return f"{text} {honest_would_show(best, f'those of {of.best}')}"
