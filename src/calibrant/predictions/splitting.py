"""Which rows a random split gives to its first part."""

from __future__ import annotations

import numpy as np

from calibrant.core.arrays import BoolArray, IntArray
from calibrant.core.errors import PredictionsError
from calibrant.core.weights import codes_of


def rows_of_first_part(
    n: int,
    size: int | float,
    seed: int,
    labels: IntArray | None,
    source: str,
    clusters: IntArray | None = None,
) -> BoolArray:
    """Return (n,) whether a row belongs to the first part; see `Predictions.split`.

    Args:
        n: number of rows.
        size: rows of the first part: a count, or a fraction strictly between 0 and 1.
        seed: the same seed gives the same split.
        labels: (n,) labels of which the first part gets its share; None for any rows.
        source: what error messages call the rows.
        clusters: (n,) clusters to be kept whole; None where every row stands alone.

    Raises:
        PredictionsError: either part would be empty, the seed is negative, or both labels and
            clusters are given.
    """
    if seed < 0:
        raise PredictionsError(f"{source}: seed must not be negative, but is {seed}")
    if not np.isfinite(size) or (size >= 1 and size != int(size)):
        raise PredictionsError(
            f"{source}: can't split off {size} rows; ask for a whole number, or a fraction below 1"
        )
    count = round(size * n) if 0 < size < 1 else int(size)
    if n == 1:
        raise PredictionsError(f"{source}: a single row can't be split")
    if not 0 < count < n:
        raise PredictionsError(
            f"{source}: can't split {n} rows into {count} and {n - count}; "
            f"ask for 1 to {n - 1} rows"
        )
    if clusters is not None:
        if labels is not None:
            raise PredictionsError(
                f"{source}: rows can't be split by shares of their labels and by whole clusters at "
                "once; leave out either"
            )
        return _whole_clusters(clusters, count, seed, source)
    order = np.random.default_rng(seed).permutation(n)
    if labels is not None:
        order = order[_proportional_first(labels[order], count)]
    first = np.zeros(n, dtype=bool)
    first[order[:count]] = True
    return first


def _whole_clusters(clusters: IntArray, count: int, seed: int, source: str) -> BoolArray:
    """Return whether each row belongs to the first clusters, in random order, of `count` rows."""
    codes, number = codes_of(clusters)
    if number < 2:
        raise PredictionsError(
            f"{source}: all rows belong to one cluster, which can't be split; clusters stay whole"
        )
    order = np.random.default_rng(seed).permutation(number)
    rows = np.cumsum(np.bincount(codes)[order])
    taken = int(np.clip(np.searchsorted(rows, count, side="right"), 1, number - 1))
    return np.isin(codes, order[:taken])


def _proportional_first(labels: IntArray, count: int) -> IntArray:
    """Order rows so that each label has its share of the first `count`, rounded up or down.

    The largest remainders are rounded up; where they tie, the label that comes first wins, which is
    as random as the order of the rows.
    """
    _, first, inverse, counts = np.unique(
        labels, return_index=True, return_inverse=True, return_counts=True
    )
    share, remainder = np.divmod(counts * count, len(labels))
    share[np.lexsort((first, -remainder))[: count - share.sum()]] += 1
    by_label = np.argsort(inverse, kind="stable")
    rank = np.empty(len(labels), dtype=np.int64)
    rank[by_label] = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.argsort(rank >= share[inverse], kind="stable")
