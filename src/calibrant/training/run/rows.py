"""What rows a run sees: images or a data set of your own, held out, shuffled, augmented."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.data import DataLoader, IterableDataset, Subset
from torch.utils.data import default_collate as collate_rows  # pyright: ignore[reportUnknownVariableType]

from calibrant.core.arrays import places_in_runs
from calibrant.core.errors import CalibrantError, InputError
from calibrant.core.text import reason_of
from calibrant.training.data.dataset import DataSet
from calibrant.training.data.images import Images, Normalisation, tensor
from calibrant.training.features import LABELS, PAIR, class_numbers, kind_of, parted, tensors_of
from calibrant.training.run.settings import RunSettings


def seed_everything(seed: int) -> None:
    """Seed torch's generators of all devices."""
    # `Any`, because torch's types leave the seed open.
    cast(Any, torch).manual_seed(seed)


_AT_ONCE = 256


class Examples:
    """Rows of a torch data set, in the place of `Images`.

    A row is a pair of inputs and label, or a mapping that holds the label as "labels" or "label"
    and names the inputs of the network, as tokenisers give it. Any augmentation is done by the data
    set.

    Args:
        source: a data set with a length and rows by number, or a `DataLoader` of one, whose
            `collate_fn` then makes the batches; its order and batch size aren't used.
        labels: (N,) class numbers, as a tensor, array or list; None reads every row once to learn
            them.

    Raises:
        InputError: a data set without a length, or rows of another form.

    Examples:
        >>> import torch
        >>> from calibrant.training.run import Examples
        >>> rows = Examples([(torch.zeros(4), 1), (torch.ones(4), 0)])
        >>> rows.labels
        tensor([1, 0])
        >>> rows.batch(torch.tensor([1]))
        tensor([[1., 1., 1., 1.]])
    """

    def __init__(self, source: Any, labels: Any = None) -> None:
        loader = cast(Any, source) if isinstance(source, DataLoader) else None
        self._rows: Any = source if loader is None else loader.dataset
        self._collate: Callable[[list[Any]], Any] = (
            collate_rows if loader is None else loader.collate_fn
        )
        rows: Any = self._rows
        if not has_rows_by_number(rows):
            raise InputError(
                f"{type(rows).__name__} has no rows by number, in which a run could go on "
                "where it was broken off; give a data set with __len__ and __getitem__"
            )
        if not len(rows):
            raise InputError(f"{type(rows).__name__} holds no rows")
        if self._collate is collate_rows:
            _check_row(rows[0], type(rows).__name__)
        if labels is None:
            labels = torch.cat([self._read(part)[1] for part in self._parts()])
        known = class_numbers(labels)
        if len(known) != len(rows):
            raise InputError(
                f"labels must be ({len(rows)},), one for each row, not ({len(known)},)"
            )
        self.labels = known.long()

    def __len__(self) -> int:
        return len(self._rows)

    def batch(self, index: Tensor) -> Any:
        """Return the inputs of the rows at an index, collated: a tensor, a mapping or a tuple."""
        return self._read(cast(Any, index).tolist())[0]

    def take(self, index: Tensor) -> Examples:
        """Return the rows at an index, in its order."""
        part = Examples.__new__(Examples)
        rows: Any = Subset(self._rows, cast(Any, index).tolist())
        part._rows = rows
        part._collate = self._collate
        part.labels = self.labels[index]
        return part

    def not_finite(self) -> int | None:
        """Return the number of the first row in the data set that holds NaN or infinity, if any."""
        for part in self._parts():
            for number in part:
                held = tensors_of(self._read([number])[0])
                if not all(values.isfinite().all() for values in held):
                    rows = self._rows
                    return cast(Any, rows).indices[number] if isinstance(rows, Subset) else number
        return None

    def _parts(self) -> list[range]:
        rows = len(self._rows)
        return [range(at, min(at + _AT_ONCE, rows)) for at in range(0, rows, _AT_ONCE)]

    def _read(self, numbers: Sequence[int]) -> tuple[Any, Tensor]:
        rows = [self._rows[number] for number in numbers]
        try:
            batch = self._collate(rows)
        except CalibrantError:
            raise
        # A collate function raises errors of its own about rows that it can't take.
        except Exception as error:
            raise InputError(
                f"the rows can't be put into one batch ({reason_of(error, 200)}); give a "
                "DataLoader whose collate_fn does"
            ) from error
        return parted(batch)


def has_rows_by_number(rows: Any) -> bool:
    """Whether a data set has a length and can be asked for any of its rows."""
    if issubclass(type(rows), IterableDataset):
        return False
    return hasattr(rows, "__len__") and hasattr(rows, "__getitem__")


def _check_row(row: Any, source: str) -> None:
    """Refuse a row that torch would collate into something else than a batch of its kind."""
    if isinstance(row, Mapping):
        table = cast(Mapping[str, Any], row)
        parts = {f"'{name}'": value for name, value in table.items() if name not in LABELS}
    elif isinstance(row, tuple | list) and len(cast(Any, row)) == 2:
        parts = {"the input": cast(Any, row)[0]}
    else:
        arrays = hasattr(cast(Any, row), "shape")
        raise InputError(
            f"row 0 of {source} must be {PAIR}, not {kind_of(row)}"
            + ("; TensorDataset(inputs, labels) makes rows of two tensors" if arrays else "")
        )
    for name, value in parts.items():
        held = cast(list[Any], value) if isinstance(value, list) else []
        if held and isinstance(held[0], int | float):
            raise InputError(
                f"{name} of row 0 of {source} is a list of numbers, not a tensor; with_format("
                "'torch') of a data set of Hugging Face makes it one"
            )


def own_data(train: Any, test: Any, validation: Any = None, *, n_classes: int) -> DataSet:
    """Return data sets of your own as `train` takes them.

    Args:
        train: a torch data set or `DataLoader`, see `Examples`, or an `Examples`.
        test: likewise.
        validation: likewise; None holds out a part of the training rows as the protocol does.
        n_classes: K.

    Raises:
        InputError: rows of another form, or labels that aren't among K classes.

    Examples:
        >>> import torch
        >>> from calibrant.training.run import own_data
        >>> rows = torch.utils.data.TensorDataset(torch.zeros(20, 4), torch.arange(20) % 2)
        >>> len(own_data(rows, rows, n_classes=2).train)
        20
    """
    if not isinstance(n_classes, int) or n_classes < 2:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(f"n_classes must be a whole number of at least 2, not {n_classes!r}")
    held_out = None if validation is None else _examples(validation)
    return DataSet(_examples(train), _examples(test), held_out, n_classes, source="your data")


def _examples(rows: Any) -> Images:
    return cast(Images, rows if isinstance(rows, Examples) else Examples(rows))


def random_crop(
    images: Tensor, generator: torch.Generator, padding: int = 4, size: int | None = None
) -> Tensor:
    """Return a random window of each image, framed by `padding` black pixels first.

    Args:
        images: (B, C, H, W), any dtype.
        generator: of the randomness, on the CPU.
        padding: width of the frame.
        size: height and width of the window; those of the images by default.
    """
    count, _, height, width = images.shape
    height, width = (height, width) if size is None else (size, size)
    framed = pad(images, (padding,) * 4)
    top = _offsets(framed.shape[2] - height, count, generator)
    left = _offsets(framed.shape[3] - width, count, generator)
    rows = (top + torch.arange(height)).to(images.device)
    columns = (left + torch.arange(width)).to(images.device)
    # One gather for the whole batch: a loop over images would cost more than a small network.
    image = torch.arange(count, device=images.device)[:, None, None]
    chosen = framed.permute(0, 2, 3, 1)[image, rows[:, :, None], columns[:, None, :]]
    return chosen.permute(0, 3, 1, 2)


def random_flip(images: Tensor, generator: torch.Generator) -> Tensor:
    """Return (B, C, H, W) images, each mirrored left to right with probability 1/2."""
    mirrored = torch.rand(len(images), generator=generator) < 0.5
    return torch.where(mirrored.to(images.device)[:, None, None, None], images.flip(3), images)


def _offsets(room: int, count: int, generator: torch.Generator) -> Tensor:
    return torch.randint(0, room + 1, (count, 1), generator=generator)


SHARE = 0.1


def shuffled_split(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return the indices of training and validation rows: the first tenth of a shuffle.

    The shuffle is that of NumPy's legacy generator, so that a seed holds out the same images as the
    code of Mukhoti et al. (seed 1, whatever the seed of the run) and of the margin-based losses
    (the seed of the run). In CIFAR it leaves 45 000 and 5 000.

    Raises:
        InputError: no row would be left for one of the two.
    """
    order = np.arange(rows)
    np.random.RandomState(seed).shuffle(order)
    held_out = int(np.floor(SHARE * rows))
    _check(held_out, rows)
    return tensor(order[held_out:]), tensor(order[:held_out])


def split_by_class(labels: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Return the indices of training and validation rows: a tenth of every class.

    In Tiny-ImageNet it leaves 450 and 50 images a class.

    Raises:
        InputError: no row would be left for one of the two.
    """
    truth: NDArray[np.int64] = labels.numpy()
    order = np.random.RandomState(seed).permutation(len(truth))
    by_class = order[np.argsort(truth[order], kind="stable")]
    counts = np.bincount(truth)
    held_out = places_in_runs(counts) < np.floor(SHARE * np.repeat(counts, counts))
    _check(int(held_out.sum()), len(truth))
    kept, taken = np.sort(by_class[~held_out]), np.sort(by_class[held_out])
    return tensor(kept), tensor(taken)


def _check(held_out: int, rows: int) -> None:
    if not 0 < held_out < rows:
        raise InputError(
            f"{rows} training images are too few to hold some out for validation; give more, or "
            "validation images of their own"
        )


def held_out(data: DataSet, settings: RunSettings) -> tuple[Images, Images]:
    """Return the training and the validation images, as the protocol holds some out.

    Raises:
        InputError: there are fewer images to train on than the settings ask for.
    """
    training, validation = _parted(data, settings)
    rows = settings.training_rows
    if rows is None:
        return training, validation
    if rows > len(training):
        raise InputError(
            f"{data.source}: has {len(training)} images to train on, and {rows} are asked for; "
            "lower training_rows or leave it out"
        )
    generator = torch.Generator().manual_seed(settings.seed)
    return training.take(torch.randperm(len(training), generator=generator)[:rows]), validation


def _parted(data: DataSet, settings: RunSettings) -> tuple[Images, Images]:
    recipe = settings.recipe
    if data.validation is not None:
        return data.train, data.validation
    if recipe.test_for_validation:
        return data.train, data.test
    seed = settings.seed if recipe.split_seed is None else recipe.split_seed
    if recipe.split_by_class:
        kept, taken = split_by_class(data.train.labels, seed)
    else:
        kept, taken = shuffled_split(len(data.train), seed)
    return data.train.take(kept), data.train.take(taken)


@dataclass(frozen=True, eq=False)
class Batch:
    """One step's share of images on one device.

    Attributes:
        images: (B, 3, H, W) float32, normalised; or inputs of a network of your own.
        target: (B,) classes.
        index: (B,) positions in the training set.
    """

    images: Tensor
    target: Tensor
    index: Tensor


@dataclass(frozen=True, eq=False)
class TrainingBatches:
    """The training images in the order of each epoch.

    Nothing here has a state: a run that goes on from a checkpoint asks for the batch that is next.

    Attributes:
        images: what to train on.
        normalise: applied last.
        batch_size: images a step, over all devices.
        seed: for order and augmentation.
        padding: of the random crop.
        drop_last: leave out a last batch that isn't full.
        rank: which of the devices this is.
        world: how many there are; each takes its share of every batch.
        plain_from: the first epoch without augmentation; None: there is none.
    """

    images: Images
    normalise: Normalisation
    batch_size: int
    seed: int
    padding: int = 4
    drop_last: bool = False
    rank: int = 0
    world: int = 1
    plain_from: int | None = None

    def __post_init__(self) -> None:
        if self.batch_size % self.world:
            raise InputError(
                f"a batch of {self.batch_size} images can't be shared evenly by {self.world} "
                "devices"
            )
        if self.batch_size < 2 * self.world:
            raise InputError(
                f"a batch of {self.batch_size} leaves less than two images for each of "
                f"{self.world} device(s), which batch norm needs"
            )
        if not len(self):
            raise InputError(
                f"{len(self.images)} training images don't fill one batch of {self.batch_size}; "
                "lower the batch size"
            )

    def __len__(self) -> int:
        """Steps in an epoch."""
        full, rest = divmod(len(self.images), self.batch_size)
        # Each device needs a row, and batch norm more than one.
        return full + (not self.drop_last and rest >= 2 * self.world)

    def order(self, epoch: int) -> Tensor:
        """Return the positions of all images in the order of an epoch."""
        return tensor(self.random(0, epoch).permutation(len(self.images)))

    def random(self, *place: int) -> np.random.Generator:
        """Return the generator that belongs to a purpose and a place in the run."""
        return np.random.default_rng([self.seed, *place])

    def step_seed(self, epoch: int, step: int) -> int:
        """Return the seed of everything else that is random in a step on this device."""
        return int(self.random(1, epoch, step, self.rank).integers(2**31))

    def get(self, order: Tensor, epoch: int, step: int) -> Batch:
        """Return this device's share of a step's images.

        Args:
            order: that of the epoch.
            epoch: counted from 0.
            step: within the epoch, counted from 0.
        """
        index = order[step * self.batch_size : (step + 1) * self.batch_size]
        # All devices take equally many; what a short last batch has beyond that is left out.
        even = len(index) - len(index) % self.world
        index = index[self.rank : even : self.world]
        if isinstance(self.images, Examples):
            # What the data set does at random follows from the place in the run, too.
            seed_everything(self.step_seed(epoch, step))
        images = self.images.batch(index)
        if self.plain_from is None or epoch < self.plain_from:
            generator = torch.Generator().manual_seed(self.step_seed(epoch, step))
            images = random_flip(random_crop(images, generator, self.padding), generator)
        return Batch(self.normalise(images), self.images.labels[index], index)
