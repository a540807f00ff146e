"""`calibrant head` end to end."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from calibrant.cli import main
from calibrant.files import read_predictions, write_predictions
from calibrant.predictions import Predictions
from calibrant.sample import load_sample
from calibrant.training.heads import FeatureRows, HeadRetraining, load_head
from calibrant.training.heads.kappa import measure_head
from calibrant.training.heads.simulation import memorised_features

QUICK = ["--epochs", "2", "--resamples", "20"]


@pytest.fixture
def run(monkeypatch, capsys) -> Callable[..., tuple[int, str, str]]:
    """Run the command line in this process."""

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["calibrant", "head", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(bool(ended.code))
        return code, *capsys.readouterr()

    return call


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A run folder: train.npz, val.npz and test.npz of a network with a linear head."""
    place = tmp_path_factory.mktemp("run")
    parts = memorised_features(400, 300, 4, 8, seed=0)
    network = HeadRetraining(epochs=5).fit(*parts[0])
    for name, (features, labels) in zip(("train", "val", "test"), parts, strict=True):
        logits = network.logits(features)
        write_predictions(Predictions.from_logits(logits, labels, features), place / f"{name}.npz")
    return place


def files(folder: Path) -> list[object]:
    return [
        part for name in ("train", "val", "test") for part in (f"--{name}", folder / f"{name}.npz")
    ]


@pytest.mark.parametrize("method", ["maccal", "retrain", "tst", "v-tst", "balcal"])
def test_json_holds_what_the_old_and_the_new_head_do(run, folder, tmp_path, method):
    saved = tmp_path / "head.safetensors"
    code, out, _ = run("--method", method, *files(folder), "--out", saved, "--json", "-", *QUICK)
    assert code == 0
    document = json.loads(out)
    assert document["method"] == method
    test = read_predictions(folder / "test.npz")
    right = (test.logits.argmax(axis=1) == test.labels).mean()
    assert document["baseline"]["metrics"]["accuracy"]["value"] == pytest.approx(right)
    with torch.no_grad():
        logits = load_head(saved)(torch.from_numpy(test.features)).numpy()
    accuracy = (logits.argmax(axis=1) == test.labels).mean()
    assert document["metrics"]["accuracy"]["value"] == pytest.approx(accuracy)
    assert document["seconds"] > 0
    assert [record["epoch"] for record in document["history"]] == [1, 2]
    assert set(document["history"][0]) == {"epoch", "retention", "accuracy", "confidence"}
    if method == "maccal":
        assert document["kappa"] in [point["kappa"] for point in document["kappa_curve"]]
    else:
        assert document["kappa"] is None


def test_a_run_folder_is_its_three_files(run, folder):
    _, by_folder, _ = run(folder, "--json", "-", "--kappa", "0.9", *QUICK)
    _, by_files, _ = run(*files(folder), "--json", "-", "--kappa", "0.9", *QUICK)
    one, other = json.loads(by_folder), json.loads(by_files)
    assert one.pop("seconds") > 0
    assert other.pop("seconds") > 0
    assert one == other
    assert one["kappa"] == 0.9


def test_text_shows_both_heads(run, folder):
    code, out, err = run(*files(folder), "--set", "hidden=8", "--set", "kappas=[1,0.9]", *QUICK)
    assert code == 0
    assert "network's head" in out
    assert "2 epochs in" in out
    assert "kappa" in out
    assert "Training" not in err  # no bar where stderr is no terminal


def test_without_validation_rows_a_warning_says_where_kappa_came_from(run, folder):
    arguments = ["--train", folder / "train.npz", "--test", folder / "test.npz"]
    code, _, err = run(*arguments, *QUICK)
    assert code == 0
    assert err.startswith("warning: kappa is chosen on 80 rows held out")


def test_bad_input_is_one_sentence_and_exit_code_2(run, folder, tmp_path):
    plain = tmp_path / "plain.npz"
    test = read_predictions(folder / "test.npz")
    write_predictions(Predictions.from_logits(test.logits, test.labels), plain)
    narrow = tmp_path / "narrow.npz"
    write_predictions(
        Predictions.from_logits(test.logits, test.labels, test.features[:, :5]), narrow
    )
    train = folder / "train.npz"
    cases = {
        "there is no 'features'": ["--train", train, "--test", plain],
        "has 5 features, but": ["--train", train, "--test", narrow],
        "give --train FILE and --test FILE": ["--train", train],
        "not both": [folder, "--train", train],
        "no such folder": [tmp_path / "none"],
        "holds no train.npz": [tmp_path],
        "no second stage 'magic'": [*files(folder), "--method", "magic"],
        "trains the whole network": [*files(folder), "--method", "plp"],
        "no argument 'depth'": [*files(folder), "--set", "depth=3"],
        "expects KEY=VALUE": [*files(folder), "--set", "depth"],
        "kappa must be a number": [*files(folder), "--kappa", "2"],
        "no argument 'kappa'": [*files(folder), "--method", "tst", "--kappa", "0.9"],
        "is read by this command": [*files(folder), "--out", train],
    }
    for sentence, arguments in cases.items():
        code, out, err = run(*arguments)
        assert code == 2, sentence
        assert out == ""
        assert sentence in err
        assert err.count("\n") == 1


def test_sample_head_retrained_on_rows_that_the_network_never_saw_is_calibrated():
    fit, test = load_sample("validation"), load_sample("test")
    stage = HeadRetraining(epochs=10).fit(fit.features, fit.labels)
    rows = FeatureRows.checked(test.features, test.labels, 10)
    found = measure_head(stage.head_, rows)
    raw = (test.logits.argmax(axis=1) == test.labels).mean()
    assert found.accuracy > raw - 0.01
    assert found.ece < 0.03
    assert np.isfinite(found.nll)
