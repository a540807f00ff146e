"""The monitor: its two tests against plain arithmetic, its windows, groups, merging and state."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import calibrant as cb
from calibrant.core.errors import CalibratorFileError
from calibrant.monitor.formatting import spaced
from calibrant.monitor.sequential_tests import ALTERNATIVES, MOST_GROUPS, OTHERS, Groups, payments
from calibrant.monitor.state_file import read_state, write_state
from calibrant.monitor.windows import Trail


def stream(n: int, seed: int = 0, slope: float = 1.0, change: int = 0, shift: float = 0.0):
    """Return confidences and outcomes: logit p' = shift + slope logit p from row `change` on."""
    rng = np.random.default_rng(seed)
    odds = rng.normal(2.2, 1.6, n)
    truth = np.where(np.arange(n) < change, odds, shift + slope * odds)
    return 1 / (1 + np.exp(-odds)), rng.random(n) < 1 / (1 + np.exp(-truth))


def by_hand(said, right, tolerance: float) -> tuple[list[float], list[float]]:
    """Return log E and log R after each row, one bet and one row at a time."""
    products, masses = [0.0] * len(ALTERNATIVES), [0.0] * len(ALTERNATIVES)
    levels, rates = [], []
    for p, y in zip(said.tolist(), right.tolist(), strict=True):
        for j, (a, b) in enumerate(ALTERNATIVES.tolist()):
            q = 1 / (1 + math.exp(-(a + b * math.log(p / (1 - p)))))
            u = min(max(q, p - tolerance), p + tolerance)
            pays = q / u if y else (1 - q) / (1 - u)
            products[j] += math.log(pays)
            masses[j] = (masses[j] + 1) * pays
        levels.append(math.log(sum(math.exp(x) for x in products) / len(products)))
        rates.append(math.log(sum(masses) / len(masses)))
    return levels, rates


@settings(max_examples=60, deadline=None)
@given(
    p=st.floats(0, 1),
    tolerance=st.sampled_from([0.0, 1e-9, 0.02, 0.3]),
    where=st.floats(-1, 1),
)
def test_no_bet_gains_on_average_while_the_truth_is_within_the_tolerance(p, tolerance, where):
    truth = min(max(p + where * tolerance, 0.0), 1.0)
    won, lost = (payments(np.array([p]), np.array([y]), tolerance)[0] for y in (True, False))
    assert np.all(truth * won + (1 - truth) * lost <= 1 + 1e-9)
    assert np.all(np.minimum(won, lost) > 0)


@pytest.mark.parametrize("tolerance", [0.0, 0.02])
def test_the_evidence_is_that_of_plain_arithmetic(tolerance):
    said, right = stream(300, slope=0.6)
    monitor = cb.Monitor(tolerance=tolerance, average_run_length=1e3)
    levels, rates = by_hand(said, right, tolerance)
    for end in (1, 2, 77, 300):
        monitor.update(said[monitor.rows : end], right[monitor.rows : end])
        assert monitor.log_e == pytest.approx(levels[end - 1], abs=1e-9)
        assert monitor.log_r == pytest.approx(rates[end - 1], abs=1e-9)
    for test, logs, bound in (("level", levels, math.log(20)), ("change", rates, math.log(1e3))):
        crossed = [row for row, log in enumerate(logs) if log >= bound]
        found = monitor.alarms.get(test)
        assert (None if found is None else found.row) == (crossed[0] if crossed else None)
    assert "level" in monitor.alarms or tolerance


def test_it_does_not_matter_how_many_rows_come_at_once():
    said, right = stream(5_000, slope=0.5, change=2_500)
    whole, parts = cb.Monitor(window=200), cb.Monitor(window=200)
    whole.update(said, right)
    rng, start = np.random.default_rng(1), 0
    while start < len(said):
        size = int(rng.choice([1, 3, 50, 700]))
        if size == 1:
            parts.update(float(said[start]), bool(right[start]))
        else:
            parts.update(said[start : start + size], right[start : start + size])
        start += size
    one, other = whole.as_dict(details=True), parts.as_dict(details=True)
    assert one["rows"] == other["rows"] == 5_000
    assert one["level"] == other["level"]
    assert one["change"] == other["change"]
    assert one["change"]["alarm"]
    assert one["windows"] == other["windows"]
    assert one["details"]["diagnosis"] == other["details"]["diagnosis"]


def test_false_alarms_are_as_rare_as_promised_and_drift_is_found():
    streams = 150
    alarms = np.zeros(3)
    for seed in range(streams):
        exact = cb.Monitor(tolerance=0, average_run_length=20_000)
        exact.update(*stream(2_000, seed))
        alarms[0] += "level" in exact.alarms
        alarms[1] += "change" in exact.alarms
        off = cb.Monitor()
        said, _ = stream(2_000, seed)
        off.update(said, np.random.default_rng(seed).random(2_000) < said - 0.02)
        alarms[2] += "level" in off.alarms
    error = 3 * math.sqrt(0.05 * 0.95 / streams)
    assert alarms[0] / streams <= 0.05 + error
    assert alarms[1] / streams <= 2_000 / 20_000 + error
    assert alarms[2] / streams <= 0.05 + error
    delays, caught = [], 0
    for seed in range(20):
        found = cb.Monitor(tolerance=0, average_run_length=20_000)
        found.update(*stream(6_000, 1_000 + seed, slope=0.7, change=5_000))
        alarm = found.alarms["change"]
        delays.append(alarm.row - 5_000)
        caught += alarm.since.low <= 5_000 <= alarm.since.high
    assert 100 < np.median(delays) < 400
    assert caught >= 15


def test_the_samples_network_alarms_soon_and_once_calibrated_not_at_all():
    fit, test = cb.load_sample("validation"), cb.load_sample("test")
    honest = cb.posthoc.TopRestScaling().fit_predictions(fit).predict_proba(test.logits)
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(test.n)
        raw, calibrated = cb.Monitor(), cb.Monitor()
        raw.update(test.probs[order[:2_000]], test.labels[order[:2_000]])
        calibrated.update(honest[order], test.labels[order])
        assert raw.alarms["level"].row < 1_000
        assert not calibrated.alarms


def test_a_change_is_dated_and_its_direction_told():
    monitor = cb.Monitor()
    monitor.update(*stream(20_000, 3, slope=0.4, change=12_000))
    found = monitor.as_dict(details=True)
    assert set(found) == {"rows", "level", "change", "windows", "details"}
    assert set(monitor.as_dict()) == {"rows", "level", "change", "windows"}
    assert set(found["level"]) == {"alarm", "row", "log_e"}
    assert set(found["change"]) == {"alarm", "row", "since"}
    assert 12_000 < found["change"]["row"] < 13_500
    assert abs(found["change"]["since"] - 12_000) < 300
    diagnosis = monitor.diagnosis()
    assert diagnosis is not None
    assert diagnosis.state == "overconfident"
    assert diagnosis.gap[1] > 0.05
    assert repr(diagnosis) == f"<Diagnosis: {diagnosis.which_way()}>"
    assert diagnosis.refit is not None
    assert diagnosis.refit.state == "gain"
    assert diagnosis.refit.after["ece"].ends[2] < diagnosis.refit.before["ece"].ends[1]
    refit = monitor.refit("affine")
    assert refit is not None
    assert refit.weights_[0] == pytest.approx(0.4, abs=0.1)
    assert "Overconfident by" in str(monitor)
    assert "probably since row" in " ".join(str(monitor).split())


def test_a_row_is_too_few_for_a_refit_and_the_sentence_says_so():
    monitor = cb.Monitor()
    monitor.update(0.7, True)
    assert "The rows are too few, or too much alike, to estimate what a refit gains." in " ".join(
        str(monitor).split()
    )
    assert monitor.refit() is None


def test_windows_are_measured_as_the_rows_would_be():
    said, right = stream(4_300, slope=0.8)
    monitor = cb.Monitor(window=1_000)
    monitor.update(said, right)
    windows = monitor.windows()
    assert [(w.first, w.rows) for w in windows] == [
        (0, 1_000),
        (1_000, 1_000),
        (2_000, 1_000),
        (3_000, 1_000),
        (4_000, 300),
    ]
    assert monitor.latest_window() == windows[3]
    for window in windows:
        part = slice(window.first, window.first + window.rows)
        classes = np.ones(window.rows, dtype=int)
        rows = cb.Predictions.from_confidence(said[part], classes, right[part].astype(int))
        whole = cb.evaluate(rows, metrics=["ece"])
        ece = whole["ece"]
        assert window.ece == pytest.approx(ece.value, abs=1e-7)
        assert window.gap == pytest.approx(whole.gap.value, abs=1e-7)
        assert (window.gap_low, window.gap_high) == pytest.approx(whole.gap[1:], abs=1e-3)
        assert window.floor == pytest.approx(ece.floor, rel=0.1)
        assert window.floor_95 == pytest.approx(ece.floor_95, rel=0.15)
        assert (window.ece_low, window.ece_high) == pytest.approx((ece.low, ece.high), abs=0.01)


def test_an_error_of_which_two_rows_tell_may_be_as_large_as_their_gap_may_be():
    right = np.ones(200, dtype=bool)
    right[:2] = False
    monitor = cb.Monitor(window=200)
    monitor.update(np.full(200, 0.99), right)
    (window,) = monitor.windows()
    # Its resamples, of two errors, hardly reach .01.
    assert window.ece_high >= max(-window.gap_low, window.gap_high) > 0.02


def test_a_change_began_no_later_than_the_row_that_raised_its_alarm():
    for seed in range(10):
        rng = np.random.default_rng(seed)
        said = rng.uniform(0.6, 0.95, 400)
        monitor = cb.Monitor()
        monitor.update(said, rng.random(400) < np.where(np.arange(400) < 200, said, 0.05))
        for alarm in monitor.alarms.values():
            assert alarm.since.low <= alarm.since.row <= alarm.since.high <= alarm.row


def test_the_latest_window_is_a_whole_one_where_there_is_one():
    monitor = cb.Monitor(window=100)
    assert monitor.latest_window() is None
    said, right = stream(250)
    for rows, first in ((40, 0), (100, 0), (150, 0), (200, 100), (250, 100)):
        monitor.update(said[monitor.rows : rows], right[monitor.rows : rows])
        assert monitor.latest_window().first == first


def test_the_past_takes_ever_less_room_and_nothing_of_it_is_lost():
    trail = Trail.start(1, 10, 8)
    sizes = []
    for n in range(10, 200_001, 10):
        trail.extend(np.array([n]), np.array([n]), np.array([[float(n)]]))
        sizes.append(len(trail.count))
    assert sizes[-1] < 80
    assert sizes[-1] - sizes[len(sizes) // 2] <= 6
    assert trail.count[0] == 0
    assert np.all(trail.sums[:, 0] == trail.count)
    assert np.all(np.diff(trail.count)[-7:] == 10)
    ages = trail.count[-1] - trail.count[:-1]
    assert np.all(np.diff(trail.count) <= np.maximum(10, ages / 2))


def test_groups_share_one_guarantee_and_the_bad_one_is_named():
    rng = np.random.default_rng(0)
    said, right = stream(6_000)
    names = rng.choice(["a", "b", "c", "d"], 6_000)
    odds = np.log(said / (1 - said))
    bad = rng.random(6_000) < 1 / (1 + np.exp(-0.3 * odds))
    right = np.where(names == "c", bad, right)
    monitor = cb.Monitor(tolerance=0)
    monitor.update(said, right, names)
    found = {group.group: group for group in monitor.groups()}
    assert [name for name, group in found.items() if group.off] == ["c"]
    assert monitor.alarms["level"].group == "c"
    # The average of the whole stream's E with the weighted mean of the groups'.
    order = list(dict.fromkeys(names.tolist()))
    alone = {}
    for name in [None, *order]:
        part = names == name if name else np.ones(6_000, bool)
        own = cb.Monitor(tolerance=0)
        own.update(said[part], right[part])
        alone[name] = own
    weights = [1 / ((k + 1) * (k + 2)) for k in range(4)]
    mean = 1 - sum(weights)
    mean += sum(w * math.exp(alone[n].log_e) for w, n in zip(weights, order, strict=True))
    level = math.log((math.exp(alone[None].log_e) + mean) / 2)
    assert monitor.log_e == pytest.approx(level, abs=1e-9)
    # Bets of a group begin anew behind each of its rows.
    masses = np.zeros((4, len(ALTERNATIVES)))
    for group, pays in zip(names, payments(said, right, 0.0), strict=True):
        at = order.index(group)
        masses[at] = masses[at] * pays + 1
    mass = math.exp(alone[None].log_r) + masses.mean(axis=1).sum()
    assert monitor.log_r == pytest.approx(math.log(mass / 2), abs=1e-9)


def test_groups_raise_no_more_false_alarms_than_promised():
    streams, alarms = 100, np.zeros(2)
    for seed in range(streams):
        monitor = cb.Monitor(tolerance=0, average_run_length=10_000)
        monitor.update(*stream(1_000, seed), np.random.default_rng(seed).integers(0, 8, 1_000))
        alarms += ["level" in monitor.alarms, "change" in monitor.alarms]
    level, change = alarms / streams
    assert level <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / streams)
    assert change <= 0.1 + 3 * math.sqrt(0.1 * 0.9 / streams)


def test_the_alarm_of_groups_rises_at_the_row_at_which_it_would_one_by_one():
    said, right = stream(1_500, 5, slope=0.3)
    names = np.random.default_rng(2).choice(["x", "y", "z"], 1_500)
    whole, single = cb.Monitor(n_groups=3), cb.Monitor(n_groups=3)
    whole.update(said, right, names)
    for p, y, name in zip(said, right, names, strict=True):
        single.update(p, y, str(name))
    assert set(whole.alarms) == {"level", "change"}
    for test, alarm in whole.alarms.items():
        assert single.alarms[test].row == alarm.row
    assert whole.log_e == pytest.approx(single.log_e, abs=1e-9)


@pytest.mark.parametrize("clusters", [None, [str(i // 10) for i in range(2_000)]])
def test_evidence_beyond_all_numbers_in_one_update_raises_both_alarms(clusters):
    monitor = cb.Monitor()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        monitor.update([0.9999] * 2_000, [0] * 2_000, ["a", "b"] * 1_000, clusters)
    assert set(monitor.alarms) == {"level", "change"}
    assert monitor.alarms["change"].row < 100


def test_groups_without_end_share_the_last_place():
    groups = Groups()
    index = groups.index_of([str(i) for i in range(1_000)])
    assert len(groups.names) == MOST_GROUPS
    assert groups.names[-1] == OTHERS
    assert index.tolist()[: MOST_GROUPS - 1] == list(range(MOST_GROUPS - 1))
    assert set(index.tolist()[MOST_GROUPS - 1 :]) == {MOST_GROUPS - 1}
    with pytest.raises(cb.InputError, match="n_groups is 2, but 'c' is one group more"):
        cb.Monitor(n_groups=2).update([0.9] * 3, [1, 1, 1], ["a", "b", "c"])
    mixed = cb.Monitor()
    mixed.update(0.9, 1, "a")
    with pytest.raises(cb.InputError, match="for all rows or for none"):
        mixed.update(0.9, 1)


@pytest.mark.parametrize("grouped", [False, True])
def test_replicas_put_together_have_the_evidence_of_all_rows(grouped):
    said, right = stream(4_000, slope=0.75)
    names = np.array(["odd", "even"])[np.arange(4_000) % 2]
    of_replica = np.random.default_rng(0).integers(0, 3, 4_000)
    settings = {"n_groups": 2} if grouped else {}
    whole, replicas = cb.Monitor(**settings), [cb.Monitor(**settings) for _ in range(3)]
    whole.update(said, right, names if grouped else None)
    for k, replica in enumerate(replicas):
        part = of_replica == k
        replica.update(said[part], right[part], names[part] if grouped else None)
    merged = replicas[0].merge(*replicas[1:])
    assert merged.rows == 4_000
    assert merged.log_e == pytest.approx(whole.log_e, abs=1e-8)
    assert sum(w.rows for w in merged.windows()) == 4_000
    assert merged.alarms["level"].row == 3_999
    # R of the parts adds up, and goes on from there.
    if not grouped:
        mass = sum(math.exp(replica.log_r) for replica in replicas)
        assert merged.log_r == pytest.approx(math.log(mass))
    merged.update(said[:500], right[:500], names[:500] if grouped else None)
    assert merged.rows == 4_500
    assert sum(w.rows for w in merged.windows()) == 4_500
    with pytest.raises(cb.InputError, match=r"begun with one --alpha \(alpha=\) can be merged"):
        whole.merge(cb.Monitor(alpha=0.1, **settings))


def test_replicas_with_groups_must_know_how_many():
    one, two = cb.Monitor(), cb.Monitor()
    one.update(0.9, 1, "a")
    two.update(0.9, 1, "b")
    with pytest.raises(cb.InputError, match="only if they were begun with --n-groups"):
        one.merge(two)


def test_outcomes_may_come_late_and_in_any_order_and_count_once():
    said, right = stream(600)
    rng = np.random.default_rng(0)
    monitor, plain = cb.Monitor(), cb.Monitor()
    events = [(kind, i) for kind in ("said", "known") for i in range(600)] * 2
    counted = []
    for k in rng.permutation(len(events)):
        kind, i = events[k]
        before = monitor.rows
        if kind == "said":
            monitor.predict(f"id-{i}", said[i])
        else:
            monitor.learn(f"id-{i}", correct=right[i])
        if monitor.rows > before:
            counted.append(i)
    assert monitor.rows == 600
    assert sorted(counted) == list(range(600))
    assert monitor.unlabelled.rows == 0
    plain.update(said[counted], right[counted])
    assert monitor.log_e == plain.log_e


def test_labels_make_outcomes_where_predictions_have_classes():
    monitor = cb.Monitor()
    monitor.predict(["a", "b", "c"], [0.9, 0.8, 0.7], predicted=[3, 1, 2])
    assert monitor.unlabelled.rows == 3
    value, low, high = monitor.unlabelled.expected_accuracy
    assert value == pytest.approx(0.8)
    half = 1.959964 * math.sqrt(0.09 + 0.16 + 0.21) / 3
    assert (low, high) == pytest.approx((0.8 - half, 1.0))
    monitor.learn(["c", "a"], [2, 1])
    assert monitor.rows == 2
    assert monitor.windows()[0].accuracy == 0.5
    assert monitor.unlabelled.expected_accuracy[0] == pytest.approx(0.8)
    assert "only outcomes show a change of what the inputs mean" in " ".join(str(monitor).split())


def test_a_label_is_not_taken_for_whether_it_was_right():
    monitor = cb.Monitor()
    monitor.predict(["with", "without"], [0.9, 0.9], predicted=None)
    with pytest.raises(
        cb.PredictionsError, match="id 'without': a label needs the predicted class"
    ):
        monitor.learn("without", 7)
    monitor.learn("later", 7)
    with pytest.raises(cb.PredictionsError, match="id 'later': a label needs"):
        monitor.predict("later", 0.9)
    assert monitor.rows == 0
    monitor.learn(["without", "with"], correct=[True, False])
    monitor.predict("later", 0.9, 7)
    assert monitor.windows()[0].accuracy == pytest.approx(2 / 3)
    with pytest.raises(cb.InputError, match="either labels or correct"):
        monitor.learn("x")


def test_what_waits_is_bounded():
    monitor = cb.Monitor(most_waiting=10)
    monitor.predict(list(range(25)), [0.9] * 25)
    monitor.learn(list(range(25)), correct=[1] * 25)
    assert monitor.rows == 10


def test_a_state_is_the_monitor_itself(tmp_path):
    said, right = stream(3_000, slope=0.5)
    monitor = cb.Monitor(window=100)
    monitor.update(said[:2_000], right[:2_000], np.arange(2_000) % 3)
    monitor.predict(["x", 7], [0.5, 0.75], [1, 2], groups="1")
    monitor.notes["rows.jsonl"] = {"offset": 12}
    monitor.save(tmp_path / "state")
    again = cb.Monitor.load(tmp_path / "state")
    for one in (monitor, again):
        one.update(said[2_000:], right[2_000:], np.arange(1_000) % 3)
        one.learn(["7", "x", "x"], [2, 0, 0])
    assert again.as_dict(details=True) == monitor.as_dict(details=True)
    assert again.rows == 3_002
    assert again.alarms == monitor.alarms


def test_a_damaged_state_is_refused_in_one_sentence(tmp_path):
    path = tmp_path / "state"
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(CalibratorFileError, match="is not a readable safetensors file"):
        cb.Monitor.load(path)
    none = cb.posthoc.Uncalibrated().fit([[2.0, 0.0], [0.0, 1.0]], [0, 1])
    none.save(tmp_path / "other.safetensors")
    with pytest.raises(CalibratorFileError, match="not the state of a monitor"):
        cb.Monitor.load(tmp_path / "other.safetensors")


def watched() -> cb.Monitor:
    """Return a monitor that has some of everything: alarms, groups, windows, rows that wait."""
    said, right = stream(3_000, slope=0.4)
    monitor = cb.Monitor(window=100)
    monitor.update(said, right, np.arange(3_000) % 3)
    monitor.predict(["x", 7], [0.5, 0.75], [1, 2], groups="1")
    monitor.learn(["early"], [3])
    monitor.notes["inputs"] = {"rows.jsonl": {"rows": 12}}
    assert len(monitor.alarms) == 2
    return monitor


def test_a_byte_that_was_changed_anywhere_is_noticed(tmp_path):
    path, monitor = tmp_path / "state", watched()
    monitor.save(path)
    content, rng = path.read_bytes(), np.random.default_rng(0)
    refused = 0
    for place in rng.integers(len(content), size=200).tolist():
        changed = bytearray(content)
        changed[place] ^= int(rng.integers(1, 256))
        path.write_bytes(changed)
        try:
            again = cb.Monitor.load(path)
        except CalibratorFileError:
            refused += 1
        else:  # the version of the package that wrote it
            assert again.as_dict(details=True) == monitor.as_dict(details=True)
    assert refused > 190


def of_header(name, value, of="header"):
    """Return what sets an entry of the header, or of an object within it."""

    def change(header, arrays):
        (header if of == "header" else header[of])[name] = value

    return change


def of_array(name, value, at=0):
    """Return what sets a number of an array."""

    def change(header, arrays):
        arrays[name] = arrays[name].copy()
        arrays[name].reshape(-1)[at] = value

    return change


def of_waiting(text):
    def change(header, arrays):
        arrays["waiting"] = np.frombuffer(text.encode(), dtype=np.uint8)

    return change


def of_alarm(name, value):
    def change(header, arrays):
        header["alarms"][0][name] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        of_array("stream.products", np.nan),
        of_array("stream.products", np.inf),
        of_array("stream.masses", -1.0),
        of_array("stream.units", 2_999),
        of_array("stream.units", -1),
        of_array("stream.trail.count", 5),
        of_array("stream.trail.row", 10**9, -1),
        of_array("stream.trail.level", 63),
        of_array("stream.trail.sums", np.nan, 70),
        of_array("group1.units", 7),
        of_array("group1.cells", 7.0),
        of_array("windows.cells", -1.0),
        of_array("windows.cells", 0.5),
        of_array("group1.cells", 1e-300),
        of_array("stream.products", 1e9),
        of_header("n_groups", float("nan"), "settings"),
        of_header("n_groups", 2.5, "settings"),
        of_header("n_groups", 10**400, "settings"),
        of_array("dependence", 1e300, -1),
        of_header("tolerance", "0.02", "settings"),
        of_array("windows.sums", 1e9, -1),
        of_array("latest.confidence", 1.5),
        of_header("rows", 10**30),
        of_header("rows", -3),
        of_header("rows", 2_000),
        of_header("rows", True),
        of_header("groups", ["a", "a", "b"]),
        of_header("groups", ["0", "1"]),
        of_header("grouped", "yes"),
        of_header("notes", [1]),
        of_header("rows", 1e400, "unlabelled"),
        of_header("total", float("nan"), "unlabelled"),
        of_header("rows", 1, "unlabelled"),
        of_header("total", 0.5, "unlabelled"),
        of_header("variance", 0.0, "unlabelled"),
        of_header("window", "long", "settings"),
        of_header("alpha", 2.0, "settings"),
        of_header("beta", 2.0, "settings"),
        of_alarm("row", -1),
        of_alarm("row", 10**6),
        of_alarm("threshold", 0.0),
        of_alarm("log_evidence", float("nan")),
        of_alarm("test", "smell"),
        of_alarm("group", "nobody"),
        of_alarm("since", {"row": 5, "low": 9, "high": 10}),
        lambda header, arrays: arrays.update(done=np.array([7, 7])),
        lambda header, arrays: arrays.update(more=np.zeros(1)),
        lambda header, arrays: header.update(more=1),
        lambda header, arrays: header["notes"].update(announced=7),
        of_waiting("[" * 100_000),
        of_waiting("[{}, {}, 0]"),
        of_waiting('[{"a": [7.5, 1, null]}, {}, 0, 0]'),
        of_waiting('[{"a": [0.5, 1e30, null]}, {}, 0, 0]'),
        of_waiting('[{}, {"a": [1, 2]}, 0, 0]'),
    ],
)
def test_a_state_that_someone_wrote_is_checked_field_by_field(tmp_path, change):
    path = tmp_path / "state"
    watched().save(path)
    saved = read_state(path)
    arrays = {name: array for name, array in saved.arrays.items() if name != "alternatives"}
    write_state(path, saved.header, arrays)
    cb.Monitor.load(path)
    change(saved.header, arrays)
    write_state(path, saved.header, arrays)
    with pytest.raises(cb.CalibrantError) as refused:
        cb.Monitor.load(path)
    assert "\n" not in str(refused.value)


def test_an_id_may_hold_half_a_surrogate_pair(tmp_path):
    monitor = cb.Monitor()
    monitor.predict("\ud800", 0.9, 1)
    monitor.save(tmp_path / "state")
    again = cb.Monitor.load(tmp_path / "state")
    again.learn("\ud800", 1)
    assert again.rows == 1


@pytest.mark.parametrize(
    ("said", "right", "message"),
    [
        ([0.5, 1.2], [1, 0], "row 1 holds 1.2"),
        ([0.5, float("nan")], [1, 0], "row 1 holds nan"),
        ([0.5], [2], "0 to 1, but row 0 holds 2"),
        ([0.5, 0.6], [1], "1 entries, but there are 2 rows"),
    ],
)
def test_unusable_rows_are_refused_and_nothing_is_counted(said, right, message):
    monitor = cb.Monitor()
    with pytest.raises(cb.PredictionsError, match=message):
        monitor.update(said, right)
    assert monitor.rows == 0


def test_arguments_have_limits():
    groups = [{"n_groups": n} for n in (0, 2.5, float("nan"), True)]
    others = [{"tolerance": -0.1}, {"alpha": 0.0}, {"average_run_length": 1.0}, {"window": 1}]
    for bad in groups + others:
        with pytest.raises(cb.InputError, match=next(iter(bad))):
            cb.Monitor(**bad)
    assert cb.Monitor(tolerance=0).update(1.0, True) == ()


def test_probabilities_of_all_classes_and_of_class_one_will_do():
    probs = np.array([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]])
    top, plain, binary = cb.Monitor(), cb.Monitor(), cb.Monitor()
    top.update(probs, [0, 1])
    plain.update([0.7, 0.6], [True, False])
    assert top.log_e == plain.log_e
    binary.update([0.02, 0.9], [0, 1])
    assert binary.windows()[0].confidence == pytest.approx(0.46)


def test_large_numbers_have_spaces_and_very_large_ones_an_exponent():
    assert [spaced(n) for n in (999.4, 1234567, 2.5e12)] == ["999", "1 234 567", "2.5e+12"]
