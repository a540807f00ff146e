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
def predict(
    network: ImageClassifier,
    images: Images,
    normalise: Normalisation,
    index: Tensor | None = None,
) -> Outputs:
    """Return what a network says of images, on the device that it is on.

    Args:
        network: put into evaluation mode for this, and back.
        images: any, also of another kind than it was trained on.
        normalise: that of its training images, whatever these are.
        index: positions of the images wanted; all by default.
    """
    index = torch.arange(len(images)) if index is None else index
    device = network.fc.weight.device
    training = network.training
    network.eval()
    parts: list[tuple[Tensor, Tensor]] = []
    for start in range(0, len(index), BATCH):
        batch = normalise(images.batch(index[start : start + BATCH]))
        batch = batch.to(device, memory_format=torch.channels_last)
        logits, features = network(batch, return_features=True)
        parts.append((logits.float(), features.float()))
    network.train(training)
    logits, features = (torch.cat(part).cpu() for part in zip(*parts, strict=True))
    return Outputs(logits, features, images.labels[index])


def predict_on_all_devices(
    fabric: Any, network: ImageClassifier, images: Images, normalise: Normalisation
) -> Outputs:
    """Share the images between the devices; return the outputs in their order, the same on all.

    Args:
        fabric: a launched `lightning.fabric.Fabric`.
        network: as in `predict`; also images and normalise.
    """
    rank, world = fabric.global_rank, fabric.world_size
    if world == 1:
        return predict(network, images, normalise)
    # The running statistics of the devices differ by the images each has seen.
    for buffer in network.buffers():
        torch.distributed.broadcast(buffer, 0)
    # Collectives want equal lengths: the last image stands in where a device has one fewer.
    mine = torch.arange(rank, rank + world * -(-len(images) // world), world)
    share = predict(network, images, normalise, mine.clamp_max(len(images) - 1))
    logits, features = (
        fabric.all_gather(part.to(fabric.device)).transpose(0, 1).flatten(0, 1)[: len(images)].cpu()
        for part in (share.logits, share.features)
    )
    return Outputs(logits, features, images.labels)
