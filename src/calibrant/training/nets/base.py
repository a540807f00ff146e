"""What every network of this package offers: its features, and its stages one by one."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Literal, overload

from torch import Tensor, nn


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
