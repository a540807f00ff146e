"""Networks by name.

===============  ==========================  ====  ======================
name             images                      D     parameters, K = 10
===============  ==========================  ====  ======================
resnet8          32x32, quick on a CPU       192   682,018
resnet20         32x32                       64    272,474
resnet50         32x32                       2048  23,520,842
resnet101        32x32                       2048  42,512,970
resnet110        32x32                       2048  45,864,522
wrn-26-10        32x32                       640   36,481,434
densenet121      32x32                       1024  6,956,298
resnet50-tiny    64x64                       8192  25,138,952 (K = 200)
resnet101-tiny   64x64                       8192  44,131,080 (K = 200)
===============  ==========================  ====  ======================

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

from collections.abc import Callable, Sequence
from math import sqrt
from typing import Literal, overload

import torch
from torch import Tensor, nn

from calibrant.core.arguments import named
from calibrant.core.errors import InputError
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


def conv_norm(
    inputs: int, outputs: int, kernel: int, stride: int = 1, padding: int | None = None
) -> nn.Sequential:
    """Return a convolution without bias and its batch norm; padding keeps the size by default."""
    padding = kernel // 2 if padding is None else padding
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=padding, bias=False),
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
BLOCKS = (6, 12, 24, 16)


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


def densenet121(n_classes: int) -> ImageClassifier:
    """Return DenseNet-121 for 32x32 images; D = 1024."""
    channels = 2 * GROWTH
    # Its first convolution has neither norm nor ReLU: each layer begins with its own.
    stages: list[nn.Module] = [nn.Conv2d(3, channels, 3, padding=1, bias=False)]
    for number, depth in enumerate(BLOCKS):
        parts: list[nn.Module] = []
        for _ in range(depth):
            parts.append(DenseLayer(channels))
            channels += GROWTH
        if number < len(BLOCKS) - 1:
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


def _stem(outputs: int) -> nn.Sequential:
    return nn.Sequential(conv_norm(3, outputs, 3), nn.ReLU(inplace=True))


def _stages(
    make_block: Callable[[int, int, int], Residual],
    inputs: int,
    depths: Sequence[int],
    widths: Sequence[int],
    strides: Sequence[int],
    expansion: int = 1,
) -> list[nn.Module]:
    """Return the stem and the stages; the first block of each stage has its stride."""
    stages: list[nn.Module] = [_stem(inputs)]
    for depth, width, stride in zip(depths, widths, strides, strict=True):
        first = make_block(inputs, width, stride)
        inputs = expansion * width
        stages.append(
            nn.Sequential(first, *(make_block(inputs, width, 1) for _ in range(depth - 1)))
        )
    return stages


def _bottlenecks(n_classes: int, depths: Sequence[int], cells: int = 1) -> ImageClassifier:
    widths, strides = (64, 128, 256, 512), (1, 2, 2, 2)
    stages = _stages(bottleneck, 64, depths, widths, strides, EXPANSION)
    return ImageClassifier(stages, EXPANSION * widths[-1], n_classes, cells)


def resnet8(n_classes: int) -> ImageClassifier:
    """Return a network of eight layers for studies on a CPU; D = 192.

    A basic block in each of three stages. Every stage halves the sides, the first too, which takes
    most of the cost out of the large images.
    """
    stages = _stages(basic_block, 24, (1, 1, 1), (48, 96, 192), (2, 2, 2))
    return ImageClassifier(stages, 192, n_classes)


def resnet20(n_classes: int) -> ImageClassifier:
    """Return He et al.'s CIFAR network of depth 6n + 2 with n = 3.

    Shortcuts that change the shape are 1x1 convolutions here; theirs pad with zeros.
    """
    stages = _stages(basic_block, 16, (3, 3, 3), (16, 32, 64), (1, 2, 2))
    return ImageClassifier(stages, 64, n_classes)


def resnet50(n_classes: int) -> ImageClassifier:
    """Return ResNet-50 for 32x32 images; D = 2048."""
    return _bottlenecks(n_classes, (3, 4, 6, 3))


def resnet101(n_classes: int) -> ImageClassifier:
    """Return ResNet-101 for 32x32 images; D = 2048."""
    return _bottlenecks(n_classes, (3, 4, 23, 3))


def resnet110(n_classes: int) -> ImageClassifier:
    """Return what the calibration literature since Mukhoti et al. calls ResNet-110; D = 2048.

    It has bottleneck blocks, (3, 4, 26, 3) of them, and 46 million parameters. He et al.'s CIFAR
    network of that name is another, with 1.7 million.
    """
    return _bottlenecks(n_classes, (3, 4, 26, 3))


def wide_resnet_26_10(n_classes: int) -> ImageClassifier:
    """Return WRN-26-10; D = 640.

    ReLU comes after the addition and there is no dropout, unlike in Zagoruyko & Komodakis.
    """
    stages = _stages(basic_block, 16, (4, 4, 4), (160, 320, 640), (1, 2, 2))
    network = ImageClassifier(stages, 640, n_classes)
    initialise_by_outputs(network)
    return network


def resnet50_tiny(n_classes: int) -> ImageClassifier:
    """Return ResNet-50 for 64x64 images; pooling leaves 2x2 cells, so D = 8192."""
    network = _bottlenecks(n_classes, (3, 4, 6, 3), cells=2)
    initialise_by_outputs(network)
    return network


def resnet101_tiny(n_classes: int) -> ImageClassifier:
    """Return ResNet-101 for 64x64 images; pooling leaves 2x2 cells, so D = 8192."""
    network = _bottlenecks(n_classes, (3, 4, 23, 3), cells=2)
    initialise_by_outputs(network)
    return network


__all__ = ["NETS", "ImageClassifier", "TappedNetwork", "make_network"]

NETS: dict[str, Callable[[int], ImageClassifier]] = {
    "resnet8": resnet8,
    "resnet20": resnet20,
    "resnet50": resnet50,
    "resnet101": resnet101,
    "resnet110": resnet110,
    "wrn-26-10": wide_resnet_26_10,
    "densenet121": densenet121,
    "resnet50-tiny": resnet50_tiny,
    "resnet101-tiny": resnet101_tiny,
}


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
