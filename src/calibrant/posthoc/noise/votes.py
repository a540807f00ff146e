"""The share of votes of each class if normal noise is added to the logits: integrals, not draws."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import numpy as np

from calibrant.core.arrays import FloatArray, IntArray, pick

# Noise is integrated from here to there, in standard deviations above the largest logit; a largest
# score below the first has a probability under 1e-9, one above the second has 1e-16 a class.
LOWEST_NODE, HIGHEST_NODE = -6.0, 8.5
# Of the trapezoid rule. With up to so many classes the coarse step is off by 4e-7 in a probability
# at most, with a thousand by 2e-3 and the fine one by 7e-7; a search is served by the coarse one.
FINE_STEP, COARSE_STEP, MOST_CLASSES_COARSE = 0.25, 0.5, 100
# Beyond this many deviations the normal distribution is 1 to rounding.
CERTAIN = 8.3


def step_for(classes: int) -> float:
    """Return the step that probabilities of K classes need."""
    return COARSE_STEP if classes <= MOST_CLASSES_COARSE else FINE_STEP


def vote_share(logits: FloatArray, classes: IntArray, noise: float, step: float) -> FloatArray:
    """Return the (N,) probabilities that one class of each row wins; see `vote_shares`.

    Args:
        logits: (N, K) float64; classes: (N,) the class of each row.
        noise: standard deviation.
        step: of the trapezoid rule, in standard deviations.
    """
    gaps = (logits.max(axis=1, keepdims=True) - logits) / noise
    own = pick(gaps, classes)
    gaps.sort(axis=1)
    share = np.zeros(len(gaps))
    for node, reach in _nodes(gaps, step):
        height = own + node
        share += np.exp(-0.5 * height * height) / _normal(height) * _normal(reach).prod(axis=1)
    return share * (step / np.sqrt(2 * np.pi))


def vote_shares(logits: FloatArray, noise: float, step: float) -> FloatArray:
    """Return (N, K) probabilities that each logit is the largest after normal noise is added,

        p_k = int phi(t + g_k) prod_{j != k} Phi(t + g_j) dt,    g_k = (max z - z_k) / noise.

    Args:
        logits: (N, K) float64; minus infinity never wins.
        noise: standard deviation.
        step: of the trapezoid rule, in standard deviations.
    """
    top = logits.max(axis=1, keepdims=True)
    gaps = (top - logits) / noise
    order = gaps.argsort(axis=1)
    gaps = np.take_along_axis(gaps, order, axis=1)
    sorted_shares = np.zeros(gaps.shape)
    for node, reach in _nodes(gaps, step):
        below, count = _normal(reach), reach.shape[1]
        height = gaps + node
        density = np.exp(-0.5 * height * height)
        density[:, :count] /= below
        sorted_shares += density * below.prod(axis=1, keepdims=True)
    shares = np.empty_like(sorted_shares)
    np.put_along_axis(shares, order, sorted_shares, axis=1)
    shares /= shares.sum(axis=1, keepdims=True)
    # Rounding must not let a class overtake that is all but tied.
    largest: FloatArray = shares.max(axis=1, keepdims=True)
    return np.asarray(np.where(logits == top, largest, shares), dtype=np.float64)


def _nodes(gaps: FloatArray, step: float) -> Iterator[tuple[float, FloatArray]]:
    """Yield each node t and t + gaps of the columns that can still be overtaken there.

    Gaps ascend along each row, so what can't be is at its end, and most of it with many classes.
    """
    nearest = gaps.min(axis=0)
    for node in np.arange(LOWEST_NODE, HIGHEST_NODE + step / 2, step).tolist():
        count = int(np.searchsorted(nearest, CERTAIN - node))
        yield node, gaps[:, :count] + node


def _normal(heights: FloatArray) -> FloatArray:
    """Return the normal distribution function."""
    # Imported when needed: `import calibrant` should cost nothing.
    from scipy import special

    return cast(Any, special).ndtr(heights)
