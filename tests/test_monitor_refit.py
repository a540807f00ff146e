"""The refit at an alarm: from the scores of the latest rows where there are some."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calibrant as cb
from calibrant.cli import main
from calibrant.monitor import latest
from calibrant.monitor.monitor import Monitor
from calibrant.monitor.state_file import read_state, write_state

N, CLASSES = 700, 4
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch, capsys, tmp_path) -> Run:
    """Run `calibrant` in this process, in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["calibrant", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        assert isinstance(ended.value.code, int)
        return ended.value.code, *capsys.readouterr()

    return call


def overconfident(n: int = N, classes: int = CLASSES, seed: int = 0) -> Any:
    """Return (n, K) logits three times as large as they should be, and labels."""
    rng = np.random.default_rng(seed)
    logits = 1.5 * rng.normal(size=(n, classes))
    return 3 * logits, (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)


def written(name: str, **columns: Any) -> str:
    lists = [np.asarray(column).tolist() for column in columns.values()]
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True)]
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return name


def expected(logits: Any, labels: Any) -> Any:
    rows = cb.Predictions.from_logits(logits.astype(np.float32), labels)
    return cb.TemperatureScaling().fit_predictions(rows).temperature_


def test_the_refit_is_of_the_scores_however_the_labels_came(run, tmp_path):
    logits, labels = overconfident()
    ids = [f"r-{i}" for i in range(N)]
    rows = written("rows.jsonl", logits=logits, label=labels)
    named = written("named.jsonl", id=ids, logits=logits, label=labels)
    said = written("said.jsonl", id=ids, logits=logits)
    late = written("late.jsonl", id=ids[::-1], label=labels[::-1])
    np.savez("rows.npz", logits=logits, labels=labels)
    for place, words in enumerate([[rows], [named], [said, "--outcomes", late], ["rows.npz"]]):
        state = f"state-{place}"
        code, out, err = run("monitor", *words, "--state", state, "--refit", "temperature")
        assert code == 3, words
        refit = r"Refit on (\d+) rows with logits of 4 classes, by temperature\."
        found = re.search(refit, " ".join(out.split()))
        assert found is not None
        latest = np.arange(N)[:: -1 if late in words else 1][-int(found[1]) :]
        assert len(latest) > 0.9 * N  # those since the change
        line = json.loads(err.splitlines()[-1])
        assert line["refit_file"] == f"{state}.refit.safetensors"
        assert "temperature gains: NLL" in line["refit"]
        refit = cb.load(f"{state}.refit.safetensors")
        assert isinstance(refit, cb.TemperatureScaling)
        want = expected(logits[latest], labels[latest])
        assert refit.temperature_ == pytest.approx(want, rel=1e-4), words
    # Ready for apply, on rows as they came.
    code, _, _ = run("apply", "state-0.refit.safetensors", rows, "--out", "out.jsonl")
    assert code == 0
    after = cb.evaluate(cb.read_predictions("out.jsonl"), metrics=["ece"], resamples=5)
    assert after["ece"].at_floor


def test_a_run_that_goes_on_refits_what_one_run_would(run, tmp_path):
    logits, labels = overconfident()
    ids = np.arange(N).astype(str)
    for name, part in (("a", slice(400)), ("b", slice(400, N))):
        written(f"{name}.jsonl", id=ids[part], probs=probs_of(logits[part]), label=labels[part])
    run("monitor", "a.jsonl", "--state", "apart", "--refit", "temperature")
    run("monitor", "b.jsonl", "--state", "apart", "--refit", "temperature")
    run("monitor", "a.jsonl", "b.jsonl", "--state", "once", "--refit", "temperature")
    apart, once = (cb.load(f"{name}.refit.safetensors") for name in ("apart", "once"))
    assert isinstance(apart, cb.TemperatureScaling)
    assert isinstance(once, cb.TemperatureScaling)
    assert apart.temperature_ == once.temperature_
    # Outcomes that come in a later run meet the scores that the state kept.
    written("said.jsonl", id=ids, probs=probs_of(logits))
    written("known.jsonl", id=ids, label=labels)
    assert run("monitor", "said.jsonl", "--state", "late", "--refit", "temperature")[0] == 0
    run("monitor", "--outcomes", "known.jsonl", "--state", "late", "--refit", "temperature")
    late = cb.load("late.refit.safetensors")
    assert isinstance(late, cb.TemperatureScaling)
    assert late.temperature_ == pytest.approx(once.temperature_, rel=1e-6)


def probs_of(logits: Any) -> Any:
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    return odds / odds.sum(axis=1, keepdims=True)


def test_a_method_that_the_rows_do_not_fit_leaves_the_alarm_as_it_is(run, tmp_path):
    logits, labels = overconfident()
    said, right = probs_of(logits).max(axis=1), logits.argmax(axis=1) == labels
    rows = written("rows.jsonl", confidence=said, correct=right)
    code, out, err = run("monitor", rows, "--state", "state", "--refit", "smart")
    assert code == 3
    assert "No refit was made: method 'smart' can't be fitted" in " ".join(out.split())
    assert json.loads(err.splitlines()[-1])["refit_file"] is None
    assert not Path("state.refit.safetensors").exists()
    code, _, err = run("monitor", rows, "--state", "other", "--refit", "smrat")
    assert code == 2
    assert "smrat" in err
    assert not Path("other").exists()


def test_scores_are_kept_within_bounds_and_begin_anew_with_another_form(monkeypatch, tmp_path):
    monkeypatch.setattr(latest, "NUMBERS", 1_000)
    logits, labels = overconfident()
    monitor = Monitor()
    for start in range(0, N, 90):
        part = slice(start, start + 90)
        monitor.update(probs_of(logits[part]), labels[part])
    kept = monitor._state.scores.since(0, clustered=False)
    assert kept is not None
    assert kept.n == 1_000 // CLASSES
    assert (kept.known_labels == labels[-kept.n :]).all()
    np.testing.assert_allclose(kept.scores, probs_of(logits[-kept.n :]), rtol=1e-6)
    monitor.remember(list(range(N)), cb.Predictions.from_probs(probs_of(logits), None))
    assert len(monitor._state.scores.waiting) == 1_000 // CLASSES
    monitor.save(tmp_path / "state")
    again = Monitor.load(tmp_path / "state")
    assert list(again._state.scores.waiting) == [str(i) for i in range(N - 250, N)]
    more, truth = overconfident(250, 5)
    again.update(probs_of(more), truth)
    refit = again.refit("temperature")
    assert refit is not None
    assert refit.n_classes_ == 5


def test_refits_heed_clusters_and_replicas(tmp_path):
    logits, labels = overconfident()
    docs = np.repeat(np.arange(N // 10), 10).astype(str)
    halves = [Monitor(), Monitor()]
    for half, part in zip(halves, (slice(350), slice(350, N)), strict=True):
        half.update(probs_of(logits[part]), labels[part], clusters=docs[part].tolist())
    rows = halves[0].merge(halves[1])._state.scores.since(0, clustered=True)
    assert rows is not None
    assert rows.n == N
    assert rows.clusters is not None
    assert len(np.unique(rows.clusters)) == N // 10
    assert (rows.known_labels == labels).all()


@pytest.mark.parametrize(
    "change",
    [
        lambda header, _: header["scores"].update(kind="toplabel"),
        lambda header, _: header["scores"].update(width=1 << 40),
        lambda header, _: header["scores"].update(waiting=["a"]),
        lambda header, _: header["scores"].update(class_names=["a", "b"]),
        lambda _, arrays: arrays.update({"scores.labels": arrays["scores.labels"] + CLASSES}),
        lambda _, arrays: arrays.update({"scores.kept": arrays["scores.kept"] * 2}),
        lambda _, arrays: arrays.update({"scores.row": arrays["scores.row"] + N}),
        lambda _, arrays: arrays.pop("scores.kept"),
    ],
)
def test_scores_of_a_state_are_checked(tmp_path, change):
    logits, labels = overconfident(300)
    monitor = Monitor()
    monitor.update(probs_of(logits), labels)
    monitor.save(tmp_path / "state")
    saved = read_state(tmp_path / "state")
    arrays = {name: array.copy() for name, array in saved.arrays.items()}
    change(saved.header, arrays)
    write_state(tmp_path / "state", saved.header, arrays)
    with pytest.raises(cb.CalibrantError, match="damaged state of a monitor"):
        Monitor.load(tmp_path / "state")
