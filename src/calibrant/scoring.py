"""One pass over the rows that leaves what every metric needs: five numbers a row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from calibrant.arrays import (
    BoolArray,
    FloatArray,
    IntArray,
    for_row_chunks,
    like,
    namespace,
    pick,
    to_numpy,
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
        best = xp.argmax(chunk, axis=1)
        if predictions.kind == "logits":
            shifted = chunk - xp.max(chunk, axis=1, keepdims=True)
            log_of_label = pick(shifted, label)
            weights = xp.exp(shifted)
            total = xp.sum(weights, axis=1)
            log_of_label = log_of_label - xp.log(total)
            of_label = xp.exp(log_of_label)
            top = 1 / total
            squares = xp.vecdot(weights, weights) / (total * total)
        else:
            of_label, top = pick(chunk, label), pick(chunk, best)
            log_of_label = xp.log(xp.clip(of_label, SMALLEST_PROBABILITY, None))
            squares = xp.vecdot(chunk, chunk)
        predicted[part] = to_numpy(best)
        confidence[part] = to_numpy(top)
        nll[part] = -to_numpy(log_of_label)
        brier[part] = to_numpy(squares - 2 * of_label + 1)

    for_row_chunks(scores, work)
    return RowScores(confidence, predicted, predicted == labels, nll, brier)
