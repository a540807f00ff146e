"""Any torch data set in the place of images: rows in, rows out, labels known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data import default_collate as collate_rows  # pyright: ignore[reportUnknownVariableType]

from calibrant.core.errors import InputError
from calibrant.training.data.dataset import DataSet
from calibrant.training.data.images import Images, Normalisation

LABELS = ("labels", "label")
_SHAPE = "(inputs, label) or a mapping with 'labels' or 'label'"


class AsItIs(Normalisation):
    """The normalisation of inputs that need none."""

    def __init__(self) -> None:
        super().__init__((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))

    def __call__(self, images: Any) -> Any:
        """Return the inputs as they are."""
        return images


def normalisation_of(mean: tuple[float, ...], std: tuple[float, ...]) -> Normalisation:
    """Return the normalisation that a checkpoint tells of."""
    same = AsItIs()
    if (tuple(mean), tuple(std)) == (same.mean, same.std):
        return same
    return Normalisation(cast(Any, mean), cast(Any, std))


class Examples:
    """Rows of a torch data set, in the place of `Images`.

    A row is a pair of inputs and label, or a mapping that holds the label as "labels" or "label"
    and names the inputs of the network, as tokenisers give it. Augmentation is the data set's
    business.

    Args:
        source: a data set with a length and rows by number, or a `DataLoader` of one, whose
            `collate_fn` then makes the batches; its order and batch size aren't used.
        labels: (N,) class numbers; None reads every row once to learn them.

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

    def __init__(self, source: Any, labels: Tensor | None = None) -> None:
        loader = cast(Any, source) if isinstance(source, DataLoader) else None
        self._rows: Any = source if loader is None else loader.dataset
        self._collate: Callable[[list[Any]], Any] = (
            collate_rows if loader is None else loader.collate_fn
        )
        rows: Any = self._rows
        whole = hasattr(rows, "__len__") and hasattr(rows, "__getitem__")
        if issubclass(type(rows), IterableDataset) or not whole:
            raise InputError(
                f"{type(rows).__name__} has no rows by number, in which a run could go on "
                "where it was broken off; give a data set with __len__ and __getitem__"
            )
        if not len(self._rows):
            raise InputError(f"{type(self._rows).__name__} holds no rows")
        if labels is None:
            parts = [
                self._read(range(start, min(start + 256, len(self._rows))))[1]
                for start in range(0, len(self._rows), 256)
            ]
            labels = torch.cat(parts)
        elif labels.shape != (len(self._rows),):
            raise InputError(
                f"labels must be ({len(self._rows)},), one for each row, not {tuple(labels.shape)}"
            )
        self.labels = labels.long()

    def __len__(self) -> int:
        return len(self._rows)

    def batch(self, index: Tensor) -> Any:
        """Return the inputs of the rows at an index, collated: a tensor, a mapping or a tuple."""
        return self._read(cast(Any, index).tolist())[0]

    def take(self, index: Tensor) -> Examples:
        """Return the rows at an index, in its order."""
        part = Examples.__new__(Examples)
        part._rows = _Part(self._rows, cast(Any, index).tolist())
        part._collate = self._collate
        part.labels = self.labels[index]
        return part

    def _read(self, numbers: Sequence[int]) -> tuple[Any, Tensor]:
        return parted(self._collate([self._rows[number] for number in numbers]))


class _Part:
    """Some rows of a data set."""

    def __init__(self, rows: Any, numbers: list[int]) -> None:
        self.rows, self.numbers = rows, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, number: int) -> Any:
        return self.rows[self.numbers[number]]


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
    sets = [
        part if part is None or isinstance(part, Examples) else Examples(part)
        for part in (train, test, validation)
    ]
    parts = cast(list[Images], sets)
    held_out = None if validation is None else parts[2]
    return DataSet(parts[0], parts[1], held_out, n_classes, source="your data")


def parted(batch: Any) -> tuple[Any, Tensor]:
    """Return inputs and (B,) labels of a collated batch.

    Raises:
        InputError: it is of another form.
    """
    if isinstance(batch, Mapping):
        named = dict(cast(Mapping[str, Any], batch))
        key = next((name for name in LABELS if name in named), None)
        if key is None:
            raise InputError(f"a batch must be {_SHAPE}, but has: {', '.join(named)}")
        labels = named.pop(key)
        inputs: Any = named
    else:
        if not isinstance(batch, tuple | list) or len(cast(Any, batch)) != 2:
            raise InputError(f"a batch must be {_SHAPE}, not {type(cast(Any, batch)).__name__}")
        inputs, labels = cast(Any, batch)
    labels = torch.as_tensor(labels)
    if labels.ndim != 1 or labels.is_floating_point():
        raise InputError(
            f"labels must be whole numbers, one for each row, not {labels.dtype} of "
            f"{tuple(labels.shape)}"
        )
    return inputs, labels


def moved(inputs: Any, device: torch.device) -> Any:
    """Return inputs of any form on a device, images with the channels last in memory."""
    if isinstance(inputs, Tensor):
        if inputs.ndim == 4:
            return inputs.to(device, memory_format=torch.channels_last)
        return inputs.to(device)
    if isinstance(inputs, Mapping):
        table = cast(Mapping[str, Any], inputs)
        return {name: moved(value, device) for name, value in table.items()}
    if isinstance(inputs, tuple | list):
        return tuple(moved(value, device) for value in cast(Sequence[Any], inputs))
    return inputs
