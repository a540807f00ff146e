"""What linear maps of the logits have in common: how they are applied, and how most are fitted."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arguments import argument
from calibrant.core.arrays import Array, FloatArray
from calibrant.core.errors import NotApplicableError
from calibrant.core.fit_report import FitReport
from calibrant.core.weights import total
from calibrant.posthoc.applying import Learnt
from calibrant.posthoc.array_ops import as_type, softmax_of_gaps, softmax_of_own, still_masked
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.linear.likelihood import (
    INPUTS,
    InputChoice,
    Inputs,
    LinearLikelihood,
    linear_inputs,
)
from calibrant.posthoc.linear.optimum import SMALL_GAP, Start, fit_linear
from calibrant.posthoc.state import Comparison, learnt
from calibrant.predictions.predictions import Predictions

# Largest scores between this and its negative needn't be taken off: float32 holds the exponentials
# of the row and their sum, and every probability above 1e-31 to all its digits.
NEAR = 15.0
# How far above its minimum the objective of a matrix may be known to end, in nats a row, where it
# is kept to be averaged with other maps, and where it is only to be compared with them: there by a
# share more of what it has gained. It ends some hundred times nearer.
GAP_TO_AVERAGE, GAP_TO_COMPARE, SHARE_TO_COMPARE = 1e-6, 1e-3, 0.05


@dataclass(eq=False)
class LinearMap(Calibrator):
    """Family: softmax(W x + b), x being log-probabilities or centred logits.

    Which of the two a method says; see `calibrant.posthoc.linear.likelihood`. A masked class gives
    nothing to the others and stays masked. The predicted class may change.
    """

    keeps_prediction: ClassVar[bool] = False

    @abstractmethod
    def linear_map(self) -> tuple[FloatArray, FloatArray]:
        """Return W, (K, K) or the (K,) entries of a diagonal, and (K,) b."""

    @property
    def x_is(self) -> Inputs:
        """What x are."""
        return "centred"

    def inputs_of(self, xp: Any, logits: Array, learnt: Learnt, masks: bool) -> Array:
        """Return (n, K) x of logits in a new array, 0 where a class is masked; see `transform`."""
        return linear_inputs(xp, logits, self.x_is, as_type(xp, learnt["beta"], logits), masks)

    def map_arrays(self) -> dict[str, NDArray[Any]]:
        """Return W, b and, where inputs need it, the inverse temperature.

        Where no row has a largest score that has to be taken off first, b is called ``small_bias``,
        and is left out if it is 0.
        """
        weight, bias = self.linear_map()
        beta = self.state().get("beta_")
        found = {"weight": weight} | ({} if beta is None else {"beta": beta})
        if not self._scores_are_small(weight, bias, beta):
            return found | {"bias": bias}
        return found | ({"small_bias": bias} if np.logical_or.reduce(bias) else {})

    def _scores_are_small(
        self, weight: FloatArray, bias: FloatArray, beta: NDArray[Any] | None
    ) -> bool:
        """Return whether every row has a score near 0, and none far above.

        The largest log-probability of K is at least -log K, x in units of 1 / beta.
        """
        if self.x_is != "log-probabilities" or weight.ndim > 1 or beta is None:
            return False
        below = weight * (math.log(len(weight)) / float(beta))
        # For a single row to be mapped, `min` and `max` of an array would take a tenth of the time.
        least, most = np.minimum.reduce, np.maximum.reduce
        return bool(least(below) >= 0 and least(bias - below) >= -NEAR and most(bias) <= NEAR)

    def transform(
        self, xp: Any, logits: Array, features: Array | None, learnt: Learnt, *, masks: bool = True
    ) -> Array:
        """Return softmax(W x + b)."""
        inputs = self.inputs_of(xp, logits, learnt, masks)
        weight = as_type(xp, learnt["weight"], logits)
        if len(weight.shape) == 1:
            inputs *= weight
        else:
            inputs = inputs @ weight.T
        name = next((each for each in ("bias", "small_bias") if each in learnt), None)
        if name is not None:
            inputs += as_type(xp, learnt[name], logits)
        scores = still_masked(xp, logits, inputs, masks)
        return softmax_of_own(xp, scores) if name == "bias" else softmax_of_gaps(xp, scores)


@dataclass(eq=False)
class PenalisedMap(LinearMap):
    """Family: W = (I + C) / T, by likelihood with a ridge that draws C and b to 0.

    T is the temperature of greatest likelihood, so the fit starts at temperature scaling and is
    drawn towards it, and measuring in units of T makes the result independent of the logits' scale.
    """

    fits_masked: ClassVar[bool] = True
    weighs: ClassVar[bool] = True

    ridge: float = argument(1.0, above=0)
    max_iterations: int = argument(500, at_least=1)
    inputs: InputChoice = argument("log-probabilities", choices=INPUTS)

    beta_: float = learnt(above=0)
    change_: FloatArray = learnt("K")
    bias_: FloatArray = learnt("K")

    @property
    def x_is(self) -> Inputs:
        """What `inputs` says."""
        return "centred" if self.inputs == "centred" else "log-probabilities"

    @property
    def weight_(self) -> FloatArray:
        """W in the caller's units: (K,) if it is diagonal, else (K, K)."""
        square = self.change_.ndim == 2
        return self.beta_ * (self.change_ + (np.eye(self.n_classes_) if square else 1.0))

    def linear_map(self) -> tuple[FloatArray, FloatArray]:
        """Return W in the caller's units, (K,) if it is diagonal, and b."""
        return self.weight_, self.bias_

    @abstractmethod
    def _penalties(self, rows: float, classes: int) -> FloatArray:
        """Return the penalty of every parameter: those of C first, in rows, then b's."""

    def _took_temperature(
        self, predictions: Predictions, shape: int | tuple[int, int]
    ) -> FitReport:
        """Take the one temperature, as a map of which C has this shape, and return its report."""
        base = predictions.temperature
        self.beta_, self.change_, self.bias_ = base.beta, np.zeros(shape), np.zeros(self.n_classes_)
        return base.report(predictions.n)

    @staticmethod
    def _begins(comparison: Comparison, square: bool) -> tuple[Start | None, tuple[float, float]]:
        """Return where a fit of a comparison begins, and how near the optimum it ends.

        A matrix doesn't begin at those to other folds: it would have to end nearer, which takes
        longer than from 0.
        """
        others = comparison.fits if comparison.is_over or not square else []
        others = others or [comparison.start]
        maps = [(fit.change_, fit.bias_) for fit in others if isinstance(fit, PenalisedMap)]
        start = (
            Start(*(np.mean(each, axis=0) for each in zip(*maps, strict=True))) if maps else None
        )
        if comparison.is_over:
            return start, (GAP_TO_AVERAGE, 0.0)
        return start, (GAP_TO_COMPARE, SHARE_TO_COMPARE)

    def _fit(self, predictions: Predictions) -> FitReport:
        base = predictions.temperature
        notes = base.report(predictions.n).notes
        every = total(predictions.n, predictions.weights)
        penalties = self._penalties(every, self.n_classes_)
        square = len(penalties) > 2 * self.n_classes_
        likelihood = LinearLikelihood.of(predictions, self.x_is, square=square)
        start, near_enough = None, (SMALL_GAP, 0.0)
        if self.comparison_ is not None:
            start, near_enough = self._begins(self.comparison_, square)
        found = fit_linear(
            likelihood, penalties, self.max_iterations, start=start, near_enough=near_enough
        )
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
