"""One pass over the rows that leaves what every metric needs: five numbers a row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from calibrant.arrays import (
    Array,
    BoolArray,
    FloatArray,
    IntArray,
    for_row_chunks,
    like,
    namespace,
    pick,
    to_numpy,
    with_picked,
    working_dtype,
)
from calibrant.predictions import SMALLEST_PROBABILITY, Predictions


@dataclass(frozen=True, eq=False)
class RowScores:
    """N rows of predictions, scored; all arrays (N,).

    Attributes:
        confidence: probability of the predicted label.
        predicted: the label of the largest score (the first one if tied), or the given one.
        correct: whether it is the true one.
        nll: -log p_y; NaN for the top-label form, which doesn't say.
        brier: sum_k (p_k - onehot_k)^2; NaN for the top-label form.
    """

    confidence: FloatArray
    predicted: IntArray
    correct: BoolArray
    nll: FloatArray
    brier: FloatArray

    @property
    def has_rows(self) -> bool:
        """Whether the scores of all classes were known."""
        return not np.isnan(self.nll[0])


def score_rows(predictions: Predictions) -> RowScores:
    """Score predictions of any kind, in bounded memory, where their scores live."""
    if predictions.kind == "toplabel":
        assert predictions.predicted is not None
        unknown = np.full(predictions.n, np.nan)
        correct = predictions.predicted == predictions.labels
        return RowScores(predictions.scores, predictions.predicted, correct, unknown, unknown)
    scores, labels = predictions.scores, predictions.labels
    xp, dtype = namespace(scores), working_dtype(scores)
    confidence, nll, brier = (np.empty(predictions.n) for _ in range(3))
    predicted = np.empty(predictions.n, dtype=np.int64)

    def work(part: slice) -> None:
        chunk = xp.astype(scores[part], dtype, copy=False)
        label = like(labels[part], scores)
        if predictions.kind == "logits":
            best, shifted, others, rest = exponentials(chunk)
            log_of_label = to_numpy(pick(shifted, label)).astype(np.float64) - np.log1p(rest)
            of_label = np.exp(log_of_label)
            confidence[part] = 1 / (1 + rest)
            squares = (1 + _sums(others * others)) / (1 + rest) ** 2
        else:
            best = xp.argmax(chunk, axis=1)
            of_label = to_numpy(pick(chunk, label)).astype(np.float64)
            log_of_label = np.log(np.maximum(of_label, SMALLEST_PROBABILITY))
            confidence[part] = to_numpy(pick(chunk, best))
            squares = _sums(chunk * chunk)
        predicted[part] = to_numpy(best)
        nll[part] = -log_of_label
        brier[part] = squares - 2 * of_label + 1

    for_row_chunks(scores, work)
    return RowScores(confidence, predicted, predicted == labels, nll, brier)


def exponentials(chunk: Array) -> tuple[Array, Array, Array, FloatArray]:
    """Return what the softmax of (n, K) logits is made of, apart from the largest entry.

    With r = sum of the others, the confidence is 1 / (1 + r). Taking the largest entry's exp(0) = 1
    into a float32 sum would round r away where it matters most, next to a confidence of 1.

    Returns:
        best: (n,) index of the largest logit.
        shifted: (n, K) logits less the largest.
        others: (n, K) exp(shifted), with 0 for the largest.
        rest: (n,) r in float64; NaN for a row whose largest logit isn't finite.
    """
    xp = namespace(chunk)
    best = xp.argmax(chunk, axis=1)
    shifted = chunk - pick(chunk, best)[:, None]
    others = with_picked(xp.exp(shifted), best, 0.0)
    return best, shifted, others, _sums(others) + to_numpy(pick(shifted, best))


def top_confidence(chunk: Array) -> tuple[IntArray, FloatArray]:
    """Return the (n,) predicted labels of (n, K) logits and their (n,) probabilities."""
    best, _, _, rest = exponentials(chunk)
    return to_numpy(best).astype(np.int64), 1 / (1 + rest)


def _sums(rows: Array) -> FloatArray:
    return to_numpy(namespace(rows).sum(rows, axis=1)).astype(np.float64)
