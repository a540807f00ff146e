"""Weights and clusters on the command line: what is said of them in words and in JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from calibrant.cli import main
from calibrant.evaluation.evaluate import evaluate
from calibrant.files import read_predictions, write_predictions
from calibrant.predictions.predictions import Predictions
from calibrant.report.classes import class_table
from calibrant.report.series import (
    binned_reliability,
    in_worth,
    risk_coverage,
    smoothed_reliability,
)

ROWS = 240
FEW = ["--resamples", "20"]


@pytest.fixture
def call(monkeypatch, capsys):
    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["calibrant", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


@pytest.fixture
def folder(tmp_path: Path, labelled_logits) -> Path:
    """val.npz and test.npz with weights, and a column that names patients."""
    for seed, name in enumerate(("val", "test")):
        logits, labels = labelled_logits(ROWS, 3, seed=seed)
        weights = np.random.default_rng(seed).integers(0, 3, size=ROWS)
        patients = np.array([f"p{i}" for i in np.arange(ROWS) // 6])
        np.savez(
            tmp_path / f"{name}.npz", logits=logits, labels=labels, weight=weights, patient=patients
        )
    return tmp_path


def test_measure_says_what_weights_and_clusters_make_of_the_rows(call, folder: Path):
    test = folder / "test.npz"
    code, out, _ = call("measure", test, *FEW)
    assert code == 0
    assert "Weighted: worth " in out
    code, out, _ = call("measure", test, "--cluster", "patient", *FEW, "--json", "-")
    found = json.loads(out)
    assert found["weighted"] is True
    assert found["clusters"] == 40
    assert 0 < found["effective_rows"] < found["n"] <= ROWS
    assert 0 <= found["correlation"] < 1
    code, out, _ = call("measure", test, "--cluster", "patient", *FEW, "--rows-for", "0.1")
    assert code == 0
    assert "The rows are weighted and in 40 clusters" in out
    assert "You need about" in out
    code, out, _ = call("measure", test, "--cluster", "patient", "--by", "class", *FEW)
    assert code == 0


def test_many_files_need_as_many_rows_as_one_that_holds_the_same(call, tmp_path: Path):
    rng = np.random.default_rng(0)
    logits, weights = 2 * rng.normal(size=(3000, 4)), rng.exponential(size=3000) ** 3
    labels = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(axis=1)
    file = tmp_path / "w.npz"
    np.savez(file, logits=logits, labels=labels, weight=weights)
    asked = ("measure", file, "--metrics", "ece", *FEW, "--rows-for", "0.05", "--json", "-")
    rows = []
    for how in ((), ("--engine", "processes", "--workers", "1")):
        code, out, _ = call(*asked, *how)
        assert code == 0
        rows.append(json.loads(out)["rows_needed"]["rows"])
    # The weights are worth a fourteenth of the rows, which many files knew nothing of.
    assert rows[1] == pytest.approx(rows[0], rel=0.05)


def test_rows_in_clusters_are_never_worth_more_than_there_are(call, tmp_path: Path):
    # In each pair one is right: the gaps of clusters vary less than those of rows would.
    probs, pairs = np.tile([0.75, 0.25], (98, 1)), np.repeat(np.arange(49), 2)
    file = tmp_path / "pairs.npz"
    np.savez(file, probs=probs, labels=np.tile([0, 1], 49), pair=pairs)
    asked = ("measure", file, "--cluster", "pair", "--metrics", "ece", *FEW, "--rows-for", "0.1")
    code, out, _ = call(*asked, "--json", "-")
    assert code == 0
    assert json.loads(out)["effective_rows"] == 98


def test_fit_apply_and_compare_take_them_along(call, folder: Path):
    val, test, saved = folder / "val.npz", folder / "test.npz", folder / "c.safetensors"
    code, out, _ = call("fit", val, "--method", "matrix", "--cluster", "patient", "--out", saved)
    assert code == 0
    assert "with weights in 40 clusters" in out
    code, out, _ = call("fit", val, "--method", "svs", "--out", saved, "--json", "-")
    assert (json.loads(out)["weighted"], json.loads(out)["clusters"]) == (True, None)
    after = folder / "after.csv"
    code, out, _ = call("apply", saved, test, "--out", after, "--cluster", "patient")
    assert code == 0
    written = read_predictions(after, cluster="cluster")
    assert np.array_equal(written.weights, np.load(test)["weight"])
    assert len(np.unique(written.clusters)) == 40
    options = ["--methods", "none,temperature,svs", "--cluster", "patient", *FEW]
    code, out, _ = call("compare", "--fit", val, "--test", test, *options)
    assert code == 0
    assert "40 clusters" in out
    code, out, _ = call("compare", val, *options, "--json", "-")
    found = json.loads(out)
    assert found["clusters"] == 20
    assert found["weighted"] is True


def test_compare_takes_a_column_of_weights_for_as_many_copies_of_each_row(call, folder: Path):
    """Whole weights under a name of one's own measure and fit what copies of the rows do."""
    named, copied = folder / "named", folder / "copied"
    for place in (named, copied):
        place.mkdir()
    for name in ("val", "test"):
        rows = read_predictions(folder / f"{name}.npz")
        plain = replace(rows, weights=None)
        times = np.asarray(rows.weights).astype(int)
        write_predictions(plain.take(np.repeat(np.arange(ROWS), times)), copied / f"{name}.npz")
        arrays = dict(np.load(folder / f"{name}.npz"))
        np.savez(named / f"{name}.npz", worth=arrays.pop("weight"), **arrays)
    methods = ["--methods", "none,temperature,svs,isotonic", *FEW, "--json", "-"]

    def compared(*words: object) -> dict[str, dict[str, float]]:
        code, out, err = call("compare", *words, *methods)
        assert code == 0
        # The command warns of copies, once for each file, and of nothing else.
        warned = 2 if str(copied) in str(words[1]) else 0
        assert err.count("into one cluster (--cluster)") == err.count("\n") == warned
        return {
            m["method"]: {name: r["value"] for name, r in m["metrics"].items()}
            for m in json.loads(out)["methods"]
        }

    files = [
        ["--fit", place / "val.npz", "--test", place / "test.npz"] for place in (named, copied)
    ]
    weighed, copies = compared(*files[0], "--weight", "worth"), compared(*files[1])
    unweighed = compared(*files[0])
    for method, values in copies.items():
        assert weighed[method] == pytest.approx(values, abs=1e-6), method
        assert unweighed[method]["nll"] != pytest.approx(values["nll"], abs=1e-3)
    over = [
        json.loads(call("compare", named, "--seeds", "0", *words, *methods)[1])["methods"]
        for words in (["--weight", "worth"], [])
    ]
    values = [{m["method"]: m["values"]["nll"] for m in found} for found in over]
    assert values[0]["none"]["named"] != pytest.approx(values[1]["none"]["named"], abs=1e-3)
    code, _, err = call("compare", *files[0], "--weight", "mass", *methods)
    assert (code, err.count("\n")) == (2, 1)
    assert "there is no 'mass' to hold the weights" in err


def test_what_can_not_be_weighed_or_clustered_is_one_sentence(call, folder: Path):
    test = folder / "test.npz"
    code, _, err = call("measure", test, "--cluster", "doctor")
    assert (code, err.count("\n")) == (2, 1)
    assert "there is no column 'doctor'" in err
    rows = read_predictions(test)
    one = folder / "one.npz"
    write_predictions(rows.with_clusters(np.zeros(ROWS)), one)
    code, _, err = call("measure", one, "--cluster", "cluster")
    assert (code, err.count("\n")) == (2, 1)
    assert "all rows belong to one cluster" in err
    bad = folder / "bad.npz"
    arrays = {**np.load(test), "weight": np.where(np.arange(ROWS) == 7, -1.0, 1.0)}
    np.savez(bad, **arrays)
    code, _, err = call("measure", bad)
    assert (code, err.count("\n")) == (2, 1)
    assert "'weight' must be finite and not negative, but row 7 holds -1.0" in err
    halves = folder / "halves.npz"
    write_predictions(replace(rows, weights=rows.weights / 3 + 0.1), halves)
    code, _, err = call("fit", halves, "--method", "bbq", "--out", folder / "b.safetensors")
    assert (code, err.count("\n")) == (2, 1)
    assert "method 'bbq' takes weights that count rows" in err


def test_rows_of_weight_0_are_not_measured(call, folder: Path):
    rows = read_predictions(folder / "test.npz")
    left = folder / "left.npz"
    write_predictions(rows.counted, left)
    options = [*FEW, "--json", "-"]
    whole, part = (
        json.loads(call("measure", file, *options)[1]) for file in (folder / "test.npz", left)
    )
    assert whole["metrics"] == part["metrics"]
    assert isinstance(rows, Predictions)


def test_pages_weigh_their_pictures(call, folder: Path):
    """The bands of a page are those of as many independent rows as these are worth."""
    val, test, page = folder / "val.npz", folder / "test.npz", folder / "page.html"
    code, _, err = call("measure", test, "--cluster", "patient", *FEW, "--report", page)
    assert (code, err) == (0, "")
    assert "in 40 clusters, worth" in page.read_text()
    options = ["--methods", "none,smart", *FEW, "--report", page]
    code, _, err = call("compare", "--fit", val, "--test", test, *options)
    assert (code, err) == (0, "")
    rows = read_predictions(test)
    evaluation = evaluate(rows, metrics=["ece"], resamples=5)
    top, scores = in_worth(evaluation)
    assert top.total == pytest.approx(evaluation.effective_rows)
    weighed, plain = binned_reliability(top), binned_reliability(evaluation.top)
    np.testing.assert_allclose(weighed.accuracy, plain.accuracy)
    assert ((weighed.high - weighed.low) > (plain.high - plain.low)).all()
    repeated = evaluate(rows.repeated(), metrics=["ece"], resamples=5)
    np.testing.assert_allclose(plain.accuracy, binned_reliability(repeated.top).accuracy)
    for points in (5, 50):
        one, other = (risk_coverage(each.top, points) for each in (evaluation, repeated))
        np.testing.assert_allclose(one.coverage, other.coverage)
        np.testing.assert_allclose(one.error, other.error)
    labels = np.arange(3)
    table = class_table(scores, labels)
    np.testing.assert_allclose(table.accuracy, class_table(repeated.scores, labels).accuracy)
    smooth, of_repeated = (smoothed_reliability(e.top, points=21) for e in (evaluation, repeated))
    np.testing.assert_allclose(smooth.accuracy, of_repeated.accuracy)


def test_clusters_with_numbers_for_names_are_the_same_in_files_of_text(call, tmp_path: Path):
    pytest.importorskip("pyarrow")
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(ROWS, 3))
    labels, patients = rng.integers(0, 3, size=ROWS), rng.integers(0, 40, size=ROWS)
    np.savez(tmp_path / "a.npz", logits=logits, labels=labels, patient=patients)
    table = pandas.DataFrame({"label": labels, "patient": patients})
    table[[f"logit_{k}" for k in range(3)]] = logits
    table.to_csv(tmp_path / "a.csv", index=False)
    table.to_parquet(tmp_path / "a.parquet")
    found = []
    for name in ("a.npz", "a.csv", "a.parquet"):
        options = ["--cluster", "patient", "--metrics", "ece,nll", *FEW, "--json", "-"]
        code, out, err = call("measure", tmp_path / name, *options)
        assert code == 0, err
        metrics = json.loads(out)["metrics"]
        found.append([metrics[of][end] for of in ("ece", "nll") for end in ("low", "high")])
    np.testing.assert_allclose(found[1:], [found[0]] * 2, atol=1e-9)
