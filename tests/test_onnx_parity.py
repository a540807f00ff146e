"""An exported graph gives what `predict_proba` gives: every method, on rows of every kind.

Where a map jumps or is steep, or adds up a thousand products in float32, the last bits of a sum
move a row by more than 1e-6. Few rows are like that, and there the graph may differ from
`predict_proba` by no more than four times what the last bits of the logits change in it.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest

from calibrant.core.errors import CalibrationWarning
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.registry import METHODS, make_calibrator
from calibrant.predictions.predictions import Predictions
from calibrant.sample import load_sample

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

WIDTH = 8
TOLERANCE = {"float32": 1e-6, "float64": 1e-8}
# How far logits are moved to see what rounding may do to a row, as a share of their spread.
NUDGE = 2e-6
# Rows that rounding moves by more than the tolerance, as a share of all.
MOST_BEYOND = 0.2
# What would only take longer.
QUICK: dict[str, dict[str, Any]] = {"group": {"partitions": 4}, "auto": {"folds": 2, "repeats": 1}}
# Fits of K x K numbers, which are tried with fewer classes than a thousand for the time they take,
# as maps of each class are.
SQUARE = {
    "sms": {"most_classes": 200, "max_iterations": 2},
    "ridge": {"most_classes": 200, "max_iterations": 2, "ridge": 100.0},
    "matrix": {"most_classes": 200, "max_iterations": 2, "penalty": 1.0},
    "dirichlet": {"most_classes": 200, "max_iterations": 1, "penalty": 1000.0},
}
ONE_VS_REST = {
    f"{name} one-vs-rest": name for name in ("histogram", "bbq", "isotonic", "venn-abers")
}
OTHERS = {
    "svs+top-rest": {},
    "temperature+histogram": {},
    "probit+isotonic": {},
    "dac+top-rest": {},
    "smart logits": {"indicator": "logits"},
    "smart entropy": {"indicator": "entropy"},
    "cts ece": {"criterion": "ece", "candidates": 3},
    "procal-bms released": {"convention": "released", "scaling": "none"},
    "dac layers": {"layers": "3,5"},
}
CASES = [*METHODS, *ONE_VS_REST, *OTHERS]
WIDE = [(case, 200 if case in {*SQUARE, *ONE_VS_REST} else 1000) for case in CASES]
SIZES = [(case, classes) for case in CASES for classes in (2, 10)] + WIDE
every_size = pytest.mark.parametrize(("case", "classes"), SIZES)


class Rows(NamedTuple):
    logits: np.ndarray
    features: np.ndarray


@cache
def layer(classes: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    return 2.5 * rng.normal(size=(classes, WIDTH)), np.linspace(-1, 1, classes)


def rows_of_a_network(n: int, classes: int, seed: int) -> tuple[Rows, np.ndarray]:
    """Return overconfident rows, whose features make the logits, with their labels."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n, WIDTH))
    weight, bias = layer(classes)
    logits = features @ weight.T + bias
    return Rows(logits, features), (logits / 2.5 + rng.gumbel(size=logits.shape)).argmax(axis=1)


@cache
def calibration_rows(classes: int) -> Predictions:
    if classes == 10:
        return load_sample("validation").take(slice(600))
    rows, labels = rows_of_a_network(300 if classes < 100 else 120, classes, 0)
    return Predictions.from_logits(rows.logits, labels, rows.features, head=layer(classes))


@cache
def fitted(case: str, classes: int) -> Calibrator:
    method = ONE_VS_REST.get(case, case.partition(" ")[0])
    arguments = QUICK.get(method, {}) | OTHERS.get(case, {})
    if classes > 10:
        arguments |= SQUARE.get(method, {})
    if case in ONE_VS_REST:
        arguments |= {"form": "one-vs-rest"}
    if case == "dac layers" and classes == 10:
        arguments |= {"layers": "40,24"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        return make_calibrator(method, **arguments).fit_predictions(calibration_rows(classes))


@cache
def session(case: str, classes: int, dtype: str) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    model = fitted(case, classes).to_onnx(dtype=dtype)
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def run(case: str, classes: int, rows: Rows) -> dict[str, np.ndarray]:
    given = session(case, classes, str(rows.logits.dtype))
    feed = {one.name: getattr(rows, one.name) for one in given.get_inputs()}
    return dict(zip([one.name for one in given.get_outputs()], given.run(None, feed), strict=True))


@cache
def rows_of(kind: str, classes: int, dtype: str) -> Rows:
    """Return rows of a kind: real ones are those of the sample, which has ten classes."""
    n = 1000 if classes < 100 or kind != "extreme" else 200
    if classes == 10:
        test = load_sample("test").take(slice(n))
        rows = Rows(np.asarray(test.logits), np.asarray(test.features))
    else:
        rows, _ = rows_of_a_network(n, classes, 1)
    logits, features = rows.logits.copy(), rows.features
    rng = np.random.default_rng(2)
    if kind == "extreme":
        quarter = n // 4
        logits[:quarter] *= 1e4 / np.abs(logits[:quarter]).max(axis=1, keepdims=True)
        masked = rng.random((quarter, classes)) < 0.4
        masked[np.arange(quarter), rng.integers(classes, size=quarter)] = False
        logits[quarter : 2 * quarter][masked] = -np.inf
        ties = logits[2 * quarter : 3 * quarter].round()
        ties[::2, 1], ties[::5] = ties[::2].max(axis=1), 0.0
        logits[2 * quarter : 3 * quarter] = ties
        logits[3 * quarter :] = logits[3 * quarter :].astype(np.float16)
        logits[0], logits[1] = 0, 0
        logits[0, 1], logits[1, -1] = 1e4, -1e4
    return Rows(logits.astype(dtype), features.astype(dtype))


def predicted(calibrator: Calibrator, rows: Rows) -> np.ndarray:
    given = rows if "features" in calibrator.needs else rows[:1]
    return calibrator.predict_proba(*given, kind="logits")


def float32_noise(calibrator: Calibrator, rows: Rows, wanted: np.ndarray) -> np.ndarray:
    """Return (n,) how far `predict_proba` itself moves rows by the last bits of their logits.

    By those of its own sums, in which it differs from float64; and if all gaps to the top, or each
    of them by its own, change by hardly anything.
    """
    most, rng = rows.logits.max(axis=1, keepdims=True), np.random.default_rng(0)
    gaps, dtype = rows.logits.astype(np.float64) - most, rows.logits.dtype
    ways = [-1.0, 1.0, *rng.uniform(-1, 1, size=(4, *gaps.shape))]
    others = [Rows((most + gaps * (1 + way * NUDGE)).astype(dtype), rows.features) for way in ways]
    others.append(Rows(*(part.astype(np.float64) for part in rows)))
    moved = [np.abs(predicted(calibrator, other) - wanted).max(axis=1) for other in others]
    return np.max(moved, axis=0)


def check(case: str, classes: int, rows: Rows) -> None:
    calibrator, dtype = fitted(case, classes), str(rows.logits.dtype)
    wanted, got = predicted(calibrator, rows), run(case, classes, rows)
    assert got["probs"].dtype == got["confidence"].dtype == wanted.dtype == np.dtype(dtype)
    off = np.abs(got["probs"] - wanted).max(axis=1)
    beyond = ~(off <= TOLERANCE[dtype])
    if beyond.any():
        assert beyond.mean() <= MOST_BEYOND, f"{off.max():.1e}"
        few = Rows(*(part[beyond] for part in rows))
        noise = float32_noise(calibrator, few, wanted[beyond])
        assert (off[beyond] <= TOLERANCE[dtype] + 4 * noise).all(), f"{off.max():.1e}"
    ranked = rows.logits if calibrator.keeps_prediction else wanted
    same = got["label"] == ranked.argmax(axis=1)
    if not calibrator.keeps_prediction:
        # Two classes that all but tie may be told apart by the last bit alone.
        two = np.sort(wanted, axis=1)[:, -2:]
        same |= (two[:, 1] - two[:, 0] <= TOLERANCE[dtype]) | beyond
    assert same.all()
    np.testing.assert_array_equal(got["confidence"], got["probs"].max(axis=1))
    np.testing.assert_allclose(got["probs"].sum(axis=1), 1, atol=1e-5)


@every_size
def test_a_graph_gives_what_predict_proba_gives(case, classes):
    for kind in ("real" if classes == 10 else "random", "extreme"):
        check(case, classes, rows_of(kind, classes, "float32"))


@pytest.mark.parametrize("classes", [2, 10])
@pytest.mark.parametrize("case", CASES)
def test_so_it_does_in_float64(case, classes):
    check(case, classes, rows_of("extreme", classes, "float64"))


@every_size
def test_a_row_alone_is_the_row_among_others(case, classes):
    every = rows_of("extreme", classes, "float32")
    rows = Rows(*(part[::40][:5] for part in every))
    together = run(case, classes, rows)["probs"]
    for i in range(5):
        alone = run(case, classes, Rows(*(part[i : i + 1] for part in rows)))["probs"]
        np.testing.assert_allclose(alone[0], together[i], atol=1e-5 if classes > 10 else 1e-6)
