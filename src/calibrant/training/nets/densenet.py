"""DenseNet-121 for small images.

Huang, Liu, van der Maaten & Weinberger, Densely Connected Convolutional Networks, CVPR 2017, in the
shape of the code of Mukhoti et al. (NeurIPS 2020).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from calibrant.training.nets.base import ImageClassifier

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
