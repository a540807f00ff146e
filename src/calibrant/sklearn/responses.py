"""What a fitted classifier says of rows, as logits: (N, K), a column for each class of them all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import FloatArray
from calibrant.core.errors import InputError, PredictionsError
from calibrant.predictions.predictions import SMALLEST_PROBABILITY

Response = Literal["auto", "decision_function", "predict_proba"]
# Asked for in this order: a margin has not been squashed into [0, 1].
RESPONSES = ("decision_function", "predict_proba")


def response_of(estimator: Any, wanted: Response) -> str:
    """Return the name of the method of a classifier that gives its scores.

    Raises:
        InputError: it has no such method.
    """
    if wanted != "auto" and wanted not in RESPONSES:
        raise InputError(f"response must be one of auto, {', '.join(RESPONSES)}, not {wanted!r}")
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
    """What one classifier says of some rows.

    Attributes:
        values: (N, K) numbers.
        probabilities: whether they are probabilities, rather than margins.
    """

    values: FloatArray
    probabilities: bool

    def logits(self, floor: float) -> FloatArray:
        """Return margins as they are; of probabilities the logarithm, of at least `floor`."""
        return np.log(np.maximum(self.values, floor)) if self.probabilities else self.values


def scores_of(
    estimator: Any, X: Any, response: str, classes: NDArray[Any], own: NDArray[Any] | None = None
) -> Scores:
    """Ask a fitted classifier for its scores of rows.

    Args:
        estimator: fitted.
        X: rows, of whatever kind it takes.
        response: the method to ask.
        classes: (K,) sorted, all that there are.
        own: those that the classifier was fitted on, if it has no `classes_`.

    Raises:
        PredictionsError: it answers in another shape than a score for each of its classes, or with
            NaN or infinity.
    """
    known = np.asarray(getattr(estimator, "classes_", classes if own is None else own))
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
    least = float(scores.values.min(initial=1.0, where=scores.values > 0))
    return max(least / 2, SMALLEST_PROBABILITY)
