"""The runs of `calibrant train` that second stages are tried on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from calibrant.core.errors import InputError
from calibrant.files import read_predictions
from calibrant.predictions.predictions import Predictions


class Run(NamedTuple):
    """Predictions of one network on its three sets."""

    folder: Path
    loss: str
    seed: int
    train: Predictions
    val: Predictions
    test: Predictions


def read_run(folder: Path) -> Run:
    """Read the three files of a run; that of the training images is made if need be."""
    from calibrant.training.second_stages.runs import files_of_run

    loss, _, seed = folder.name.rpartition("-")
    train, val, test = files_of_run(folder)
    if val is None:
        raise InputError(f"{folder}: holds no val.npz")
    parts = [read_predictions(file) for file in (train, val, test)]
    for part in parts:
        if part.features is None:
            raise InputError(f"{part.source}: there is no 'features'")
    return Run(folder, loss, int(seed), *parts)


def seconds_of_stage_one(folder: Path) -> float | None:
    """Return how long a run took by the times of its first and last file.

    None where the run was taken up again or the folder was copied, as far as that can be told.
    """
    first, last = folder / "config.json", folder / "test.npz"
    if not first.is_file():
        return None
    seconds = last.stat().st_mtime - first.stat().st_mtime
    return seconds if seconds > 1 else None


def finished(place: Path, losses: list[str]) -> list[Path]:
    """Return the folders of finished runs, in the order of the losses."""
    found: list[Path] = []
    for loss in losses:
        for folder in sorted(place.iterdir()):
            if re.fullmatch(re.escape(loss) + r"-\d+", folder.name) and all(
                (folder / f"{name}.npz").is_file() for name in ("val", "test")
            ):
                found.append(folder)
    return found
