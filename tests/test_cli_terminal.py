"""The command line as a person meets it: alone, on a terminal, on a run, by groups with a page."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrant.cli.app import run
from calibrant.cli.output import has_colours, painted, painted_sentence
from calibrant.files import write_predictions
from calibrant.predictions.predictions import Predictions

Spoken = Callable[..., tuple[int, str, str]]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def speak(capsys: pytest.CaptureFixture[str]) -> Spoken:
    def call(*words: object) -> tuple[int, str, str]:
        code = run(["calibrant", *map(str, words)])
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def a_run(tmp_path: Path, labelled_logits: Callable[..., Any]) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    for seed, name in enumerate(("val", "test")):
        rows = Predictions.from_logits(*labelled_logits(300, 4, seed=seed))
        write_predictions(rows, folder / f"{name}.npz")
    return folder


def test_the_program_alone_shows_its_help(speak: Spoken) -> None:
    code, out, errors = speak()
    assert (code, errors) == (0, "")
    for verb in ("measure", "compare", "methods"):
        assert verb in out


def test_a_run_is_measured_on_both_of_its_files(speak: Spoken, a_run: Path) -> None:
    code, out, errors = speak("measure", a_run, "--resamples", 20)
    assert (code, errors) == (0, "")
    assert out.index(str(a_run / "val.npz")) < out.index(str(a_run / "test.npz"))
    found = json.loads(speak("measure", a_run, "--resamples", 20, "--json", "-")[1])
    for name in ("val", "test"):
        one = speak("measure", a_run / f"{name}.npz", "--resamples", 20, "--json", "-")[1]
        assert found[name] == json.loads(one)


def test_the_page_of_a_run_is_that_of_its_test_rows(speak: Spoken, a_run: Path) -> None:
    page = a_run / "r.html"
    assert speak("measure", a_run, "--resamples", 20, "--report", page)[0] == 0
    assert f"Calibration of {a_run / 'test.npz'}" in page.read_text(encoding="utf-8")


def test_a_run_takes_no_labels(speak: Spoken, a_run: Path) -> None:
    np.save(a_run / "y.npy", np.zeros(300, int))
    code, _, errors = speak("measure", a_run, "--labels", a_run / "y.npy")
    assert code == 2
    assert "leave out --labels" in errors


def test_a_page_shows_the_groups_that_were_asked_for(speak: Spoken, a_run: Path) -> None:
    page, words = a_run / "r.html", ("measure", a_run / "test.npz", "--by", "class")
    code, out, errors = speak(*words, "--resamples", 20, "--report", page)
    assert (code, errors) == (0, "")
    assert "4 groups by predicted class" in out
    text = page.read_text(encoding="utf-8")
    data = json.loads(text.split('type="application/json">')[1].split("</script>")[0])
    grouped = json.loads(speak(*words, "--resamples", 20, "--json", "-")[1])["groups"]
    assert data["groups"]["by"] == "predicted class"
    assert [row["name"] for row in data["groups"]["rows"]] == list(grouped)
    for row in data["groups"]["rows"]:
        assert row["value"] == grouped[row["name"]]["metrics"]["ece"]["value"]
        assert row["n"] == grouped[row["name"]]["n"]


@pytest.mark.parametrize(
    ("variables", "coloured"),
    [
        ({}, True),
        ({"NO_COLOR": "1"}, False),
        ({"NO_COLOR": ""}, True),
        ({"TERM": "dumb"}, False),
    ],
)
def test_colours_are_for_terminals_whose_user_wants_them(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], coloured: bool
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("WT_SESSION", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert has_colours(Terminal()) == coloured
    assert not has_colours(io.StringIO())
    assert not has_colours(None)
    text = "Use smart. It is best.\n\nmethod     ECE\n--------------\nsmart*    0.81"
    said = painted(text, Terminal())
    assert ("\x1b[1;32msmart\x1b[0m. It" in said) == coloured
    assert ("\x1b[1mmethod     ECE\x1b[0m\n\x1b[2m----" in said) == coloured
    assert painted(text, io.StringIO()) == text
    assert painted_sentence("error: no", Terminal()).startswith("\x1b[") == coloured
    assert painted_sentence("error: no", io.StringIO()) == "error: no"


def test_colours_leave_every_letter_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("WT_SESSION", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    text = "Use a. Why.\n\nmethod  ECE\n-----------\nsmart  0.81\n\nwarning: none"
    bare = painted(text, Terminal())
    for code in ("\x1b[1;32m", "\x1b[1m", "\x1b[2m", "\x1b[0m"):
        bare = bare.replace(code, "")
    assert bare == text


def test_the_bar_says_the_time_left_of_long_steps_within_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from calibrant.cli.output import progress

    terminal, clock = Terminal(), [0.0]
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    with progress(None, "smart-table-1", remaining=True) as step:
        step("reading")
        clock[0] += 100  # doesn't count
        step("", 10, 14)  # ten were there
        for done in (11, 12):
            clock[0] += 90
            step("a-network-with-a-long-name, a-method-with-a-long-name, seed [3]", done, 14)
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.getvalue())
    lines = [line.rstrip() for line in re.split(r"[\r\n]", plain) if "12/14" in line]
    assert "left 0:03:00" in lines[-1]
    assert lines[-1].endswith("…")
    assert len(lines[-1]) <= 80


@pytest.mark.parametrize("columns", [60, 80])
def test_what_an_epoch_came_to_is_read_whole_on_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    pytest.importorskip("lightning")
    from calibrant.cli.output import progress
    from calibrant.training.run import Announcer
    from calibrant.training.run.folder import Progress

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    with progress(None, "training", remaining=True) as say:
        announcer, run = Announcer(350, say), Progress()
        announcer.on_start(352)
        announcer.on_step(run)
        run.epoch, run.step = 149, 300
        run.history.append({"epoch": 149, "train_loss": 1.23456, "validation_accuracy": 0.4567})
        announcer.on_step(run)
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.getvalue())
    lines = [line.rstrip() for line in re.split(r"[\r\n]", plain)]
    assert "epoch 149: training loss 1.235, validation accuracy 45.7%" in lines
    assert any("52748/123200" in line for line in lines)
    assert max(map(len, lines)) <= columns
