"""Linear maps of the logits; here vector scaling (Guo et al., ICML 2017)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from calibrant.arrays import Array, FloatArray, like, namespace, to_numpy
from calibrant.masks import centred
from calibrant.posthoc.arguments import argument
from calibrant.posthoc.base import Calibrator, FitReport
from calibrant.posthoc.linear_fit import LinearLikelihood, fit_linear
from calibrant.posthoc.temperature import fit_temperature
from calibrant.predictions import Predictions
from calibrant.rows import map_rows, softmax_chunk, summarize


@dataclass(eq=False)
class VectorScaling(Calibrator):
    """softmax(w * z + b) with a weight and a bias for each class, by penalised likelihood.

    The predicted class may change. Logits are centred (their row mean taken off) first, since the
    map would otherwise depend on their arbitrary origin, and are measured in units of the fitted
    temperature T, so that w = 1, b = 0 is temperature scaling. The fit starts there and is drawn
    towards it by a ridge, ``ridge / N * (|w - 1|^2 + |b|^2)``: with many classes and few rows the
    unpenalised maximum overfits. Convex; 2 K parameters.

    Args:
        ridge: strength of the pull towards temperature scaling, in units of one row's likelihood.
        max_iterations: bound on L-BFGS steps.

    Attributes:
        weight_: (K,) w, in the caller's units; bias_: (K,) b.
    """

    method: ClassVar[str] = "vector"
    keeps_prediction: ClassVar[bool] = False
    fits_masked: ClassVar[bool] = True

    ridge: float = argument(1.0, at_least=0)
    max_iterations: int = argument(500, at_least=1)

    weight_: FloatArray = field(init=False, repr=False)
    bias_: FloatArray = field(init=False, repr=False)

    @property
    def n_parameters(self) -> int:
        """2 K."""
        return 2 * self.classes_

    def _fit(self, predictions: Predictions) -> FitReport:
        summary = summarize(predictions.scores, predictions.labels, curve="dense")
        temperature = fit_temperature(summary)
        rows = LinearLikelihood(
            to_numpy(predictions.scores), predictions.labels, temperature.beta, square=False
        )
        penalties = np.full(2 * summary.classes, self.ridge / summary.n)
        found = fit_linear(rows, penalties, self.max_iterations)
        self.weight_ = (1 + found.change) * temperature.beta
        self.bias_ = found.bias
        notes = temperature.report(summary.n).notes
        return FitReport(
            summary.n, "penalised nll", found.value, found.iterations, found.converged, notes
        )

    def _apply(self, logits: Array, features: Array | None) -> Array:
        weight, bias = like(self.weight_, logits), like(self.bias_, logits)
        xp = namespace(logits)

        def scale(chunk: Array, part: slice) -> Array:
            scores, masked = centred(chunk)
            scores *= xp.astype(weight, chunk.dtype)
            scores += xp.astype(bias, chunk.dtype)
            if masked is not None:
                scores = xp.where(masked, -xp.inf, scores)
            scores -= xp.max(scores, axis=1, keepdims=True)
            return softmax_chunk(scores, part)

        return map_rows(logits, scale)
