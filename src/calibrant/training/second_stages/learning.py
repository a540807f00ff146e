"""The training run that second stages share, and the two kinds of learner that it feeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from calibrant.core.arrays import FloatArray
from calibrant.core.errors import InputError
from calibrant.training.second_stages.measured import EpochRecord, Progress
from calibrant.training.second_stages.sources import (
    READ_ROWS,
    FeatureRows,
    FeatureScaling,
    descend,
)


class Learner(Protocol):
    """Something that learns from batches of features as the network gives them."""

    def begin(self, epoch: int) -> None:
        """Get ready for an epoch, counted from 0."""
        ...

    def learn(self, features: Tensor, labels: Tensor) -> None:
        """Take one step."""
        ...

    def end(self, epoch: int) -> None:
        """Close the epoch."""
        ...


class EpochSource(Protocol):
    """Rows to learn from, an epoch at a time."""

    def epoch(self, epoch: int, batch_size: int) -> Iterable[tuple[Any, Tensor]]:
        """Yield the batches of one epoch, in the order that belongs to it."""
        ...


def train(
    source: EpochSource,
    learners: Sequence[Learner],
    epochs: int,
    batch_size: int,
    progress: Progress,
) -> None:
    """Show all learners the same batches for so many epochs."""
    for epoch in range(epochs):
        progress(f"epoch {epoch + 1} of {epochs}")
        for learner in learners:
            learner.begin(epoch)
        for features, labels in source.epoch(epoch, batch_size):
            for learner in learners:
                learner.learn(features, labels)
        for learner in learners:
            learner.end(epoch)


class Tally:
    """Accuracy and mean confidence of R heads, counted over an epoch."""

    def __init__(self, heads: int) -> None:
        self.rows = 0
        self._correct = torch.zeros(heads, dtype=torch.float64)
        self._confidence = torch.zeros(heads, dtype=torch.float64)

    def add(self, logits: Tensor, labels: Tensor) -> None:
        """Count the rows of (R, N, K) logits."""
        top = functional.softmax(logits, dim=-1).max(dim=-1)
        self.rows += len(labels)
        self._correct += (top.indices == labels).sum(1).cpu()
        self._confidence += top.values.sum(1, dtype=torch.float64).cpu()

    @property
    def accuracy(self) -> FloatArray:
        """(R,) share of rows predicted right."""
        return self._mean(self._correct)

    @property
    def confidence(self) -> FloatArray:
        """(R,) mean probability of the predicted label."""
        return self._mean(self._confidence)

    def _mean(self, total: Tensor) -> FloatArray:
        if not self.rows:
            raise InputError(
                "an epoch had no batches: the loader is empty, or gives its batches only once, as "
                "a generator does; give a DataLoader or a list of batches"
            )
        return (total / self.rows).numpy()


class ModuleLearner:
    """A module trained by one of torch's optimisers; keeps the epoch that did best held out.

    Args:
        module: what is trained.
        optimizer: of its parameters.
        loss: from features, as the module takes them, and labels to (N, K) logits and the loss.
        scaling: from features as they come to those that the module takes; None for the same.
        validation: held-out rows whose likelihood says which epoch to keep; None for the
            last one.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
        scaling: FeatureScaling | None = None,
        validation: FeatureRows | None = None,
    ) -> None:
        self.module, self._optimizer, self._loss = module, optimizer, loss
        self._scaling = scaling
        self._validation = validation
        if validation is not None and scaling is not None:
            self._validation = scaled_rows(validation, scaling)
        self._best: tuple[float, dict[str, Tensor]] | None = None
        self.best_epoch: int | None = None
        self.history: list[EpochRecord] = []
        self._tally = Tally(1)

    def begin(self, epoch: int) -> None:
        """Put the module into training mode and count afresh."""
        self.module.train()
        self._tally = Tally(1)

    def learn(self, features: Tensor, labels: Tensor) -> None:
        """Take one step of the optimiser, and count what was right."""
        if self._scaling is not None:
            features = self._scaling.apply(features)
        logits, loss = self._loss(features, labels)
        descend(loss, self._optimizer)
        self._tally.add(logits.detach()[None], labels)

    def end(self, epoch: int) -> None:
        """Record the epoch, and keep the module's state if it is the likeliest so far held out."""
        accuracy, confidence = float(self._tally.accuracy[0]), float(self._tally.confidence[0])
        self.history.append(EpochRecord(epoch + 1, 1.0, accuracy, confidence))
        if self._validation is None:
            return
        self.module.eval()
        nll = mean_nll(self.module, self._validation)
        if self._best is None or nll < self._best[0]:
            self._best, self.best_epoch = (nll, deepcopy(self.module.state_dict())), epoch + 1

    def finish(self) -> nn.Module:
        """Return the module of the best epoch, in evaluation mode."""
        if self._best is not None:
            self.module.load_state_dict(self._best[1])
        return self.module.eval()


def mean_nll(module: nn.Module, rows: FeatureRows) -> float:
    """Return the mean cross-entropy of a module on scaled rows."""
    total = 0.0
    with torch.no_grad():
        for features, labels in rows.passes(READ_ROWS):
            losses = functional.cross_entropy(module(features), labels, reduction="none")
            total += float(losses.double().sum())
    return total / rows.n


def scaled_rows(rows: FeatureRows, scaling: FeatureScaling) -> FeatureRows:
    """Return rows with scaled features."""
    return FeatureRows(scaling.apply(rows.features), rows.labels, rows.n_classes, rows.seed)


def check_finite(head: nn.Module) -> None:
    """Raise `InputError` if training drove any parameter to infinity or NaN."""
    if not all(bool(torch.isfinite(value).all()) for value in head.parameters()):
        raise InputError(
            "the head's weights are no longer finite after training; lower the learning rate"
        )
