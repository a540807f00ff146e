"""How far a run is, and the checkpoint that holds it: tensors and plain values, no pickled code."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from calibrant.core.errors import InputError
from calibrant.files.atomic import replacing
from calibrant.training.data.images import Normalisation

FORMAT = 1
LAST, BEST = "last.ckpt", "best.ckpt"


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

    epoch: int = 0
    step: int = 0
    loss_sum: float = 0.0
    right: int = 0
    rows: int = 0
    best_accuracy: float = -1.0
    history: list[dict[str, float]] = field(default_factory=list[dict[str, float]])


def save_checkpoint(
    path: Path,
    progress: Progress,
    objective: dict[str, Any],
    optimizer: dict[str, Any],
    precision: dict[str, Any],
    normalise: Normalisation,
) -> None:
    """Write a checkpoint, whole or not at all.

    Args:
        path: of the file.
        progress: where the run is.
        objective: the state dict of network and loss together.
        optimizer: its state dict.
        precision: state of the loss scaling of 16-bit floats; empty without.
        normalise: what the network reads its images through.
    """
    content = {
        "format": FORMAT,
        "progress": asdict(progress),
        "objective": objective,
        "optimizer": optimizer,
        "precision": precision,
        "normalisation": (normalise.mean, normalise.std),
    }
    with replacing(path) as temporary:
        torch.save(content, temporary)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Return the content of a checkpoint on the CPU, its progress as `Progress`.

    Raises:
        InputError: the file is none, or is damaged.
    """
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    # A damaged file makes the decoder raise almost anything.
    except Exception as error:
        raise InputError(f"{path}: can't be read as a checkpoint ({error})") from error
    if not hasattr(content, "keys") or content.get("format") != FORMAT:
        raise InputError(f"{path}: is no checkpoint of a run, or of another version")
    content["progress"] = Progress(**content["progress"])
    return content
