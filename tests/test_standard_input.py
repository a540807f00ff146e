"""`-` is standard input in every command that reads, so that pipes work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import calibrant as cb
from calibrant.cli.app import app
from calibrant.core.errors import InputError


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "rows.csv"
    cb.write_predictions(cb.load_sample("test").take(slice(200)), path)
    return path


def run(path: Path, *words: str, ok: bool = True):
    outcome = CliRunner().invoke(app, [*words], input=path.read_bytes())
    assert (outcome.exit_code == 0) is ok, outcome.output
    return outcome


def test_every_command_that_reads_takes_what_is_piped(source: Path, tmp_path: Path):
    fitted, out = tmp_path / "c.safetensors", tmp_path / "out.csv"
    found = run(source, "measure", "-", "--format", "csv", "--resamples", "20", "--json", "-")
    whole = cb.evaluate(cb.read_predictions(source), resamples=20)
    assert json.loads(found.output)["metrics"]["ece"]["value"] == whole["ece"].value
    assert json.loads(found.output)["file"] == "-"
    assert "- (csv)" in run(source, "inspect", "-", "--format", "csv").output.replace(".csv", "-")
    more = ("-", "--format", "csv")
    run(source, "fit", *more, "--method", "temperature", "--out", str(fitted))
    said = run(source, "apply", str(fitted), *more, "--out", str(out)).output
    assert "of -," in said
    assert cb.read_predictions(out).n == 200


def test_what_is_wrong_names_standard_input(source: Path):
    without = run(source, "measure", "-", ok=False)
    assert isinstance(without.exception, InputError)
    assert "--format npz or npy" in str(without.exception)
    source.write_text(source.read_text().replace("logit_1", "other", 1))
    wrong = run(source, "measure", "-", "--format", "csv", ok=False)
    assert str(wrong.exception).startswith("-: ")


@pytest.mark.parametrize("piped", ["--fit", "--test"])
def test_compare_takes_either_set_from_standard_input(source: Path, piped: str):
    words = ["compare", "--methods", "temperature", "--resamples", "20", "--json", "-"]
    other = source.with_name("other.csv")
    cb.write_predictions(cb.load_sample("test").take(slice(200, 400)), other)
    more = ["--format", "csv", "--test" if piped == "--fit" else "--fit", str(other)]
    found = json.loads(run(source, *words, piped, "-", *more).output)
    whole = json.loads(run(source, *words, piped, str(source), *more).output)
    (own,), (same,) = found["methods"], whole["methods"]
    assert own["metrics"] == same["metrics"]
    assert found[piped.removeprefix("--")] == "-"


def test_compare_splits_what_is_piped(source: Path):
    words = ("--methods", "temperature", "--resamples", "20", "--format", "csv")
    assert "-: fit on 100 rows, measured on" in run(source, "compare", "-", *words).output


def test_standard_input_is_named_once(source: Path):
    twice = run(source, "compare", "--fit", "-", "--test", "-", "--format", "csv", ok=False)
    assert isinstance(twice.exception, InputError)
    assert "read once" in str(twice.exception)
    twice = run(source, "measure", "-", "-", "--format", "csv", ok=False)
    assert "read once" in str(twice.exception)


def test_a_pipe_leaves_nothing_behind(source: Path, tmp_path: Path):
    place = tmp_path / "temporary"
    place.mkdir()
    words = [sys.executable, "-m", "calibrant", "measure", "-", "--format", "csv"]
    with source.open("rb") as file:
        done = subprocess.run(
            [*words, "--resamples", "20"],
            stdin=file,
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"TMPDIR": str(place)},
        )
    assert done.returncode == 0, done.stderr
    assert np.char.find(done.stdout, "-: 200 rows") >= 0
    assert not list(place.iterdir())
