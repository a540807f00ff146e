"""Proper scores and accuracy: means over rows, one number a row."""

from __future__ import annotations

from calibrant.core.arrays import Array
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.scoring import RowScores, score_rows, score_top


def negative_log_likelihood(probs: Array, labels: Array) -> float:
    """Return the mean of -log p_y, in nats.

    Args:
        probs: (N, K) probabilities. A p_y below the smallest normal float32 (1.2e-38) counts as it.
        labels: (N,) true classes.
    """
    return float(_scores(probs, labels).nll.mean())


def brier_score(probs: Array, labels: Array) -> float:
    """Return the mean of sum_k (p_k - onehot_k)^2, in [0, 2] (Brier's sum convention).

    Half of it, and its mean over classes (divided by K), are also in use elsewhere.

    Args:
        probs: (N, K) probabilities.
        labels: (N,) true classes.
    """
    return float(_scores(probs, labels).brier.mean())


def accuracy(probs: Array, labels: Array) -> float:
    """Return the share of rows whose largest probability (the first if tied) is the true class's.

    Args:
        probs: (N, K) probabilities.
        labels: (N,) true classes.
    """
    return float(score_top(Predictions.from_probs(probs, labels)).correct.mean())


def _scores(probs: Array, labels: Array) -> RowScores:
    return score_rows(Predictions.from_probs(probs, labels))
