"""Any torch data set in the place of images: rows in, rows out, labels known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data import default_collate as collate_rows  # pyright: ignore[reportUnknownVariableType]

from calibrant.core.errors import CalibrantError, InputError
from calibrant.training.data.dataset import DataSet
from calibrant.training.data.images import Images, Normalisation
from calibrant.training.nets.forms import LABELS, PAIR, class_numbers, kind_of, parted, tensors_of

_AT_ONCE = 256


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
        part._rows = _Part(self._rows, cast(Any, index).tolist())
        part._collate = self._collate
        part.labels = self.labels[index]
        return part

    def not_finite(self) -> int | None:
        """Return the number of the first row in the data set that holds NaN or infinity, if any."""
        for part in self._parts():
            for number in part:
                held = tensors_of(self._read([number])[0])
                if not all(values.isfinite().all() for values in held):
                    return self._rows.numbers[number] if isinstance(self._rows, _Part) else number
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
        # What a function that collates says of rows that it can't take is its own.
        except Exception as error:
            reason = str(error).strip().partition("\n")[0][:200] or type(error).__name__
            raise InputError(
                f"the rows can't be put into one batch ({reason}); give a DataLoader whose "
                "collate_fn does"
            ) from error
        return parted(batch)


class _Part:
    """Some rows of a data set."""

    def __init__(self, rows: Any, numbers: list[int]) -> None:
        self.rows, self.numbers = rows, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, number: int) -> Any:
        return self.rows[self.numbers[number]]


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
