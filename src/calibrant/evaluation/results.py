"""What was measured: numbers with intervals and floors, and the sentences and tables made of them.

Print, page and JSON share these sentences. Only a metric that counts every row and both directions
may say that confidences can't be told from perfect ones (`Metric.omnibus`). A one-sided one is
small for a model that errs the other way, and the largest gap of a few bins is mostly noise: such a
metric speaks for itself, by name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

from calibrant.core.arrays import FloatArray
from calibrant.core.errors import InputError
from calibrant.core.result import Drawn, Table
from calibrant.core.text import counted, listed, wrap
from calibrant.evaluation.formatting import (
    FLOOR,
    FORMS,
    RANKS,
    in_percent,
    interval_of,
    left_out,
    left_out_text,
    percent,
    sentence,
    show,
    with_interval,
    with_unit,
)
from calibrant.evaluation.power import smallest_visible_error
from calibrant.evaluation.sample import RowSample, Sample
from calibrant.evaluation.uncertainty import FLOOR_QUANTILE, Gap, interval, less_rounding
from calibrant.metrics.metric_types import Measured, Metric
from calibrant.metrics.top_label import TopLabel
from calibrant.predictions.scoring import RowScores

State = (
    Literal["honest", "overconfident", "underconfident", "both ways", "no direction", "unknown"]
    | Literal["no probabilities"]
)
WITHOUT_NUMBERS: dict[State, str] = {
    "both ways": "overconfident in some places and underconfident in others",
    "no direction": "miscalibrated, although mean confidence and accuracy agree within noise",
    "unknown": "mean confidence and accuracy agree within noise",
    "no probabilities": RANKS,
}

# Where calibrated confidences show as much as this, that nothing was found says little.
MUCH_NOISE = 0.05
# What rows without a name are called; a result that is printed leaves it out.
UNNAMED = {"logits", "probs", "confidence", "scores"}


@dataclass(frozen=True, eq=False, repr=False)
class MetricResult:
    """A measured number and how far to trust it. All values are fractions or nats.

    Attributes:
        metric: what was measured, with its convention.
        value: the metric on all rows.
        low: lower end of the bootstrap interval.
        high: upper end.
        floor: expected value if the confidences were perfectly calibrated; None for metrics that
            have no floor.
        floor_95: 95 % quantile of perfectly calibrated values; a value below it may be noise.
        p_value: share of perfectly calibrated data sets that would show at least this value.
        replicates: (R,) values on the resamples, to seven digits; paired over calibrators that were
            measured with the same seed.

    Examples:
        >>> import calibrant as cb
        >>> ece = cb.evaluate(cb.load_sample("test"), metrics=["ece"], resamples=200)["ece"]
        >>> print(f"{ece.value:.1%}; a calibrated network would show {ece.floor:.2%}")
        6.1%; a calibrated network would show 0.65%
        >>> ece.low < ece.value < ece.high, ece.at_floor
        (True, False)
    """

    metric: Metric
    value: float
    low: float
    high: float
    floor: float | None = None
    floor_95: float | None = None
    p_value: float | None = None
    replicates: FloatArray = field(default_factory=lambda: np.empty(0), repr=False)

    @property
    def ends(self) -> tuple[float, float, float]:
        """The value and the ends of its interval."""
        return self.value, self.low, self.high

    @property
    def cost(self) -> float:
        """The value, turned so that lower is better."""
        return self.metric.cost(self.value)

    @property
    def at_floor(self) -> bool:
        """Whether the value is no more than noise would give calibrated confidences.

        If `metric.omnibus`, the confidences may then be perfectly calibrated; any other metric
        measures only a part of what may be wrong.
        """
        return self.floor_95 is not None and less_rounding(self.value) <= self.floor_95

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields; half of what a pickle would hold are digits that replicates lack."""
        return vars(self) | {"replicates": self.replicates.astype(np.float32)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the fields up again."""
        vars(self).update(state, replicates=state["replicates"].astype(np.float64))

    def as_dict(self) -> dict[str, float | None]:
        """Return the numbers as JSON takes them."""
        return {
            "value": self.value,
            "low": self.low,
            "high": self.high,
            "floor": self.floor,
            "floor_95": self.floor_95,
            "p_value": self.p_value,
        }

    def __repr__(self) -> str:
        floor = against_floor(self)
        said = f"{self.metric.title} {with_interval(self.metric, self.ends)}"
        return f"<MetricResult: {said}{f', {floor}' if floor else ''}>"


def result_of(
    metric: Metric, found: Measured, level: float, beyond: dict[str, tuple[float, float]]
) -> MetricResult:
    """Return the result of one metric.

    Args:
        metric: what was measured.
        found: its value, replicates and calibrated values.
        level: nominal coverage of the interval.
        beyond: by metric, ends that the interval must hold.
    """
    value, drawn, honest, biased = found
    low, high = interval(value, drawn, level, biased=biased)
    # After the interval, whose ends no rounding may move past the value.
    drawn = drawn.astype(np.float32).astype(np.float64)
    if metric.name in beyond:
        least, most = beyond[metric.name]
        low, high = min(low, least), max(high, most)
    if honest is None:
        return MetricResult(metric, value, low, high, replicates=drawn)
    return MetricResult(
        metric,
        value,
        low,
        high,
        floor=float(honest.mean()),
        floor_95=float(np.quantile(honest, FLOOR_QUANTILE)),
        p_value=float((1 + np.sum(honest >= less_rounding(value))) / (1 + len(honest))),
        replicates=drawn,
    )


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation(Drawn):
    """What `evaluate` found; prints as a table, and `result["ece"].value` gives a number.

    Attributes:
        source: where the rows came from.
        kind: what the scores were.
        n_classes: number of classes K, None for the top-label form.
        results: by metric name.
        skipped: metric name to the reason why it could not be computed.
        level: nominal coverage of the intervals.
        sample: the parts of the measured rows that pictures and sentences need.
        clipped_nll_rows: rows whose true class has a probability of nearly 0, which NLL counts as
            1.2e-38.
        label_names: names of the labels, for many labels.
        shards: number of files that were read; None for rows in memory.
        broken: files that were left out, with the reason.
        intervals: for many files, how resamples were drawn, in a sentence or two.
        printed: the metrics of the printed table; if empty, all.

    Examples:
        >>> import calibrant as cb
        >>> found = cb.evaluate(cb.load_sample("test"), metrics=["ece"], resamples=200)
        >>> print(found.headline())
        Overconfident by 6.1 points ...
    """

    source: str
    kind: str
    n_classes: int | None
    results: dict[str, MetricResult]
    skipped: dict[str, str]
    level: float
    sample: Sample
    clipped_nll_rows: int = 0
    label_names: tuple[str, ...] | None = None
    shards: int | None = None
    broken: dict[str, str] = field(default_factory=dict[str, str])
    intervals: str = ""
    printed: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> MetricResult:
        """Return the result of one metric.

        Raises:
            KeyError: it was not measured.
        """
        return self.results[name]

    @property
    def n(self) -> int:
        """Number of rows."""
        return self.sample.n

    @property
    def clusters(self) -> int | None:
        """Number of clusters, whose rows aren't independent; None where every row is."""
        return self.sample.clusters

    @property
    def correlation(self) -> float:
        """Correlation of the normal numbers behind calibrated outcomes of two rows of a cluster.

        See `calibrant.metrics.resampling`. For many files it is 0: their floors assume independent
        outcomes.
        """
        return self.sample.correlation

    @property
    def weighted(self) -> bool:
        """Whether rows have weights that aren't all alike."""
        return self.sample.weighted

    @property
    def effective_rows(self) -> float:
        """Number of independent rows of equal weight that would give the mean gap as precisely.

        With weights (sum w)^2 / sum w^2; with clusters the number that gives independent rows the
        variance that the mean residual has over clusters, if that is less.
        """
        return self.sample.effective_rows

    @property
    def top(self) -> TopLabel:
        """The rows sorted by confidence; for many files two weighted rows for each cell.

        Scores that are no probabilities raise `PredictionsError`.
        """
        self.sample.refuse_ranks("a picture")
        return self.sample.rows

    @property
    def scores(self) -> RowScores:
        """The scored rows, in the order that they were given.

        Raises:
            InputError: the result is of many files, which keeps only counts of rows.
        """
        if not isinstance(self.sample, RowSample):
            raise InputError(f"{self.source}: a result of many files keeps no rows, only counts")
        return self.sample.scores

    @cached_property
    def _of_positive(self) -> Sample | None:
        return self.sample.of_positive() if self.sample.binary else None

    @property
    def positive(self) -> TopLabel | None:
        """For binary predictions, the rows sorted by the probability of the positive class.

        This probability takes the place of the confidence, and "is positive" that of "is right".
        """
        return None if self._of_positive is None else self._of_positive.rows

    @property
    def mean_confidence(self) -> float:
        """Mean confidence of the rows."""
        return self.sample.mean_confidence

    @property
    def accuracy(self) -> float:
        """Share of right rows."""
        return self.sample.accuracy

    @property
    def gap(self) -> Gap:
        """Mean confidence minus accuracy, and the ends of its interval (`Gap.of`)."""
        return self.sample.gap(self.level)

    @property
    def mean_probability(self) -> float | None:
        """Mean probability of the positive class; None unless it is binary."""
        return None if self._of_positive is None else self._of_positive.mean_confidence

    @property
    def positive_share(self) -> float | None:
        """Share of rows of the positive class; None unless it is binary."""
        return None if self._of_positive is None else self._of_positive.accuracy

    @property
    def positive_gap(self) -> Gap | None:
        """Mean probability of the positive class minus its share; None unless it is binary."""
        return None if self._of_positive is None else self._of_positive.gap(self.level)

    def headline(self) -> str:
        """Return the finding in a sentence or two."""
        result, state = judge(self), state_of(self)
        if state == "no probabilities":
            return sentence(f"{_claim(self, state)}; {means(self)}")
        claim, grounds = _claim(self, state), _grounds(self, state, result)
        text = f"{claim} ({grounds}){';' if state == 'honest' else ':'} {means(self)}"
        rest = _of_few_rows(self) if result else _of_others(self)
        return " ".join(part for part in (sentence(text) + rest, of_positive(self)) if part)

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON takes it; fractions, not percent."""
        return {
            "file": self.source,
            "kind": self.kind,
            "n": self.n,
            "weighted": self.weighted,
            "effective_rows": self.effective_rows,
            "clusters": self.clusters,
            "correlation": None if self.clusters is None else self.correlation,
            "n_classes": self.n_classes,
            "label_names": self.label_names,
            "level": self.level,
            "state": state_of(self),
            "finding": heading(self),
            "positive": positive_numbers(self),
            "metrics": {name: result.as_dict() for name, result in self.results.items()}
            | dict.fromkeys(self.skipped),
            "clipped_nll_rows": self.clipped_nll_rows,
            "skipped": [{"metric": m, "reason": reason} for m, reason in self.skipped.items()],
        } | self._of_files()

    def _of_files(self) -> dict[str, Any]:
        if self.shards is None:
            return {}
        more = {"shards": self.shards, "intervals": self.intervals}
        return more | {"shards_left_out": left_out(self.broken)}

    def as_table(self) -> Table:
        """Return the table that it prints, a metric a row."""
        head = ["metric", "value", interval_of(self.level), "floor", "floor 95 %"]
        found = self.results
        results = [found[name] for name in self.printed or found if name in found]
        legend = in_percent([result.metric for result in results])
        if any(result.floor is not None for result in results):
            legend += f" {FLOOR}"
        if len(results) < len(found):
            legend += f" {len(found) - len(results)} more are measured; --metrics all shows them."
        return Table(head, [_table_row(result) for result in results], notes=legend)

    def records(self) -> list[dict[str, Any]]:
        """Return a row for each metric: value, ends of the interval, floor, p-value; fractions."""
        return [{"metric": name} | result.as_dict() for name, result in self.results.items()]

    def __str__(self) -> str:
        classes = None if self.positive is not None else self.n_classes
        width = "" if classes is None else f", {classes} classes"
        rows = counted(self.n, "row")
        if self.label_names is not None:
            labels = counted(len(self.label_names), "label")
            rows = f"{counted(self.n, 'prediction')} of {labels}, pooled"
        table, named = self.as_table(), "" if self.source in UNNAMED else f"{self.source}: "
        parts = [
            wrap(self.headline()),
            f"{named}{rows}{width}, {FORMS.get(self.kind, self.kind)}",
            wrap(weighing(self)),
            table.to_text(),
            "\n".join(f"{name} left out: {reason}" for name, reason in self.skipped.items()),
            wrap(
                f"In {counted(self.clipped_nll_rows, 'row')} the true class has a probability of "
                "nearly 0, for which NLL counts 87.3."
            )
            if self.clipped_nll_rows
            else "",
            wrap(table.notes),
            wrap(self.intervals),
        ]
        return "\n\n".join(part for part in parts if part) + left_out_text(self.broken)


def judge(evaluation: Evaluation, preferred: str | None = None) -> MetricResult | None:
    """Return the result that decides on perfection: the preferred metric if it may, or the first.

    Returns:
        None if no metric that may decide was measured.
    """
    judges = {n: r for n, r in evaluation.results.items() if r.metric.omnibus}
    return judges.get(preferred or "", next(iter(judges.values()), None))


def state_of(evaluation: Evaluation, preferred: str | None = None) -> State:
    """Return in which way the confidences are off.

    Without a metric that may decide, the mean gap is all that is known: it can show that
    something is wrong, but not that nothing is.
    """
    if evaluation.sample.facts.ranks:
        return "no probabilities"
    result, (gap, low, high) = judge(evaluation, preferred), evaluation.gap
    if result is not None:
        if result.at_floor:
            return "honest"
        if abs(gap) < result.value / 3:
            return "both ways"
        if low <= 0 <= high:
            return "no direction"
    elif low <= 0 <= high:
        return "unknown"
    return "overconfident" if gap > 0 else "underconfident"


def _claim(evaluation: Evaluation, state: State) -> str:
    """Return how far the confidences are off, in lower case."""
    if state == "honest":
        return f"not distinguishable from perfectly calibrated with {counted(evaluation.n, 'row')}"
    if state in WITHOUT_NUMBERS:
        return WITHOUT_NUMBERS[state]
    return f"{state} by {percent(abs(evaluation.gap.value))} points"


def _grounds(evaluation: Evaluation, state: State, result: MetricResult | None) -> str:
    """Return the numbers that the claim rests on."""
    gap, low, high = evaluation.gap
    interval = interval_of(evaluation.level)
    if state == "honest":
        assert result is not None
        assert result.floor_95 is not None
        metric = result.metric
        return (
            f"{metric.title} {with_unit(metric, result.value)}, noise alone gives up to "
            f"{with_unit(metric, result.floor_95)}"
        )
    if state in ("both ways", "no direction"):
        assert result is not None
        found = with_interval(result.metric, result.ends, evaluation.level)
        return f"{result.metric.title} {found}".replace(" (", ", ").removesuffix(")")
    if state == "unknown":
        return f"difference {percent(gap)} points, {interval} {percent(low)} to {percent(high)}"
    ends = sorted((low, high) if gap > 0 else (-low, -high))
    return f"{interval} {percent(ends[0])} to {percent(ends[1])}"


def finding(evaluation: Evaluation, preferred: str | None = None) -> str:
    """Return how far the confidences are off, with an interval, as a clause in lower case."""
    state = state_of(evaluation, preferred)
    claim = _claim(evaluation, state)
    if state in ("honest", "no probabilities"):
        return claim
    return f"{claim} ({_grounds(evaluation, state, judge(evaluation, preferred))})"


def means(evaluation: Evaluation) -> str:
    """Return mean confidence and accuracy as a clause."""
    if evaluation.sample.facts.ranks:
        return f"accuracy {percent(evaluation.accuracy)} %"
    confidence, accuracy = evaluation.mean_confidence, evaluation.accuracy
    return f"mean confidence {percent(confidence)} %, accuracy {percent(accuracy)} %"


def of_positive(evaluation: Evaluation) -> str:
    """Describe the positive class of binary predictions in a sentence; empty for other kinds."""
    mean, share = evaluation.mean_probability, evaluation.positive_share
    gap = evaluation.positive_gap
    if mean is None or share is None or gap is None:
        return ""
    interval = f"{interval_of(evaluation.level)} {percent(gap.low)} to {percent(gap.high)}"
    text = (
        f"the positive class has a mean probability of {percent(mean)} % and a share of "
        f"{percent(share)} % (difference {percent(gap.value)} points, {interval})"
    )
    result = evaluation.results.get("ece_positive")
    if result is None:
        return sentence(text)
    side = "no more" if result.at_floor else "more"
    return sentence(
        f"{text}; {result.metric.title} {with_unit(result.metric, result.value)}, {side} than "
        "noise gives"
    )


def positive_numbers(evaluation: Evaluation) -> dict[str, float | str | None] | None:
    """Return the numbers of that sentence as JSON takes them, and the sentence."""
    gap = evaluation.positive_gap
    if gap is None:
        return None
    return {
        "mean_probability": evaluation.mean_probability,
        "share": evaluation.positive_share,
        "gap": gap.value,
        "gap_low": gap.low,
        "gap_high": gap.high,
        "finding": of_positive(evaluation),
    }


def _of_few_rows(evaluation: Evaluation) -> str:
    """Return what could have been seen, where noise alone gives as much as is bad."""
    result = judge(evaluation)
    if result is None or not result.at_floor or (result.floor_95 or 0) < MUCH_NOISE:
        return ""
    rows = evaluation.top
    worth = max(round(evaluation.effective_rows), 1)
    seen = smallest_visible_error(rows.confidence, worth, weights=rows.weight)
    if seen is None:
        return " So few rows prove nothing: even a model that is never right would pass."
    return f" So few rows prove little: they mostly miss an ECE below {100 * seen:.0f} %."


def _of_others(evaluation: Evaluation) -> str:
    """Return what the metrics that may not decide say, each by its name and for itself."""
    quiet = [r.metric.title for r in evaluation.results.values() if r.at_floor]
    if not quiet:
        return ""
    names = listed(quiet) if len(quiet) < 3 else f"{len(quiet)} of the metrics below"
    return (
        f" {names} {'shows' if len(quiet) == 1 else 'show'} no more than noise would, which alone "
        "doesn't prove the confidences calibrated; measure ece as well."
    )


def heading(evaluation: Evaluation) -> str:
    """Return the finding alone, for a page on which `standing` comes next."""
    return sentence(finding(evaluation))


def standing(evaluation: Evaluation) -> str:
    """Return mean confidence and accuracy, and the metric that decides with its floor."""
    text, result = sentence(means(evaluation)), judge(evaluation)
    if result is None:
        return text
    value = with_interval(result.metric, result.ends, evaluation.level)
    text = f"{text} {result.metric.title} {value}. {honest_would_show(result)}"
    text += _of_few_rows(evaluation)
    return " ".join(part for part in (text, of_positive(evaluation)) if part)


def honest_would_show(result: MetricResult, like: str = "these") -> str:
    """Return what calibrated confidences would show of a metric that has a floor, as a sentence.

    Args:
        result: of the metric.
        like: whose confidences.
    """
    assert result.floor is not None
    assert result.floor_95 is not None
    floor, floor_95 = (with_unit(result.metric, v) for v in (result.floor, result.floor_95))
    return (
        f"Perfectly calibrated confidences like {like} would have {floor} on average, and up to "
        f"{floor_95} in 95 % of cases."
    )


def against_floor(result: MetricResult) -> str:
    """Return on which side of its floor a value lies; nothing where there is none."""
    if result.floor is None:
        return ""
    if result.at_floor:
        return "at the floor: no more than noise gives"
    return "above the floor: more than noise gives"


def weighing(evaluation: Evaluation) -> str:
    """Return what weights and clusters make of the rows, in a sentence or two, or nothing."""
    worth = f"{evaluation.effective_rows:.0f}"
    if evaluation.clusters is None:
        return f"Weighted: worth {worth} rows of equal weight." if evaluation.weighted else ""
    weighed = "weighted and " if evaluation.weighted else ""
    if evaluation.shards is not None:
        number = f"{evaluation.clusters} clusters, worth {worth} independent rows"
        return f"The rows are {weighed}in {number}."
    return (
        f"The rows are {weighed}in {evaluation.clusters} clusters, worth {worth} independent rows. "
        "Intervals draw whole clusters. The floor assumes that rows of a cluster are wrong "
        f"together as often as here (correlation {evaluation.correlation:.2f} on the normal scale)."
    )


def _table_row(result: MetricResult) -> list[str]:
    metric = result.metric
    low, high = show(metric, result.low), show(metric, result.high)
    return [
        metric.title,
        show(metric, result.value),
        f"{low} .. {high}",
        show(metric, result.floor),
        show(metric, result.floor_95),
    ]
