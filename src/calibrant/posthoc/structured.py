"""Structured scaling: linear maps of the logits, held near temperature scaling as rows run short.

Vector and matrix maps of K classes have so many parameters that an unpenalised fit loses to one
temperature. The penalties here grow with the number of parameters over the number of rows, so one
rule serves ten classes with many rows and a thousand with few.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from calibrant.arrays import (
    Array,
    FloatArray,
    IntArray,
    like,
    namespace,
    row_chunks,
    to_numpy,
)
from calibrant.errors import ConvergenceWarning, NotApplicableError, warn_caller
from calibrant.posthoc.arguments import argument
from calibrant.posthoc.base import Calibrator, FitReport
from calibrant.posthoc.temperature import fit_temperature
from calibrant.predictions import Predictions
from calibrant.rows import centred, map_rows, softmax_chunk, summarize

SMALL_GRADIENT = 1e-5


@dataclass(eq=False)
class _StructuredScaling(Calibrator):
    """Family: softmax(A z' + b), z' the centred logits in units of the fitted temperature.

    Centring makes the map independent of the logits' arbitrary origin.
    """

    keeps_prediction: ClassVar[bool] = False
    fits_masked: ClassVar[bool] = True

    ridge: float = argument(1.0, above=0)
    max_iterations: int = argument(500, at_least=1)

    beta_: float = field(init=False, repr=False)
    bias_: FloatArray = field(init=False, repr=False)

    @abstractmethod
    def _penalties(self, rows: int, classes: int) -> FloatArray:
        """Return the penalty of every parameter: those of A - I first, in rows, then b's."""

    @abstractmethod
    def _take(self, change: FloatArray) -> None:
        """Keep the fitted A - I."""

    @abstractmethod
    def _change(self) -> FloatArray:
        """Return A - I: (K,) if it is diagonal, else (K, K)."""

    def _fit(self, predictions: Predictions) -> FitReport:
        from scipy.optimize import minimize

        rows = summarize(predictions.scores, predictions.labels, curve="dense")
        base = fit_temperature(rows)
        notes = base.report(rows.n).notes
        self.beta_ = base.beta
        logits, classes = to_numpy(predictions.scores), rows.classes
        penalties = self._penalties(rows.n, classes)
        size = len(penalties) - classes
        shape = (classes,) if size == classes else (classes, classes)

        def loss(vector: FloatArray) -> tuple[float, FloatArray]:
            change, bias = vector[:size].reshape(shape), vector[size:]
            value, by_change, by_bias = likelihood(
                logits, predictions.labels, self.beta_, change, bias
            )
            gradient = np.concatenate([by_change.ravel(), by_bias]) / rows.n
            pull = penalties * vector
            return value / rows.n + float(pull @ vector), gradient + 2 * pull

        found: Any = minimize(
            loss,
            np.zeros(len(penalties)),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": self.max_iterations, "gtol": 1e-7, "ftol": 1e-13},
        )
        converged = bool(found.success) or float(np.abs(found.jac).max()) < SMALL_GRADIENT
        if not converged:
            message = f"structured scaling stopped after {found.nit} steps: {found.message}"
            warn_caller(ConvergenceWarning(message))
        self._take(found.x[:size].reshape(shape))
        self.bias_ = found.x[size:]
        return FitReport(
            rows.n, "penalised nll", float(found.fun), int(found.nit), converged, notes
        )

    def _apply(self, logits: Array, features: Array | None) -> Array:
        change, bias = like(self._change(), logits), like(self.bias_, logits)
        xp = namespace(logits)

        def scale(chunk: Array, part: slice) -> Array:
            # A masked class gives nothing to the others and stays masked.
            inputs, masked = centred(chunk)
            inputs = inputs * self.beta_
            scores = inputs + _product(xp.astype(change, chunk.dtype), inputs)
            scores = scores + xp.astype(bias, chunk.dtype)
            if masked is not None:
                scores = xp.where(masked, -xp.inf, scores)
            scores = scores - xp.max(scores, axis=1, keepdims=True)
            return softmax_chunk(scores, part)

        return map_rows(logits, scale)


def _product(change: Array, inputs: Array) -> Array:
    return inputs * change if len(change.shape) == 1 else inputs @ change.T


def likelihood(
    logits: Array, labels: IntArray, beta: float, change: FloatArray, bias: FloatArray
) -> tuple[float, FloatArray, FloatArray]:
    """Return the summed NLL of softmax((I + change) z' + b), and its gradients by change and b.

    Sums are float64, whatever the logits are; `change` is (K,) for a diagonal, or (K, K).
    """
    value, by_change, by_bias = 0.0, np.zeros(change.shape), np.zeros(len(bias))
    for part in row_chunks(logits):
        inputs, masked = centred(logits[part].astype(np.float64))
        inputs *= beta
        scores = inputs + _product(change, inputs) + bias
        if masked is not None:
            scores[masked] = -np.inf
        scores -= scores.max(axis=1, keepdims=True)
        rows = np.arange(len(scores))
        value -= float(scores[rows, labels[part]].sum())
        weights = np.exp(scores, out=scores)
        total = weights.sum(axis=1, keepdims=True)
        value += float(np.log(total).sum())
        weights /= total
        weights[rows, labels[part]] -= 1.0
        by_bias += weights.sum(axis=0)
        if change.ndim == 1:
            by_change += np.einsum("ij,ij->j", weights, inputs)
        else:
            by_change += weights.T @ inputs
    return value, by_change, by_bias


@dataclass(eq=False)
class StructuredVectorScaling(_StructuredScaling):
    """softmax((1 + v) * z' + b), with a ridge of K / N on v and on b; 2 K + 1 parameters.

    z' are the centred logits over the temperature T of greatest likelihood. The objective is

        mean NLL + ridge K / N (|v|^2 + |b|^2)

    strictly convex, so its optimum is unique; with rows few beside classes it is temperature
    scaling, and nothing needs tuning. The predicted class may change. It corrects what is wrong
    with a class always, not what is wrong with some of its rows: a confidence that is off at small
    margins stays so.

    Args:
        ridge: factor of the penalty; 1 is the paper's.
        max_iterations: bound on L-BFGS steps.

    Attributes:
        beta_: 1 / T; change_: (K,) v; bias_: (K,) b.

    References:
        Berta, Holzmueller, Jordan, Bach: arXiv 2511.03685, 2025. There the first step also mixes
        the rows with the uniform distribution; here it does not.
    """

    method: ClassVar[str] = "svs"

    change_: FloatArray = field(init=False, repr=False)

    @property
    def n_parameters(self) -> int:
        """2 K + 1."""
        return 2 * self.classes_ + 1

    def _penalties(self, rows: int, classes: int) -> FloatArray:
        return np.full(2 * classes, self.ridge * classes / rows)

    def _take(self, change: FloatArray) -> None:
        self.change_ = change

    def _change(self) -> FloatArray:
        return self.change_


@dataclass(eq=False)
class StructuredMatrixScaling(_StructuredScaling):
    """softmax((I + diag(v) + M) z' + b), M without a diagonal, by penalised likelihood.

    z' are the centred logits over the temperature T of greatest likelihood. The objective is

        mean NLL + ridge / N (K |v|^2 + K |b|^2 + K (K - 1) |M|^2)

    strictly convex. Since M has K (K - 1) entries, each is pulled to zero that much harder, and for
    many classes the map is that of `StructuredVectorScaling`. K^2 + K + 1 parameters; a step costs
    N K^2. The predicted class may change. Where classes are not confused in a lasting pattern it
    adds nothing to the vector map.

    Args:
        ridge: factor of the penalty; 1 is the paper's.
        max_iterations: bound on L-BFGS steps.
        most_classes: refuse to fit a matrix for more classes, where a fit takes minutes.

    Attributes:
        beta_: 1 / T; change_: (K, K) diag(v) + M; bias_: (K,) b.

    References:
        Berta, Holzmueller, Jordan, Bach: arXiv 2511.03685, 2025. There the first step also mixes
        the rows with the uniform distribution; here it does not.
    """

    method: ClassVar[str] = "sms"

    most_classes: int = argument(300, at_least=2)

    change_: FloatArray = field(init=False, repr=False)

    @property
    def n_parameters(self) -> int:
        """K^2 + K + 1."""
        return self.classes_**2 + self.classes_ + 1

    def _fit(self, predictions: Predictions) -> FitReport:
        if self.classes_ > self.most_classes:
            raise NotApplicableError(
                f"method 'sms' would fit a matrix of {self.classes_} x {self.classes_} numbers; "
                f"beyond most_classes={self.most_classes} take 'svs', or raise it"
            )
        return super()._fit(predictions)

    def _penalties(self, rows: int, classes: int) -> FloatArray:
        matrix = np.full((classes, classes), float(classes * (classes - 1)))
        np.fill_diagonal(matrix, classes)
        every = np.concatenate([matrix.ravel(), np.full(classes, float(classes))])
        return self.ridge / rows * every

    def _take(self, change: FloatArray) -> None:
        self.change_ = change

    def _change(self) -> FloatArray:
        return self.change_
