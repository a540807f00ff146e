"""How many rows a second the monitor takes: `python -m benchmarks.monitoring`.

One thread, processor time, medians of the repeats with the slowest and the quickest. With
``--long ROWS`` that many rows also go through one monitor, and it says what memory they took.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import calibrant as cb
from calibrant.monitor.rows import Reading
from calibrant.monitor.sequential_tests import TwoTests, bets_of_rows, payments
from calibrant.monitor.streams import feed
from calibrant.monitor.windows import Windows

ROWS, AT_ONCE = 400_000, 2048


def rows(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return honest confidences and outcomes."""
    rng = np.random.default_rng(seed)
    said = 1 / (1 + np.exp(-rng.normal(2.2, 1.6, n)))
    return said, rng.random(n) < said


def show(name: str, count: int, call: Callable[[], object], repeats: int) -> None:
    """Print rows a second of processor time."""
    rates: list[float] = []
    for _ in range(repeats):
        began = time.process_time()
        call()
        rates.append(count / (time.process_time() - began))
    low, high = min(rates), max(rates)
    print(
        f"{name:42} {statistics.median(rates):12,.0f} rows/s ({low:,.0f} to {high:,.0f})",
        flush=True,
    )


def main() -> None:
    """Time everything."""
    parser = argparse.ArgumentParser(prog="benchmarks.monitoring", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--long", type=int, default=0, help="rows of one long stream")
    arguments = parser.parse_args()
    said, right = rows(ROWS)
    parts = [slice(start, start + AT_ONCE) for start in range(0, ROWS, AT_ONCE)]

    def windows() -> None:
        held = Windows.start(1_000)
        for part in parts:
            held.add(said[part], right[part])

    def tests(tolerance: float) -> None:
        held, number = TwoTests(tolerance, 0.05, 1e6), np.arange(ROWS)
        for part in parts:
            paid = payments(said[part], right[part], tolerance)
            held.add(bets_of_rows(paid, number[part], None))

    repeats = arguments.repeats
    show("windows", ROWS, windows, repeats)
    show("both tests, tolerance 0.02", ROWS, lambda: tests(0.02), repeats)
    show("both tests, tolerance 0", ROWS, lambda: tests(0.0), repeats)
    show("Monitor.update, all at once", ROWS, lambda: cb.Monitor().update(said, right), repeats)
    names = np.array([f"class {k}" for k in range(10)])[np.arange(ROWS) % 10]
    show(
        "Monitor.update, 10 groups", ROWS, lambda: cb.Monitor().update(said, right, names), repeats
    )

    def single() -> None:
        monitor = cb.Monitor()
        for p, y in zip(said[:3_000].tolist(), right[:3_000].tolist(), strict=True):
            monitor.update(p, y)

    show("Monitor.update, a row at a time", 3_000, single, repeats)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        some = zip(said[:100_000].tolist(), right[:100_000].tolist(), strict=True)
        path.write_text(
            "".join(json.dumps({"confidence": p, "correct": y}) + "\n" for p, y in some)
        )
        show(
            "a file of JSON lines",
            100_000,
            lambda: list(feed(cb.Monitor(), [str(path)], Reading())),
            repeats,
        )
        state, monitor = Path(folder) / "state", cb.Monitor()
        monitor.update(said, right)
        show("states written", 20, lambda: [monitor.save(state) for _ in range(20)], repeats)
        print(f"state after {ROWS:,} rows: {state.stat().st_size / 1024:.0f} kB")
        if arguments.long:
            long_stream(arguments.long, state)


def long_stream(count: int, state: Path) -> None:
    """Send `count` rows through one monitor."""
    monitor, block = cb.Monitor(), 1_000_000
    monitor.update(*rows(block))
    before, spent = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, 0.0
    while monitor.rows < count:
        drawn = rows(block, monitor.rows)
        began = time.process_time()
        monitor.update(*drawn)
        spent += time.process_time() - began
    monitor.save(state)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"{monitor.rows:,} rows: {(monitor.rows - block) / spent:,.0f} rows/s, "
        f"{(peak - before) / 1024:.0f} MB more than after {block:,}, "
        f"state {state.stat().st_size / 1024:.0f} kB, {len(monitor.windows())} windows, "
        f"alarms {sorted(monitor.alarms)}"
    )


if __name__ == "__main__":
    main()
