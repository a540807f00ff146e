"""What linear maps of the logits have in common: how they are applied, and how most are fitted."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from calibrant.arrays import Array, FloatArray, like, namespace, to_numpy
from calibrant.errors import NotApplicableError
from calibrant.masks import remasked
from calibrant.posthoc.arguments import argument
from calibrant.posthoc.base import Calibrator, FitReport
from calibrant.posthoc.learnt import learnt
from calibrant.posthoc.linear.inputs import INPUTS, Inputs, linear_inputs
from calibrant.posthoc.linear.likelihood import LinearLikelihood, fit_linear
from calibrant.posthoc.temperature import fit_temperature
from calibrant.predictions import Predictions
from calibrant.rows import map_rows, softmax_chunk, summarize


@dataclass(eq=False)
class LinearMap(Calibrator):
    """Family: softmax(W x + b), x being log-probabilities or centred logits.

    Which of the two a method says; see `calibrant.posthoc.linear.inputs`. A masked class gives
    nothing to the others and stays masked. The predicted class may change.
    """

    keeps_prediction: ClassVar[bool] = False

    @abstractmethod
    def linear_map(self) -> tuple[FloatArray, FloatArray]:
        """Return W, (K, K) or the (K,) entries of a diagonal, and (K,) b."""

    @abstractmethod
    def _inputs(self, chunk: Array) -> tuple[Array, Array | None]:
        """Return new (n, K) x of logits, 0 where a class is masked, and `masked_classes`."""

    def _apply(self, logits: Array, features: Array | None) -> Array:
        xp = namespace(logits)
        weight, bias = (like(part, logits) for part in self.linear_map())

        def scale(chunk: Array, part: slice) -> Array:
            scores, masked = self._inputs(chunk)
            own = xp.astype(weight, chunk.dtype)
            if len(own.shape) == 1:
                scores *= own
            else:
                scores = scores @ own.T
            scores += xp.astype(bias, chunk.dtype)
            scores = remasked(scores, masked)
            scores -= xp.max(scores, axis=1, keepdims=True)
            return softmax_chunk(scores, part)

        return map_rows(logits, scale)


@dataclass(eq=False)
class PenalisedMap(LinearMap):
    """Family: W = (I + C) / T, by likelihood with a ridge that draws C and b to 0.

    T is the temperature of greatest likelihood, so the fit starts at temperature scaling and is
    drawn towards it, and measuring in units of T makes the result independent of the logits' scale.
    """

    fits_masked: ClassVar[bool] = True

    ridge: float = argument(1.0, above=0)
    max_iterations: int = argument(500, at_least=1)
    inputs: Inputs = argument("log-probabilities", choices=INPUTS)

    beta_: float = learnt(above=0)
    change_: FloatArray = learnt("K")
    bias_: FloatArray = learnt("K")

    @property
    def weight_(self) -> FloatArray:
        """W in the caller's units: (K,) if it is diagonal, else (K, K)."""
        square = self.change_.ndim == 2
        return self.beta_ * (self.change_ + (np.eye(self.classes_) if square else 1.0))

    def linear_map(self) -> tuple[FloatArray, FloatArray]:
        """See `LinearMap.linear_map`."""
        return self.weight_, self.bias_

    def _inputs(self, chunk: Array) -> tuple[Array, Array | None]:
        return linear_inputs(chunk, self.inputs, self.beta_)

    @abstractmethod
    def _penalties(self, rows: int, classes: int) -> FloatArray:
        """Return the penalty of every parameter: those of C first, in rows, then b's."""

    def _fit(self, predictions: Predictions) -> FitReport:
        base = fit_temperature(summarize(predictions.scores, predictions.labels, curve="dense"))
        notes = base.report(predictions.n).notes
        penalties = self._penalties(predictions.n, self.classes_)
        likelihood = LinearLikelihood(
            to_numpy(predictions.scores),
            predictions.labels,
            base.beta,
            square=len(penalties) > 2 * self.classes_,
            inputs=self.inputs,
        )
        found = fit_linear(likelihood, penalties, self.max_iterations)
        self.beta_, self.change_, self.bias_ = base.beta, found.change, found.bias
        return found.report(self.method, predictions.n, notes)


def refuse_many_classes(method: str, classes: int, most: int, *, often: bool = False) -> None:
    """Raise `NotApplicableError` if a matrix would be fitted for more than `most` classes."""
    if classes > most:
        times = " many times over" if often else ""
        raise NotApplicableError(
            f"method '{method}' would fit a matrix of {classes} x {classes} numbers{times}; "
            f"beyond most_classes={most} take 'svs', or raise it"
        )
