"""Which of several networks, with which map: the same rows, other predictions.

NLL and ECE as they are rank networks by accuracy and by how badly they are calibrated, and the
latter can be mended for nothing. So each network is measured as it is and behind a map that was
fitted to other parts of the same rows (`calibrant.posthoc.cross_validated`), all on the same
resamples.

A calibration error depends on how often a network is right. So it is also measured at matched
accuracy: each network keeps its surest rows, as many as leave it as often right as the most
accurate network is on all rows. Rows are chosen by confidence alone, so calibrated
confidences stay calibrated among them. The share of rows that are kept is reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from calibrant.comparison.verdict import UNCALIBRATED
from calibrant.core.arrays import FloatArray, IntArray
from calibrant.core.errors import InputError
from calibrant.core.progress import Watcher, part_of
from calibrant.core.result import Drawn, Table
from calibrant.core.text import counted, listed
from calibrant.evaluation.best_set import covariance_of_means, may_have_best_mean
from calibrant.evaluation.bootstrap import Draws, drawn_once
from calibrant.evaluation.evaluate import evaluate
from calibrant.evaluation.formatting import compared, in_percent, percent, show, with_unit
from calibrant.evaluation.results import Evaluation, MetricResult
from calibrant.evaluation.sample import RowSample, losses_of
from calibrant.evaluation.uncertainty import (
    DEFAULT_LEVEL,
    PairedDifference,
    check_drawing,
    interval,
    paired_difference,
)
from calibrant.metrics.binned import DEFAULT_BINS, bin_edges, bin_index
from calibrant.metrics.proper import NLL, TOP_NLL
from calibrant.metrics.registry import metrics_named
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.fitting.cross_validation import (
    Worth,
    difference_of_losses,
    shared_rows_factor,
)
from calibrant.posthoc.registry import make_calibrator
from calibrant.posthoc.worth import FOLDS, cross_fitted
from calibrant.predictions.predictions import NO_PROBABILITY, Predictions

MOST_NAMED = 4


class Accepted(NamedTuple):
    """The surest rows of a network, as many as leave it as often right as the most accurate one.

    Attributes:
        coverage: share of the rows that are kept; 0 if its surest rows are never so often right.
        low: lower end of the bootstrap interval; high: upper end.
        ece: of the rows that are kept, with interval and floor; None if there are none.
        replicates: (R,) values of the ECE on resamples, each with rows kept anew.
    """

    coverage: float
    low: float
    high: float
    ece: MetricResult | None
    replicates: FloatArray


@dataclass(frozen=True, eq=False)
class ModelEntry:
    """One network with one map.

    Attributes:
        model: its name.
        method: the map; ``"none"`` for the network as it is.
        evaluation: of all rows; with a map of rows that this hasn't seen.
        accepted: at matched accuracy.
        losses: (N,) what the score that decides averages.
    """

    model: str
    method: str
    evaluation: Evaluation
    accepted: Accepted
    losses: FloatArray

    @property
    def said(self) -> str:
        """What a sentence calls it."""
        how = "as it is" if self.method == UNCALIBRATED else f"with {self.method}"
        return f"{self.model} {how}"


@dataclass(frozen=True, eq=False, repr=False)
class ModelComparison(Drawn):
    """Which network to use, with which map; prints as a table.

    Attributes:
        entries: every network as it is and with every map, the lowest score first.
        score: the metric that decides: NLL, of top labels that of being right.
        folds: in how many parts rows were held out of the fits of maps.
        may_be_best: entries that hold the truly best one with the level of the intervals.
        sources: model to where its rows came from.

    Examples:
        >>> import calibrant as cb
        >>> rows = cb.load_sample("test")
        >>> sharper = cb.Predictions.from_logits(3 * rows.logits, rows.labels)
        >>> found = cb.compare_models(
        ...     {"network": rows, "sharper": sharper}, methods=["temperature"], resamples=50
        ... )
        >>> found.recommended.method, len(found.may_be_best)  # one temperature makes them equal
        ('temperature', 2)
    """

    entries: Sequence[ModelEntry]
    score: str
    folds: int
    may_be_best: Sequence[ModelEntry]
    sources: Mapping[str, str]

    @property
    def recommended(self) -> ModelEntry:
        """The network and the map of the lowest score."""
        return self.entries[0]

    @property
    def models(self) -> list[str]:
        """Names of the networks, in the order that they were given."""
        return list(self.sources)

    @property
    def target(self) -> float:
        """The accuracy that is matched: that of the most accurate network as it is."""
        return max(e.evaluation.accuracy for e in self.entries if e.method == UNCALIBRATED)

    def of(self, model: str, method: str = UNCALIBRATED) -> ModelEntry:
        """Return one entry.

        Raises:
            KeyError: no such network or map took part.
        """
        return {(entry.model, entry.method): entry for entry in self.entries}[model, method]

    def difference(
        self, first: ModelEntry, second: ModelEntry, metric: str | None = None
    ) -> PairedDifference:
        """Return the first entry's value minus the second's, on the same rows.

        That of the score is of the normal law, wider where maps were fitted to rows that they share
        (`difference_of_losses`); that of other metrics is of the paired bootstrap.

        Args:
            first, second: of this comparison.
            metric: its name; ``"accepted"`` for the ECE at matched accuracy, None for the score.
        """
        level = first.evaluation.level
        if metric in (None, self.score):
            return _of_losses(first, second, self.folds, level)
        if metric == "accepted":
            (one, drawn), (other, again) = (
                (e.accepted.ece, e.accepted.replicates) for e in (first, second)
            )
            if one is None or other is None:
                raise InputError("one of them has no rows at matched accuracy")
            return paired_difference(drawn, again, (one.value, other.value), level)
        one, other = first.evaluation[metric], second.evaluation[metric]
        values = one.value, other.value
        return paired_difference(one.replicates, other.replicates, values, level)

    def headline(self) -> str:
        """Return which network to use, with which map, in a sentence, and what else there is."""
        best, title = self.recommended, self.recommended.evaluation[self.score].metric
        value = with_unit(title, best.evaluation[self.score].value)
        text = f"Use {best.said}: {title.title} {value}"
        other = next((entry for entry in self.entries if entry.model != best.model), None)
        if other is not None:
            less = compared(title, self.difference(best, other).ends)
            text += f", {less} than {other.said}, the next network"
        said = [f"{text}."]
        ties = [e.said for e in self.may_be_best if e is not best and e.model != best.model]
        if ties:
            few = ties if len(ties) <= MOST_NAMED else [*ties[:MOST_NAMED], "others"]
            said.append(f"Not shown to be worse: {listed(few)}.")
        said += self._turned()
        return " ".join(said)

    def _turned(self) -> list[str]:
        """Return what the networks as they are would have one choose, where that is another."""
        own = [entry for entry in self.entries if entry.method == UNCALIBRATED]
        first = own[0]
        found: list[str] = []
        if first.model != self.recommended.model:
            metric = first.evaluation[self.score].metric
            ours = self.of(self.recommended.model)
            less = compared(metric, self.difference(first, ours).ends)
            found.append(
                f"Without a calibrator {first.model} has the lowest {metric.title}, {less} than "
                f"{ours.model}: calibration changes the order."
            )
        lowest = min(own, key=lambda entry: entry.evaluation["ece"].value)
        if lowest.model != self.recommended.model:
            value = with_unit(lowest.evaluation["ece"].metric, lowest.evaluation["ece"].value)
            found.append(f"Without a calibrator {lowest.model} has the lowest ECE, {value}.")
        return found

    def matched(self) -> str:
        """Return the networks' calibration as they are at matched accuracy, in a sentence."""
        own = [self.of(model) for model in self.models]
        parts: list[str] = []
        for entry in own:
            share, ece = entry.accepted.coverage, entry.accepted.ece
            rows = "all rows" if share == 1 else f"its {percent(share)} % most confident rows"
            said = "is never so accurate" if ece is None else f"{_points(ece)} on {rows}"
            parts.append(f"{entry.model} {said}")
        return (
            f"ECE at equal accuracy ({percent(self.target)} %), without a calibrator: "
            f"{'; '.join(parts)}."
        )

    def as_table(self) -> Table:
        """Return the table, an entry a row."""
        first = self.entries[0].evaluation
        metrics = [result.metric for result in first.results.values()]
        head = ["model", "map", *(metric.title for metric in metrics)]
        head += ["confidence", "most confident", "their ECE"]
        rows: list[list[str]] = []
        for entry in self.entries:
            row = [entry.model, entry.method]
            for metric in metrics:
                mark = "+" if metric.name == self.score and entry in self.may_be_best else ""
                row.append(show(metric, entry.evaluation[metric.name].value) + mark)
            accepted = entry.accepted
            there = "" if accepted.ece is None else show(accepted.ece.metric, accepted.ece.value)
            row += [f"{100 * entry.evaluation.mean_confidence:.2f}"]
            row += [f"{100 * accepted.coverage:.2f}", there]
            rows.append(row)
        level = f"{100 * first.level:g} %"
        notes = (
            f"Maps are cross-validated on the same {counted(first.n, 'row')}, in "
            f"{self.folds} folds. + may be the best: in {level} of cases the truly best has a +. "
            "most confident: the share of rows, from the most confident down, that are together as "
            f"accurate as the most accurate network on all rows, {percent(self.target)} %; their "
            f"ECE: at that equal accuracy. {in_percent(metrics)} The last three columns are in "
            "percent."
        )
        marks = dict.fromkeys(range(2, 2 + len(metrics)), "+")
        return Table(head, rows, notes=notes, labels=2, marks=marks)

    def records(self) -> list[dict[str, Any]]:
        """Return a row for each entry and metric, in fractions."""
        return [
            {"model": entry.model, "method": entry.method, "metric": name} | result.as_dict()
            for entry in self.entries
            for name, result in entry.evaluation.results.items()
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON takes it; fractions, not percent."""
        best, first = self.recommended, self.entries[0].evaluation
        return {
            "models": dict(self.sources),
            "rows": first.n,
            "level": first.level,
            "folds": self.folds,
            "decided_by": self.score,
            "recommended": {"model": best.model, "method": best.method},
            "headline": self.headline(),
            "matched_accuracy": self.target,
            "matched": self.matched(),
            "may_be_best": [[entry.model, entry.method] for entry in self.may_be_best],
            "entries": [self._entry(entry) for entry in self.entries],
        }

    def _entry(self, entry: ModelEntry) -> dict[str, Any]:
        accepted = entry.accepted
        return {
            "model": entry.model,
            "method": entry.method,
            "accuracy": entry.evaluation.accuracy,
            "confidence": entry.evaluation.mean_confidence,
            "metrics": {name: r.as_dict() for name, r in entry.evaluation.results.items()},
            "difference_to_recommended": vars(self.difference(entry, self.recommended)),
            "at_matched_accuracy": {
                "coverage": accepted.coverage,
                "low": accepted.low,
                "high": accepted.high,
                "ece": None if accepted.ece is None else accepted.ece.as_dict(),
            },
        }

    def above(self) -> tuple[str, ...]:
        """Return the recommendation, and what it is at equal accuracy."""
        return self.headline(), self.matched()


def _points(result: MetricResult) -> str:
    low, high = show(result.metric, result.low), show(result.metric, result.high)
    return f"{with_unit(result.metric, result.value)} ({low} to {high})"


def _of_losses(first: ModelEntry, second: ModelEntry, folds: int, level: float) -> PairedDifference:
    """Return the difference of two means over the same rows."""
    sample = first.evaluation.sample
    assert isinstance(sample, RowSample)
    worth = Worth(sample.scores.weights, None if sample.groups is None else sample.groups.codes)
    value, error = difference_of_losses(first.losses, second.losses, folds, worth)
    if {first.method, second.method} == {UNCALIBRATED}:  # nothing was fitted
        error /= shared_rows_factor(folds) ** 0.5
    return PairedDifference.normal(value, error, level)


# Parameters: the networks, the maps, and how `evaluate` draws.
def compare_models(
    models: Mapping[str, Predictions],
    *,
    methods: Sequence[str | Calibrator] | str = "auto",
    metrics: Sequence[str] | str | None = None,
    folds: int = FOLDS,
    resamples: int | None = None,
    level: float = DEFAULT_LEVEL,
    seed: int = 0,
    watch: Watcher | None = None,
) -> ModelComparison:
    """Return which of several networks to use, with which map, measured on the same rows.

    Each network is measured as it is and with each map. Maps are cross-validated on these rows (see
    `calibrant.posthoc.cross_validated`), so each network and map takes as many fits as there are
    folds. All are measured on the same resamples.

    Args:
        models: name to predictions, of the same rows in the same order.
        methods: maps, by name or as unfitted calibrators.
        metrics: as `evaluate` takes them; accuracy, ECE and the score that decides in any case.
        folds: number of parts of the rows in the cross-validation.
        resamples, level, seed: as `evaluate` takes them.
        watch: called with a `Progress` as each fold begins.

    Raises:
        InputError: fewer than two networks, or rows that aren't the same.
        PredictionsError: no labels.
        NotApplicableError: a map that refuses the rows.

    Examples:
        >>> import calibrant as cb
        >>> rows = cb.load_sample("test")
        >>> worse = rows.labels.copy()
        >>> cb.compare_models({"a": rows, "b": rows.take(slice(50))})
        Traceback (most recent call last):
        ...
        calibrant.core.errors.InputError: a holds 10000 rows, and b 50; networks are compared on ...
    """
    check_drawing(2 if resamples is None else resamples, level, seed)
    given = {name: rows.counted for name, rows in models.items()}
    _check_same_rows(given)
    named = [methods] if isinstance(methods, str | Calibrator) else methods
    maps = [make_calibrator(m) if isinstance(m, str) else m for m in named]
    maps = [each for each in maps if each.method != UNCALIBRATED]
    first = next(iter(given.values()))
    score = TOP_NLL if first.kind == "toplabel" else NLL
    asked = [] if metrics is None else [metric.name for metric in metrics_named(metrics)]
    names = list(dict.fromkeys([score.name, "ece", "accuracy", *asked]))

    found: list[tuple[str, str, Predictions]] = []
    for model, (name, rows) in enumerate(given.items()):
        found.append((name, UNCALIBRATED, rows))
        for number, calibrator in enumerate(maps, model * len(maps)):
            what = f"{name}, {calibrator.method}"
            of_fit = part_of(watch, what, number, len(given) * len(maps))
            after = cross_fitted(calibrator, rows, folds=folds, seed=seed, watch=of_fit)
            found.append((name, calibrator.method, after))
    with drawn_once():
        samples = [RowSample.of(rows) for _, _, rows in found]
        drawn: dict[str, Any] = {"resamples": resamples, "level": level, "seed": seed}
        measured = [evaluate(sample, metrics=names, **drawn) for sample in samples]
        number = samples[0].resamples_of(first.n) if resamples is None else resamples
        as_is = [i for i, (_, method, _) in enumerate(found) if method == UNCALIBRATED]
        accepted = _accepted(found, samples, as_is, number, drawn)
    entries = [
        ModelEntry(model, method, evaluation, kept, losses_of(sample, [score])[score.name])
        for (model, method, _), evaluation, kept, sample in zip(
            found, measured, accepted, samples, strict=True
        )
    ]
    entries.sort(key=lambda entry: entry.evaluation[score.name].value)
    costs = np.array([entry.evaluation[score.name].value for entry in entries])
    spread = covariance_of_means([entry.losses for entry in entries], samples[0], level)
    may = may_have_best_mean(costs, spread * shared_rows_factor(folds), level)
    best = [entry for entry, is_one in zip(entries, may.tolist(), strict=True) if is_one]
    sources = {name: rows.source for name, rows in given.items()}
    return ModelComparison(entries, score.name, folds, best, sources)


def _accepted(
    found: Sequence[tuple[str, str, Predictions]],
    samples: Sequence[RowSample],
    as_is: Sequence[int],
    resamples: int,
    options: Mapping[str, Any],
) -> list[Accepted]:
    """Return what each entry keeps at the accuracy of the most accurate network, and how good."""
    ranked = [_Ranked.of(sample) for sample in samples]
    rows = len(ranked[0].order)
    weights = samples[0].scores.weights
    own = np.ones(rows) if weights is None else weights
    target = max(ranked[i].accuracy(own) for i in as_is)
    here = [each.kept(own, target) for each in ranked]
    groups = samples[0].groups
    draws = Draws.of_rows(rows, resamples, options["seed"], groups)
    drawn: list[list[tuple[float, float]]] = [[] for _ in ranked]
    for batch in draws.batches():
        for column in draws.of(batch).T:
            counts = column if groups is None else column[groups.codes]
            weighed = own * counts
            matched = max(ranked[i].accuracy(weighed) for i in as_is)
            for each, values in zip(ranked, drawn, strict=True):
                rows_kept, coverage = each.kept(weighed, matched)
                values.append((coverage, each.ece(weighed, rows_kept)))
    result: list[Accepted] = []
    for (_, _, given), each, (number, coverage), values in zip(
        found, ranked, here, drawn, strict=True
    ):
        coverages, errors = np.array(values).T
        low, high = interval(coverage, coverages, options["level"])
        ece = None
        if number:
            some = given.take(np.sort(each.order[:number]))
            # What the predicted class of other rows is called doesn't matter to these.
            ece = evaluate(some, metrics=["ece"], **options)["ece"]
        result.append(Accepted(coverage, low, high, ece, errors))
    return result


@dataclass(frozen=True, eq=False)
class _Ranked:
    """Rows by confidence, the surest first.

    Attributes:
        order: (N,) places of the rows.
        residual: (N,) c - a; correct: (N,) a; bins: (N,) those of the ECE.
        ends: last row of each run of equal confidences, which have no order.
    """

    order: IntArray
    residual: FloatArray
    correct: FloatArray
    bins: IntArray
    ends: IntArray

    @classmethod
    def of(cls, sample: RowSample) -> _Ranked:
        """Return the rows of a sample."""
        order = np.argsort(-sample.scores.confidence, kind="stable")
        c = sample.scores.confidence[order]
        a = sample.scores.correct[order].astype(np.float64)
        ends = np.append(np.flatnonzero(c[1:] != c[:-1]), len(c) - 1)
        return cls(order, c - a, a, bin_index(c, bin_edges(DEFAULT_BINS)), ends)

    def accuracy(self, weights: FloatArray) -> float:
        """Return the share of right rows; `weights` are in the rows' own order."""
        w = weights[self.order]
        return float(w @ self.correct / w.sum())

    def kept(self, weights: FloatArray, target: float) -> tuple[int, float]:
        """Return how many of the surest rows are right as often as that, and their share."""
        w = weights[self.order]
        total, right = np.cumsum(w), np.cumsum(w * self.correct)
        # Sums of another order differ in their last digits.
        enough = right[self.ends] >= target * total[self.ends] * (1 - 1e-12)
        enough &= total[self.ends] > 0
        if not enough.any():
            return 0, 0.0
        last = int(self.ends[np.flatnonzero(enough)[-1]])
        return last + 1, float(total[last] / total[-1])

    def ece(self, weights: FloatArray, rows: int) -> float:
        """Return the ECE of so many of the surest rows; 0 of none."""
        if not rows:
            return 0.0
        w = weights[self.order[:rows]]
        sums = np.bincount(self.bins[:rows], w * self.residual[:rows])
        return float(np.abs(sums).sum() / w.sum())


def _check_same_rows(models: Mapping[str, Predictions]) -> None:
    """Raise `InputError` unless these are predictions of the same rows, in the same order."""
    if len(models) < 2:
        raise InputError("comparing networks needs the predictions of at least two")
    scored = [name for name, rows in models.items() if rows.kind == "score"]
    if scored:
        raise InputError(f"{scored[0]}: comparing networks {NO_PROBABILITY}")
    (name, first), *others = models.items()
    for other, rows in others:
        if rows.n != first.n:
            raise InputError(
                f"{name} holds {counted(first.n, 'row')}, and {other} {rows.n}; networks are "
                "compared on the same rows in the same order"
            )
        for what in ("n_classes", "binary"):
            one, two = getattr(first, what), getattr(rows, what)
            if one != two:
                raise InputError(
                    f"{name} and {other} aren't predictions of one kind ({what}: {one} and {two})"
                )
        names = first.class_names, rows.class_names
        if first.kind != "toplabel" and None not in names and names[0] != names[1]:
            raise InputError(
                f"{name} has the classes {listed(names[0] or ())}, and {other} "
                f"{listed(names[1] or ())}; networks are compared on the same classes in the same "
                "order"
            )
        differ = np.flatnonzero(_true(first) != _true(rows))
        if len(differ):
            row = int(differ[0])
            raise InputError(
                f"{name} and {other} differ in {counted(len(differ), 'label')}, first in row "
                f"{row}: {_true(first)[row]} and {_true(rows)[row]}; networks are compared on the "
                "same rows in the same order"
            )
        for what in ("weights", "clusters"):
            one, two = getattr(first, what), getattr(rows, what)
            if (one is None) != (two is None) or (one is not None and (one != two).any()):
                raise InputError(f"{name} and {other} have different {what}; give both the same")


def _true(rows: Predictions) -> Any:
    """Return the (N,) true labels; of the top-label form, which numbers names anew, by name."""
    if rows.kind == "toplabel" and rows.class_names:
        return np.array(rows.class_names)[rows.labels]
    return rows.labels
