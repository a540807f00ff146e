"""An order of the rows that is theirs, for fits that make the most of a rounding error."""

from __future__ import annotations

import numpy as np

from calibrant.core.arrays import FloatArray, IntArray, to_numpy
from calibrant.predictions.predictions import Predictions

# Rows that agree in so many of their largest logits are as good as equal.
LOGITS_COMPARED = 10


def in_own_order(predictions: Predictions) -> tuple[FloatArray, IntArray, IntArray]:
    """Return rows and classes in an order that doesn't depend on the one in which they came.

    A sum is rounded according to the order of its terms, and processors differ in that, too. Where
    a fit sums over rows, rows in an order of their own give the same sums, bit for bit, however
    they were shuffled. The classes of each row stand in falling order of their logits.

    Args:
        predictions: with unmasked classes; the logits' origin doesn't matter to the order.

    Returns:
        (N, K) float64 logits, (N,) labels as columns of them, and the (N,) rows of `predictions`
        that they are.
    """
    logits = to_numpy(predictions.scores).astype(np.float64)
    of_label = logits[np.arange(len(logits)), predictions.labels]
    ranked = -np.sort(-logits, axis=1)
    ranks = (ranked > of_label[:, None]).sum(axis=1)
    compared = ranked[:, :LOGITS_COMPARED] - ranked.mean(axis=1, keepdims=True)
    order = np.lexsort([ranks, *compared.T])
    return ranked[order], ranks[order], order
