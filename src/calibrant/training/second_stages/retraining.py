"""The control of every second stage: a fresh linear head, plainly trained."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar, get_args

import numpy as np
from torch import Tensor, nn

from calibrant.core.arguments import argument
from calibrant.training.second_stages.learning import MaskedLearner, check_finite, train, unchanged
from calibrant.training.second_stages.masked import MaskedDescent, MaskedHeads
from calibrant.training.second_stages.records import Progress
from calibrant.training.second_stages.scaling import LINEAR_LENGTH, FeatureScaling
from calibrant.training.second_stages.sources import Batch, FeatureRows, FeatureSource
from calibrant.training.second_stages.stage import Schedule, SecondStage, rate_at


@dataclass(eq=False)
class HeadRetraining(SecondStage):
    """A fresh linear head trained on the frozen features, nothing else: the control.

    Retraining alone moves calibration, so no second stage should be judged without it.

    Attributes:
        momentum, weight_decay: of SGD; biases decay too.
        schedule: learning rate over the epochs: ``"constant"`` or ``"cosine"``.
    """

    method: ClassVar[str] = "retrain"

    momentum: float = argument(0.9, at_least=0, below=1)
    weight_decay: float = argument(5e-4, at_least=0)
    schedule: Schedule = argument("constant", choices=get_args(Schedule))

    def _rate(self, epoch: int) -> float:
        return rate_at(self.learning_rate, self.schedule, epoch, self.epochs)

    def _plain_learner(
        self,
        source: FeatureSource,
        scaling: FeatureScaling,
        remeasure: Callable[[], Iterable[Batch]] | None = None,
    ) -> MaskedLearner:
        descent = MaskedDescent(momentum=self.momentum, weight_decay=self.weight_decay)
        widths = (source.width, source.n_classes)
        heads = MaskedHeads(widths, 1, self.seed, descent, *source.place)
        return MaskedLearner(heads, scaling, np.ones(1), self._rate, unchanged, remeasure)

    def _fit(
        self,
        source: FeatureSource,
        validation: FeatureRows | None,
        reference: Tensor | None,
        progress: Progress,
    ) -> None:
        scaling = self._scaling(source, LINEAR_LENGTH)
        learner = self._plain_learner(source, scaling)
        train(source, [learner], self.epochs, self.batch_size, progress)
        self.head_ = folded(learner, 0)
        check_finite(self.head_)
        self.history_ = learner.history(0)


def folded(learner: MaskedLearner, head: int) -> nn.Sequential:
    """Return one head as a module that takes features as the network gives them."""
    module = learner.heads.module(head)
    first = module[0]
    assert isinstance(first, nn.Linear)
    learner.scaling.fold_into(first)
    return module
