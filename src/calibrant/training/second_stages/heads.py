"""Heads beyond a linear layer, and heads as files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import fspath
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from calibrant.core.errors import CalibratorFileError, InputError
from calibrant.core.outputs import StrPath
from calibrant.core.text import reason_of
from calibrant.files.parameters import ParameterFormat
from calibrant.training.second_stages.sources import (
    INITIAL_WEIGHTS,
    generator_for,
    head_logits,
    random_state_kept,
)


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


class VariationalHead(nn.Module):
    """A Gaussian code of Z numbers a row, and a linear classifier of samples from it.

    `forward` is deterministic: it averages the probabilities of S samples whose noise is fixed and
    saved with the head, the same for all rows, and returns their logarithm.

    Args:
        features: D.
        latent: Z.
        n_classes: K.
        samples: S.
    """

    noise: Tensor

    def __init__(self, features: int, latent: int, n_classes: int, samples: int) -> None:
        super().__init__()
        wide = 3 * latent
        self.mean = nn.Sequential(nn.Linear(features, wide), nn.ReLU(), nn.Linear(wide, latent))
        self.spread = nn.Sequential(
            nn.Linear(features, wide), nn.ReLU(), nn.Linear(wide, latent), nn.LogSigmoid()
        )
        self.classifier = nn.Linear(latent, n_classes)
        self.register_buffer("noise", torch.zeros(samples, latent))

    def encode(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return (N, Z) means and logarithms of variances, which are below 1."""
        return self.mean(features), self.spread(features)

    def forward(self, features: Tensor) -> Tensor:
        """Return (N, K) logarithms of the averaged probabilities."""
        mean, log_variance = self.encode(features)
        deviation = (log_variance / 2).exp()
        total: Tensor | None = None
        for noise in self.noise:
            logits = self.classifier(mean + deviation * noise)
            part = functional.log_softmax(logits, dim=1)
            total = part if total is None else torch.logaddexp(total, part)
        assert total is not None
        return total - torch.log(torch.tensor(float(len(self.noise)))).to(total)


def divergence_from_standard_normal(mean: Tensor, log_variance: Tensor) -> Tensor:
    """Return (N,) KL(N(mean, variance) || N(0, 1)), summed over the Z numbers of a row."""
    return (log_variance.exp() + mean.square() - 1 - log_variance).sum(1) / 2


# The authors' batch norm moves its running statistics by a hundredth at each step, torch's by a
# tenth.
NORM_MOMENTUM = 0.01


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
        seed: for the frame.
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


FORMAT = ParameterFormat("calibrant-head", 1, "a head", "torch")
Description = list[Any]
# The deepest head that this package trains has four.
MOST_LAYERS = 16


def write_head(path: StrPath, head: nn.Module, about: Mapping[str, str]) -> None:
    """Write a head to `path`, which must end in ``.safetensors``, with texts about it.

    Raises:
        InputError: another extension, no such folder, or a layer that files don't hold.
    """
    header = {
        "architecture": json.dumps(describe(head)),
        "dtype": str(next(head.parameters()).dtype).removeprefix("torch."),
        **about,
    }
    state = {name: value.contiguous() for name, value in head.state_dict().items()}
    FORMAT.write(path, header, state)


def load_head(path: StrPath) -> nn.Module:
    """Return a head that `save` wrote: (N, D) features in, (N, K) logits out, on the CPU.

    Nothing is unpickled or imported by name: the header describes layers that are known here.

    Raises:
        CalibratorFileError: the file is missing, damaged, not a head, or of a newer format.
    """
    source = fspath(path)
    header, state = FORMAT.read(path)
    for name, value in state.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise CalibratorFileError(f"{source}: parameter '{name}' holds NaN or infinity")
    try:
        description = json.loads(header["architecture"])
        with random_state_kept():
            head = build(description, sum(value.numel() for value in state.values()))
        head.to({"float32": torch.float32, "float64": torch.float64}[header["dtype"]])
        head.load_state_dict(state)
        head.eval()
        # Layers may each fit their parameters and not one another, numbers may be finite in the
        # file and not in the head's dtype, and a variance may be negative.
        logits = head_logits(head, torch.zeros(1, description[0][1]))
        if logits.ndim != 2 or not bool(torch.isfinite(logits).all()):
            raise ValueError("it gives a row of zeros no finite logits")
    # A header that was tampered with may fail in any way.
    except Exception as error:
        fault = f"{source}: the header doesn't fit the parameters ({reason_of(error)})"
        raise CalibratorFileError(fault) from error
    return head


def describe(head: nn.Module) -> list[Description]:
    """Return the layers of a head as JSON takes them: names and sizes, no code.

    Raises:
        InputError: a layer of a kind that files don't hold.
    """
    described: list[Description] = []
    for layer in head if isinstance(head, nn.Sequential) else [head]:
        known = (name for name, kind in KINDS.items() if isinstance(layer, kind.layer))
        name = next(known, None)
        if name is None:
            raise InputError(f"a head with a layer of type {type(layer).__name__} can't be saved")
        described.append([name, *KINDS[name].sizes(layer)])
    return described


def build(description: list[Description], elements: int) -> nn.Module:
    """Return untrained layers as `describe` named them; the inverse of it.

    Args:
        description: names and sizes of the layers.
        elements: how many numbers the file holds. What all layers hold together is counted before
            any of them is made: no damaged header may reserve memory for more.

    Raises:
        ValueError: an unknown layer, too many of them, or sizes that ask for more numbers.
    """
    if len(description) > MOST_LAYERS:
        raise ValueError(f"{len(description)} layers, where heads have at most {MOST_LAYERS}")
    needed = 0
    for name, *sizes in description:
        if not all(type(size) is int and 0 < size <= elements for size in sizes):
            raise ValueError(f"sizes {sizes} of layer '{name}'")
        needed += KINDS[name].numbers(*sizes)
    if needed > elements:
        raise ValueError(f"sizes of the layers ask for {needed} numbers, there are {elements}")
    layers: list[nn.Module] = [KINDS[name].make(*sizes) for name, *sizes in description]
    single = len(layers) == 1 and isinstance(layers[0], (VariationalHead, BalancedHead))
    return layers[0] if single else nn.Sequential(*layers)


def _rescale(width: int) -> Rescale:
    return Rescale(torch.zeros(width), 1.0)


def _of_linear(inputs: int, outputs: int) -> int:
    return (inputs + 1) * outputs


def _of_variational(features: int, latent: int, n_classes: int, samples: int) -> int:
    wide = 3 * latent
    code = _of_linear(features, wide) + _of_linear(wide, latent)
    return 2 * code + _of_linear(latent, n_classes) + samples * latent


def _of_balanced(channels: int, n_classes: int, kernel: int) -> int:
    narrow = max(1, channels // 2)
    convolutions = 2 * channels * narrow * kernel**2
    norms = 4 * (2 * channels + narrow) + 3  # each also counts its batches
    return _of_linear(channels, n_classes) + convolutions + norms + channels * n_classes + 1


@dataclass(frozen=True)
class LayerKind:
    """A kind of layer that files of heads hold.

    Attributes:
        layer: its class.
        sizes: of a layer, which a file says.
        make: an untrained layer of such sizes.
        numbers: how many of them it holds, buffers too.
    """

    layer: type[nn.Module]
    sizes: Callable[[Any], Sequence[int]]
    make: Callable[..., nn.Module]
    numbers: Callable[..., int]


KINDS = {
    "linear": LayerKind(
        nn.Linear, lambda layer: (layer.in_features, layer.out_features), nn.Linear, _of_linear
    ),
    "relu": LayerKind(nn.ReLU, lambda _: (), nn.ReLU, lambda: 0),
    "rescale": LayerKind(
        Rescale,
        lambda layer: (len(layer.mean),),
        _rescale,
        lambda *sizes: sizes[0] + 1,
    ),
    "variational": LayerKind(
        VariationalHead,
        lambda layer: (
            layer.mean[0].in_features,
            layer.noise.shape[1],
            layer.classifier.out_features,
            layer.noise.shape[0],
        ),
        VariationalHead,
        _of_variational,
    ),
    "balanced": LayerKind(
        BalancedHead,
        lambda layer: (
            layer.linear.in_features,
            layer.linear.out_features,
            layer.adaptor[2].kernel_size[0],
        ),
        BalancedHead,
        _of_balanced,
    ),
}
