"""A decision is a file: what it holds, what it says of rows, and what is refused."""

from __future__ import annotations

import csv
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

import calibrant as cb
from calibrant.cli.app import app
from calibrant.core.errors import CalibratorFileError
from calibrant.decision import Decision, load_decision, save_decision

VAL, TEST = cb.load_sample("validation"), cb.load_sample("test")
FITTED = cb.make_calibrator("svs+top-rest").fit_predictions(VAL)
FOUND: list[Decision] = [
    cb.decide(FITTED, TEST, risk=0.05),
    cb.decide(FITTED, TEST, error_cost=10, hand_over_cost=1),
    cb.decide(FITTED, TEST, cover=0.9, score="raps"),
]


@pytest.mark.parametrize("found", FOUND, ids=lambda found: found.rule)
def test_a_file_gives_the_same_decision_and_the_same_words(found: Decision, tmp_path: Path) -> None:
    save_decision(found, tmp_path / "d.safetensors")
    kept = load_decision(tmp_path / "d.safetensors")
    assert str(kept) == str(found)
    assert kept.as_dict() == found.as_dict()
    for name, column in found.of_rows(TEST).items():
        np.testing.assert_array_equal(kept.of_rows(TEST)[name], column)


@pytest.mark.parametrize("found", FOUND, ids=lambda found: found.rule)
def test_apply_writes_what_is_decided_beside_the_rows(
    found: Decision, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_decision(found, "d.safetensors")
    some = TEST.take(np.arange(50))
    cb.write_predictions(some, "rows.csv")
    app(["apply", "d.safetensors", "rows.csv", "--out", "after.csv"], standalone_mode=False)
    with open("after.csv", newline="") as file:
        written = list(csv.DictReader(file))
    columns = found.of_rows(cb.read_predictions("rows.csv"))
    for name, column in columns.items():
        assert [row[name] for row in written] == [str(value) for value in column.tolist()]
    app(["apply", "d.safetensors", "rows.csv", "--out", "after.npz"], standalone_mode=False)
    with np.load("after.npz") as after:
        for name, column in columns.items():
            np.testing.assert_array_equal(after[name], column)


def test_inspect_says_what_a_decision_and_its_calibrator_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "d.safetensors"
    for found in FOUND:
        save_decision(found, path)
        app(["inspect", str(path)], standalone_mode=False)
        said = capsys.readouterr().out
        assert str(found) in said
        assert "holds a decision, and the calibrator svs+top-rest" in " ".join(said.split())
    FITTED.save(path)
    app(["inspect", str(path), "--json", "-"], standalone_mode=False)
    said = json.loads(capsys.readouterr().out)["calibrator"]
    assert (said["method"], said["n_classes"], said["inputs"]) == ("svs+top-rest", 10, "logits")


def damaged(path: Path, out: Path, header: dict[str, str | None], **arrays: np.ndarray) -> None:
    """Write a copy of a file with another header or other arrays."""
    with safe_open(path, framework="numpy") as file:
        kept = {**file.metadata(), **header}
        state = {name: file.get_tensor(name) for name in file.keys()} | arrays  # noqa: SIM118
    save_file(state, out, metadata={k: v for k, v in kept.items() if v is not None})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("threshold", 1.5),
        ("threshold", None),
        ("threshold", "0.5"),
        ("threshold", [0.5]),
        ("risk", 0),
        ("sure", True),
        ("n", 1.5),
        ("coverage", [0.5, 0.4]),
        ("more", [[1, 2, 3]]),
        ("notes", "text"),
    ],
)
def test_numbers_that_make_no_decision_are_refused(field: str, value: object, tmp_path) -> None:
    whole, bad = tmp_path / "d.safetensors", tmp_path / "bad.safetensors"
    save_decision(FOUND[0], whole)
    with safe_open(whole, framework="numpy") as file:
        plain = json.loads(file.metadata()["decision"])
    damaged(whole, bad, {"decision": json.dumps(plain | {field: value})})
    with pytest.raises(CalibratorFileError, match=r"bad\.safetensors"):
        load_decision(bad)


@pytest.mark.parametrize(
    ("number", "field", "value"),
    [(2, "score", "best"), (2, "quantile", -1), (2, "by_class", [[1]]), (1, "expected", "1")],
)
def test_numbers_of_other_rules_are_proved_as_well(
    number: int, field: str, value: object, tmp_path: Path
) -> None:
    whole, bad = tmp_path / "d.safetensors", tmp_path / "bad.safetensors"
    save_decision(FOUND[number], whole)
    with safe_open(whole, framework="numpy") as file:
        plain = json.loads(file.metadata()["decision"])
    damaged(whole, bad, {"decision": json.dumps(plain | {field: value})})
    with pytest.raises(CalibratorFileError, match=r"bad\.safetensors"):
        load_decision(bad)
    save_decision(FOUND[1], whole)
    damaged(whole, bad, {}, costs=np.zeros((3, 3)))
    with pytest.raises(CalibratorFileError, match=r"costs of shape \(3, 3\)"):
        load_decision(bad)


def test_damaged_files_are_refused_with_a_sentence(tmp_path: Path) -> None:
    whole, bad = tmp_path / "d.safetensors", tmp_path / "bad.safetensors"
    save_decision(FOUND[0], whole)
    for header, message in [
        ({"rule": "guess"}, "unknown rule 'guess'"),
        ({"decision": None}, "damaged"),
        ({"decision": "[]"}, "damaged"),
        ({"calibrator": "{}"}, "unknown method"),
        ({"format_version": "9"}, "update Calibrant"),
        ({"format": "other"}, "not a decision"),
    ]:
        damaged(whole, bad, header)
        with pytest.raises(CalibratorFileError, match=message):
            load_decision(bad)
    damaged(whole, bad, {}, **{"curve/error": np.zeros(3)})
    with pytest.raises(CalibratorFileError, match="a curve without"):
        load_decision(bad)
    damaged(whole, bad, {}, **{"curve/error": np.full(5, np.nan)})
    with pytest.raises(CalibratorFileError, match="finite"):
        load_decision(bad)
    with pytest.raises(CalibratorFileError, match="not a calibrator"):
        cb.load(whole)


def test_where_nothing_may_be_answered_nothing_is_saved(tmp_path: Path) -> None:
    none = cb.decide("temperature", TEST.take(np.arange(300)), risk=0.01)
    with pytest.raises(cb.InputError, match=r"no decision to save\. No row may be answered"):
        save_decision(none, tmp_path / "d.safetensors")
    assert not (tmp_path / "d.safetensors").exists()
    with pytest.raises(cb.InputError, match="saved as"):
        save_decision(FOUND[0], tmp_path / "d.json")


def test_where_nothing_may_be_answered_the_command_shows_why_and_ends_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cb.write_predictions(TEST.take(np.arange(300)), tmp_path / "few.npz")
    words = ["decide", "temperature", str(tmp_path / "few.npz"), "--risk", "0.01"]
    page, out = tmp_path / "page.html", tmp_path / "d.safetensors"
    with pytest.raises(cb.InputError, match="there is no decision to save"):
        app([*words, "--out", str(out), "--report", str(page)], standalone_mode=False)
    assert "No row may be answered at a risk of 1.0 %" in capsys.readouterr().out
    assert page.is_file()
    assert not out.exists()


def test_calibrators_and_decisions_are_inspected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "saved.safetensors"
    odds = np.log([0.2, 0.8, 0.6, 0.9] * 50)
    rows = cb.Predictions.from_binary(odds, ["ok", "bad"] * 100, kind="logit", positive="bad")
    cb.make_calibrator("platt").fit_predictions(rows).save(path)
    app(["inspect", str(path)], standalone_mode=False)
    said = capsys.readouterr().out
    assert "holds the calibrator platt" in " ".join(said.split())
    assert "classes in order: ok, bad (positive)" in said
    save_decision(FOUND[0], path)
    app(["inspect", str(path)], standalone_mode=False)
    assert FOUND[0].headline()[:30] in capsys.readouterr().out


def test_the_command_saves_what_apply_takes(tmp_path: Path) -> None:
    cb.write_predictions(TEST, tmp_path / "test.npz")
    out = tmp_path / "d.safetensors"
    words = ["decide", "temperature", str(tmp_path / "test.npz"), "--risk", "0.05"]
    app([*words, "--out", str(out)], standalone_mode=False)
    assert load_decision(out).notes[0].startswith("temperature was fitted to 5000 rows")


@pytest.mark.parametrize("found", FOUND, ids=lambda found: found.rule)
def test_a_decision_travels_to_other_processes(found: Decision) -> None:
    again = pickle.loads(pickle.dumps(found))
    assert repr(again) == repr(found)
    assert again.as_dict() == found.as_dict()
