"""Shares of votes as the library computes them, and by the integral itself, class by class."""

from __future__ import annotations

import numpy as np
from scipy.special import log_ndtr

from calibrant.core import numpy_namespace as xnp
from calibrant.posthoc.noise import step_for, vote_share, vote_shares, vote_tables

LOWEST, HIGHEST = -9.0, 12.0


def shares(logits, noise):
    return vote_shares(xnp, logits, noise, vote_tables(step_for(logits.shape[1])))


def share_of(logits, classes, noise):
    return vote_share(xnp, logits, classes, noise, vote_tables(step_for(logits.shape[1])))


def direct_shares(logits, noise, step=0.05):
    """Return the shares by the trapezoid rule with far more nodes than it takes.

    With few classes a step of 0.25 is as good.
    """
    gaps = (logits.max(axis=1, keepdims=True) - logits) / noise
    total = np.zeros(gaps.shape)
    for node in np.arange(LOWEST, HIGHEST + step / 2, step):
        height = gaps + node
        logarithm = log_ndtr(height)
        crowd = logarithm.sum(axis=1, keepdims=True)
        total += np.exp(-0.5 * height * height - logarithm + crowd)
    return total * (step / np.sqrt(2 * np.pi))
