"""The array-API namespace that builds ONNX graphs: `xp` of a map that is traced.

It has what maps use of the standard. A function of NumPy arrays alone is computed at once, so that
only what depends on the rows becomes nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np

from calibrant.core import numpy_namespace as xnp
from calibrant.export.traced import (
    Shape,
    Traced,
    Untraceable,
    broadcast,
    common_type,
    elementwise,
    expanded,
    graph_of,
    joined,
    taken,
    traced,
    transposed,
)

Function = TypeVar("Function", bound=Callable[..., Any])


def constants_at_once(function: Function) -> Function:
    """Let NumPy compute what is called with NumPy arrays alone."""

    @wraps(function)
    def either(*operands: Any, **options: Any) -> Any:
        lone: Any = operands[0]
        given = cast(Sequence[Any], lone if type(lone) in (list, tuple) else operands)
        if any(isinstance(operand, Traced) for operand in given):
            return function(*operands, **options)
        options.pop("device", None)
        return getattr(xnp, function.__name__)(*operands, **options)

    return cast(Function, either)


# --- element by element


@constants_at_once
def full_like(x: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """Return an array of the same shape, all of one number."""
    number = traced(x.graph, fill_value, x.dtype if dtype is None else dtype)
    return Traced(x.graph, number.name, number.dtype, x.shape, x if x.like is None else x.like)


@constants_at_once
def zeros_like(x: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """Return zeros of the same shape."""
    return full_like(x, 0, dtype=dtype)


@constants_at_once
def ones_like(x: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """Return ones of the same shape."""
    return full_like(x, 1, dtype=dtype)


def _of_one(name: str, kind: str) -> Any:
    def function(x: Any, /) -> Any:
        return elementwise(kind, x)

    function.__name__ = name
    return constants_at_once(function)


def _of_two(name: str, kind: str) -> Any:
    def function(x: Any, y: Any, /) -> Any:
        return elementwise(kind, x, y)

    function.__name__ = name
    return constants_at_once(function)


exp, log, sqrt, abs = (_of_one(name, name.capitalize()) for name in ("exp", "log", "sqrt", "abs"))
sign, floor, ceil, tanh = (
    _of_one(name, name.capitalize()) for name in ("sign", "floor", "ceil", "tanh")
)
logical_not = _of_one("logical_not", "Not")
maximum, minimum = _of_two("maximum", "Max"), _of_two("minimum", "Min")
logical_and, logical_or = _of_two("logical_and", "And"), _of_two("logical_or", "Or")


@constants_at_once
def log1p(x: Any, /) -> Any:
    """Return log(1 + x), to the last digits also where 1 + x is rounded."""
    sum_ = 1 + x
    rounded = sum_ - 1
    exact = where(rounded == 0, ones_like(rounded), rounded)
    return where(rounded == 0, x, log(sum_) * (x / exact))


@constants_at_once
def isfinite(x: Any, /) -> Any:
    """Return whether entries are finite; NaN is not."""
    return abs(x) < np.inf


@constants_at_once
def isnan(x: Any, /) -> Any:
    """Return whether entries are NaN."""
    return x != x


@constants_at_once
def astype(x: Any, dtype: Any, /, *, copy: Any = True, device: Any = None) -> Any:
    """Return an array in another type."""
    return traced(x.graph, x, dtype)


@constants_at_once
def where(condition: Any, x1: Any, x2: Any, /) -> Any:
    """Return the entries of `x1` where a condition holds, and of `x2` elsewhere."""
    graph, met = graph_of((condition, x1, x2)), common_type((x1, x2))
    either = [traced(graph, value, met) for value in (x1, x2)]
    return joined("Where", [traced(graph, condition, np.bool_), *either], met)


@constants_at_once
def clip(x: Any, /, min: Any = None, max: Any = None) -> Any:
    """Return entries that are moved into limits; their type stays."""
    for kind, bound in (("Max", min), ("Min", max)):
        if bound is not None:
            x = joined(kind, [x, traced(graph_of((x,)), bound, x.dtype)], x.dtype)
    return x


# --- along an axis

# Edges up to which a search counts those below, rather than halving them.
MOST_COUNTED = 32


def _reduced(shape: Shape, axis: int, keepdims: Any) -> Shape:
    return (*shape[:axis], *((1,) if keepdims else ()), *shape[axis + 1 :])


def _reduction(name: str, kind: str) -> Any:
    def function(x: Any, /, *, axis: int, keepdims: Any = False) -> Any:
        rows, axis = x.whole(), axis % x.ndim
        names = [rows.name, x.graph.whole_numbers(axis)]
        found = x.graph.node(kind, names, keepdims=int(keepdims))
        return Traced(x.graph, found, x.dtype, _reduced(x.shape, axis, keepdims))

    function.__name__ = name
    return constants_at_once(function)


max, min = _reduction("max", "ReduceMax"), _reduction("min", "ReduceMin")
sum, mean = _reduction("sum", "ReduceSum"), _reduction("mean", "ReduceMean")


@constants_at_once
def cumulative_sum(x: Any, /, *, axis: int) -> Any:
    """Return running sums."""
    rows, axis = x.whole(), axis % x.ndim
    name = x.graph.node("CumSum", [rows.name, x.graph.constant(np.asarray(axis, dtype=np.int64))])
    return Traced(x.graph, name, x.dtype, x.shape)


def _place_of(name: str, kind: str) -> Any:
    def function(x: Any, /, *, axis: int, keepdims: Any = False) -> Any:
        rows, axis = x.whole(), axis % x.ndim
        found = x.graph.node(kind, [rows.name], axis=axis, keepdims=int(keepdims))
        return Traced(x.graph, found, np.int64, _reduced(x.shape, axis, keepdims))

    function.__name__ = name
    return constants_at_once(function)


argmax, argmin = _place_of("argmax", "ArgMax"), _place_of("argmin", "ArgMin")


@constants_at_once
def prod(x: Any, /, *, axis: int = -1) -> Any:
    """Return products; only of constants."""
    raise Untraceable("a product of the entries of rows")


def softmax(x: Traced, axis: int, /) -> Traced:
    """Return exp(x) over its sum along an axis."""
    rows = x.whole()
    return Traced(x.graph, x.graph.node("Softmax", [rows.name], axis=axis), x.dtype, x.shape)


def topk(
    x: Traced, count: int, /, *, dim: int, largest: Any = True, sorted: Any = True
) -> tuple[Traced, Traced]:
    """Return the largest (or smallest) entries along an axis and where they are, as torch does."""
    graph, rows, axis = x.graph, x.whole(), dim % x.ndim
    names = [rows.name, graph.whole_numbers(count)]
    options = {"axis": axis, "largest": int(largest), "sorted": int(sorted)}
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    places = Traced(graph, graph.node("TopK", names, out=1, **options), np.int64, shape)
    return Traced(graph, graph.node("TopK", names, **options), x.dtype, shape), places


@constants_at_once
def sort(x: Any, /, *, axis: int = -1, descending: Any = False, stable: Any = True) -> Any:
    """Return entries in order along an axis."""
    return topk(x, x.shape[axis], dim=axis, largest=descending)[0]


@constants_at_once
def argsort(x: Any, /, *, axis: int = -1, descending: Any = False, stable: Any = True) -> Any:
    """Return where the entries are in order along an axis."""
    return topk(x, x.shape[axis], dim=axis, largest=descending)[1]


@constants_at_once
def take(x: Any, indices: Any, /, *, axis: int) -> Any:
    """Return the entries at indices along an axis."""
    graph = graph_of((x, indices))
    values = x.whole() if isinstance(x, Traced) else traced(graph, x, x.dtype)
    return taken(values, indices, axis % values.ndim)


@constants_at_once
def take_along_axis(x: Any, indices: Any, /, *, axis: int = -1) -> Any:
    """Return the entries at indices along an axis, each row by indices of its own."""
    graph = graph_of((x, indices))
    values = x.whole() if isinstance(x, Traced) else traced(graph, x, x.dtype)
    places = traced(graph, indices, np.int64).whole()
    name = graph.node("GatherElements", [values.name, places.name], axis=axis % values.ndim)
    return Traced(graph, name, values.dtype, places.shape)


@constants_at_once
def searchsorted(x1: Any, x2: Any, /, *, side: str = "left") -> Any:
    """Return how many of the edges `x1`, in ascending order, lie below each entry of (n,) `x2`.

    Few edges are compared with all entries at once. Of many, the half that an entry lies in is
    found over and over, which takes less memory and time. ONNX has no operator for either.
    """
    edges = np.asarray(x1) if not isinstance(x1, Traced) else x1
    size = edges.shape[0]
    if isinstance(edges, Traced) or size is None:
        raise Untraceable("a search among edges that depend on the rows")
    if size == 0:
        return full_like(x2, 0, dtype=np.int64)
    if size <= MOST_COUNTED:
        column, row = x2[:, None], edges[None, :]
        return sum(astype(row < column if side == "left" else row <= column, np.int64), axis=1)
    found: Any = None
    for step in (1 << bit for bit in reversed(range(int(size).bit_length()))):
        # Beyond the last edge there is none below.
        padded = np.append(edges[step - 1 :], np.full(step - 1 + step, np.inf))
        edge = padded[0] if found is None else take(padded, found, axis=0)
        below = edge < x2 if side == "left" else edge <= x2
        moved = where(below, np.int64(step), np.int64(0))
        found = moved if found is None else found + moved
    return found


# --- constants, types and shapes

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


@constants_at_once
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


@constants_at_once
def permute_dims(x: Any, /, axes: tuple[int, ...]) -> Any:
    """Return an array with its axes in another order."""
    return transposed(x, tuple(axes))


@constants_at_once
def expand_dims(x: Any, /, *, axis: int = 0) -> Any:
    """Return an array with one more axis."""
    return expanded(x.whole(), axis % (x.ndim + 1))


@constants_at_once
def squeeze(x: Any, /, axis: int) -> Any:
    """Return an array without an axis of size 1."""
    return taken(x.whole(), np.array(0), axis % x.ndim)


@constants_at_once
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


@constants_at_once
def stack(arrays: Sequence[Any], /, *, axis: int = 0) -> Any:
    """Return arrays side by side along a new axis."""
    graph, met = graph_of(arrays), common_type(arrays)
    ready = [traced(graph, array, met).whole() for array in arrays]
    axis %= ready[0].ndim + 1
    return concat([expanded(array, axis) for array in ready], axis=axis)
