"""PLP: freeze a network from the top while it trains, so that its classifier stays weak."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from calibrant.core.arguments import argument, check_arguments
from calibrant.core.errors import InputError
from calibrant.training.features import answered
from calibrant.training.second_stages.learning import ModuleLearner, train
from calibrant.training.second_stages.measured import EpochRecord, Progress, silent
from calibrant.training.second_stages.sources import LoaderInputs

# Of the authors' networks: how many parameter tensors, from the bottom, each stage still trains.
PAPER_CUTS: dict[str, tuple[int, ...]] = {
    "resnet18": (3, 9, 15, 24, 30, 39, 45, 54, 57, 60, 62),
    "resnet50": (33, 54, 72, 84, 93, 102, 120, 129, 141, 150, 161),
    "vgg11": (4, 8, 12, 20, 32, 34),
}
MOST_STAGES = 11


def parameter_cuts(network: nn.Module, stages: int = MOST_STAGES) -> tuple[int, ...]:
    """Return evenly spread cuts for any network: numbers of its tensors that can learn, increasing.

    A cut lies in front of a matrix or kernel, never between a layer and its bias or the norm that
    follows it. The last cut is all tensors.
    """
    shapes = [parameter.ndim for parameter in _learnable(network)]
    if not shapes:
        raise InputError("the network has no parameters that can learn")
    borders = [index for index, ndim in enumerate(shapes) if ndim > 1 and index > 0]
    borders.append(len(shapes))
    count = min(stages, len(borders))
    chosen = {borders[(len(borders) * (stage + 1)) // count - 1] for stage in range(count)}
    return tuple(sorted(chosen))


def _learnable(network: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in network.parameters() if parameter.requires_grad]


class ProgressiveFreezing:
    """Says at every epoch which parameter tensors still learn; for use in any training loop.

    Stage k of L begins at epoch int(E (k / L) ** gamma) and trains one cut fewer from the top than
    the stage before. A frozen tensor gets no gradient, so torch's optimisers neither step nor decay
    it and leave its momentum alone; gradients still flow through it to the layers below, and batch
    norm above keeps moving its statistics in training mode.

    Args:
        network: whose `parameters()` are frozen, in their order; those that can't learn when they
            come never do, and count for nothing.
        epochs: E.
        cuts: numbers of tensors to train, increasing; None for `parameter_cuts`.
        gamma: exponent of the schedule.
    """

    def __init__(
        self,
        network: nn.Module,
        epochs: int,
        cuts: Sequence[int] | None = None,
        gamma: float = 1.0,
    ) -> None:
        self.parameters = _learnable(network)
        self.cuts = tuple(cuts) if cuts is not None else parameter_cuts(network)
        total = len(self.parameters)
        increasing = all(a < b for a, b in zip(self.cuts, self.cuts[1:], strict=False))
        if not self.cuts or not increasing or self.cuts[0] < 1 or self.cuts[-1] != total:
            raise InputError(
                f"cuts must increase from at least 1 to the network's {total} parameter tensors, "
                f"not {self.cuts}"
            )
        stages = len(self.cuts)
        self.starts = tuple(int(epochs * (stage / stages) ** gamma) for stage in range(stages))

    def trained(self, epoch: int) -> int:
        """Return how many tensors, from the bottom, learn in an epoch, counted from 0."""
        stage = max(stage for stage, start in enumerate(self.starts) if start <= epoch)
        return self.cuts[len(self.cuts) - 1 - stage]

    def begin_epoch(self, epoch: int) -> None:
        """Freeze what the epoch does not train; call it before the epoch's first step."""
        count = self.trained(epoch)
        for index, parameter in enumerate(self.parameters):
            parameter.requires_grad_(index < count)
        self.drop_gradients(epoch)

    def drop_gradients(self, epoch: int) -> None:
        """Take their gradients from the tensors that the epoch doesn't train.

        Call this before each step where `begin_epoch` can't be: `DistributedDataParallel` waits for
        every gradient that it knew of. The outcome is the same.
        """
        # A gradient left there would let the optimiser step, decay and all.
        for parameter in self.parameters[self.trained(epoch) :]:
            parameter.grad = None

    def end(self) -> None:
        """Let all parameters learn again that could before."""
        for parameter in self.parameters:
            parameter.requires_grad_(True)


class _PeelingLearner(ModuleLearner):
    """Trains a whole network, fewer of its layers from stage to stage."""

    def __init__(
        self, network: nn.Module, optimizer: Any, schedule: Any, freezing: ProgressiveFreezing
    ) -> None:
        super().__init__(network, optimizer, self._cross_entropy)
        self._schedule, self._freezing = schedule, freezing

    def begin(self, epoch: int) -> None:
        super().begin(epoch)
        self._freezing.begin_epoch(epoch)

    def end(self, epoch: int) -> None:
        self._schedule.step()
        super().end(epoch)

    def _cross_entropy(self, inputs: Any, labels: Tensor) -> tuple[Tensor, Tensor]:
        logits = answered(self.module, inputs)
        return logits, functional.cross_entropy(logits, labels)


@dataclass(eq=False)
class ProgressiveLayerPeeling:
    """PLP: train a whole network by cross-entropy, freezing it progressively from the top.

    It aims at the error that is left after temperature scaling, not before.

    Attributes:
        epochs, learning_rate, momentum, weight_decay: of SGD.
        milestones: shares of the epochs after which the rate drops to a tenth.
        gamma: exponent of the freezing schedule.
        cuts: see `ProgressiveFreezing`; `PAPER_CUTS` holds the authors'.
        history_: one record for each epoch.

    References:
        Wang, Zhang: Calibration Bottleneck: Over-compressed Representations are Less Calibratable.
        ICML 2024.
    """

    epochs: int = argument(350, at_least=1)
    learning_rate: float = argument(0.1, above=0)
    momentum: float = argument(0.9, at_least=0, below=1)
    weight_decay: float = argument(5e-4, at_least=0)
    milestones: tuple[float, ...] = (150 / 350, 250 / 350)
    gamma: float = argument(1.0, above=0)
    cuts: tuple[int, ...] | None = None

    history_: list[EpochRecord] = field(init=False, repr=False)

    def train(
        self, network: nn.Module, loader: Iterable[Any], *, progress: Progress | None = None
    ) -> nn.Module:
        """Train `network` in place on the (inputs, labels) of a loader and return it.

        What could learn before can again afterwards, and the network is in evaluation mode.
        """
        check_arguments(self)
        device = next(network.parameters()).device
        freezing = ProgressiveFreezing(network, self.epochs, self.cuts, self.gamma)
        optimizer = torch.optim.SGD(
            network.parameters(),
            lr=self.learning_rate,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
        )
        drops = [int(share * self.epochs) for share in self.milestones]
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, drops, gamma=0.1)
        learner = _PeelingLearner(network, optimizer, schedule, freezing)
        self.history_ = learner.history
        try:
            # The batches are of the loader's own size.
            train(LoaderInputs(loader, device), [learner], self.epochs, 0, progress or silent)
        finally:
            freezing.end()
        return learner.finish()
