"""The command `export`: a calibrator leaves for ONNX, or for torch alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import typer

from calibrant.cli.help import OUTPUT
from calibrant.cli.options import OutputOptions, option
from calibrant.cli.output import check_outputs, emit
from calibrant.core.errors import InputError
from calibrant.core.text import counted, names_in

TARGETS = ("onnx", "torch")
DEFAULT_LEVEL = 0.95


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """What is written, and for what it stands in a network."""

    to: str = option(
        "onnx", "onnx, or torch: a program that torch alone runs (.pt2).", metavar="NAME"
    )
    kind: str | None = option(
        None,
        "What the exported map takes: logits or probs. Default: as in the fit.",
        metavar="WORD",
    )
    dtype: str = option(
        "float32",
        "Type of the inputs and outputs: float32 or float64.",
        metavar="WORD",
    )
    level: float = option(DEFAULT_LEVEL, "Coverage of the intervals, a fraction.")
    class_names: str = option(
        "", "Names of all classes, separated by commas, for the metadata.", metavar="NAMES"
    )
    behind: Path | None = option(
        None, "Join this network and the calibrator in one graph.", metavar="NETWORK.onnx"
    )
    output: str | None = option(
        None,
        "Output of the network that holds the logits, if its shape doesn't show it.",
        metavar="NAME",
    )
    features_output: str | None = option(
        None,
        "Output of the network that holds the features, if its shape doesn't show it.",
        metavar="NAME",
    )


@dataclass(frozen=True, kw_only=True)
class GraphOptions(OutputOptions):
    """Where the graph is written."""

    out: Path = option(..., "Where to write it: .onnx, or .pt2 for torch.", panel=OUTPUT)


def export(
    calibrator: Annotated[
        Path,
        typer.Argument(
            help="A calibrator that `calibrant fit` saved, or a decision of `calibrant decide`."
        ),
    ],
    options: ExportOptions,
    output: GraphOptions,
) -> None:
    """Write a calibrator as an ONNX graph, alone or behind a network, or as a torch program.

    For a decision the graph also outputs what it decides: answer, called, set or cost.
    """
    from calibrant.decision.decision_file import is_decision, load_decision
    from calibrant.export.onnx_file import signature
    from calibrant.posthoc.loading import load

    to, out, behind = options.to, output.out, options.behind
    check_outputs([calibrator, behind], [out, output.json])
    if to not in TARGETS:
        raise InputError(f"--to takes {' or '.join(TARGETS)}, not '{to}'")
    decision = load_decision(calibrator) if is_decision(calibrator) else None
    fitted = load(calibrator) if decision is None else decision.calibrator
    leaving = fitted if decision is None else decision
    document: dict[str, Any] = {
        "calibrator": str(calibrator),
        "method": fitted.method,
        "n_classes": fitted.n_classes_,
        "to": to,
        "dtype": options.dtype,
        "out": str(out),
    }
    kind = cast(Literal["logits", "probs"] | None, options.kind)
    if to == "torch":
        given = {
            "--behind": behind,
            "--class-names": options.class_names,
            "--level": options.level != DEFAULT_LEVEL,
            "--output": options.output,
            "--features-output": options.features_output,
        }
        for option, value in given.items():
            if value:
                raise InputError(f"{option} is for --to onnx; leave it out")
        leaving.to_torch(out, kind=kind, dtype=cast(Literal["float32", "float64"], options.dtype))
        emit(f"{fitted.method} written to {out}, for torch.export.load", document, output.json)
        return
    model = leaving.to_onnx(
        out,
        kind=kind,
        dtype=cast(Literal["float32", "float64"], options.dtype),
        level=options.level,
        class_names=names_in(options.class_names) or None,
        behind=behind,
        output=options.output,
        features_output=options.features_output,
    )
    graph = model.graph
    document |= {
        "kind": options.kind or fitted.kind_,
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
        f"{counted(document['bytes'], 'byte')}\n{signature(model)}"
    )
    emit(text, document, output.json)
