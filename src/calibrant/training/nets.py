"""Networks by name.

Residual networks keep the size in their first convolution and have no max-pool: He, Zhang, Ren &
Sun, Deep Residual Learning for Image Recognition, CVPR 2016; Zagoruyko & Komodakis, Wide Residual
Networks, BMVC 2016; Huang, Liu, van der Maaten & Weinberger, Densely Connected Convolutional
Networks, CVPR 2017. Shapes as in the code of Mukhoti et al., Calibrating Deep Neural Networks using
Focal Loss, NeurIPS 2020, which later work on calibration shares.

Examples:
    >>> import torch
    >>> from calibrant.training import nets
    >>> nets.make_network("resnet8", n_classes=10)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from math import sqrt
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, cast, overload

import torch
from torch import Tensor, nn

from calibrant.core.arguments import named
from calibrant.core.errors import InputError
from calibrant.core.plug_ins import WithPlugIns
from calibrant.core.text import reason_of
from calibrant.training.features import TappedNetwork


class ImageClassifier(nn.Module):
    """A body of convolutions, average pooling, and one linear layer on the pooled features.

    Attributes:
        body: the stages before pooling, each a module; the first is the stem.
        pool: (B, C, H, W) to (B, D) features.
        fc: (B, D) to (B, K) logits.
    """

    def __init__(
        self, body: Sequence[nn.Module], channels: int, n_classes: int, cells: int = 1
    ) -> None:
        """Put a network together.

        Args:
            body: the stages, stem first.
            channels: what the last stage gives.
            n_classes: K.
            cells: side of the grid that pooling leaves; D is channels * cells**2.
        """
        super().__init__()
        self.body = nn.Sequential(*body)
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(cells), nn.Flatten())
        self.fc = nn.Linear(channels * cells**2, n_classes)

    @property
    def stages(self) -> tuple[nn.Module, ...]:
        """The parts that give the logits when applied in turn; the last is pooling with `fc`.

        For methods that act between the parts, such as MIT-A. They share their weights with the
        network.
        """
        return (*self.body, nn.Sequential(self.pool, self.fc))

    @property
    def feature_width(self) -> int:
        """D, the number of features that the last layer reads."""
        return self.fc.in_features

    def features(self, images: Tensor) -> Tensor:
        """Return the (B, D) inputs of the last layer, through which gradients flow."""
        return self.pool(self.body(images))

    @overload
    def forward(self, images: Tensor, return_features: Literal[False] = False) -> Tensor: ...
    @overload
    def forward(self, images: Tensor, return_features: Literal[True]) -> tuple[Tensor, Tensor]: ...
    @overload
    def forward(self, images: Tensor, return_features: bool) -> Tensor | tuple[Tensor, Tensor]: ...
    def forward(
        self, images: Tensor, return_features: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return (B, K) logits of (B, 3, H, W) images, and if asked the detached (B, D) features.

        The features are detached since losses that look at them (FeDLaS) must not move them;
        `features` gives them with their gradient.
        """
        features = self.features(images)
        logits = self.fc(features)
        return (logits, features.detach()) if return_features else logits


def conv_norm(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """Return a convolution without bias, padded so that it keeps the size, and its batch norm."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(outputs),
    )


def initialise_by_outputs(network: nn.Module) -> None:
    """Draw the weights of every convolution from N(0, 2 / (k * k * outputs)).

    What the reference code does for its Wide ResNet and its Tiny-ImageNet networks; the others
    start as PyTorch does.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            kernel = module.kernel_size[0] * module.kernel_size[1]
            nn.init.normal_(module.weight, std=sqrt(2 / (kernel * module.out_channels)))


GROWTH = 32


def _norm_relu_conv(inputs: int, outputs: int, kernel: int) -> nn.Sequential:
    return nn.Sequential(
        nn.BatchNorm2d(inputs),
        nn.ReLU(inplace=True),
        nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False),
    )


class DenseLayer(nn.Module):
    """Put `GROWTH` new channels in front of those that came in."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            _norm_relu_conv(inputs, 4 * GROWTH, 1), _norm_relu_conv(4 * GROWTH, GROWTH, 3)
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return (B, inputs + GROWTH, H, W) of (B, inputs, H, W)."""
        return torch.cat([self.branch(images), images], dim=1)


@dataclass(frozen=True)
class DenseNet:
    """How a DenseNet is put together, and its description.

    Attributes:
        blocks: dense layers in each block.
        note: what it is for, in words.
    """

    blocks: tuple[int, ...]
    note: str

    def __call__(self, n_classes: int) -> ImageClassifier:
        """Return the network for K classes."""
        channels = 2 * GROWTH
        # Its first convolution has neither norm nor ReLU: each layer begins with its own.
        stages: list[nn.Module] = [nn.Conv2d(3, channels, 3, padding=1, bias=False)]
        for number, depth in enumerate(self.blocks):
            parts: list[nn.Module] = []
            for _ in range(depth):
                parts.append(DenseLayer(channels))
                channels += GROWTH
            if number < len(self.blocks) - 1:
                parts += [_norm_relu_conv(channels, channels // 2, 1), nn.AvgPool2d(2)]
                channels //= 2
            else:
                parts += [nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]
            stages.append(nn.Sequential(*parts))
        return ImageClassifier(stages, channels, n_classes)


class Residual(nn.Module):
    """relu(branch(x) + shortcut(x)); the shortcut is a 1x1 convolution where the shape changes."""

    def __init__(self, branch: nn.Module, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.branch = branch
        changes = stride != 1 or inputs != outputs
        self.shortcut = conv_norm(inputs, outputs, 1, stride) if changes else nn.Identity()
        self.relu = nn.ReLU(inplace=True)

    def forward(self, images: Tensor) -> Tensor:
        """Return (B, outputs, H / stride, W / stride) of (B, inputs, H, W)."""
        return self.relu(self.branch(images) + self.shortcut(images))


def basic_block(inputs: int, width: int, stride: int) -> Residual:
    """Two 3x3 convolutions; gives `width` channels."""
    branch = nn.Sequential(
        conv_norm(inputs, width, 3, stride), nn.ReLU(inplace=True), conv_norm(width, width, 3)
    )
    return Residual(branch, inputs, width, stride)


EXPANSION = 4


def bottleneck(inputs: int, width: int, stride: int) -> Residual:
    """1x1, 3x3 (with the stride) and 1x1 convolutions; gives `EXPANSION * width` channels."""
    branch = nn.Sequential(
        conv_norm(inputs, width, 1),
        nn.ReLU(inplace=True),
        conv_norm(width, width, 3, stride),
        nn.ReLU(inplace=True),
        conv_norm(width, EXPANSION * width, 1),
    )
    return Residual(branch, inputs, EXPANSION * width, stride)


@dataclass(frozen=True)
class ResNet:
    """How a residual network is put together, and its description.

    Attributes:
        depths: blocks in each stage.
        note: what it is for, in words.
        widths: of the blocks of each stage.
        strides: of the first block of each stage.
        stem: channels that the first convolution gives.
        basic: whether blocks are two 3x3 convolutions, rather than bottlenecks.
        cells: side of the grid that pooling leaves.
        by_outputs: whether weights are drawn by `initialise_by_outputs`.
    """

    depths: tuple[int, ...]
    note: str
    widths: tuple[int, ...] = (64, 128, 256, 512)
    strides: tuple[int, ...] = (1, 2, 2, 2)
    stem: int = 64
    basic: bool = False
    cells: int = 1
    by_outputs: bool = False

    def __call__(self, n_classes: int) -> ImageClassifier:
        """Return the network for K classes."""
        block, expansion = (basic_block, 1) if self.basic else (bottleneck, EXPANSION)
        channels = self.stem
        stages: list[nn.Module] = [
            nn.Sequential(conv_norm(3, channels, 3), nn.ReLU(inplace=True)),
        ]
        for depth, width, stride in zip(self.depths, self.widths, self.strides, strict=True):
            first = block(channels, width, stride)
            channels = expansion * width
            others = (block(channels, width, 1) for _ in range(depth - 1))
            stages.append(nn.Sequential(first, *others))
        network = ImageClassifier(stages, channels, n_classes, self.cells)
        if self.by_outputs:
            initialise_by_outputs(network)
        return network


class Patches(nn.Module):
    """Squares of an image as a map of vectors, with their places added: sines and cosines."""

    def __init__(self, side: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, width, side, stride=side)

    def forward(self, images: Tensor) -> Tensor:
        """Return (B, width, H / side, W / side) of (B, 3, H, W) images."""
        patches = self.embed(images)
        width, rows, columns = patches.shape[1:]
        speeds = 100.0 ** -torch.linspace(0, 1, width // 4, device=images.device)
        places = [torch.arange(cells, device=images.device) for cells in (rows, columns)]
        down, right = torch.meshgrid(*places, indexing="ij")
        angles = [speeds[:, None, None] * place for place in (down, right)]
        waves = torch.cat([wave(angle) for angle in angles for wave in (torch.sin, torch.cos)])
        return patches + waves.to(patches.dtype)


class Attention(nn.Module):
    """A layer of a transformer, norm first, on a map of vectors; or its last norm alone."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, patches: Tensor) -> Tensor:
        """Return (B, width, H, W) of as much."""
        return self.layer(patches.flatten(2).mT).mT.unflatten(2, patches.shape[2:])


@dataclass(frozen=True)
class VisionTransformer:
    """How a vision transformer is put together, and its description.

    Dosovitskiy et al., An Image is Worth 16x16 Words, ICLR 2021, with the mean of the patches in
    place of a class token and places as sines, as in Beyer, Zhai & Kolesnikov, Better plain ViT
    baselines for ImageNet-1k, 2022.

    Attributes:
        depth: layers.
        width: of the vectors, a multiple of 4.
        heads: of each layer's attention.
        side: of a patch, in pixels.
        note: what it is for, in words.
    """

    depth: int
    width: int
    heads: int
    side: int
    note: str

    def __call__(self, n_classes: int) -> ImageClassifier:
        """Return the network for K classes."""
        stages: list[nn.Module] = [Patches(self.side, self.width)]
        for _ in range(self.depth):
            layer = nn.TransformerEncoderLayer(
                *(self.width, self.heads, 4 * self.width),
                dropout=0.0,
                activation="gelu",
                batch_first=True,
                norm_first=True,
            )
            stages.append(Attention(layer))
        stages[-1] = nn.Sequential(stages[-1], Attention(nn.LayerNorm(self.width)))
        return ImageClassifier(stages, self.width, n_classes)


__all__ = ["NETS", "ImageClassifier", "TappedNetwork", "make_network"]

_TINY = "for 64x64 images; pooling leaves 2x2 cells"
# Shortcuts that change the shape are 1x1 convolutions; those of He et al. on CIFAR pad with zeros.
_BUILT_IN: dict[str, Callable[[int], ImageClassifier]] = {
    # Every stage halves the sides, the first too, which takes most of the cost out of large images.
    "resnet8": ResNet(
        (1, 1, 1),
        "for studies on a CPU",
        widths=(48, 96, 192),
        strides=(2, 2, 2),
        stem=24,
        basic=True,
    ),
    "resnet20": ResNet(
        (3, 3, 3),
        "He et al.'s on CIFAR of depth 6n + 2 with n = 3",
        widths=(16, 32, 64),
        strides=(1, 2, 2),
        stem=16,
        basic=True,
    ),
    "resnet50": ResNet((3, 4, 6, 3), "for 32x32 images"),
    "resnet101": ResNet((3, 4, 23, 3), "for 32x32 images"),
    "resnet110": ResNet(
        (3, 4, 26, 3),
        "what the literature on calibration calls so: bottlenecks, 46 million parameters; He et "
        "al.'s of that name has 1.7 million",
    ),
    "wrn-26-10": ResNet(
        (4, 4, 4),
        "ReLU after the addition and no dropout, unlike in Zagoruyko & Komodakis",
        widths=(160, 320, 640),
        strides=(1, 2, 2),
        stem=16,
        basic=True,
        by_outputs=True,
    ),
    "densenet121": DenseNet((6, 12, 24, 16), "for 32x32 images"),
    "small-vit": VisionTransformer(4, 64, 2, 4, "a vision transformer for studies on a CPU"),
    "resnet50-tiny": ResNet((3, 4, 6, 3), _TINY, cells=2, by_outputs=True),
    "resnet101-tiny": ResNet((3, 4, 23, 3), _TINY, cells=2, by_outputs=True),
}


def _checked(name: str, make: Any) -> Callable[[int], ImageClassifier]:
    """Return what an entry point names, or raise for the reason why it makes no network."""
    if not callable(make):
        raise TypeError("it is not a function that takes the number of classes")
    return cast("Callable[[int], ImageClassifier]", make)


# Those of other packages too: entry points `calibrant.networks`.
NETS = WithPlugIns("calibrant.networks", "network", _BUILT_IN, _checked)


def make_network(name: str, n_classes: int) -> ImageClassifier:
    """Return a freshly initialised network that reads (B, 3, H, W) images.

    Its weights are drawn from torch's global generator.

    Args:
        name: one of `NETS`.
        n_classes: K, at least 2.

    Raises:
        UnknownMethodError: no network goes by this name.
        InputError: fewer than two classes.
    """
    make = named(NETS, name, "network")
    if n_classes < 2:
        raise InputError(f"a network needs at least 2 classes, not {n_classes}")
    return make(n_classes)


def own_network(name: str, n_classes: int) -> nn.Module:
    """Return what a function of one's own makes, such as a pretrained network with a new head.

    Args:
        name: "module:function"; the module is one that can be imported, also from the folder that
            one is in. The function is called with the number of classes.
        n_classes: K.

    Raises:
        InputError: there is no such function, it fails, or makes something else.
    """
    place, _, function = name.partition(":")
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        network = attrgetter(function)(import_module(place))(n_classes)
    # Whatever a module of one's own raises.
    except Exception as error:
        raise InputError(
            f"{name}: can't make a network by this function ({type(error).__name__}: "
            f"{reason_of(error)}); give it as module:function, which takes the number of classes"
        ) from error
    finally:
        sys.path.remove(here)
    if not isinstance(network, nn.Module):
        raise InputError(f"{name}: must return a torch.nn.Module, not {type(network).__name__}")
    return network
