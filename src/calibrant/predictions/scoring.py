"""One pass over the rows that leaves what metrics need: a few numbers a row."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from calibrant.core.arrays import (
    Array,
    BoolArray,
    FloatArray,
    IntArray,
    for_row_chunks,
    largest_entries,
    like,
    namespace,
    pick,
    put,
    row_sums,
    to_numpy,
    working_dtype,
)
from calibrant.predictions.predictions import SMALLEST_PROBABILITY, Predictions

# Between these, exp of a logit and its square are normal float32 numbers, so that the largest logit
# of the row needn't be taken off first, which would take as long as the exponentials.
SAFE_LOGITS = 30.0


@dataclass(frozen=True, eq=False)
class TopScores:
    """N predicted labels and how sure they are; all arrays (N,).

    Attributes:
        confidence: probability of the predicted label.
        predicted: the label of the largest score (the first one if tied), or the given one.
        correct: whether it is the true one.
    """

    confidence: FloatArray
    predicted: IntArray
    correct: BoolArray


@dataclass(frozen=True, eq=False)
class RowScores(TopScores):
    """N rows of predictions, scored; all arrays (N,).

    Attributes:
        nll: -log p_y; NaN for the top-label form, which doesn't say.
        brier: sum_k (p_k - onehot_k)^2; NaN for the top-label form.
        weights: how much each row counts; None where all count alike.
    """

    nll: FloatArray
    brier: FloatArray
    weights: FloatArray | None = None

    def of_positive(self) -> RowScores:
        """Return rows of two classes as if all had been predicted to be of class 1.

        Then `confidence` is the probability of that class, and `correct` whether it is the true
        one.
        """
        positive = self.predicted == 1
        return replace(
            self,
            confidence=np.where(positive, self.confidence, 1 - self.confidence),
            predicted=np.ones_like(self.predicted),
            correct=self.correct == positive,
        )

    def take(self, part: slice) -> RowScores:
        """Return some of the rows, nothing copied."""
        fields = {name: v[part] for name, v in vars(self).items() if v is not None}
        return RowScores(**fields)


def score_rows(predictions: Predictions) -> RowScores:
    """Score predictions of any kind, in bounded memory, where their scores live."""
    if predictions.top_only:
        top = score_top(predictions)
        unknown = np.full(predictions.n, np.nan)
        return RowScores(
            top.confidence, top.predicted, top.correct, unknown, unknown, predictions.weights
        )
    scores, labels = predictions.scores, predictions.labels
    xp, dtype = namespace(scores), working_dtype(scores)
    confidence, nll, brier = (np.empty(predictions.n) for _ in range(3))
    predicted = np.empty(predictions.n, dtype=np.int64)

    def work(part: slice) -> None:
        chunk = xp.astype(scores[part], dtype, copy=False)
        label = like(labels[part], scores)
        if predictions.kind == "logits":
            best, others, scale, rest = exponentials(chunk)
            gap = to_numpy(pick(chunk, label) - pick(chunk, best)).astype(np.float64)
            log_of_label = gap - np.log1p(rest)
            of_label = np.exp(log_of_label)
            confidence[part] = 1 / (1 + rest)
            squares = (1 + _squares(others) / scale**2) / (1 + rest) ** 2
        else:
            best, most = largest_entries(chunk)
            of_label = to_numpy(pick(chunk, label)).astype(np.float64)
            log_of_label = np.log(np.maximum(of_label, SMALLEST_PROBABILITY))
            confidence[part] = to_numpy(most)
            squares = _squares(chunk)
        predicted[part] = to_numpy(best)
        nll[part] = -log_of_label
        brier[part] = squares - 2 * of_label + 1

    for_row_chunks(scores, work)
    return RowScores(confidence, predicted, predicted == labels, nll, brier, predictions.weights)


def score_top(predictions: Predictions) -> TopScores:
    """Return what top-label metrics need, in half the time of `score_rows`."""
    confidence, predicted = said_of_top(predictions)
    return TopScores(confidence, predicted, predicted == predictions.labels)


def said_of_top(predictions: Predictions) -> tuple[FloatArray, IntArray]:
    """Return the (n,) confidences and the (n,) predicted classes of rows, labelled or not.

    Of scores the confidences are numbers from 0 to 1 that rank alike, the same for each batch.
    """
    if predictions.top_only:
        assert predictions.predicted is not None
        if predictions.kind == "score":
            ranked = 1 / (1 + np.exp(-np.arcsinh(predictions.scores)))
            return ranked, predictions.predicted
        return to_numpy(predictions.scores).astype(np.float64), predictions.predicted
    scores = predictions.scores
    xp, dtype = namespace(scores), working_dtype(scores)
    confidence, predicted = np.empty(predictions.n), np.empty(predictions.n, dtype=np.int64)

    def work(part: slice) -> None:
        chunk = xp.astype(scores[part], dtype, copy=False)
        if predictions.kind == "logits":
            predicted[part], confidence[part] = top_confidence(chunk)
        else:
            best, most = largest_entries(chunk)
            predicted[part], confidence[part] = to_numpy(best), to_numpy(most)

    for_row_chunks(scores, work)
    return confidence, predicted


def exponentials(chunk: Array) -> tuple[Array, Array, FloatArray, FloatArray]:
    """Return what the softmax of (n, K) logits is made of, apart from the largest entry.

    With r = sum of the others over the largest, the confidence is 1 / (1 + r). Taking the largest
    entry into a float32 sum would round r away where it matters most, next to a confidence of 1.

    Returns:
        best: (n,) index of the largest logit.
        others: (n, K) exp(z) of the others and 0 for the largest, over a common factor of the row.
        scale: (n,) what exp(z) of the largest would be among them.
        rest: (n,) r in float64; NaN for a row whose largest logit isn't finite.
    """
    xp = namespace(chunk)
    best, top = largest_entries(chunk)
    safe = xp.abs(top) <= SAFE_LOGITS
    if bool(xp.all(safe)):
        shifted, scale = chunk, np.exp(to_numpy(top).astype(np.float64))
    else:
        # Row by row, so that a row's last digits don't depend on the other rows of its chunk.
        shift = xp.where(safe, xp.zeros_like(top), top)
        with np.errstate(over="ignore"):  # -inf, whose exponential is 0, is right
            shifted = chunk - shift[:, None]
        scale = np.exp(to_numpy(top - shift).astype(np.float64))
    others = put(xp.exp(shifted), best, 0.0)
    return best, others, scale, to_numpy(row_sums(others)).astype(np.float64) / scale


def top_confidence(chunk: Array) -> tuple[IntArray, FloatArray]:
    """Return the (n,) predicted labels of (n, K) logits and their (n,) probabilities."""
    best, _, _, rest = exponentials(chunk)
    return to_numpy(best).astype(np.int64), 1 / (1 + rest)


def _squares(rows: Array) -> FloatArray:
    return to_numpy(namespace(rows).vecdot(rows, rows)).astype(np.float64)
