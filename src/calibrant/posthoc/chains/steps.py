"""From one step of a chain to the next: the logits of a step are log-probabilities of the last."""

from __future__ import annotations

import numpy as np

from calibrant.core.arrays import Array, as_array, like, namespace
from calibrant.predictions.predictions import SMALLEST_PROBABILITY


def log_of(probs: Array, logits: Array) -> Array:
    """Return (N, K) log-probabilities, minus infinity where `logits` mask a class.

    No probability counts as less than the smallest that NLL takes.
    """
    xp = namespace(probs)
    scores = xp.log(xp.clip(probs, SMALLEST_PROBABILITY, None))
    return xp.where(xp.asarray(logits) == -xp.inf, -xp.inf, scores)


def with_top_lifted(scores: Array, logits: Array) -> Array:
    """Return the (N, K) scores with that of each row's largest logit lifted by a rounding error.

    So no class overtakes it in the second step that is level with it after the first.
    """
    xp = namespace(scores)
    columns = like(np.arange(int(scores.shape[1])), scores)
    chosen = columns[None, :] == xp.argmax(as_array(logits), axis=1)[:, None]
    top = xp.max(scores, axis=1, keepdims=True)
    lifted = top + 2 * xp.finfo(scores.dtype).eps * (1 + xp.abs(top))
    return xp.where(chosen, lifted, scores)


def scores_behind(probs: Array, logits: Array, *, keeps: bool) -> Array:
    """Return the (N, K) logits of the step behind one that made `probs` of `logits`.

    Args:
        probs, logits: (N, K).
        keeps: whether all steps so far keep the predicted class, and ties mustn't hand it on.
    """
    scores = log_of(probs, logits)
    return with_top_lifted(scores, logits) if keeps else scores
