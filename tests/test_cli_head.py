"""`calibrant head` end to end."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from memorised_features import memorised_features

torch = pytest.importorskip("torch")

from calibrant.cli import main  # noqa: E402
from calibrant.evaluation.evaluate import evaluate  # noqa: E402
from calibrant.files import read_predictions, write_predictions  # noqa: E402
from calibrant.posthoc.temperature.scaling import TemperatureScaling  # noqa: E402
from calibrant.predictions.predictions import Predictions  # noqa: E402
from calibrant.sample import load_sample  # noqa: E402
from calibrant.training.second_stages import FeatureRows, HeadRetraining, load_head  # noqa: E402
from calibrant.training.second_stages.measured import logits_of, measure_logits  # noqa: E402

QUICK = ["--epochs", "2", "--resamples", "20"]


@pytest.fixture
def run(monkeypatch, capsys) -> Callable[..., tuple[int, str, str]]:
    """Run the command line in this process."""

    def call(*arguments: object, verb: str = "head") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["calibrant", verb, *map(str, arguments)])
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
    names = {"train": "train", "validation": "val", "test": "test"}
    return [part for name in names for part in (f"--{name}", folder / f"{names[name]}.npz")]


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
        kappas = [point["kappa"] for point in document["kappa_curve"]]
        assert document["kappa"] in ([1.0] if document["plain_chosen"] else kappas)
        assert document["plain"]["accuracy"] > 0
    else:
        assert document["kappa"] is None


def test_metrics_are_those_that_measure_gives_of_the_same_logits(run, folder, tmp_path):
    saved, written = tmp_path / "head.safetensors", tmp_path / "new.npz"
    arguments = [*files(folder), "--kappa", "1", "--out", saved, "--json", "-", *QUICK]
    found = json.loads(run(*arguments)[1])
    test = read_predictions(folder / "test.npz")
    with torch.no_grad():
        logits = load_head(saved)(torch.from_numpy(test.features)).numpy()
    write_predictions(Predictions.from_logits(logits, test.labels), written)

    def measured(file: Path) -> dict[str, object]:
        code, out, _ = run(file, "--json", "-", "--resamples", "20", verb="measure")
        assert code == 0
        return json.loads(out)["metrics"]

    assert found["metrics"] == measured(written)
    assert found["baseline"]["metrics"] == measured(folder / "test.npz")


def test_a_run_folder_is_its_three_files(run, folder):
    _, by_folder, _ = run(folder, "--json", "-", "--kappa", "0.9", *QUICK)
    _, by_files, _ = run(*files(folder), "--json", "-", "--kappa", "0.9", *QUICK)
    one, other = json.loads(by_folder), json.loads(by_files)
    assert one.pop("seconds") > 0
    assert other.pop("seconds") > 0
    assert one == other
    assert one["kappa"] == 0.9


def test_text_shows_both_heads(run, folder):
    two_layers = ["--set", "bottleneck=true", "--set", "hidden=8"]
    code, out, err = run(*files(folder), *two_layers, "--kappa", "0.9", *QUICK)
    assert code == 0
    assert "network's head" in out
    assert "2 epochs in" in out
    assert "kappa 0.9" in out
    # Two epochs leave every head unsure, and masks would make it less sure still.
    plain = run(*files(folder), *QUICK)[1]
    assert "; no mask did better, so this is a head retrained without\n" in plain
    assert plain.startswith(("Take the temperature: ", "The retrained head is better than"))
    assert "maccal" not in plain.split("epochs in")[0]
    assert "Training" not in err  # no bar where stderr is no terminal


def test_both_outputs_say_what_one_temperature_would_have_done(run, folder):
    code, out, _ = run(*files(folder), *QUICK, "--json", "-")
    assert code == 0
    found = json.loads(out)["one_temperature"]
    val, test = (read_predictions(folder / f"{name}.npz") for name in ("val", "test"))
    scaling = TemperatureScaling().fit(val.logits, val.labels)
    assert found["temperature"] == pytest.approx(scaling.temperature_)
    expected = evaluate(scaling.predict_proba(test.logits), test.labels, resamples=20)
    assert found["metrics"]["nll"]["value"] == pytest.approx(expected["nll"].value)
    assert found["metrics"]["nll"]["low"] == pytest.approx(expected["nll"].low)
    metrics = json.loads(out)["metrics"]
    for name in ("accuracy", "ece", "nll"):
        difference = found["differences"][name]
        apart = metrics[name]["value"] - expected[name].value
        assert difference["value"] == pytest.approx(apart, abs=1e-9)
        assert difference["low"] <= difference["value"] <= difference["high"]
    text = " ".join(run(*files(folder), *QUICK)[1].split())
    assert f"One temperature on the network's head (T = {scaling.temperature_:.3g})" in text
    assert f"NLL {expected['nll'].value:.4f} (" in text
    assert f"accuracy {100 * expected['accuracy'].value:.2f} % (" in text
    assert " points (" in text


def test_without_validation_rows_a_tenth_of_the_training_rows_serves(run, folder):
    arguments = ["--train", folder / "train.npz", "--test", folder / "test.npz"]
    code, out, err = run(*arguments, *QUICK)
    assert code == 0
    assert err.startswith("warning: without validation rows, 40 of the training rows are held out")
    assert out.startswith(("Take the temperature: ", "The retrained head is better than"))
    rows = read_predictions(folder / "train.npz")
    tenth = np.random.default_rng(0).permutation(400)[:40]
    scaling = TemperatureScaling().fit(rows.logits[tenth], rows.labels[tenth])
    assert f"(T = {scaling.temperature_:.3g}" in " ".join(out.split())


def test_bad_input_is_one_sentence_and_exit_code_2(run, folder, tmp_path):
    plain = tmp_path / "plain.npz"
    test = read_predictions(folder / "test.npz")
    write_predictions(Predictions.from_logits(test.logits, test.labels), plain)
    narrow = tmp_path / "narrow.npz"
    write_predictions(
        Predictions.from_logits(test.logits, test.labels, test.features[:, :5]), narrow
    )
    train = folder / "train.npz"
    half = tmp_path / "half"
    half.mkdir()
    write_predictions(test, half / "test.npz")
    cases = {
        "there is no 'features'": ["--train", train, "--test", plain],
        "has 5 features, but": ["--train", train, "--test", narrow],
        "give --train FILE and --test FILE": ["--train", train],
        "not both": [folder, "--train", train],
        "no such folder": [tmp_path / "none"],
        "holds no test.npz": [tmp_path],
        "holds no train.npz": [half],
        "no second stage is called 'magic'": [*files(folder), "--method", "magic"],
        "trains the whole network": [*files(folder), "--method", "plp"],
        "no argument 'depth'": [*files(folder), "--set", "depth=3"],
        "not of the form key=value": [*files(folder), "--set", "depth"],
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


def test_a_run_of_calibrant_train_gets_its_training_features(run, tmp_path):
    pytest.importorskip("lightning")
    from calibrant.training.run import RunSettings, load_network, train

    rng = np.random.default_rng(0)
    images = tmp_path / "images"
    images.mkdir()
    for part, count in (("train", 60), ("t10k", 30)):
        labels = rng.integers(0, 3, count).astype(np.uint8)
        pixels = (rng.integers(0, 60, (count, 8, 8)) + 60 * labels[:, None, None]).astype(np.uint8)
        for kind, values in (("images-idx3", pixels), ("labels-idx1", labels)):
            sizes = b"".join(size.to_bytes(4, "big") for size in values.shape)
            content = bytes([0, 0, 8, values.ndim]) + sizes + values.tobytes()
            (images / f"{part}-{kind}-ubyte").write_bytes(content)
    folder = tmp_path / "run"
    train(
        RunSettings(str(images), n_classes=3, epochs=2, batch_size=16, protocol="acls"),
        folder,
        accelerator="cpu",
    )
    assert not (folder / "train.npz").exists()
    code, out, _ = run(folder, "--kappa", "1", "--json", "-", *QUICK)
    assert code == 0
    rows = read_predictions(folder / "train.npz")
    assert rows.n == 54  # a tenth is held out
    held_out = read_predictions(folder / "val.npz")
    with np.load(folder / "test.npz") as test:
        logits = rows.features @ test["head_weight"].T + test["head_bias"]
    np.testing.assert_allclose(logits, rows.logits, atol=1e-4)
    seen = {tuple(features) for features in rows.features.round(4)}
    assert not any(tuple(features) in seen for features in held_out.features.round(4))
    assert json.loads(out)["validation"] == str(folder / "val.npz")
    network, _ = load_network(folder)
    assert rows.features.shape[1] == network.fc.in_features
    before = (folder / "train.npz").stat().st_mtime_ns
    assert run(folder, "--kappa", "1", *QUICK)[0] == 0
    assert (folder / "train.npz").stat().st_mtime_ns == before


def test_sample_head_retrained_on_rows_that_the_network_never_saw_is_calibrated():
    fit, test = load_sample("validation"), load_sample("test")
    stage = HeadRetraining(epochs=10).fit(fit.features, fit.labels)
    rows = FeatureRows.checked(test.features, test.labels, 10)
    found = measure_logits(logits_of(stage.head_, rows), rows)[0]
    raw = (test.logits.argmax(axis=1) == test.labels).mean()
    assert found.accuracy > raw - 0.01
    assert found.ece < 0.03
    assert np.isfinite(found.nll)
