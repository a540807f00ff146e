"""The network that a map stands behind: read, found fit, and made longer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from os import fspath
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.core.errors import InputError
from calibrant.export.graph import IR_VERSION, LOWEST_OPSET, PREFIX, Graph, onnx_package
from calibrant.files.atomic import StrPath
from calibrant.files.bounds import check_regular

# What a joined file gives; a value of the network that is called so gets another name.
OUTPUTS = ("probs", "label", "confidence", "low", "high")
RENAMED = "network/"
# Protocol buffers, which the files are made of, end there.
MOST_BYTES = (1 << 31) - 1


@dataclass(frozen=True)
class Output:
    """An output of a network.

    Attributes:
        name: of the value; dtype: NumPy's.
        shape: its sizes, None for a free one; None if nothing is known of it.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...] | None

    def fits(self, width: int) -> bool:
        """Return whether it is known to be (N, width) floats."""
        return self.may_fit(width) and self.shape is not None and self.shape[-1] == width

    def may_fit(self, width: int) -> bool:
        """Return whether nothing that is known speaks against (N, width) floats."""
        known = self.shape is None or (len(self.shape) == 2 and self.shape[1] in (None, width))
        return known and self.dtype.kind not in "iubOSU"

    def __str__(self) -> str:
        if self.shape is None:
            return f"'{self.name}' of unknown shape"
        sizes = ["N" if size is None else str(size) for size in self.shape]
        of_what = "" if self.dtype.kind not in "iubOSU" else f" {self.dtype}"
        return f"'{self.name}'{of_what} ({', '.join(sizes)})"


@dataclass(frozen=True)
class Network:
    """A network's model, and which of its outputs a map reads.

    Attributes:
        model: the model; source: its file, for messages.
        opset: version of ONNX's operators that it is written in.
        scores: the logits or probabilities; features: the features, if the map reads some.
    """

    model: Any
    source: str
    opset: int
    scores: Output
    features: Output | None


def network_in(
    path: StrPath, classes: int, width: int | None, output: str | None, features: str | None
) -> Network:
    """Return the network in a file.

    Args:
        path: the file.
        classes: K of the map; width: D of the features that it reads, None if it reads none.
        output: name of the output that has the scores, None to find it by its shape.
        features: the same of the features.

    Raises:
        InputError: not an ONNX file, or no output, or several, of the right shape.
    """
    source = fspath(path)
    model, opset = _read(path, source)
    outputs = [_output(value) for value in _with_shapes(model).graph.output]
    scores = _picked(outputs, classes, output, source, "--output", "classes")
    beside = None
    if width is not None:
        others = [other for other in outputs if other != scores]
        beside = _picked(others, width, features, source, "--features-output", "features")
    names = _make_room(model, source)
    return Network(model, source, opset, _renamed(scores, names), _renamed(beside, names))


def _renamed(output: Output | None, names: dict[str, str]) -> Any:
    return output and replace(output, name=names.get(output.name, output.name))


def _read(path: StrPath, source: str) -> tuple[Any, int]:
    """Return a model and its version of the operators, which is raised if it is too low."""
    onnx = onnx_package()
    check_regular(Path(path), source, InputError)
    try:
        model = onnx.load(source)
        onnx.checker.check_model(model)
    # Whatever bytes may do to a parser.
    except Exception as error:
        raise InputError(f"{source}: is not a readable ONNX file") from error
    versions = [item.version for item in model.opset_import if item.domain in ("", "ai.onnx")]
    if not versions:
        return model, LOWEST_OPSET
    if versions[0] < LOWEST_OPSET:
        from onnx import version_converter

        try:
            model = version_converter.convert_version(model, LOWEST_OPSET)
        except Exception as error:
            raise InputError(
                f"{source}: is written in opset {versions[0]} and can't be converted to "
                f"{LOWEST_OPSET}; export the network anew with opset {LOWEST_OPSET} or later"
            ) from error
    return model, max(versions[0], LOWEST_OPSET)


def _with_shapes(model: Any) -> Any:
    """Return a model that knows the shapes of its outputs, as far as they can be inferred."""
    from onnx import shape_inference

    try:
        return shape_inference.infer_shapes(model)
    except Exception:  # operators of others, or a model too large for it
        return model


def _output(value: Any) -> Output:
    kind = value.type.tensor_type
    sizes = None
    if kind.HasField("shape"):
        sizes = tuple(
            int(size.dim_value) if size.HasField("dim_value") else None for size in kind.shape.dim
        )
    numbers = onnx_package().helper.tensor_dtype_to_np_dtype(kind.elem_type or 1)
    return Output(value.name, np.dtype(numbers), sizes)


def _picked(
    outputs: list[Output], width: int, asked: str | None, source: str, option: str, what: str
) -> Output:
    """Return the output that has so many columns, or that is asked for."""
    listed = ", ".join(map(str, outputs)) or "none"
    wanted = f"the calibrator was fitted for {width} {what}"
    if asked is not None:
        for one in outputs:
            if one.name == asked:
                if one.may_fit(width):
                    return one
                raise InputError(
                    f"{source}: its output is {one}, but {wanted} and needs floats "
                    f"of shape (N, {width})"
                )
        raise InputError(f"{source}: has no output '{asked}' (of {option}); it has: {listed}")
    found = [one for one in outputs if one.fits(width)]
    if len(found) == 1:
        return found[0]
    how_many = "no output is" if not found else f"{len(found)} outputs are"
    advice = f"; name the right one by {option}" if any(o.may_fit(width) for o in outputs) else ""
    raise InputError(
        f"{source}: {how_many} known to be floats of shape (N, {width}), and {wanted}; "
        f"it has: {listed}{advice}"
    )


def _make_room(model: Any, source: str) -> dict[str, str]:
    """Rename what in a network is called as something of the map's, and return the new names."""
    every = set(_names(model.graph))
    taken = {name for name in every if name in OUTPUTS or name.startswith(PREFIX)}
    given = taken.intersection(value.name for value in model.graph.input)
    if given:
        raise InputError(
            f"{source}: its input '{min(given)}' is called as an output of the joined file; export "
            "the network with another name"
        )
    new: dict[str, str] = {}
    for name in taken:
        new[name] = RENAMED + name
        while new[name] in every:
            new[name] = RENAMED + new[name]
    if new:
        _rename(model.graph, new)
    return new


def _inner(graph: Any) -> Iterator[Any]:
    """Yield the graphs within the nodes of a graph."""
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield attribute.g
            yield from attribute.graphs


def _values(graph: Any) -> Iterator[Any]:
    """Yield what a graph says of its values, each with a name."""
    yield from graph.input
    yield from graph.output
    yield from graph.value_info
    yield from graph.initializer


def _names(graph: Any) -> Iterator[str]:
    """Yield the names of all values of a graph, and of the graphs within it."""
    for value in _values(graph):
        yield value.name
    for node in graph.node:
        yield from node.output
    for inner in _inner(graph):
        yield from _names(inner)


def _rename(graph: Any, names: dict[str, str]) -> None:
    for value in _values(graph):
        value.name = names.get(value.name, value.name)
    for node in graph.node:
        for side in (node.input, node.output):
            side[:] = [names.get(name, name) for name in side]
    for inner in _inner(graph):
        _rename(inner, names)


def joined_model(network: Network, graph: Graph, outputs: list[Any]) -> Any:
    """Return the network's model with a map behind it; the network's own outputs come last.

    Raises:
        InputError: both together are larger than a file can be.
    """
    onnx = onnx_package()
    nodes, constants = graph.parts_for([value.name for value in outputs])
    model = onnx.ModelProto()
    model.CopyFrom(network.model)
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(constants)
    own = list(model.graph.output)
    del model.graph.output[:]
    model.graph.output.extend([*outputs, *own])
    if not any(item.domain in ("", "ai.onnx") for item in model.opset_import):
        model.opset_import.append(onnx.helper.make_opsetid("", graph.opset))
    model.ir_version = max(model.ir_version, IR_VERSION)
    if model.ByteSize() > MOST_BYTES:
        raise InputError(
            f"{network.source}: with the calibrator behind it it would take more than 2 GiB, which "
            "no ONNX file can hold; export the calibrator alone and run one after the other"
        )
    return model
