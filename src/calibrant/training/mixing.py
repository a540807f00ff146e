"""Training on mixtures of inputs: mixup, RegMixup, and MIT, which decouples their outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from calibrant.core.arguments import argument, check_arguments
from calibrant.core.errors import InputError
from calibrant.training.features import PenultimateFeatures
from calibrant.training.losses.base import DEFAULT_IGNORE_INDEX, CalibrationLoss, own_loss


@dataclass(frozen=True)
class MixedBatch:
    """A batch of mixtures: share x + (1 - share) x[partner].

    Attributes:
        inputs: (N, ...) mixtures.
        target: (N,) classes of x.
        partner_target: (N,) classes of x[partner].
        share: of x, one number for the batch.
    """

    inputs: Tensor
    target: Tensor
    partner_target: Tensor
    share: float

    def loss(self, loss: CalibrationLoss, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Return share * loss with the targets + (1 - share) * loss with those of the partners.

        A loss with state sees the batch once: its second call leaves the state alone.

        Raises:
            InputError: `loss` compares rows, so that it has no meaning for a mixed target.
        """
        refuse_mixing(loss)
        first = loss(logits, self.target, features)
        with loss.frozen():
            second = loss(logits, self.partner_target, features)
        return self.share * first + (1 - self.share) * second

    def soft_target(self, n_classes: int, ignore_index: int = DEFAULT_IGNORE_INDEX) -> Tensor:
        """Return (N, K) mixed one-hot labels, in which `ignore_index` is all classes alike."""
        one = _one_hot(self.target, n_classes, ignore_index)
        other = _one_hot(self.partner_target, n_classes, ignore_index)
        return self.share * one + (1 - self.share) * other


@dataclass(eq=False)
class Mixup:
    """Mixtures of a batch with itself, shuffled (Zhang et al. 2018; Thulasidasan et al. 2019).

    The share is drawn from Beta(alpha, alpha), once a batch. Mixing the labels along is what
    calibrates; a large alpha makes a network underconfident. Shares need not agree between the
    processes of a distributed run. Measure accuracy on unmixed inputs.

    Args:
        alpha: of the Beta distribution, 0.1 to 0.4 in the paper on calibration.
        larger_share: take max(share, 1 - share), so that x dominates.
        seed: for shares and permutations; several numbers, such as epoch and batch, make one seed.

    Examples:
        >>> import torch
        >>> from calibrant.training import Mixup
        >>> mixed = Mixup(alpha=0.2)(torch.tensor([[0.0], [1.0]]), torch.tensor([0, 1]))
        >>> torch.equal(mixed.inputs[:, 0], mixed.soft_target(2)[:, 1])  # labels mix as inputs do
        True
    """

    alpha: float = argument(0.2, above=0)
    larger_share: bool = False
    seed: int | Sequence[int] = 0

    def __post_init__(self) -> None:
        check_arguments(self)
        self._random = np.random.default_rng(self.seed)

    def __call__(self, inputs: Tensor, target: Tensor) -> MixedBatch:
        """Return mixtures of `inputs` (N, ...) with classes `target` (N,).

        Raises:
            InputError: inputs that can't be mixed.
        """
        check_mixable(inputs)
        share = float(self._random.beta(self.alpha, self.alpha))
        if self.larger_share:
            share = max(share, 1 - share)
        partner = permutation(len(inputs), self._random, inputs.device)
        mixed = share * inputs + (1 - share) * inputs[partner]
        return MixedBatch(mixed, target, target[partner], share)


@dataclass(eq=False)
class RegMixup:
    """Mixup as a regulariser beside the unmixed batch (Pinto et al. 2022).

    (loss(x, y) + weight * mixup loss) / (1 + weight), from one forward pass over both halves: with
    the weight of 1 the mean over all 2 N rows, as in the official code.

    Args:
        alpha: of Beta(alpha, alpha). Large here, unlike in mixup: mixtures near one half, which
            lie far from the data.
        weight: of the mixed half.
        total: "mean" as above, or "sum": loss(x, y) + weight * mixup loss, the paper's formula,
            which is 1 + weight times as large and so learns at a higher rate.
        seed: for shares and permutations.

    Examples:
        >>> import torch
        >>> from calibrant.training import RegMixup
        >>> from calibrant.training.losses import CrossEntropy
        >>> network, inputs, target = torch.nn.Identity(), 9 * torch.eye(3), torch.tensor([0, 1, 2])
        >>> CrossEntropy()(network(inputs), target) < 0.01  # sure and right
        tensor(True)
        >>> RegMixup()(network, inputs, target, CrossEntropy()) > 0.1  # not in between
        tensor(True)
    """

    alpha: float = argument(20.0, above=0)
    weight: float = argument(1.0, at_least=0)
    total: Literal["mean", "sum"] = argument("mean", choices=("mean", "sum"))
    seed: int = 0

    def __post_init__(self) -> None:
        check_arguments(self)
        self._mixup = Mixup(self.alpha, seed=self.seed)

    def __call__(
        self,
        network: nn.Module,
        inputs: Tensor,
        target: Tensor,
        loss: CalibrationLoss,
        tap: PenultimateFeatures | None = None,
    ) -> Tensor:
        """Return the loss of a batch.

        Args:
            network: gives logits.
            inputs: (N, ...).
            target: (N,).
            loss: per row. Its state sees the unmixed half only.
            tap: on the network's last layer, for a loss that needs features.

        Raises:
            InputError: `loss` compares rows, or needs features and there is no tap.
        """
        return self.with_logits(network, inputs, target, loss, tap)[0]

    def with_logits(
        self,
        network: nn.Module,
        inputs: Tensor,
        target: Tensor,
        loss: CalibrationLoss,
        tap: PenultimateFeatures | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of a batch, and the (N, K) logits of its unmixed half.

        Takes and refuses what calling the object does.
        """
        refuse_mixing(loss, features=tap is not None)
        mixed = self._mixup(inputs, target)
        logits = network(torch.cat([inputs, mixed.inputs]))
        raw, blended = logits.split(len(inputs))
        features: tuple[Tensor | None, ...] = (None, None)
        if tap is not None:
            features = tap.features[: len(inputs)], tap.features[len(inputs) :]
        value = loss(raw, target, features[0])
        with loss.frozen():
            value = value + self.weight * mixed.loss(loss, blended, features[1])
        return value / (1 + self.weight if self.total == "mean" else 1), raw


def _one_hot(target: Tensor, n_classes: int, ignore_index: int) -> Tensor:
    known = target != ignore_index
    labels = one_hot(target.masked_fill(~known, 0), n_classes)
    return labels.where(known[:, None], 1 / n_classes)


def check_mixable(inputs: Any) -> None:
    """Refuse inputs other than one tensor of floating-point numbers.

    Raises:
        InputError: these are others, such as a mapping, or numbers of words.
    """
    if isinstance(inputs, Tensor) and inputs.is_floating_point():
        return
    kind = str(inputs.dtype) if isinstance(inputs, Tensor) else type(inputs).__name__
    raise InputError(
        f"inputs to mix must be one tensor of floating-point numbers, not {kind}; of words give "
        "the embeddings"
    )


def refuse_mixing(loss: CalibrationLoss, *, features: bool = True) -> None:
    """Refuse a loss that mixed inputs give no meaning to.

    Args:
        loss: to be used on mixtures.
        features: whether the caller can pass features of the mixtures on.

    Raises:
        InputError: the loss compares rows, needs what isn't there, or isn't of this package.
    """
    own_loss(loss, "mixing")
    name = type(loss).__name__
    if not loss.per_sample:
        raise InputError(
            f"{name} compares the rows of a batch by hard labels; mixtures have none. "
            "Mix with a loss per row instead"
        )
    if "features" in loss.needs and not features:
        raise InputError(
            f"{name} needs features, which this mixing doesn't hand on; Mixup does, and RegMixup "
            "with a tap"
        )


def permutation(size: int, random: np.random.Generator, device: torch.device) -> Tensor:
    """Return who is mixed with whom: a random order of so many rows, on their device."""
    return torch.as_tensor(random.permutation(size)).to(device, non_blocking=True)


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


@dataclass(eq=False)
class MIT:
    """Two mixtures of the same pairs, decoupled into outputs for each partner (Wang et al. 2023).

    With shares l1 >= 1/2 >= l2, m1 = f(l1 x_a + (1 - l1) x_b) and m2 likewise,

        o_a = ((1 - l2) m1 - (1 - l1) m2) / (l1 - l2),    o_b = (l1 m2 - l2 m1) / (l1 - l2)

    and the loss is (loss(o_a, y_a) + loss(o_b, y_b)) / 2: unmixed labels, so any loss per row will
    do. For a linear f, o_a = f(x_a) exactly. "logits" (MIT-L) decouples at the end; "activations"
    (MIT-A) mixes and decouples again at each stage of a network that is `Staged`. Two forward
    passes.

    Args:
        variant: "logits" or "activations".
        alpha: shares are max(u, 1 - u) and min(v, 1 - v) of u, v from Beta(alpha, alpha).
        margin: shares are drawn again until l1 - l2 is at least this, from 0 to 0.99. Small
            differences blow the outputs up; the authors recommend 0 and 0.5 and set 0.5.
        seed: for shares and permutations.

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

    variant: Literal["logits", "activations"] = argument(
        "logits", choices=("logits", "activations")
    )
    alpha: float = argument(1.0, above=0)
    margin: float = argument(0.5, at_least=0, at_most=0.99)
    seed: int = 0

    def __post_init__(self) -> None:
        check_arguments(self)
        if _chance_apart(self.alpha, self.margin) < _RAREST:
            raise InputError(
                f"with alpha {self.alpha:g} shares are hardly ever {self.margin:g} apart: lower "
                "alpha, or margin"
            )
        self._random = np.random.default_rng(self.seed)

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


# By name.
MIXING: dict[str, Callable[..., Mixup | RegMixup | MIT]] = {
    "mixup": Mixup,
    "regmixup": RegMixup,
    "mit": MIT,
    "mit-a": partial(MIT, variant="activations"),
}
