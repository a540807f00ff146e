"""Training on mixtures whose outputs are decoupled into one for each partner (MIT)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from torch import Tensor, nn

from calibrant.core.errors import InputError
from calibrant.training.losses.arguments import choice, number
from calibrant.training.losses.base import CalibrationLoss
from calibrant.training.mixing import check_mixable, permutation, refuse_mixing

# A pair of shares that comes up less often would keep each batch waiting.
_RAREST = 1e-4


@runtime_checkable
class Staged(Protocol):
    """A network that is a chain of stages, for mixing between them.

    Applying `stages` in order to an input gives the logits. For a ResNet: stem, the groups of
    blocks, and pooling with the last layer.
    """

    @property
    def stages(self) -> Sequence[nn.Module]:
        """The stages from input to logits."""
        ...


class MIT:
    """Two mixtures of the same pairs, decoupled into outputs for each partner (Wang et al. 2023).

    With shares l1 >= 1/2 >= l2, m1 = f(l1 x_a + (1 - l1) x_b) and m2 likewise,

        o_a = ((1 - l2) m1 - (1 - l1) m2) / (l1 - l2),    o_b = (l1 m2 - l2 m1) / (l1 - l2)

    and the loss is (loss(o_a, y_a) + loss(o_b, y_b)) / 2: unmixed labels, so any loss per row will
    do. For a linear f, o_a = f(x_a) exactly. "logits" (MIT-L) decouples at the end; "activations"
    (MIT-A) mixes and decouples anew at each stage of a network that is `Staged`. Two forward
    passes.

    Args:
        variant: "logits" or "activations".
        alpha: shares are max(u, 1 - u) and min(v, 1 - v) of u, v from Beta(alpha, alpha).
        margin: shares are drawn again until l1 - l2 is at least this, from 0 to 0.99. Small
            differences blow the outputs up; the authors recommend 0 and 0.5 and set 0.5.
        seed: of shares and permutations.

    Raises:
        InputError: an argument out of range, or an alpha whose shares are hardly ever so far apart.

    Examples:
        >>> import torch
        >>> from calibrant.training import MIT
        >>> from calibrant.training.losses import CrossEntropy
        >>> network, loss = torch.nn.Linear(2, 3), CrossEntropy()
        >>> inputs, target = torch.eye(2), torch.tensor([0, 2])
        >>> value = MIT()(network, inputs, target, loss)
        >>> torch.allclose(value, loss(network(inputs), target), atol=1e-5)  # for a linear one
        True
    """

    def __init__(
        self,
        variant: Literal["logits", "activations"] = "logits",
        alpha: float = 1.0,
        margin: float = 0.5,
        seed: int = 0,
    ) -> None:
        self.variant = choice("variant", variant, ("logits", "activations"))
        self.alpha = number("alpha", alpha, above=0)
        self.margin = number("margin", margin, at_least=0, at_most=0.99)
        if _chance_apart(self.alpha, self.margin) < _RAREST:
            raise InputError(
                f"with alpha {self.alpha:g} shares are hardly ever {self.margin:g} apart: lower "
                "alpha, or margin"
            )
        self._random = np.random.default_rng(seed)

    def __call__(
        self, network: nn.Module, inputs: Tensor, target: Tensor, loss: CalibrationLoss
    ) -> Tensor:
        """Return the loss of a batch mixed with its own permutation.

        Args:
            network: any for "logits"; one with `stages` for "activations".
            inputs: (N, ...).
            target: (N,).
            loss: per row, needing logits and targets only.

        Raises:
            InputError: another loss, or a network without stages.
        """
        refuse_mixing(loss, features=False)
        check_mixable(inputs)
        partner = permutation(len(inputs), self._random, inputs.device)
        stages: Sequence[nn.Module] = (network,)
        if self.variant == "activations":
            if not isinstance(network, Staged):
                raise InputError(
                    f"MIT-A needs a network with `stages`, which {type(network).__name__} lacks"
                )
            stages = network.stages
        ours, theirs = inputs, inputs[partner]
        for stage in stages:
            ours, theirs = decouple(stage, ours, theirs, *self._shares())
        first = loss(ours, target)
        with loss.frozen():
            return (first + loss(theirs, target[partner])) / 2

    def _shares(self) -> tuple[float, float]:
        while True:
            u, v = self._random.beta(self.alpha, self.alpha, size=2)
            larger, smaller = max(u, 1 - u), min(v, 1 - v)
            # Equal shares, possible without a margin, could not be decoupled.
            if larger - smaller >= max(self.margin, 1e-3):
                return float(larger), float(smaller)


@lru_cache
def _chance_apart(alpha: float, margin: float) -> float:
    """Return how likely two shares, one on either side of 1/2, are at least `margin` apart."""
    from scipy.special import betainc, betaincinv

    # Of equally likely distances of the one from 1/2, how often the other makes up for the rest.
    middle = (np.arange(1000) + 0.5) / 1000
    rest = np.clip(margin - np.abs(betaincinv(alpha, alpha, middle) - 0.5), 0.0, 0.5)
    return float(np.mean(2 * betainc(alpha, alpha, 0.5 - rest)))


def decouple(
    stage: nn.Module, ours: Tensor, theirs: Tensor, larger: float, smaller: float
) -> tuple[Tensor, Tensor]:
    """Return what `stage` gives for each of two inputs, from two mixtures of them.

    Args:
        stage: any function of a tensor.
        ours: (N, ...) inputs x_a.
        theirs: (N, ...) inputs x_b.
        larger: share l1 of x_a in the first mixture.
        smaller: share l2 of x_a in the second; not equal to l1.
    """
    first = stage(larger * ours + (1 - larger) * theirs)
    second = stage(smaller * ours + (1 - smaller) * theirs)
    span = larger - smaller
    for_ours = ((1 - smaller) * first - (1 - larger) * second) / span
    return for_ours, (larger * second - smaller * first) / span
