"""Run all benchmarks: `python -m benchmarks [--quick] [--out PATH]`, or `make bench`."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

import calibrant as cb
from benchmarks import peers
from benchmarks.cases import OURS, Bench, Line
from benchmarks.clock import in_turn
from benchmarks.processes import every_method, peak_memory, start_up
from benchmarks.report import keep, machine, table, today, versions

SIZES = ((10_000, 10), (10_000, 100), (10_000, 1000), (50_000, 1000))
# A peer that takes longer than this at 10 000 x 1 000 is not run on five times the rows.
SLOW_SECONDS = 3.0


def large_metrics() -> dict[str, Any]:
    """Return seconds of smECE and smCE on a million distinct confidences, honest ones."""
    rng = np.random.default_rng(0)
    confidence = rng.beta(4, 1, size=1_000_000)
    right = rng.random(len(confidence)) < confidence
    timings = in_turn(
        {
            "smece": lambda: cb.kernel_calibration_error(confidence, right),
            "smce": lambda: cb.smooth_calibration_error(confidence, right),
        },
        3,
    )
    return {name: {"seconds": t.median, "spread": t.spread} for name, t in timings.items()}


def slow_peers(lines: list[Line]) -> set[tuple[str, str]]:
    """Return the (kernel, peer) pairs that were slow at 10 000 x 1 000."""
    return {
        (line.kernel.removeprefix("fit "), name)
        for line in lines
        for name, took in line.seconds.items()
        if line.classes == 1000 and name != OURS and took > SLOW_SECONDS
    }


def main() -> None:
    """Run everything, print the table and keep it."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two small sizes, two repeats")
    parser.add_argument("--limit", type=float, default=60, help="seconds for each method's one fit")
    parser.add_argument("--out", type=Path, help="where to keep the results as JSON")
    arguments = parser.parse_args()
    peers.prepare()
    began, before = time.perf_counter(), machine()
    lines: list[Line] = []
    for rows, classes in SIZES[:2] if arguments.quick else SIZES:
        repeats = 2 if arguments.quick else 5 if rows * classes <= 10_000_000 else 3
        slow = slow_peers(lines) if rows > 10_000 else set[tuple[str, str]]()
        found = Bench(rows, classes, repeats, slow).lines()
        print(table(found), end="\n\n", flush=True)
        lines += found
    print_peers_that_differ(lines)
    results = {
        "date": today(),
        "machine": before,
        "load_after": machine()["load"],
        "versions": versions(),
        "lines": [line.as_dict() for line in lines],
        "million_rows": large_metrics(),
        "start_up": start_up(2 if arguments.quick else 5),
        "peak_memory_over_input": peak_memory(10_000, 100 if arguments.quick else 1000),
        "every_method": every_method(10_000, 100 if arguments.quick else 1000, arguments.limit),
        "seconds_in_all": time.perf_counter() - began,
    }
    for part in ("million_rows", "start_up"):
        for name, timing in results[part].items():
            print(f"{name}: {timing['seconds']:.3f} s{timing.get('error', '')}")
    for method, share in results["peak_memory_over_input"].items():
        print(f"memory beyond the input, fit {method}: {share}")
    for method, took in results["every_method"].items():
        print(f"one fit of {method}: {took if isinstance(took, str) else f'{took:.2f} s'}")
    print(f"{results['seconds_in_all']:.0f} s in all")
    if arguments.out:
        keep(arguments.out, results)


def print_peers_that_differ(lines: list[Line]) -> None:
    """Say why results in brackets don't count, and why peers are missing."""
    for line in lines:
        where = f"{line.kernel}, {line.rows} x {line.classes}"
        for name, reason in (line.agrees | line.errors).items():
            if reason:
                print(f"{where}: {name}: {reason}")
    print()


if __name__ == "__main__":
    main()
