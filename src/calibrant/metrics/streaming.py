"""One state from which nearly every metric follows, whose parts may be built apart and added.

A shard, a batch or a worker leaves two grids of bin sums and one sum for each mean, 206 kB whatever
its number of rows and classes:

    state = sum(MetricSums.of(shard) for shard in shards)
    state.value("ece"), state.value("smce"), state.value("nll")

Means and metrics of equal-width bins lose nothing; `calibrant.metrics.bins` says how little the
others lose. Metrics of whole probability vectors aren't in it; classwise ECE has a state of its
own, `calibrant.metrics.classwise.classwise_bin_sums`.
"""

from __future__ import annotations

from dataclasses import dataclass

from calibrant.core.errors import InputError
from calibrant.core.weights import mean
from calibrant.metrics.bins import GRID_CELLS, LOGIT_CELLS, BinSums
from calibrant.metrics.registry import METRICS, CurveMetric, MeanMetric, metrics_named
from calibrant.metrics.top_label import TopLabel
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.scoring import RowScores, score_rows


@dataclass(frozen=True, eq=False)
class MetricSums:
    """Sums over rows of predictions; those of shards, added, are those of the whole.

    Attributes:
        n: number of rows.
        totals: by mean metric, the sum of its numbers, weighted; without those that need full rows
            if any shard had only confidences.
        uniform: bin sums over cells of equal width in confidence.
        logit: bin sums over cells of equal width in logit confidence.

    Examples:
        >>> import calibrant as cb
        >>> test = cb.load_sample("test")
        >>> shards = [test.take(slice(start, start + 2_500)) for start in range(0, 10_000, 2_500)]
        >>> state = sum(cb.MetricSums.of(shard) for shard in shards)
        >>> ece = cb.expected_calibration_error(test.probs, test.labels)
        >>> state.n, abs(state.value("ece") - ece) < 1e-6
        (10000, True)
    """

    n: int
    totals: dict[str, float]
    uniform: BinSums
    logit: BinSums

    @classmethod
    def of(cls, predictions: Predictions | RowScores) -> MetricSums:
        """Sum predictions of any kind, or rows that are scored already."""
        scores = score_rows(predictions) if isinstance(predictions, Predictions) else predictions
        rows = TopLabel.sort(scores.confidence, scores.correct, scores.weights)
        totals = {
            name: mean(metric.per_row(scores), scores.weights) * rows.total
            for name, metric in METRICS.items()
            if isinstance(metric, MeanMetric) and (scores.has_rows or not metric.needs_rows)
        }
        return cls(
            rows.n,
            totals,
            BinSums.of(rows, GRID_CELLS, "uniform"),
            BinSums.of(rows, LOGIT_CELLS, "logit"),
        )

    def __add__(self, other: MetricSums) -> MetricSums:
        """Return the sums of both sets of rows together."""
        totals = {k: v + other.totals[k] for k, v in self.totals.items() if k in other.totals}
        return MetricSums(
            self.n + other.n,
            totals,
            self.uniform + other.uniform,
            self.logit + other.logit,
        )

    def __radd__(self, start: int) -> MetricSums:
        """Return itself, so that `sum` may start from 0."""
        if start != 0:
            return NotImplemented
        return self

    def value(self, name: str) -> float:
        """Return the value of one metric.

        Raises:
            UnknownMethodError: no metric goes by this name.
            InputError: it doesn't follow from these sums.
        """
        metric = metrics_named([name])[0]
        if metric.of_positive:
            raise InputError(f"'{name}' doesn't follow from these sums: they are of the top label")
        if isinstance(metric, CurveMetric):
            grid = self.uniform if metric.grid == "uniform" else self.logit
            return metric.of_curve(grid.curves())
        if name not in self.totals:
            raise InputError(f"'{name}' doesn't follow from these sums: it needs the rows")
        return self.totals[name] / float(self.uniform.total)

    def values(self) -> dict[str, float]:
        """Return every metric that follows from these sums, by name."""
        curves = [name for name, metric in METRICS.items() if isinstance(metric, CurveMetric)]
        return {name: self.value(name) for name in METRICS if name in curves or name in self.totals}
