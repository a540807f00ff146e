"""The command line end to end: what it prints, what it writes, and how it refuses."""

from __future__ import annotations

import gzip
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from feature_rows import rows_with_features

from calibrant.cli import main
from calibrant.core.errors import PredictionsError
from calibrant.files import read_predictions, write_predictions
from calibrant.posthoc.loading import load
from calibrant.posthoc.registry import METHODS
from calibrant.predictions.predictions import Predictions
from calibrant.sample import CLASS_NAMES, load_sample

SMART = ["fit", "val.npz", "--method", "smart"]
FEW = ["--resamples", "20"]
ROOT = Path(__file__).parents[1]
TWO_SETS = ["--fit", "val.npz", "--test", "test.npz"]


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Outcome]


@pytest.fixture
def run(monkeypatch, capsys) -> Run:
    """Run the command line in this process."""

    def call(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["calibrant", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(bool(ended.code))
        return Outcome(code, *capsys.readouterr())

    return call


@pytest.fixture(scope="module")
def folder(tmp_path_factory, labelled_logits) -> Path:
    """Files of predictions: val.npz, test.npz, probs.csv, top.csv, wide.npz, and a calibrator."""
    place = tmp_path_factory.mktemp("predictions")
    val = rows_with_features(*labelled_logits(400, 4, seed=0))
    test = rows_with_features(*labelled_logits(400, 4, seed=1))
    write_predictions(val, place / "val.npz")
    write_predictions(test, place / "test.npz")
    write_predictions(Predictions.from_probs(test.probs, test.labels), place / "probs.csv")
    confidence = test.probs.max(axis=1)
    top = Predictions.from_confidence(confidence, test.logits.argmax(axis=1), test.labels)
    write_predictions(top, place / "top.csv")
    write_predictions(Predictions.from_logits(*labelled_logits(50, 6)), place / "wide.npz")
    METHODS["temperature"]().fit(val.logits, val.labels).save(place / "saved.safetensors")
    return place


def plain(text: str) -> bool:
    return all(c.isprintable() or c == "\n" for c in text)


def assert_refused(outcome: Outcome, *words: str) -> None:
    """Exit code 2, nothing on stdout, one line on stderr that holds the words.

    Below it stands the line to paste, if there is one, and what else is to be said.
    """
    assert outcome.code == 2, outcome
    assert outcome.out == ""
    assert outcome.err.startswith("error: ")
    _, *pasted = outcome.err.splitlines()
    begins = [line.partition(" ")[0] for line in pasted]
    assert begins in ([], ["to"], ["to", "details:"]), outcome.err
    assert not pasted or pasted[0].startswith("to read it so: calibrant "), outcome.err
    assert outcome.err.endswith("\n")
    assert plain(outcome.err)
    for word in words:
        assert word in outcome.err


def test_a_packed_table_is_applied_to_as_it_is(run, folder, tmp_path):
    packed, plain_one = tmp_path / "my rows.csv.gz", folder / "probs.csv"
    packed.write_bytes(gzip.compress(plain_one.read_bytes()))
    written = []
    for path in (packed, plain_one):
        out = tmp_path / f"{len(written)}.csv"
        assert run("apply", folder / "saved.safetensors", path, "--out", out).code == 0
        written.append(out.read_bytes())
    assert written[0] == written[1]


GIVEN = {
    "fit": ["--method", "temperature", "--out", "t.safetensors"],
    "measure": ["--level", "0.9", "--report", "r.html"],
}


@pytest.mark.parametrize("command", GIVEN)
def test_the_line_to_paste_is_the_command_that_was_given(
    run, folder, tmp_path, monkeypatch, command
):
    monkeypatch.chdir(tmp_path)
    rows = read_predictions(folder / "probs.csv")
    path = tmp_path / "my rows.csv"
    head = ",".join([*(f"p{i}" for i in range(rows.n_classes)), "truth"])
    table = np.column_stack([rows.probs, rows.labels])
    np.savetxt(
        path,
        table,
        fmt=["%.12f"] * rows.n_classes + ["%d"],
        header=head,
        delimiter=",",
        comments="",
    )
    given = [command, str(path), "--labels=nowhere", *GIVEN[command]]
    outcome = run(*given)
    assert outcome.code == 2
    said, line, *_ = outcome.err.splitlines()
    assert said.startswith("error: ")
    offered, _, pasted = line.partition(": ")
    assert offered == "to read it so"
    _, *words = shlex.split(pasted)
    # What was said rightly stays, and what was said wrongly goes.
    assert words[:6] == [*given[:2], *given[3:]]
    assert "--labels=nowhere" not in words
    assert run(*words).code == 0
    assert (tmp_path / GIVEN[command][-1]).exists()


def test_a_name_of_a_file_isn_t_cut_where_details_begin(run, tmp_path):
    path = tmp_path / "a; b.csv"
    path.write_text("p0,p1,y\n0.2,0.8,1\n0.7,0.3,0\n")
    reason, _, details = run("measure", path, "--scores", "nope").err.splitlines()
    assert reason == f"error: {path}: there is no 'nope' to hold the scores"
    assert details == "details: found 'p0', 'p1', 'y'"


# --- the verbs


@pytest.mark.parametrize("name", ["test.npz", "probs.csv", "top.csv"])
def test_measure(run, folder, name):
    outcome = run("measure", folder / name, *FEW)
    assert (outcome.code, outcome.err) == (0, "")
    assert "ECE" in outcome.out
    assert plain(outcome.out)
    document = json.loads(run("measure", folder / name, *FEW, "--json", "-").out)
    assert document["n"] == 400
    assert document["metrics"]["ece"]["floor"] > 0
    assert document["file"] == str(folder / name)
    skipped = {entry["metric"] for entry in document["skipped"]}
    assert ({"nll", "brier"} <= skipped) == (name == "top.csv")


def test_measure_is_the_same_in_all_forms(run, folder):
    values = [
        json.loads(run("measure", folder / name, *FEW, "--json", "-").out)["metrics"]["ece"][
            "value"
        ]
        for name in ("test.npz", "probs.csv", "top.csv")
    ]
    np.testing.assert_allclose(values, values[0], rtol=1e-9)


def test_measure_with_options(run, folder, tmp_path):
    out = tmp_path / "result.json"
    arguments = ["measure", folder / "test.npz", "--metrics", "nll, ece", "--level", "0.5"]
    outcome = run(*arguments, *FEW, "--seed", "3", "--json", out)
    assert outcome.code == 0
    assert "ECE" in outcome.out  # the table still goes to stdout
    document = json.loads(out.read_text())
    assert list(document["metrics"]) == ["nll", "ece"]
    assert document["level"] == 0.5
    again = json.loads(run(*arguments, *FEW, "--seed", "3", "--json", "-").out)
    other = json.loads(run(*arguments, *FEW, "--seed", "4", "--json", "-").out)
    assert again == document
    assert other["metrics"]["ece"]["low"] != document["metrics"]["ece"]["low"]


@pytest.mark.parametrize("method", METHODS)
def test_fit_and_apply(run, folder, tmp_path, method):
    saved, out = tmp_path / "c.safetensors", tmp_path / "calibrated.npz"
    words = ("--method", method, "--no-worth", "--out", saved, "--json", "-")
    fitted = run("fit", folder / "val.npz", *words)
    assert (fitted.code, fitted.err) == (0, "")
    document = json.loads(fitted.out)
    assert document["method"] == method
    assert document["n"] == 400
    assert document["fit"]["n"] == 400
    assert document["arguments"] == load(saved).get_params()
    assert document["keeps_prediction"] == load(saved).keeps_prediction
    applied = run("apply", saved, folder / "test.npz", "--out", out)
    assert (applied.code, applied.err) == (0, "")
    written = read_predictions(out)
    assert written.kind == "probs"
    test = read_predictions(folder / "test.npz")
    np.testing.assert_array_equal(
        written.scores, load(saved).predict_proba(test.logits, test.features)
    )
    np.testing.assert_array_equal(written.labels, test.labels)


FEATURE_METHODS = [name for name, kind in METHODS.items() if kind.needs]


@pytest.fixture(scope="module")
def sample_folder(tmp_path_factory) -> Path:
    """Some rows of the sample: val.npz, and test rows without labels in every format."""
    place = tmp_path_factory.mktemp("sample")
    write_predictions(load_sample("validation").take(np.arange(500)), place / "val.npz")
    test = load_sample("test").take(np.arange(80))
    # Text has no float16, and CSV gives back float64.
    test = replace(test, scores=test.scores.astype(float), features=test.features.astype(float))
    write_predictions(test, place / "labelled.npz")
    for extension in ("npz", "csv", "parquet", "safetensors"):
        write_predictions(replace(test, known_labels=None), place / f"new.{extension}")
    return place


@pytest.mark.parametrize("method", ["temperature", *FEATURE_METHODS])
def test_rows_without_labels_are_calibrated(run, sample_folder, tmp_path, method):
    saved = tmp_path / "c.safetensors"
    words = ("--method", method, "--no-worth", "--out", saved)
    assert run("fit", sample_folder / "val.npz", *words).code == 0
    expected = tmp_path / "expected.npz"
    assert run("apply", saved, sample_folder / "labelled.npz", "--out", expected).code == 0
    for extension in ("npz", "csv", "parquet", "safetensors"):
        out = tmp_path / f"out.{extension}"
        outcome = run("apply", saved, sample_folder / f"new.{extension}", "--out", out)
        assert (outcome.code, outcome.err) == (0, ""), extension
        assert "80 rows" in outcome.out
        with pytest.raises(PredictionsError, match="there is no 'labels' or 'label'"):
            read_predictions(out)
        written = read_predictions(out, labelled=False)
        assert written.known_labels is None
        np.testing.assert_allclose(
            written.scores, read_predictions(expected).scores, rtol=1e-12, err_msg=extension
        )
    assert read_predictions(expected).labels.shape == (80,)


def test_other_verbs_demand_labels(run, sample_folder, tmp_path):
    new = sample_folder / "new.npz"
    for arguments in (
        ["measure", new],
        ["fit", new, "--out", tmp_path / "x.safetensors"],
        ["compare", new],
        ["compare", "--fit", sample_folder / "val.npz", "--test", new],
    ):
        assert_refused(run(*arguments), "new.npz: there is no 'labels' or 'label'")


def test_what_a_method_lacks_is_said(run, sample_folder, folder, tmp_path):
    bare, saved = tmp_path / "bare.npz", tmp_path / "c.safetensors"
    logits = load_sample("validation").logits[:50]
    np.savez(bare, logits=logits, labels=load_sample("validation").labels[:50])
    fit = ["fit", bare, "--method", "dac", "--out", saved]
    assert_refused(run(*fit), "method 'dac'", "features of shape (N, D)", "bare.npz has no")
    fit = ["fit", sample_folder / "val.npz", "--method", "dac", "--out", saved]
    assert run(*fit).code == 0
    apply = ["apply", saved, bare, "--out", tmp_path / "o.npz"]
    assert_refused(run(*apply), "method 'dac'", "bare.npz has no 'features'")
    np.savez(bare, logits=logits, features=np.zeros((50, 3)))
    assert_refused(run(*apply), "fitted for 64 features", "bare.npz has 3")


def test_fit_with_settings(run, folder, tmp_path):
    out = tmp_path / "h.safetensors"
    arguments = ["--method", "histogram", "--set", "n_bins=4", "--set", "strategy=uniform"]
    outcome = run("fit", folder / "val.npz", *arguments, "--out", out)
    assert outcome.code == 0
    assert "4 parameters, 0 iterations; keeps every predicted class" in outcome.out
    params = load(out).get_params()
    settings = {"n_bins": 4, "strategy": "uniform"}
    assert params == {"form": "top-label", "prior_strength": 2.0, **settings}


def test_fit_averages_methods_and_says_why(run, folder, tmp_path):
    out, settings = tmp_path / "a.safetensors", ["--set", "candidates=ets, top-rest,svs"]
    settings += ["--set", "same_prediction=True", "--no-worth"]
    outcome = run("fit", folder / "val.npz", *settings, "--out", out)
    assert outcome.code == 0, outcome.err
    words, chosen = " ".join(outcome.out.split()), load(out)
    methods = {name: part.method for name, part in chosen.parts().items()}
    assert all(name == method for name, method in methods.items())
    assert ("Averages " if len(methods) > 1 else "Takes ") in words
    assert all(f"{method} " in words for method in methods)
    assert "-fold cross-validation, with a held-out NLL of " in words
    assert "NLL of each, simplest first" in words
    assert "Left out svs: it may change the predicted class" in words
    assert plain(outcome.out)
    assert chosen.get_params()["candidates"] == "ets, top-rest,svs"
    assert chosen.get_params()["same_prediction"] is True
    document = json.loads(
        run("fit", folder / "val.npz", *settings, "--out", out, "--json", "-").out
    )
    assert document["method"] == "auto"
    assert document["parts"] == methods
    assert run("apply", out, folder / "test.npz", "--out", tmp_path / "b.npz").code == 0
    test, written = (
        read_predictions(folder / "test.npz"),
        read_predictions(tmp_path / "b.npz"),
    )
    np.testing.assert_array_equal(written.scores, chosen.predict_proba(test.logits))


def test_warnings_go_to_stderr_in_one_line(run, folder, tmp_path, labelled_logits):
    logits, _ = labelled_logits(50, 3)
    write_predictions(Predictions.from_logits(logits, logits.argmax(axis=1)), tmp_path / "easy.npz")
    outcome = run(
        "fit",
        tmp_path / "easy.npz",
        "--method",
        "temperature",
        "--out",
        tmp_path / "a.safetensors",
        "--json",
        "-",
    )
    assert outcome.code == 0
    assert outcome.err.startswith("warning: all 50 calibration rows")
    assert outcome.err.count("\n") == 1
    assert json.loads(outcome.out)["fit"]["notes"]


def test_compare_two_files(run, folder, tmp_path):
    arguments = ["compare", "--fit", folder / "val.npz", "--test", folder / "test.npz", *FEW]
    outcome = run(*arguments, "--json", tmp_path / "compared.json")
    assert (outcome.code, outcome.err) == (0, "")
    assert plain(outcome.out)
    shown = re.findall(r"^([a-z-]+)\*? +[\d.]+\+? +\d", outcome.out, flags=re.M)
    assert len(shown) < len(METHODS) / 2
    quick = set(METHODS) - {"auto", "group", "given-groups", "pts", "cts"}
    every = run(*arguments, "--methods", ",".join(quick), "--all").out
    assert set(re.findall(r"^([a-z-]+)\*? +[\d.]+\+? +\d", every, flags=re.M)) == quick
    document = json.loads((tmp_path / "compared.json").read_text())
    assert {m["method"] for m in document["methods"]} == set(METHODS)
    assert document["fit"] == str(folder / "val.npz")
    assert document["test"] == str(folder / "test.npz")
    assert document["best"] in METHODS


def test_compare_one_file(run, folder):
    base = ["compare", folder / "test.npz", "--methods", "none, temperature", *FEW, "--json", "-"]
    for size, rows in (("0.25", 100), ("150", 150)):
        document = json.loads(run(*base, "--fit-size", size, "--stratify").out)
        assert (document["fit_rows"], document["test_rows"]) == (rows, 400 - rows)
        assert [m["method"] for m in document["methods"]] in (
            ["temperature", "none"],
            ["none", "temperature"],
        )


FEWER = "none,temperature,smart,isotonic"


def test_report_pages(run, folder, tmp_path):
    pytest.importorskip("calibrant.report", reason="the report is not there")
    for arguments in (
        ["measure", folder / "test.npz"],
        ["compare", "--fit", folder / "val.npz", "--test", folder / "test.npz", "--methods", FEWER],
    ):
        page = tmp_path / f"{arguments[0]}.html"
        outcome = run(*arguments, *FEW, "--report", page, "--json", "-")
        assert (outcome.code, outcome.err) == (0, "")
        json.loads(outcome.out)
        assert "</html>" in page.read_text(encoding="utf-8")


def test_demo(run, tmp_path):
    pytest.importorskip("calibrant.report", reason="the report is not there")
    out = tmp_path / "new" / "demo"
    outcome = run("demo", "--out", out)
    assert (outcome.code, outcome.err) == (0, "")
    assert plain(outcome.out)
    verdict = re.search(r"^Use .*?(?=\n\n)", outcome.out, flags=re.M | re.S)
    assert verdict
    page = ROOT / "docs/appendix/verdict.md"
    assert verdict.group() in page.read_text(encoding="utf-8")
    assert sorted(p.name for p in out.iterdir()) == [
        "calibrator.safetensors",
        "comparison.json",
        "report.html",
    ]
    document = json.loads((out / "comparison.json").read_text())
    ece = {m["method"]: m["metrics"]["ece"]["value"] for m in document["methods"]}
    assert ece["smart"] < ece["temperature"] < ece["none"]
    saved = load(out / "calibrator.safetensors")
    assert verdict.group().startswith((f"Use {saved.method}.", f"Use {saved.method}, but"))
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "</html>" in page
    classes = page.split('id="classes-table"')[1].split("</table>")[0]
    assert re.findall('<th scope="row">(.*?)</th>', classes) == list(CLASS_NAMES)
    assert len(page.encode()) < 1_000_000


# --- refusals


def write_npz(path: Path, **arrays: object) -> Path:
    np.savez(path, **{k: np.asarray(v) for k, v in arrays.items()})
    return path


BAD_FILES = {
    "no such file": (lambda p: p / "missing.npz", ["missing.npz", "no such file"]),
    "bad key": (
        lambda p: write_npz(p / "k.npz", scores=[[1.0, 2]], labels=[0]),
        ["k.npz", "'logits'", "found 'scores', 'labels'"],
    ),
    "NaN": (
        lambda p: write_npz(p / "n.npz", logits=[[1, 2], [3, np.nan]], labels=[0, 1]),
        ["n.npz", "row 1, column 1 holds nan"],
    ),
    "infinity": (
        lambda p: write_npz(p / "n.npz", logits=[[1, 2], [-np.inf, 2]], labels=[0, 1]),
        ["n.npz", "'logits' must leave every row at least 2 classes", "row 1 has 1"],
    ),
    "label out of range": (
        lambda p: write_npz(p / "l.npz", logits=[[1.0, 2], [3, 4]], labels=[0, 2]),
        ["l.npz", "row 1 holds 2"],
    ),
    "label not whole": (
        lambda p: write_npz(p / "l.npz", logits=[[1.0, 2], [3, 4]], labels=[0.5, 1]),
        ["l.npz", "row 0 holds 0.5"],
    ),
    "lengths differ": (
        lambda p: write_npz(p / "l.npz", logits=[[1.0, 2], [3, 4]], labels=[0]),
        ["l.npz", "1 entries"],
    ),
    "rows that do not sum to one": (
        lambda p: write_npz(p / "p.npz", probs=[[0.5, 0.5], [0.5, 0.6]], labels=[0, 1]),
        ["p.npz", "row 1 sums to 1.1"],
    ),
    "empty": (
        lambda p: write_npz(p / "e.npz", logits=np.empty((0, 2)), labels=np.empty(0, dtype=int)),
        ["e.npz", "N >= 1"],
    ),
    "pickle": (lambda p: p / "x.pkl", ["x.pkl", "pickles are refused"]),
    "unknown format": (lambda p: p / "x.txt", ["x.txt", "'.txt' is unknown"]),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_files_are_refused(run, folder, tmp_path, case):
    make, words = BAD_FILES[case]
    file, out = make(tmp_path), tmp_path / "out.safetensors"
    assert_refused(run("measure", file), *words)
    assert_refused(run("measure", file, "--json", "-"), *words)
    assert_refused(run("fit", file, "--out", out), *words)
    assert_refused(run("compare", "--fit", folder / "val.npz", "--test", file), *words)
    assert_refused(
        run("apply", folder / "saved.safetensors", file, "--out", tmp_path / "o.npz"), *words
    )
    assert not out.exists()
    assert not (tmp_path / "o.npz").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["measure", "test.npz", "--metrics", "luck"], ["no metric is called 'luck'"]),
        (["measure", "test.npz", "--kind", "luck"], ["kind must be one of"]),
        (["measure", "test.npz", "--are", "probs"], ["there is no 'probs'"]),
        (["measure", "test.npz", "--kind", "probs"], ["kind must be one of", "--are probs"]),
        (
            ["fit", "test.npz", "--logits-key", "z", "--out", "x.safetensors"],
            ["--logits-key is now --scores NAME --are logits", "see calibrant fit --help"],
        ),
        (["measur", "test.npz"], ["no command is called 'measur'; did you mean 'measure'?"]),
        (["measure", "test.npz", "--resamples", "1"], ["resamples"]),
        (["measure", "test.npz", "--level", "2"], ["level"]),
        (["measure", "test.npz", "--seed", "-1"], ["seed"]),
        (["measure", "test.npz", "--json", "missing/x.json"], ["folder", "missing"]),
        (["fit", "val.npz", "--method", "magic", "--out", "x.safetensors"], ["'magic'", "smart"]),
        (
            ["fit", "val.npz", "--method", "smrt", "--out", "x.safetensors"],
            ["did you mean 'smart'"],
        ),
        (["fit", "val.npz", "--set", "luck=3", "--out", "x.safetensors"], ["no argument 'luck'"]),
        (["fit", "val.npz", "--set", "n_bins", "--out", "x.safetensors"], ["key=value"]),
        (
            [*SMART, "--set", "n_bins=x", "--out", "x.safetensors"],
            ["'n_bins'", "a whole number"],
        ),
        ([*SMART, "--set", "n_bins=0", "--out", "x.safetensors"], ["n_bins"]),
        (
            [*SMART, "--set", "objective=x", "--out", "x.safetensors"],
            ["objective"],
        ),
        ([*SMART, "--set", "width=nan", "--out", "x.safetensors"], ["width"]),
        (["fit", "val.npz", "--set", "same_prediction=1", "--out", "x.safetensors"], ["true or"]),
        (["fit", "val.npz", "--set", "candidates=ets,x", "--out", "x.safetensors"], ["'x'"]),
        (["fit", "val.npz", "--set", "seed=-1", "--out", "x.safetensors"], ["seed"]),
        (["fit", "val.npz", "--out", "missing/x.safetensors"], ["folder", "missing"]),
        (["fit", "val.npz", "--out", "x.pkl"], [".safetensors"]),
        (
            ["fit", "top.csv", "--method", "svs", "--out", "x.safetensors"],
            ["top.csv", "every class"],
        ),
        (
            ["apply", "saved.safetensors", "wide.npz", "--out", "x.npz"],
            ["4 classes", "6 classes", "wide.npz"],
        ),
        (["apply", "saved.safetensors", "val.npz", "--out", "val.npz"], ["val.npz", "is read"]),
        (["measure", "val.npz", "--json", "val.npz"], ["val.npz", "is read"]),
        (["compare", "val.npz", "--fit-size", "1.5"], ["whole number"]),
        (["compare", *TWO_SETS, "--fit-size", "100"], ["--fit-size", "split one file"]),
        (["compare", *TWO_SETS, "--stratify"], ["--stratify", "split one file"]),
        (["apply", "saved.safetensors", "top.csv", "--out", "x.npz"], ["top.csv", "every class"]),
        (["apply", "saved.safetensors", "test.npz", "--out", "missing/x.npz"], ["folder"]),
        (["apply", "saved.safetensors", "test.npz", "--out", "x.pt"], ["'.pt' is unknown"]),
        (["apply", "saved.safetensors", "test.npz", "--out", "x"], ["without extension"]),
        (["apply", "missing.safetensors", "test.npz", "--out", "x.npz"], ["no such file"]),
        (["apply", "test.npz", "test.npz", "--out", "x.npz"], ["not a readable safetensors"]),
        (["compare"], ["either one FILE"]),
        (["compare", "test.npz", "--fit", "val.npz"], ["either one FILE"]),
        (["compare", "--fit", "val.npz"], ["either one FILE"]),
        (["compare", "--fit", "val.npz", "--test", "wide.npz"], ["4 classes", "6"]),
        (["compare", "test.npz", "--methods", "magic"], ["'magic'"]),
        (["compare", "test.npz", "--methods", ","], ["at least one method"]),
        (["compare", "test.npz", "--rank-by", "luck"], ["'luck'"]),
        (["compare", "test.npz", "--fit-size", "400"], ["can't split"]),
        (["compare", "test.npz", "--fit-size", "0"], ["can't split"]),
        (["compare", "test.npz", "--fit-size", "-3"], ["can't split"]),
        (["compare", "test.npz", "--fit-size", "nan"], ["can't split"]),
        (["compare", "test.npz", "--fit-size", "inf"], ["can't split"]),
        (["compare", "test.npz", "--seed", "-1"], ["seed"]),
        (["compare", "top.csv", "--methods", "svs"], ["top.csv", "every class"]),
        (["demo", "--out", "val.npz"], ["val.npz", "can't make this folder"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_bad_arguments_are_refused(run, folder, monkeypatch, arguments, words):
    before = sorted(folder.iterdir())
    monkeypatch.chdir(folder)
    assert_refused(run(*arguments), *words)
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["measure"], ["argument"]),
        (["measure", "test.npz", "--luck"], ["--luck"]),
        (["measure", "test.npz", "--resamples", "many"], ["--resamples"]),
        (["fit", "val.npz"], ["--out"]),
        (["magic"], ["magic"]),
        (["demo"], ["--out"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_usage_ends_with_code_2(run, folder, monkeypatch, arguments, words):
    monkeypatch.chdir(folder)
    outcome = run(*arguments)
    assert outcome.code == 2
    assert outcome.out == ""
    for word in words:
        assert word in outcome.err


# --- help, version, and a process of its own


def test_help_and_version(run):
    outcome = run("--version")
    assert outcome.code == 0
    assert outcome.out.startswith("calibrant ")
    for verb in ("measure", "fit", "apply", "compare", "demo"):
        assert verb in run("--help").out
        outcome = run(verb, "--help")
        assert outcome.code == 0
        assert "--json" in outcome.out


@pytest.mark.parametrize("verb", ["measure", "fit", "apply", "compare", "decide", "monitor"])
def test_a_short_help_names_the_options_that_the_whole_one_explains(run, verb):
    short, whole = run(verb, "--help").out, run(verb, "--help-all").out
    explained = set(re.findall(r"^  (?:-h, )?(--[a-z-]+)", whole, re.MULTILINE))
    assert len(explained) > 20
    assert explained <= set(re.findall(r"--[a-z-]+", short))
    lines = short.splitlines()
    assert len(lines) < 0.65 * len(whole.splitlines())
    assert max(map(len, whole.splitlines())) <= 80
    assert len(lines) <= 42  # a screen


def in_a_process(*arguments: object) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "COLUMNS")}
    return subprocess.run(
        [sys.executable, "-m", "calibrant", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=environment,
    )


def test_as_a_module_with_piped_output(folder):
    files = ("--fit", folder / "val.npz", "--test", folder / "test.npz")
    done = in_a_process("compare", *files, "--methods", FEWER, *FEW, "--json", "-")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["best"] in METHODS
    done = in_a_process("measure", folder / "test.npz", *FEW)
    assert (done.returncode, done.stderr) == (0, "")
    assert plain(done.stdout)
    done = in_a_process("measure", folder / "missing.npz")
    assert_refused(Outcome(done.returncode, done.stdout, done.stderr), "missing.npz")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("measure a.npz --report gone/a.html", "the folder {}/gone doesn't exist"),
        ("measure a.npz --json gone/a.json", "the folder {}/gone doesn't exist"),
        ("fit a.npz --out gone/a.safetensors", "the folder {}/gone doesn't exist"),
        ("fit a.npz --out a.bin", "a calibrator is saved as .safetensors"),
        ("apply a.safetensors a.npz --out gone/a.npz", "the folder {}/gone doesn't exist"),
        ("compare a.npz --report gone/a.html", "the folder {}/gone doesn't exist"),
        ("compare a.npz b.npz --table gone/a.md", "the folder {}/gone doesn't exist"),
        ("export a.safetensors --out gone/a.onnx", "the folder {}/gone doesn't exist"),
        ("head run --out gone/a.safetensors", "the folder {}/gone doesn't exist"),
        ("head --train a.npz --test b.npz --out a.bin", "a head is saved as .safetensors"),
        ("monitor a.jsonl --state gone/a.json", "the folder {}/gone doesn't exist"),
        ("study run fedlas --table gone/a.md", "the folder {}/gone doesn't exist"),
        ("train --data a --out run --json gone/a.json", "the folder {}/gone doesn't exist"),
    ],
)
def test_where_an_output_can_not_go_is_said_before_any_work(
    run, tmp_path, monkeypatch, words, sentence
):
    monkeypatch.chdir(tmp_path)
    outcome = run(*words.split())  # none of the inputs is there, and none is asked for
    assert (outcome.code, outcome.out) == (2, "")
    assert sentence.format(tmp_path) in outcome.err


def test_an_output_may_lie_in_the_folder_that_a_run_makes(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = run("train", "--data", "gone", "--out", "run", "--json", "run/all.json")
    assert "gone: there is no such file or folder" in said.err
