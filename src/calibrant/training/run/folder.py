"""The folder of a run: what it was asked to do, how far it is, how it went."""

from __future__ import annotations

import csv
import hashlib
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from calibrant.core.arguments import argument, check_arguments
from calibrant.core.errors import InputError
from calibrant.core.outputs import replacing
from calibrant.core.text import reason_of, strict_json
from calibrant.files.opening import make_folder
from calibrant.training.data.images import Normalisation
from calibrant.training.run.settings import RunSettings

FORMAT = 1
LAST, BEST, AVERAGE = "last.ckpt", "best.ckpt", "average.ckpt"
# Where the weights are that a protocol counts.
SELECTED = {"last": LAST, "best": BEST, "ema": AVERAGE, "swa": AVERAGE}
_PARTS = ("progress", "objective", "optimizer", "precision", "normalisation", "data")


@dataclass
class Progress:
    """Where a run is.

    Attributes:
        epoch: the one that is going on, counted from 0.
        step: the next of its steps.
        loss_sum: of the rows of this epoch so far, on this device.
        right: how many of those were classified rightly.
        rows: how many there were.
        best_accuracy: the largest validation accuracy of a finished epoch; -1 before the first.
        history: a row for every finished epoch.
    """

    epoch: int = argument(0, at_least=0)
    step: int = argument(0, at_least=0)
    loss_sum: float = 0.0
    right: int = argument(0, at_least=0)
    rows: int = argument(0, at_least=0)
    best_accuracy: float = argument(-1.0)
    history: list[dict[str, float]] = field(default_factory=list[dict[str, float]])


def save_checkpoint(
    path: Path,
    progress: Progress,
    objective: dict[str, Any],
    optimizer: dict[str, Any],
    precision: dict[str, Any],
    normalise: Normalisation,
    labels: Tensor,
) -> None:
    """Write a checkpoint, whole or not at all.

    Args:
        path: of the file.
        progress: where the run is.
        objective: the state dict of network and loss together.
        optimizer: its state dict.
        precision: state of the loss scaling of 16-bit floats; empty without.
        normalise: what the network reads its images through.
        labels: (N,) of the rows to train on, in their order, by which data are told apart.
    """
    content = {
        "format": FORMAT,
        "progress": asdict(progress),
        "objective": objective,
        "optimizer": optimizer,
        "precision": precision,
        "normalisation": (normalise.mean, normalise.std),
        "data": told_apart(labels),
    }
    with replacing(path) as temporary:
        torch.save(content, temporary)


def told_apart(labels: Tensor) -> str:
    """Return what the rows to train on are known by: their number and a digest of their labels."""
    content = labels.cpu().long().contiguous().numpy().tobytes()
    return f"{len(labels)} rows, {hashlib.blake2b(content, digest_size=8).hexdigest()}"


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Return the content of a checkpoint on the CPU, its progress as `Progress`.

    Raises:
        InputError: the file is none, is damaged, lacks a part, or has weights that are no numbers.
    """
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    # A damaged file makes the decoder raise almost anything.
    except Exception as error:
        fault = f"{path}: can't be read as a checkpoint ({reason_of(error)})"
        raise InputError(fault) from error
    kept = cast(dict[str, Any], content if isinstance(content, dict) else {})
    if type(kept.get("format")) is not int or kept["format"] != FORMAT:
        raise InputError(f"{path}: is no checkpoint of a run, or of another version")
    for name in _PARTS:
        if name not in kept:
            raise InputError(f"{path}: is a checkpoint without '{name}'")
    try:
        progress = _progress(kept["progress"])
    except (TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"{path}: doesn't say how far the run is ('progress' is damaged)"
        ) from error
    for name in ("objective", "optimizer", "precision"):
        if not isinstance(kept[name], dict):
            raise InputError(f"{path}: '{name}' must be a dict, not {type(kept[name]).__name__}")
    if not isinstance(kept["data"], str):
        raise InputError(f"{path}: 'data' must say what rows the run is on")
    for name, values in kept["objective"].items():
        if not isinstance(values, Tensor):
            raise InputError(f"{path}: '{name}' of the objective is no tensor")
        if values.is_floating_point() and not values.isfinite().all():
            raise InputError(f"{path}: '{name}' holds values that are no finite numbers")
    if not _is_normalisation(kept["normalisation"]):
        raise InputError(f"{path}: 'normalisation' must be means and deviations of three colours")
    return kept | {"progress": progress}


@contextmanager
def loading(path: Path) -> Generator[None]:
    """Turn whatever a part says against the state that it is given into an `InputError`."""
    try:
        yield
    # torch's parts raise RuntimeError, KeyError, ValueError, TypeError, ...
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = " ".join(lines[:2])[:200] or type(error).__name__
        raise InputError(f"{path}: doesn't fit this network and loss ({reason})") from error


def _progress(content: Any) -> Progress:
    """Return the progress of a checkpoint; any of three errors if it holds something else."""
    progress = Progress(**content)
    check_arguments(progress)
    rows: list[Any] = progress.history
    numbers = [progress.loss_sum, *(cell for row in rows for cell in row.values())]
    whole = content.keys() == asdict(progress).keys() and len(rows) == progress.epoch
    if not whole or not all(isinstance(number, (int, float)) for number in numbers):
        raise ValueError("damaged")
    return progress


def _is_normalisation(value: Any) -> bool:
    try:
        mean, std = (tuple(float(number) for number in part) for part in value)
    except (TypeError, ValueError):
        return False
    sound = all(isfinite(number) for number in (*mean, *std)) and all(number > 0 for number in std)
    return len(mean) == len(std) == 3 and sound


CONFIG = "config.json"


def is_first_process() -> bool:
    """Return whether this is the process that makes the folder and speaks, known before a launch.

    What starts processes, be it Lightning or torchrun, numbers those of a machine in LOCAL_RANK.
    """
    return os.environ.get("LOCAL_RANK", "0") == "0"


def open_folder(folder: Path, settings: RunSettings, *, resume: bool) -> bool:
    """Make the folder of a run, or check that the run in it is the one that is to go on.

    Returns:
        Whether a run begins here.

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
        return False
    make_folder(str(folder))
    with replacing(config) as temporary:
        temporary.write_text(settings.as_json() + "\n", encoding="utf-8")
    return True


def write_history(folder: Path, progress: Progress) -> None:
    """Write a row for every finished epoch: history.csv and the same as history.json.

    What isn't a number (a share of changes in the first epoch, the training accuracy under MIT) is
    nan in the former, null in the latter.
    """
    rows = progress.history
    with replacing(folder / "history.json") as temporary:
        temporary.write_text(strict_json(rows, indent=2) + "\n", encoding="utf-8")
    with (
        replacing(folder / "history.csv") as temporary,
        temporary.open("w", newline="", encoding="utf-8") as file,
    ):
        table = csv.DictWriter(file, fieldnames=list(rows[0]) if rows else [])
        table.writeheader()
        table.writerows(rows)


class Observer:
    """Told what happens in a run; a base to derive from. It must not change the run.

    An exception raised in here ends the run, which can be taken up again from its last checkpoint.
    """

    def on_start(self, steps_per_epoch: int) -> None:
        """The first step of this process is about to begin."""

    def on_step(self, progress: Progress) -> None:
        """A step is done; `progress.step` is the next one."""

    def on_epoch(self, progress: Progress) -> None:
        """An epoch is done; its row is the last of the history."""


@dataclass(eq=False)
class Announcer(Observer):
    """Says in words which step is going on.

    Attributes:
        epochs: how many the run has.
        say: called as each step begins with the words, how many steps are done, and how many the
            run has. Of the words, what the last whole epoch came to is a line of its own.
    """

    epochs: int
    say: Callable[[str, int, int], None]
    _steps: int = 0

    def on_start(self, steps_per_epoch: int) -> None:
        """Remember the number, and say nothing of a first step that may be anywhere."""
        self._steps = steps_per_epoch

    def on_step(self, progress: Progress) -> None:
        """Name the epoch, and what the last whole one came to, if there is one."""
        words = f"epoch {progress.epoch + 1} of {self.epochs}"
        if progress.history:
            last = progress.history[-1]
            words += (
                f"\nepoch {int(last['epoch'])}: training loss {last['train_loss']:.3f}, "
                f"validation accuracy {last['validation_accuracy']:.1%}"
            )
        self.say(words, progress.epoch * self._steps + progress.step, self.epochs * self._steps)
