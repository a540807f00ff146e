"""Families of maps that give each row a temperature of its own, or all rows the same."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Self

from calibrant.core.arguments import check_arguments
from calibrant.core.arrays import Array, FloatArray
from calibrant.posthoc.base import Calibrator, FitReport
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import RowSummary, softmax, summarize


@dataclass(eq=False)
class RowTemperature(Calibrator):
    """Family: softmax(beta_i z_i), with an inverse temperature that may differ by row.

    Keeps the order of the classes within every row, so also the predicted class.
    """

    keeps_prediction: ClassVar[bool] = True
    fits_masked: ClassVar[bool] = True

    @abstractmethod
    def inverse_temperatures(self, logits: Array) -> FloatArray:
        """Return the (N,) inverse temperatures of fitted-width logits."""

    def temperatures(self, logits: Array) -> FloatArray:
        """Return the (N,) temperatures that `predict_proba` uses."""
        return 1.0 / self.inverse_temperatures(self._checked(logits))

    def _apply(self, logits: Array, features: Array | None) -> Array:
        return softmax(logits, self.inverse_temperatures(logits))


@dataclass(eq=False)
class SummaryTemperature(RowTemperature):
    """Row temperature that reads no more of the logits than a row summary holds."""

    @abstractmethod
    def _fit_rows(self, rows: RowSummary) -> FitReport:
        """Learn from a row summary."""

    def fit_rows(self, rows: RowSummary) -> Self:
        """Fit on a row summary, such as shards summarised apart and joined, and return self.

        Raises:
            InputError: an argument of the constructor is out of range, or the summary lacks what
                the method reads.
        """
        check_arguments(self)
        report = self._fit_rows(rows)
        self.classes_, self.fit_report_ = rows.classes, report
        return self

    def _fit(self, predictions: Predictions) -> FitReport:
        return self._fit_rows(summarize(predictions.scores, predictions.labels, curve="dense"))
