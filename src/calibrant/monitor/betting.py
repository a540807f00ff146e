"""Bets against honest confidences: what each row adds to the evidence that they are off.

A row says that it is right with probability p, and turns out right (y = 1) or wrong. Alternative j
says q_j instead, with logit q_j = a_j + b_j logit p: too sure, not sure enough, too high, too low.
Its bet on the row pays

    L_j = q_j^y (1 - q_j)^(1 - y) / (u_j^y (1 - u_j)^(1 - y)),   u_j = clip(q_j, p - e, p + e),

where u_j is whatever the hypothesis |P(y = 1 | past, p) - p| <= e allows that is nearest to q_j.
The expected payment is at most 1 as long as the hypothesis holds, for every j and every past: so
products of payments are supermartingales, and nobody gets rich by betting against an honest model.

A. Henzi, M. Puke, T. Dimitriadis, J. Ziegel, *A safe Hosmer-Lemeshow test*, arXiv 2203.00426.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from calibrant.core.arrays import BoolArray, FloatArray
from calibrant.metrics.bins import LOGIT_CLIP

INTERCEPTS = (-2.0, -1.0, -0.5, -0.25, 0.0, 0.25, 0.5, 1.0)
SLOPES = (0.35, 0.5, 0.7, 0.85, 1.0, 1.2, 1.5)
HONEST = (0.0, 1.0)
# (J, 2) intercept a and slope b of every alternative.
ALTERNATIVES = np.array([pair for pair in product(INTERCEPTS, SLOPES) if pair != HONEST])
COUNT = len(ALTERNATIVES)
# Beyond this no alternative goes, and no confidence: a certainty that is wrong once would
# otherwise decide everything.
LARGEST_LOGIT = float(np.log1p(-LOGIT_CLIP) - np.log(LOGIT_CLIP))


def payments(confidence: FloatArray, correct: BoolArray, tolerance: float) -> FloatArray:
    """Return the (n, J) payments L of n rows.

    Both outcomes are treated alike: with o what happened, P(o) under the alternative over P(o)
    under the hypothesis, each from the log odds of o. So small probabilities keep their digits.

    Args:
        confidence: (n,) in [0, 1].
        correct: (n,) whether each row is right.
        tolerance: e.
    """
    sure = np.clip(confidence, LOGIT_CLIP, 1 - LOGIT_CLIP)
    said = np.where(correct, sure, 1 - sure)
    sign = np.where(correct, 1.0, -1.0)
    odds = np.log(said) - np.log1p(-said)
    paid = np.multiply.outer(odds, ALTERNATIVES[:, 1])
    paid += np.multiply.outer(sign, ALTERNATIVES[:, 0])
    np.clip(paid, -LARGEST_LOGIT, LARGEST_LOGIT, out=paid)
    np.negative(paid, out=paid)
    np.exp(paid, out=paid)
    paid += 1
    np.reciprocal(paid, out=paid)  # what the alternative said of what happened
    allowed = np.minimum(paid, (said + tolerance)[:, None])
    np.maximum(allowed, (said - tolerance)[:, None], out=allowed)
    paid /= allowed
    return paid


def log_mean_exp(logs: FloatArray) -> FloatArray:
    """Return log of the mean of exp over the last axis, without overflow."""
    top = logs.max(axis=-1)
    return top + np.log(np.exp(logs - top[..., None]).mean(axis=-1))
