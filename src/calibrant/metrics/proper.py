"""Proper scores and accuracy: means over rows, one number a row."""

from __future__ import annotations

from calibrant.core.arrays import Array
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.scoring import RowScores, score_rows, score_top


def negative_log_likelihood(probs: Array, labels: Array) -> float:
    """Return the mean of -log p_y, in nats.

    Args:
        probs: (N, K) probabilities. A p_y below the smallest normal float32 (1.2e-38) is raised to
            it.
        labels: (N,) true classes.

    Examples:
        >>> import calibrant as cb
        >>> value = cb.negative_log_likelihood([[0.5, 0.5], [0.75, 0.25]], [0, 1])
        >>> round(value, 3)  # (log 2 + log 4) / 2
        1.04
    """
    return float(_scores(probs, labels).nll.mean())


def brier_score(probs: Array, labels: Array) -> float:
    """Return the mean of sum_k (p_k - onehot_k)^2, in [0, 2] (Brier's sum convention).

    Half of it, and its mean over classes (divided by K), are also in use elsewhere.

    Args:
        probs: (N, K) probabilities.
        labels: (N,) true classes.

    Examples:
        >>> import calibrant as cb
        >>> value = cb.brier_score([[0.8, 0.2], [0.5, 0.5]], [0, 1])
        >>> round(value, 3)  # (.2^2 + .2^2 + .5^2 + .5^2) / 2
        0.29
    """
    return float(_scores(probs, labels).brier.mean())


def accuracy(probs: Array, labels: Array) -> float:
    """Return the share of rows whose largest probability (the first if tied) is the true class's.

    Args:
        probs: (N, K) probabilities.
        labels: (N,) true classes.

    Examples:
        >>> import calibrant as cb
        >>> value = cb.accuracy([[0.7, 0.3], [0.4, 0.6], [0.5, 0.5]], [0, 0, 0])
        >>> round(value, 3)  # right, wrong, and a tie that goes to the first class
        0.667
    """
    return float(score_top(Predictions.from_probs(probs, labels)).correct.mean())


def _scores(probs: Array, labels: Array) -> RowScores:
    return score_rows(Predictions.from_probs(probs, labels))
