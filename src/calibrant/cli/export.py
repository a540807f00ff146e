"""The verb `export`: a calibrator leaves for ONNX, or for torch alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, cast

import typer

from calibrant.cli.options import Json
from calibrant.cli.output import check_outputs, emit
from calibrant.core.errors import InputError
from calibrant.core.text import counted, names_in

TARGETS = ("onnx", "torch")
DEFAULT_LEVEL = 0.95


def export(
    calibrator: Annotated[Path, typer.Argument(help="A calibrator that `calibrant fit` saved.")],
    out: Annotated[Path, typer.Option(help="Where to write it: .onnx, or .pt2 for torch.")],
    to: Annotated[
        str, typer.Option(help="onnx, or torch: a program that torch alone runs (.pt2).")
    ] = "onnx",
    kind: Annotated[str, typer.Option(help="What it is given: logits or probs.")] = "logits",
    dtype: Annotated[str, typer.Option(help="Of what goes in and out: float32, float64.")] = (
        "float32"
    ),
    level: Annotated[
        float, typer.Option(help="Probability of the intervals, a fraction, where there are any.")
    ] = DEFAULT_LEVEL,
    class_names: Annotated[
        str,
        typer.Option(help="Names of all classes, separated by commas, for the metadata."),
    ] = "",
    behind: Annotated[
        Path | None,
        typer.Option(
            metavar="NETWORK.onnx",
            help="Put the calibrator behind this network, into one file.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            help="Output of the network that it reads, if not found by shape.", show_default=False
        ),
    ] = None,
    features_output: Annotated[
        str | None,
        typer.Option(help="The same for the features.", show_default=False),
    ] = None,
    json: Json = None,
) -> None:
    """Write a calibrator as an ONNX graph, alone or behind a network, or as a torch program."""
    from calibrant.posthoc.loading import load

    check_outputs([calibrator, behind], [out, json])
    if to not in TARGETS:
        raise InputError(f"--to takes {' or '.join(TARGETS)}, not '{to}'")
    fitted = load(calibrator)
    document: dict[str, Any] = {
        "calibrator": str(calibrator),
        "method": fitted.method,
        "n_classes": fitted.n_classes_,
        "to": to,
        "dtype": dtype,
        "out": str(out),
    }
    if to == "torch":
        given = {
            "--kind": kind != "logits",
            "--behind": behind,
            "--class-names": class_names,
            "--level": level != DEFAULT_LEVEL,
            "--output": output,
            "--features-output": features_output,
        }
        for option, value in given.items():
            if value:
                raise InputError(f"{option} is for --to onnx; a torch program takes logits")
        fitted.to_torch(out, dtype=cast(Literal["float32", "float64"], dtype))
        emit(f"{fitted.method} written to {out}, for torch.export.load", document, json)
        return
    model = fitted.to_onnx(
        out,
        kind=cast(Literal["logits", "probs"], kind),
        dtype=cast(Literal["float32", "float64"], dtype),
        level=level,
        class_names=names_in(class_names) or None,
        behind=behind,
        output=output,
        features_output=features_output,
    )
    graph = model.graph
    document |= {
        "kind": kind,
        "behind": None if behind is None else str(behind),
        "inputs": [value.name for value in graph.input],
        "outputs": [value.name for value in graph.output],
        "nodes": len(graph.node),
        "opset": max(item.version for item in model.opset_import if not item.domain),
        "bytes": out.stat().st_size,
    }
    place = "" if behind is None else f" behind {behind}"
    text = (
        f"{fitted.method}{place} written to {out}: {counted(len(graph.node), 'node')}, "
        f"{counted(document['bytes'], 'byte')}\n"
        f"inputs: {', '.join(document['inputs'])}; outputs: {', '.join(document['outputs'])}"
    )
    emit(text, document, json)
