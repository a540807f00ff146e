"""Which rows a calibrator was fitted to: enough to find them again, not enough to read them.

A promise about new rows is worth nothing on those of the fit. So a fit keeps the smallest hashes of
its rows, a bottom-k sketch: of other rows, those among the sketch say which share of the fit is in
them (Broder, "On the resemblance and containment of documents", 1997). Rounded numbers, such as
stated confidences, agree by chance: of these a hash of all rows together is kept, which the same
rows in any order have, and no others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import to_numpy
from calibrant.core.weights import mixed
from calibrant.predictions.predictions import Predictions

# Hashes that are kept, the columns that they are made of, and the fewest that say something.
KEPT, COLUMNS, FEWEST = 64, 8, 8
# Rows that are hashed together, so that a million take little memory.
PART = 1 << 16
# Smallest hashes of which those of copies are dropped before 64 are kept.
AMPLE = 1 << 12
# A row is known by its numbers only if one of them has more decimals than people round to.
DECIMALS, UNROUNDED = 1e6, 0.1
# Share of the fit among other rows from which on they count as the same. Rows of one number may
# agree by chance: near 1 there are few float32 numbers.
SHARED, SHARED_OF_ONE_NUMBER = 0.1, 0.9


def sketch_of(predictions: Predictions) -> tuple[int, ...]:
    """Return the smallest hashes of the rows that are known by their numbers, ascending.

    Where fewer than FEWEST rows are, the hash of all rows together.
    """
    every, unrounded = _hashes(predictions)
    hashes = every[unrounded]
    if len(hashes) > AMPLE:  # sorting all would take their memory several times over
        hashes.partition(AMPLE)
        hashes = hashes[:AMPLE]
    found, count = np.unique(hashes, return_counts=True)
    kept = tuple(found[count == 1][:KEPT].tolist())
    return kept if len(kept) >= FEWEST else (_together(_sum(every), len(every)),)


def share_among(sketch: Sequence[int], rows: Predictions | Iterable[Predictions]) -> float | None:
    """Return which share of the rows behind a sketch is among others, also of many batches.

    None if it can't be told: of rounded numbers only whether they are the same rows.
    """
    if not sketch:
        return None
    hashes = np.array(sketch, dtype=np.uint64)
    found = np.zeros(len(hashes), dtype=bool)
    total, n = np.uint64(0), 0
    for batch in [rows] if isinstance(rows, Predictions) else rows:
        every = _hashes(batch)[0]
        found |= np.isin(hashes, every)
        total, n = _sum(np.append(_sum(every), total)), n + batch.n
    if len(sketch) < FEWEST:
        return 1.0 if tuple(sketch) == (_together(total, n),) else None
    return float(found.mean())


def _sum(hashes: NDArray[np.uint64]) -> np.uint64:
    """Return the sum of hashes, which doesn't depend on their order, to 64 bits."""
    return hashes.sum(dtype=np.uint64)


def _together(total: np.uint64, n: int) -> int:
    """Return the hash of n rows whose hashes have a sum."""
    return int(mixed(np.array([total ^ np.uint64(n)]), seed=2)[0])


def were_fitted(share: float, rows: Any) -> bool:
    """Return whether a share of the fit among these rows is more than chance or a few copies."""
    one_number = rows.n_classes is None or rows.binary
    return share > (SHARED_OF_ONE_NUMBER if one_number else SHARED)


def _hashes(predictions: Predictions) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """Return a hash of each row's scores and label, and whether its numbers are unrounded."""
    found = np.zeros(predictions.n, dtype=np.uint64)
    unrounded = np.zeros(predictions.n, dtype=bool)
    known = [n for n in (predictions.known_labels, predictions.predicted) if n is not None]
    for start in range(0, predictions.n, PART):
        part = slice(start, start + PART)
        numbers = [to_numpy(each[part]) for each in known]
        found[part], unrounded[part] = _hashes_of(to_numpy(predictions.scores[part]), numbers)
    return found, unrounded


def _hashes_of(
    scores: NDArray[np.floating], known: Sequence[NDArray[np.integer]]
) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """Return what `_hashes` does, of (n,) or (n, K) scores and (n,) numbers of classes."""
    columns = [scores]
    if scores.ndim > 1:
        last = scores.shape[1] - 1
        places = {round(place * last / (COLUMNS - 1)) for place in range(COLUMNS)}
        columns = [scores[:, place] for place in sorted(places)]
    found = np.zeros(len(scores), dtype=np.uint64)
    unrounded = np.zeros(len(scores), dtype=bool)
    for column in columns:
        # A file may hold the same numbers in another precision.
        single = column.astype(np.float32)
        if not np.isfinite(single).all():
            single = np.nan_to_num(single)
        numbers = single.astype(np.float64)
        numbers += 0.0
        found = mixed(numbers.view(np.uint64) ^ found, seed=0)
        rest = np.flatnonzero(~unrounded)  # few rows need more than one column
        parts = numbers[rest] * DECIMALS
        unrounded[rest] = np.abs(parts - np.rint(parts)) > UNROUNDED
    for numbers in known:
        found = mixed(numbers.astype(np.uint64) ^ found, seed=1)
    return found, unrounded
