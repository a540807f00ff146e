"""Measure predictions: every metric with its interval and its floor, in one pass over the rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from calibrant.core.arrays import Array, FloatArray
from calibrant.core.errors import InputError
from calibrant.evaluation import findings, printed
from calibrant.evaluation.rare_outcomes import Gap, stretched
from calibrant.evaluation.uncertainty import (
    DEFAULT_LEVEL,
    FLOOR_QUANTILE,
    bootstrap,
    default_resamples,
    floor,
    interval,
    less_rounding,
)
from calibrant.metrics.full_rows import Measured
from calibrant.metrics.parts import each_once
from calibrant.metrics.registry import metrics_named
from calibrant.metrics.shapes import Metric, RowsMetric, values_of_rows
from calibrant.metrics.top_label import TopLabel
from calibrant.predictions.predictions import SMALLEST_PROBABILITY, Predictions
from calibrant.predictions.scoring import RowScores, score_rows


@dataclass(frozen=True, eq=False)
class MetricResult:
    """A measured number and how far to trust it. All values are fractions or nats.

    Attributes:
        metric: what was measured, with its convention.
        value: the metric on all rows.
        low: lower end of the bootstrap interval.
        high: upper end.
        floor: expected value if the confidences were perfectly honest; None for metrics that have
            no floor.
        floor_95: 95 % quantile of that; a value below can't be told from perfect at this N.
        p_value: share of perfectly honest data sets that would show at least this value.
        replicates: (R,) values on the resamples, paired over calibrators measured with one seed.

    Examples:
        >>> import calibrant as cb
        >>> ece = cb.evaluate(cb.load_sample("test"), metrics=["ece"], resamples=200)["ece"]
        >>> print(f"{ece.value:.3f}; an honest network would show {ece.floor:.3f}")
        0.061; an honest network would show 0.006
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
        """Whether the value is no more than noise would give honest confidences.

        If `metric.judges`, the confidences then can't be told from perfect ones; any other metric
        sees only a part of what may be wrong.
        """
        return self.floor_95 is not None and less_rounding(self.value) <= self.floor_95

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


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What `evaluate` found; prints as a table, and `result["ece"].value` gives a number.

    Attributes:
        source: where the rows came from.
        kind: what the scores were.
        n_classes: number of classes K, None for the top-label form.
        results: by metric name.
        skipped: metric name to the reason why it could not be computed.
        scores: the scored rows.
        rows: the same, sorted by confidence.
        level: nominal coverage of the intervals.

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
    scores: RowScores
    rows: TopLabel
    level: float

    @property
    def n(self) -> int:
        """Number of rows."""
        return self.rows.n

    def __getitem__(self, name: str) -> MetricResult:
        """Return the result of one metric.

        Raises:
            KeyError: it was not measured.
        """
        return self.results[name]

    @property
    def clipped_nll_rows(self) -> int:
        """Rows whose true class has a probability of nearly 0, which NLL counts as 1.2e-38."""
        if self.kind != "probs":
            return 0
        return int(np.sum(self.scores.nll >= -np.log(SMALLEST_PROBABILITY) * (1 - 1e-12)))

    @property
    def gap(self) -> Gap:
        """Mean confidence less accuracy, and the ends of its interval (`Gap.of`)."""
        return Gap.of(self.rows, self.level)

    def headline(self) -> str:
        """Return the finding in one sentence, or two; see `calibrant.evaluation.findings`."""
        return findings.headline(self)

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON takes it; fractions, not percent."""
        return {
            "file": self.source,
            "kind": self.kind,
            "n": self.n,
            "n_classes": self.n_classes,
            "level": self.level,
            "state": findings.state_of(self),
            "finding": findings.heading(self),
            "metrics": {name: result.as_dict() for name, result in self.results.items()}
            | dict.fromkeys(self.skipped),
            "clipped_nll_rows": self.clipped_nll_rows,
            "skipped": [{"metric": m, "reason": reason} for m, reason in self.skipped.items()],
        }

    def __str__(self) -> str:
        return printed.evaluation_text(self)


def evaluate(
    predictions: Predictions | Array,
    labels: Array | None = None,
    *,
    metrics: Sequence[str] | str | None = None,
    resamples: int | None = None,
    level: float = DEFAULT_LEVEL,
    seed: int = 0,
) -> Evaluation:
    """Measure predictions: each metric with a bootstrap interval and, where it has one, the floor.

    Args:
        predictions: a `Predictions`, or an (N, K) array of probabilities (not logits; for those
            pass ``Predictions.from_logits(logits, labels)``).
        labels: (N,) true classes, with an array.
        metrics: names of metrics, or ``"all"``; the seven of `CORE_METRICS` for None.
        resamples: bootstrap resamples, and simulated honest data sets; None for 1 000, or fewer
            for more than 100 000 rows, but at least 100.
        level: nominal coverage of the intervals, in (0, 1).
        seed: the same seed gives the same intervals, and pairs them over calibrators.

    Raises:
        PredictionsError: unusable arrays.
        UnknownMethodError: no such metric.
        InputError: resamples or level out of range.

    Examples:
        >>> import calibrant as cb
        >>> honest = cb.synthetic.tempered(5_000, 10, temperature=1.0).predictions
        >>> ece = cb.evaluate(honest, metrics=["ece"], resamples=200)["ece"]
        >>> ece.value > 0.005, ece.value < ece.floor_95  # it isn't 0, but no more than noise
        (True, True)
    """
    if not isinstance(predictions, Predictions):
        if labels is None:
            raise InputError("evaluate needs labels with an array of probabilities")
        predictions = Predictions.from_probs(predictions, labels)
    if resamples is None:
        resamples = default_resamples(predictions.n)
    if resamples < 2:
        raise InputError(f"resamples must be at least 2, not {resamples}")
    if not 0 < level < 1:
        raise InputError(f"level must lie between 0 and 1, not {level}")
    if seed < 0:
        raise InputError(f"seed must not be negative, but is {seed}")
    scores = score_rows(predictions)
    rows = TopLabel.sort(scores.confidence, scores.correct)
    wanted, skipped = metrics_named(metrics), dict[str, str]()
    if not scores.has_rows:
        reason = "it needs a score for every class"
        skipped = {metric.name: reason for metric in wanted if metric.needs_rows}
        wanted = [metric for metric in wanted if not metric.needs_rows]
    for metric in [metric for metric in wanted if predictions.n < metric.fewest_rows]:
        skipped[metric.name] = f"it needs at least {metric.fewest_rows} rows"
        wanted.remove(metric)
    results = _results(wanted, predictions, scores, rows, resamples, level, seed)
    return Evaluation(
        predictions.source,
        predictions.kind,
        predictions.n_classes,
        results,
        skipped,
        scores,
        rows,
        level,
    )


def _results(
    wanted: Sequence[Metric],
    predictions: Predictions,
    scores: RowScores,
    rows: TopLabel,
    resamples: int,
    level: float,
    seed: int,
) -> dict[str, MetricResult]:
    """Return the results of all metrics; those of one shape share their resamples."""
    whole = [metric for metric in wanted if isinstance(metric, RowsMetric)]
    others = [metric for metric in wanted if not isinstance(metric, RowsMetric)]
    drawn = bootstrap(scores, rows, others, resamples, seed)
    honest = floor(rows, others, resamples, seed)
    beyond = stretched(wanted, predictions, scores, level, seed)
    found = each_once({m.name: m.measure for m in whole}, predictions, resamples, seed)
    for name, value in values_of_rows(others, scores, rows).items():
        found[name] = Measured(value, drawn[name], honest.get(name), name in honest)
    return {metric.name: _result(metric, found[metric.name], level, beyond) for metric in wanted}


def _result(
    metric: Metric, found: Measured, level: float, beyond: dict[str, tuple[float, float]]
) -> MetricResult:
    value, drawn, honest, biased = found
    low, high = interval(value, drawn, level, biased=biased)
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
