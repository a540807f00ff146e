"""The promise of a decision in a monitor: false alarms, delay, states, and what may be watched."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace

import numpy as np
import pytest

import calibrant as cb
from calibrant.cli.app import app
from calibrant.decision import decide_by, save_decision
from calibrant.monitor.clusters import factors
from calibrant.monitor.monitor import Monitor
from calibrant.monitor.promise import Promise, Watched, promise_of
from calibrant.monitor.sequential_tests import COUNT

VAL, TEST = cb.load_sample("validation"), cb.load_sample("test")
FITTED = cb.TemperatureScaling().fit_predictions(VAL)
FOUND = cb.decide(FITTED, TEST.take(np.arange(5000)), risk=0.05)


def alarm_row(promise: Promise, wrong: float, rows: int, seed: int, size: int = 1) -> int | None:
    """Return the row of the alarm in a stream whose answered units are wrong so often."""
    rng = np.random.default_rng(seed)
    broken = np.repeat(rng.uniform(size=rows // size) < wrong, size)
    watched = Watched(promise, 0.05)
    paid = watched.count(np.ones(rows), ~broken)[1].reshape(-1, size, COUNT).sum(axis=1)
    watched.bet(factors(paid, size, watched.largest), np.arange(size - 1, rows, size))
    return None if watched.alarm is None else watched.alarm.row


@pytest.mark.parametrize("size", [1, 5])
def test_a_promise_that_is_just_kept_raises_few_alarms_ever(size: int) -> None:
    streams = range(300)
    alarms = [alarm_row(Promise(0.05, 0.5), 0.05, 600 * size, seed, size) for seed in streams]
    # 15 of 300 are allowed on average; 26 have a chance of 0.5 %.
    assert sum(row is not None for row in alarms) <= 25


@pytest.mark.parametrize(("wrong", "most"), [(0.1, 800), (0.2, 120)])
def test_a_broken_promise_is_seen_soon(wrong: float, most: int) -> None:
    rows = [alarm_row(Promise(0.05, 0.5), wrong, 3 * most, seed) for seed in range(40)]
    assert np.median([3 * most if row is None else row for row in rows]) <= most


def test_the_evidence_is_the_mean_of_products_of_bets() -> None:
    watched = Watched(Promise(0.1, 0.5), 0.05)
    kept = np.random.default_rng(0).uniform(size=200) < 0.85
    watched.bet(watched.count(np.ones(200), kept)[1], np.arange(200))
    capital = []
    for further in np.linspace(0.05, 3, 55):
        other = 1 / (1 + np.exp(-(np.log(0.1 / 0.9) + further)))
        capital.append(np.prod(np.where(kept, (1 - other) / 0.9, other / 0.1)))
    assert np.exp(watched.evidence.log_level) == pytest.approx(np.mean(capital))


def test_rows_that_are_not_answered_say_nothing_and_recall_looks_at_rows_of_the_class() -> None:
    watched = Watched(Promise(0.1, 0.8), 0.05)
    at, paid, _ = watched.count(np.array([0.7, 0.8, 0.9]), np.array([False, False, True]))
    assert at.tolist() == [1, 2]
    assert [(row > 1).all() for row in paid] == [True, False]  # the first breaks the promise
    of_class = Watched(Promise(0.1, 0.8, "recall"), 0.05)
    at, paid, _ = of_class.count(np.array([0.7, 0.9, 0.9]), np.array([True, False, True]))
    assert at.tolist() == [0, 2]
    assert [(row > 1).all() for row in paid] == [True, False]


def drifting(rows: int, begins: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return confidences, honest up to a row and then too high."""
    rng = np.random.default_rng(seed)
    said = rng.uniform(0.5, 1, rows)
    return said, rng.uniform(size=rows) < said - 0.25 * (np.arange(rows) >= begins)


def test_a_monitor_says_when_the_promise_no_longer_holds() -> None:
    said, right = drifting(6000, 4000)
    monitor = Monitor(promise=Promise(0.1, 0.8))
    alarms = monitor.update(said, right)
    (alarm,) = (alarm for alarm in alarms if alarm.test == "promise")
    assert 4000 < alarm.row < 4600
    assert 3800 < alarm.since.row < 4300
    assert "The promise that at most 10.0 % of the answered" in str(monitor)
    found = monitor.as_dict()["promise"]
    answered = said >= 0.8
    assert (found["rows"], found["broken"]) == (answered.sum(), (answered & ~right).sum())
    assert "promise" not in Monitor().as_dict()


@pytest.mark.parametrize("clustered", [False, True])
def test_states_go_on_and_merge_as_if_nothing_had_happened(tmp_path, clustered: bool) -> None:
    said, right = drifting(3000, 1500)
    names = np.arange(3000) // 3 if clustered else None

    def of(part: slice) -> dict[str, object]:
        return {} if names is None else {"clusters": names[part].tolist()}

    promise = Promise(0.1, 0.8)
    whole, begun = Monitor(promise=promise), Monitor(promise=promise)
    whole.update(said, right, **of(slice(None)))
    begun.update(said[:1700], right[:1700], **of(slice(0, 1700)))
    begun.save(tmp_path / "s.safetensors")
    later = Monitor.load(tmp_path / "s.safetensors")
    later.update(said[1700:], right[1700:], **of(slice(1700, None)))
    assert later.as_dict() == whole.as_dict()
    assert later.alarms["promise"] == whole.alarms["promise"]
    assert whole.alarms["promise"].row > 1500
    half = Monitor(promise=promise)
    half.update(said[:1500], right[:1500], **of(slice(0, 1500)))
    rest = Monitor(promise=promise)
    rest.update(said[1500:], right[1500:], **of(slice(1500, None)))
    merged = half.merge(rest).as_dict()["promise"]
    assert merged["broken"] == whole.as_dict()["promise"]["broken"]
    assert merged["alarm"] is not None
    with pytest.raises(cb.InputError, match="promise"):
        half.merge(Monitor())


def test_the_command_watches_what_apply_wrote(tmp_path, capsys) -> None:
    save_decision(FOUND, tmp_path / "d.safetensors")
    new = TEST.take(np.arange(5000, 10_000))
    shuffled = new.labels.copy()
    shuffled[2500:] = np.where(
        np.arange(2500) % 4 == 0, (shuffled[2500:] + 1) % 10, shuffled[2500:]
    )
    worse = cb.Predictions.from_logits(new.logits, shuffled)
    for name, rows in (("good", new), ("bad", worse)):
        cb.write_predictions(rows, tmp_path / f"{name}.npz")
        words = ["apply", str(tmp_path / "d.safetensors"), str(tmp_path / f"{name}.npz")]
        app([*words, "--out", str(tmp_path / f"{name}-after.npz")], standalone_mode=False)
    capsys.readouterr()
    watch = ["monitor", "--decision", str(tmp_path / "d.safetensors"), "--json", "-"]
    app([*watch, str(tmp_path / "good-after.npz")], standalone_mode=False)
    good = json.loads(capsys.readouterr().out)["promise"]
    answered = FOUND.of_rows(new)["answer"]
    assert good["rows"] == answered.sum()
    assert good["alarm"] is None
    with pytest.raises(SystemExit) as ended:
        app([*watch, str(tmp_path / "bad-after.npz")])
    assert ended.value.code == 3
    assert json.loads(capsys.readouterr().out)["promise"]["alarm"]["row"] > 2500
    with pytest.raises(cb.InputError, match="calibrant apply DECISION FILE"):
        app([*watch, str(tmp_path / "good.npz")], standalone_mode=False)
    lines = tmp_path / "rows.jsonl"
    lines.write_text(json.dumps({"logits": [0.0, 1.0], "label": 1}) + "\n")
    with pytest.raises(cb.PredictionsError, match="calibrant apply DECISION FILE"):
        app([*watch, str(lines)], standalone_mode=False)


@pytest.mark.parametrize("rule", [{"risk": 0.1}, {"recall": 0.8, "of": 8}])
@pytest.mark.parametrize("kind", ["predicted", "column"])
def test_the_promise_of_groups_is_that_of_the_rows_which_each_group_decides(kind, rule) -> None:
    half, new = TEST.take(np.arange(5000)), TEST.take(np.arange(5000, 10_000))
    column = np.arange(10_000) % 3 + 1.0
    found = decide_by(FITTED, half, kind if kind == "predicted" else column[:5000], **rule)
    promise = promise_of(found)
    after = FITTED.apply_predictions(new)
    column[5000:5010] = 77.0  # a group that isn't decided on
    given = None if kind == "predicted" else column[5000:]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cb.CalibrationWarning)
        wanted = found.watched(after, given)
    of, top = rule.get("of"), after.probs.argmax(axis=1)
    said = after.probs.max(axis=1) if of is None else after.probs[:, of]
    right = top == new.labels if of is None else new.labels == of
    names = list(map(str, top if given is None else given))
    about, kept = promise.about(said, right, names)
    np.testing.assert_array_equal(about, wanted[0])
    np.testing.assert_array_equal(kept[about], wanted[1][about])
    with pytest.raises(cb.InputError, match="every row needs its group"):
        Monitor(promise=promise).update(said, right)


def test_the_command_watches_what_apply_wrote_by_groups(tmp_path, capsys) -> None:
    named = replace(TEST, class_names=tuple("abcdefghij"))
    half, new = named.take(np.arange(5000)), named.take(np.arange(5000, 10_000))
    found = decide_by("temperature", half, "predicted", risk=0.1)
    save_decision(found, tmp_path / "d.safetensors")
    cb.write_predictions(new, tmp_path / "new.npz")
    decision, rows, state = (str(tmp_path / n) for n in ("d.safetensors", "new.npz", "state"))
    app(["apply", decision, rows, "--out", str(tmp_path / "after.npz")], standalone_mode=False)
    capsys.readouterr()
    watch = ["monitor", "--decision", decision, str(tmp_path / "after.npz")]
    app([*watch, "--state", state, "--json", "-"], standalone_mode=False)
    seen = json.loads(capsys.readouterr().out)["promise"]
    assert seen["rows"] == found.of_rows(new)["answer"].sum()
    assert Monitor.load(state).promise == promise_of(found)
    with pytest.raises(cb.InputError, match="leave out --by"):
        app([*watch, "--by", "site"], standalone_mode=False)
    cuts = decide_by(FITTED, TEST.take(np.arange(5000)), "confidence", risk=0.1)
    with pytest.raises(cb.InputError, match="decide by a column or by predicted class"):
        promise_of(cuts)


def test_sets_and_costs_are_no_promise_of_a_stream_of_confidences() -> None:
    sets = cb.decide(FITTED, TEST, cover=0.9)
    for other in (sets, cb.decide(FITTED, TEST, error_cost=10, hand_over_cost=1)):
        with pytest.raises(cb.InputError, match="can't be watched"):
            promise_of(other)
    # Of sets Python can: each row that holds its class is right.
    about, held = sets.watched(FITTED.apply_predictions(TEST))
    monitor = Monitor(promise=Promise(sets.promised, 0))
    monitor.update(np.ones(int(about.sum())), held[about])
    assert "promise" not in monitor.alarms
    assert sets.promised > 0.1
    with pytest.raises(cb.InputError, match="measure"):
        Promise(0.05, 0.8, "luck")
