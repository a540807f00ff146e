"""Files of predictions written a batch of rows at a time, whole or not at all."""

from __future__ import annotations

import json
import shutil
import tempfile
import zipfile
from abc import ABC, abstractmethod
from contextlib import ExitStack
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.lib import format as npy

from calibrant.core.errors import InputError
from calibrant.files.keys import Arrays, optional
from calibrant.files.opening import beside, replacing_anywhere
from calibrant.files.row_files import stem_of

# Arrays beside the scores wait in memory up to this size, then in a file without a name.
SPOOLED_BYTES = 1 << 26
SAFETENSORS = {"float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64"}


class RowWriter(ABC):
    """Writes one file; a context, on leaving which the file is there, unless by an exception.

    Args:
        where: path or URL.
        rows: how many there will be.
        scores: key of the scores.
    """

    def __init__(self, where: str, rows: int, scores: str) -> None:
        self.where, self.rows, self.scores = where, rows, scores
        self._stack = ExitStack()
        self._begun = False

    def __enter__(self) -> Self:
        self._stack.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            if error[0] is None:
                self.finish()
        except BaseException as failure:
            self._stack.__exit__(type(failure), failure, failure.__traceback__)
            raise
        self._stack.__exit__(*error)

    def write(self, arrays: Arrays) -> None:
        """Append a batch."""
        if not self._begun:
            self._begun = True
            self.begin(arrays)
        self.add(arrays)

    @abstractmethod
    def begin(self, arrays: Arrays) -> None:
        """Open the file, given the first batch."""

    @abstractmethod
    def add(self, arrays: Arrays) -> None:
        """Append a batch."""

    def finish(self) -> None:  # noqa: B027
        """Write what comes last."""

    def opened(self, where: str | None = None) -> BinaryIO:
        """Open the file, or another that belongs to it."""
        return self._stack.enter_context(replacing_anywhere(where or self.where))


class _Spooled(RowWriter):
    """Formats that hold one array after the other: the scores at once, the others in the end."""

    def begin(self, arrays: Arrays) -> None:
        """Note what there is."""
        self.kinds = {
            key: (array.dtype, (self.rows, *array.shape[1:])) for key, array in arrays.items()
        }
        self.held: dict[str, Any] = {}
        for key in arrays:
            if key != self.scores:
                room = tempfile.SpooledTemporaryFile(SPOOLED_BYTES)  # noqa: SIM115
                self.held[key] = self._stack.enter_context(room)

    def add(self, arrays: Arrays) -> None:
        """Append to each array."""
        for key, array in arrays.items():
            data = np.ascontiguousarray(array).data
            (self.body if key == self.scores else self.held[key]).write(data)

    body: Any

    def pour(self, key: str, into: Any) -> None:
        """Write one of the arrays that waited."""
        self.held[key].seek(0)
        shutil.copyfileobj(self.held[key], into, 1 << 20)


def _npy_header(file: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    about = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    npy.write_array_header_2_0(file, about)


class NpzWriter(_Spooled):
    """A compressed npz archive."""

    def begin(self, arrays: Arrays) -> None:
        """Open the member of the scores."""
        super().begin(arrays)
        file = self.opened()
        self.archive = zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1)
        self.body = self.archive.open(f"{self.scores}.npy", "w", force_zip64=True)
        _npy_header(self.body, *self.kinds[self.scores])

    def finish(self) -> None:
        """Write the other members."""
        self.body.close()
        for key in self.held:
            with self.archive.open(f"{key}.npy", "w", force_zip64=True) as member:
                _npy_header(member, *self.kinds[key])
                self.pour(key, member)
        self.archive.close()


class SafetensorsWriter(_Spooled):
    """A safetensors file."""

    def begin(self, arrays: Arrays) -> None:
        """Write the header."""
        super().begin(arrays)
        header: dict[str, Any] = {}
        first = 0
        for key in (self.scores, *self.held):
            dtype, shape = self.kinds[key]
            if dtype.name not in SAFETENSORS:
                raise InputError(f"{self.where}: safetensors can't hold '{key}' of type {dtype}")
            last = first + int(np.prod(shape)) * dtype.itemsize
            header[key] = {
                "dtype": SAFETENSORS[dtype.name],
                "shape": list(shape),
                "data_offsets": [first, last],
            }
            first = last
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        self.body = self.opened()
        self.body.write(len(text).to_bytes(8, "little") + text)

    def finish(self) -> None:
        """Write the other tensors."""
        for key in self.held:
            self.pour(key, self.body)


class NpyWriter(RowWriter):
    """``.npy`` files; that of the scores is there last."""

    def begin(self, arrays: Arrays) -> None:
        """Open a file for each array."""
        self.files: dict[str, BinaryIO] = {}
        for key in (self.scores, *(key for key in arrays if key != self.scores)):
            prefix = stem_of(self.where).removesuffix(self.scores)
            self.files[key] = self.opened(beside(self.where, f"{prefix}{key}.npy"))
            shape = (self.rows, *arrays[key].shape[1:])
            _npy_header(self.files[key], arrays[key].dtype, shape)

    def add(self, arrays: Arrays) -> None:
        """Append to each file."""
        for key, array in arrays.items():
            self.files[key].write(np.ascontiguousarray(array).data)


class Hdf5Writer(RowWriter):
    """Datasets of an HDF5 file."""

    def begin(self, arrays: Arrays) -> None:
        """Make the datasets."""
        h5py = optional("h5py", "h5py", "hdf5")
        self.file: Any = h5py.File(self.opened(), "w")
        self.done = 0
        for key, array in arrays.items():
            kind: Any = h5py.string_dtype() if array.dtype.kind == "U" else array.dtype
            self.file.create_dataset(key, (self.rows, *array.shape[1:]), kind)

    def add(self, arrays: Arrays) -> None:
        """Fill in some rows."""
        rows = len(arrays[self.scores])
        for key, array in arrays.items():
            held = array.astype(object) if array.dtype.kind == "U" else array
            self.file[key][self.done : self.done + rows] = held
        self.done += rows

    def finish(self) -> None:
        """Close the file."""
        self.file.close()
