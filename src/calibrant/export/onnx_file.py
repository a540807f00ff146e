"""A map as an ONNX file, alone or behind the network whose logits it reads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from os import fspath
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from calibrant._version import __version__
from calibrant.core.arguments import within
from calibrant.core.errors import InputError, NotApplicableError
from calibrant.core.outputs import StrPath, replacing
from calibrant.core.text import in_order
from calibrant.export import array_api
from calibrant.export.exportable import Exportable, Kind, Outputs, needs_features, read_kind, ready
from calibrant.export.onnx_network import Behind, Network, joined_model, network_in
from calibrant.export.traced import (
    IR_VERSION,
    LOWEST_OPSET,
    Graph,
    Traced,
    Untraceable,
    onnx_package,
    onnx_type,
)
from calibrant.predictions.binary import as_logits
from calibrant.predictions.names import listed

DTYPES = ("float32", "float64")
# What is learnt in a narrower type than float64 and larger than this isn't widened in the file.
LARGE_BYTES = 1 << 16


@dataclass(frozen=True)
class GraphOptions:
    """What a graph is to be; see `Calibrator.to_onnx`.

    Attributes:
        kind: what it is given, None for what it was fitted to; dtype: of what goes in and out.
        level: probability of the intervals.
        masks: whether a logit may be minus infinity.
    """

    kind: Kind | None = None
    dtype: str = "float32"
    level: float = 0.95
    masks: bool = True

    def __post_init__(self) -> None:
        within("dtype", self.dtype, choices=DTYPES)
        if not 0 < self.level < 1:
            raise InputError(f"level must lie between 0 and 1, but is {self.level}")


def to_onnx(
    calibrator: Exportable,
    path: StrPath | None,
    options: GraphOptions,
    *,
    class_names: Sequence[str] | None = None,
    behind: Behind | None = None,
    decided: Outputs | None = None,
) -> Any:
    """Return the model, with what is decided as outputs; see `Calibrator.to_onnx`."""
    arrays = ready(calibrator)
    kind = read_kind(calibrator, options.kind)
    if path is not None and Path(path).suffix != ".onnx":
        raise InputError(f"{fspath(path)}: an ONNX file is saved as .onnx")
    names = _class_names(calibrator, class_names)
    onnx = onnx_package()
    network = None
    if behind is not None:
        width = calibrator.feature_width if needs_features(calibrator) else None
        network = network_in(behind, kind, calibrator.n_classes_, width)
    graph = Graph(LOWEST_OPSET if network is None else max(LOWEST_OPSET, network.opset))
    inputs, outputs = _traced(calibrator, arrays, graph, network, options, kind, decided)
    described = {
        "calibrant_version": __version__,
        "method": calibrator.method,
        "n_classes": str(calibrator.n_classes_),
        "class_names": json.dumps(names),
        "form": str(getattr(calibrator, "form_", "rows")),
        "kind": kind,
    }
    if "level" in (calibrator.interval_arrays(options.level) or {}):
        described["level"] = f"{options.level:g}"
    if network is None:
        nodes, constants = graph.parts_for(list(outputs))
        values = [_value(onnx, name, array) for name, array in outputs.items()]
        whole = onnx.helper.make_graph(nodes, "calibrator", inputs, values, initializer=constants)
        model = onnx.helper.make_model(
            whole,
            ir_version=IR_VERSION,
            opset_imports=[onnx.helper.make_opsetid("", graph.opset)],
        )
    else:
        values = [_value(onnx, name, array) for name, array in outputs.items()]
        model = joined_model(network, graph, values)
    model.producer_name, model.producer_version = "calibrant", __version__
    onnx.helper.set_model_props(model, props_of(model) | described)
    try:
        onnx.checker.check_model(model, full_check=network is None)
    except Exception as error:
        if network is None:
            raise
        why = next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(
            f"{network.source}: with the calibrator behind it this is no valid ONNX graph: {why}"
        ) from error
    if path is not None:
        with replacing(path) as temporary:
            onnx.save_model(model, fspath(temporary))
    return model


def written_graph(path: StrPath) -> Any | None:
    """Return the model in a file that Calibrant wrote, without its larger arrays, or None."""
    try:
        model = onnx_package().load(fspath(path), load_external_data=False)
    except Exception:  # whatever it is, it is no graph; who reads it says what it lacks
        return None
    return model if model.producer_name == "calibrant" else None


def signature(model: Any) -> str:
    """Return what a graph takes and gives, and its classes in their order, in lines of text."""
    said = props_of(model)
    ways = model.graph.input, model.graph.output
    called = [", ".join(value.name for value in values) for values in ways]
    shapes = ", ".join(_shaped(value) for values in ways for value in values)
    text = f"inputs: {called[0]}; outputs: {called[1]}\nshapes: {shapes}"
    if said["form"] != "rows" and len(model.graph.input) == 1:
        pair = {"probs": "[1 - p, p]", "logits": "[0, z]"}.get(said["kind"])
        text += f"\none score a row goes in as {pair}" if pair else ""
    names = json.loads(said["class_names"])
    if names != [str(number) for number in range(len(names))]:
        text += f"\nclasses in order: {in_order(names, said['form'])}"
    return text


def _shaped(value: Any) -> str:
    sizes = [size.dim_param or str(size.dim_value) for size in value.type.tensor_type.shape.dim]
    return f"{value.name} [{', '.join(sizes)}]"


def _class_names(calibrator: Exportable, given: Sequence[str] | None) -> list[str]:
    """Return the names of the classes, which are their numbers if nobody named them."""
    own: Any = getattr(calibrator, "class_names_", None)
    found: Any = own if given is None else given
    if found is None:
        found = range(calibrator.n_classes_)
    names = [str(name) for name in found]
    if len(names) != calibrator.n_classes_:
        raise InputError(
            f"class_names must name {calibrator.n_classes_} classes, but there are {len(names)}"
        )
    if own is not None and tuple(names) != tuple(own):
        raise InputError(
            f"the calibrator names its classes {listed(own)}, in this order; leave out class_names "
            "(--class-names)"
        )
    return names


# Parameters: the map, what it is given and becomes, and where it is written.
def _traced(
    calibrator: Exportable,
    arrays: dict[str, NDArray[Any]],
    graph: Graph,
    network: Network | None,
    options: GraphOptions,
    kind: Kind,
    decided: Outputs | None,
) -> tuple[list[Any], dict[str, Traced]]:
    """Return the inputs of the graph and its outputs by name."""
    # An output is called "probs", so an input can't be.
    own = "probs_in" if kind == "probs" else kind
    wanted: dict[str, tuple[int | None, ...]] = {own: (calibrator.n_classes_,)}
    if kind == "score":
        wanted[own] = ()
    if needs_features(calibrator):
        wanted["features"] = (calibrator.feature_width,)
    inputs, given = list[Any](), dict[str, Traced]()
    for name, width in wanted.items():
        if network is None:
            given[name] = Traced(graph, name, options.dtype, (None, *width))
            inputs.append(_value(graph.onnx, name, given[name]))
        else:
            place = network.scores if name == own else network.features
            assert place is not None
            given[name] = array_api.astype(
                Traced(graph, place.name, place.dtype, (None, *width)), np.dtype(options.dtype)
            )
    logits = as_logits(array_api, given[own], kind, calibrator.placing_)
    # Two probabilities may be so close that their logarithms are rounded to a tie; what was merely
    # a score predicts nothing by itself.
    ranked = given[own] if calibrator.keeps_prediction and kind != "score" else None
    try:
        learnt = _placed(graph, arrays)
        found = _outputs(calibrator, logits, ranked, given.get("features"), learnt, options)
        if decided is not None:
            top_only = calibrator.form_ == "toplabel"
            said = found["probs"][:, 1] if top_only else found["confidence"]
            found |= cast(dict[str, Traced], decided(array_api, found["probs"], said))
    except (Untraceable, TypeError) as error:
        # A function of NumPy's own, not the namespace's, finds an array of a wrong type.
        uses = error if isinstance(error, Untraceable) else f"what only NumPy can do ({error})"
        raise NotApplicableError(
            f"method '{calibrator.method}' can't be exported to ONNX: its map uses {uses}"
        ) from error
    outputs: dict[str, Traced] = {}
    for name, array in found.items():
        graph.call(array.whole().name, name)
        outputs[name] = Traced(graph, name, array.dtype, array.shape)
    return inputs, outputs


def _placed(graph: Graph, arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
    """Return learnt arrays, those that the map would only widen as values of the graph."""

    def stays(array: NDArray[Any]) -> bool:
        return array.dtype == np.float32 and array.nbytes > LARGE_BYTES

    return {
        name: Traced(graph, graph.constant(array), array.dtype, array.shape)
        if stays(array)
        else array
        for name, array in arrays.items()
    }


def _outputs(
    calibrator: Exportable,
    logits: Traced,
    ranked: Traced | None,
    features: Traced | None,
    learnt: dict[str, Any],
    options: GraphOptions,
) -> dict[str, Traced]:
    xp: Any = array_api
    with np.errstate(all="ignore"):
        probs = calibrator.transform(xp, logits, features, learnt, masks=options.masks)
        label = xp.argmax(probs if ranked is None else ranked, axis=1)
        confidence = xp.max(probs, axis=1)
        found = {"probs": probs, "label": label, "confidence": confidence}
        own = calibrator.interval_arrays(options.level)
        if own is not None:
            low, high = calibrator.interval(xp, logits, own, masks=options.masks)
            # Where the confidence was raised to keep the class, the interval moves up with it.
            found["low"] = xp.minimum(xp.astype(low, probs.dtype), confidence)
            found["high"] = xp.maximum(xp.astype(high, probs.dtype), confidence)
    return found


def _value(onnx: Any, name: str, array: Traced) -> Any:
    shape = ["rows" if size is None else size for size in array.shape]
    return onnx.helper.make_tensor_value_info(name, onnx_type(array.dtype), shape)


def props_of(model: Any) -> dict[str, str]:
    """Return the metadata of a model."""
    return {entry.key: entry.value for entry in model.metadata_props}
