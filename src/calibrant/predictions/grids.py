"""Several predictions a row: labels of which any may be true, or tokens and pixels with classes.

They become rows of their own, of which those that came from one row are a cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import Array, IntArray, as_array, like, namespace, to_numpy
from calibrant.core.errors import PredictionsError

IGNORE_INDEX = -100


@dataclass(frozen=True, eq=False)
class Grid:
    """Where rows stood before they were taken apart.

    Attributes:
        shape: (N, L) for L labels a row; (N, ...) for tokens and pixels.
        left_out: how many positions of it are no rows, because their label says so.
        labels: of all positions, where they aren't those of the rows; None otherwise.
    """

    shape: tuple[int, ...]
    left_out: int = 0
    labels: NDArray[Any] | None = None


def of_many_labels(
    scores: Array, labels: Array | None, names: Sequence[str] | None, source: str
) -> tuple[Array, Array | None, Grid, tuple[str, ...]]:
    """Return (N L,) scores and labels of (N, L) ones, their grid, and the names of the labels.

    Raises:
        PredictionsError: other shapes, or another number of names.
    """
    values = as_array(scores)
    shape = tuple(getattr(values, "shape", ()))
    if len(shape) != 2 or 0 in shape:
        raise PredictionsError(
            f"{source}: scores of many labels must have shape (N, L), one for each of L labels, "
            f"not {shape}"
        )
    if names is not None and (len(names) != shape[1] or len(set(names)) < len(names)):
        raise PredictionsError(
            f"{source}: label_names must be {shape[1]} different names, one for each label"
        )
    called = [f"label {i}" for i in range(shape[1])] if names is None else [*map(str, names)]
    truth = None
    if labels is not None:
        truth = as_array(labels)
        found = tuple(getattr(truth, "shape", ()))
        if found != shape:
            one = "; one class index a row goes with scores of classes (from_logits, from_probs)"
            raise PredictionsError(
                f"{source}: labels of many labels must have the shape of the scores, {shape}, with "
                f"0 and 1, not {found}{one if len(found) == 1 else ''}"
            )
        truth = namespace(truth).reshape(truth, (-1,))
    return namespace(values).reshape(values, (-1,)), truth, Grid(shape), tuple(called)


def of_tokens(
    scores: Array,
    labels: Array | None,
    ignore_index: int | None,
    class_axis: int,
    source: str,
    *,
    keep_all: bool = False,
) -> tuple[Array, IntArray | None, IntArray, Grid]:
    """Return (M, K) scores of (N, ..., K) ones, (M,) labels, (M,) which row each is of, the grid.

    The scores are a view of those given where no position is left out and classes come last.

    Args:
        scores: (N, ..., K), or with its classes along `class_axis`.
        labels: (N, ...).
        ignore_index: label of positions that are left out; None for none.
        class_axis: axis of the classes.
        source: begins error messages.
        keep_all: keep positions to be ignored too, and return no labels.

    Raises:
        PredictionsError: other shapes, or no position that counts.
    """
    values = as_array(scores)
    shape = tuple(getattr(values, "shape", ()))
    if len(shape) < 3 or 0 in shape or not -len(shape) < class_axis < len(shape):
        raise PredictionsError(
            f"{source}: scores of tokens or pixels must have shape (N, T, K) or (N, H, W, K), not "
            f"{shape}; (N, K) scores, a row a prediction, need no kind of their own"
        )
    xp = namespace(values)
    if class_axis % len(shape) != len(shape) - 1:
        values = xp.moveaxis(values, class_axis, -1)
    *places, n_classes = (int(size) for size in values.shape)
    count = int(np.prod(places))
    flat = xp.reshape(values, (count, n_classes))
    rows = np.repeat(np.arange(places[0]), count // places[0])
    grid = Grid(tuple(places))
    if labels is None:
        return flat, None, rows, grid
    truth = to_numpy(as_array(labels))
    if truth.shape != tuple(places):
        raise PredictionsError(
            f"{source}: labels of tokens or pixels must have shape {tuple(places)}, one class "
            f"index for each, not {truth.shape}"
        )
    if keep_all:
        return flat, None, rows, Grid(tuple(places), labels=truth)
    truth = truth.reshape(-1)
    kept = np.flatnonzero(truth != ignore_index) if ignore_index is not None else None
    if kept is None or len(kept) == count:
        return flat, truth, rows, grid
    if len(kept) == 0:
        raise PredictionsError(
            f"{source}: every label is {ignore_index}, which says that a position doesn't count "
            "(ignore_index=..., --ignore-index)"
        )
    taken = xp.take(flat, like(kept, flat), axis=0)
    return taken, truth[kept], rows[kept], Grid(tuple(places), count - len(kept))
