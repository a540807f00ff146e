"""The network that a map is put behind: read, checked, and joined with the map."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import count, islice
from os import fspath
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.core.errors import InputError
from calibrant.core.outputs import StrPath
from calibrant.export.exportable import Kind
from calibrant.export.traced import IR_VERSION, LOWEST_OPSET, PREFIX, Graph, onnx_package
from calibrant.files.gate import check_regular

# What a joined file gives; a value of the network that is called so gets another name.
OUTPUTS = ("probs", "label", "confidence", "low", "high")
RENAMED = "network/"
# Protocol buffers, which the files are made of, end there.
MOST_BYTES = (1 << 31) - 1
# Nodes that leave the numbers of a matrix as they are, and those that only arrange them otherwise.
SAME = ("Identity", "Cast", "Dropout")
ARRANGED = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
# Nodes whose outputs may be any number; what is added to a network of one column is called so.
LINEAR, EVENT = ("Gemm", "MatMul", "Add"), "event/"
# A network is tried with so many random rows, where onnxruntime is installed, and inputs no larger.
ROWS_TRIED, MOST_NUMBERS_TRIED = 4, 1 << 24
# What sums of probabilities in float16 may miss 1 by.
SUM_TOLERANCE = 5e-3


@dataclass(frozen=True)
class Behind:
    """Which network a map is put behind.

    Attributes:
        path: its file.
        output: name of the output with the scores, None to find it by its shape.
        features: the same of the features.
    """

    path: StrPath
    output: str | None = None
    features: str | None = None

    @classmethod
    def of(cls, path: StrPath | None, output: str | None, features: str | None) -> Behind | None:
        """Return the network of a file, None without one.

        Raises:
            InputError: an output is named of no network.
        """
        if path is not None:
            return cls(path, output, features)
        for name, named in (("output", output), ("features_output", features)):
            if named is not None:
                raise InputError(
                    f"{name} '{named}' is an output of a network, but there is none: give its file "
                    f"as behind, or leave out {name}"
                )
        return None


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


def network_in(behind: Behind, kind: Kind, classes: int, width: int | None) -> Network:
    """Return the network in a file.

    Args:
        behind: the file, and the names of its outputs if they are known.
        kind: what the map reads.
        classes: K of the map; width: D of the features that it reads, None if it reads none.

    Raises:
        InputError: not an ONNX file, no output, or several, of the right shape, or one that holds
            something else than `kind`.
    """
    source = fspath(behind.path)
    model, opset = _read(behind.path, source)
    known = _with_shapes(model)
    outputs = [_output(value, source) for value in known.graph.output]
    event = _event(known.graph, outputs, behind.output, kind, source) if classes == 2 else None
    scores = event and event[0]
    if scores is None:
        scores = _picked(outputs, classes, behind.output, source, "--output", "classes", kind)
    beside = None
    if width is not None:
        others = [other for other in outputs if other != scores]
        beside = _picked(others, width, behind.features, source, "--features-output", "features")
    if event is not None:
        read = _as_two_columns(model.graph, event[1], kind)
    else:
        read = _scores_of_kind(known.graph, scores, kind, classes, source)
        if read == scores:
            _try_on_rows(model, scores, kind, source)
    names = _make_room(model, source)
    return Network(model, source, opset, _renamed(read, names), _renamed(beside, names))


def _event(
    graph: Any, outputs: list[Output], asked: str | None, kind: Kind, source: str
) -> tuple[Output, Output] | None:
    """Return the output of one column of a network for one event, and the value that a map reads.

    That is what goes into its Sigmoid, or comes out, as the map wants it; without a Sigmoid the
    output of a linear node is log odds. None where the network has two columns, or it isn't known
    what its one column holds.
    """
    usable = [one for one in outputs if asked in (None, one.name)]
    single = [one for one in usable if one.fits(1)]
    if len(single) != 1 or any(one.fits(2) for one in usable):
        return None
    makers = {name: node for node in graph.node for name in node.output}
    node = makers.get(single[0].name)
    while node is not None and node.op_type in SAME and node.input:
        node = makers.get(node.input[0])
    if node is None or node.op_type not in ("Sigmoid", *LINEAR):
        return None
    if (node.op_type == "Sigmoid") == (kind == "probs"):
        return single[0], single[0]
    if kind == "probs":
        return None
    before = next((value for value in graph.value_info if value.name == node.input[0]), None)
    found = None if before is None else _output(before, source)
    return None if found is None or not found.fits(1) else (single[0], found)


def _as_two_columns(graph: Any, one: Output, kind: Kind) -> Output:
    """Add the two columns of an event to a graph: 0 and its log odds, or 1 - p and p."""
    helper = onnx_package().helper
    number = helper.np_dtype_to_tensor_dtype(one.dtype)
    names = set(_names(graph))
    free = (name for i in count() if (name := f"{EVENT}{i}") not in names)
    first, other, both = islice(free, 3)
    nodes: list[Any] = []
    if kind == "probs":
        whole = helper.make_tensor(first, number, [1], [1.0])
        nodes.append(helper.make_node("Constant", [], [first], value=whole))
    nodes.append(helper.make_node("Sub", [first if nodes else one.name, one.name], [other]))
    nodes.append(helper.make_node("Concat", [other, one.name], [both], axis=1))
    graph.node.extend(nodes)
    return Output(both, one.dtype, (None, 2))


def _scores_of_kind(graph: Any, scores: Output, kind: Kind, classes: int, source: str) -> Output:
    """Return the value that holds logits or probabilities, as the map wants them.

    Behind a Softmax there are probabilities. A map of logits then reads what goes into the Softmax:
    logits and logarithms of probabilities differ by a number for each row, which changes no map.

    Raises:
        InputError: the output holds neither, or the other of the two.
    """
    makers = {name: node for node in graph.node for name in node.output}
    node, arranged = makers.get(scores.name), False
    while node is not None and node.op_type in (*SAME, *ARRANGED) and node.input:
        arranged |= node.op_type in ARRANGED
        node = makers.get(node.input[0])
    if node is None:
        return scores
    if node.op_type == "Concat":
        # A binary network's [1 - p, p].
        parts = [makers.get(name) for name in node.input]
        node = next((part for part in parts if part and part.op_type == "Sigmoid"), node)
        if node.op_type == "Sigmoid" and kind == "probs":
            return scores
    if node.op_type == "Sigmoid":
        raise InputError(
            f"{source}: its output '{scores.name}' ends in Sigmoid and holds a probability for "
            f"each class by itself, not {kind}; export the network without its Sigmoid"
        )
    if node.op_type == "LogSoftmax" and kind == "probs":
        raise InputError(
            f"{source}: its output '{scores.name}' ends in LogSoftmax and holds logarithms of "
            "probabilities, which the calibrator reads as logits: kind 'logits' (--kind logits)"
        )
    if node.op_type != "Softmax" or kind == "probs":
        return scores
    values = {value.name: value for value in graph.value_info}
    before = values.get(node.input[0])
    found = None if before is None else _output(before, source)
    if arranged or found is None or not found.may_fit(classes):
        raise InputError(
            f"{source}: its output '{scores.name}' ends in Softmax and holds probabilities, "
            "but the calibrator needs logits; export the network without its Softmax, or give "
            "kind 'probs' (--kind probs)"
        )
    return found


def _try_on_rows(model: Any, scores: Output, kind: Kind, source: str) -> None:
    """Run the network on random rows, and refuse an output that holds something else than `kind`.

    Where onnxruntime isn't installed, or can't run the network on what its inputs are said to be,
    nothing is checked.

    Raises:
        InputError: probabilities where logits are wanted, or the other way round.
    """
    given = _random_inputs(model.graph)
    if given is None:
        return
    try:
        runtime = import_module("onnxruntime")
        options = runtime.SessionOptions()
        options.log_severity_level = 4
        # From the file, since weights may lie beside it.
        session = runtime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        rows = np.asarray(session.run([scores.name], given)[0], dtype=np.float64)
    except Exception:  # whatever stops a runtime is no fault of the file
        return
    if rows.ndim != 2 or rows.shape[1] < 2 or not np.isfinite(rows).all() or not len(rows):
        return
    sums = rows.sum(axis=1)
    probs = bool((rows >= 0).all() and (np.abs(sums - 1) <= SUM_TOLERANCE).all())
    if probs == (kind == "probs"):
        return
    tried = f"{source}: with random inputs, rows of its output '{scores.name}'"
    if probs:
        raise InputError(
            f"{tried} are probabilities that sum to 1, but the calibrator needs logits; export "
            "the network with its logits, or give kind 'probs' (--kind probs)"
        )
    raise InputError(
        f"{tried} are no probabilities (one sums to {sums[np.abs(sums - 1).argmax()]:.4g}), and "
        "kind is 'probs'; give kind 'logits' (--kind logits) if they are logits"
    )


def _random_inputs(graph: Any) -> dict[str, Any] | None:
    """Return rows for each input of a network; None if it isn't known what they have to be."""
    weights = {value.name for value in graph.initializer}
    rng, found = np.random.default_rng(0), dict[str, Any]()
    for value in graph.input:
        if value.name in weights:
            continue
        sizes = [
            dim.dim_value if dim.HasField("dim_value") else None
            for dim in value.type.tensor_type.shape.dim
        ]
        if not sizes or None in sizes[1:]:
            return None
        shape = [sizes[0] or ROWS_TRIED, *(size or 0 for size in sizes[1:])]
        if np.prod(shape, dtype=np.float64) > MOST_NUMBERS_TRIED:
            return None
        kind = _dtype_of(value.type.tensor_type)
        if kind is None or kind.kind not in "fiu":
            return None
        # A whole number may be the place of a word; 0 and 1 are places everywhere.
        numbers = rng.normal(size=shape) if kind.kind == "f" else rng.integers(0, 2, shape)
        found[value.name] = numbers.astype(kind)
    return found or None


def _renamed(output: Output | None, names: dict[str, str]) -> Any:
    return output and replace(output, name=names.get(output.name, output.name))


def _read(path: StrPath, source: str) -> tuple[Any, int]:
    """Return a model and its version of the operators, which is raised if it is too low."""
    onnx = onnx_package()
    check_regular(Path(path), source, InputError)
    try:
        model = onnx.load(source)
        onnx.checker.check_model(model)
        # Text that isn't UTF-8 comes as bytes.
        "".join(_names(model.graph))
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


def _output(value: Any, source: str) -> Output:
    kind = value.type.tensor_type
    if value.type.WhichOneof("value") not in (None, "tensor_type"):
        return Output(value.name, np.dtype(object), None)  # a sequence or a map
    sizes = None
    if kind.HasField("shape"):
        sizes = tuple(
            int(size.dim_value) if size.HasField("dim_value") else None for size in kind.shape.dim
        )
    numbers = _dtype_of(kind)
    if numbers is None:
        raise InputError(
            f"{source}: its output '{value.name}' is of a type that ONNX doesn't have "
            f"({kind.elem_type})"
        )
    return Output(value.name, numbers, sizes)


def _dtype_of(tensor_type: Any) -> np.dtype[Any] | None:
    """Return NumPy's type of a tensor, float32 where nothing is said; None if there is no such."""
    try:
        found = onnx_package().helper.tensor_dtype_to_np_dtype(tensor_type.elem_type or 1)
    except Exception:  # a number that names no type is a KeyError in some versions
        return None
    return np.dtype(found)


# What a network of one column has to give.
_TWO_COLUMNS: dict[str, str] = {
    "logits": "log odds z of an event, what a Sigmoid takes, as two columns, 0 and z, which the "
    "network has to give: torch.cat([torch.zeros_like(z), z], 1)",
    "probs": "probability p of an event as two columns, 1 - p and p, which the network has to "
    "give: torch.cat([1 - p, p], 1)",
}


def _picked(
    outputs: list[Output],
    width: int,
    asked: str | None,
    source: str,
    option: str,
    what: str,
    kind: Kind = "logits",
) -> Output:
    """Return the output that has so many columns, or that is asked for."""
    listed = ", ".join(map(str, outputs)) or "none"
    wanted = f"the calibrator was fitted for {width} {what}"
    event = ""
    if width == 2 and what == "classes" and any(one.fits(1) for one in outputs):
        event = "; it takes the " + _TWO_COLUMNS[kind]
    if asked is not None:
        for one in outputs:
            if one.name == asked:
                if one.may_fit(width):
                    return one
                raise InputError(
                    f"{source}: its output is {one}, but {wanted} and needs floats "
                    f"of shape (N, {width}){event}"
                )
        raise InputError(f"{source}: has no output '{asked}' (of {option}); it has: {listed}")
    found = [one for one in outputs if one.fits(width)]
    if len(found) == 1:
        return found[0]
    how_many = "no output is" if not found else f"{len(found)} outputs are"
    advice = f"; name the right one by {option}" if any(o.may_fit(width) for o in outputs) else ""
    raise InputError(
        f"{source}: {how_many} known to be floats of shape (N, {width}), and {wanted}; "
        f"it has: {listed}{advice}{event}"
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
    """Yield the descriptions of a graph's values, each with a name."""
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
