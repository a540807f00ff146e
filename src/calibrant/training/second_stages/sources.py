"""Where a second stage gets features: an array, or a frozen network fed by a loader."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Sampler

from calibrant.core.arrays import Array, as_array, to_numpy
from calibrant.core.checks import check_features, check_labels
from calibrant.core.errors import InputError
from calibrant.training.features import (
    PenultimateFeatures,
    answered,
    frozen,
    last_layer,
    moved,
    parted,
)

# What a draw is for, so that no two purposes share their numbers.
ORDER, INITIAL_WEIGHTS, MASK, NOISE = range(4)


def generator_for(purpose: int, *key: int) -> torch.Generator:
    """Return a generator on the CPU that depends on nothing but its arguments.

    Ranks of a distributed run that pass the same key draw the same numbers.
    """
    seed = np.random.SeedSequence([purpose, *key]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(seed) & (2**63 - 1))


def epoch_order(rows: int, seed: int, epoch: int) -> Tensor:
    """Return the (rows,) order in which an epoch visits the training rows."""
    return torch.randperm(rows, generator=generator_for(ORDER, seed, epoch))


class SeededShuffle(Sampler[int]):
    """Sampler for a `DataLoader` that visits rows in the order that cached features are visited.

    With it, and without augmentation, a second stage fitted through a network and a loader sees the
    same batches as one fitted on an array of features. Each pass over it is the next epoch; the
    second stages call `set_epoch` to say which.

    Args:
        rows: length of the data set.
        seed: the `seed` of the second stage.
    """

    def __init__(self, rows: int, seed: int = 0) -> None:
        self.rows, self.seed, self.epoch = rows, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next pass is."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.rows

    def __iter__(self) -> Iterator[int]:
        yield from (int(row) for row in epoch_order(self.rows, self.seed, self.epoch))
        self.epoch += 1


def tensor_of(array: NDArray[Any]) -> Tensor:
    """Return a tensor that shares the memory of an array, or of a copy if that is read-only."""
    given = array if array.flags.writeable else np.array(array)
    return cast(Tensor, cast(Any, torch).from_numpy(given))


def row_parts(tensor: Tensor, rows: int) -> list[Tensor]:
    """Return views of so many rows each, the last one of what is left."""
    return list(cast(Any, tensor).split(rows))


@contextmanager
def random_state_kept() -> Generator[None]:
    """Put torch's own generator back on leaving: building a layer draws from it."""
    with cast(Any, torch.random).fork_rng(devices=[]):
        yield


def descend(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """Take one step of an optimiser down the gradient of a loss."""
    optimizer.zero_grad(set_to_none=True)
    cast(Any, loss).backward()
    cast(Any, optimizer).step()


def width_of(head: nn.Module) -> int | None:
    """Return how many features a head takes, by its first linear layer; None if it has none."""
    linear = (part.in_features for part in head.modules() if isinstance(part, nn.Linear))
    return next(linear, None)


def head_logits(head: nn.Module, features: Tensor) -> Tensor:
    """Return the logits of a head without gradients, computed in the dtype of its parameters."""
    reference = next(head.parameters())
    with torch.no_grad():
        return head(features.to(reference.device, reference.dtype)).to(features.device)


# Root mean square length of a row once scaled. A step of SGD moves a logit of a linear head by the
# learning rate times the square of this length, so it decides how far a number of epochs gets.
# In a head of two layers both grow together, so its rows are shorter.
LINEAR_LENGTH, DEEP_LENGTH = 2.0, 0.5
# Rows read at a time where nothing is learnt from them.
READ_ROWS = 4096


@dataclass(frozen=True)
class FeatureScaling:
    """x -> factor * (x - mean): centred rows of a given root mean square length.

    One factor for all features, so a feature that hardly varies is not blown up.

    Attributes:
        mean: (D,) float64 mean over the training rows.
        factor: what to multiply by.
    """

    mean: Tensor
    factor: float

    @classmethod
    def of(cls, source: FeatureSource) -> FeatureScaling:
        """Learn from one pass over the training rows, in float64, to give rows of length 1.

        Raises:
            InputError: all rows are alike.
        """
        rows, first, mean, squares = 0, None, torch.zeros(()), 0.0
        for features, _ in source.passes(READ_ROWS):
            wide = features.double()
            # Sums of differences to one row: a large common offset would cost all digits.
            first = wide[0] if first is None else first
            wide = wide - first
            mean = mean.to(wide) + wide.sum(0)
            squares += float(wide.square().sum())
            rows += len(wide)
        if first is None:
            raise InputError("the training rows are empty")
        mean = mean / rows
        variance = squares / rows - float(mean.square().sum())
        if variance <= 1e-12 * max(squares / rows, 1e-300):
            raise InputError("the features are the same in every training row: nothing to learn")
        return cls(first + mean, variance**-0.5)

    @classmethod
    def identity(cls, width: int) -> FeatureScaling:
        """Leave features as they are."""
        return cls(torch.zeros(width, dtype=torch.float64), 1.0)

    def longer(self, length: float) -> FeatureScaling:
        """Return a scaling to rows that many times as long."""
        return FeatureScaling(self.mean, self.factor * length)

    def apply(self, features: Tensor) -> Tensor:
        """Return scaled (N, D) features in their own dtype."""
        return (features - self.mean.to(features)) * self.factor

    def fold_into(self, layer: nn.Linear) -> None:
        """Change a layer that expects scaled features so that it takes them as they come."""
        with torch.no_grad():
            weight = layer.weight.double() * self.factor
            shift = weight @ self.mean.to(weight)
            layer.bias.copy_(layer.bias.double() - shift)
            layer.weight.copy_(weight)


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
            seed: for the order of the rows.
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


@dataclass(frozen=True)
class LoaderInputs:
    """The batches of a loader as they are, for a network that is trained whole.

    Attributes:
        loader: yields batches of inputs and labels, in any form that `NetworkFeatures` takes.
        device: to which they are moved.
        n_classes: K, which labels have to lie below; None if nobody knows.
    """

    loader: Iterable[Any]
    device: torch.device
    n_classes: int | None = None

    def epoch(self, epoch: int, batch_size: int) -> Iterator[tuple[Any, Tensor]]:
        """Yield inputs and labels of one run through the loader, in batches of its own size."""
        for inputs, labels in batches_of(self.loader, epoch):
            checked = check_labels(labels, len(labels), self.n_classes, "the loader")
            # Images as they lie: another order in memory would round otherwise.
            plain = isinstance(inputs, Tensor)
            given = inputs.to(self.device) if plain else moved(inputs, self.device)
            yield given, tensor_of(checked).to(self.device)


def batches_of(loader: Iterable[Any], epoch: int) -> Iterator[tuple[Any, Tensor]]:
    """Yield inputs and labels of a loader, whose sampler is told the epoch if it wants to know."""
    sampler: Any = getattr(loader, "sampler", None)
    if hasattr(sampler, "set_epoch"):
        sampler.set_epoch(epoch)
    yield from map(parted, loader)


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
        for features, labels, _ in self._run(batches_of(self.loader, epoch)):
            yield features, labels

    def passes(self, batch_size: int) -> Iterator[Batch]:
        """Yield features and labels of one run through the loader, as of its first epoch."""
        yield from self.epoch(0, batch_size)

    def cached(self, seed: int = 0) -> tuple[FeatureRows, Tensor]:
        """Return the features of one pass with their labels, and the network's own (N, K) logits.

        Exact for training only if the loader does not augment.
        """
        parts = list(self._run(map(parted, self.loader)))
        if not parts:
            raise InputError("the validation loader gives no batches")
        features, labels, logits = (torch.cat(part) for part in zip(*parts, strict=True))
        return FeatureRows(features, labels, self.n_classes, seed), logits

    def _run(
        self, batches: Iterable[tuple[Any, Tensor]]
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        device = next(self.network.parameters()).device
        with PenultimateFeatures(self.network, self.name) as tap:
            for inputs, labels in batches:
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
