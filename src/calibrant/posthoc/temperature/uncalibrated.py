"""The network's own softmax."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from calibrant.core.arrays import Array
from calibrant.posthoc.base import Calibrator, FitReport
from calibrant.posthoc.pieces import softmax
from calibrant.predictions.predictions import Predictions


@dataclass(eq=False)
class Uncalibrated(Calibrator):
    """The network's own softmax, the control of every comparison: softmax(z).

    References:
        Bridle, in Neurocomputing (Springer, NATO ASI Series) 1990, for the softmax.

    Examples:
        >>> import numpy as np
        >>> import calibrant as cb
        >>> none = cb.Uncalibrated().fit([[2.0, 0.0], [0.0, 1.0]], [0, 1])
        >>> none.predict_proba(np.log([[3.0, 1.0]])).round(2)  # whatever it was fitted to
        array([[0.75, 0.25]])
    """

    method: ClassVar[str] = "none"
    weighs: ClassVar[bool] = True
    keeps_prediction: ClassVar[bool] = True
    fits_masked: ClassVar[bool] = True
    fits_top_label: ClassVar[bool] = True

    @property
    def n_parameters(self) -> int:
        """Zero."""
        return 0

    def _fit(self, predictions: Predictions) -> FitReport:
        return FitReport(predictions.n, "none")

    def transform(
        self,
        xp: Any,
        logits: Array,
        features: Array | None,
        learnt: Mapping[str, Array],
        *,
        masks: bool = True,
    ) -> Array:
        """Return softmax(z)."""
        return softmax(xp, logits)
