"""Averages of weights over the steps of a run: moving ones (EMA), and those of its end (SWA)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]

DECAY = 0.999
SWA_FROM = 0.75  # of a run's epochs; from there on the rate stays where it is


class WeightAverage(nn.Module):
    """An average of a network's weights, kept as buffers: a checkpoint of the objective has it.

    ``ema``: after each step a <- d a + (1 - d) w with d = min(.999, (1 + n) / (10 + n)) at step n,
    which forgets the first weights soon; statistics of batch norm are averaged likewise (Polyak &
    Juditsky 1992; the ramp is TensorFlow's). ``swa``: the mean of the weights at the ends of the
    epochs in the last quarter, whose rate no longer falls (Izmailov et al., UAI 2018); statistics
    of batch norm are then made anew by `renew_statistics`.

    Args:
        network: whose weights; as they are now it begins.
        kind: "ema" or "swa".

    Examples:
        >>> import torch
        >>> from calibrant.training.run.averaging import WeightAverage
        >>> layer = torch.nn.Linear(1, 1, bias=False)
        >>> average = WeightAverage(layer, "swa")
        >>> for weight in (1.0, 2.0, 6.0):
        ...     _ = layer.weight.data.fill_(weight)
        ...     average.after_epoch(layer)
        >>> average.give_to(layer)
        >>> round(layer.weight.item(), 3)
        3.0
    """

    seen: Tensor

    def __init__(self, network: nn.Module, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        for name, value in network.state_dict().items():
            self.register_buffer(_buffer(name), value.detach().clone())

    def after_step(self, network: nn.Module) -> None:
        """Take in the weights behind a step of the optimiser."""
        if self.kind == "ema":
            steps = int(self.seen)
            self._take_in(network, 1 - min(DECAY, (1 + steps) / (10 + steps)))

    def after_epoch(self, network: nn.Module) -> None:
        """Take in the weights at the end of an epoch that counts."""
        if self.kind == "swa":
            self._take_in(network, 1 / (1 + int(self.seen)))

    def give_to(self, network: nn.Module) -> None:
        """Put the average into a network."""
        names = network.state_dict().keys()
        network.load_state_dict({name: self.get_buffer(_buffer(name)) for name in names})

    @torch.no_grad()
    def _take_in(self, network: nn.Module, share: float) -> None:
        for name, value in network.state_dict().items():
            average = self.get_buffer(_buffer(name))
            if average.is_floating_point():
                average.lerp_(value.to(average.dtype), share)
            else:
                average.copy_(value)
        self.seen += 1


def _buffer(name: str) -> str:
    """Return the name of a weight's average: names of buffers can't have dots."""
    return f"of {name.replace('.', '/')}"


@torch.no_grad()
def renew_statistics(network: nn.Module, batches: Callable[[], Iterable[Any]]) -> None:
    """Make the running statistics of batch norm those of a network's inputs, in one pass.

    Args:
        network: whose weights have changed since they were counted. All else stays as it is in
            evaluation, such as dropout.
        batches: gives them; not called where there is no batch norm.
    """
    norms = [part for part in network.modules() if isinstance(part, _BatchNorm)]
    norms = [part for part in norms if part.running_mean is not None]
    if not norms:
        return
    momenta = [part.momentum for part in norms]
    network.eval()
    for part in norms:
        part.reset_running_stats()
        part.momentum = None  # the plain mean over batches
        part.train()
    for inputs in batches():
        cast(Any, network)(inputs)
    for part, momentum in zip(norms, momenta, strict=True):
        part.momentum = momentum
    network.eval()
