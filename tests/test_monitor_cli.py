"""`calibrant monitor`: streams of every form, state, late outcomes, alarms and the page."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

import calibrant as cb
from calibrant.cli import main
from calibrant.monitor import checkpointing
from calibrant.monitor.checkpointing import Checkpoints, only_one
from calibrant.monitor.state_file import read_state

ROWS, CHANGE = 3_000, 1_500


class Said(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Said]


@pytest.fixture
def run(monkeypatch, capsys, tmp_path) -> Run:
    """Run `calibrant monitor` in this process, in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def call(*words: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["calibrant", "monitor", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert isinstance(ended.value.code, int)
        out, err = capsys.readouterr()
        return Said(ended.value.code, out, err)

    return call


def drifting(n: int = ROWS, change: int = CHANGE, slope: float = 0.3, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    odds = rng.normal(2.2, 1.6, n)
    truth = np.where(np.arange(n) < change, odds, slope * odds)
    return 1 / (1 + np.exp(-odds)), rng.random(n) < 1 / (1 + np.exp(-truth))


def lines(said, right, **more: Any) -> str:
    rows = [
        {"confidence": p, "correct": y} for p, y in zip(said.tolist(), right.tolist(), strict=True)
    ]
    for key, values in more.items():
        for row, value in zip(rows, values, strict=True):
            row[key] = value
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_the_document_is_as_promised_and_an_alarm_is_code_3(run, tmp_path):
    said, right = drifting()
    (tmp_path / "rows.jsonl").write_text(lines(said, right))
    ended = run("rows.jsonl", "--json", "-")
    found = json.loads(ended.out)
    assert ended.code == 3
    assert list(found) == ["rows", "level", "change", "windows"]
    assert list(found["level"]) == ["alarm", "row", "log_e"]
    assert list(found["change"]) == ["alarm", "row", "since"]
    plain = cb.Monitor()
    plain.update(said, right)
    assert found == plain.as_dict()
    assert found["rows"] == ROWS
    assert CHANGE < found["change"]["row"] < CHANGE + 300
    assert abs(found["change"]["since"] - CHANGE) < 200
    (tmp_path / "honest.jsonl").write_text(lines(*drifting(change=ROWS)))
    ended = run("honest.jsonl", "--json", "found.json")
    assert (ended.code, ended.err) == (0, "")
    assert "No alarm in 3000 rows" in ended.out
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["level"]["alarm"], found["level"]["row"]) == (False, None)
    assert (found["change"]["row"], found["change"]["since"]) == (None, None)


@pytest.mark.parametrize("of", [(), ("--of", "1")])
def test_logits_in_half_precision_say_what_they_are(run, tmp_path, of):
    # exp(20) is beyond float16, where sums would have three digits, too.
    rng = np.random.default_rng(0)
    logits = (20 + 2 * rng.normal(size=(600, 4))).astype(np.float16)
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    np.savez("half.npz", logits=logits, labels=labels)
    np.savez("double.npz", logits=logits.astype(np.float64), labels=labels)
    half, double = (run(f"{name}.npz", *of, "--json", "-") for name in ("half", "double"))
    assert (half.code, half.err) == (0, "")
    half, double = (json.loads(each.out)["windows"][0] for each in (half, double))
    for key, value in double.items():
        assert half[key] == pytest.approx(value, rel=1e-5, abs=1e-6), key


def test_rows_of_any_form_say_the_same(run, tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(400, 3))
    rows = cb.Predictions.from_logits(logits, rng.integers(0, 3, 400))
    probs = cb.predictions.softmax(logits)
    for name in ("rows.npz", "rows.csv", "rows.parquet", "rows.safetensors"):
        cb.write_predictions(rows, name)
    as_probs = [
        {"probs": p, "label": y} for p, y in zip(probs.tolist(), rows.labels.tolist(), strict=True)
    ]
    as_logits = [
        {"logits": z, "true_label": y}
        for z, y in zip(logits.tolist(), rows.labels.tolist(), strict=True)
    ]
    top = [
        {"confidence": max(p), "predicted": int(np.argmax(p)), "label": y}
        for p, y in zip(probs.tolist(), rows.labels.tolist(), strict=True)
    ]
    for name, content in (("a", as_probs), ("b", as_logits), ("c", top)):
        text = "\n".join(map(json.dumps, content))  # the last line has no end
        (tmp_path / f"{name}.jsonl").write_text(text)
    wanted = cb.Monitor()
    wanted.update(probs, rows.labels)
    files = ["rows.npz", "rows.csv", "rows.parquet", "rows.safetensors"]
    for name in [*files, "a.jsonl", "b.jsonl", "c.jsonl"]:
        found = json.loads(run(name, "--json", "-").out)
        assert found["rows"] == 400
        assert found["level"]["log_e"] == pytest.approx(wanted.log_e, abs=1e-6), name
    with (tmp_path / "a.jsonl").open("rb") as file:
        monkeypatch.setattr(os, "read", lambda descriptor, size: file.read(size))
        found = json.loads(run("-", "--json", "-").out)
    assert found["level"]["log_e"] == pytest.approx(wanted.log_e, abs=1e-9)


def test_one_class_against_the_others_is_watched_too(run, tmp_path):
    rng = np.random.default_rng(0)
    p = rng.uniform(0.05, 0.95, 2_000)
    label = (rng.random(2_000) < 0.7 * p).astype(int)
    cb.write_predictions(cb.Predictions.from_probs(np.stack([1 - p, p], 1), label), "rows.npz")
    rows = [{"prob": a, "label": b} for a, b in zip(p.tolist(), label.tolist(), strict=True)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    wanted = cb.Monitor()
    wanted.update(p, label)
    for words in (("rows.npz", "--of", "1"), ("rows.jsonl",)):
        ended = run(*words, "--json", "-")
        assert ended.code == 3
        assert json.loads(ended.out)["level"]["log_e"] == pytest.approx(wanted.log_e)
    assert "there is no class 2 among 2" in run("rows.npz", "--of", "2").err


def test_json_rows_of_one_score_heed_the_class_to_watch_or_refuse(run, tmp_path):
    said, right = drifting()
    labels = right.astype(int).tolist()
    rows = [{"prob": p, "label": y} for p, y in zip(said.tolist(), labels, strict=True)]
    (tmp_path / "one.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    both = [{"probs": [1 - row["prob"], row["prob"]], "label": row["label"]} for row in rows]
    (tmp_path / "two.jsonl").write_text("".join(json.dumps(row) + "\n" for row in both))
    for of in "01":
        one, two = (
            json.loads(run(f"{name}.jsonl", "--of", of, "--json", "-").out)
            for name in ("one", "two")
        )
        assert one["level"]["log_e"] == pytest.approx(two["level"]["log_e"], rel=1e-9)
        assert one["windows"][0]["confidence"] == pytest.approx(two["windows"][0]["confidence"])
    assert "there is no class 2 among 2" in run("one.jsonl", "--of", "2").err
    (tmp_path / "top.jsonl").write_text(lines(said, right))
    ended = run("top.jsonl", "--of", "1")
    assert ended.code == 2
    assert "holds the confidence of the predicted class only, not that of class 1" in ended.err


def test_what_was_counted_is_not_counted_again(run, tmp_path):
    said, right = drifting()
    file, csv = tmp_path / "rows.jsonl", tmp_path / "rows.csv"
    halves = [lines(said[:CHANGE], right[:CHANGE]), lines(said[CHANGE:], right[CHANGE:])]
    file.write_text(halves[0])
    words = ("rows.jsonl", "--state", "state", "--refit", "platt", "--json", "-")
    assert json.loads(run(*words).out)["rows"] == CHANGE
    assert json.loads(run(*words).out)["rows"] == CHANGE
    file.write_text(halves[0] + halves[1])
    whole = cb.Monitor()
    whole.update(said, right)
    assert json.loads(run(*words).out) == whole.as_dict()

    def table(n: int) -> None:
        zero = np.zeros(n, int)
        rows = cb.Predictions.from_confidence(said[:n], zero, 1 - right[:n].astype(int))
        cb.write_predictions(rows, csv)

    table(1_000)
    words = ("rows.csv", "--state", "of-csv", "--refit", "platt", "--json", "-")
    assert json.loads(run(*words).out)["rows"] == 1_000
    table(ROWS)
    assert json.loads(run(*words).out)["rows"] == ROWS
    found = json.loads(run(*words).out)
    assert found["rows"] == ROWS
    assert found["change"] == whole.as_dict()["change"]


def test_a_file_that_is_not_the_one_that_was_counted_is_refused(run, tmp_path):
    said, right = drifting(300)
    file = tmp_path / "rows.jsonl"
    file.write_text(lines(said, right))
    run("rows.jsonl", "--state", "state")
    file.write_text(lines(said[::-1], right[::-1]) * 2)
    refused = run("rows.jsonl", "--state", "state")
    assert refused.code == 2
    assert "doesn't begin as, the file of which 300 lines were counted" in refused.err
    rows = cb.Predictions.from_confidence(said, np.zeros(300, int), 1 - right.astype(int))
    cb.write_predictions(rows, "rows.npz")
    run("rows.npz", "--state", "other")
    cb.write_predictions(rows.take(np.arange(300)[::-1]), "rows.npz")
    assert "doesn't begin with the 300 rows counted" in run("rows.npz", "--state", "other").err
    cb.write_predictions(rows.take(np.arange(9)), "rows.npz")
    assert "has 9 rows, but 300 of it were" in run("rows.npz", "--state", "other").err
    other = run("rows.npz", "--state", "state", "--alpha", "0.01")
    assert "was begun with --alpha 0.05, which can't be changed" in other.err


@pytest.mark.skipif(not hasattr(os, "fork"), reason="lives are forked")
def test_a_hundred_kills_lose_no_row_and_count_none_twice(tmp_path):
    program = Path(__file__).with_name("killed_monitor.py")
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path), "100", "30"],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert json.loads(done.stdout) == [100, 3_000, True, []]


def test_an_alarm_is_a_line_of_json_a_metric_and_a_command_once(run, tmp_path):
    (tmp_path / "rows.jsonl").write_text(lines(*drifting()))
    words = ("rows.jsonl", "--state", "state", "--refit", "platt", "--metrics-out", "m.prom")
    ended = run(*words, "--on-alarm", "cat >> alarms.jsonl")
    said = [json.loads(line) for line in ended.err.splitlines()]
    told = [json.loads(line) for line in (tmp_path / "alarms.jsonl").read_text().splitlines()]
    assert said == told
    assert sorted(alarm["test"] for alarm in told) == ["change", "level"]
    for alarm in told:
        assert alarm["event"] == "calibrant_monitor_alarm"
        assert alarm["since"]["low"] <= alarm["since"]["row"] <= alarm["since"]["high"]
        assert alarm["which_way"].startswith("overconfident by")
    again = run(*words, "--on-alarm", "cat >> alarms.jsonl")
    assert (again.code, again.err) == (3, "")
    assert len((tmp_path / "alarms.jsonl").read_text().splitlines()) == 2
    metrics = (tmp_path / "m.prom").read_text()
    assert 'calibrant_monitor_alarm{test="change"} 1\n' in metrics
    assert f"calibrant_monitor_rows_total {ROWS}\n" in metrics
    number = r"[-+]?[0-9.]+(e[-+]?[0-9]+)?"
    described = set()
    for line in metrics.splitlines():
        kind = re.fullmatch(r"# (HELP|TYPE) (calibrant_monitor_[a-z0-9_]+) (.+)", line)
        if kind:
            described.add((kind[1], kind[2]))
            assert kind[1] == "HELP" or kind[3] in ("counter", "gauge")
        else:
            sample = re.fullmatch(r'([a-z0-9_]+)(\{[a-z]+="[^"]*"\})? (' + number + ")", line)
            assert sample, line
            assert {("HELP", sample[1]), ("TYPE", sample[1])} <= described


def test_a_hook_that_fails_is_told_and_the_monitor_goes_on(run, tmp_path):
    (tmp_path / "rows.jsonl").write_text(lines(*drifting()))
    ended = run("rows.jsonl", "--on-alarm", "exit 7", "--json", "-")
    assert ended.code == 3
    assert "warning: --on-alarm: 'exit 7' ended with code 7" in ended.err
    assert json.loads(ended.out)["rows"] == ROWS


def test_outcomes_come_apart_and_late(run, tmp_path):
    said, right = drifting()
    ids = [f"r{i}" for i in range(ROWS)]
    predictions = [
        json.dumps({"id": key, "confidence": p, "predicted": 1, "site": "a"})
        for key, p in zip(ids, said.tolist(), strict=True)
    ]
    outcomes = [
        json.dumps({"id": key, "label": int(y)}) for key, y in zip(ids, right.tolist(), strict=True)
    ]
    (tmp_path / "said.jsonl").write_text("\n".join(predictions))
    words = ("said.jsonl", "--state", "state", "--refit", "platt")
    first = run(*words)
    assert first.code == 0
    assert "No row with an outcome yet." in first.out
    mean = f"{100 * said.mean():.1f} %"
    assert f"{ROWS} rows without outcome: expected accuracy {mean}" in first.out
    assert "only outcomes show a change of what the inputs mean" in " ".join(first.out.split())
    (tmp_path / "known.jsonl").write_text("\n".join(outcomes * 2))
    found = json.loads(run(*words, "--outcomes", "known.jsonl", "--json", "-").out)
    whole = cb.Monitor()
    whole.update(said, right)
    assert found == whole.as_dict()
    # In a table, and mixed with the predictions in one stream.
    label = right.astype(int)
    table = ["case,label", *(f"{key},{y}" for key, y in zip(ids, label, strict=True))]
    (tmp_path / "known.csv").write_text("\n".join(table))
    zero = np.ones(ROWS, int)
    np.savez("said.npz", confidence=said, pred_label=zero, case=np.array(ids))
    apart = run("said.npz", "--id", "case", "--outcomes", "known.csv", "--json", "-", "--details")
    found = json.loads(apart.out)
    assert found["details"]["unlabelled"]["rows"] == 0
    assert found["level"]["log_e"] == pytest.approx(whole.log_e)
    # Whether it was right will do as well, whatever the class.
    table = ["case,correct", *(f"{key},{y}" for key, y in zip(ids, right, strict=True))]
    (tmp_path / "right.csv").write_text("\n".join(table))
    np.savez("said.npz", confidence=said, pred_label=7 * zero, case=np.array(ids))
    apart = run("said.npz", "--id", "case", "--outcomes", "right.csv", "--json", "-")
    assert json.loads(apart.out)["level"]["log_e"] == pytest.approx(whole.log_e)
    mixed = np.random.default_rng(0).permutation(np.array(predictions + outcomes))
    (tmp_path / "mixed.jsonl").write_text("\n".join(mixed.tolist()))
    found = json.loads(run("mixed.jsonl", "--json", "-", "--by", "site").out)
    assert found["rows"] == ROWS


@pytest.mark.parametrize("file", ["rows.csv", "rows.jsonl"])
def test_labels_under_a_name_that_nobody_gave_are_no_rows_without_labels(run, tmp_path, file):
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(4), 60).round(6).tolist()
    table = [
        {f"prob_{i}": p for i, p in enumerate(row)} | {"fold": k % 3, "gold_class": k % 4}
        for k, row in enumerate(probs)
    ]
    for row in table:
        row["prob_3"] = round(1 - sum(row[f"prob_{i}"] for i in range(3)), 6)

    def write(*leave: str) -> None:
        kept = [{k: v for k, v in row.items() if k not in leave} for row in table]
        lines = [json.dumps(row) for row in kept]
        if file.endswith(".csv"):
            lines = [",".join(map(str, row.values())) for row in kept]
            lines.insert(0, ",".join(kept[0]))
        (tmp_path / file).write_text("\n".join(lines))

    write()
    refused = run(file, "--state", "state.json")
    assert refused.code == 2
    assert "'fold', 'gold_class'" in refused.err
    line = refused.err.partition("to read it so: ")[2].splitlines()[0].split()
    assert "--labels gold_class" in " ".join(line)
    assert not Path("state.json").exists()
    right = json.loads(run(*[word.strip("'") for word in line[2:]], "--json", "-").out)
    assert right["rows"] == 60
    # A field of another name may be anything.
    write("gold_class")
    doubted = run(file)
    assert doubted.code == 0
    assert "'fold' may hold labels" in doubted.err
    assert "warning" not in run(file, "--by", "fold").err
    write("gold_class", "fold")
    assert "warning" not in run(file).err


def test_rows_without_labels_are_counted_apart(run, tmp_path):
    rng = np.random.default_rng(0)
    rows = cb.Predictions.from_logits(2 * rng.normal(size=(500, 4)), None)
    cb.write_predictions(rows, "rows.npz")
    found = json.loads(run("rows.npz", "--json", "-", "--details").out)
    assert (found["rows"], found["windows"]) == (0, [])
    unlabelled = found["details"]["unlabelled"]
    assert unlabelled["rows"] == 500
    assert unlabelled["expected_accuracy"] == pytest.approx(rows.probs.max(1).mean())
    assert unlabelled["low"] < unlabelled["expected_accuracy"] < unlabelled["high"]
    assert "what the inputs mean" in unlabelled["blind_to"]


def test_groups_by_a_column_a_key_or_the_predicted_class(run, tmp_path):
    said, right = drifting(2_000, change=0, slope=1.0)
    right = np.where(np.arange(2_000) % 4 == 3, np.random.default_rng(1).random(2_000) < 0.4, right)
    site = np.array(["n", "e", "s", "<w>"])[np.arange(2_000) % 4]
    classes = np.arange(2_000) % 4
    np.savez(
        "rows.npz", confidence=said, pred_label=classes, true_label=classes + ~right, site=site
    )
    (tmp_path / "rows.jsonl").write_text(lines(said, right, site=site.tolist()))
    for words, bad in (
        (("rows.npz", "--by", "site"), "<w>"),
        (("rows.jsonl", "--by", "site"), "<w>"),
        (("rows.npz", "--by", "class", "--n-groups", "4"), "3"),
    ):
        ended = run(*words, "--json", "-", "--details", "--report", "page.html")
        groups = json.loads(ended.out)["details"]["groups"]
        assert [group["group"] for group in groups if group["off"]] == [bad]
    page = run("rows.npz", "--by", "site", "--report", "page.html")
    head = "group  rows  first to latest"
    table = page.out[page.out.index(head) :].split("\n\n")[0].splitlines()[2:]
    assert sorted(row.split()[0] for row in table) == sorted(set(site.tolist()))
    assert sum(int(row.split()[1]) for row in table) == len(site)
    assert "Wrong by their own evidence, at 5 % for all groups together: <w>." in page.out
    text = (tmp_path / "page.html").read_text()
    assert "&lt;w&gt;" in text
    assert "<w>" not in text
    assert "there is no 'town' to group by" in run("rows.jsonl", "--by", "town").err


def test_the_page_shows_windows_change_and_words_and_loads_nothing(run, tmp_path):
    (tmp_path / "rows.jsonl").write_text(lines(*drifting(6_000, 3_000)))
    run("rows.jsonl", "--report", "page.html")
    page = (tmp_path / "page.html").read_text()
    assert page.count("<svg ") == 2
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")
    for words in (
        "The confidences have become wrong",
        "wrong since",
        "A refit on the latest",
        "Floor 95",
    ):
        assert words in page
    (tmp_path / "none.jsonl").write_text("")
    run("none.jsonl", "--report", "empty.html")
    assert "No row with an outcome yet." in (tmp_path / "empty.html").read_text()


def test_replicas_are_shown_together(run, tmp_path):
    said, right = drifting(change=0, slope=0.6)
    for k in range(2):
        (tmp_path / f"{k}.jsonl").write_text(lines(said[k::2], right[k::2]))
        run(f"{k}.jsonl", "--state", f"{k}.state", "--refit", "platt")
    ended = run("--merge", "0.state", "--merge", "1.state", "--json", "-")
    whole = cb.Monitor()
    whole.update(said, right)
    found = json.loads(ended.out)
    assert (ended.code, found["rows"]) == (3, ROWS)
    assert found["level"]["log_e"] == pytest.approx(whole.log_e)
    assert "leave out streams" in run("0.jsonl", "--merge", "0.state").err
    for words in (("--tolerance", "0.1"), ("--of", "0"), ("--follow",), ("--on-alarm", "true")):
        refused = run("--merge", "0.state", *words)
        assert (refused.code, refused.out) == (2, "")
        assert f"leave out {words[0]}" in refused.err


def test_a_growing_file_is_followed_until_nothing_comes(run, tmp_path):
    said, right = drifting(900)
    parts = [lines(said[i : i + 300], right[i : i + 300]) for i in (0, 300, 600)]
    file = tmp_path / "rows.jsonl"
    file.write_text(parts[0])

    def write() -> None:
        for part in parts[1:]:
            time.sleep(0.15)
            with file.open("a") as more:
                more.write(part[:50])
                more.flush()
                time.sleep(0.15)
                more.write(part[50:])

    writer = threading.Thread(target=write)
    writer.start()
    found = json.loads(run("rows.jsonl", "--follow", "--idle", "3", "--json", "-").out)
    writer.join()
    assert found["rows"] == 900


def test_a_file_that_is_replaced_while_it_is_followed_is_refused(tmp_path):
    from calibrant.monitor.rows import Reading
    from calibrant.monitor.streams import Following, feed

    file, monitor = tmp_path / "rows.jsonl", cb.Monitor()
    said, right = drifting(100)
    file.write_text(lines(said[:40], right[:40]))
    steps = feed(monitor, [str(file)], Reading(), follow=Following(files=True))
    next(steps)
    (tmp_path / "new").write_text(lines(said, ~right))
    (tmp_path / "new").replace(file)
    with pytest.raises(cb.InputError, match="doesn't begin as, the file of which 40 lines"):
        list(steps)
    assert monitor.rows == 40


def test_a_signal_ends_following_in_good_order(tmp_path):
    said, right = drifting(200, change=200)
    (tmp_path / "rows.jsonl").write_text(lines(said, right))
    words = ["rows.jsonl", "--follow", "--state", "state", "--json", "-", "--save-seconds", "0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "calibrant", "monitor", *words],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    while not (tmp_path / "state").exists():
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert json.loads(out)["rows"] == 200


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[1, 2]", "line 3: expected a JSON object, found '[1, 2]'"),
        ('{"confidence": 0.5', "line 3: expected a JSON object"),
        (
            '{"confidence": 1.5, "correct": true}',
            "line 3: 'confidence' must be a number from 0 to 1",
        ),
        ('{"confidence": 0.5, "correct": "yes"}', "line 3: 'correct' must be true or false"),
        ('{"confidence": 0.5, "label": 1}', "line 3: a 'label' needs the 'predicted' class"),
        ('{"confidence": 0.5, "predicted": 1, "label": 0.5}', "line 3: 'label' must be a whole"),
        ('{"probs": [0.9, 0.9], "label": 0}', "every row of 'probs' must sum to 1"),
        ('{"probs": 0.9, "label": 0}', "line 3: 'probs' must be a list of numbers"),
        ('{"probs": [], "label": 0}', "line 3: 'probs' must be a list of numbers"),
        ('{"probs": [0.9, 0.1], "label": 2}', "line 3: there is no class 2 among 2"),
        ('{"prob": 0.9, "label": 2}', "line 3: there is no class 2 among 2"),
        ('{"prob": 0.9, "label": -1}', "line 3: 'label' must be a whole number from 0"),
        (
            '{"confidence": 0.9, "predicted": "cat", "label": "dog"}',
            "not 'dog'; give the class by its place among the classes, or 'correct' as true",
        ),
        ('{"score": 0.9}', "line 3: expected confidence, prob, probs, logits, or 'id'"),
        ('{"label": 1}', "line 3: expected confidence"),
    ],
)
def test_a_bad_line_is_named_and_nothing_of_its_block_is_counted(run, tmp_path, line, message):
    good = '{"confidence": 0.5, "correct": true}\n\n'
    (tmp_path / "rows.jsonl").write_text(good + line + "\n")
    ended = run("rows.jsonl", "--state", "state")
    assert ended.code == 2
    assert message in ended.err
    assert ended.err.count("\n") == 1
    assert not (tmp_path / "state").exists()


def test_without_a_stream_there_is_one_sentence(run, tmp_path):
    assert run().err == "error: monitor takes a STREAM: a file, or - for standard input\n"
    assert "--idle goes with --follow" in run("x.jsonl", "--idle", "3").err
    assert "goes with --cluster" in run("x.jsonl", "--open-clusters", "3").err
    assert "there is no such file" in run("nowhere.jsonl").err
    (tmp_path / "x.jsonl").write_text("")
    assert "is read by this command" in run("x.jsonl", "--json", "x.jsonl").err


TORN = [
    '{"confidence": 0.9, "corr',
    "[" * 100_000,
    '{"confidence": 0.9, "predicted": 1e30, "label": 1}',
    '{"confidence": 0.9, "predicted": 1, "label": 1e30}',
    '{"logits": [1e999, 0], "label": 1}',
    f'{{"probs": [{"9" * 400}, 0], "label": 1}}',
    '{"confidence": NaN, "correct": true}',
    '{"id": 1, "confidence": 0.9}\n{"id": 1, "label": 0}',
    "\xff\x00",
]


@pytest.mark.parametrize("torn", TORN)
def test_a_line_without_a_usable_row_ends_in_a_sentence_or_is_left_out(run, tmp_path, torn):
    said, right = drifting(30)
    whole = lines(said, right).splitlines()
    text = "\n".join([*whole[:10], torn, *whole[10:]]) + "\n"
    (tmp_path / "rows.jsonl").write_text(text)
    ended = run("rows.jsonl", "--state", "state")
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    ended = run("rows.jsonl", "--state", "state", "--skip-broken", "--details", "--json", "-")
    assert ended.code == 0
    found = json.loads(ended.out)
    assert found["rows"] == 30
    unreadable = found["details"]["unreadable"]
    total = 31 + torn.count("\n")
    assert (unreadable["lines"], unreadable["read"]) == (1, total)
    assert unreadable["first"].startswith(("rows.jsonl: line 11: ", "rows.jsonl: lines 11", "id "))
    # What was left out stays in the state.
    (tmp_path / "rows.jsonl").write_text(text + "also no row\n")
    ended = run("rows.jsonl", "--state", "state", "--skip-broken")
    share = f"{100 * 2 / (total + 1):.1f} % of those read"
    said = f"Left out: 2 lines without a usable row ({share}). The first: "
    assert said in " ".join(ended.out.split())


def test_lines_that_are_left_out_are_in_every_report(run, tmp_path):
    said, right = drifting(30)
    (tmp_path / "rows.jsonl").write_text(lines(said, right) + "no row\n")
    words = "rows.jsonl", "--skip-broken", "--report", "page.html", "--metrics-out", "metrics"
    assert "1 line without a usable row (3.2 % of those read)" in run(*words).out.replace("\n", " ")
    assert "1 line without a usable row (3.2" in Path("page.html").read_text()
    assert "calibrant_monitor_lines_left_out_total 1" in Path("metrics").read_text()
    (tmp_path / "none.jsonl").write_text("no row\n" * 50)
    ended = run("none.jsonl", "--skip-broken")
    assert ended.code == 2
    assert "no line holds a usable row" in ended.err


def test_outcomes_without_any_prediction_are_an_error_unless_a_state_keeps_them(run, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"id": 1, "correct": true}\n' * 2)
    assert "none of 1 outcomes belongs to a prediction" in run("rows.jsonl").err
    assert run("rows.jsonl", "--state", "state").code == 0


def test_a_mark_of_utf_8_before_a_line_is_no_crash(run, tmp_path):
    said, right = drifting(30)
    (tmp_path / "rows.jsonl").write_text("\ufeff" + lines(said, right), encoding="utf-8")
    assert json.loads(run("rows.jsonl", "--json", "-").out)["rows"] == 30


def test_long_ids_and_names_are_kept_short_and_told_apart(run, tmp_path):
    long = "x" * 100_000
    rows = [{"id": long + end, "confidence": 0.9, "g": long} for end in "ab"]
    rows += [{"id": long + "a", "correct": True}] * 2
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = json.loads(
        run("rows.jsonl", "--by", "g", "--state", "s", "--details", "--json", "-").out
    )
    assert found["rows"] == 1
    assert (
        found["details"]["waiting"]["predictions"],
        found["details"]["waiting"]["repeated"],
    ) == (1, 1)
    assert len(found["details"]["groups"][0]["group"]) < 200
    assert Path("s").stat().st_size < 100_000
    (tmp_path / "bad.jsonl").write_text(json.dumps({"confidence": 0.9, "correct": long}) + "\n")
    assert len(run("bad.jsonl").err) < 300


def test_two_monitors_do_not_share_a_state(run, tmp_path):
    said, right = drifting(30)
    (tmp_path / "rows.jsonl").write_text(lines(said, right))
    with only_one(tmp_path / "state"):
        ended = run("rows.jsonl", "--state", "state")
        assert ended.code == 2
        assert "state: another monitor is at work on this state" in ended.err
        assert ended.err.count("\n") == 1
        assert run("rows.jsonl", "--state", "other").code == 0
    assert run("rows.jsonl", "--state", "state").code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "rows.jsonl", "state"]


def test_tokens_come_with_their_labels(run, tmp_path):
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(200, 20, 5)) * 3, rng.integers(0, 5, (200, 20))
    labels[:, -2:] = -100
    np.savez(tmp_path / "tokens.npz", logits=logits, labels=labels)
    ended = run("tokens.npz", "--kind", "tokens", "--json", "-", "--details")
    assert ended.code == 3
    found = json.loads(ended.out)
    assert found["rows"] == 200 * 18
    assert found["details"]["diagnosis"]["state"] == "overconfident"
    assert found["details"]["unlabelled"]["rows"] == 0
    np.savez(tmp_path / "bare.npz", logits=logits)
    found = json.loads(run("bare.npz", "--kind", "tokens", "--json", "-", "--details").out)
    assert found["details"]["unlabelled"]["rows"] == 200 * 20


def spelled(logits: Any, labels: Any) -> dict[str, list[dict[str, Any]]]:
    """Return the same rows of three classes, and of two, as servers may write them."""
    names = ["cat", "dog", "owl"]
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    odds, second = logits[:, 1] - logits[:, 0], (labels > 0).astype(int).tolist()
    one = 1 / (1 + np.exp(-odds))
    labels, rows = labels.tolist(), range(len(labels))
    wide = {"probs": probs.tolist(), "logits": logits.tolist()}
    return {
        "probs": [{"probs": wide["probs"][i], "label": labels[i]} for i in rows],
        "logits": [{"logits": wide["logits"][i], "true_label": labels[i]} for i in rows],
        "columns": [
            {f"prob_{k}": p for k, p in enumerate(wide["probs"][i])} | {"label": labels[i]}
            for i in rows
        ],
        "named": [
            {"probs": dict(zip(names, wide["probs"][i], strict=True)), "label": names[labels[i]]}
            for i in rows
        ],
        "prob": [{"prob": float(one[i]), "label": second[i]} for i in rows],
        "logit": [{"logit": float(odds[i]), "labels": second[i]} for i in rows],
    }


def test_lines_and_files_are_read_by_the_same_rules(run, tmp_path):
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(400, 3)) * 2, rng.integers(0, 3, 400)
    for name, rows in spelled(logits, labels).items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        found = json.loads(run(f"{name}.jsonl", "--json", "-").out)["windows"][0]
        whole = cb.evaluate(cb.read_predictions(f"{name}.jsonl"), metrics=["ece"], resamples=5)
        if name in ("prob", "logit"):  # a monitor watches the positive class
            assert found["confidence"] == pytest.approx(whole.mean_probability, abs=1e-7), name
            assert found["accuracy"] == pytest.approx(whole.positive_share), name
        else:
            assert found["confidence"] == pytest.approx(whole.mean_confidence, abs=1e-7), name
            assert found["accuracy"] == pytest.approx(whole.accuracy), name


def test_numbers_are_not_matched_to_names_of_classes(run, tmp_path):
    row = {"probs": {"cat": 0.9, "dog": 0.1}, "label": 0}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    ended = run("rows.jsonl")
    assert ended.code == 2
    assert "line 1: 'label' must be one of the classes that the scores name, not 0" in ended.err


def test_lines_heed_the_names_that_are_told(run, tmp_path):
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(50, 3)), rng.integers(0, 3, 50)
    rows = [{"out": z, "truth": int(y)} for z, y in zip(logits.tolist(), labels, strict=True)]
    (tmp_path / "told.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ("told.jsonl", "--scores", "out", "--labels", "truth", "--json", "-")
    found = json.loads(run(*words, "--are", "logits").out)["windows"][0]
    rows = cb.Predictions.from_logits(logits, labels)
    whole = cb.evaluate(rows, metrics=["ece"], resamples=5)
    assert found["confidence"] == pytest.approx(whole.mean_confidence, abs=1e-7)
    assert found["accuracy"] == pytest.approx(whole.accuracy)
    lines = [{"sure": 0.9, "right": True}, {"sure": 0.8, "right": False}]
    (tmp_path / "sure.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    words = ("sure.jsonl", "--scores", "sure", "--are", "confidence", "--correct", "right")
    found = json.loads(run(*words, "--json", "-").out)["windows"][0]
    assert (found["confidence"], found["accuracy"]) == (pytest.approx(0.85), 0.5)
    assert "lines hold one prediction each" in run("sure.jsonl", "--kind", "tokens").err


def test_clusters_are_a_column_a_key_or_the_rows_of_tokens(run, tmp_path):
    rng = np.random.default_rng(0)
    said, right = drifting(change=ROWS)
    names = np.repeat(np.arange(ROWS // 20), 20)
    table = "".join(f"{p},0,{1 - y},{c}\n" for p, y, c in zip(said, right, names, strict=True))
    (tmp_path / "rows.csv").write_text("confidence,pred_label,label,doc\n" + table)
    (tmp_path / "rows.jsonl").write_text(lines(said, right, doc=names.tolist()))
    found = {}
    for name in ("rows.csv", "rows.jsonl"):
        ended = run(name, "--cluster", "doc", "--json", "-", "--details")
        found[name] = json.loads(ended.out)
        assert found[name]["details"]["clusters"]["counted"] == ROWS // 20
    assert found["rows.csv"]["level"] == pytest.approx(found["rows.jsonl"]["level"])
    logits, labels = rng.normal(size=(200, 20, 5)) * 3, rng.integers(0, 5, (200, 20))
    labels[:, -2:] = -100
    np.savez(tmp_path / "tokens.npz", logits=logits, labels=labels, doc=np.arange(200) // 4)
    for more, clusters in (((), 200), (("--cluster", "doc"), 50)):
        words = ("tokens.npz", "--kind", "tokens", *more, "--json", "-", "--details")
        assert json.loads(run(*words).out)["details"]["clusters"]["counted"] == clusters
    # With a state, rows of the last cluster may still come.
    run("rows.jsonl", "--cluster", "doc", "--state", "state")
    ended = run("rows.jsonl", "--state", "state", "--json", "-", "--details", "--cluster", "doc")
    clusters = json.loads(ended.out)["details"]["clusters"]
    assert (clusters["counted"], clusters["unfinished"]) == (ROWS // 20 - 1, 1)
    (tmp_path / "more.jsonl").write_text(lines(said[:1], right[:1]))
    ended = run("more.jsonl", "--state", "state", "--cluster", "doc")
    assert ended.code == 2
    assert "line 1: there is no 'doc', the row's cluster" in ended.err
    ended = run("more.jsonl", "--state", "state")
    assert "clusters must be given for all rows or for none" in ended.err


def test_an_alarm_leaves_a_refit_that_apply_takes(run, tmp_path, monkeypatch, capsys):
    said, right = drifting()
    (tmp_path / "rows.jsonl").write_text(lines(said, right))
    ended = run("rows.jsonl", "--state", "state")
    line = json.loads(ended.err.splitlines()[-1])
    assert line["refit_file"] == "state.refit.safetensors"
    assert line["doubt"] is None
    refit = cb.load(tmp_path / "state.refit.safetensors")
    later, hits = drifting(change=0, seed=1)
    after = cb.Predictions.from_confidence(later, np.ones(ROWS, int), hits.astype(int))
    before = cb.evaluate(after, metrics=["ece"], resamples=5)["ece"].value
    mapped = cb.evaluate(refit.apply_predictions(after), metrics=["ece"], resamples=5)["ece"].value
    assert mapped < before / 2
    found = json.loads(run("rows.jsonl", "--state", "state", "--json", "-", "--details").out)
    assert found["details"]["diagnosis"]["refit"]["state"] == "gain"


def test_a_plan_counts_nothing_and_needs_no_outcomes(run, tmp_path):
    said, right = drifting()
    (tmp_path / "rows.jsonl").write_text(lines(said, right, id=range(ROWS)))
    bare = "".join(json.dumps({"confidence": p}) + "\n" for p in said.tolist())
    (tmp_path / "bare.jsonl").write_text(bare)
    found = [
        json.loads(run(name, "--plan", "20", "--state", "state", "--json", "-").out)
        for name in ("rows.jsonl", "bare.jsonl")
    ]
    assert found[0] == found[1]
    assert found[0]["needed"][0]["median"] > 10
    assert not (tmp_path / "state").exists()
    assert "a drift of 1 lies within the tolerance of 2" in run("bare.jsonl", "--plan", "1").err


def test_the_page_of_a_stream_that_is_followed_looks_again(run, tmp_path):
    said, right = drifting(300)
    (tmp_path / "rows.jsonl").write_text(
        lines(said, right) + json.dumps({"id": "a", "confidence": 0.9}) + "\n"
    )
    run("rows.jsonl", "--follow", "--idle", "0.2", "--report", "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "location.reload()" not in text  # it has ended
    assert "1 prediction without outcome yet" in text
    watched = cb.Monitor()
    Checkpoints(watched, None, page=tmp_path / "live.html").save()
    assert "location.reload()" in (tmp_path / "live.html").read_text()


def test_half_a_line_at_the_end_waits_for_the_other_half_where_there_is_a_state(run, tmp_path):
    said, right = drifting(4)
    whole = lines(said, right)
    (tmp_path / "rows.jsonl").write_text(whole[:-20])
    words = ("rows.jsonl", "--state", "state", "--json", "-")
    assert json.loads(run(*words).out)["rows"] == 3
    assert "line 4: expected a JSON object" in run("rows.jsonl").err  # nobody comes back for it
    (tmp_path / "rows.jsonl").write_text(whole.rstrip("\n"))
    assert json.loads(run(*words).out)["rows"] == 4  # a whole object, if nothing ends the line
    (tmp_path / "rows.jsonl").write_text(whole + whole)
    assert json.loads(run(*words).out)["rows"] == 8


def test_outcomes_none_of_which_is_counted_are_an_error(run, tmp_path):
    rows = [{"id": f"a{i}", "confidence": 0.9} for i in range(5)]
    known = [{"id": i, "correct": True} for i in range(5)]
    for name, some in (("rows", rows), ("known", known)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some))
    ended = run("rows.jsonl", "--outcomes", "known.jsonl")
    assert ended.code == 2
    assert "known.jsonl: none of its outcomes belongs to a prediction that was read" in ended.err
    ended = run("rows.jsonl", "--outcomes", "known.jsonl", "--state", "state", "--json", "-")
    assert ended.code == 0  # their predictions may come


def test_the_lock_of_another_system_is_taken_too(run, tmp_path, monkeypatch):
    held = []

    def locking(handle, mode, size):
        assert (mode, size) == (2, 1)
        if held:
            raise OSError("locked")
        held.append(handle)

    def modules(name):
        if name == "fcntl":
            raise ImportError(name)
        return SimpleNamespace(locking=locking, LK_NBLCK=2)

    monkeypatch.setattr(checkpointing, "import_module", modules)
    with only_one(tmp_path / "state"):
        assert len(held) == 1
        again = only_one(tmp_path / "state")
        with pytest.raises(cb.CalibrantError, match="another monitor is at work"), again:
            pass


def test_a_state_takes_no_more_memory_than_its_file(tmp_path):
    said, right = drifting()
    monitor = cb.Monitor()
    monitor.update(said, right)
    monitor.save(tmp_path / "state")
    held = sum(array.nbytes for array in read_state(tmp_path / "state").arrays.values())
    content = (tmp_path / "state").read_bytes()
    assert held < len(content)  # nothing in it is compressed
    (tmp_path / "packed").write_bytes(gzip.compress(content))
    with pytest.raises(cb.CalibrantError, match="is not a readable safetensors file"):
        cb.Monitor.load(tmp_path / "packed")


def test_hours_are_read_from_a_column_or_a_key(run, tmp_path):
    said, right = drifting(100)
    times = [f"2026-11-23T1{i % 3}:05:00" for i in range(100)]
    table = "".join(f"{p},0,{1 - y},{t}\n" for p, y, t in zip(said, right, times, strict=True))
    (tmp_path / "rows.csv").write_text("confidence,pred_label,label,at\n" + table)
    (tmp_path / "rows.jsonl").write_text(lines(said, right, at=times))
    found = [
        json.loads(run(name, "--time", "at", "--json", "-", "--details").out)["details"]["hours"]
        for name in ("rows.csv", "rows.jsonl")
    ]
    assert found[0] == found[1]
    assert [(hour["hour"], hour["rows"]) for hour in found[0]] == [
        ("2026-11-23 10:00", 34),
        ("2026-11-23 11:00", 33),
        ("2026-11-23 12:00", 33),
    ]
    (tmp_path / "bad.jsonl").write_text(lines(said[:1], right[:1], at=["noon"]))
    ended = run("bad.jsonl", "--time", "at")
    assert ended.code == 2
    assert "bad.jsonl: line 1: 'at': a time must be seconds since 1970" in ended.err
    run("rows.jsonl", "--time", "at", "--report", "page.html")
    assert "Hour by hour" in (tmp_path / "page.html").read_text()


def test_a_folder_stands_for_its_files(run: Run, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    (tmp_path / "parts").mkdir()
    for i in (10, 2):
        said = rng.uniform(0.5, 1, 300)
        np.savez(tmp_path / f"parts/{i}.npz", confidence=said, correct=rng.random(300) < said)
    whole = run("parts", "--json", "-")
    assert json.loads(whole.out)["rows"] == 600
    assert whole.out == run("parts/2.npz", "parts/10.npz", "--json", "-").out


def test_the_largest_logits_are_read_without_a_warning(run, tmp_path):
    rows = [{"logits": [1e308, -1e308], "label": 0}, {"logits": [-1e308, 1e308], "label": 1}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ended = run("rows.jsonl", "--json", "found.json")
    assert (ended.code, ended.err) == (0, "")
    (window,) = json.loads((tmp_path / "found.json").read_text())["windows"]
    assert (window["confidence"], window["accuracy"]) == (1.0, 1.0)
