"""BalCAL's head: a linear and a fixed simplex classifier, and the balance between them."""

from __future__ import annotations

from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from calibrant.core.errors import InputError
from calibrant.training.second_stages.seeds import INITIAL_WEIGHTS, generator_for

BALANCE_TOLERANCE = 1e-4
# The authors' batch norm moves its running statistics by a hundredth at each step, torch's by a
# tenth.
NORM_MOMENTUM = 0.01
Accuracy = Literal["mixture", "linear"]


def simplex_frame(features: int, n_classes: int, seed: int) -> Tensor:
    """Return a (D, K) simplex equiangular tight frame: K unit columns, as far apart as can be.

    sqrt(K / (K - 1)) P (I - 11' / K), where P (D, K) has orthonormal columns, drawn at random; the
    cosine between any two columns is -1 / (K - 1).

    Raises:
        InputError: fewer features than classes.
    """
    if features < n_classes:
        raise InputError(
            f"a simplex frame needs at least as many features as classes, not {features} for "
            f"{n_classes}"
        )
    generator = generator_for(INITIAL_WEIGHTS, seed, features, n_classes)
    drawn = torch.rand(features, n_classes, generator=generator, dtype=torch.float64)
    orthonormal: Tensor = cast(Any, torch.linalg).qr(drawn).Q
    centring = torch.eye(n_classes, dtype=torch.float64) - 1 / n_classes
    return (n_classes / (n_classes - 1)) ** 0.5 * orthonormal @ centring


class BalancedHead(nn.Module):
    """A linear head and a fixed simplex head behind an adaptor; their logits are mixed.

    Takes (N, C, H, W) feature maps, which it pools, or (N, D) features.

    Args:
        channels: C or D.
        n_classes: K.
        kernel_size: of the adaptor's convolutions: 3 for maps, 1 for pooled features.
        seed: of the frame.
        norm_momentum: share of a batch's statistics in the running ones of the batch norms.
    """

    frame: Tensor
    balance: Tensor

    def __init__(
        self,
        channels: int,
        n_classes: int,
        kernel_size: int = 1,
        seed: int = 0,
        norm_momentum: float = NORM_MOMENTUM,
    ) -> None:
        super().__init__()
        narrow = max(1, channels // 2)
        padding = kernel_size // 2
        self.linear = nn.Linear(channels, n_classes)
        self.adaptor = nn.Sequential(
            nn.BatchNorm2d(channels, momentum=norm_momentum),
            nn.ReLU(),
            nn.Conv2d(channels, narrow, kernel_size, padding=padding, bias=False),
            nn.BatchNorm2d(narrow, momentum=norm_momentum),
            nn.ReLU(),
            nn.Conv2d(narrow, channels, kernel_size, padding=padding, bias=False),
        )
        self.norm = nn.BatchNorm2d(channels, momentum=norm_momentum)
        self.register_buffer("frame", simplex_frame(channels, n_classes, seed).float())
        self.register_buffer("balance", torch.tensor(0.8))

    def both(self, maps: Tensor) -> tuple[Tensor, Tensor]:
        """Return (N, K) logits of the linear and of the simplex head."""
        if maps.ndim == 2:
            maps = maps[:, :, None, None]
        adapted = functional.relu(self.norm(maps + self.adaptor(maps))).mean(dim=(2, 3))
        direction = functional.normalize(adapted, dim=1)
        return self.linear(maps.mean(dim=(2, 3))), direction @ self.frame

    def forward(self, maps: Tensor) -> Tensor:
        """Return (N, K) logits, mixed by `balance`."""
        linear, simplex = self.both(maps)
        return self.balance * linear + (1 - self.balance) * simplex


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
