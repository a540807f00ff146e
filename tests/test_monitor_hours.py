"""Calibration by hour of the clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pytest

import calibrant as cb
from calibrant.monitor.state_file import read_state, write_state
from calibrant.monitor.windows import HOURS_KEPT, hour_of

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
