"""Vector scaling (Guo et al., ICML 2017)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from calibrant.core.arguments import argument
from calibrant.core.arrays import FloatArray
from calibrant.posthoc.base import FitReport
from calibrant.posthoc.fitting.guard import NO_CLEAR_GAIN, gains_on_temperature
from calibrant.posthoc.linear.base import PenalisedMap
from calibrant.predictions.predictions import Predictions


@dataclass(eq=False)
class VectorScaling(PenalisedMap):
    """softmax(w * x + b) with a weight and a bias for each class, by penalised likelihood.

    The predicted class may change. x are the log-probabilities of temperature scaling: with the
    logits z themselves the map would depend on their arbitrary origin. They are measured in units
    of the fitted temperature T, so that w = 1, b = 0 is temperature scaling. The fit starts there
    and is drawn towards it by a ridge, ``ridge / N * (|w - 1|^2 + |b|^2)``: with many classes and
    few rows the unpenalised maximum overfits. So does this one with a hundred classes and a
    thousand rows; `StructuredVectorScaling` is the same map with a ridge that grows with K. So it
    is taken only where cross-validation sees a gain. Convex; 2 K parameters.

    Args:
        ridge: strength of the pull towards temperature scaling, in units of one row's likelihood.
        max_iterations: bound on L-BFGS steps.
        inputs: what x are: ``"log-probabilities"``, or ``"centred"`` logits, their row mean off.
        guard: take temperature scaling unless the map gains on it by more than a standard error of
            the paired difference, in five-fold cross-validation. False is the map as published.

    Attributes:
        weight_: (K,) w, in the caller's units; bias_: (K,) b.
        beta_: 1 / T; change_: (K,) w - 1 in units of T.

    References:
        Guo et al.: On Calibration of Modern Neural Networks. ICML 2017. There x are the logits with
        whatever origin the network gives them.

    Examples:
        >>> import calibrant as cb
        >>> import numpy as np
        >>> honest = cb.synthetic.tempered(5_000, 3, temperature=1.0).predictions
        >>> biased = honest.logits + np.asarray([0.0, 0.0, 1.0])  # favours class 2
        >>> vector = cb.VectorScaling().fit(biased, honest.labels)
        >>> print(f"{vector.bias_[2] - vector.bias_[0]:.0f}")
        -1
    """

    method: ClassVar[str] = "vector"

    ridge: float = argument(1.0, at_least=0)
    guard: bool = argument(True)

    @property
    def n_parameters(self) -> int:
        """2 K."""
        return 2 * self.n_classes_

    def _fit(self, predictions: Predictions) -> FitReport:
        if self.guard:
            unguarded = replace(self, guard=False)
            if not gains_on_temperature(unguarded, predictions):
                base, none = predictions.temperature, np.zeros(self.n_classes_)
                self.beta_, self.change_, self.bias_ = base.beta, none, none.copy()
                report = base.report(predictions.n)
                return replace(report, notes=(*report.notes, NO_CLEAR_GAIN))
        return super()._fit(predictions)

    def _penalties(self, rows: float, classes: int) -> FloatArray:
        return np.full(2 * classes, self.ridge / rows)
