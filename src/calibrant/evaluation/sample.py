"""One sample, of which metrics, intervals and floors are made: rows in memory, or cells.

`evaluate` asks the same of both: the residual curve, the mean of a loss, values on resamples and on
calibrated outcomes. Rows in memory are drawn one by one (`calibrant.evaluation.bootstrap`). Cells
hold any number of rows, merge exactly, and are drawn from by how many rows each holds
(`calibrant.evaluation.cell_sample`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import FloatArray
from calibrant.core.errors import PredictionsError
from calibrant.core.weights import are_counts
from calibrant.core.weights import mean as mean_of
from calibrant.evaluation.bootstrap import Replicates, bootstrap, floor
from calibrant.evaluation.uncertainty import (
    MOST_RESAMPLES,
    Gap,
    MeanResidual,
    default_resamples,
    stretched,
)
from calibrant.metrics.metric_types import (
    Facts,
    MeanMetric,
    Measured,
    Metric,
    RowsMetric,
    each_once,
)
from calibrant.metrics.resampling import Clusters, HonestDraws
from calibrant.metrics.top_label import ResidualCurves, TopLabel
from calibrant.predictions.predictions import NO_PROBABILITY, SMALLEST_PROBABILITY, Predictions
from calibrant.predictions.scoring import RowScores, score_rows


class Sample(ABC):
    """Scored rows of one event: that the predicted label is right, or that of the positive class.

    Attributes:
        source: where the rows came from.
        kind: what their scores were.
        n_classes: number of classes K, None for the top-label form.
        label_names: of many labels what these are called.
        class_names: what the classes are called; positive_name: of binary rows the positive one.
        margins: (N,) gaps of the two largest logits before any recalibration, in float32; None
            where they aren't known.
    """

    source: str
    kind: str
    n_classes: int | None
    label_names: tuple[str, ...] | None
    class_names: tuple[str, ...] | None = None
    positive_name: str | None = None
    margins: NDArray[np.float32] | None = None

    @property
    @abstractmethod
    def facts(self) -> Facts:
        """What decides which metrics can be computed."""

    @property
    @abstractmethod
    def clusters(self) -> int | None:
        """Number of clusters that are resampled as wholes; None where every row stands alone."""

    @property
    @abstractmethod
    def correlation(self) -> float:
        """That of the normal numbers behind calibrated outcomes of two rows of a cluster."""

    @property
    @abstractmethod
    def clipped(self) -> int:
        """Rows whose true class has a probability of nearly 0."""

    @property
    @abstractmethod
    def rows(self) -> TopLabel:
        """The rows sorted by confidence; of cells two rows each, the wrong and the right ones."""

    @property
    @abstractmethod
    def mean_residual(self) -> MeanResidual:
        """The mean of c - a, and how sure it is."""

    @property
    @abstractmethod
    def outcome_variance(self) -> float:
        """Mean of c (1 - c)."""

    @abstractmethod
    def of_positive(self) -> Self:
        """Return the same rows of a binary problem, seen from the positive class.

        Its probability takes the place of the confidence, being of it that of being right.
        """

    @abstractmethod
    def curve(self) -> ResidualCurves:
        """Return the residual curve, a batch of one."""

    @abstractmethod
    def mean(self, metric: MeanMetric) -> float:
        """Return the mean of a metric's number of each row."""

    @abstractmethod
    def resample(self, metrics: Sequence[Metric], resamples: int, seed: int) -> Replicates:
        """Return the (R,) values of means and functions of the curve on R resamples."""

    @abstractmethod
    def honest(self, metrics: Sequence[Metric], draws: int, seed: int) -> Replicates:
        """Return the (D,) values under perfect calibration of those metrics that have a floor."""

    @abstractmethod
    def whole_rows(
        self, metrics: Sequence[RowsMetric], resamples: int, seed: int
    ) -> dict[str, Measured]:
        """Return metrics of whole probability vectors, with their replicates."""

    def beyond(
        self, metrics: Sequence[Metric], level: float, seed: int
    ) -> dict[str, tuple[float, float]]:
        """Return ends that intervals must hold where hardly any row is wrong, or right."""
        return {}

    def refusal(self, metric: Metric) -> str | None:
        """Return why a metric can't be computed of these rows, as a clause, or None."""
        return metric.refusal(self.facts)

    @property
    def n(self) -> int:
        """Number of rows."""
        return self.facts.n

    @property
    def binary(self) -> bool:
        """Whether the rows are about one event."""
        return self.facts.binary

    @property
    def weighted(self) -> bool:
        """Whether rows have weights that aren't all alike."""
        return self.facts.weighted

    def resamples_of(self, rows: int) -> int:
        """Return how many resamples of so many rows are affordable."""
        return MOST_RESAMPLES

    @property
    def mean_confidence(self) -> float:
        """Mean confidence, weighted; `PredictionsError` for scores that are no probabilities."""
        self.refuse_ranks("a mean confidence")
        return self.rows.mean_confidence

    def refuse_ranks(self, what: str) -> None:
        """Raise `PredictionsError` if the scores only rank the rows, and are no probabilities."""
        if self.facts.ranks:
            raise PredictionsError(f"{self.source}: {what} {NO_PROBABILITY}")

    @property
    def accuracy(self) -> float:
        """Share of right rows, weighted."""
        return self.rows.accuracy

    @property
    def effective_rows(self) -> float:
        """How many independent rows of equal weight would know the mean gap as well.

        With weights (sum w)^2 / sum w^2; with clusters the number that gives independent rows the
        variance that the mean residual has over clusters, if that is less.
        """
        if not self.weighted and self.clusters is None:
            return float(self.n)
        # Rounding mustn't make more of them than there are rows.
        return min(float(self.n), 1 / self.mean_residual.share)

    def gap(self, level: float) -> Gap:
        """Return mean confidence minus accuracy, and the ends of its interval (`Gap.of`)."""
        self.refuse_ranks("a mean confidence")
        return Gap.of_law(self.mean_residual, self.accuracy, level, self.clusters)

    def for_pictures(self) -> Self:
        """Return what a result keeps: all that pictures and sentences read, and little memory."""
        return self


@dataclass(frozen=True, eq=False)
class RowSample(Sample):
    """Rows in memory.

    Attributes:
        source: where they came from.
        kind: what their scores were.
        n_classes: number of classes K, None for the top-label form.
        scores: of every row how sure it is, whether it is right, and what it loses.
        groups: their clusters, in the same order; None where every row stands alone.
        predictions: the rows themselves, for metrics of whole rows; results keep none.
        label_names: of many labels what these are called.
        weights: those of the rows as they were given, on a scale that other samples share.
        class_names, positive_name, margins: see `Sample`; margins that nobody gives are found when
            a result keeps the rows.
        labels: (n,) true classes, for the page that lists rows; None where a row is no prediction
            of its own, or has no classes.
        row_numbers: see `Predictions`.
    """

    source: str
    kind: str
    n_classes: int | None
    scores: RowScores
    groups: Clusters | None = None
    predictions: Predictions | None = None
    label_names: tuple[str, ...] | None = None
    weights: FloatArray | None = None
    class_names: tuple[str, ...] | None = None
    positive_name: str | None = None
    margins: NDArray[np.float32] | None = None
    labels: NDArray[Any] | None = None
    row_numbers: NDArray[Any] | None = None

    @classmethod
    def of(cls, predictions: Predictions) -> Self:
        """Return predictions, scored."""
        counted, weights = predictions.counted, predictions.weights
        scores = score_rows(counted)
        if counted.kind == "score":
            # Ranks, which a number from 0 to 1 for any score can't tell apart at the ends.
            _, rank = np.unique(counted.scores, return_inverse=True)
            scores = replace(scores, confidence=(rank + 0.5) / (rank.max() + 1))
        return cls(
            counted.source,
            counted.form,
            counted.n_classes,
            scores,
            Clusters.of(counted.clusters),
            counted,
            counted.label_names,
            None if weights is None else weights[weights > 0],
            counted.class_names,
            counted.positive_name if counted.binary else None,
            labels=None if predictions.grid is not None else counted.known_labels,
            row_numbers=counted.row_numbers,
        )

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields, without what can be made of them."""
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}

    @property
    def facts(self) -> Facts:
        """What decides which metrics can be computed."""
        weights = self.scores.weights
        return Facts(
            len(self.scores.confidence),
            self.kind in ("prob", "logit"),
            self.n_classes is not None,
            weights is not None,
            are_counts(weights),
            self.groups is not None,
            self.kind == "score",
        )

    @property
    def clusters(self) -> int | None:
        """Number of clusters, whose rows aren't independent; None where every row is."""
        return None if self.groups is None else self.groups.number

    @cached_property
    def _draws(self) -> HonestDraws:
        return HonestDraws.like(self.rows, self.groups)

    @property
    def correlation(self) -> float:
        """That of the normal numbers behind calibrated outcomes of two rows of a cluster.

        See `calibrant.metrics.resampling`.
        """
        return self._draws.correlation

    @property
    def clipped(self) -> int:
        """Rows whose true class has a probability of nearly 0."""
        return int(np.sum(self.scores.nll >= -np.log(SMALLEST_PROBABILITY) * (1 - 1e-12)))

    @property
    def rows(self) -> TopLabel:
        """The rows sorted by confidence."""
        return self._rows

    @cached_property
    def _rows(self) -> TopLabel:
        return TopLabel.sort(self.scores.confidence, self.scores.correct, self.scores.weights)

    @property
    def mean_residual(self) -> MeanResidual:
        """The mean of c - a, and how sure it is."""
        return MeanResidual.of(self.rows, self._draws.clusters)

    @property
    def outcome_variance(self) -> float:
        """Mean of c (1 - c)."""
        return float(np.mean(self.rows.confidence * (1 - self.rows.confidence)))

    def resamples_of(self, rows: int) -> int:
        """Return how many resamples of so many rows are affordable."""
        return default_resamples(rows)

    def gap(self, level: float) -> Gap:
        """Return mean confidence minus accuracy, and the ends of its interval (`Gap.of`)."""
        self.refuse_ranks("a mean confidence")
        return Gap.of(self.rows, level, self._draws.clusters)

    def of_positive(self) -> Self:
        """Return the same rows of a binary problem, seen from the positive class."""
        return replace(self, scores=self.scores.of_positive())

    def curve(self) -> ResidualCurves:
        """Return the residual curve, a batch of one."""
        return self.rows.curves()

    def mean(self, metric: MeanMetric) -> float:
        """Return the mean of a metric's number of each row."""
        return mean_of(metric.per_row(self.scores), self.scores.weights)

    def resample(self, metrics: Sequence[Metric], resamples: int, seed: int) -> Replicates:
        """Return the (R,) values of means and functions of the curve on R resamples."""
        return bootstrap(self.scores, self.rows, metrics, resamples, seed, self.groups)

    def honest(self, metrics: Sequence[Metric], draws: int, seed: int) -> Replicates:
        """Return the (D,) values under perfect calibration of those metrics that have a floor."""
        return floor(self.rows, metrics, draws, seed, self._draws)

    def whole_rows(
        self, metrics: Sequence[RowsMetric], resamples: int, seed: int
    ) -> dict[str, Measured]:
        """Return metrics of whole probability vectors, with their replicates."""
        return each_once({m.name: m.measure for m in metrics}, self.predictions, resamples, seed)

    def beyond(
        self, metrics: Sequence[Metric], level: float, seed: int
    ) -> dict[str, tuple[float, float]]:
        """Return ends that intervals must hold where hardly any row is wrong, or right."""
        if self.predictions is None:  # what a result keeps
            return {}
        return stretched(metrics, self.predictions, self.scores, level, seed)

    def for_pictures(self, *, losses: bool = False) -> Self:
        """Return what a result keeps: confidences, predicted labels, which are right, margins.

        With `losses` also those of each row, so that it can be measured later.
        """
        rows, margins = self.predictions, self.margins
        if margins is None and rows is not None and not rows.top_only:
            margins = rows.margins.astype(np.float32)
        scores, none = self.scores, np.zeros(1)[:0]
        labels = None if self.labels is None else _in_few_bytes(self.labels)
        scores = replace(scores, predicted=_in_few_bytes(scores.predicted))
        if not losses:
            scores = replace(scores, nll=none, brier=none)
        slim = replace(
            self, scores=scores, predictions=None, weights=None, margins=margins, labels=labels
        )
        # What is sorted and drawn already needn't be made anew.
        vars(slim).update({n: v for n, v in vars(self).items() if n in ("_rows", "_draws")})
        return slim


def _in_few_bytes(numbers: NDArray[Any]) -> NDArray[Any]:
    return numbers.astype(np.min_scalar_type(-1 - int(numbers.max())))


def losses_of(sample: RowSample, metrics: Sequence[Metric]) -> dict[str, FloatArray]:
    """Return of each mean metric what it averages, (N,) in the caller's order."""
    means = [metric for metric in metrics if isinstance(metric, MeanMetric)]
    positive = sample.of_positive() if any(metric.of_positive for metric in means) else sample
    return {m.name: m.per_row((positive if m.of_positive else sample).scores) for m in means}
