"""The folder of a run: what it was asked to do, how it went, and what the network says."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import numpy as np

from calibrant.core.errors import InputError
from calibrant.files.atomic import StrPath, replacing
from calibrant.training.nets import ImageClassifier
from calibrant.training.run.outputs import Outputs
from calibrant.training.run.settings import RunSettings
from calibrant.training.run.state import LAST, Progress

CONFIG = "config.json"


def open_folder(folder: Path, settings: RunSettings, *, resume: bool) -> None:
    """Make the folder of a run, or check that the run in it is the one that is to go on.

    Raises:
        InputError: the folder holds a run and none is to go on, or one with other settings.
    """
    config = folder / CONFIG
    if not resume and ((folder / LAST).exists() or config.exists()):
        raise InputError(
            f"{folder}: holds a run already; choose another folder, or go on with that run "
            "(--resume)"
        )
    if resume and config.exists():
        before, now = vars(RunSettings.read(config)), vars(settings.as_read_again())
        changed = [name for name in now if before[name] != now[name]]
        if changed:
            name = changed[0]
            raise InputError(
                f"{folder}: the run there has {name} {before[name]!r}, not {now[name]!r}; it can "
                "only go on as it began"
            )
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: can't make this folder ({error.strerror})") from error
    with replacing(config) as temporary:
        temporary.write_text(settings.as_json() + "\n", encoding="utf-8")


def write_history(folder: Path, progress: Progress) -> None:
    """Write a row for every finished epoch: history.csv and the same as history.json.

    What isn't a number (a share of changes in the first epoch, the training accuracy under MIT) is
    nan in the former, null in the latter.
    """
    rows = progress.history
    plain = [
        {name: value if math.isfinite(value) else None for name, value in row.items()}
        for row in rows
    ]
    with replacing(folder / "history.json") as temporary:
        temporary.write_text(json.dumps(plain, indent=2) + "\n", encoding="utf-8")
    with (
        replacing(folder / "history.csv") as temporary,
        temporary.open("w", newline="", encoding="utf-8") as file,
    ):
        table = csv.DictWriter(file, fieldnames=list(rows[0]) if rows else [])
        table.writeheader()
        table.writerows(rows)


def write_outputs(file: StrPath, outputs: Outputs, network: ImageClassifier) -> None:
    """Write predictions that the rest of the package reads, with the last layer beside them.

    The arrays are `logits` (N, K), `labels` (N,), `features` (N, D), `head_weight` (K, D) and
    `head_bias` (K,); all float32 but the labels, which are int64.
    """
    head = {
        "head_weight": network.fc.weight.detach().float().cpu().numpy(),
        "head_bias": network.fc.bias.detach().float().cpu().numpy(),
    }
    with replacing(file) as temporary:
        np.savez_compressed(
            temporary,
            logits=outputs.logits.numpy(),
            labels=outputs.labels.numpy(),
            features=outputs.features.numpy(),
            head_weight=head["head_weight"],
            head_bias=head["head_bias"],
        )
