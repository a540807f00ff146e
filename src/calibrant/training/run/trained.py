"""A trained network: what a run hands back, taken up again from its folder, and measured.

Deep ensembles: several networks that differ by their seeds, whose probabilities are averaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from os import fspath
from pathlib import Path
from typing import Any, cast, overload

import numpy as np
import torch
from torch import Tensor, nn

from calibrant.core.errors import InputError
from calibrant.core.outputs import StrPath
from calibrant.core.text import wrap
from calibrant.evaluation.evaluate import evaluate
from calibrant.evaluation.formatting import with_interval, with_unit
from calibrant.evaluation.results import Evaluation
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import softmax
from calibrant.predictions.temperature import warn_of
from calibrant.training.data.images import Normalisation
from calibrant.training.features import check_module
from calibrant.training.nets import ImageClassifier, make_network
from calibrant.training.run.folder import CONFIG, SELECTED, loading, read_checkpoint
from calibrant.training.run.settings import RunSettings


class Ensemble(nn.Module):
    """Networks as one: the logarithm of the mean of their probabilities.

    Lakshminarayanan, Pritzel & Blundell, Simple and Scalable Predictive Uncertainty Estimation
    using Deep Ensembles, NeurIPS 2017.

    Args:
        members: each gives (B, K) logits of the same inputs.

    Examples:
        >>> import torch
        >>> from calibrant.training.run.trained import Ensemble
        >>> sure = torch.nn.Identity()
        >>> Ensemble([sure, sure])(torch.tensor([[3.0, 0.0]])).softmax(1).round(decimals=3)
        tensor([[0.9530, 0.0470]])
    """

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, inputs: Any) -> Tensor:
        """Return (B, K) logarithms of probabilities."""
        said = [cast(Any, member)(inputs).log_softmax(1) for member in self.members]
        return torch.stack(said).logsumexp(0) - log(len(said))


def ensemble_of(said: Sequence[Predictions], source: str = "ensemble") -> Predictions:
    """Return an ensemble's predictions from those of its members.

    Args:
        said: logits or probabilities of the same N rows, in the same order.
        source: what error messages call the rows.

    Raises:
        InputError: the members' rows aren't the same.

    Examples:
        >>> import calibrant as cb
        >>> from calibrant.training.run.trained import ensemble_of
        >>> sure = cb.Predictions.from_probs([[1.0, 0.0]], [0])
        >>> half = cb.Predictions.from_probs([[0.5, 0.5]], [0])
        >>> ensemble_of([sure, half]).probs.tolist()
        [[0.75, 0.25]]
    """
    first = said[0]
    for other in said[1:]:
        if not np.array_equal(other.labels, first.labels):
            raise InputError(f"{other.source}: its rows aren't those of {first.source}")
    mean = np.mean([np.asarray(each.probs, np.float64) for each in said], axis=0)
    return Predictions.from_probs(mean, first.labels, source=source)


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
