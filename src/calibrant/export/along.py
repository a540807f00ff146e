"""Functions of the array-API standard that go along an axis, as nodes of a graph."""

from __future__ import annotations

from typing import Any

import numpy as np

from calibrant.export.folding import worked_out
from calibrant.export.pointwise import astype, full_like, where
from calibrant.export.traced import Shape, Traced, Untraceable, graph_of, taken, traced

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
    return worked_out(function)


max, min = _reduction("max", "ReduceMax"), _reduction("min", "ReduceMin")
sum, mean = _reduction("sum", "ReduceSum"), _reduction("mean", "ReduceMean")


def _place_of(name: str, kind: str) -> Any:
    def function(x: Any, /, *, axis: int, keepdims: Any = False) -> Any:
        rows, axis = x.whole(), axis % x.ndim
        found = x.graph.node(kind, [rows.name], axis=axis, keepdims=int(keepdims))
        return Traced(x.graph, found, np.int64, _reduced(x.shape, axis, keepdims))

    function.__name__ = name
    return worked_out(function)


argmax, argmin = _place_of("argmax", "ArgMax"), _place_of("argmin", "ArgMin")


@worked_out
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


@worked_out
def sort(x: Any, /, *, axis: int = -1, descending: Any = False, stable: Any = True) -> Any:
    """Return entries in order along an axis."""
    return topk(x, x.shape[axis], dim=axis, largest=descending)[0]


@worked_out
def argsort(x: Any, /, *, axis: int = -1, descending: Any = False, stable: Any = True) -> Any:
    """Return where the entries are in order along an axis."""
    return topk(x, x.shape[axis], dim=axis, largest=descending)[1]


@worked_out
def take(x: Any, indices: Any, /, *, axis: int) -> Any:
    """Return the entries at indices along an axis."""
    graph = graph_of((x, indices))
    values = x.whole() if isinstance(x, Traced) else traced(graph, x, x.dtype)
    return taken(values, indices, axis % values.ndim)


@worked_out
def take_along_axis(x: Any, indices: Any, /, *, axis: int = -1) -> Any:
    """Return the entries at indices along an axis, each row by indices of its own."""
    graph = graph_of((x, indices))
    values = x.whole() if isinstance(x, Traced) else traced(graph, x, x.dtype)
    places = traced(graph, indices, np.int64).whole()
    name = graph.node("GatherElements", [values.name, places.name], axis=axis % values.ndim)
    return Traced(graph, name, values.dtype, places.shape)


@worked_out
def searchsorted(x1: Any, x2: Any, /, *, side: str = "left") -> Any:
    """Return how many of the edges `x1`, in ascending order, lie below each entry of (n,) `x2`.

    Few edges are compared with all entries at once. Of many, the half that an entry lies in is
    found over and over, which takes less memory and time. ONNX has no operator for either.
    """
    edges = np.asarray(x1) if not isinstance(x1, Traced) else x1
    size = edges.shape[0]
    if isinstance(edges, Traced) or size is None:
        raise Untraceable("a search among edges that hang on the rows")
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
