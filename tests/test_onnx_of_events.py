"""Exported graphs of what was fitted to binary predictions, and to the top-label form.

Every method that these forms fit is exported, and the graph held against what the library makes of
the predictions themselves; `test_onnx_parity` says what rounding may do.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import numpy as np
import pytest
from test_onnx_parity import MOST_BEYOND, QUICK, TOLERANCE, Rows, float32_noise

import calibrant as cb
from calibrant.core.errors import CalibrationWarning
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.registry import METHODS, make_calibrator

ort = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

ARGUMENTS: dict[str, dict[str, Any]] = {
    "beta am": {"form": "am"},
    "beta ab": {"form": "ab"},
    "platt probability": {"inputs": "probability"},
    "isotonic one-vs-rest": {"form": "one-vs-rest"},
    "platt+histogram": {},
}


@cache
def rows_of(form: str, seed: int, n: int) -> cb.Predictions:
    rng = np.random.default_rng(seed)
    if form == "toplabel":
        sure = rng.beta(5, 1.5, size=n).astype(np.float32)
        right = rng.random(n) < sure**1.5
        return cb.Predictions.from_confidence(sure, np.zeros(n, int), np.where(right, 0, 1))
    honest = rng.normal(scale=1.5, size=n)
    labels = rng.random(n) < 1 / (1 + np.exp(-honest))
    scores = (1.7 * honest + 0.8).astype(np.float32)
    scores[:6] = [0, 30, -30, 100, -100, 1e-3]
    return cb.Predictions.from_binary(scores, labels, kind="logit")


def cases(form: str) -> list[str]:
    rows = rows_of(form, 0, 8)
    every = [*METHODS, *(case for case in ARGUMENTS if form == "binary" or "one-vs" not in case)]
    return [c for c in every if make_calibrator(c.partition(" ")[0]).lacks(rows) is None]


CASES = [(form, case) for form in ("binary", "toplabel") for case in cases(form)]


def fitted(form: str, case: str) -> Calibrator:
    method = case.partition(" ")[0]
    arguments = QUICK.get(method, {}) | ARGUMENTS.get(case, {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        return make_calibrator(method, **arguments).fit_predictions(rows_of(form, 0, 400))


@pytest.mark.parametrize(("form", "case"), CASES)
def test_the_graph_gives_what_the_library_makes_of_these_predictions(form, case):
    calibrator, rows = fitted(form, case), rows_of(form, 1, 500)
    logits = np.asarray(rows.as_correctness().logits, dtype=np.float32)
    after = calibrator.apply_predictions(rows)
    wanted = after.scores if form == "toplabel" else after.positive_probs
    model = calibrator.to_onnx(kind="logits")
    noted = {entry.key: entry.value for entry in model.metadata_props}
    assert noted["form"] == form
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    got = session.run(["probs"], {"logits": logits})[0]
    assert got.shape == (500, 2)
    off = np.abs(got[:, 1] - wanted)
    beyond = ~(off <= TOLERANCE["float32"])
    assert beyond.mean() <= MOST_BEYOND, f"{off.max():.1e}"
    if beyond.any():
        few = Rows(logits[beyond], np.empty((int(beyond.sum()), 0), dtype=np.float32))
        noise = float32_noise(calibrator, few, calibrator.predict_proba(few.logits, kind="logits"))
        assert (off[beyond] <= TOLERANCE["float32"] + 4 * noise).all(), f"{off.max():.1e}"


def test_methods_of_every_kind_are_among_them():
    of = {form: {case for f, case in CASES if f == form} for form in ("binary", "toplabel")}
    assert {"platt", "beta", "quadratic", "isotonic", "smart", "svs", "auto"} <= of["binary"]
    assert {"platt", "beta", "temperature", "histogram", "venn-abers"} <= of["toplabel"]


def test_probabilities_of_the_positive_class_go_in_as_two_columns():
    rows = rows_of("binary", 1, 50)
    calibrator = fitted("binary", "platt")
    model = calibrator.to_onnx(kind="probs", dtype="float64")
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    p = np.asarray(rows.positive_probs, dtype=np.float64)[6:]
    got = session.run(["probs"], {"probs_in": np.stack([1 - p, p], axis=1)})[0]
    wanted = calibrator.apply_predictions(cb.Predictions.from_binary(p, None)).positive_probs
    np.testing.assert_allclose(got[:, 1], wanted, atol=1e-9)
