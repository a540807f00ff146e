"""Heads trained under masks: R of them side by side; plain retraining is one without any.

Heads that differ only in a setting (MaC-Cal's kappa, say) cost little more than one when they share
their batches, since small matrices leave a processor idle. Every tensor has a leading axis R, and
no head sees another's numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from calibrant.core.arguments import argument, within
from calibrant.core.arrays import Array, FloatArray, to_numpy
from calibrant.core.errors import InputError
from calibrant.training.second_stages.learning import Tally, train
from calibrant.training.second_stages.measured import EpochRecord, Held, measure_logits
from calibrant.training.second_stages.sources import (
    INITIAL_WEIGHTS,
    LINEAR_LENGTH,
    MASK,
    Batch,
    FeatureRows,
    FeatureScaling,
    FeatureSource,
    generator_for,
    random_state_kept,
    tensor_of,
)
from calibrant.training.second_stages.stage import Given, Schedule, SecondStage, rate_at

MaskMode = Literal["zeroing", "last_mask", "expected", "full"]
MaskedMomentum = Literal["dropped", "kept"]


@dataclass(frozen=True)
class MaskedDescent:
    """How masked heads descend.

    Attributes:
        mode: what a mask does to the weights: ``"zeroing"`` sets masked ones to 0 where they are
            stored; the others leave them and multiply the mask in. At inference ``"last_mask"``
            keeps the mask of the last epoch, ``"expected"`` multiplies by the retention instead,
            and ``"full"`` does without.
        restrict_gradient: whether masked weights get no gradient. Without it, the gradient by the
            masked matrix reaches them all.
        strict: whether masked weights get no decay and no momentum either, so that they stay where
            they are, bit for bit. With plain SGD behind a masked gradient they would drift.
        momentum, weight_decay: as in torch's SGD; biases decay too.
        masked_momentum: what becomes of the velocity of a weight that stands still: ``"dropped"``
            when it is masked, so that it starts from rest once it is revived, or ``"kept"``, so
            that its first steps then go where it was heading epochs ago. Only with `strict` and
            `restrict_gradient`; without them masked weights don't stand still.
    """

    mode: MaskMode = "zeroing"
    restrict_gradient: bool = True
    strict: bool = True
    momentum: float = 0.9
    weight_decay: float = 5e-4
    masked_momentum: MaskedMomentum = "dropped"

    @property
    def stands_still(self) -> bool:
        """Whether masked weights neither learn nor drift nor decay."""
        return self.restrict_gradient and self.strict


class MaskedHeads:
    """R heads of one shape: linear layers with ReLU between them.

    Args:
        widths: inputs, hidden units and classes, such as (64, 64, 10), or (64, 10) for one layer.
        count: how many heads, R. All start from the same weights and share the uniform numbers
            behind their masks, so that they differ in nothing but what they are meant to.
        seed: for weights and masks.
        descent: how they learn.
    """

    def __init__(
        self,
        widths: Sequence[int],
        count: int,
        seed: int,
        descent: MaskedDescent,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.widths, self.count, self.seed, self.descent = tuple(widths), count, seed, descent
        self.weights: list[Tensor] = []
        self.biases: list[Tensor] = []
        for layer, (inputs, outputs) in enumerate(pairwise(self.widths)):
            generator = generator_for(INITIAL_WEIGHTS, seed, layer)
            # torch's own start of a linear layer: all numbers uniform within 1 / sqrt(inputs).
            drawn = torch.rand(outputs, inputs + 1, generator=generator, dtype=torch.float64)
            start = ((2 * drawn - 1) / inputs**0.5).to(device, dtype)
            self.weights.append(start[:, :inputs].repeat(count, 1, 1))
            self.biases.append(start[None, None, :, inputs].repeat(count, 1, 1))
        self._weight_momentum = [torch.zeros_like(weight) for weight in self.weights]
        self._bias_momentum = [torch.zeros_like(bias) for bias in self.biases]
        self.masks = [torch.ones_like(weight) for weight in self.weights]
        self._momentum_kept = [self._keep_momentum(mask) for mask in self.masks]
        self.retention: FloatArray = np.ones(count)

    def draw_masks(self, retention: FloatArray, epoch: int) -> None:
        """Draw the masks of an epoch: head r keeps a connection with probability ``retention[r]``.

        They depend on seed, epoch and layer only; a lower retention keeps a subset of what a higher
        one keeps.
        """
        self.retention = retention.copy()
        kept = tensor_of(self.retention)[:, None, None]
        for layer, weight in enumerate(self.weights):
            generator = generator_for(MASK, self.seed, epoch, layer)
            uniform = torch.rand(weight.shape[1:], generator=generator, dtype=torch.float64)
            self.masks[layer] = (uniform < kept).to(weight)
            self._momentum_kept[layer] = self._keep_momentum(self.masks[layer])
            if self.descent.mode == "zeroing":
                weight.mul_(self.masks[layer])
            if self.descent.stands_still and self.descent.masked_momentum == "dropped":
                self._weight_momentum[layer].mul_(self.masks[layer])

    def _keep_momentum(self, mask: Tensor) -> Tensor:
        """Return what a step multiplies momentum by: 1 where it stands still."""
        return 1 - (1 - self.descent.momentum) * mask

    def effective_weights(self, *, inference: bool = False) -> list[Tensor]:
        """Return the (R, out, in) matrices that make the logits, in training or at inference."""
        mode = self.descent.mode
        if mode == "zeroing" or (inference and mode == "full"):
            return self.weights
        if inference and mode == "expected":
            share = tensor_of(self.retention)[:, None, None]
            return [weight * share.to(weight) for weight in self.weights]
        return [weight * mask for weight, mask in zip(self.weights, self.masks, strict=True)]

    def logits(self, features: Tensor, weights: Sequence[Tensor] | None = None) -> Tensor:
        """Return (R, N, K) logits of (N, D) features."""
        hidden = features
        layers = zip(weights or self.effective_weights(), self.biases, strict=True)
        for layer, (weight, bias) in enumerate(layers):
            if layer:
                hidden = functional.relu(hidden)
            hidden = hidden @ weight.transpose(1, 2) + bias
        return hidden

    def step(self, features: Tensor, labels: Tensor, learning_rate: float) -> Tensor:
        """Take one step of SGD on the mean cross-entropy; return the (R, N, K) logits before it."""
        weights = [weight.detach().requires_grad_() for weight in self.effective_weights()]
        biases = [bias.detach().requires_grad_() for bias in self.biases]
        self.biases = biases
        logits = self.logits(features, weights)
        repeated = labels.expand(self.count, -1).reshape(-1)
        flat = logits.reshape(-1, self.widths[-1])
        loss = functional.cross_entropy(flat, repeated, reduction="sum") / len(labels)
        gradients = torch.autograd.grad(loss, [*weights, *biases])
        self.biases = [bias.detach() for bias in biases]
        depth = len(weights)
        for layer in range(depth):
            self._descend(layer, gradients[layer], learning_rate)
            self._descend_bias(layer, gradients[depth + layer], learning_rate)
        return logits.detach()

    def _descend(self, layer: int, gradient: Tensor, learning_rate: float) -> None:
        weight, velocity, mask = (
            self.weights[layer],
            self._weight_momentum[layer],
            self.masks[layer],
        )
        descent = self.descent
        if descent.stands_still:
            direction = gradient.add_(weight, alpha=descent.weight_decay)
            velocity.mul_(self._momentum_kept[layer]).addcmul_(direction, mask)
            weight.addcmul_(velocity, mask, value=-learning_rate)
        else:
            if descent.restrict_gradient:
                gradient = gradient * mask
            direction = gradient.add_(weight, alpha=descent.weight_decay)
            velocity.mul_(descent.momentum).add_(direction)
            weight.add_(velocity, alpha=-learning_rate)

    def _descend_bias(self, layer: int, gradient: Tensor, learning_rate: float) -> None:
        bias, velocity = self.biases[layer], self._bias_momentum[layer]
        direction = gradient.add(bias, alpha=self.descent.weight_decay)
        velocity.mul_(self.descent.momentum).add_(direction)
        bias.add_(velocity, alpha=-learning_rate)

    def module(self, head: int) -> nn.Sequential:
        """Return one head as a module for inference, its masks folded into the weights."""
        layers: list[nn.Module] = []
        for layer, weight in enumerate(self.effective_weights(inference=True)):
            if layer:
                layers.append(nn.ReLU())
            with random_state_kept():
                linear = nn.Linear(weight.shape[2], weight.shape[1])
            linear.to(device=weight.device, dtype=weight.dtype)
            with torch.no_grad():
                linear.weight.copy_(weight[head])
                linear.bias.copy_(self.biases[layer][head, 0])
            layers.append(linear)
        return nn.Sequential(*layers).eval()


class MaskedLearner:
    """Masked heads that draw new masks in every epoch.

    Args:
        heads: R heads.
        scaling: of the features that they take.
        retention: (R,) of the first epoch.
        rate: the learning rate of an epoch.
        adapt: from epoch, retention, accuracy and confidence to the next retention, all (R,).
        remeasure: None to count accuracy and confidence while training; otherwise a function that
            yields all rows, to count them on when the epoch has ended.
    """

    def __init__(
        self,
        heads: MaskedHeads,
        scaling: FeatureScaling,
        retention: FloatArray,
        rate: Callable[[int], float],
        adapt: Callable[[int, FloatArray, FloatArray, FloatArray], FloatArray],
        remeasure: Callable[[], Iterable[tuple[Tensor, Tensor]]] | None = None,
    ) -> None:
        self.heads, self.scaling, self._rate, self._adapt = heads, scaling, rate, adapt
        self._retention, self._remeasure = retention, remeasure
        self._records: list[tuple[FloatArray, FloatArray, FloatArray]] = []
        self._learning_rate, self._tally = 0.0, Tally(heads.count)

    def begin(self, epoch: int) -> None:
        """Draw the masks of the epoch, and set its learning rate."""
        self.heads.draw_masks(self._retention, epoch)
        self._learning_rate = self._rate(epoch)
        self._tally = Tally(self.heads.count)

    def learn(self, features: Tensor, labels: Tensor) -> None:
        """Take one step of all heads, and count what they got right."""
        logits = self.heads.step(self.scaling.apply(features), labels, self._learning_rate)
        self._tally.add(logits, labels)

    def end(self, epoch: int) -> None:
        """Record the epoch, and decide on the next one's retention."""
        tally = self._tally
        if self._remeasure is not None:
            tally = Tally(self.heads.count)
            for features, labels in self._remeasure():
                tally.add(self.heads.logits(self.scaling.apply(features)), labels)
        accuracy, confidence = tally.accuracy, tally.confidence
        self._records.append((self._retention.copy(), accuracy, confidence))
        self._retention = self._adapt(epoch, self._retention, accuracy, confidence)

    def history(self, head: int) -> list[EpochRecord]:
        """Return the records of one head."""
        return [
            EpochRecord(epoch, *(float(values[head]) for values in record))
            for epoch, record in enumerate(self._records, start=1)
        ]


def unchanged(
    _epoch: int, retention: FloatArray, _accuracy: FloatArray, _confidence: FloatArray
) -> FloatArray:
    """Leave retention as it is."""
    return np.asarray(retention)


@dataclass(eq=False)
class HeadRetraining(SecondStage):
    """A fresh linear head trained on the frozen features, nothing else: the control.

    Retraining alone moves calibration, so no second stage should be judged without it.

    Attributes:
        momentum, weight_decay: of SGD; biases decay too.
        schedule: learning rate over the epochs: ``"constant"`` or ``"cosine"``.
    """

    method: ClassVar[str] = "retrain"
    words: ClassVar[str] = "a new linear head, as the control"

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

    def _fit(self, given: Given) -> None:
        source = given.source
        learner = self._plain_learner(source, self._scaling(source, LINEAR_LENGTH))
        train(source, [learner], self.epochs, self.batch_size, given.progress)
        self._keep(folded(learner, 0), learner.history(0))


def folded(learner: MaskedLearner, head: int) -> nn.Sequential:
    """Return one head as a module that takes features as the network gives them."""
    module = learner.heads.module(head)
    first = module[0]
    assert isinstance(first, nn.Linear)
    learner.scaling.fold_into(first)
    return module


@dataclass(frozen=True, kw_only=True)
class MaskedInference(Held):
    """How a head does with a share of its connections; means over repeats.

    Attributes:
        retention: probability that a connection is kept.
    """

    retention: float


# Parameters: a head, the rows to measure it on, and what is tried on them.
def mask_at_inference(
    weight: Array,
    bias: Array,
    features: Array,
    labels: Array,
    retentions: Sequence[float] = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1),
    *,
    batch_size: int = 128,
    repeats: int = 5,
    seed: int = 0,
) -> list[MaskedInference]:
    """Measure a linear head whose weights are masked at random, anew for every batch.

    Confidence falls with the share of connections, and so does accuracy: the motive for retraining
    under masks.

    Args:
        weight: (K, D) of the trained head; kept weights are not rescaled.
        bias: (K,), not masked.
        features: (N, D) held-out features.
        labels: (N,) classes.
        retentions: probabilities of keeping a connection.
        batch_size: rows that share a mask.
        repeats: how often all rows are measured; the results are averaged.
        seed: for the masks.

    Raises:
        InputError: arrays that don't fit, or a number out of range.

    References:
        Section 4.1 of the MaC-Cal paper (arXiv 2508.09116).
    """
    batch_size, repeats = (
        within(name, value, whole=True, at_least=1)
        for name, value in (("batch_size", batch_size), ("repeats", repeats))
    )
    seed = within("seed", seed, whole=True, at_least=0)
    matrix = tensor_of(np.array(to_numpy(weight), dtype=np.float64))
    offset = tensor_of(np.array(to_numpy(bias), dtype=np.float64))
    rows = FeatureRows.checked(features, labels, len(matrix), source="features")
    if matrix.shape != (rows.n_classes, rows.width) or offset.shape != (rows.n_classes,):
        raise InputError(
            f"the head must have weights (K, {rows.width}) and biases (K,), not "
            f"{tuple(matrix.shape)} and {tuple(offset.shape)}"
        )
    results: list[MaskedInference] = []
    for retention in retentions:
        if not 0 <= retention <= 1:
            raise InputError(f"a retention must lie between 0 and 1, not {retention}")
        runs = [
            _measure(
                matrix, offset, rows, retention, batch_size, generator_for(MASK, seed, run)
            ).as_dict()
            for run in range(repeats)
        ]
        means = {name: float(np.mean([run[name] for run in runs])) for name in runs[0]}
        results.append(MaskedInference(retention=retention, **means))
    return results


def _measure(
    weight: Tensor,
    bias: Tensor,
    rows: FeatureRows,
    retention: float,
    batch_size: int,
    generator: torch.Generator,
) -> Held:
    parts: list[Tensor] = []
    for features, _ in rows.passes(batch_size):
        # The same uniform numbers for every retention: the curves are smooth in it.
        uniform = torch.rand(weight.shape, generator=generator, dtype=torch.float64)
        masked = weight * (uniform < retention)
        parts.append(features.cpu().double() @ masked.T + bias)
    return measure_logits(torch.cat(parts), rows)[0]
