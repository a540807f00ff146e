"""Temperature scaling with Laplace mixing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from calibrant.posthoc.base import FitReport
from calibrant.posthoc.learnt import learnt
from calibrant.posthoc.mixture import Mixture
from calibrant.posthoc.temperature import fit_temperature
from calibrant.predictions import Predictions
from calibrant.rows import summarize


@dataclass(eq=False)
class LaplaceTemperatureScaling(Mixture):
    """(1 - w) softmax(z / T) + w / K, with T of temperature scaling and w = 1 / (N + 1).

    Keeps the order of the classes in every row. No probability falls below w / K, so no surprise
    costs more than log(K (N + 1)): T alone may say "impossible" of what N rows never showed. With
    thousands of rows and a sound T it changes next to nothing. One parameter is fitted.

    Attributes:
        beta_: the fitted inverse temperature; `temperature_` is its inverse.
        uniform_: w, the weight of the uniform distribution.

    References:
        Laplace's rule of succession. After temperature scaling it is the first step of structured
        scaling in Berta, Holzmueller, Jordan, Bach: arXiv 2511.03685, 2025, and ``ts-mix`` in the
        package probmetrics.
    """

    method: ClassVar[str] = "temperature-laplace"

    uniform_: float = learnt(at_least=0, at_most=1)

    @property
    def n_parameters(self) -> int:
        """One."""
        return 1

    def _fit(self, predictions: Predictions) -> FitReport:
        fit = fit_temperature(summarize(predictions.scores, predictions.labels, curve="dense"))
        self.beta_, self.uniform_ = fit.beta, 1 / (predictions.n + 1)
        return fit.report(predictions.n)

    def mixture_weights(self) -> tuple[float, float, float]:
        """See `Mixture.mixture_weights`."""
        return 1 - self.uniform_, 0.0, self.uniform_
