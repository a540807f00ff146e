"""A trained network: what a run hands back, taken up again from its folder, and measured."""

from __future__ import annotations

from dataclasses import dataclass
from os import fspath
from pathlib import Path
from typing import Any, overload

from torch import nn

from calibrant.core.errors import InputError
from calibrant.core.text import wrap
from calibrant.evaluation.evaluate import evaluate
from calibrant.evaluation.formatting import with_interval, with_unit
from calibrant.evaluation.results import Evaluation
from calibrant.files.atomic import StrPath
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import softmax
from calibrant.predictions.temperature import warn_of
from calibrant.training.data.images import Normalisation
from calibrant.training.features import check_module
from calibrant.training.nets import ImageClassifier, make_network
from calibrant.training.run.ensemble import Ensemble
from calibrant.training.run.folder import CONFIG, SELECTED, loading, read_checkpoint
from calibrant.training.run.settings import RunSettings

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
def load_network(folder: StrPath) -> tuple[ImageClassifier | Ensemble, Normalisation]: ...
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
    if settings.members > 1:
        if network is not None:
            raise InputError(f"{fspath(folder)}: holds an ensemble; load its members one by one")
        loaded = [load_network(place / f"member-{number}") for number in range(settings.members)]
        return Ensemble([member for member, _ in loaded]).eval(), loaded[0][1]
    name = SELECTED[settings.recipe.select]
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
    return network.eval(), Normalisation(tuple(mean), tuple(std))


def _below(prefix: str, state: dict[str, Any]) -> dict[str, Any]:
    """Return the entries of a state whose names begin with a prefix, without it."""
    return {key.removeprefix(prefix): state[key] for key in state if key.startswith(prefix)}


@dataclass(frozen=True, kw_only=True, eq=False)
class RunOutcome:
    """A finished run, measured. Prints as a table with what one temperature would give.

    Attributes:
        settings: of the run.
        folder: of the run.
        history: a row for every epoch.
        test: all metrics on the test images.
        temperature: T that fits the validation images best.
        rescaled: ECE and NLL on the test images with logits divided by it.
    """

    settings: RunSettings
    folder: Path
    history: list[dict[str, float]]
    test: Evaluation
    temperature: float
    rescaled: Evaluation

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON takes it; fractions and nats."""
        return {
            "settings": vars(self.settings),
            "folder": str(self.folder),
            "history": self.history,
            "test": self.test.as_dict(),
            "temperature": self.temperature,
            "test_after_temperature": self.rescaled.as_dict(),
        }

    def __str__(self) -> str:
        settings, ece, nll = self.settings, self.rescaled["ece"], self.rescaled["nll"]
        who = settings.net
        if settings.members > 1:
            who = f"{settings.members} networks ({settings.net}), whose probabilities are averaged,"
        return (
            f"{who} trained with {settings.loss} for {settings.total_epochs} epochs, in "
            f"{self.folder}\n\n{self.test}\n\n"
            + wrap(
                f"With the temperature that fits the validation rows best, {self.temperature:.3f}, "
                f"the ECE is {with_interval(ece.metric, ece.ends)} and the NLL "
                f"{with_unit(nll.metric, nll.value)}."
            )
        )


def evaluate_run(settings: RunSettings, trained: Trained) -> RunOutcome:
    """Measure a trained network on its test images, as it is and with one temperature.

    Args:
        settings: of the run.
        trained: what `train` gave.
    """
    test, fit = trained.test, trained.validation.temperature
    warn_of(fit.warning)
    rescaled = Predictions.from_probs(
        softmax(test.logits, fit.beta), test.labels, source=f"{test.source}, rescaled"
    )
    return RunOutcome(
        settings=settings,
        folder=trained.folder,
        history=trained.history,
        test=evaluate(test),
        temperature=fit.temperature,
        rescaled=evaluate(rescaled, metrics=["ece", "nll"]),
    )
