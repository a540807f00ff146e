"""A trained network: what a run hands back, and how it is taken up again from its folder."""

from __future__ import annotations

from dataclasses import dataclass
from os import fspath
from pathlib import Path
from typing import Any, overload

from torch import nn

from calibrant.core.errors import InputError
from calibrant.files.atomic import StrPath
from calibrant.predictions.predictions import Predictions
from calibrant.training.data.images import Normalisation
from calibrant.training.features import check_module
from calibrant.training.nets import ImageClassifier, make_network
from calibrant.training.run.examples import normalisation_of
from calibrant.training.run.folder import CONFIG
from calibrant.training.run.settings import RunSettings
from calibrant.training.run.state import BEST, LAST, loading, read_checkpoint

# A network of one's own is within what listens to it, and both are called that.
_PREFIX = "network."


@dataclass(frozen=True, eq=False)
class Trained:
    """What a run gives.

    Attributes:
        folder: of the run.
        history: a row for every epoch.
        network: on the CPU, with the weights that the protocol counts; your own if there was one.
        normalise: the map from bytes to its inputs.
        validation: its predictions for the held-out images.
        test: its predictions for the test images.
    """

    folder: Path
    history: list[dict[str, float]]
    network: nn.Module
    normalise: Normalisation
    validation: Predictions
    test: Predictions


@overload
def load_network(folder: StrPath) -> tuple[ImageClassifier, Normalisation]: ...
@overload
def load_network(folder: StrPath, network: nn.Module) -> tuple[nn.Module, Normalisation]: ...
def load_network(
    folder: StrPath, network: nn.Module | None = None
) -> tuple[nn.Module, Normalisation]:
    """Return the trained network of a finished run, in evaluation mode on the CPU.

    Its normalisation comes with it, since images from elsewhere must go through the same.

    Args:
        folder: of the run.
        network: one of your own, made as for that run; its weights are loaded into it.

    Raises:
        InputError: the folder holds no run, or one without a checkpoint, or a damaged one; or that
            of another network, or of one of yours and none is given.
    """
    if network is not None:
        check_module(network)
    place = Path(folder)
    if not (place / CONFIG).is_file():
        raise InputError(f"{fspath(folder)}: holds no run")
    settings = RunSettings.read(place / CONFIG)
    name = BEST if settings.recipe.select == "best" else LAST
    if not (place / name).is_file():
        raise InputError(f"{place / name}: there is no such checkpoint; the run isn't finished")
    content = read_checkpoint(place / name)
    weights = _below(_PREFIX, content["objective"])
    own = _below(_PREFIX, weights)
    if network is None and own:
        raise InputError(
            f"{place / name}: holds a network of yours, which can't be made by its name; "
            "load_network wants one made as for that run, and calibrant head a train.npz that "
            "write_outputs wrote"
        )
    with loading(place / name):
        if network is None:
            network = make_network(settings.net, len(weights["fc.bias"]))
        network.load_state_dict(own or weights)
    mean, std = content["normalisation"]
    return network.eval(), normalisation_of(mean, std)


def _below(prefix: str, state: dict[str, Any]) -> dict[str, Any]:
    """Return the entries of a state whose names begin with a prefix, without it."""
    return {key.removeprefix(prefix): state[key] for key in state if key.startswith(prefix)}
