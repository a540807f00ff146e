"""Features on a common scale, so that one learning rate fits every network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from calibrant.core.errors import InputError

if TYPE_CHECKING:
    from calibrant.training.second_stages.sources import FeatureSource

# Root mean square length of a row once scaled. A step of SGD moves a logit of a linear head by the
# learning rate times the square of this length, so it decides how far a number of epochs gets.
# In a head of two layers both grow together, so its rows are shorter.
LINEAR_LENGTH, DEEP_LENGTH = 2.0, 0.5
# Rows read at a time where nothing is learnt from them.
READ_ROWS = 4096


@dataclass(frozen=True)
class FeatureScaling:
    """x -> factor * (x - mean): centred rows of a given root mean square length.

    One factor for all features, so a feature that hardly varies is not blown up.

    Attributes:
        mean: (D,) float64 mean over the training rows.
        factor: what to multiply by.
    """

    mean: Tensor
    factor: float

    @classmethod
    def of(cls, source: FeatureSource) -> FeatureScaling:
        """Learn from one pass over the training rows, in float64, to give rows of length 1.

        Raises:
            InputError: all rows are alike.
        """
        rows, first, mean, squares = 0, None, torch.zeros(()), 0.0
        for features, _ in source.passes(READ_ROWS):
            wide = features.double()
            # Sums of differences to one row: a large common offset would cost all digits.
            first = wide[0] if first is None else first
            wide = wide - first
            mean = mean.to(wide) + wide.sum(0)
            squares += float(wide.square().sum())
            rows += len(wide)
        if first is None:
            raise InputError("the training rows are empty")
        mean = mean / rows
        variance = squares / rows - float(mean.square().sum())
        if variance <= 1e-12 * max(squares / rows, 1e-300):
            raise InputError("the features are the same in every training row: nothing to learn")
        return cls(first + mean, variance**-0.5)

    @classmethod
    def identity(cls, width: int) -> FeatureScaling:
        """Leave features as they are."""
        return cls(torch.zeros(width, dtype=torch.float64), 1.0)

    def longer(self, length: float) -> FeatureScaling:
        """Return a scaling to rows that many times as long."""
        return FeatureScaling(self.mean, self.factor * length)

    def apply(self, features: Tensor) -> Tensor:
        """Return scaled (N, D) features in their own dtype."""
        return (features - self.mean.to(features)) * self.factor

    def fold_into(self, layer: nn.Linear) -> None:
        """Change a layer that expects scaled features so that it takes them as they come."""
        with torch.no_grad():
            weight = layer.weight.double() * self.factor
            shift = weight @ self.mean.to(weight)
            layer.bias.copy_(layer.bias.double() - shift)
            layer.weight.copy_(weight)


class Rescale(nn.Module):
    """A `FeatureScaling` as the first layer of a head that it can't be folded into."""

    mean: Tensor
    factor: Tensor

    def __init__(self, mean: Tensor, factor: float) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("factor", torch.tensor(factor, dtype=mean.dtype, device=mean.device))

    def forward(self, features: Tensor) -> Tensor:
        """Return scaled (N, D) features."""
        return (features - self.mean) * self.factor
