"""Proper scores and accuracy: means over rows, one number a row."""

from __future__ import annotations

import numpy as np

from calibrant.core.arrays import Array, BoolArray, FloatArray, as_array
from calibrant.core.errors import PredictionsError
from calibrant.core.weights import mean
from calibrant.metrics.metric_types import MeanMetric
from calibrant.metrics.top_label import (
    PairKind,
    check_kind,
    checked_weight,
    confidence_and_correct,
)
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.scoring import RowScores, score_rows, score_top

# Confidences come in float32, where 1 may be anything above this much below 1: half of the step
# between 1 and its neighbour.
ROUNDED_TO_ONE = 2.0**-25


def negative_log_likelihood(
    probs: Array, labels: Array, *, kind: PairKind | None = None, sample_weight: Array | None = None
) -> float:
    """Return the mean of -log p_y, in nats.

    Args:
        probs: (N, K) probabilities. A p_y below the smallest normal float32 (1.2e-38) is raised to
            it.
        labels: (N,) true classes.
        kind: ``"prob"`` of (N,) probabilities of the positive class, with labels 0 and 1.
        sample_weight: (N,) how much each row counts; by default all alike.

    References:
        Good, J. R. Stat. Soc. B 1952. Gneiting & Raftery, J. Am. Stat. Assoc. 2007.

    Examples:
        >>> import calibrant as cb
        >>> value = cb.metrics.negative_log_likelihood([[0.5, 0.5], [0.75, 0.25]], [0, 1])
        >>> round(value, 3)  # (log 2 + log 4) / 2
        1.04
    """
    return mean(_scores(probs, labels, kind).nll, checked_weight(sample_weight, len(labels)))


def brier_score(
    probs: Array, labels: Array, *, kind: PairKind | None = None, sample_weight: Array | None = None
) -> float:
    """Return the mean of sum_k (p_k - onehot_k)^2, in [0, 2] (Brier's sum convention).

    For (N,) probabilities of the positive class it is the mean of (p - label)^2, half of that sum,
    in [0, 1], as is usual with one score a row. Other code takes half of the sum, or its mean over
    classes (divided by K).

    Args:
        probs: (N, K) probabilities.
        labels: (N,) true classes.
        kind: ``"prob"`` of (N,) probabilities of the positive class, with labels 0 and 1.
        sample_weight: (N,) how much each row counts; by default all alike.

    References:
        Brier, Monthly Weather Review 1950.

    Examples:
        >>> import calibrant as cb
        >>> value = cb.metrics.brier_score([[0.8, 0.2], [0.5, 0.5]], [0, 1])
        >>> round(value, 3)  # (.2^2 + .2^2 + .5^2 + .5^2) / 2
        0.29
    """
    weight = checked_weight(sample_weight, len(labels))
    total = mean(_scores(probs, labels, kind).brier, weight)
    return total if kind is None else total / 2


def accuracy(
    probs: Array, labels: Array, *, kind: PairKind | None = None, sample_weight: Array | None = None
) -> float:
    """Return the share of rows whose largest probability (the first if tied) is the true class's.

    Args:
        probs: (N, K) probabilities.
        labels: (N,) true classes.
        kind: ``"prob"`` of (N,) probabilities of the positive class, with labels 0 and 1.
        sample_weight: (N,) how much each row counts; by default all alike.

    References:
        Common usage; no single paper.

    Examples:
        >>> import calibrant as cb
        >>> value = cb.metrics.accuracy([[0.7, 0.3], [0.4, 0.6], [0.5, 0.5]], [0, 0, 0])
        >>> round(value, 3)  # right, wrong, and a tie that goes to the first class
        0.667
    """
    right = score_top(_predictions(probs, labels, kind)).correct.astype(np.float64)
    return mean(right, checked_weight(sample_weight, len(labels)))


def top_label_nll(
    scores: Array,
    labels: Array,
    *,
    kind: PairKind | None = None,
    sample_weight: Array | None = None,
) -> float:
    """Return the mean of -log c where the top label is right, -log(1 - c) where it isn't, in nats.

    It is the NLL of "the predicted label is right", the proper score of a confidence. If scores of
    all classes are known, the NLL measures more.

    A probability below 3e-8 (half of a step of float32 below 1) is raised to it: a wrong row whose
    confidence was rounded to 1 costs 17.3, and a few of them decide the mean. Confidences that were
    written with few decimals are 1 for rows that may be wrong, which costs much; `compare` prints
    the number of these rows.

    Args:
        scores: (N, K) probabilities; or (N,) of the `kind` that is named.
        labels: (N,) true classes, of ``"confidence"`` whether each prediction was right.
        kind: what (N,) scores are: ``"confidence"``, or ``"prob"`` of the positive class.
        sample_weight: (N,) how much each row counts; by default all alike.

    References:
        Good, J. R. Stat. Soc. B 1952, of the event that the predicted label is right.

    Examples:
        >>> import calibrant as cb
        >>> value = cb.metrics.top_label_nll([0.5, 0.75], [True, False], kind="confidence")
        >>> round(value, 3)  # (log 2 + log 4) / 2
        1.04
    """
    said, right = confidence_and_correct(scores, labels, kind, top=True)
    weight = checked_weight(sample_weight, len(said))
    return mean(_of_event(said, right.astype(np.bool_)), weight)


def _of_event(probability: FloatArray, happened: BoolArray) -> FloatArray:
    """Return (N,) -log of the probability of what happened, of one event a row."""
    return -np.log(np.maximum(np.where(happened, probability, 1 - probability), ROUNDED_TO_ONE))


def _scores(probs: Array, labels: Array, kind: PairKind | None) -> RowScores:
    return score_rows(_predictions(probs, labels, kind))


def _predictions(probs: Array, labels: Array, kind: PairKind | None) -> Predictions:
    values = as_array(probs)
    check_kind(len(values.shape), kind)
    if kind == "confidence":
        raise PredictionsError(
            "this needs a score for every class, and there is only the confidence of one"
        )
    if kind == "prob":
        return Predictions.from_binary(values, labels)
    return Predictions.from_probs(values, labels)


def nll_of_rows(rows: RowScores) -> FloatArray:
    """Return (N,) -log p_y."""
    return rows.nll


def brier_of_rows(rows: RowScores) -> FloatArray:
    """Return (N,) sums over classes of squared differences."""
    return rows.brier


def half_brier_of_rows(rows: RowScores) -> FloatArray:
    """Return (N,) squared differences of the positive class alone."""
    return rows.brier / 2


def right_of_rows(rows: RowScores) -> FloatArray:
    """Return (N,) 1.0 where the predicted label is the true one, else 0.0."""
    return rows.correct.astype(np.float64)


def top_nll_of_rows(rows: RowScores) -> FloatArray:
    """Return (N,) -log of the probability of what became of the predicted label."""
    return _of_event(rows.confidence, rows.correct)


def rounded_rows(rows: RowScores) -> int:
    """Return how many rows `top_nll_of_rows` gives its greatest loss."""
    of_what_happened = np.where(rows.correct, rows.confidence, 1 - rows.confidence)
    return int(np.sum(of_what_happened < ROUNDED_TO_ONE))


NLL = MeanMetric(
    name="nll",
    title="NLL",
    definition="mean of -log p_y in nats",
    function=negative_log_likelihood,
    effort="one pass over N x K",
    fails="it also measures how sharp the network is, and one row with p_y near 0 can decide it",
    percent=False,
    needs_classes=True,
    per_row=nll_of_rows,
)
BRIER = MeanMetric(
    name="brier",
    title="Brier",
    definition="mean of sum_k (p_k - onehot_k)^2, in [0, 2]",
    function=brier_score,
    effort="one pass over N x K",
    fails="it also measures how sharp the network is",
    percent=False,
    needs_classes=True,
    per_row=brier_of_rows,
)
ACCURACY = MeanMetric(
    name="accuracy",
    title="accuracy",
    definition="share of rows whose predicted label is the true one",
    function=accuracy,
    effort="one pass over N x K",
    fails="it ignores confidence",
    lower_is_better=False,
    by_rank=True,
    per_row=right_of_rows,
)
TOP_NLL = MeanMetric(
    name="top_nll",
    title="top-label NLL",
    definition="mean of -log c of right rows, -log(1 - c) of wrong ones, in nats",
    function=top_label_nll,
    effort="one pass over N x K",
    fails="a few wrong rows whose confidence was rounded to 1 can decide it",
    percent=False,
    per_row=top_nll_of_rows,
)
BRIER_POSITIVE = BRIER.for_positive(
    "mean of (p - outcome)^2, in [0, 1]: half of the sum over both classes",
    needs_classes=False,
    per_row=half_brier_of_rows,
)
LOG_LOSS = NLL.for_positive(
    "mean of -log of the probability of what happened, in nats: the NLL",
    name="log_loss",
    title="log loss",
    needs_classes=False,
)
