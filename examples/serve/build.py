"""Build the file that is served: a network, its calibrator and a threshold for answers.

The network is the last layer of the one that made the package's sample, which reads 64 features.
Any other goes the same way, by ``calibrant export --behind``. Half of the sample's validation rows
fit the calibrator, the other half choose the threshold.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from scipy import stats

import calibrant as cb

CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
# Shares of rows that may be answered, from few to all; each is tried after the one before holds.
COVERAGES = np.linspace(0.2, 1.0, 41)


def write_network(path: Path, layer: cb.predictions.Head) -> None:
    """Write a linear layer as an ONNX file: features (N, D) in, logits (N, K) out."""
    weight, bias = (np.asarray(part, dtype=np.float32) for part in (layer.weight, layer.bias))
    classes, width = weight.shape
    kinds = {"features": width, "logits": classes}
    features, logits = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", size])
        for name, size in kinds.items()
    )
    node = helper.make_node("Gemm", ["features", "weight", "bias"], ["logits"], transB=1)
    weights = [numpy_helper.from_array(weight, "weight"), numpy_helper.from_array(bias, "bias")]
    graph = helper.make_graph([node], "network", [features], [logits], weights)
    opset = [helper.make_opsetid("", 18)]
    onnx.save_model(helper.make_model(graph, opset_imports=opset, ir_version=8), str(path))


def threshold_for_risk(
    confidence: np.ndarray, correct: np.ndarray, risk: float, doubt: float = 0.05
) -> tuple[float, float]:
    """Return the confidence from which to answer, and the share of rows that are answered then.

    Of the answers, more than `risk` are wrong with probability `doubt` at most. From few answers
    to many, each share is taken only if those before it held: so many tests need no correction
    (Angelopoulos et al., Learn then Test, 2021). Nothing holds: (inf, 0).
    """
    curve = cb.metrics.risk_coverage(confidence, correct, kind="confidence")
    best = (float("inf"), 0.0)
    for wanted in COVERAGES:
        place = min(int(np.searchsorted(curve.coverage, wanted)), len(curve.coverage) - 1)
        answered = round(float(curve.coverage[place]) * len(confidence))
        errors = round(float(curve.risk[place]) * answered)
        upper = stats.beta.ppf(1 - doubt, errors + 1, answered - errors) if errors < answered else 1
        if upper > risk:
            break
        best = (float(curve.threshold[place]), answered / len(confidence))
    return best


def build(path: Path, risk: float, method: str = "top-rest") -> None:
    """Write the served file: fit, join, choose the threshold, note it in the metadata."""
    rows = cb.load_sample("validation")
    fitted, chosen = rows.take(slice(0, None, 2)), rows.take(slice(1, None, 2))
    calibrator = cb.make_calibrator(method).fit_predictions(fitted)
    label, confidence = calibrator.predict_confidence(chosen.logits)
    threshold, coverage = threshold_for_risk(confidence, label == chosen.labels, risk)
    network = path.with_suffix(".network.onnx")
    write_network(network, rows.head)
    model = calibrator.to_onnx(behind=network, class_names=CLASSES)
    noted = {"threshold": repr(threshold), "risk": repr(risk), "coverage": repr(coverage)}
    known = {entry.key: entry.value for entry in model.metadata_props}
    helper.set_model_props(model, known | noted)
    onnx.save_model(model, str(path))
    network.unlink()
