"""Rows that occur more than once: 64 bits of each, and how many rows two sets share."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import FloatArray, IntArray, namespace, to_numpy
from calibrant.core.weights import mixed
from calibrant.predictions.constructors import RowTable
from calibrant.predictions.rows import softmax

# Odd, so that no two numbers have the same product.
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
# Rows that are gone through at once.
AT_ONCE = 1 << 18


def digests(rows: RowTable, one_in: int) -> NDArray[np.uint64]:
    """Return 64 bits of each of about one in so many rows with its label, the same for copies."""
    labels = np.zeros(rows.n, np.int64) if rows.known_labels is None else rows.known_labels
    parts = (slice(first, first + AT_ONCE) for first in range(0, rows.n, AT_ONCE))
    return np.concatenate([_digests(rows.scores[p], labels[p], one_in) for p in parts])


def _digests(scores: Any, labels: IntArray, one_in: int) -> NDArray[np.uint64]:
    xp = namespace(scores)

    def bits(column: int, index: Any) -> NDArray[np.uint64]:
        values = scores[:, column] if index is None else scores[index, column]
        return to_numpy(values).astype(np.float64).view(np.uint64)

    first = bits(0, None)
    chosen = np.arange(len(first))
    if one_in > 1:
        chosen = np.flatnonzero(mixed(first, 0) % np.uint64(one_in) == 0)
    index = xp.asarray(chosen) if one_in > 1 else slice(None)
    found = mixed(first[chosen] ^ mixed(labels[chosen].astype(np.uint64), 1), 2)
    width = int(scores.shape[1])
    # Rows that agree in as many numbers agree in all.
    for column in np.unique(np.linspace(1, width - 1, min(width - 1, 16)).astype(int)).tolist():
        # Numbers that were of single precision end in zeros, which a product would keep.
        found ^= found >> np.uint64(29)
        found *= MULTIPLIER
        found ^= bits(column, index)
    return mixed(found, 3)


def shared_rows(one: RowTable, other: RowTable) -> int:
    """Return how many rows of `other` are rows of `one` too, whatever they are written as.

    Rows are compared by their probabilities, so that neither a constant added to logits nor the
    form matters, in three steps of accuracy; what chance explains counts as none. Sure rows, which
    are all alike, aren't compared.
    """
    if one.scores.shape[1:] != other.scores.shape[1:]:
        return 0
    both = [_comparable(rows) for rows in (one, other)]
    most = 0
    for unit in (1e-9, 1e-5, 1e-3):
        ours, theirs = (_keys(rows, unit) for rows in both)
        if not len(ours) or not len(theirs):
            return 0
        found = int(np.isin(theirs, ours).sum())
        # Pairs alike within the sets say how often chance makes two of them so.
        alike = sum(len(keys) - len(np.unique(keys)) for keys in (ours, theirs))
        pairs = sum(len(keys) * (len(keys) - 1) / 2 for keys in (ours, theirs))
        by_chance = alike / max(pairs, 1) * len(ours) * len(theirs)
        if found > 3 + 3 * by_chance:
            most = max(most, found)
    return most


def _comparable(rows: RowTable) -> FloatArray:
    """Return the probabilities of some classes, and the largest, of rows that aren't sure."""
    scores = to_numpy(rows.scores).astype(np.float64, copy=False)
    if rows.top_only:
        sure = scores >= 0.99 if rows.kind == "toplabel" else np.zeros(rows.n, dtype=bool)
        return np.stack([scores, to_numpy(rows.predicted)], axis=1)[~sure]
    probs = softmax(scores) if rows.kind == "logits" else scores
    width = int(probs.shape[1])
    some = np.unique(np.linspace(0, width - 1, min(width, 16)).astype(int)).tolist()
    unsure = (best := probs.max(axis=1)) < 0.99
    return np.concatenate([probs[unsure][:, some], best[unsure, None]], axis=1)


def _keys(values: FloatArray, unit: float) -> NDArray[np.uint64]:
    """Return 64 bits of each row of numbers rounded to a unit."""
    found = np.zeros(len(values), dtype=np.uint64)
    for column, numbers in enumerate(values.T):
        found = mixed(found ^ np.rint(numbers / unit).astype(np.int64).view(np.uint64), column)
    return found
