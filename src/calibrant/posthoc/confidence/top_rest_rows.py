"""What top-rest scaling reads of a row, and how sure it is of the confidence that it gives it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from calibrant.core.arrays import Array
from calibrant.posthoc.fitting.smooth_logistic import SplineErrors, SplinePieces
from calibrant.posthoc.pieces import (
    as_type,
    cubics,
    largest,
    place_in,
    replaced,
    sigmoid,
    sums,
    top,
)

# Keeps the logarithm of a margin of 0 finite; in units of the fitted temperature.
SMALLEST_MARGIN = 1e-3


class RowParts(NamedTuple):
    """Rows parted into the top class and the others.

    Attributes:
        index: (n, 1) which class is the top one.
        below: (n, K) beta (z_k - second), minus infinity at the top class and where masked.
        weights: (n, K) exp(below): 0 at the top class, 1 at the second.
        mass: (n,) sum of the weights; 0 where all others are masked.
        gap: (n,) beta (top - second); infinite where all others are masked.
    """

    index: Array
    below: Array
    weights: Array
    mass: Array
    gap: Array


def parted_at(xp: Any, logits: Array, beta: Array, masks: bool) -> RowParts:
    """Return (n, K) rows parted at their top class, at an inverse temperature."""
    index, most = top(xp, logits)
    others = replaced(xp, logits, index, -xp.inf)
    second = largest(xp, others)
    gap = (most - second)[:, 0] * beta
    if masks:
        second = xp.where(second == -xp.inf, most, second)
    below = (others - second) * beta
    weights = xp.exp(below)
    return RowParts(index, below, weights, sums(xp, weights), gap)


def log_odds_and_margin(xp: Any, row: RowParts) -> tuple[Array, Array]:
    """Return (n,) logit(c) and log margin, in float64.

    logit(c) = -log sum_{k not top} exp(beta (z_k - max z)), summed from the second class down: it
    stays exact where c rounds to 1. A row with one unmasked class has logit(c) = inf.
    """
    mass, gap = xp.astype(row.mass, xp.float64), xp.astype(row.gap, xp.float64)
    log_odds = gap - xp.log(xp.where(mass > 0, mass, xp.ones_like(mass)))
    return log_odds, xp.log(gap + SMALLEST_MARGIN)


def row_inputs(
    xp: Any, logits: Array, features: None, learnt: Mapping[str, Array], *, masks: bool = True
) -> Array:
    """Return (n, 3): logit(c), log margin and d logit(c) / d log beta."""
    return xp.stack(list(_inputs(xp, logits, learnt, masks)), axis=1)


def _inputs(
    xp: Any, logits: Array, learnt: Mapping[str, Array], masks: bool
) -> tuple[Array, Array, Array]:
    row = parted_at(xp, logits, as_type(xp, learnt["beta"], logits), masks)
    log_odds, margin = log_odds_and_margin(xp, row)
    zeros = xp.zeros_like(row.below)
    spread = sums(xp, row.weights * xp.where(row.weights > 0, row.below, zeros))
    mass, gap = xp.astype(row.mass, xp.float64), xp.astype(row.gap, xp.float64)
    inner = xp.astype(spread, xp.float64) / xp.where(mass > 0, mass, xp.ones_like(mass))
    known = xp.where(xp.isfinite(gap), gap, xp.zeros_like(gap))
    return log_odds, margin, known - inner


def interval_of_rows(
    xp: Any, logits: Array, learnt: Mapping[str, Array], masks: bool
) -> tuple[Array, Array]:
    """Return (n,) float64 ends of the confidence, from normal errors of its log odds.

    Args:
        xp: array namespace.
        logits: (n, K).
        learnt: what the map reads, and besides: "crossed" and "spread" of `SplineErrors`, "powers"
            from 0 to 6, "slope_variance", "beta_error", and "deviations": how many standard errors
            the ends lie from the middle.
        masks: whether a logit may be minus infinity.
    """
    log_odds, margin, by_beta = _inputs(xp, logits, learnt, masks)
    pieces = [learnt[name] for name in SplinePieces._fields]
    middle = learnt["slope"] * log_odds + cubics(xp, margin, *pieces)
    piece, u = place_in(xp, margin, *pieces[:3])
    powers = u[:, None] ** learnt["powers"]
    crossed, spread = (
        xp.sum(xp.take(learnt[name], piece, axis=0) * powers, axis=1)
        for name in SplineErrors._fields
    )
    known = xp.where(xp.isfinite(log_odds), log_odds, xp.zeros_like(log_odds))
    of_beta = by_beta * (learnt["slope"] * learnt["beta_error"])
    of_slope = known * (known * learnt["slope_variance"] + 2 * crossed)
    variance = of_slope + spread + of_beta * of_beta
    reach = learnt["deviations"] * xp.sqrt(xp.maximum(variance, xp.zeros_like(variance)))
    return sigmoid(xp, middle - reach), sigmoid(xp, middle + reach)
