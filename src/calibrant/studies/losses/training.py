"""The runs of `calibrant train` that the study of losses is made of."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from calibrant.core.errors import InputError
from calibrant.studies.losses.runs import CONTROLS, LINES, finished

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
            words += ["--precision", arguments.precision]
            if line not in PLAIN:
                words += ["--loss-settings-for", arguments.loss_settings_for]
            for option in ("epochs", "n_classes"):
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
