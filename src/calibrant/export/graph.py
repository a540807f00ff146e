"""An ONNX graph in the making: its constants and nodes, each of them once."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

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
        """Return the nodes and constants that these outputs hang on, and no others."""
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
