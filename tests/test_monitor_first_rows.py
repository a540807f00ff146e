"""The first rows of a monitor's lines are looked at as those of files are."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calibrant as cb
from calibrant.cli import main
from calibrant.monitor import streams
from calibrant.monitor.monitor import Monitor
from calibrant.monitor.rows import Reading
from calibrant.monitor.streams import feed

CLASSES = 6
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch, capsys, tmp_path) -> Run:
    """Run `calibrant monitor` in this process, in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["calibrant", "monitor", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        assert isinstance(ended.value.code, int)
        return ended.value.code, *capsys.readouterr()

    return call


def predicted(n: int = 400, most: int = CLASSES) -> tuple[Any, Any]:
    """Return (n, K) logits and labels that they foresee well, below `most`."""
    rng = np.random.default_rng(0)
    logits = 2.5 * rng.normal(size=(n, CLASSES))
    logits[:, most:] -= 20
    return logits, (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)


def probs_of(logits: Any) -> Any:
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    return odds / odds.sum(axis=1, keepdims=True)


def written(name: str, **columns: Any) -> str:
    lists = [np.asarray(column).tolist() for column in columns.values()]
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True)]
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return name


def warned(err: str) -> list[str]:
    return [line for line in err.splitlines() if line.startswith("warning")]


def test_probabilities_under_the_name_of_logits_are_refused_before_they_are_counted(run, tmp_path):
    logits, labels = predicted()
    rows = written("rows.jsonl", logits=probs_of(logits), label=labels)
    code, _, err = run(rows, "--state", "state", "--skip-broken")
    assert code == 2
    assert "every row of 'logits' lies in [0, 1] and sums to 1" in err
    line = "calibrant monitor rows.jsonl --state state --skip-broken --scores logits --are probs"
    assert line in err
    assert not Path("state").exists()
    as_probs = json.loads(run(rows, "--scores", "logits", "--are", "probs", "--json", "-")[1])
    honest = written("honest.jsonl", probs=probs_of(logits), label=labels)
    assert as_probs["level"] == json.loads(run(honest, "--json", "-")[1])["level"]
    # Whoever says that they are logits is believed.
    code, _, err = run(rows, "--scores", "logits", "--are", "logits")
    assert code in (0, 3)
    assert not warned(err)


@pytest.mark.parametrize("most", [CLASSES, CLASSES - 1])
def test_labels_that_count_from_1_are_refused_and_read_once_that_is_said(run, tmp_path, most):
    logits, labels = predicted(most=most)
    rows = written("rows.jsonl", logits=logits, label=labels + 1)
    code, _, err = run(rows)
    assert code == 2
    assert "--labels-from 1" in err
    from_1 = json.loads(run(rows, "--labels-from", "1", "--json", "-")[1])
    from_0 = json.loads(run(written("0.jsonl", logits=logits, label=labels), "--json", "-")[1])
    assert from_1["windows"] == from_0["windows"]
    # The confidence of a class, which is counted from 0, beside the true one.
    top = {"confidence": probs_of(logits).max(axis=1), "predicted": logits.argmax(axis=1)}
    code, _, err = run(written("top.jsonl", **top, label=labels + 1))
    assert code == 2
    assert "they count from 1 (--labels-from 1" in err


def test_labels_that_come_late_are_looked_at_too(run, tmp_path):
    logits, labels = predicted()
    ids = [f"row-{i}" for i in range(len(labels))]
    said = written("said.jsonl", id=ids, logits=logits)
    lines = written("outcomes.jsonl", id=ids, label=labels + 1)
    table = "\n".join(["id,label", *(f"{i},{y + 1}" for i, y in zip(ids, labels, strict=True))])
    Path("outcomes.csv").write_text(table)
    for outcomes in (lines, "outcomes.csv"):
        code, _, err = run(said, "--outcomes", outcomes)
        assert code == 2
        assert "they count from 1" in err, outcomes
        found = json.loads(
            run(said, "--outcomes", outcomes, "--labels-from", "1", "--json", "-")[1]
        )
        assert found["rows"] == len(labels)
        assert found["windows"][0]["accuracy"] == (logits.argmax(axis=1) == labels).mean()
    both = Path(said).read_text() + Path(lines).read_text()
    Path("both.jsonl").write_text(both)
    assert "they count from 1" in run("both.jsonl")[2]


@pytest.mark.parametrize("standard_input", [False, True])
def test_labels_of_other_rows_are_warned_of_once(run, tmp_path, monkeypatch, standard_input):
    logits, labels = predicted(2_000)
    rows = written("rows.jsonl", logits=logits, label=np.roll(labels, 1))
    monkeypatch.setattr(streams, "BYTES_AT_ONCE", 20_000)  # many blocks
    if standard_input:
        monkeypatch.setattr(streams.os, "read", _reader(Path(rows).read_bytes()))
        monkeypatch.setattr(streams.select, "select", lambda *_: ([0], [], []))
        rows = "-"
    code, _, err = run(rows)
    assert code == 3
    assert len(warned(err)) == 1
    assert "Labels may belong to other rows" in warned(err)[0]


def _reader(data: bytes) -> Callable[[int, int], bytes]:
    file = io.BytesIO(data)
    return lambda _, size: file.read(size)


def test_scores_of_the_other_class_are_refused(run, tmp_path):
    rng = np.random.default_rng(0)
    prob = rng.random(400)
    label = (rng.random(400) < prob).astype(int)
    code, _, err = run(written("rows.jsonl", prob=1 - prob, label=label))
    assert code == 2
    assert "the scores may be of the other class" in err


def test_rows_that_came_too_few_at_a_time_are_looked_at_with_those_before(tmp_path, recwarn):
    logits, labels = predicted(150)
    path, monitor = tmp_path / "rows.jsonl", Monitor()
    rows = [
        json.dumps({"logits": z, "label": int(y) + 1}) + "\n"
        for z, y in zip(logits.tolist(), labels, strict=True)
        if y + 1 < CLASSES
    ]
    for start in range(0, 90, 15):
        with path.open("a") as file:
            file.writelines(rows[start : start + 15])
        list(feed(monitor, [str(path)], Reading()))
    found = [str(one.message) for one in recwarn if issubclass(one.category, cb.MisreadWarning)]
    assert found  # once by each run
    assert all("begin a new state" in sentence for sentence in found)
    assert monitor.rows == 90


def test_rows_that_are_what_they_are_called_are_passed_in_silence(run, tmp_path):
    logits, labels = predicted()
    probs = probs_of(logits)
    right = logits.argmax(axis=1) == labels
    forms = {
        "logits": {"logits": logits, "label": labels},
        "probs": {"probs": probs, "label": labels},
        "rounded": {"probs": probs.round(3), "label": labels},
        "correct": {"confidence": probs.max(axis=1), "correct": right},
        "top": {"confidence": probs.max(axis=1), "predicted": logits.argmax(1), "label": labels},
        "ids": {"id": np.arange(len(labels)), "probs": probs, "correct": right},
    }
    for name, columns in forms.items():
        err = run(written(f"{name}.jsonl", **columns))[2]
        assert [line for line in warned(err) if "rounded" not in line] == [], name
        assert len(warned(err)) == (name == "rounded")
