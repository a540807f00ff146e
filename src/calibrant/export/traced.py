"""An ONNX graph in the making, and arrays without values whose operations become its nodes.

Types follow the array-API standard: two arrays meet in the wider of their types, and a number of
Python's takes the type of the array. NumPy arrays beside a traced one are constants.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn, cast

import numpy as np
from numpy.typing import NDArray

from calibrant.core.errors import MissingDependencyError

# The first with axes as inputs throughout; every runtime of the last years takes it.
LOWEST_OPSET = 18
# The IR that came with it.
IR_VERSION = 8
# All names of a map's own begin so, that they meet no name of a network's.
PREFIX = "calibrator/"


def onnx_package() -> Any:
    """Return the package `onnx`.

    Raises:
        MissingDependencyError: it isn't installed.
    """
    try:
        for part in ("checker", "helper", "numpy_helper"):
            import_module(f"onnx.{part}")
        return import_module("onnx")
    except ImportError as error:
        raise MissingDependencyError(
            "ONNX files need the package onnx: pip install 'calibrant[onnx]'"
        ) from error


def onnx_type(dtype: Any) -> int:
    """Return ONNX's number for a NumPy dtype."""
    return int(onnx_package().helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


class Graph:
    """Nodes and constants by name. What is asked for a second time is the first one again.

    Attributes:
        opset: version of ONNX's operators.
        nodes: those made so far, each behind what it reads.
        constants: (name, array) of all constants.
    """

    def __init__(self, opset: int = LOWEST_OPSET) -> None:
        self.onnx = onnx_package()
        self.opset = opset
        self.nodes: list[Any] = []
        self.constants: dict[str, NDArray[Any]] = {}
        self._made: dict[Any, str] = {}

    def constant(self, value: NDArray[Any]) -> str:
        """Return the name of a constant."""
        array = np.asarray(value)
        key = ("constant", array.dtype.str, array.shape, array.tobytes())
        if key not in self._made:
            self._made[key] = f"{PREFIX}constant_{len(self.constants)}"
            self.constants[self._made[key]] = array
        return self._made[key]

    def whole_numbers(self, *values: int) -> str:
        """Return the name of a vector of whole numbers, as axes and shapes are given."""
        return self.constant(np.array(values, dtype=np.int64))

    def node(self, kind: str, inputs: Sequence[str], *, out: int = 0, **attributes: Any) -> str:
        """Return the name of an output of a node.

        Args:
            kind: the operator.
            inputs: names of what it reads.
            out: which of its outputs; TopK has two.
            attributes: of the operator.
        """
        outputs = 2 if kind == "TopK" else 1
        key = (kind, tuple(inputs), tuple(sorted(attributes.items())))
        if key not in self._made:
            self._made[key] = f"{PREFIX}{kind}_{len(self.nodes)}"
            names = [self._output(self._made[key], place) for place in range(outputs)]
            self.nodes.append(self.onnx.helper.make_node(kind, inputs, names, **attributes))
        return self._output(self._made[key], out)

    @staticmethod
    def _output(name: str, place: int) -> str:
        return f"{name}_{place}" if place else name

    def call(self, name: str, output: str) -> None:
        """Give a value a name of its own, by which others ask for it."""
        self.nodes.append(self.onnx.helper.make_node("Identity", [name], [output]))

    def parts_for(self, outputs: Sequence[str]) -> tuple[list[Any], list[Any]]:
        """Return the nodes and constants that these outputs depend on, and no others."""
        wanted, nodes = set(outputs), list[Any]()
        for node in reversed(self.nodes):
            if wanted.intersection(node.output):
                nodes.append(node)
                wanted.update(node.input)
        constants = [
            self.onnx.numpy_helper.from_array(array, name)
            for name, array in self.constants.items()
            if name in wanted
        ]
        return nodes[::-1], constants


Shape = tuple[int | None, ...]
"""Sizes of the axes; None is one that is known only when the graph runs."""


class Untraceable(AttributeError):
    """Something that no graph can do, such as a branch on a value.

    It is an `AttributeError`, so that `hasattr` of the traced namespace says no.
    """


class Traced:
    """An array of a graph.

    Attributes:
        graph: whose value it is.
        name: of the value; of one number, if `filled`.
        dtype: NumPy's name of the type; shape: see `Shape`.
        like: an array of the same shape, if all entries are the number that `name` is; else None.
    """

    # NumPy's operators leave it to ours.
    __array_ufunc__ = None
    device = "cpu"

    def __init__(
        self, graph: Graph, name: str, dtype: Any, shape: Shape, like: Traced | None = None
    ) -> None:
        self.graph, self.name, self.shape, self.like = graph, name, shape, like
        self.dtype = np.dtype(dtype)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def T(self) -> Traced:
        """The transposed matrix."""
        return transposed(self, tuple(reversed(range(self.ndim))))

    def whole(self) -> Traced:
        """Return itself with all its entries, also where they are one number."""
        if self.like is None:
            return self
        like = self.like.whole()
        sizes = self.graph.node("Shape", [like.name])
        name = self.graph.node("Expand", [self.name, sizes])
        return Traced(self.graph, name, self.dtype, self.shape)

    def __getattr__(self, name: str) -> NoReturn:
        raise Untraceable(f"the attribute '{name}' of an array")

    def __bool__(self) -> NoReturn:
        raise Untraceable("a branch on a value")

    def __len__(self) -> NoReturn:
        raise Untraceable("the number of rows, which is free")

    def __float__(self) -> NoReturn:
        raise Untraceable("the value of a number")

    __int__ = __index__ = __float__

    def __getitem__(self, index: Any) -> Traced:
        return indexed(self.whole(), index)

    def __neg__(self) -> Traced:
        return elementwise("Neg", self)

    def __abs__(self) -> Traced:
        return elementwise("Abs", self)

    def __invert__(self) -> Traced:
        return elementwise("Not", self)

    def __add__(self, other: Any) -> Traced:
        return elementwise("Add", self, other)

    def __radd__(self, other: Any) -> Traced:
        return elementwise("Add", other, self)

    def __sub__(self, other: Any) -> Traced:
        return elementwise("Sub", self, other)

    def __rsub__(self, other: Any) -> Traced:
        return elementwise("Sub", other, self)

    def __mul__(self, other: Any) -> Traced:
        return elementwise("Mul", self, other)

    def __rmul__(self, other: Any) -> Traced:
        return elementwise("Mul", other, self)

    def __truediv__(self, other: Any) -> Traced:
        return elementwise("Div", self, other)

    def __rtruediv__(self, other: Any) -> Traced:
        return elementwise("Div", other, self)

    def __pow__(self, other: Any) -> Traced:
        return self * self if isinstance(other, int) and other == 2 else self._to(other)

    def _to(self, power: Any) -> Traced:
        return elementwise("Pow", self, power)

    def __and__(self, other: Any) -> Traced:
        return elementwise("And", self, other)

    def __or__(self, other: Any) -> Traced:
        return elementwise("Or", self, other)

    __rand__, __ror__ = __and__, __or__

    def __lt__(self, other: Any) -> Traced:
        return elementwise("Less", self, other, dtype=bool)

    def __le__(self, other: Any) -> Traced:
        return elementwise("LessOrEqual", self, other, dtype=bool)

    def __gt__(self, other: Any) -> Traced:
        return elementwise("Greater", self, other, dtype=bool)

    def __ge__(self, other: Any) -> Traced:
        return elementwise("GreaterOrEqual", self, other, dtype=bool)

    def __eq__(self, other: object) -> Traced:  # pyright: ignore[reportIncompatibleMethodOverride]
        return elementwise("Equal", self, other, dtype=bool)

    def __ne__(self, other: object) -> Traced:  # pyright: ignore[reportIncompatibleMethodOverride]
        return ~(self == other)

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __matmul__(self, other: Any) -> Traced:
        return product(self, other)

    def __rmatmul__(self, other: Any) -> Traced:
        return product(other, self)


def graph_of(operands: Sequence[Any]) -> Graph:
    """Return the graph that traced ones among operands belong to."""
    return next(operand.graph for operand in operands if isinstance(operand, Traced))


def _is_array(operand: Any) -> bool:
    return isinstance(operand, Traced | np.ndarray | np.generic)


def common_type(operands: Sequence[Any]) -> np.dtype[Any]:
    """Return the type in which operands meet; plain numbers have no say."""
    types: list[Any] = [operand.dtype for operand in operands if _is_array(operand)]
    return np.result_type(*types)


def traced(graph: Graph, operand: Any, dtype: Any) -> Traced:
    """Return an operand as a traced array of a type; what isn't traced becomes a constant."""
    if not isinstance(operand, Traced):
        array = np.asarray(operand, dtype=dtype)
        return Traced(graph, graph.constant(array), array.dtype, array.shape)
    if operand.dtype == np.dtype(dtype):
        return operand
    name = graph.node("Cast", [operand.name], to=onnx_type(dtype))
    return Traced(graph, name, dtype, operand.shape, operand.like)


def elementwise(kind: str, *operands: Any, dtype: Any = None) -> Traced:
    """Return what an operator makes of operands that meet in one type and shape.

    Args:
        kind: of the operator.
        operands: traced arrays, NumPy's and numbers.
        dtype: of the outcome, if it isn't theirs.
    """
    graph, met = graph_of(operands), common_type(operands)
    ready = [traced(graph, operand, met) for operand in operands]
    return joined(kind, ready, met if dtype is None else dtype)


def joined(kind: str, operands: Sequence[Traced], dtype: Any) -> Traced:
    """Return what an operator makes of operands that need no change but for their shape."""
    graph, shape = operands[0].graph, broadcast([operand.shape for operand in operands])
    filled = [operand for operand in operands if operand.like is not None]
    # One number meets any shape, so it needn't be spread out if another operand has the shape.
    rest = [operand for operand in operands if operand.like is None]
    like = None
    if filled and (not rest or broadcast([operand.shape for operand in rest]) != shape):
        if all(not operand.shape for operand in rest):
            like = next(operand.like for operand in filled if operand.shape == shape)
        else:
            operands = [operand.whole() for operand in operands]
    name = graph.node(kind, [operand.name for operand in operands])
    return Traced(graph, name, dtype, shape, like)


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """Return the shape in which shapes meet."""
    width = max(len(shape) for shape in shapes)
    padded = [(1,) * (width - len(shape)) + tuple(shape) for shape in shapes]
    found: list[int | None] = []
    for sizes in zip(*padded, strict=True):
        others = {size for size in sizes if size != 1}
        if len(others) > 1:
            raise Untraceable(f"arrays of shapes {list(shapes)} beside one another")
        found.append(others.pop() if others else 1)
    return tuple(found)


def transposed(array: Traced, axes: tuple[int, ...]) -> Traced:
    """Return an array with its axes in another order."""
    whole = array.whole()
    name = whole.graph.node("Transpose", [whole.name], perm=axes)
    return Traced(whole.graph, name, array.dtype, tuple(array.shape[axis] for axis in axes))


def product(left: Any, right: Any) -> Traced:
    """Return the matrix product, over any axes that stand before."""
    graph, met = graph_of((left, right)), common_type((left, right))
    ready = [traced(graph, operand, met).whole() for operand in (left, right)]
    first, second = ready[0].shape, ready[1].shape
    if len(first) == 2 and len(second) == 1:
        # ONNX Runtime refuses a vector behind a matrix of no rows, and takes a column.
        return product(ready[0], expanded(ready[1], 1))[:, 0]
    before = broadcast([first[:-2], second[:-2]]) if len(first) > 2 or len(second) > 2 else ()
    shape = (*before, *first[-2:-1], *(second[-1:] if len(second) > 1 else ()))
    return Traced(graph, graph.node("MatMul", [part.name for part in ready]), met, shape)


def indexed(array: Traced, index: Any) -> Traced:
    """Return `array[index]` for whole numbers, slices and None."""
    axis = 0
    for part in cast(tuple[Any, ...], index if type(index) is tuple else (index,)):
        if part is None:
            array = expanded(array, axis)
            axis += 1
        elif type(part) is slice:
            array = sliced(array, axis, cast(Any, part))
            axis += 1
        elif _is_whole(part):
            array = taken(array, np.array(int(part)), axis)
        else:
            raise Untraceable(f"an index of type {type(part).__name__}")
    return array


def _is_whole(part: Any) -> bool:
    return isinstance(part, int | np.integer)


def expanded(array: Traced, axis: int) -> Traced:
    """Return an array with one more axis, of size 1."""
    shape = (*array.shape[:axis], 1, *array.shape[axis:])
    name = array.graph.node("Unsqueeze", [array.name, array.graph.whole_numbers(axis)])
    return Traced(array.graph, name, array.dtype, shape)


def sliced(array: Traced, axis: int, part: slice) -> Traced:
    """Return a part of an array along an axis."""
    if part == slice(None):
        return array
    size = array.shape[axis]
    if size is None:
        raise Untraceable("a part of the rows, whose number is free")
    start, stop, step = part.indices(size)
    bounds = [array.graph.whole_numbers(bound) for bound in (start, stop, axis, step)]
    shape = (*array.shape[:axis], len(range(start, stop, step)), *array.shape[axis + 1 :])
    name = array.graph.node("Slice", [array.name, *bounds])
    return Traced(array.graph, name, array.dtype, shape)


def taken(array: Traced, indices: Any, axis: int) -> Traced:
    """Return the entries of an array at indices along an axis."""
    graph, where = array.graph, traced(array.graph, indices, np.int64).whole()
    name = graph.node("Gather", [array.name, where.name], axis=axis)
    shape = (*array.shape[:axis], *where.shape, *array.shape[axis + 1 :])
    return Traced(graph, name, array.dtype, shape)
