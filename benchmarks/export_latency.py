"""What a calibrator's ONNX graph takes beside the network's: `python -m benchmarks.export_latency`.

Under onnxruntime on one thread, with a thousand classes, in float32: each method's graph, softmax
alone, and residual networks of the package for 32 x 32 images, for one row and for 256. Times are
processor time, which a busy machine disturbs less; medians of rounds, in which all take turns.
"""

from __future__ import annotations

import argparse
import io
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from onnx import TensorProto, helper

import calibrant as cb
from calibrant.core.errors import CalibrationWarning, NotApplicableError
from calibrant.posthoc.registry import METHODS
from calibrant.training import nets

CLASSES, WIDTH, CALIBRATION_ROWS = 1000, 64, 300
# Of a method where its own would take minutes here, or leave out that many classes.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "group": {"partitions": 20, "max_iterations": 5},
    "sms": {"most_classes": CLASSES, "max_iterations": 2},
    "matrix": {"most_classes": CLASSES, "max_iterations": 2, "penalty": 1.0},
    "dirichlet": {"most_classes": CLASSES, "max_iterations": 2, "penalty": 1.0},
}
SECONDS_A_ROUND = 0.02


def session(model: bytes) -> Any:
    """Return a session on one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def rows(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """Return logits, features, labels, and the last layer that makes one of the other."""
    rng = np.random.default_rng(n)
    weight = np.random.default_rng(0).normal(size=(CLASSES, WIDTH))
    features = rng.normal(size=(n, WIDTH))
    logits = features @ weight.T
    labels = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return logits, features, labels, (weight, np.zeros(CLASSES))


def softmax_alone() -> bytes:
    """Return a graph of one node."""
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", CLASSES])
        for name in ("logits", "probs")
    ]
    node = helper.make_node("Softmax", ["logits"], ["probs"], axis=1)
    graph = helper.make_graph([node], "softmax", values[:1], values[1:])
    opset = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()


def network(name: str) -> bytes:
    """Return a residual network of the package, with random weights, as ONNX."""
    content, images = io.BytesIO(), torch.zeros(2, 3, 32, 32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            nets.make_network(name, CLASSES).eval(),
            (images,),
            content,  # pyright: ignore[reportArgumentType]
            dynamo=False,
            input_names=["images"],
            output_names=["logits"],
            dynamic_axes={"images": {0: "rows"}, "logits": {0: "rows"}},
        )
    return content.getvalue()


def in_rounds(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Return seconds of processor time for each call, in as many rounds; all take turns."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    repeats = dict.fromkeys(calls, 1)
    for place in range(rounds + 1):
        for name, call in calls.items():
            began = time.process_time()
            for _ in range(repeats[name]):
                call()
            each = (time.process_time() - began) / repeats[name]
            if place == 0:  # loads what is loaded late, and says how often to call
                repeats[name] = max(1, round(SECONDS_A_ROUND / max(each, 1e-6)))
            else:
                taken[name].append(each)
    return taken


def main() -> None:
    """Fit, export, time, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--networks", nargs="+", default=["resnet20", "resnet50"])
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    given = parser.parse_args()
    logits, features, labels, head = rows(CALIBRATION_ROWS)
    fitting = cb.Predictions.from_logits(logits, labels, features, head=head)
    sessions: dict[str, Any] = {"softmax alone": session(softmax_alone())}
    nodes = {"softmax alone": 1}
    for method in given.methods:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CalibrationWarning)
            try:
                calibrator = cb.make_calibrator(method, **ARGUMENTS.get(method, {}))
                model = calibrator.fit_predictions(fitting).to_onnx()
            except NotApplicableError as reason:
                print(f"{method}: {reason}")
                continue
        nodes[method] = len(model.graph.node)
        sessions[method] = session(model.SerializeToString())
    networks = {name: session(network(name)) for name in given.networks}
    found: dict[int, dict[str, list[float]]] = {}
    for n in (1, 256):
        logits, features, *_ = rows(n)
        feed = {"logits": logits.astype(np.float32), "features": features.astype(np.float32)}
        images = np.random.default_rng(0).normal(size=(n, 3, 32, 32)).astype(np.float32)

        def call(one: Any, held: dict[str, np.ndarray]) -> Callable[[], Any]:
            own = {value.name: held[value.name] for value in one.get_inputs()}
            return lambda: one.run(None, own)

        found[n] = in_rounds({k: call(one, feed) for k, one in sessions.items()}, given.rounds)
        # A network takes seconds for 256 images.
        calls = {k: call(one, {"images": images}) for k, one in networks.items()}
        found[n] |= in_rounds(calls, given.rounds if n == 1 else 2)
    print(table(found, nodes, given.networks))


def table(found: dict[int, dict[str, list[float]]], nodes: dict[str, int], of: list[str]) -> str:
    """Return the times as a table of Markdown: medians, and shares of the networks' times."""
    lines = [
        "| | nodes | " + " | ".join(f"{n} x {CLASSES}, us" for n in found) + " | ",
        "|---|---|" + "---|" * len(found),
    ]
    shares = [(n, name) for name in of for n in found]
    lines[0] += " | ".join(f"of {name}, {n} rows, %" for n, name in shares) + " |"
    lines[1] += "---|" * len(shares)
    for name in found[1]:
        cells = [name, str(nodes.get(name, ""))]
        for times in found.values():
            middle = 1e6 * statistics.median(times[name])
            low, high = 1e6 * min(times[name]), 1e6 * max(times[name])
            cells.append(f"{middle:.3g} ({low:.3g} to {high:.3g})")
        for n, network in shares:
            share = statistics.median(found[n][name]) / statistics.median(found[n][network])
            cells.append("" if name in of else f"{100 * share:.2g}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
