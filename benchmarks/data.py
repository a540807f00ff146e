"""Logits whose right answer is known, and slow but plain computations to check results against."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]
Labels = NDArray[np.int64]

TRUE_TEMPERATURE = 2.0


class Rows(NamedTuple):
    """A set of predictions: (N, K) float32 logits and (N,) labels."""

    logits: NDArray[np.float32]
    labels: Labels


def synthetic(rows: int, classes: int, seed: int) -> Rows:
    """Return logits that are twice too large, so that the population optimum is T = 2.

    Honest logits have one favoured class a row, with a margin that differs by class, and noise;
    labels are drawn from their softmax a block of rows at a time.
    """
    rng = np.random.default_rng([seed, rows, classes])
    margin = np.log(classes) + 2.5 + np.random.default_rng(classes).normal(size=classes)
    logits = np.empty((rows, classes), dtype=np.float32)
    labels = np.empty(rows, dtype=np.int64)
    for start in range(0, rows, 1000):
        part = slice(start, min(start + 1000, rows))
        count = part.stop - part.start
        honest = 1.2 * rng.normal(size=(count, classes))
        favoured = rng.integers(classes, size=count)
        honest[np.arange(count), favoured] += margin[favoured]
        labels[part] = (honest + rng.gumbel(size=honest.shape)).argmax(axis=1)
        logits[part] = TRUE_TEMPERATURE * honest
    return Rows(logits, labels)


def softmax(logits: Floats) -> Floats:
    """Return the softmax of every row, in the dtype of the logits."""
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    return weights


def one_pass(logits: Floats) -> Floats:
    """Return `exp(z - max).sum(1)`: the unit that fits are measured in."""
    return np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1)


def plain_ece(probs: Floats, labels: Labels, n_bins: int = 15) -> float:
    """Return the ECE of Guo et al. by a loop over bins (lo, hi]."""
    confidence = probs.max(axis=1).astype(np.float64)
    correct = probs.argmax(axis=1) == labels
    total = 0.0
    for index in range(n_bins):
        inside = (confidence > index / n_bins) & (confidence <= (index + 1) / n_bins)
        total += abs(float((confidence[inside] - correct[inside]).sum()))
    return total / len(labels)


def plain_nll(probs: Floats, labels: Labels) -> float:
    """Return the mean of -log p_y, with p_y kept above 1e-12."""
    of_label = probs[np.arange(len(labels)), labels].astype(np.float64)
    return float(-np.log(np.maximum(of_label, 1e-12)).mean())


def plain_temperature(rows: Rows) -> float:
    """Return the T of highest likelihood, by float64 bisection on the slope of the NLL."""
    low, high = np.log(0.05), np.log(20.0)
    for _ in range(24):
        middle = (low + high) / 2
        slope = _likelihood_slope(rows, float(np.exp(middle)))
        low, high = (low, middle) if slope > 0 else (middle, high)
    return float(np.exp(-(low + high) / 2))


def _likelihood_slope(rows: Rows, beta: float) -> float:
    total = 0.0
    for start in range(0, len(rows.labels), 2000):
        logits = rows.logits[start : start + 2000].astype(np.float64)
        labels = rows.labels[start : start + 2000]
        mean = (softmax(beta * logits) * logits).sum(axis=1)
        total += float((mean - logits[np.arange(len(labels)), labels]).sum())
    return total


def optimality_gap(
    rows: Rows, weight: Floats, bias: Floats, beta: float, ridge: float, inputs: str
) -> float:
    """Return how far a linear map can be above the optimum of its penalised likelihood.

    With x = beta (z - mean z), or log softmax(beta z), the objective is the mean NLL of
    softmax(W x + b) with a ridge, ridge (|W - I|^2 + |b|^2). It is strongly convex, so it lies at
    most |gradient|^2 / (4 ridge) above its optimum.

    Args:
        rows: the rows that it was fitted on.
        weight: (K,) diagonal of W, or (K, K); bias: (K,) b.
        beta, inputs: see above; ridge: the least penalty of a parameter. For a matrix the penalty
            off the diagonal is K - 1 times it.
    """
    classes = len(bias)
    by_weight, by_bias = np.zeros(weight.shape), np.zeros(classes)
    for start in range(0, len(rows.labels), 1000):
        logits = rows.logits[start : start + 1000].astype(np.float64)
        x = beta * (logits - logits.mean(axis=1, keepdims=True))
        if inputs == "log-probabilities":
            x -= np.log(np.exp(x).sum(axis=1, keepdims=True))
        scores = x * weight if weight.ndim == 1 else x @ weight.T
        error = softmax(scores + bias)
        error[np.arange(len(error)), rows.labels[start : start + 1000]] -= 1
        by_bias += error.sum(axis=0)
        by_weight += (error * x).sum(axis=0) if weight.ndim == 1 else error.T @ x
    penalty, identity = np.full(weight.shape, ridge), np.ones(classes)
    if weight.ndim == 2:
        penalty *= classes - 1
        np.fill_diagonal(penalty, ridge)
        identity = np.eye(classes)
    n = len(rows.labels)
    slope = ((by_weight / n + 2 * penalty * (weight - identity)) ** 2 / penalty).sum()
    slope += ((by_bias / n + 2 * ridge * bias) ** 2).sum() / ridge
    return float(slope / 4)
