"""The scores of fitted classifiers: asked of one for some rows, and pooled over several.

A mean of several classifiers is made as sure as it deserves. Each classifier's scores are the truth
of a row plus an error of its own, and the calibrator has learnt to trust them only so far. A mean
of m classifiers has less of these errors and deserves more trust,
so a plain mean of calibrated probabilities is underconfident. Let s be the share of one's own error
in how its log-probabilities vary about their mean over all rows. If the errors depend neither on
the truth nor on each other, one may be trusted to 1 - s, and a mean of m to
(1 - s) / (1 - s + s / m). So the logarithms of the mean probabilities move away from their mean
over all rows by the ratio of the two,

    1 / (1 - s + s / m).

Where they lie on the whole, which is how frequent the classes are, stays. To learn s takes two
classifiers on rows that neither was fitted to: half of their squared difference is one's own error.

References:
    Spearman's attenuation and prophecy formulas (Am. J. Psychology 1904; Br. J. Psychology 1910).
    That pooled honest forecasts have to be sharpened: Ranjan and Gneiting, J. R. Statist. Soc. B
    2010.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arguments import within
from calibrant.core.arrays import FloatArray
from calibrant.core.errors import InputError, PredictionsError
from calibrant.posthoc.needs import half_of_least

Response = Literal["auto", "decision_function", "predict_proba"]
# Asked for in this order: a margin has not been squashed into [0, 1].
RESPONSES = ("decision_function", "predict_proba")
# Logarithms of less say little of a classifier, and would outweigh all others.
LEAST = 1e-12
# Two classifiers that agree on nothing don't make their mean certain.
LARGEST_SHARE = 0.95


def response_of(estimator: Any, wanted: Response) -> str:
    """Return the name of the method of a classifier that gives its scores.

    Raises:
        InputError: it has no such method.
    """
    within("response", wanted, choices=("auto", *RESPONSES))
    names = RESPONSES if wanted == "auto" else (wanted,)
    for name in names:
        if hasattr(estimator, name):
            return name
    raise InputError(
        f"{type(estimator).__name__} has no {' or '.join(names)}, so there is no confidence to "
        "calibrate"
    )


@dataclass(frozen=True)
class Scores:
    """The scores of one classifier for some rows.

    Attributes:
        values: (N, K) numbers.
        probabilities: whether they are probabilities, rather than margins.
    """

    values: FloatArray
    probabilities: bool

    def logits(self, floor: float) -> FloatArray:
        """Return margins as they are; of probabilities the logarithm, of at least `floor`."""
        return np.log(np.maximum(self.values, floor)) if self.probabilities else self.values


def scores_of(estimator: Any, X: Any, response: str, classes: NDArray[Any]) -> Scores:
    """Ask a fitted classifier for its scores of rows.

    Args:
        estimator: fitted.
        X: rows, of whatever kind it takes.
        response: the method to ask.
        classes: (K,) sorted, all that there are.

    Raises:
        PredictionsError: it answers in another shape than a score for each of its classes, or with
            NaN or infinity.
    """
    known = np.asarray(getattr(estimator, "classes_", classes))
    found = np.asarray(getattr(estimator, response)(X), dtype=np.float64)
    name = f"{type(estimator).__name__}.{response}"
    if found.ndim == 2 and found.shape[1] == 1:
        found = found[:, 0]
    if found.ndim == 1 and len(known) == 2:
        # Of a margin half for each class, so that softmax is its logistic function.
        pair = [1 - found, found] if response == "predict_proba" else [-found / 2, found / 2]
        found = np.stack(pair, axis=1)
    if found.ndim != 2 or found.shape[1] != len(known):
        hint = " (ask it for decision_function_shape='ovr')" if found.ndim == 2 else ""
        raise PredictionsError(
            f"{name} gives shape {found.shape} for {len(known)} classes; a score for each class "
            f"is needed{hint}"
        )
    if not np.isfinite(found).all():
        row = int(np.flatnonzero(~np.isfinite(found).all(axis=1))[0])
        raise PredictionsError(f"{name} gives NaN or infinity for row {row}")
    return Scores(_for_all(found, known, classes, response), response == "predict_proba")


def _for_all(
    found: FloatArray, known: NDArray[Any], classes: NDArray[Any], response: str
) -> FloatArray:
    """Return a column for every class; one that a classifier never saw is the least likely."""
    if len(known) == len(classes):
        return found
    whole = np.zeros((len(found), len(classes)))
    if response != "predict_proba" and len(found):
        spread = float(np.ptp(found)) or 1.0
        whole[:] = found.min() - spread
    whole[:, np.searchsorted(classes, known)] = found
    return whole


def floor_of(scores: Scores) -> float:
    """Return what to raise probabilities to before their logarithm is taken.

    A forest of 100 trees says 0 where it means less than 1 in 100: an infinite logit, or a huge
    one for a tiny floor, which a temperature then has to make up for in all other rows. Half of
    the least that is told from 0 is what the 0 stands for.
    """
    if not scores.probabilities:
        return 0.0
    return half_of_least(scores.values)


@dataclass(frozen=True)
class Pool:
    """How to pool probabilities of several classifiers.

    Attributes:
        factor: how much further from `centre` the logarithms of their mean are moved, at least 1.
        centre: (K,) mean centred log-probabilities over all rows.
    """

    factor: float = 1.0
    centre: FloatArray | None = None

    @classmethod
    def learn(
        cls,
        first: FloatArray,
        second: FloatArray,
        classifiers: int,
        weights: FloatArray | None = None,
    ) -> Self:
        """Learn from two classifiers what a mean of several deserves.

        Args:
            first: (N, K) probabilities of one classifier.
            second: those of another one, of the same rows, which neither was fitted to.
            classifiers: how many the mean is of.
            weights: (N,) how much each row counts.
        """
        one, other = _centred_logs(first), _centred_logs(second)
        centre = np.average((one + other) / 2, axis=0, weights=weights)

        def mean(squares: FloatArray) -> float:
            return float(np.average(squares.mean(axis=1), weights=weights))

        error = mean((one - other) ** 2) / 2
        whole = mean((one - centre) ** 2 + (other - centre) ** 2) / 2
        share = min(error / whole, LARGEST_SHARE) if whole > 0 else 0.0
        return cls(1 / (1 - share + share / classifiers), centre)

    def mean(self, probs: Sequence[FloatArray]) -> FloatArray:
        """Return the (N, K) sharpened mean of (N, K) probabilities."""
        plain = np.mean(probs, axis=0)
        if self.centre is None or self.factor == 1:
            return plain
        with np.errstate(divide="ignore"):
            logs = np.log(plain)
        # Centred or not, softmax of it is the same; a probability of 0 stays one.
        moved = logs * self.factor - (self.factor - 1) * self.centre
        powers = np.exp(moved - moved.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)


def _centred_logs(probs: FloatArray) -> FloatArray:
    logs = np.log(np.maximum(probs, LEAST))
    return logs - logs.mean(axis=1, keepdims=True)
