"""What stays of a stream over restarts of a monitor, and when its tests begin anew."""

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
from calibrant.monitor.monitor import Monitor
from calibrant.monitor.state_file import read_state, write_state

Run = Callable[..., tuple[int, str, str]]
N, START = 1_200, 1_795_000_000


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


def said_and_right(n: int = N, off: float = 0.0, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    said = rng.uniform(0.55, 0.95, n)
    return said, rng.random(n) < said - off


def lines(said: Any, right: Any, first: int, version: str, known: int) -> str:
    """Return rows of which the first so many have outcomes, one a minute from row `first` on."""
    found: list[dict[str, Any]] = []
    for i, (p, y) in enumerate(zip(said.tolist(), right.tolist(), strict=True)):
        at = START + 60 * (first + i)
        row = {"id": f"r-{first + i}", "confidence": p, "version": version, "at": at}
        found.append(row | ({"correct": y} if i < known else {}))
    return "".join(json.dumps(row) + "\n" for row in found)


def shown(page: str) -> str:
    """Return a page without the moment at which it was written."""
    return re.sub(r"Written .*?UTC", "", Path(page).read_text())


OPTIONS = ("--by", "version", "--time", "at", "--refit", "temperature")


def test_the_page_of_a_monitor_that_was_restarted_is_that_of_one_that_was_not(run, tmp_path):
    old = lines(*said_and_right(off=0.15), 0, "v1", N)
    new = lines(*said_and_right(seed=1), N, "v2", N - 100)
    Path("rows.jsonl").write_text(old + new)
    run("rows.jsonl", "--state", "once", "--report", "once.html", *OPTIONS)
    Path("rows.jsonl").write_text(old)
    run("rows.jsonl", "--state", "apart", "--report", "apart.html", *OPTIONS)
    with Path("rows.jsonl").open("a") as file:
        file.write(new)
    run("rows.jsonl", "--state", "apart", "--report", "apart.html", *OPTIONS)
    text = shown("apart.html")
    assert text == shown("once.html")
    for words in ("0 to 1 199", "1 200 to 2 299", "Table of predictions that wait", ">v2<"):
        assert words.replace(" ", "\u202f") in text.replace("\u00a0", "\u202f").replace(
            " ", "\u202f"
        ), words


def test_the_tests_begin_anew_and_the_history_stays(run, tmp_path):
    Path("rows.jsonl").write_text(lines(*said_and_right(off=0.2), 0, "v1", N))
    words = ("rows.jsonl", "--state", "state", *OPTIONS)
    code, _, err = run(*words)
    assert code == 3
    rose = [json.loads(line)["row"] for line in err.splitlines()]
    code, out, _ = run("--state", "state", "--anew")
    assert code == 0
    assert out.startswith("No row with an outcome since the tests started again.")
    assert f"The tests started again at row {N}, after 2 alarms" in " ".join(out.split())
    assert "Evidence (natural logarithm)" not in out
    # Nothing is counted again, and honest rows raise nothing.
    with Path("rows.jsonl").open("a") as file:
        file.write(lines(*said_and_right(seed=1), N, "v2", N - 100))
    code, out, _ = run(*words, "--json", "-", "--details", "--report", "page.html")
    assert code == 0
    found = json.loads(out)
    details = found["details"]
    assert (found["rows"], details["begun"]) == (2 * N - 100, N)
    assert sorted(one["alarm"]["row"] for one in details["past"]) == sorted(rose)
    assert [group["group"] for group in details["groups"]] == ["v1", "v2"]
    assert (details["groups"][0]["first"], details["groups"][0]["last"]) == (0, N - 1)
    assert (details["groups"][1]["first"], details["groups"][1]["last"]) == (N, 2 * N - 101)
    assert sum(window["rows"] for window in found["windows"]) == found["rows"]
    assert details["pending"]["groups"] == {"v2": 100}
    assert sum(details["pending"]["hours"].values()) == 100
    assert "Table of alarms that were dealt with" in Path("page.html").read_text()
    # It goes off again: announced again, and since a row after the beginning.
    with Path("rows.jsonl").open("a") as file:
        file.write(lines(*said_and_right(off=0.3, seed=2), 2 * N, "v2", N))
    code, out, err = run(*words, "--json", "-")
    assert code == 3
    again = [json.loads(line) for line in err.splitlines()]
    assert {line["test"] for line in again} == {"level", "change"}
    assert all(line["since"]["low"] >= N for line in again)
    assert run("--state", "none", "--anew")[0] == 2


@pytest.mark.parametrize("clustered", [False, True])
def test_tests_that_began_anew_are_those_of_a_stream_that_begins_there(tmp_path, clustered):
    said, right = said_and_right(2 * N, off=0.05)
    names = np.repeat(np.arange(2 * N // 10), 10).astype(str).tolist()
    groups = np.where(np.arange(2 * N) % 3 == 0, "a", "b").tolist()

    def fed(monitor: Monitor, part: slice) -> Monitor:
        clusters = names[part] if clustered else None
        monitor.update(said[part], right[part], groups[part], clusters)
        monitor.close_clusters()
        return monitor

    whole = fed(Monitor(n_groups=2), slice(0, N))
    whole.begin_anew()
    whole.save(tmp_path / "state")
    whole = fed(Monitor.load(tmp_path / "state"), slice(N, 2 * N))
    fresh = fed(Monitor(n_groups=2), slice(N, 2 * N))
    assert whole.rows == 2 * N
    np.testing.assert_allclose(whole.log_e, fresh.log_e, rtol=1e-12)
    np.testing.assert_allclose(whole.log_r, fresh.log_r, rtol=1e-12)
    assert {test: alarm.row - N for test, alarm in whole.alarms.items()} == {
        test: alarm.row for test, alarm in fresh.alarms.items()
    }
    for test, alarm in whole.alarms.items():
        assert alarm.since.low - N == fresh.alarms[test].since.low
    whole.save(tmp_path / "again")
    assert Monitor.load(tmp_path / "again").as_dict(details=True) == whole.as_dict(details=True)
    # Replicas of which one began anew can be merged, kept and read.
    other = Monitor(n_groups=2)
    other.update(said[:50], right[:50], groups[:50], ["x"] * 50 if clustered else None)
    both = whole.merge(other)
    both.save(tmp_path / "both")
    assert Monitor.load(tmp_path / "both").rows == 2 * N + 50
    assert both.findings().past == whole.findings().past


def test_rows_of_clusters_from_before_are_not_bet_on():
    said, right = said_and_right(40)
    monitor = Monitor(open_clusters=3)
    monitor.update(said, right, clusters=["a"] * 20 + ["b"] * 20)
    monitor.begin_anew()
    monitor.update(said, right, clusters=["a"] * 20 + ["b"] * 20)
    monitor.close_clusters()
    assert monitor.log_e == 0
    found = monitor.findings().clusters
    assert found is not None
    assert found.late == 40


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header["history"].update(begun=-1),
        lambda header: header["history"].update(before=10**9),
        lambda header: header["history"]["alarms"][0].update(until=10**9),
        lambda header: header["history"]["alarms"][0]["alarm"].update(row="one"),
        lambda header: header["history"].update(alarms=[1]),
        lambda header: header.update(group_rows=[[5, 2]]),
        lambda header: header.update(group_rows=[]),
        lambda header: header.update(group_rows=[[0]]),
    ],
)
def test_the_history_of_a_state_is_checked(tmp_path, change):
    said, right = said_and_right(400, off=0.3)
    monitor = Monitor()
    monitor.update(said, right, "v1")
    assert monitor.alarms
    monitor.begin_anew()
    monitor.update(said, right, "v1")
    monitor.save(tmp_path / "state")
    saved = read_state(tmp_path / "state")
    arrays = {name: a for name, a in saved.arrays.items() if name != "alternatives"}
    change(saved.header)
    write_state(tmp_path / "state", saved.header, arrays)
    with pytest.raises(cb.CalibrantError, match="damaged state of a monitor"):
        Monitor.load(tmp_path / "state")


def test_the_past_is_bounded():
    said, right = said_and_right(200, off=0.5)
    monitor = Monitor(alpha=0.5, average_run_length=2)
    for _ in range(60):
        monitor.update(said, right)
        monitor.begin_anew()
    assert len(monitor.findings().past) == 100
    assert len(str(monitor)) < 10_000
