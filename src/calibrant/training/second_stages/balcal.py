"""BalCAL: a linear head balanced against a fixed simplex head."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from calibrant.core.arguments import argument, check_arguments
from calibrant.core.errors import InputError
from calibrant.training.second_stages.heads import NORM_MOMENTUM, BalancedHead, Rescale
from calibrant.training.second_stages.learning import (
    ModuleLearner,
    train,
)
from calibrant.training.second_stages.measured import Progress, silent
from calibrant.training.second_stages.sources import (
    FeatureRows,
    FeatureScaling,
    LoaderInputs,
    random_state_kept,
)
from calibrant.training.second_stages.stage import Given, SecondStage
from calibrant.training.second_stages.two_stage import initialise, make_optimizer

BALANCE_TOLERANCE = 1e-4


Accuracy = Literal["mixture", "linear"]


def class_factors(labels: Tensor, n_classes: int) -> Tensor:
    """Return (K,) sqrt((N / U) / count_k) for the U classes in a batch of N rows, else 1."""
    counts = torch.bincount(labels, minlength=n_classes).double()
    present = counts > 0
    even = len(labels) / present.sum()
    return torch.where(present, (even / counts.clamp(min=1)).sqrt(), 1.0)


def find_balance(
    linear: Tensor, simplex: Tensor, labels: Tensor, delta: float, of: Accuracy = "mixture"
) -> float:
    """Return the share of the linear head that makes mean confidence `delta` times accuracy.

    If the linear head is not confident enough on its own, its share is 1; else the share is found
    by bisection on [0, 1].

    Args:
        linear: (N, K) logits of the linear head.
        simplex: (N, K) logits of the simplex head.
        labels: (N,) classes.
        delta: factor on accuracy.
        of: whose accuracy: that of the mixture at each step, as in the authors' code, or
            throughout that of the linear head.
    """

    def measured(share: float) -> tuple[float, float]:
        mixed = share * linear + (1 - share) * simplex
        top = functional.softmax(mixed, dim=1).max(dim=1)
        return float((top.indices == labels).double().mean()), float(top.values.double().mean())

    alone, confidence = measured(1.0)
    if delta * alone > confidence:
        return 1.0
    low, high = 0.0, 1.0
    while high - low > BALANCE_TOLERANCE:
        middle = (low + high) / 2
        accuracy, confidence = measured(middle)
        wanted = delta * (accuracy if of == "mixture" else alone)
        low, high = (middle, high) if confidence < wanted else (low, middle)
    return (low + high) / 2


class _BalancedLearner(ModuleLearner):
    """Finds the balance anew from the logits of every epoch."""

    def __init__(
        self,
        network: nn.Module,
        head: BalancedHead,
        optimizer: torch.optim.Optimizer,
        delta: float,
        accuracy: Accuracy,
        scaling: FeatureScaling | None = None,
        validation: FeatureRows | None = None,
    ) -> None:
        super().__init__(network, optimizer, self._balanced_loss, scaling, validation)
        self._head, self._delta = head, delta
        self._accuracy: Accuracy = accuracy
        self._body = network[:-1] if isinstance(network, nn.Sequential) else nn.Identity()
        self._seen: list[tuple[Tensor, Tensor, Tensor]] = []

    def begin(self, epoch: int) -> None:
        super().begin(epoch)
        self._seen = []

    def learn(self, features: Tensor, labels: Tensor) -> None:
        # Batch norm has no variance to divide by in a last batch of one row.
        if len(labels) > 1:
            super().learn(features, labels)

    def _balanced_loss(self, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        linear, simplex = self._head.both(self._body(features))
        share = self._head.balance
        factors = class_factors(labels, linear.shape[1]).to(simplex)
        loss = share * functional.cross_entropy(linear, labels)
        weighted = simplex * factors
        loss = loss + (1 - share) * functional.cross_entropy(weighted, labels)
        # The balance is found on the logits that the loss saw, as the authors find it.
        self._seen.append((linear.detach(), weighted.detach(), labels))
        return share * linear + (1 - share) * simplex, loss

    def end(self, epoch: int) -> None:
        if not self._seen:
            raise InputError("BalCAL learns from batches of at least two rows; there was none")
        linear, simplex, labels = (torch.cat(part) for part in zip(*self._seen, strict=True))
        self._seen = []
        share = find_balance(linear, simplex, labels, self._delta, self._accuracy)
        self._head.balance.fill_(share)
        super().end(epoch)


@dataclass(eq=False)
class BalCAL(SecondStage):
    """BalCAL: mix a linear head with a fixed simplex head so that confidence meets accuracy.

    The authors train it together with the network: `train_with_backbone` does that. `fit` and
    `fit_network` train both heads on frozen pooled features instead, with an adaptor of 1 x 1
    convolutions; that is not the authors' setting.

    The loss is lam CE(z_linear) + (1 - lam) CE(z_simplex * E), with `class_factors` E; after every
    epoch, lam is set so that confidence on the training rows is delta times their accuracy. With
    validation rows, the epoch of the lowest held-out NLL is kept.

    Attributes:
        delta: factor on training accuracy; the authors' 0.95 for CIFAR-10.
        accuracy: whose: ``"mixture"``, as the authors have it, or ``"linear"``.
        norm_momentum: of the batch norms in the adaptor; the authors' is 0.01, torch's own 0.1,
            which suits a few hundred steps better.
        optimizer: ``"adam"``, or ``"sgd"`` with momentum 0.9 and decay 5e-4.

    References:
        Ni, Zhao, Gao, Guo, Zha: Balancing Two Classifiers via A Simplex ETF Structure for Model
        Calibration. CVPR 2025.
    """

    method: ClassVar[str] = "balcal"
    words: ClassVar[str] = "a linear head balanced against a fixed simplex head, on frozen features"

    learning_rate: float = argument(1e-4, above=0)
    batch_size: int = argument(256, at_least=2)
    delta: float = argument(0.95, above=0, at_most=1)
    accuracy: Accuracy = argument("mixture", choices=get_args(Accuracy))
    norm_momentum: float = argument(NORM_MOMENTUM, above=0, at_most=1)
    optimizer: Literal["adam", "sgd"] = argument("adam", choices=("adam", "sgd"))

    @property
    def balance_(self) -> float:
        """Share of the linear head in the logits, lam."""
        parts = (part for part in self.head_.modules() if isinstance(part, BalancedHead))
        return float(next(parts).balance)

    def _fit(self, given: Given) -> None:
        source = given.source
        scaling = self._scaling(source, source.width**0.5)
        head = self._new_head(source.width, source.n_classes, 1)
        device, dtype = source.place
        head.to(device=device, dtype=dtype)
        optimizer = make_optimizer(self.optimizer, head, self.learning_rate)
        learner = _BalancedLearner(
            head, head, optimizer, self.delta, self.accuracy, scaling, given.validation
        )
        train(source, [learner], self.epochs, self.batch_size, given.progress)
        rescale = Rescale(scaling.mean.to(device, dtype), scaling.factor)
        self._keep(nn.Sequential(rescale, learner.finish()).eval(), learner.history)

    def train_with_backbone(
        self,
        backbone: nn.Module,
        channels: int,
        n_classes: int,
        loader: Iterable[Any],
        *,
        progress: Progress | None = None,
    ) -> nn.Sequential:
        """Train a network and both heads together, as the authors do.

        Args:
            backbone: maps inputs to (N, C, H, W) feature maps; it is trained in place.
            channels: C.
            n_classes: K.
            loader: yields (inputs, labels).
            progress: called with a line of text as each epoch begins.

        Returns:
            The backbone followed by the mixed head, in evaluation mode; `head_` is the latter.
        """
        check_arguments(self)
        self._begin(n_classes)
        head = self._new_head(channels, n_classes, 3).to(next(backbone.parameters()).device)
        network = nn.Sequential(backbone, head)
        optimizer = make_optimizer(self.optimizer, network, self.learning_rate)
        learner = _BalancedLearner(network, head, optimizer, self.delta, self.accuracy)
        device = next(backbone.parameters()).device
        source = LoaderInputs(loader, device, n_classes)
        train(source, [learner], self.epochs, self.batch_size, progress or silent)
        self.head_, self.history_ = head.eval(), learner.history
        return network.eval()

    def _new_head(self, channels: int, n_classes: int, kernel_size: int) -> BalancedHead:
        with random_state_kept():
            head = BalancedHead(channels, n_classes, kernel_size, self.seed, self.norm_momentum)
        initialise(head, self.seed)
        return head
