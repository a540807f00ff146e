"""What SMART may read of a row to choose its temperature: the indicators of its Table 4.

Each is a pure function of (n, K) logits that gives (n, d) numbers, d = 1 for all but the logits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from calibrant.core.arrays import Array, FloatArray, to_numpy
from calibrant.posthoc.applying import apply_map
from calibrant.posthoc.pieces import centred, largest, parted, replaced, sums, top

IndicatorName = Literal["margin", "entropy", "confidence", "max", "max-mean", "logits"]


def margin(xp: Any, logits: Array, masks: bool) -> Array:
    """Largest minus second largest logit."""
    index, most = top(xp, logits)
    return most - largest(xp, replaced(xp, logits, index, -xp.inf))


def entropy(xp: Any, logits: Array, masks: bool) -> Array:
    """Entropy of softmax(z) in nats."""
    gaps = logits - largest(xp, logits)
    weights = xp.exp(gaps)
    # Where the weight is 0, the class adds nothing, even if it is masked with minus infinity.
    if masks:
        gaps = xp.where(weights > 0, gaps, xp.zeros_like(gaps))
    total = sums(xp, weights)
    return (xp.log(total) - sums(xp, weights * gaps) / total)[:, None]


def confidence(xp: Any, logits: Array, masks: bool) -> Array:
    """Largest probability of softmax(z)."""
    return parted(xp, logits).confidence[:, None]


def largest_logit(xp: Any, logits: Array, masks: bool) -> Array:
    """Largest logit. Depends on the arbitrary origin of the logits."""
    return largest(xp, logits)


def largest_above_mean(xp: Any, logits: Array, masks: bool) -> Array:
    """Largest minus mean unmasked logit."""
    return largest(xp, centred(xp, logits, masks))


def all_logits(xp: Any, logits: Array, masks: bool) -> Array:
    """All K logits of the row. Depends on their arbitrary origin."""
    return logits


INDICATORS: dict[IndicatorName, Callable[[Any, Array, bool], Array]] = {
    "margin": margin,
    "entropy": entropy,
    "confidence": confidence,
    "max": largest_logit,
    "max-mean": largest_above_mean,
    "logits": all_logits,
}


def indicator_of(name: IndicatorName, xp: Any, logits: Array, masks: bool) -> Array:
    """Return the (n, d) float64 values of an indicator."""
    return xp.astype(INDICATORS[name](xp, logits, masks), xp.float64)


def indicator_values(name: IndicatorName, logits: Array) -> FloatArray:
    """Return the (N, d) values of an indicator for logits of any array kind, as NumPy."""

    def of(xp: Any, rows: Array, _: None, learnt: Mapping[str, Array], masks: bool) -> Array:
        return indicator_of(name, xp, rows, masks)

    return to_numpy(apply_map(of, logits, None, {}))
