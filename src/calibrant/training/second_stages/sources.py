"""Where a second stage gets features: an array, or a frozen network fed by a loader.

Both give the same thing, batches of (N, D) features with (N,) labels, an epoch at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import torch
from torch import Tensor, nn

from calibrant.core.arrays import Array, as_array, to_numpy
from calibrant.core.errors import InputError
from calibrant.predictions.predictions import check_features, check_labels
from calibrant.training.features import PenultimateFeatures, last_layer
from calibrant.training.nets.forms import answered, frozen, moved, parted
from calibrant.training.second_stages.seeds import epoch_order
from calibrant.training.second_stages.tensors import row_parts, tensor_of, width_of

Batch = tuple[Tensor, Tensor]
Place = tuple[torch.device, torch.dtype]


class FeatureSource(Protocol):
    """Training rows of a head."""

    @property
    def width(self) -> int:
        """Number of features, D."""
        ...

    @property
    def n_classes(self) -> int:
        """Number of classes, K."""
        ...

    @property
    def place(self) -> Place:
        """Where the features lie and their dtype; a head is made there."""
        ...

    def epoch(self, epoch: int, batch_size: int) -> Iterator[Batch]:
        """Yield the batches of one epoch, in the order that belongs to it."""
        ...

    def passes(self, batch_size: int) -> Iterator[Batch]:
        """Yield every row once, for measuring; the order doesn't matter."""
        ...


@dataclass(frozen=True)
class FeatureRows:
    """Features held in memory: (N, D) floats, (N,) labels, and the number of classes."""

    features: Tensor
    labels: Tensor
    n_classes: int
    seed: int = 0

    @classmethod
    def checked(
        cls,
        features: Array,
        labels: Array,
        n_classes: int | None = None,
        *,
        seed: int = 0,
        source: str = "training rows",
    ) -> FeatureRows:
        """Wrap arrays of any library, as float32 unless they are float64.

        Args:
            features: (N, D) finite numbers.
            labels: (N,) whole numbers.
            n_classes: number of classes; None if every class occurs among the labels.
            seed: of the order of the rows.
            source: begins the error messages.

        Raises:
            PredictionsError: wrong shapes, NaN, infinity, or a label out of range.
            InputError: `n_classes` is None and the labels don't run from 0 without a gap.
        """
        features = as_array(features)
        rows = len(features) if getattr(features, "ndim", 0) else 0
        check_features(features, rows, source)
        checked = check_labels(labels, rows, n_classes, source)
        if n_classes is None:
            n_classes = _classes_without_gap(checked, source)
        if isinstance(features, Tensor):
            tensor = features.detach()
        else:
            tensor = tensor_of(to_numpy(features))
        tensor = tensor.to(_at_least_float32(tensor.dtype))
        return cls(tensor, tensor_of(checked).to(tensor.device), n_classes, seed)

    @property
    def width(self) -> int:
        """Number of features, D."""
        return int(self.features.shape[1])

    @property
    def n(self) -> int:
        """Number of rows."""
        return len(self.labels)

    @property
    def place(self) -> Place:
        """Device and type of the features in memory."""
        return self.features.device, self.features.dtype

    def rows(self, index: Tensor) -> FeatureRows:
        """Return the rows of an index."""
        index = index.to(self.labels.device)
        return FeatureRows(self.features[index], self.labels[index], self.n_classes, self.seed)

    def epoch(self, epoch: int, batch_size: int) -> Iterator[Batch]:
        """Yield all rows once in batches, in an order that seed and epoch decide."""
        order = epoch_order(self.n, self.seed, epoch).to(self.labels.device)
        for index in row_parts(order, batch_size):
            yield self.features[index], self.labels[index]

    def passes(self, batch_size: int) -> Iterator[Batch]:
        """Yield all rows once in batches, in the order that they lie in."""
        parts = (row_parts(array, batch_size) for array in (self.features, self.labels))
        yield from zip(*parts, strict=True)


def _classes_without_gap(labels: Any, source: str) -> int:
    found = np.unique(labels)
    if len(found) < 2 or found[-1] != len(found) - 1:
        raise InputError(
            f"{source}: the labels don't run from 0 without a gap, so the number of classes can't "
            "be told from them; pass n_classes"
        )
    return len(found)


class Tapped(NamedTuple):
    """The layer of a network that a second stage replaces."""

    name: str
    layer: nn.Linear


def find_head(network: nn.Module, layer: str | None = None) -> Tapped:
    """Return the classifier of a network: the linear layer of that name, by default the last one.

    Where another looks like a classifier as well, a warning names both.

    Raises:
        InputError: there is none.
    """
    name = last_layer(network, layer, linear=True)
    return Tapped(name, cast(nn.Linear, network.get_submodule(name)))


def replace_head(network: nn.Module, head: nn.Module, layer: str | None = None) -> nn.Module:
    """Put `head` in place of the network's classifier, in place, and return the network.

    Args:
        network: any with a linear layer as its classifier.
        head: takes (N, D) features, such as `load_head` returns.
        layer: name of the layer to replace; None takes the last linear one that was registered, and
            warns where several could be meant.

    Raises:
        InputError: the network has no such linear layer, or is that layer itself; or the head takes
            another number of features.
    """
    path, old = find_head(network, layer)
    if not path:
        raise InputError("the network is a single linear layer; use the head in its place")
    width = width_of(head)
    if width not in (None, old.in_features):
        raise InputError(
            f"the head takes {width} features, but layer '{path}' is given {old.in_features}; name "
            "the layer whose inputs the head was trained on with layer="
        )
    parent, _, leaf = path.rpartition(".")
    owner = network.get_submodule(parent)
    setattr(owner, leaf, head)
    return network


class NetworkFeatures:
    """Features that a frozen network computes for every batch of a loader, augmented as it likes.

    Args:
        network: a classifier whose last linear layer is its head; what enters that layer are the
            features. Its parameters, buffers and modes stay as they are.
        loader: yields batches of inputs and labels, such as a `DataLoader`, in any form that
            `calibrant.training.run.predict` takes. If its sampler has `set_epoch` (a
            `SeededShuffle`, or that of a distributed run), it is told the epoch.
        layer: name of the linear layer, if it isn't the last one.
    """

    def __init__(self, network: nn.Module, loader: Iterable[Any], layer: str | None = None) -> None:
        self.network, self.loader = network, loader
        self.name, old = find_head(network, layer)
        self.width, self.n_classes = old.in_features, old.out_features
        self.place = old.weight.device, _at_least_float32(old.weight.dtype)

    def epoch(self, epoch: int, batch_size: int) -> Iterator[Batch]:
        """Yield features and labels of one run through the loader, in batches of its own size."""
        sampler: Any = getattr(self.loader, "sampler", None)
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        for features, labels, _ in self._run():
            yield features, labels

    def passes(self, batch_size: int) -> Iterator[Batch]:
        """Yield features and labels of one run through the loader, as of its first epoch."""
        yield from self.epoch(0, batch_size)

    def cached(self, seed: int = 0) -> tuple[FeatureRows, Tensor]:
        """Return the features of one pass with their labels, and the network's own (N, K) logits.

        Exact for training only if the loader does not augment.
        """
        parts = list(self._run())
        if not parts:
            raise InputError("the validation loader gives no batches")
        features, labels, logits = (torch.cat(part) for part in zip(*parts, strict=True))
        return FeatureRows(features, labels, self.n_classes, seed), logits

    def _run(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        device = next(self.network.parameters()).device
        with PenultimateFeatures(self.network, self.name) as tap:
            for inputs, labels in map(parted, self.loader):
                # Entered for each batch: between two of them the network is the caller's.
                with frozen(self.network):
                    logits = answered(self.network, moved(inputs, device))
                features = tap.features
                if features.ndim != 2:
                    raise InputError(
                        f"layer '{self.name}' must take features of shape (N, D), not "
                        f"{tuple(features.shape)}; name another layer as the head"
                    )
                if not bool(torch.isfinite(features).all()):
                    raise InputError(
                        f"layer '{self.name}' is given NaN or infinity as features: the network's "
                        "weights or its inputs are not finite"
                    )
                checked = check_labels(labels, len(logits), self.n_classes, "the loader")
                wide = features.to(self.place[1])
                yield wide, tensor_of(checked).to(device), logits.detach()


def _at_least_float32(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32
