"""What a network says of a set of images, over all devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from calibrant.training.data.images import Images, Normalisation
from calibrant.training.nets import ImageClassifier

BATCH = 500


@dataclass(frozen=True, eq=False)
class Outputs:
    """Of N images, on the CPU and in float32.

    Attributes:
        logits: (N, K).
        features: (N, D) inputs of the last layer.
        labels: (N,) true classes.
    """

    logits: Tensor
    features: Tensor
    labels: Tensor

    @property
    def accuracy(self) -> float:
        """Share of images that are classified rightly."""
        return (self.logits.argmax(1) == self.labels).double().mean().item()

    @property
    def confidence(self) -> float:
        """Mean of the largest probability."""
        return self.logits.double().softmax(1).amax(1).mean().item()

    @property
    def cross_entropy(self) -> float:
        """Mean cross-entropy in nats, whatever the network was trained on."""
        return cross_entropy(self.logits.double(), self.labels).item()


@torch.no_grad()
def network_outputs(
    fabric: Any, network: ImageClassifier, images: Images, normalise: Normalisation
) -> Outputs:
    """Return the outputs for all images, in their order and on every device the same.

    Args:
        fabric: a launched `lightning.fabric.Fabric`.
        network: on its device; put into evaluation mode for this, and back.
        images: N of them.
        normalise: of the training images, also for images from elsewhere.
    """
    _agree_on_buffers(fabric, network)
    training = network.training
    network.eval()
    rank, world, device = fabric.global_rank, fabric.world_size, fabric.device
    # Collectives want equal lengths: the last image stands in where a device has one fewer.
    mine = torch.arange(rank, rank + world * -(-len(images) // world), world)
    parts: list[tuple[Tensor, Tensor]] = []
    mine = mine.clamp_max(len(images) - 1)
    for start in range(0, len(mine), BATCH):
        index = mine[start : start + BATCH]
        batch = normalise(images.batch(index)).to(device, memory_format=torch.channels_last)
        logits, features = network(batch, return_features=True)
        parts.append((logits.float(), features.float()))
    network.train(training)
    logits, features = (
        _interleaved(fabric, torch.cat(part))[: len(images)] for part in zip(*parts, strict=True)
    )
    return Outputs(logits, features, images.labels)


def _interleaved(fabric: Any, rows: Tensor) -> Tensor:
    """Return (world * M, ...) rows in the order of the images; device r has every world-th."""
    if fabric.world_size == 1:
        return rows.cpu()
    return fabric.all_gather(rows).transpose(0, 1).flatten(0, 1).cpu()


def _agree_on_buffers(fabric: Any, network: ImageClassifier) -> None:
    """Give all devices the running statistics of the first, as they differ by their images."""
    if fabric.world_size > 1:
        for buffer in network.buffers():
            torch.distributed.broadcast(buffer, 0)
