"""Files of predictions read a batch of rows at a time, by path or by URL, in any format.

What a file holds, of how many rows and classes, is known from its header, before a row is read. A
format is a class of `RowFile`; `calibrant.files.batched` names them by extension.
"""

from __future__ import annotations

import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from calibrant.core.errors import PredictionsError
from calibrant.files.bounds import HIGHEST_COMPRESSION, check_members
from calibrant.files.choosing import select
from calibrant.files.keys import SCORES, Keys, Wanted, native, optional
from calibrant.files.numpy_files import BESIDE_SCORES, EXPECTED_FILES
from calibrant.files.opening import (
    beside,
    is_file,
    is_folder,
    name_of,
    open_binary,
    within,
)
from calibrant.files.streams import RowArray, npy_stream, tensor_streams
from calibrant.files.tensor_files import checked_tensor, load_torch, named_pair

Batch = dict[str, NDArray[Any]]


class RowFile(ABC):
    """An open file of predictions. Close it, or use it as a context.

    Attributes:
        source: its path or URL, as messages name it.
        labels: a separate file of labels, for formats that have such.
        held: what to close in the end.
    """

    def __init__(self, source: str, labels: str | None = None) -> None:
        self.source, self.labels = source, labels
        self.held = ExitStack()
        try:
            self.open()
        except BaseException:
            self.held.close()
            raise

    @abstractmethod
    def open(self) -> None:
        """Open what `source` names, and read what its header says."""

    @abstractmethod
    def choose(self, wanted: Wanted) -> Keys:
        """Return what to read; raises `PredictionsError` where something is missing."""

    @abstractmethod
    def shape(self, key: str) -> tuple[int, ...]:
        """Return the shape of what a key holds, from the header."""

    @abstractmethod
    def read(self, keys: Sequence[str], spans: Iterable[slice]) -> Iterator[Batch]:
        """Yield the arrays of `keys`, for each of the ascending spans of rows in turn."""

    def has(self, name: str) -> bool:
        """Return whether there is a column of that name, which `read` takes for a key."""
        return name in self.names()

    @abstractmethod
    def names(self) -> Sequence[str]:
        """Return the names of all columns."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.held.close()


class ArrayFile(RowFile):
    """Formats that hold each array by itself, such as npz.

    Attributes:
        arrays: of the file, by name.
    """

    arrays: Mapping[str, RowArray]
    expected: str | None = None

    def names(self) -> Sequence[str]:
        """Return the names of the arrays."""
        return list(self.arrays)

    def choose(self, wanted: Wanted) -> Keys:
        """Return which arrays to read."""
        more = {} if self.expected is None else {"expected": self.expected}
        return select(self.names(), wanted, self.source, **more)

    def shape(self, key: str) -> tuple[int, ...]:
        """Return the shape that the header states."""
        return tuple(self.arrays[key].shape)

    def read(self, keys: Sequence[str], spans: Iterable[slice]) -> Iterator[Batch]:
        """Yield the arrays span by span."""
        for span in spans:
            yield {key: native(self.arrays[key].read(span.start, span.stop)) for key in keys}


class NpzRows(ArrayFile):
    """Arrays of an npz archive, unpacked as they are read."""

    def open(self) -> None:
        """Open the archive and the header of each array."""
        where = self.source
        file = self.held.enter_context(open_binary(where))
        if not zipfile.is_zipfile(file):
            raise PredictionsError(f"{where}: is no npz archive, or cut short")
        archive = self.held.enter_context(zipfile.ZipFile(file))
        check_members(archive, where)
        self.arrays = {}
        for info in archive.infolist():
            if info.filename.endswith(".npy"):
                key = info.filename.removesuffix(".npy")
                member = cast(Any, self.held.enter_context(archive.open(info)))
                self.arrays[key] = npy_stream(member, f"'{key}'")


class NpyRows(ArrayFile):
    """``.npy`` files that share a prefix, or lie in one folder."""

    expected = EXPECTED_FILES

    def open(self) -> None:
        """Open all files that go together."""
        where, labels = self.source, self.labels
        files = {key: file for key, file in _npy_siblings(where).items() if is_file(file)}
        if not is_folder(where):
            named = next((key for key in SCORES.values() if stem_of(where).endswith(key)), None)
            if named is None:
                raise PredictionsError(
                    f"{where}: the name doesn't say what the array is; expected {EXPECTED_FILES}"
                )
            others = set(SCORES.values()) - {named}
            files = {key: file for key, file in files.items() if key not in others} | {named: where}
        if labels is not None:
            files["labels"] = labels
        self.arrays = {
            key: npy_stream(self.held.enter_context(open_binary(file)), f"'{key}'")
            for key, file in files.items()
        }


def stem_of(where: str) -> str:
    """Return the name of a file without its folder and extension."""
    return Path(name_of(where)).stem


def _npy_siblings(where: str) -> dict[str, str]:
    """Return where each array that goes with a file of scores, or lies in a folder, would be."""
    keys = (*SCORES.values(), *BESIDE_SCORES)
    if is_folder(where):
        return {key: within(where, f"{key}.npy") for key in keys}
    for key in SCORES.values():
        if stem_of(where).endswith(key):
            prefix = stem_of(where).removesuffix(key)
            return {other: beside(where, f"{prefix}{other}.npy") for other in keys}
    return {}


class SafetensorsRows(ArrayFile):
    """Tensors of a safetensors file, bfloat16 as float32."""

    def open(self) -> None:
        """Read the header."""
        self.arrays = tensor_streams(self.held.enter_context(open_binary(self.source)))


class _Dataset:
    """A dataset of an HDF5 file."""

    def __init__(self, dataset: Any, source: str) -> None:
        self.dataset, self.source = dataset, source
        self.shape: tuple[int, ...] = tuple(dataset.shape)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return some of its rows; text as text.

        Raises:
            PredictionsError: its numbers are in other files, or more than the file can hold.
        """
        held, size = int(self.dataset.id.get_storage_size()), int(self.dataset.nbytes)
        if self.dataset.is_virtual or self.dataset.external:
            raise PredictionsError(f"{self.source}: '{self.dataset.name}' lies in other files")
        if size > HIGHEST_COMPRESSION * (held + 1):
            raise PredictionsError(
                f"{self.source}: '{self.dataset.name}' can't be {size} bytes, packed into {held}"
            )
        rows = np.asarray(self.dataset[start:stop])
        return np.asarray(rows.astype("S")).astype(str) if rows.dtype.hasobject else rows


class Hdf5Rows(ArrayFile):
    """Datasets of an HDF5 file."""

    def open(self) -> None:
        """Open the file."""
        h5py = optional("h5py", "h5py", "hdf5")
        file: Any = self.held.enter_context(
            h5py.File(self.held.enter_context(open_binary(self.source)), "r")
        )
        arrays: dict[str, RowArray] = {}

        def keep(name: str, found: Any) -> None:
            if isinstance(found, h5py.Dataset) and found.shape is not None:
                arrays[name] = _Dataset(found, self.source)

        # Links, which may lead to other files, aren't followed.
        file.visititems(keep)
        self.arrays = arrays


class _Tensor:
    """A tensor, most likely one that is mapped into memory."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor
        self.shape: tuple[int, ...] = tuple(tensor.shape)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return some of its rows."""
        return native(self.tensor[start:stop])


class TorchRows(ArrayFile):
    """Tensors that `torch.save` wrote, in a dict, or scores and labels as a pair."""

    def open(self) -> None:
        """Read which tensors there are; see `load_torch` for when the numbers are read."""
        self._content = load_torch(self.source)
        if isinstance(self._content, dict):
            self._take(self._content)
        else:
            self.arrays = {}

    def _take(self, tensors: dict[str, Any]) -> None:
        torch = optional("torch", "torch", "torch")
        self.arrays = {
            key: _Tensor(checked_tensor(tensors, key, self.source))
            for key, one in tensors.items()
            if isinstance(one, torch.Tensor)
        }

    def choose(self, wanted: Wanted) -> Keys:
        """Return which tensors to read; what the first of a pair is has to be told."""
        if not isinstance(self._content, dict):
            self._take(named_pair(self._content, wanted, self.source))
        return super().choose(wanted)
