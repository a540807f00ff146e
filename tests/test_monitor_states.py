"""States of monitors: whatever was counted, what is written is read, and writes the same again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import calibrant as cb
from calibrant.monitor.promise import Promise


def saved(monitor: cb.Monitor, folder: Path) -> cb.Monitor:
    """Return the monitor of the state of a monitor, which writes the same."""
    monitor.save(folder / "state")
    again = cb.Monitor.load(folder / "state")
    again.save(folder / "again")
    assert (folder / "again").read_bytes() == (folder / "state").read_bytes()
    return again


def fed(rng, name: str, folder: Path, settings, *, grouped: bool, clustered: bool) -> cb.Monitor:
    """Return a monitor that was fed in all ways, and read from its state after each."""
    monitor = cb.Monitor(**settings)
    for kind in rng.integers(0, 5, 6):
        n = int(rng.choice([1, 40, 300]))
        said = 1 / (1 + np.exp(-rng.normal(0, rng.choice([1, 5, 20]), n)))
        said = np.where(rng.random(n) < 0.1, rng.choice([0, 1, 1e-4, 1 - 1e-4], n), said)
        right = rng.random(n) < rng.choice([said, 1 - said])
        groups = [str(g) for g in rng.integers(0, 5, n)] if grouped else None
        clusters = [f"{name}-{c}" for c in rng.integers(0, 30, n)] if clustered else None
        if kind < 2:
            monitor.update(said, right, groups, clusters, float(rng.uniform(0, 1e9)))
        elif kind == 2:
            monitor.predict(rng.integers(0, 60, n).tolist(), said, None, groups, clusters)
            monitor.learn(rng.integers(0, 60, n).tolist(), correct=rng.integers(0, 2, n))
        elif kind == 3:
            probs = np.stack([said, 1 - said], axis=1)
            monitor.update(probs, (~right).astype(int), groups, clusters)
            monitor.update(said)
        else:
            monitor.begin_anew()
        monitor = saved(monitor, folder)
    return monitor


@pytest.mark.parametrize("seed", range(8))
def test_a_state_that_was_written_is_read_and_writes_the_same(tmp_path, seed):
    rng = np.random.default_rng(seed)
    clustered, grouped = seed % 2 == 0, seed % 4 < 2
    settings = {
        "tolerance": float(rng.choice([0, 0.02, 0.3])),
        "window": 50,
        "latest": 200,
        "n_groups": 5,
        "open_clusters": 3,
        "most_waiting": int(rng.choice([3, 1000])),
        "promise": rng.choice([None, Promise(0.1, 0.6), Promise(1e-6, 0.3)]),
    }
    settings = {
        n: own.item() if isinstance(own, np.generic) else own for n, own in settings.items()
    }
    both = [
        fed(rng, name, tmp_path, settings, grouped=grouped, clustered=clustered) for name in "ab"
    ]
    merged = saved(both[0].merge(both[1]), tmp_path)
    merged.update([0.9], [1], "1" if grouped else None, "c" if clustered else None)
    saved(merged, tmp_path)


def test_replicas_of_which_one_has_no_scores_are_put_together(tmp_path):
    first, second = cb.Monitor(), cb.Monitor()
    first.update([0.9], [1])
    second.update([[0.9, 0.1]], [0])
    assert saved(first.merge(second), tmp_path).rows == 2


def test_rows_without_outcomes_of_replicas_are_summed(tmp_path):
    both, whole = [cb.Monitor(), cb.Monitor()], cb.Monitor()
    for one, p in zip(both, (np.full(3, 0.9), np.full(2, 0.6)), strict=True):
        one.update(np.array([0.5]), [1])
        for each in (one, whole):
            each.predict([f"{p[0]}-{i}" for i in range(len(p))], p)
    merged = saved(both[0].merge(both[1]), tmp_path)
    assert (merged.unlabelled.rows, merged.rows) == (5, 2)
    assert merged.unlabelled.expected_accuracy == pytest.approx(whole.unlabelled.expected_accuracy)


def test_replicas_whose_promise_is_broken_are_saved(tmp_path):
    both = [cb.Monitor(promise=Promise(0.1, 0.5)) for _ in range(2)]
    for one in both:
        one.update(np.full(40, 0.9), np.zeros(40))
    assert "promise" in saved(both[0].merge(both[1]), tmp_path).alarms


def test_what_waits_in_replicas_is_bounded_when_they_are_put_together(tmp_path):
    both = [cb.Monitor(most_waiting=3) for _ in range(2)]
    for name, one in zip("ab", both, strict=True):
        one.predict([f"{name}{i}" for i in range(3)], [0.5] * 3)
        one.learn([f"{name}-{i}" for i in range(2)], correct=[1, 1])
    waiting = saved(both[0].merge(both[1]), tmp_path).waiting
    assert (waiting.predictions, waiting.outcomes, waiting.given_up) == (3, 3, 3 + 1)


def test_unfinished_clusters_of_replicas_are_counted_after_what_was_counted(tmp_path):
    first, second = cb.Monitor(open_clusters=2), cb.Monitor(open_clusters=2)
    first.update([0.9, 0.9], [1, 0], clusters=["a", "b"])
    second.update(np.full(65, 0.9), np.ones(65), clusters=list(range(65)))
    merged = saved(first.merge(second), tmp_path)
    merged.close_clusters()
    counted = saved(merged, tmp_path).findings().clusters
    assert counted is not None
    assert counted.counted == 67
