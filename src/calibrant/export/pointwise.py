"""Functions of the array-API standard that go element by element, as nodes of a graph."""

from __future__ import annotations

from typing import Any

import numpy as np

from calibrant.export.folding import worked_out
from calibrant.export.traced import Traced, common_type, elementwise, graph_of, joined, traced


@worked_out
def full_like(x: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """Return an array of the same shape, all of one number."""
    number = traced(x.graph, fill_value, x.dtype if dtype is None else dtype)
    return Traced(x.graph, number.name, number.dtype, x.shape, x if x.like is None else x.like)


@worked_out
def zeros_like(x: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """Return zeros of the same shape."""
    return full_like(x, 0, dtype=dtype)


@worked_out
def ones_like(x: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """Return ones of the same shape."""
    return full_like(x, 1, dtype=dtype)


def _of_one(name: str, kind: str) -> Any:
    def function(x: Any, /) -> Any:
        return elementwise(kind, x)

    function.__name__ = name
    return worked_out(function)


def _of_two(name: str, kind: str) -> Any:
    def function(x: Any, y: Any, /) -> Any:
        return elementwise(kind, x, y)

    function.__name__ = name
    return worked_out(function)


exp, log, sqrt, abs = (_of_one(name, name.capitalize()) for name in ("exp", "log", "sqrt", "abs"))
sign, floor, ceil, tanh = (
    _of_one(name, name.capitalize()) for name in ("sign", "floor", "ceil", "tanh")
)
logical_not = _of_one("logical_not", "Not")
maximum, minimum = _of_two("maximum", "Max"), _of_two("minimum", "Min")
logical_and, logical_or = _of_two("logical_and", "And"), _of_two("logical_or", "Or")


@worked_out
def log1p(x: Any, /) -> Any:
    """Return log(1 + x), to the last digits also where 1 + x is rounded."""
    sum_ = 1 + x
    rounded = sum_ - 1
    exact = where(rounded == 0, ones_like(rounded), rounded)
    return where(rounded == 0, x, log(sum_) * (x / exact))


@worked_out
def isfinite(x: Any, /) -> Any:
    """Return whether entries are finite; NaN is not."""
    return abs(x) < np.inf


@worked_out
def isnan(x: Any, /) -> Any:
    """Return whether entries are NaN."""
    return x != x


@worked_out
def astype(x: Any, dtype: Any, /, *, copy: Any = True, device: Any = None) -> Any:
    """Return an array in another type."""
    return traced(x.graph, x, dtype)


@worked_out
def where(condition: Any, x1: Any, x2: Any, /) -> Any:
    """Return the entries of `x1` where a condition holds, and of `x2` elsewhere."""
    graph, met = graph_of((condition, x1, x2)), common_type((x1, x2))
    either = [traced(graph, value, met) for value in (x1, x2)]
    return joined("Where", [traced(graph, condition, np.bool_), *either], met)


@worked_out
def clip(x: Any, /, min: Any = None, max: Any = None) -> Any:
    """Return entries that are moved into limits; their type stays."""
    for kind, bound in (("Max", min), ("Min", max)):
        if bound is not None:
            x = joined(kind, [x, traced(graph_of((x,)), bound, x.dtype)], x.dtype)
    return x
