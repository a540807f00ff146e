"""What SMART may read of a row to choose its temperature: the indicators of its Table 4."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from calibrant.core.arrays import (
    Array,
    FloatArray,
    for_row_chunks,
    namespace,
    to_numpy,
    working_dtype,
)
from calibrant.core.masks import unmasked_mean
from calibrant.predictions.rows import top_two

IndicatorName = Literal["margin", "entropy", "confidence", "max", "max-mean", "logits"]


def margin(chunk: Array) -> Array:
    """Largest minus second largest logit."""
    first, second, _ = top_two(chunk)
    return first - second


def entropy(chunk: Array) -> Array:
    """Entropy of softmax(z) in nats."""
    xp = namespace(chunk)
    shifted = chunk - xp.max(chunk, axis=1, keepdims=True)
    weights = xp.exp(shifted)
    total = xp.sum(weights, axis=1)
    # Where the weight is 0, the class adds nothing, even if it is masked with minus infinity.
    shifted = xp.where(weights > 0, shifted, 0.0)
    return xp.log(total) - xp.sum(weights * shifted, axis=1) / total


def confidence(chunk: Array) -> Array:
    """Largest probability of softmax(z)."""
    xp = namespace(chunk)
    return 1 / xp.sum(xp.exp(chunk - xp.max(chunk, axis=1, keepdims=True)), axis=1)


def largest(chunk: Array) -> Array:
    """Largest logit. Depends on the arbitrary origin of the logits."""
    return namespace(chunk).max(chunk, axis=1)


def largest_above_mean(chunk: Array) -> Array:
    """Largest minus mean unmasked logit."""
    xp = namespace(chunk)
    return xp.max(chunk, axis=1) - unmasked_mean(chunk)[0][:, 0]


def all_logits(chunk: Array) -> Array:
    """All K logits of the row. Depends on their arbitrary origin."""
    return chunk


INDICATORS: dict[IndicatorName, Callable[[Array], Array]] = {
    "margin": margin,
    "entropy": entropy,
    "confidence": confidence,
    "max": largest,
    "max-mean": largest_above_mean,
    "logits": all_logits,
}


def indicator_values(name: IndicatorName, logits: Array) -> FloatArray:
    """Return the (N, d) values of an indicator, d = 1 for all but ``"logits"`` (d = K)."""
    xp, dtype, function = namespace(logits), working_dtype(logits), INDICATORS[name]
    values = np.empty((logits.shape[0], logits.shape[1] if name == "logits" else 1))

    def work(part: slice) -> None:
        found = to_numpy(function(xp.astype(logits[part], dtype, copy=False)))
        values[part] = found.reshape(len(found), -1)

    for_row_chunks(logits, work)
    return values
