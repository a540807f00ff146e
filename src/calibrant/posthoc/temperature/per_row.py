"""Families of maps that give each row a temperature of its own, or all rows the same."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from calibrant.core.arguments import check_arguments
from calibrant.core.arrays import Array, FloatArray, to_numpy
from calibrant.core.errors import InputError
from calibrant.core.weights import check_weights, normalised
from calibrant.posthoc.applying import apply_map
from calibrant.posthoc.base import Calibrator, FitReport
from calibrant.posthoc.pieces import as_type, below_top, softmax_of_gaps
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import RowSummary


@dataclass(eq=False)
class RowTemperature(Calibrator):
    """Family: softmax(beta_i z_i), with an inverse temperature that may differ by row.

    Keeps the order of the classes within every row, so also the predicted class.
    """

    keeps_prediction: ClassVar[bool] = True
    fits_masked: ClassVar[bool] = True

    @abstractmethod
    def betas(self, xp: Any, logits: Array, learnt: Mapping[str, Array], masks: bool) -> Array:
        """Return the (n,) or () inverse temperatures of (n, K) logits; see `transform`."""

    def temperatures(self, logits: Array) -> FloatArray:
        """Return the (N,) temperatures that `predict_proba` uses."""
        return 1.0 / self.inverse_temperatures(logits)

    def inverse_temperatures(self, logits: Array) -> FloatArray:
        """Return the (N,) inverse temperatures that `predict_proba` uses."""

        def betas(xp: Any, rows: Array, _: None, learnt: Mapping[str, Array], masks: bool) -> Array:
            one = xp.ones(int(rows.shape[0]), dtype=xp.float64, device=rows.device)
            return one * self.betas(xp, rows, learnt, masks)

        return to_numpy(apply_map(betas, self._checked(logits), None, self.map_arrays()))

    def transform(
        self,
        xp: Any,
        logits: Array,
        features: Array | None,
        learnt: Mapping[str, Array],
        *,
        masks: bool = True,
    ) -> Array:
        """Return softmax(beta_i z_i)."""
        beta = as_type(xp, self.betas(xp, logits, learnt, masks), logits)
        column = beta if len(beta.shape) == 0 else beta[:, None]
        gaps = below_top(xp, logits)
        gaps *= column
        return softmax_of_gaps(xp, gaps)


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
        report = self._fit_rows(self._counted(rows))
        self.n_classes_, self.form_, self.fit_report_ = rows.n_classes, "rows", report
        return self

    def _counted(self, rows: RowSummary) -> RowSummary:
        """Return the rows that count, as `Predictions.counted` does."""
        if rows.weights is None:
            return rows
        if not self.weighs:
            raise InputError(f"method '{self.method}' can't be fitted to a summary with weights")
        weights = check_weights(rows.weights, rows.n, "row summary")
        rows = rows.take(weights > 0)
        return replace(rows, weights=normalised(weights[weights > 0]))

    def _fit(self, predictions: Predictions) -> FitReport:
        return self._fit_rows(predictions.summary)
