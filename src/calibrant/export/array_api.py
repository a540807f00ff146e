"""The array-API namespace that builds ONNX graphs: `xp` of a map that is traced.

It has what maps use of the standard. A function of NumPy arrays alone is worked out at once, so
that only what hangs on the rows becomes nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import array_api_compat.numpy as xnp
import numpy as np

from calibrant.export.along import argmax as argmax
from calibrant.export.along import argmin as argmin
from calibrant.export.along import argsort as argsort
from calibrant.export.along import max as max
from calibrant.export.along import mean as mean
from calibrant.export.along import min as min
from calibrant.export.along import prod as prod
from calibrant.export.along import searchsorted as searchsorted
from calibrant.export.along import softmax as softmax
from calibrant.export.along import sort as sort
from calibrant.export.along import sum as sum
from calibrant.export.along import take as take
from calibrant.export.along import take_along_axis as take_along_axis
from calibrant.export.along import topk as topk
from calibrant.export.folding import worked_out
from calibrant.export.pointwise import abs as abs
from calibrant.export.pointwise import astype as astype
from calibrant.export.pointwise import ceil as ceil
from calibrant.export.pointwise import clip as clip
from calibrant.export.pointwise import exp as exp
from calibrant.export.pointwise import floor as floor
from calibrant.export.pointwise import full_like as full_like
from calibrant.export.pointwise import isfinite as isfinite
from calibrant.export.pointwise import isnan as isnan
from calibrant.export.pointwise import log as log
from calibrant.export.pointwise import log1p as log1p
from calibrant.export.pointwise import logical_and as logical_and
from calibrant.export.pointwise import logical_not as logical_not
from calibrant.export.pointwise import logical_or as logical_or
from calibrant.export.pointwise import maximum as maximum
from calibrant.export.pointwise import minimum as minimum
from calibrant.export.pointwise import ones_like as ones_like
from calibrant.export.pointwise import sign as sign
from calibrant.export.pointwise import sqrt as sqrt
from calibrant.export.pointwise import tanh as tanh
from calibrant.export.pointwise import where as where
from calibrant.export.pointwise import zeros_like as zeros_like
from calibrant.export.traced import (
    Traced,
    Untraceable,
    broadcast,
    common_type,
    expanded,
    graph_of,
    taken,
    traced,
    transposed,
)

float32, float64, int64 = np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.int64)
bool = np.dtype(np.bool_)
inf, nan, pi, newaxis = np.inf, np.nan, np.pi, None
finfo, iinfo = xnp.finfo, xnp.iinfo


def __getattr__(name: str) -> Any:
    raise Untraceable(f"the function '{name}'")


def asarray(values: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """Return a constant."""
    return values if isinstance(values, Traced) else np.asarray(values, dtype=dtype)


def arange(*bounds: Any, dtype: Any = None, device: Any = None) -> Any:
    """Return evenly spaced numbers."""
    return np.arange(*bounds, dtype=dtype)


def ones(shape: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """Return ones."""
    return np.ones(shape, dtype=dtype)


def zeros(shape: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """Return zeros."""
    return np.zeros(shape, dtype=dtype)


@worked_out
def reshape(x: Any, /, shape: Any) -> Any:
    """Return the entries in another shape; the size that is free is that of the rows."""
    whole, sizes = x.whole(), tuple(shape)
    free = [place for place, size in enumerate(sizes) if size is None or size == -1]
    wanted = [-1 if place in free else int(size) for place, size in enumerate(sizes)]
    name = x.graph.node("Reshape", [whole.name, x.graph.whole_numbers(*wanted)])
    known = all(size is not None for size in x.shape)
    left = int(np.prod([size for size in x.shape if size])) // int(
        np.prod([size for size in wanted if size > 0])
    )
    found = tuple((left if known else None) if size == -1 else size for size in wanted)
    return Traced(x.graph, name, x.dtype, found)


@worked_out
def permute_dims(x: Any, /, axes: tuple[int, ...]) -> Any:
    """Return an array with its axes in another order."""
    return transposed(x, tuple(axes))


@worked_out
def expand_dims(x: Any, /, *, axis: int = 0) -> Any:
    """Return an array with one more axis."""
    return expanded(x.whole(), axis % (x.ndim + 1))


@worked_out
def squeeze(x: Any, /, axis: int) -> Any:
    """Return an array without an axis of size 1."""
    return taken(x.whole(), np.array(0), axis % x.ndim)


@worked_out
def concat(arrays: Sequence[Any], /, *, axis: int = 0) -> Any:
    """Return arrays side by side."""
    graph, met = graph_of(arrays), common_type(arrays)
    ready = [traced(graph, array, met).whole() for array in arrays]
    axis %= ready[0].ndim
    sizes = [array.shape[axis] for array in ready]
    size = None if None in sizes else int(np.sum(cast(list[int], sizes)))
    name = graph.node("Concat", [array.name for array in ready], axis=axis)
    shape = list(broadcast([(*a.shape[:axis], 1, *a.shape[axis + 1 :]) for a in ready]))
    shape[axis] = size
    return Traced(graph, name, met, tuple(shape))


@worked_out
def stack(arrays: Sequence[Any], /, *, axis: int = 0) -> Any:
    """Return arrays side by side along a new axis."""
    graph, met = graph_of(arrays), common_type(arrays)
    ready = [traced(graph, array, met).whole() for array in arrays]
    axis %= ready[0].ndim + 1
    return concat([expanded(array, axis) for array in ready], axis=axis)
