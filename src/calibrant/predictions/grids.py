"""Several predictions a row: labels of which any may be true, or tokens and pixels with classes.

They become rows of their own, of which those that came from one row are a cluster.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from array_api_compat import is_torch_array
from numpy.typing import NDArray

from calibrant.core.arrays import (
    Array,
    IntArray,
    as_array,
    device_of,
    is_numpy,
    like,
    namespace,
    to_numpy,
)
from calibrant.core.errors import PredictionsError

IGNORE_INDEX = -100
# Numbers that are copied together, where positions are left out or classes don't come last.
COPIED_AT_ONCE = 1 << 18


@dataclass(frozen=True, eq=False)
class Grid:
    """Where rows stood before they were taken apart.

    Attributes:
        shape: (N, L) for L labels a row; (N, ...) for tokens and pixels.
        kept: (M,) places in it, ascending, that are rows; None for all.
        labels: of all positions, where they aren't those of the rows; None otherwise.
    """

    shape: tuple[int, ...]
    kept: IntArray | None = None
    labels: NDArray[Any] | None = None

    @property
    def left_out(self) -> int:
        """How many places are no rows, because their label says so."""
        return 0 if self.kept is None else math.prod(self.shape) - len(self.kept)


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
            f"{source}: scores of rows with many labels must have shape (N, L), one for each of L "
            f"labels, not {shape}"
            f"{'; (N, T, K) are tokens (--kind tokens)' if len(shape) > 2 else ''}"
        )
    if names is not None and (len(names) != shape[1] or len(set(names)) < len(names)):
        raise PredictionsError(
            f"{source}: label_names must be {shape[1]} different names, one for each label"
        )
    called = unnamed(shape[1]) if names is None else tuple(map(str, names))
    truth = None
    if labels is not None:
        truth = as_array(labels)
        found = tuple(getattr(truth, "shape", ()))
        if found != shape:
            one = "; one class index a row goes with scores of classes (from_logits, from_probs)"
            raise PredictionsError(
                f"{source}: labels of rows with many labels must have the shape of the scores, "
                f"{shape}, with 0 and 1, not {found}{one if len(found) == 1 else ''}"
            )
        truth = namespace(truth).reshape(truth, (-1,))
    return namespace(values).reshape(values, (-1,)), truth, Grid(shape), called


def unnamed(labels: int) -> tuple[str, ...]:
    """Return what so many labels are called where nobody has named them."""
    return tuple(f"label {i}" for i in range(labels))


def of_tokens(
    scores: Array,
    labels: Array | None,
    ignore_index: int | None,
    class_axis: int,
    source: str,
    *,
    keep_all: bool = False,
) -> tuple[Array, IntArray | None, Grid]:
    """Return (M, K) scores of (N, ..., K) ones, (M,) labels, and the grid.

    The scores are a view of those given where no position is left out and classes come last. Else
    those that count are copied once, some rows at a time.

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
    if class_axis % len(shape) != len(shape) - 1:
        values = namespace(values).moveaxis(values, class_axis, -1)
    places = tuple(int(size) for size in values.shape[:-1])
    grid, count = Grid(places), math.prod(places)
    if labels is None:
        return _flattened(values, None), None, grid
    truth = to_numpy(as_array(labels))
    if truth.shape != places:
        axes = [i for i in range(len(shape)) if shape[:i] + shape[i + 1 :] == truth.shape]
        said = f"class_axis={axes[0]} (--class-axis {axes[0]})" if axes else ""
        hint = f"; if the classes lie along axis {axes[0]}, say {said}" if axes else ""
        raise PredictionsError(
            f"{source}: labels of tokens or pixels must have shape {places}, one class "
            f"index for each, not {truth.shape}{hint}"
        )
    if keep_all:
        return _flattened(values, None), None, replace(grid, labels=truth)
    truth = truth.reshape(-1)
    kept = np.flatnonzero(truth != ignore_index) if ignore_index is not None else None
    if kept is None or len(kept) == count:
        return _flattened(values, None), truth, grid
    if len(kept) == 0:
        raise PredictionsError(
            f"{source}: every label is {ignore_index}, which says that a position doesn't count "
            "(ignore_index=..., --ignore-index)"
        )
    return _flattened(values, kept), truth[kept], replace(grid, kept=kept)


def _flattened(values: Array, kept: IntArray | None) -> Array:
    """Return (M, K) rows of (N, ..., K) values: all positions, or those `kept`, ascending.

    A view where that is possible. What has to be copied is copied once, into place, with some rows
    at a time in between.
    """
    xp, width = namespace(values), int(values.shape[-1])
    rows, each = int(values.shape[0]), math.prod(int(size) for size in values.shape[1:-1])
    if kept is None and _lies_in_rows(values):
        return xp.reshape(values, (rows * each, width))
    count = rows * each if kept is None else len(kept)
    out: Array = None
    if is_numpy(values) or is_torch_array(values):  # which can be written to
        out = xp.empty((count, width), dtype=values.dtype, device=device_of(values))
    step = max(1, COPIED_AT_ONCE // (each * width))
    pieces, done = list[Array](), 0
    for start in range(0, rows, step):
        piece = xp.reshape(values[start : start + step, ...], (-1, width))
        if kept is not None:
            low, high = np.searchsorted(kept, [start * each, (start + step) * each])
            piece = xp.take(piece, like(kept[low:high] - start * each, piece), axis=0)
        if out is None:
            pieces.append(piece)
            continue
        end = done + int(piece.shape[0])
        out[done:end, :] = piece
        done = end
    return xp.concat(pieces, axis=0) if out is None else out


def _lies_in_rows(values: Array) -> bool:
    """Return whether (N, ..., K) values can be seen as (M, K) rows where they lie."""
    if not (is_numpy(values) or is_torch_array(values)):
        return True  # whether anything is copied, the library knows
    known: Any = values
    steps: Any = known.strides if is_numpy(values) else known.stride()
    size: tuple[int, ...] = tuple(known.shape)
    return all(size[i] == 1 or steps[i] == steps[i + 1] * size[i + 1] for i in range(len(size) - 2))


def spread_over(values: Array, grid: Grid, what: str, source: str) -> NDArray[Any]:
    """Return (M,) entries of rows that were taken apart: of one a row, or one a position.

    Args:
        values: (N,), or of the shape of the grid.
        grid: where the rows stood.
        what: what messages call the values.
        source: begins error messages.

    Raises:
        PredictionsError: another shape.
    """
    known = to_numpy(as_array(values))
    each = math.prod(grid.shape[1:])
    if known.shape in (grid.shape[:1], (grid.shape[0], 1)):
        every = np.repeat(known.reshape(-1), each)
    elif known.shape == grid.shape:
        every = known.reshape(-1)
    else:
        raise PredictionsError(
            f"{source}: {what} must have shape ({grid.shape[0]},), one for each row, or "
            f"{grid.shape}, one for each position, not {known.shape}"
        )
    return every if grid.kept is None else every[grid.kept]
