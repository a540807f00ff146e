"""Ensemble temperature scaling (Zhang, Kailkhura, Han: Mix-n-Match, ICML 2020)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, ClassVar, Literal

import numpy as np

from calibrant.core.arguments import argument
from calibrant.core.arrays import Array, FloatArray
from calibrant.posthoc.base import FitReport
from calibrant.posthoc.temperature.mixture import Mixture
from calibrant.posthoc.temperature.single import fit_temperature
from calibrant.predictions.predictions import SMALLEST_PROBABILITY, Predictions
from calibrant.predictions.rows import RowSummary, summarize

MIXTURE_STEPS = 500


@dataclass(eq=False)
class EnsembleTemperatureScaling(Mixture):
    """A mixture w1 softmax(z / T) + w2 softmax(z) + w3 / K, with w >= 0 that sum to 1.

    Keeps the predicted class: all three parts rank the classes alike. K counts the classes that a
    row leaves unmasked. T comes from temperature scaling, the weights from one more convex problem:
    for ``loss="mse"`` (the authors' choice) a quadratic program on a 3 x 3 Gram matrix, solved
    exactly; for ``"nll"`` by sequential quadratic programming. Four parameters, three of them free.

    Args:
        loss: what the weights minimise.

    Attributes:
        beta_: inverse temperature of the first part.
        weights_: (3,) mixture weights.
    """

    method: ClassVar[str] = "ets"

    loss: Literal["mse", "nll"] = argument("mse", choices=("mse", "nll"))

    weights_: FloatArray = field(init=False, repr=False)

    @property
    def n_parameters(self) -> int:
        """Four: T and three weights."""
        return 4

    def _fit(self, predictions: Predictions) -> FitReport:
        rows = summarize(predictions.scores, predictions.labels, curve="dense")
        fit = fit_temperature(rows)
        self.beta_ = fit.beta
        of_label = _label_probabilities(rows, self.beta_)
        if self.loss == "nll":
            self.weights_ = _weights_by_likelihood(of_label)
        else:
            self.weights_ = _weights_by_squares(_gram_matrix(rows, self.beta_), of_label.mean(0))
        return fit.report(rows.n)

    def mixture_weights(self, learnt: Mapping[str, Array]) -> tuple[Array, Array | None, Array]:
        """Return all three weights."""
        weights = learnt["weights_"]
        return weights[0], weights[1], weights[2]


def _label_probabilities(rows: RowSummary, beta: float) -> FloatArray:
    """Return (N, 3) probabilities of the true label under each part of the mixture."""

    def at(b: float) -> FloatArray:
        return np.exp(-b * rows.label_gap - rows.curve.evaluate(b).value)

    return np.stack([at(beta), at(1.0), 1 / rows.unmasked], axis=1)


def _gram_matrix(rows: RowSummary, beta: float) -> FloatArray:
    """Return the (3, 3) means over rows of the inner products of the three parts.

    sum_k p_k(a) p_k(b) = exp(f(a + b) - f(a) - f(b)), so the confidence curve has them all.
    """
    needed = sorted({beta, 1.0, 2 * beta, 2.0, 1 + beta})
    f = {b: rows.curve.evaluate(b).value for b in needed}

    def product(a: float, b: float) -> float:
        return float(np.mean(np.exp(f[a + b] - f[a] - f[b])))

    cross, even = product(1.0, beta), float(np.mean(1 / rows.unmasked))
    return np.array(
        [
            [product(beta, beta), cross, even],
            [cross, product(1.0, 1.0), even],
            [even, even, even],
        ]
    )


def _weights_by_squares(gram: FloatArray, of_label: FloatArray) -> FloatArray:
    """Minimise w' G w - 2 w' r over the simplex: the best of the optima on its seven faces."""
    best, weights = np.inf, np.array([1.0, 0.0, 0.0])
    for size in (1, 2, 3):
        for face in combinations(range(3), size):
            index = list(face)
            system = np.zeros((size + 1, size + 1))
            system[:size, :size] = gram[np.ix_(index, index)]
            system[:size, size] = system[size, :size] = 1.0
            solution = np.linalg.lstsq(system, np.append(of_label[index], 1.0), rcond=None)[0]
            candidate = np.zeros(3)
            candidate[index] = solution[:size]
            if candidate.min() < 0:
                continue
            loss = float(candidate @ gram @ candidate - 2 * candidate @ of_label)
            if loss < best - 1e-15:
                best, weights = loss, candidate
    return weights / weights.sum()


def _weights_by_likelihood(of_label: FloatArray) -> FloatArray:
    """Maximise the mean of log(w . p) over the simplex, a concave problem with a known gradient."""
    from scipy.optimize import minimize

    def loss(weights: FloatArray) -> tuple[float, FloatArray]:
        mixed = np.maximum(of_label @ weights, SMALLEST_PROBABILITY)
        return -float(np.log(mixed).mean()), -(of_label / mixed[:, None]).mean(axis=0)

    found: Any = minimize(
        loss,
        np.full(3, 1 / 3),
        jac=True,
        method="SLSQP",
        bounds=[(0.0, 1.0)] * 3,
        constraints={
            "type": "eq",
            "fun": lambda weights: weights.sum() - 1,
            "jac": lambda weights: np.ones(3),
        },
        options={"ftol": 1e-12, "maxiter": MIXTURE_STEPS},
    )
    weights = np.maximum(found.x, 0.0)
    return weights / weights.sum()
