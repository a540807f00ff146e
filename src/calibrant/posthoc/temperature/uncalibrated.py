"""The network's own softmax."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from calibrant.core.arrays import Array
from calibrant.posthoc.base import Calibrator, FitReport
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import softmax


@dataclass(eq=False)
class Uncalibrated(Calibrator):
    """The network's own softmax, the control of every comparison."""

    method: ClassVar[str] = "none"
    keeps_prediction: ClassVar[bool] = True
    fits_masked: ClassVar[bool] = True

    @property
    def n_parameters(self) -> int:
        """Zero."""
        return 0

    def _fit(self, predictions: Predictions) -> FitReport:
        return FitReport(predictions.n, "none")

    def _apply(self, logits: Array, features: Array | None) -> Array:
        return softmax(logits)
