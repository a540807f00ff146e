"""Telling unknown inputs from known ones by a score: AUROC, AUPR, and FPR at 95 % TPR.

Scores are high for in-distribution rows. AUROC is the same whichever set is called positive; FPR
and AUPR are not, so they say it: ``positive="in"`` or ``positive="out"``.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from calibrant.core.arguments import within
from calibrant.core.arrays import (
    Array,
    FloatArray,
    as_array,
    namespace,
    row_chunks,
    to_numpy,
    working_dtype,
)
from calibrant.core.checks import check_scores
from calibrant.core.errors import PredictionsError

OODScore = Literal["msp", "max_logit", "entropy", "energy"]
Positive = Literal["in", "out"]


def ood_scores(logits: Array, kind: OODScore = "msp", temperature: float = 1.0) -> FloatArray:
    """Return (N,) scores of logits, high for rows that look in-distribution.

    With z' = z / T: ``"msp"`` max softmax(z'); ``"max_logit"`` max z (no temperature: it would only
    rescale); ``"entropy"`` minus the entropy of softmax(z'), in nats; ``"energy"`` T log sum
    exp(z').

    Args:
        logits: (N, K) of any array kind.
        kind: see above.
        temperature: T > 0.

    Raises:
        PredictionsError: unusable logits.
        InputError: unknown kind, or T not positive.

    References:
        Hendrycks & Gimpel, ICLR 2017. Hendrycks et al., ICML 2022. Liu et al., NeurIPS 2020.

    Examples:
        >>> import calibrant as cb
        >>> import numpy as np
        >>> logits = np.log([[8.0, 1.0, 1.0], [1.0, 1.0, 1.0]])
        >>> cb.metrics.ood_scores(logits).round(2)
        array([0.8 , 0.33])
        >>> cb.metrics.ood_scores(logits, "energy").round(2)  # log 10 and log 3
        array([2.3, 1.1])
    """
    within("kind", kind, choices=get_args(OODScore))
    within("temperature", temperature, above=0)
    logits = as_array(logits)
    check_scores(logits, "logits", "ood_scores")
    xp, dtype = namespace(logits), working_dtype(logits)
    scores = np.empty(logits.shape[0])
    for part in row_chunks(logits):
        chunk = xp.astype(logits[part], dtype)
        top = xp.max(chunk, axis=1)
        gaps = (chunk - top[:, None]) / temperature
        weights = xp.exp(gaps)
        total = xp.sum(weights, axis=1)
        if kind == "max_logit":
            value = top
        elif kind == "msp":
            value = 1 / total
        elif kind == "energy":
            value = top + temperature * xp.log(total)
        else:
            # A masked class has weight 0 and gap -inf.
            weighted = xp.where(weights > 0, weights * gaps, xp.zeros_like(gaps))
            value = xp.sum(weighted, axis=1) / total - xp.log(total)
        scores[part] = to_numpy(value)
    return scores


def _sets(in_scores: Array, out_scores: Array) -> tuple[FloatArray, FloatArray]:
    """Return both sets sorted, as float64."""
    found: list[FloatArray] = []
    for name, given in (("in_scores", in_scores), ("out_scores", out_scores)):
        values = to_numpy(as_array(given)).astype(np.float64)
        if values.ndim != 1 or len(values) == 0 or np.isnan(values).any():
            raise PredictionsError(
                f"{name} must be (N,) numbers without NaN, N >= 1; got shape {values.shape}"
            )
        found.append(np.sort(values))
    return found[0], found[1]


def _oriented(
    in_scores: Array, out_scores: Array, positive: Positive
) -> tuple[FloatArray, FloatArray]:
    """Return positives and negatives, sorted, such that positives should score higher."""
    inside, outside = _sets(in_scores, out_scores)
    if within("positive", positive, choices=get_args(Positive)) == "in":
        return inside, outside
    return -outside[::-1], -inside[::-1]


def auroc(in_scores: Array, out_scores: Array) -> float:
    """Return P(in > out) + P(in = out) / 2 for a random row of each set.

    Args:
        in_scores: (N,) scores of in-distribution rows, which should be the higher ones.
        out_scores: (M,) scores of the others.

    Raises:
        PredictionsError: an empty set, or NaN.

    Examples:
        >>> import calibrant as cb
        >>> # of four pairs three are in order and one is tied
        >>> cb.metrics.auroc([0.9, 0.8], [0.8, 0.1])
        0.875
    """
    inside, outside = _sets(in_scores, out_scores)
    below = np.searchsorted(outside, inside, side="left")
    upto = np.searchsorted(outside, inside, side="right")
    return float((below + upto).sum() / (2 * len(inside) * len(outside)))


def fpr_at_tpr(
    in_scores: Array, out_scores: Array, tpr: float = 0.95, positive: Positive = "in"
) -> float:
    """Return the share of negatives let through by the strictest threshold that keeps `tpr`.

    ``positive="in"``: the threshold keeps 95 % of the in-distribution rows, and the value is the
    share of out-of-distribution rows kept with them. ``positive="out"``: 95 % of the
    out-of-distribution rows are flagged, and the value is the share of in-distribution rows flagged
    with them. The two differ widely. The threshold is one of the scores, and rows whose score
    equals it are let through.

    Args:
        in_scores: (N,) scores of in-distribution rows, which should be the higher ones.
        out_scores: (M,) scores of the others.
        tpr: in (0, 1].
        positive: see above.

    Raises:
        PredictionsError: an empty set, or NaN.
        InputError: tpr out of range.

    Examples:
        >>> import calibrant as cb
        >>> known, unknown = [0.9, 0.8, 0.7, 0.3], [0.6, 0.2]
        >>> cb.metrics.fpr_at_tpr(known, unknown, tpr=0.75)
        0.0
        >>> cb.metrics.fpr_at_tpr(known, unknown, tpr=1.0)  # to keep 0.3 lets 0.6 through
        0.5
    """
    within("tpr", tpr, above=0, at_most=1)
    positives, negatives = _oriented(in_scores, out_scores, positive)
    # Less a rounding error, so that 0.95 of 100 rows are 95 of them.
    needed = max(1, int(np.ceil(tpr * len(positives) * (1 - 1e-12))))
    threshold = float(positives[len(positives) - needed])
    return float((negatives >= threshold).mean())


def aupr(in_scores: Array, out_scores: Array, positive: Positive = "in") -> float:
    """Return the area under precision and recall, as average precision (steps, no trapezoids).

    Args:
        in_scores: (N,) scores of in-distribution rows, which should be the higher ones.
        out_scores: (M,) scores of the others.
        positive: which set is retrieved.

    Raises:
        PredictionsError: an empty set, or NaN.

    Examples:
        >>> import calibrant as cb
        >>> round(cb.metrics.aupr([0.9, 0.8, 0.2], [0.5]), 3)  # mean of the precisions 1, 1 and 3/4
        0.917
        >>> cb.metrics.aupr([0.9, 0.8, 0.2], [0.5], positive="out")  # found behind 0.2: one of two
        0.5
    """
    positives, negatives = _oriented(in_scores, out_scores, positive)
    thresholds, hits = np.unique(positives, return_counts=True)
    true = len(positives) - np.searchsorted(positives, thresholds, side="left")
    false = len(negatives) - np.searchsorted(negatives, thresholds, side="left")
    return float((hits / len(positives) * true / (true + false)).sum())
