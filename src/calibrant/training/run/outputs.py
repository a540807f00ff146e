"""A network's outputs for a set of images, over all devices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, IterableDataset

from calibrant.core.errors import InputError, PredictionsError, TrainingWarning, warn_caller
from calibrant.core.outputs import StrPath, replacing
from calibrant.predictions.last_layer import Head, check_head_makes
from calibrant.training.data.images import AS_IT_IS, Images, Normalisation
from calibrant.training.features import frozen, moved, parted
from calibrant.training.nets import ImageClassifier, TappedNetwork
from calibrant.training.run.rows import Examples, has_rows_by_number

BATCH = 500


@dataclass(frozen=True, eq=False)
class Outputs:
    """Of N images, on the CPU and in float32.

    Attributes:
        logits: (N, K).
        features: (N, D) inputs of the last layer.
        labels: (N,) true classes.
        layer: name of that layer in a network of your own; None in one of this package's.
    """

    logits: Tensor
    features: Tensor
    labels: Tensor
    layer: str | None = None

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


def predict(
    network: nn.Module,
    images: Any,
    normalise: Normalisation | None = None,
    index: Tensor | None = None,
    *,
    layer: str | None = None,
) -> Outputs:
    """Return a network's outputs for images or other rows, on the network's device.

    Args:
        network: put into evaluation mode for this, and back. Any module that gives logits, see
            `TappedNetwork`, or one of this package's.
        images: any images, also of another kind than the training images; or a torch data set, see
            `Examples`; or a `DataLoader` or anything else that yields batches, taken in its order.
        normalise: for images, that of its training images, whatever these are; None gives the
            network its inputs as they are.
        index: positions of the images wanted; all by default. Not for a loader.
        layer: name of the last layer of a network of your own, whose inputs are the features; None
            takes the last that was registered, and warns where several could be meant.

    Raises:
        InputError: there is no such layer, a batch has another form, or the network fails on it.
    """
    if isinstance(network, ImageClassifier | TappedNetwork):
        return _predicted(network, images, normalise, index)
    tapped = TappedNetwork(network, layer)
    try:
        return _predicted(tapped, images, normalise, index)
    finally:
        tapped.close()


def _predicted(
    network: nn.Module, images: Any, normalise: Normalisation | None, index: Tensor | None
) -> Outputs:
    device = next((part.device for part in network.parameters()), torch.device("cpu"))
    layer = network.layer if isinstance(network, TappedNetwork) else None
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    with frozen(network):
        for inputs, labels in _batches(images, normalise or AS_IT_IS, index):
            logits, features = network(moved(inputs, device), return_features=True)
            parts.append((logits.float().cpu(), features.float().cpu(), labels.cpu()))
            _check_alike(parts[0], parts[-1], layer)
    if not parts:
        raise InputError("there are no rows to predict")
    logits, features, labels = (torch.cat(part) for part in zip(*parts, strict=True))
    return Outputs(logits, features, labels.long(), layer)


def _check_alike(
    first: tuple[Tensor, Tensor, Tensor], part: tuple[Tensor, Tensor, Tensor], layer: str | None
) -> None:
    """Refuse a batch whose labels aren't one for each row, or whose rows are of another width."""
    logits, _, labels = part
    if len(labels) != len(logits):
        raise InputError(f"a batch has {len(labels)} labels for {len(logits)} rows of logits")
    for number, what in enumerate(("logits", f"inputs of layer '{layer}', the features,")):
        before, now = first[number].shape[1], part[number].shape[1]
        if before != now:
            raise InputError(
                f"the {what} are {before} a row in one batch and {now} in another; name a layer "
                "behind the pooling with layer="
            )


def _batches(
    images: Any, normalise: Normalisation, index: Tensor | None
) -> Iterator[tuple[Any, Tensor]]:
    # Data sets of Hugging Face have a method `batch` too, but no labels.
    ready = hasattr(images, "batch") and hasattr(images, "labels")
    if not ready and (issubclass(type(images), DataLoader) or not has_rows_by_number(images)):
        if not hasattr(images, "__iter__"):
            raise InputError(f"{type(images).__name__} is neither a data set nor a loader")
        if index is not None:
            raise InputError("a loader gives its batches in its own order; leave out index")
        streams = issubclass(type(images), IterableDataset)
        loader: Any = DataLoader(images, batch_size=BATCH) if streams else images
        yield from (parted(batch) for batch in loader)
        return
    rows: Images = images if ready else Examples(images)
    index = torch.arange(len(rows)) if index is None else index
    for start in range(0, len(index), BATCH):
        part = index[start : start + BATCH]
        yield normalise(rows.batch(part)), rows.labels[part]


def predict_on_all_devices(
    fabric: Any, network: nn.Module, images: Images, normalise: Normalisation
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
    return Outputs(logits, features, images.labels, share.layer)


def write_outputs(
    file: StrPath, outputs: Outputs, network: nn.Module | None = None, *, layer: str | None = None
) -> None:
    """Write predictions that the rest of the package reads, with the last layer beside them.

    The arrays are `logits` (N, K), `labels` (N,), `features` (N, D), and of a linear last layer
    `head_weight` (K, D) and `head_bias` (K,); all float32 but the labels, which are int64.

    Args:
        file: an npz file.
        outputs: what `predict` gave.
        network: whose last layer to add; None leaves it out, as does a layer that isn't linear, and
            with a warning one that doesn't make these logits of these features.
        layer: of a network of your own; None takes the one that the outputs are of.

    Raises:
        InputError: there is no such layer, or the file isn't called .npz or can't be written.
    """
    if not str(file).endswith(".npz"):
        raise InputError(f"{file}: predictions are written as .npz; give the file that ending")
    arrays = {
        "logits": outputs.logits.numpy(),
        "labels": outputs.labels.numpy(),
        "features": outputs.features.numpy(),
    }
    head = None if network is None else _head(network, layer or outputs.layer)
    # A layer that saw more than one vector of each row makes no logits of its features.
    if head is not None and head.weight.shape[1] == outputs.features.shape[1]:
        if _makes(head, outputs, str(file)):
            arrays["head_weight"], arrays["head_bias"] = head
        else:
            name = layer or outputs.layer or "fc"
            warn_caller(
                TrainingWarning(
                    f"{file}: layer '{name}' doesn't turn these features into these logits, so "
                    "its weights are left out; if another layer is the last, name it with "
                    "layer="
                )
            )
    with replacing(file) as temporary:
        np.savez_compressed(temporary, **cast(Any, arrays))


def _head(network: nn.Module, layer: str | None) -> Head | None:
    """Return weight and bias of a network's last layer, if that is linear."""
    if not isinstance(network, ImageClassifier | TappedNetwork):
        network = TappedNetwork(network, layer)
        network.close()
    found = network.fc if isinstance(network, ImageClassifier) else network.head
    if found is None:
        return None
    # A weight that is computed, as in spectral norm, is computed anew each time in training mode.
    with frozen(network):
        weight, bias = found.weight, cast(Tensor | None, found.bias)
    bias = torch.zeros(found.out_features) if bias is None else bias
    return Head(weight.detach().float().cpu().numpy(), bias.detach().float().cpu().numpy())


def _makes(head: Head, outputs: Outputs, file: str) -> bool:
    logits, features = outputs.logits.numpy(), outputs.features.numpy()
    # Numbers that aren't finite are told of where the file is read, by their row.
    if head.weight.shape[0] != logits.shape[1] or not np.isfinite(logits).all():
        return head.weight.shape[0] == logits.shape[1]
    try:
        check_head_makes(head, features, logits, file, of_probabilities=False)
    except PredictionsError:
        return False
    return True
