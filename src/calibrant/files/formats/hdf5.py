"""HDF5: datasets, within groups by their path."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.core.errors import PredictionsError
from calibrant.files.formats.base import OF_THE_NETWORK, ArrayReader, Columns, RowArray, RowWriter
from calibrant.files.gate import check_unpacked, optional, readable
from calibrant.files.opening import changed_at, is_url, open_binary

# Text of variable length is read by this first, within so many seconds, and one more for so many
# bytes. HDF5 that loops is deaf to Python: the kernel ends it, with its parent (Linux) or in time.
READ_APART = """
import ctypes, signal, sys
if hasattr(signal, "alarm"):
    signal.alarm(int(sys.argv[3]))
if sys.platform == "linux":
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
import h5py
h5py.File(sys.argv[1], "r")[sys.argv[2]][()]
"""
MOST_SECONDS, BYTES_A_SECOND = 10, 1 << 23


class _Dataset:
    """A dataset of an HDF5 file."""

    def __init__(self, dataset: Any, file: ArrayReader) -> None:
        self.dataset, self.file, self._tried = dataset, file, False
        self.where = file.where
        self.shape: tuple[int, ...] = tuple(dataset.shape)
        self.nbytes = int(dataset.nbytes)
        self.type = "text" if dataset.dtype.kind in "OSU" else str(dataset.dtype)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return some of its rows; text as text."""
        self._try_apart()
        return self._text(np.asarray(self.dataset[start:stop]))

    def whole(self) -> NDArray[Any]:
        """Return all of it."""
        self._try_apart()
        return self._text(np.asarray(self.dataset[()]))

    def check(self) -> None:
        """Raise `PredictionsError` if its numbers are elsewhere, or more than the file can hold."""
        held, size = int(self.dataset.id.get_storage_size()), int(self.dataset.nbytes)
        if self.dataset.is_virtual or self.dataset.external:
            raise PredictionsError(f"{self.where}: '{self.dataset.name}' lies in other files")
        check_unpacked(size, held, f"'{self.dataset.name}'", self.where)
        # However few rows are asked for, a part of this size is unpacked.
        part = math.prod(self.dataset.chunks or ()) * self.dataset.dtype.itemsize
        self.file.check_bounded(part, f"a chunk of '{self.dataset.name}'", "; write smaller ones")

    def _try_apart(self) -> None:
        """Read text of any length in a process of its own: a damaged heap makes HDF5 loop."""
        if self._tried or not self.dataset.dtype.hasobject or is_url(self.where):
            return
        seconds = MOST_SECONDS + self.nbytes // BYTES_A_SECOND
        if not _ends(self.where, self.dataset.name, changed_at(self.where), seconds):
            raise PredictionsError(
                f"{self.where}: '{self.dataset.name}' can't be read, or not within "
                f"{seconds} seconds; is the file damaged?"
            )
        self._tried = True

    def _text(self, rows: NDArray[Any]) -> NDArray[Any]:
        if not rows.dtype.hasobject:
            return rows
        cells = [cell.decode() if isinstance(cell, bytes) else cell for cell in rows.ravel()]
        return self.file.texts(self.dataset.name, cells).reshape(rows.shape)


@lru_cache
def _ends(where: str, name: str, changed: str, seconds: int) -> bool:
    """Return whether a process of its own reads a dataset of a file, as it is now, in time."""
    words = [sys.executable, "-c", READ_APART, where, name, str(seconds)]
    try:
        return not subprocess.run(words, capture_output=True, timeout=seconds).returncode
    except subprocess.TimeoutExpired:
        return False


class Hdf5Reader(ArrayReader):
    """Datasets of an HDF5 file."""

    def open(self) -> None:
        """Open the file, and list its datasets."""
        h5py = optional("h5py", "h5py", "hdf5")
        raw = self.held.enter_context(open_binary(self.where))
        with readable("the HDF5 file", self.where):
            file: Any = self.held.enter_context(h5py.File(raw, "r"))
            self._datasets: dict[str, _Dataset] = {}

            def keep(name: str, found: Any) -> None:
                if isinstance(found, h5py.Dataset) and found.shape is not None:
                    self._datasets[name] = _Dataset(found, self)

            # Links, which may lead to other files, aren't followed.
            file.visititems(keep)

    def names(self) -> Sequence[str]:
        """Return the paths of the datasets."""
        return list(self._datasets)

    def open_array(self, name: str) -> RowArray:
        """Return a dataset.

        Raises:
            PredictionsError: its numbers are in other files, or more than the file can hold.
        """
        dataset = self._datasets[name]
        dataset.check()
        return dataset


class Hdf5Writer(RowWriter):
    """Datasets of an HDF5 file."""

    def begin(self, arrays: Columns) -> None:
        """Make the datasets."""
        h5py = optional("h5py", "h5py", "hdf5")
        self.file: Any = h5py.File(self.opened(), "w")
        self.done = 0
        for key, array in arrays.items():
            kind: Any = h5py.string_dtype() if array.dtype.kind == "U" else array.dtype
            if key in OF_THE_NETWORK:
                self.file[key] = array.astype(kind)
            else:
                self.file.create_dataset(key, (self.rows, *array.shape[1:]), kind)

    def add(self, arrays: Columns) -> None:
        """Fill in some rows."""
        rows = len(arrays[self.scores])
        for key, array in arrays.items():
            if key not in OF_THE_NETWORK:
                held = array.astype(object) if array.dtype.kind == "U" else array
                self.file[key][self.done : self.done + rows] = held
        self.done += rows

    def finish(self) -> None:
        """Close the file."""
        self.file.close()

    def abandon(self) -> None:
        """Close the file, whatever it lacks."""
        self.file.close()
