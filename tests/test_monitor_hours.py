"""Calibration by hour of the clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pytest

import calibrant as cb
from calibrant.monitor.state_file import read_state, write_state
from calibrant.monitor.windows import HOURS_KEPT, Window, cell_sums, hour_of

START = datetime(2026, 11, 23, 16, 20, tzinfo=UTC)


def test_a_time_is_read_however_it_is_written():
    stamp = START.timestamp()
    hour = int(stamp // 3600)
    east = START.astimezone(timezone(timedelta(hours=5)))
    for time in (
        stamp,
        int(stamp),
        int(1000 * stamp),
        str(stamp),
        START,
        START.isoformat(),
        "2026-11-23T16:20:00Z",
        "2026-11-23 16:20",
        east.isoformat(),
    ):
        assert hour_of(time, "row 0") == hour
    for time in ("yesterday", "", None, True, float("nan"), -1, 10**400, [1]):
        with pytest.raises(cb.CalibrantError, match="row 0: a time must be"):
            hour_of(time, "row 0")


def test_a_window_says_what_evaluate_says_of_rows_that_tie_in_their_cells():
    rng = np.random.default_rng(3)
    said = rng.choice([0.55, 0.7, 0.85, 0.95, 0.99], 3_000)
    right = rng.random(3_000) < said - 0.06
    (window,) = _fed(said, right, window=3_000).windows()
    rows = cb.Predictions.from_confidence(said, correct=right)
    found = cb.evaluate(rows, metrics=["ece"], resamples=2_000)
    ece, gap = found["ece"], found.gap
    assert (window.gap, window.gap_low, window.gap_high) == pytest.approx(gap, abs=1e-6)
    assert window.ece == pytest.approx(ece.value, abs=1e-6)
    # 400 draws against 2 000: an end is known to a tenth of the interval's width.
    ends = (window.ece_low, window.ece_high, window.floor, window.floor_95)
    width = ece.high - ece.low
    assert ends == pytest.approx((ece.low, ece.high, ece.floor, ece.floor_95), abs=0.1 * width)


def test_what_rows_depend_on_widens_a_window_as_fewer_rows_do():
    rng = np.random.default_rng(4)
    said = rng.choice([0.6, 0.8, 0.9], 6_000)
    sums = cell_sums(said, rng.random(6_000) < said - 0.05)[0]
    wide, few = Window.of_sums(0, sums, effect=4.0), Window.of_sums(0, sums / 4)
    for name in ("gap_low", "gap_high", "ece_low", "ece_high", "floor", "floor_95"):
        assert getattr(wide, name) == pytest.approx(getattr(few, name), abs=0.003), name


def _fed(said, right, **settings) -> cb.Monitor:
    monitor = cb.Monitor(**settings)
    monitor.update(said, right)
    return monitor


def test_hours_are_the_rows_of_each_and_go_through_state_and_merge(tmp_path):
    rng = np.random.default_rng(0)
    said, right = rng.uniform(0.5, 1, 600), rng.random(600) < 0.7
    times = START.timestamp() + 10.0 * np.arange(600)
    whole, parts, late = cb.Monitor(), [cb.Monitor(), cb.Monitor()], cb.Monitor()
    whole.update(said, right, times=times)
    for part, at in zip(parts, (slice(0, 250), slice(250, 600)), strict=True):
        part.update(said[at], right[at], times=times[at])
    late.predict(list(range(600)), said, times=times)
    late.learn(list(range(600)), correct=right)
    whole.save(tmp_path / "state")
    hours = whole.findings().hours
    assert [hour for hour, _ in hours] == ["2026-11-23 16:00", "2026-11-23 17:00"]
    first = hours[0][1]
    assert first.rows == 240
    assert first.gap == pytest.approx(said[:240].mean() - right[:240].mean(), abs=1e-6)
    for other in (cb.Monitor.load(tmp_path / "state"), parts[0].merge(parts[1]), late):
        assert other.findings().hours == hours
    assert "2026-11-23 17:00" in str(whole)
    assert whole.as_dict(details=True)["details"]["hours"][0]["rows"] == 240


def test_old_hours_are_forgotten_and_their_sums_are_checked(tmp_path):
    monitor = cb.Monitor()
    rows = np.arange(HOURS_KEPT + 9)
    monitor.update(np.full(len(rows), 0.8), rows % 2, times=3600.0 * rows)
    assert len(monitor.findings().hours) == HOURS_KEPT
    assert monitor.findings().hours[0][0] == "1970-01-01 09:00"
    monitor.save(tmp_path / "state")
    for name, value in (("hours", -1), ("hours.cells", np.nan), ("hours.cells", 1e9)):
        saved = read_state(tmp_path / "state")
        saved.arrays.pop("alternatives")
        saved.arrays[name] = saved.arrays[name].copy()
        saved.arrays[name].reshape(-1)[0] = value
        write_state(tmp_path / "bad", saved.header, saved.arrays)
        with pytest.raises(cb.CalibrantError):
            cb.Monitor.load(tmp_path / "bad")
