"""Structured scaling: linear maps of the logits, held near temperature scaling as rows run short.

Vector and matrix maps of K classes have so many parameters that an unpenalised fit loses to one
temperature. The penalties here grow with the number of parameters over the number of rows, so one
rule serves ten classes with many rows and a thousand with few.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from calibrant.arrays import (
    Array,
    FloatArray,
    like,
    namespace,
    to_numpy,
)
from calibrant.errors import NotApplicableError
from calibrant.masks import centred
from calibrant.posthoc.arguments import argument
from calibrant.posthoc.base import Calibrator, FitReport
from calibrant.posthoc.linear_fit import LinearLikelihood, fit_linear
from calibrant.posthoc.temperature import fit_temperature
from calibrant.predictions import Predictions
from calibrant.rows import map_rows, softmax_chunk, summarize


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
        summary = summarize(predictions.scores, predictions.labels, curve="dense")
        base = fit_temperature(summary)
        notes = base.report(summary.n).notes
        self.beta_ = base.beta
        penalties = self._penalties(summary.n, summary.classes)
        square = len(penalties) > 2 * summary.classes
        rows = LinearLikelihood(
            to_numpy(predictions.scores), predictions.labels, self.beta_, square
        )
        found = fit_linear(rows, penalties, self.max_iterations)
        self._take(found.change)
        self.bias_ = found.bias
        return FitReport(
            summary.n, "penalised nll", found.value, found.iterations, found.converged, notes
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
