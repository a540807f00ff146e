"""Residual networks for small images: the first convolution keeps the size, and no max-pool.

He, Zhang, Ren & Sun, Deep Residual Learning for Image Recognition, CVPR 2016; Zagoruyko &
Komodakis, Wide Residual Networks, BMVC 2016. Shapes as in the code of Mukhoti et al., Calibrating
Deep Neural Networks using Focal Loss, NeurIPS 2020, which later work on calibration shares.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from calibrant.training.nets.base import ImageClassifier, conv_norm, initialise_by_outputs


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
