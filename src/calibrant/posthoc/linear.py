"""Linear maps of the logits; here vector scaling (Guo et al., ICML 2017)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from calibrant.arrays import Array, FloatArray, like, namespace, row_chunks, to_numpy, working_dtype
from calibrant.errors import ConvergenceWarning, warn_caller
from calibrant.posthoc.arguments import argument
from calibrant.posthoc.base import Calibrator, FitReport
from calibrant.posthoc.temperature import fit_temperature
from calibrant.predictions import Predictions
from calibrant.rows import centred, map_rows, softmax_chunk, summarize

SMALL_GRADIENT = 1e-5


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
        from scipy.optimize import minimize

        logits = to_numpy(predictions.scores)
        temperature = fit_temperature(
            summarize(predictions.scores, predictions.labels, curve="dense")
        )
        n, classes = logits.shape
        start = np.concatenate([np.ones(classes), np.zeros(classes)])

        def loss(vector: FloatArray) -> tuple[float, FloatArray]:
            weight, bias = vector[:classes] * temperature.beta, vector[classes:]
            value, by_weight, by_bias = _likelihood(logits, predictions.labels, weight, bias)
            gradient = np.concatenate([by_weight * temperature.beta, by_bias]) / n
            away = vector - start
            value = value / n + self.ridge / n * float(away @ away)
            return value, gradient + 2 * self.ridge / n * away

        found: Any = minimize(
            loss,
            start,
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": self.max_iterations, "gtol": 1e-7, "ftol": 1e-12},
        )
        # In float32 the line search ends in rounding noise, close to the optimum.
        converged = bool(found.success) or float(np.abs(found.jac).max()) < SMALL_GRADIENT
        if not converged:
            message = f"vector scaling stopped after {found.nit} steps: {found.message}"
            warn_caller(ConvergenceWarning(message))
        self.weight_ = found.x[:classes] * temperature.beta
        self.bias_ = found.x[classes:]
        notes = temperature.report(n).notes
        return FitReport(n, "penalised nll", float(found.fun), int(found.nit), converged, notes)

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


def _likelihood(
    logits: Array, labels: Array, weight: FloatArray, bias: FloatArray
) -> tuple[float, FloatArray, FloatArray]:
    """Return the summed NLL of softmax(w * z + b) on centred rows, and its gradients by w and b."""
    value, by_weight, by_bias = 0.0, np.zeros(len(weight)), np.zeros(len(bias))
    dtype = working_dtype(logits)
    for part in row_chunks(logits):
        inputs, masked = centred(logits[part].astype(dtype))
        scores = inputs * weight.astype(dtype) + bias.astype(dtype)
        if masked is not None:
            scores[masked] = -np.inf
        scores -= scores.max(axis=1, keepdims=True)
        rows = np.arange(len(scores))
        value -= float(scores[rows, labels[part]].sum(dtype=np.float64))
        weights = np.exp(scores, out=scores)
        total = weights.sum(axis=1, keepdims=True)
        value += float(np.log(total).sum(dtype=np.float64))
        weights /= total
        weights[rows, labels[part]] -= 1.0
        by_bias += weights.sum(axis=0, dtype=np.float64)
        weights *= inputs
        by_weight += weights.sum(axis=0, dtype=np.float64)
    return value, by_weight, by_bias
