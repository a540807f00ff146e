"""Run all benchmarks: `python -m benchmarks [--quick] [--out PATH]`, or `make bench`."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

import calibrant as cb
from benchmarks import clock, peers
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
            "smece": lambda: cb.metrics.smooth_ece(confidence, right, kind="confidence"),
            "smce": lambda: cb.metrics.smooth_calibration_error(
                confidence, right, kind="confidence"
            ),
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
    parser.add_argument("--repeats", type=int, default=5, help="timed calls of each contender")
    parser.add_argument("--sizes", nargs="+", type=size, help="such as 10000x1000")
    parser.add_argument(
        "--clock", choices=("wall", "cpu"), default="wall", help="cpu: for a busy machine"
    )
    parser.add_argument("--out", type=Path, help="where to keep the results as JSON")
    arguments = parser.parse_args()
    if arguments.clock == "cpu":
        clock.read = time.process_time
    peers.prepare()
    began = time.perf_counter()
    repeats = 2 if arguments.quick else arguments.repeats
    results: dict[str, Any] = {
        "date": today(),
        "clock": arguments.clock,
        "machine": machine(),
        "versions": versions(),
        "lines": [],
    }

    def finished(part: str, found: Any) -> None:
        results[part] = found
        results["load_after"] = machine()["load"]
        results["seconds_in_all"] = time.perf_counter() - began
        if arguments.out:  # a run that is cut off leaves what it has
            keep(arguments.out, results)

    lines: list[Line] = []
    for rows, classes in arguments.sizes or (SIZES[:2] if arguments.quick else SIZES):
        slow = slow_peers(lines) if rows > 10_000 else set[tuple[str, str]]()
        found = Bench(rows, classes, repeats, slow).lines()
        print(table(found), end="\n\n", flush=True)
        print_peers_that_differ(found)
        lines += found
        finished("lines", [line.as_dict() for line in lines])
    finished("million_rows", large_metrics())
    finished("start_up", start_up(repeats))
    for part in ("million_rows", "start_up"):
        for name, timing in results[part].items():
            print(f"{name}: {timing['seconds']:.3f} s{timing.get('error', '')}", flush=True)
    classes = 100 if arguments.quick else 1000
    finished("every_method", every_method(10_000, classes, arguments.limit))
    for method, took in results["every_method"].items():
        print(f"one fit of {method}: {took if isinstance(took, str) else f'{took:.2f} s'}")
    finished("peak_memory_over_input", peak_memory(10_000, classes))
    for method, share in results["peak_memory_over_input"].items():
        print(f"memory beyond the input, fit {method}: {share}")
    print(f"{results['seconds_in_all']:.0f} s in all")


def size(text: str) -> tuple[int, int]:
    """Return N and K of a text such as ``10000x1000``."""
    rows, classes = text.split("x")
    return int(rows), int(classes)


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
