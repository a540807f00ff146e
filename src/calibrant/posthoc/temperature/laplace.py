"""Temperature scaling with Laplace mixing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from calibrant.core.arrays import Array
from calibrant.core.weights import total
from calibrant.posthoc.base import FitReport
from calibrant.posthoc.learnt import learnt
from calibrant.posthoc.temperature.mixture import Mixture
from calibrant.predictions.predictions import Predictions


@dataclass(eq=False)
class LaplaceTemperatureScaling(Mixture):
    """(1 - w) softmax(z / T) + w / K, with T of temperature scaling and w = 1 / (N + 1).

    Keeps the order of the classes in every row. No probability falls below w / K, so no surprise
    costs more than log(K (N + 1)): T alone may call impossible what N rows merely never showed.
    With thousands of rows and a sound T it changes next to nothing. One parameter is fitted.

    Attributes:
        beta_: the fitted inverse temperature; `temperature_` is its inverse.
        uniform_: w, the weight of the uniform distribution.

    References:
        Laplace's rule of succession. After temperature scaling it is the first step of structured
        scaling in Berta, Holzmueller, Jordan, Bach: arXiv 2511.03685, 2025, and ``ts-mix`` in the
        package probmetrics.

    Examples:
        >>> import calibrant as cb
        >>> import numpy as np
        >>> logits = np.log([[0.9, 0.1]] * 99)
        >>> scaling = cb.LaplaceTemperatureScaling().fit(logits, [0] * 66 + [1] * 33)
        >>> scaling.uniform_  # 1 / (99 + 1)
        0.01
        >>> scaling.predict_proba([[1e6, 0.0]]).round(3)  # nothing is impossible
        array([[0.995, 0.005]])
    """

    method: ClassVar[str] = "temperature-laplace"
    weighs: ClassVar[bool] = True

    uniform_: float = learnt(at_least=0, at_most=1)

    @property
    def n_parameters(self) -> int:
        """One."""
        return 1

    def _fit(self, predictions: Predictions) -> FitReport:
        fit = predictions.temperature
        every = total(predictions.n, predictions.weights)
        self.beta_, self.uniform_ = fit.beta, 1 / (every + 1)
        return fit.report(predictions.n)

    def mixture_weights(self, learnt: Mapping[str, Array]) -> tuple[Array, Array | None, Array]:
        """Return 1 - w, nothing, and w."""
        return 1 - learnt["uniform_"], None, learnt["uniform_"]
