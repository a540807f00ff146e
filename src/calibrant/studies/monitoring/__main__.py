"""Measure false alarms and delays of the monitor beside checks that are looked at again and again.

    python -m calibrant.studies.monitoring --streams 400

Streams of 10 000 rows with logit p ~ N(2.2, 1.6) are honest, slightly off, or go off at row 5 000:
true log odds a + b logit p. The monitor has alpha 5 %, c = 20 000, and tolerance 0 or 0.02; the
checks are looked at every hundred rows. With ``--run FOLDER`` the study takes a trained network and
its test images instead, at rising severity of every corruption.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from calibrant.core.text import format_table
from calibrant.studies.monitoring.checks import CHECKS, monitored
from calibrant.studies.monitoring.images import CLEAN, EACH, HEAD, corrupted_streams
from calibrant.studies.monitoring.streams import KINDS, Kind, draw
from calibrant.studies.program import parser_for, run_study

TOLERANCES = (0.0, 0.02)


def outcomes(kind: Kind, streams: int, seed: int) -> tuple[dict[str, list[int | None]], list[bool]]:
    """Return the row of the alarm of each test on each stream, and which intervals hold.

    Returns:
        rows: of the first alarm, by test; None where there is none.
        held: for each change alarm after the change, whether its interval holds the change.
    """
    rows: dict[str, list[int | None]] = {}
    held: list[bool] = []
    for i in range(streams):
        said, right = draw(kind, seed + i)
        found: dict[str, int | None] = {}
        for tolerance in TOLERANCES:
            alarms = monitored(said, right, tolerance).alarms
            for test in ("level", "change"):
                alarm = alarms.get(test)
                found[f"{test}, tolerance {tolerance:g}"] = None if alarm is None else alarm.row
                if test == "change" and alarm and kind.sudden and alarm.row >= (kind.change or 0):
                    held.append(alarm.since.low <= (kind.change or 0) <= alarm.since.high)
        found |= {name: check(said, right) for name, check in CHECKS.items()}
        for name, row in found.items():
            rows.setdefault(name, []).append(row)
    return rows, held


def share(found: Sequence[bool]) -> str:
    """Return a share in percent with its standard error."""
    p, n = float(np.mean(found)), len(found)
    return f"{100 * p:.1f} +- {100 * math.sqrt(max(p * (1 - p), 0.25 / n) / n):.1f}"


def simulated(streams: int, seed: int) -> None:
    """Print a table for each kind of stream."""
    for kind in KINDS:
        found, held = outcomes(kind, streams, seed)
        table: list[list[str]] = []
        for name, rows in found.items():
            change = math.inf if kind.change is None else kind.change
            false = share([row is not None and row < change for row in rows])
            after = [row - (kind.change or 0) for row in rows if row is not None and row >= change]
            delay = "" if not after else f"{np.median(after):.0f}"
            spread = (
                ""
                if not after
                else " to ".join(f"{q:.0f}" for q in np.quantile(after, (0.25, 0.75)))
            )
            table.append(
                [
                    name,
                    false,
                    share([row is not None and row >= change for row in rows]),
                    delay,
                    spread,
                ]
            )
        print(f"{kind.name}, {streams} streams\n")
        print(
            format_table(
                ["test", "false alarms %", "true ones %", "median delay", "quartiles"], table
            )
        )
        if held:
            print(f"\nIntervals of the change point that hold it: {share(held)} %")
        print(flush=True)


def main(words: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = parser_for("monitoring", __doc__)
    parser.add_argument("--streams", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--run", type=Path, help="folder of a training run, for corrupted images")
    parser.add_argument("--method", default="top-rest", help="its calibrator")
    arguments = parser.parse_args(words)
    if arguments.run is None:
        simulated(arguments.streams, arguments.seed)
        return
    table = corrupted_streams(arguments.run, arguments.method, arguments.seed)
    print(
        f"{CLEAN} clean images, then {EACH} at each severity from 1 to 5; {arguments.method}, "
        "tolerance 0.02, c = 100 000. Gaps in points.\n"
    )
    print(format_table(HEAD, table))


if __name__ == "__main__":
    run_study(main)
