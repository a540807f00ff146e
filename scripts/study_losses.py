"""Train a network with each loss, and compare their calibration before and after rescaling.

    python scripts/study_losses.py train --data CIFAR10 --out RUNS [--seeds 0,1,2] [--losses all]
    python scripts/study_losses.py table RUNS [--docs docs/losses-compared.md]

`train` skips runs that are finished and goes on with those that were broken off. `table` reads the
finished runs in RUNS, however many seeds of however many losses there are, and prints the tables;
with `--docs` it writes them into that page, and the pictures and numbers into images/ and
results/losses.json beside it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from study_losses_figures import write_figures
from study_losses_gate import as_document as gate_document
from study_losses_gate import epochs, gates, norms
from study_losses_paper import all_tables
from study_losses_runs import CONTROLS, LINES, finished, read_runs
from study_losses_statistics import as_document
from study_losses_tables import fill

from calibrant.core.errors import CalibrantError, InputError
from calibrant.files.atomic import replacing

# Losses whose published settings for the data set differ from the defaults, or might.
PLAIN = ("cross-entropy", "mixup")


def commands(arguments: argparse.Namespace) -> dict[str, list[str]]:
    """Return the words of `calibrant train` for each run that isn't finished, by its name."""
    lines = list(LINES) if arguments.losses == "all" else arguments.losses.split(",")
    known = LINES | CONTROLS
    for line in lines:
        if line not in known:
            raise InputError(f"'{line}' is not in the study; there are: {', '.join(known)}")
    found: dict[str, list[str]] = {}
    for seed in arguments.seeds.split(","):
        for line in lines:
            name = f"{line}-{seed}".replace(" ", "-")
            out = arguments.out / name
            if finished(out):
                continue
            words = ["train", "--data", str(arguments.data), "--out", str(out), *known[line]]
            words += ["--net", arguments.net, "--protocol", arguments.protocol, "--seed", seed]
            words += [
                "--precision",
                arguments.precision,
            ]
            if line not in PLAIN:
                words += ["--loss-settings-for", arguments.loss_settings_for]
            for option in ("epochs", "num_classes"):
                if getattr(arguments, option) is not None:
                    words += [f"--{option.replace('_', '-')}", str(getattr(arguments, option))]
            # Begins anew where there is no checkpoint yet.
            found[name] = [*words, "--resume"]
    return found


def run_commands(wanted: dict[str, list[str]], call: Callable[[Sequence[str]], int]) -> list[str]:
    """Run each command and return the names of those that failed; one doesn't stop the others."""
    failed: list[str] = []
    for number, (name, words) in enumerate(wanted.items(), start=1):
        print(f"{number} of {len(wanted)}: {name}", flush=True)
        if call([sys.executable, "-m", "calibrant", *words]) != 0:
            failed.append(name)
    return failed


def write_tables(arguments: argparse.Namespace) -> None:
    """Print and write what the finished runs show."""
    runs = read_runs(
        arguments.runs,
        arguments.resamples,
        lambda words: print(f"reading {words}", file=sys.stderr, flush=True),
    )
    tables = [*all_tables(runs), norms(runs), gates(runs), epochs(runs)]
    print("\n\n\n".join(map(str, tables)))
    if arguments.docs is None:
        return
    page = fill(arguments.docs.read_text(encoding="utf-8"), tables)
    folder = arguments.docs.parent
    (folder / "results").mkdir(exist_ok=True)
    numbers = json.dumps(as_document(runs) | gate_document(runs), indent=1, allow_nan=False)
    for file, text in ((arguments.docs, page), (folder / "results/losses.json", numbers + "\n")):
        with replacing(file) as temporary:
            temporary.write_text(text, encoding="utf-8")
    write_figures(runs, folder / "images")


def main() -> int:
    """Train, or make tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
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
    train.add_argument("--num-classes", type=int, help="where the data don't name them")
    train.add_argument("--precision", default="bf16")
    train.add_argument("--loss-settings-for", default="cifar10")
    table = modes.add_parser("table", help="compare the finished runs")
    table.add_argument("runs", type=Path)
    table.add_argument("--docs", type=Path, help="page to refresh")
    table.add_argument("--resamples", type=int, default=1000)
    arguments = parser.parse_args()
    try:
        if "runs" in arguments:
            write_tables(arguments)
            return 0
        failed = run_commands(
            commands(arguments), lambda words: subprocess.run(words, check=False).returncode
        )
    except CalibrantError as error:
        print(error, file=sys.stderr)
        return 2
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
