"""A decision leaves for ONNX and torch: there it decides as `apply` does."""

from __future__ import annotations

import numpy as np
import pytest

import calibrant as cb
from calibrant.cli.app import app
from calibrant.decision import Decision, save_decision

VAL, TEST = cb.load_sample("validation"), cb.load_sample("test")
FITTED = cb.make_calibrator("svs+top-rest").fit_predictions(VAL)
COSTS = np.random.default_rng(0).uniform(size=(10, 10)) * (1 - np.eye(10))
SOME = TEST.take(np.arange(400))
DECISIONS: dict[str, Decision] = {
    "risk": cb.decide(FITTED, TEST, risk=0.05),
    "precision": cb.decide(FITTED, TEST, precision=0.9, of=3),
    "cost": cb.decide(FITTED, TEST, costs=COSTS, hand_over_cost=0.1),
    **{s: cb.decide(FITTED, TEST, cover=0.9, score=s) for s in ("lac", "aps", "raps")},
}


def expected(found: Decision) -> dict[str, np.ndarray]:
    """Return what is decided of rows, names of classes as numbers and sets as masks."""
    columns = found.of_rows(SOME)
    if "set" in columns:
        sets = [set(words.split("|")) for words in columns["set"].tolist()]
        columns["set"] = np.array([[str(k) in each for k in range(10)] for each in sets])
    if "decision" in columns:
        columns["decision"] = np.array([int(w) if w else 10 for w in columns["decision"].tolist()])
    return columns


def compare(given: dict[str, np.ndarray], found: Decision, wrong: float) -> None:
    for name, column in expected(found).items():
        if column.dtype.kind == "f":
            np.testing.assert_allclose(given[name], column, rtol=0, atol=1e-5)
        else:  # a number that is rounded to float32 may cross a threshold
            assert (np.asarray(given[name]) != column).mean() <= wrong


@pytest.mark.parametrize("name", DECISIONS)
@pytest.mark.parametrize(("dtype", "wrong"), [("float64", 0.0), ("float32", 0.001)])
def test_onnx_decides_as_apply_does(name: str, dtype: str, wrong: float) -> None:
    runtime = pytest.importorskip("onnxruntime")
    model = DECISIONS[name].to_onnx(dtype=dtype)
    session = runtime.InferenceSession(model.SerializeToString())
    names = [output.name for output in session.get_outputs()]
    given = session.run(None, {"logits": np.asarray(SOME.logits).astype(dtype)})
    compare(dict(zip(names, given, strict=True)), DECISIONS[name], wrong)


@pytest.mark.parametrize("name", DECISIONS)
def test_torch_decides_as_apply_does(name: str) -> None:
    torch = pytest.importorskip("torch")
    given = DECISIONS[name].to_torch()(torch.tensor(np.asarray(SOME.logits), dtype=torch.float64))
    compare({key: value.numpy() for key, value in given.items()}, DECISIONS[name], 0.0)


def test_the_command_exports_a_decision_of_rows_with_one_number(tmp_path, capsys) -> None:
    runtime = pytest.importorskip("onnxruntime")
    top = FITTED.predict_proba(TEST.logits)
    rows = cb.Predictions.from_confidence(top.max(1), top.argmax(1), TEST.labels)
    found = cb.decide("platt", rows, risk=0.05)
    save_decision(found, tmp_path / "d.safetensors")
    words = ["export", str(tmp_path / "d.safetensors"), "--out", str(tmp_path / "d.onnx")]
    app([*words, "--kind", "probs", "--dtype", "float64"], standalone_mode=False)
    assert "answer" in capsys.readouterr().out
    session = runtime.InferenceSession((tmp_path / "d.onnx").read_bytes())
    said = np.asarray(rows.scores, dtype=np.float64)
    names = [output.name for output in session.get_outputs()]
    fed = {"probs_in": np.stack([1 - said, said], axis=1)}
    given = dict(zip(names, session.run(None, fed), strict=True))
    assert (given["answer"] != found.of_rows(rows)["answer"]).mean() <= 0.001


def test_the_command_writes_a_torch_program(tmp_path) -> None:
    torch = pytest.importorskip("torch")
    save_decision(DECISIONS["risk"], tmp_path / "d.safetensors")
    words = ["export", str(tmp_path / "d.safetensors"), "--to", "torch"]
    app([*words, "--out", str(tmp_path / "d.pt2"), "--dtype", "float64"], standalone_mode=False)
    program = torch.export.load(tmp_path / "d.pt2").module()
    given = program(torch.tensor(np.asarray(SOME.logits), dtype=torch.float64))
    answer = DECISIONS["risk"].of_rows(SOME)["answer"]
    np.testing.assert_array_equal(given["answer"].numpy(), answer)
