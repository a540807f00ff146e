"""Temperature scaling with Laplace mixing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from calibrant.arrays import Array, namespace
from calibrant.posthoc.base import Calibrator, FitReport
from calibrant.posthoc.temperature import fit_temperature
from calibrant.predictions import Predictions
from calibrant.rows import map_rows, softmax_chunk, summarize, uniform


@dataclass(eq=False)
class LaplaceTemperatureScaling(Calibrator):
    """(1 - w) softmax(z / T) + w / K, with T of temperature scaling and w = 1 / (N + 1).

    Keeps the order of the classes in every row. No probability falls below w / K, so no surprise
    costs more than log(K (N + 1)): T alone may say "impossible" of what N rows never showed. With
    thousands of rows and a sound T it changes next to nothing. One parameter is fitted.

    Attributes:
        beta_: the fitted inverse temperature; `temperature_` is its inverse.
        uniform_: w, the weight of the uniform distribution.

    References:
        Laplace's rule; as a mixture after temperature scaling in Berta, Holzmüller, Jordan, Bach:
        Rethinking Early Stopping: Refine, Then Calibrate. 2025 (package probmetrics).
    """

    method: ClassVar[str] = "temperature-laplace"
    keeps_prediction: ClassVar[bool] = True
    fits_masked: ClassVar[bool] = True

    beta_: float = field(init=False, repr=False)
    uniform_: float = field(init=False, repr=False)

    @property
    def temperature_(self) -> float:
        """The fitted temperature T."""
        return 1.0 / self.beta_

    @property
    def n_parameters(self) -> int:
        """One."""
        return 1

    def _fit(self, predictions: Predictions) -> FitReport:
        fit = fit_temperature(summarize(predictions.scores, predictions.labels, curve="dense"))
        self.beta_, self.uniform_ = fit.beta, 1 / (predictions.n + 1)
        return fit.report(predictions.n)

    def _apply(self, logits: Array, features: Array | None) -> Array:
        def mix(chunk: Array, part: slice) -> Array:
            shifted = chunk - namespace(chunk).max(chunk, axis=1, keepdims=True)
            probs = softmax_chunk(shifted * self.beta_, part)
            return (1 - self.uniform_) * probs + self.uniform_ * uniform(chunk)

        return map_rows(logits, mix)
