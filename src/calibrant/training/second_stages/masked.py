"""Heads trained under masks: R of them side by side, on the same batches.

Heads that differ only in a setting (MaC-Cal's kappa, say) cost little more than one when they share
their batches, since small matrices leave a processor idle. Every tensor has a leading axis R, and
no head sees another's numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from calibrant.core.arrays import FloatArray
from calibrant.training.second_stages.seeds import INITIAL_WEIGHTS, MASK, generator_for
from calibrant.training.second_stages.tensors import random_state_kept, tensor_of

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
        seed: of weights and masks.
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
