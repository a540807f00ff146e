"""Around every map: rows are checked, cut into chunks that fit the cache and shared by threads."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from array_api_compat import is_torch_array
from numpy.typing import NDArray

from calibrant.core.arrays import (
    THREADED_ELEMENTS,
    Array,
    FloatArray,
    for_each,
    is_numpy,
    like,
    namespace,
    row_chunks,
    to_numpy,
    working_dtype,
)
from calibrant.core.checks import refuse_infinite
from calibrant.core.errors import NotApplicableError

# From so many classes on, NumPy squares and sums a row sooner than it finds its extremes.
LONG_ROW = 64

Learnt = Mapping[str, Array]
"""What a map has learnt, as arrays of the kind of its rows."""
RowMap = Callable[..., Array]
"""`transform` of a calibrator, or another pure function of its arguments: (xp, logits, features,
learnt, *, masks) to an array of as many rows."""


def apply_map(
    function: RowMap,
    logits: Array,
    features: Array | None,
    learnt: Mapping[str, NDArray[Any]],
    width: int = 0,
) -> Array:
    """Return what `function` makes of checked rows, computed where they live.

    Args:
        function: a pure function of arrays, see `Calibrator.transform`; it gives (n, ...) rows.
        logits: (N, K) of any array kind.
        features: (N, D) of any array kind, or None.
        learnt: arrays by name, as NumPy.
        width: numbers that a row takes on the way, where that is more than K.

    Raises:
        PredictionsError: a row holds NaN, infinity, or nothing but masked classes.
    """
    xp, dtype = namespace(logits), working_dtype(logits)
    placed = {name: like(array, logits) for name, array in learnt.items()}

    def mapped(part: slice) -> Array:
        chunk = xp.astype(logits[part], dtype, copy=False)
        masks = _has_masks(xp, chunk, part.start)
        beside = None if features is None else _beside(features[part], chunk)
        return function(xp, chunk, beside, placed, masks=masks)

    # A row that isn't finite is refused by its number; NumPy needn't speak of it before that.
    with np.errstate(all="ignore"):
        chunks = list(row_chunks(logits, width))
        first = mapped(chunks[0] if chunks else slice(0, 0))
        if len(chunks) < 2:
            return first
        if not is_numpy(logits):
            return xp.concat([first, *(mapped(part) for part in chunks[1:])], axis=0)
        out = np.empty((len(logits), *first.shape[1:]), dtype=first.dtype)
        out[chunks[0]] = first

        def work(part: slice) -> None:
            out[part] = mapped(part)

        # What a row takes on the way is work as well: few classes may have thousands of neighbours.
        numbers = len(logits) * max(logits.shape[1], width)
        for_each(chunks[1:], work, threaded=numbers >= THREADED_ELEMENTS)
        return out


def row_intervals(
    calibrator: Any, logits: Array, confidence: FloatArray, level: float
) -> tuple[FloatArray, FloatArray]:
    """Return the (N,) ends of an interval for the confidence of each row, which they hold.

    Args:
        calibrator: fitted, of a method with `interval_arrays`.
        logits: (N, K), as its `transform` takes them.
        confidence: (N,) of the predicted class; in the top-label form that the label is right.
        level: probability of the interval, in (0, 1).
    """

    def ends(xp: Any, rows: Array, _: None, learnt: Learnt, *, masks: bool) -> Array:
        return xp.stack(list(calibrator.interval(xp, rows, learnt, masks=masks)), axis=1)

    found: FloatArray = to_numpy(
        apply_map(ends, logits, None, calibrator.interval_arrays(level))
    ).astype(np.float64)
    low, high = found[:, 0], found[:, 1]
    if calibrator.form_ == "toplabel":
        # The map speaks of the likelier of two outcomes, which may be that the label is wrong.
        wrong = confidence < 0.5
        low, high = np.where(wrong, 1 - high, low), np.where(wrong, 1 - low, high)
    # Where the confidence was raised to keep the class, the interval moves up with it.
    return np.minimum(low, confidence), np.maximum(high, confidence)


def refuse_tracing(logits: Array) -> None:
    """Raise `NotApplicableError` where torch's tracer would record the checks of one input."""
    if is_torch_array(logits):
        from torch.jit import is_tracing  # pyright: ignore[reportPrivateImportUsage]

        if is_tracing():
            raise NotApplicableError(
                "torch.jit.trace can't record predict_proba, whose checks look at values; trace, "
                "export or compile what calibrator.to_torch() returns instead"
            )


def _has_masks(xp: Any, chunk: Array, start: int) -> bool:
    """Return whether a class is masked; refuse what isn't finite. Rows are counted from `start`."""
    if 0 in chunk.shape:
        return False
    # One look instead of two: a sum of squares is finite only if all that it sums is.
    long = is_numpy(chunk) and chunk.shape[1] >= LONG_ROW
    if long and math.isfinite(float(xp.vecdot(chunk, chunk).sum())):
        return False
    highest, masks = float(xp.max(chunk)), float(xp.min(chunk)) == -math.inf
    # NaN is neither below infinity nor is it found among the largest of each row by a fast look.
    if masks or not -math.inf < highest < math.inf:
        refuse_infinite(xp.isfinite(xp.max(chunk, axis=1)), start)
    return masks


def _beside(features: Array, chunk: Array) -> Array:
    """Return features as the kind of array that the logits are, where those live."""
    if namespace(features) is namespace(chunk):
        return features
    return like(to_numpy(features), chunk)
