"""Train a network with each loss, and compare their calibration before and after rescaling.

    python -m calibrant.studies.losses train --data CIFAR10 --out RUNS [--seeds 0,1,2]
        [--losses all]
    python -m calibrant.studies.losses table RUNS [--docs docs/losses-compared.md]

`train` skips runs that are finished and goes on with those that were broken off. `table` reads the
finished runs in RUNS, however many seeds of however many losses there are, and prints the tables;
with `--docs` it writes them into that page, and the pictures and numbers into images/ and
results/losses.json beside it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from calibrant.studies.losses.page import write_tables
from calibrant.studies.losses.training import commands, run_commands
from calibrant.studies.program import parser_for, run_study


def main(words: Sequence[str] | None = None) -> int:
    """Train, or make tables."""
    parser = parser_for("losses", __doc__)
    modes = parser.add_subparsers(required=True)
    train = modes.add_parser("train", help="train every loss with every seed")
    train.add_argument("--data", type=Path, required=True)
    train.add_argument("--out", type=Path, required=True)
    train.add_argument("--seeds", default="0,1,2")
    train.add_argument(
        "--losses",
        default="all",
        help="names, by commas; all: those of the tables, without the control",
    )
    train.add_argument("--net", default="resnet8")
    train.add_argument("--protocol", default="quick")
    train.add_argument("--epochs", type=int)
    train.add_argument("--n-classes", type=int, help="where the data don't name them")
    train.add_argument("--precision", default="bf16")
    train.add_argument("--loss-settings-for", default="cifar10")
    table = modes.add_parser("table", help="compare the finished runs")
    table.add_argument("runs", type=Path)
    table.add_argument("--docs", type=Path, help="page to refresh")
    table.add_argument("--resamples", type=int, default=1000)
    arguments = parser.parse_args(words)
    if "runs" in arguments:
        write_tables(arguments.runs, arguments.docs, arguments.resamples)
        return 0
    failed = run_commands(
        commands(arguments), lambda command: subprocess.run(command, check=False).returncode
    )
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    run_study(main)
