"""The folder of a run: what it was asked to do, how it went, and what the network says."""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from calibrant.core.errors import InputError, PredictionsError, TrainingWarning, warn_caller
from calibrant.core.text import strict_json
from calibrant.files.atomic import StrPath, replacing
from calibrant.predictions.last_layer import Head, check_head_makes
from calibrant.training.nets import ImageClassifier, TappedNetwork
from calibrant.training.nets.forms import frozen
from calibrant.training.run.outputs import Outputs
from calibrant.training.run.settings import RunSettings
from calibrant.training.run.state import LAST, Progress

CONFIG = "config.json"


def is_first_process() -> bool:
    """Return whether this is the process that makes the folder and speaks, known before a launch.

    What starts processes, be it Lightning or torchrun, numbers those of a machine in LOCAL_RANK.
    """
    return os.environ.get("LOCAL_RANK", "0") == "0"


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
    with replacing(folder / "history.json") as temporary:
        temporary.write_text(strict_json(rows, indent=2) + "\n", encoding="utf-8")
    with (
        replacing(folder / "history.csv") as temporary,
        temporary.open("w", newline="", encoding="utf-8") as file,
    ):
        table = csv.DictWriter(file, fieldnames=list(rows[0]) if rows else [])
        table.writeheader()
        table.writerows(rows)


def write_outputs(
    file: StrPath, outputs: Outputs, network: nn.Module | None = None, *, layer: str | None = None
) -> None:
    """Write predictions that the rest of the package reads, with the last layer beside them.

    The arrays are `logits` (N, K), `labels` (N,), `features` (N, D), and of a linear last layer
    `head_weight` (K, D) and `head_bias` (K,); all float32 but the labels, which are int64.

    Args:
        file: an npz file.
        outputs: what `predict` gave.
        network: whose last layer to add; None leaves it out, as does a layer that isn't linear, and
            with a warning one that doesn't make these logits of these features.
        layer: of a network of your own; None takes the one that the outputs are of.

    Raises:
        InputError: there is no such layer, or the file isn't called .npz or can't be written.
    """
    if not str(file).endswith(".npz"):
        raise InputError(f"{file}: predictions are written as .npz; give the file that ending")
    arrays = {
        "logits": outputs.logits.numpy(),
        "labels": outputs.labels.numpy(),
        "features": outputs.features.numpy(),
    }
    head = None if network is None else _head(network, layer or outputs.layer)
    # A layer that saw more than one vector of each row makes no logits of its features.
    if head is not None and head.weight.shape[1] == outputs.features.shape[1]:
        if _makes(head, outputs, str(file)):
            arrays["head_weight"], arrays["head_bias"] = head
        else:
            name = layer or outputs.layer or "fc"
            warn_caller(
                TrainingWarning(
                    f"{file}: layer '{name}' doesn't make these logits of these features, and its "
                    "weights are left out; if another is the last one name it with layer="
                )
            )
    with replacing(file) as temporary:
        np.savez_compressed(temporary, **cast(Any, arrays))


def _head(network: nn.Module, layer: str | None) -> Head | None:
    """Return weight and bias of a network's last layer, if that is linear."""
    found = _last_layer(network, layer)
    if found is None:
        return None
    # A weight that is computed, as in spectral norm, is computed anew each time in training mode.
    with frozen(network):
        weight, bias = found.weight, cast(Tensor | None, found.bias)
    bias = torch.zeros(found.out_features) if bias is None else bias
    return Head(weight.detach().float().cpu().numpy(), bias.detach().float().cpu().numpy())


def _last_layer(network: nn.Module, layer: str | None) -> nn.Linear | None:
    if isinstance(network, ImageClassifier):
        return network.fc
    if isinstance(network, TappedNetwork):
        return network.head
    tapped = TappedNetwork(network, layer)
    tapped.close()
    return tapped.head


def _makes(head: Head, outputs: Outputs, file: str) -> bool:
    logits, features = outputs.logits.numpy(), outputs.features.numpy()
    # Numbers that aren't finite are told of where the file is read, by their row.
    if head.weight.shape[0] != logits.shape[1] or not np.isfinite(logits).all():
        return head.weight.shape[0] == logits.shape[1]
    try:
        check_head_makes(head, features, logits, file, of_probabilities=False)
    except PredictionsError:
        return False
    return True
