"""The command line on many files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_cli import Outcome

import calibrant as cb
from calibrant.cli.app import run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four files in the working folder's `shards`, of ten classes."""
    monkeypatch.chdir(tmp_path)
    test = cb.load_sample("test")
    (tmp_path / "shards").mkdir()
    for i in range(4):
        cb.write_predictions(test.take(slice(500 * i, 500 * (i + 1))), tmp_path / f"shards/{i}.npz")
    return tmp_path


def call(capsys: pytest.CaptureFixture[str], *words: str) -> Outcome:
    code = run(["calibrant", *words])
    out, err = capsys.readouterr()
    return Outcome(code, out, err)


def test_measure_takes_a_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--metrics", "ece,nll,skce", "--resamples", "50", "--workers", "1", "--json", "-")
    found = json.loads(call(capsys, "measure", "shards", *words).out)
    assert (found["n"], found["shards"]) == (2000, 4)
    assert found["metrics"]["skce"] is None
    whole = cb.evaluate(cb.load_sample("test").take(slice(0, 2000)), metrics=["ece"], resamples=2)
    assert found["metrics"]["ece"]["value"] == pytest.approx(whole["ece"].value, abs=1e-12)


def test_measure_takes_groups_and_several_files(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--by", "class", "--resamples", "20", "--workers", "1")
    done = call(capsys, "measure", "shards/0.npz", "shards/*3.npz", *words)
    assert done.code == 0, done.err
    assert "10 groups by predicted class" in done.out


def test_several_files_are_one_set_for_measure_and_several_for_compare_unless_asked(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ("shards/0.npz", "shards/1.npz")
    drawn = ("--metrics", "ece", "--resamples", "20")
    one = call(capsys, "measure", *files, *drawn, "--workers", "1")
    assert "1000 rows" in one.out
    assert "2 arguments, one set of rows; --each measures each by itself." in one.out
    each = call(capsys, "measure", *files, *drawn, "--each", "--json", "-")
    found = json.loads(each.out)
    assert {name: measured["n"] for name, measured in found.items()} == dict.fromkeys(files, 500)
    alone = json.loads(call(capsys, "measure", files[1], *drawn, "--json", "-").out)
    assert found[files[1]] == alone
    for words, odd in ((("shards",), "is neither"), ((files[0], "--report", "a.html"), "--each")):
        refused = call(capsys, "measure", *words, "--each")
        assert refused.code == 2
        assert odd in refused.err
    methods = ("--methods", "none,temperature", *drawn)
    several = call(capsys, "compare", *files, *methods)
    assert "2 data sets, each compared by itself; --pool makes one set" in several.out
    pooled = json.loads(call(capsys, "compare", *files, *methods, "--pool", "--json", "-").out)
    assert pooled["fit_rows"] + pooled["test_rows"] == 1000


def test_fit_and_apply_take_a_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--method", "temperature", "--out", "t.safetensors", "--workers", "1")
    done = call(capsys, "fit", "shards", *words)
    assert "temperature fitted on 2000 rows of shards" in done.out
    words = ("--out", "calibrated", "--workers", "1")
    assert "4 files written" in call(capsys, "apply", "t.safetensors", "shards", *words).out
    assert "4 there before" in call(capsys, "apply", "t.safetensors", "shards", *words).out
    done = call(
        capsys, "fit", "shards", "--method", "vector", "--sample", "900", "--out", "v.safetensors"
    )
    assert "uniform sample of 900 of 2000 rows" in " ".join(done.out.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["measure", "shards", "--by", "label", "--cluster", "labels"],
            "either groups or clusters",
        ),
        (
            ["compare", "--fit", "shards", "--test", "shards", "--cluster", "labels"],
            "for intervals only",
        ),
        (["fit", "shards", "--out", "t.safetensors", "--cluster", "labels"], "for intervals only"),
        (["measure", "shards", "--engine", "spark"], "engine must be one of processes, dask"),
        (["measure", "nowhere/*.npz"], "no file of predictions matches this pattern"),
        (["measure", "shards", "--json", "shards/0.npz"], "is read by this command"),
        (["fit", "shards", "--out", "a.bin"], "a calibrator is saved as .safetensors"),
        (["measure", "shards", "--scores", "z"], "there is no 'z'"),
        (["compare", "--fit", "shards", "--test", "shards", "--scores", "z"], "there is no 'z'"),
    ],
)
def test_what_goes_with_one_file_only_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    done = call(capsys, *words)
    assert done.code == 2
    assert message in done.err


def test_a_page_of_many_files_shows_groups(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--by", "class", "--resamples", "20", "--workers", "1", "--report", "page.html")
    done = call(capsys, "measure", "shards", *words)
    assert done.code == 0, done.err
    assert "predicted class" in (folder / "page.html").read_text(encoding="utf-8")


def test_compare_samples_shards(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (
        "--methods",
        "none,temperature",
        "--metrics",
        "ece",
        "--resamples",
        "20",
        "--json",
        "-",
    )
    done = call(capsys, "compare", "--fit", "shards", "--test", "shards/0.npz", *words)
    assert done.code == 0, done.err
