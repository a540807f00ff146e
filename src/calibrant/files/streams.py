"""Rows of one array of a file, read some at a time: npy, members of npz, tensors of safetensors.

Nothing is mapped into memory: pages of a mapped file count as the process's own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol, cast

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from calibrant.core.errors import PredictionsError

# A header of safetensors is text about tensors; none is as long as this.
MOST_HEADER_BYTES = 100 << 20
DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "u1",
    "BOOL": "?",
}


class RowArray(Protocol):
    """One array of a file."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape, from the header."""
        ...

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return some of its rows."""
        ...


@dataclass(frozen=True)
class ArrayStream:
    """An array that lies in a file as its numbers, one after the other.

    Attributes:
        file: what to read; one that is unpacked on the way goes forward cheaply, and back dearly.
        offset: where the numbers begin.
        shape: of the array.
        dtype: of the numbers.
        by_column: whether the columns lie one after the other, rather than the rows.
        name: what messages call it.
        halved: whether the numbers are bfloat16, the upper halves of float32.
    """

    file: BinaryIO
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    by_column: bool
    name: str
    halved: bool = False

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return rows from `start` up to `stop`, which must not lie beyond the end.

        Raises:
            PredictionsError: the file ends before.
        """
        width, size = math.prod(self.shape[1:]), self.dtype.itemsize
        if self.by_column and len(self.shape) > 1:
            columns = [
                self._numbers(self.offset + (k * self.shape[0] + start) * size, stop - start)
                for k in range(width)
            ]
            return np.stack(columns, axis=1).reshape(stop - start, *self.shape[1:])
        flat = self._numbers(self.offset + start * width * size, (stop - start) * width)
        rows = flat.reshape(stop - start, *self.shape[1:])
        if self.halved:
            return (rows.astype(np.uint32) << 16).view(np.float32)
        return rows

    def _numbers(self, place: int, count: int) -> NDArray[Any]:
        numbers = np.empty(count, dtype=self.dtype)
        room = memoryview(cast(Any, numbers.view(np.uint8))) if count else memoryview(b"")
        self.file.seek(place)
        done = 0
        while done < len(room):
            got = cast(Any, self.file).readinto(room[done:])
            if not got:
                raise PredictionsError(f"{self.name} ends after {place + done} bytes, cut short")
            done += got
        return numbers


def npy_stream(file: BinaryIO, name: str) -> ArrayStream:
    """Return the array of an open ``.npy`` file.

    Raises:
        PredictionsError: it holds pickled objects. ValueError: it is no such file.
    """
    version = npy.read_magic(file)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, by_column, dtype = read(file)
    if dtype.hasobject:
        raise PredictionsError(
            f"{name} holds pickled Python objects, which are refused because they can run code; "
            "save an array of numbers"
        )
    return ArrayStream(file, file.tell(), shape, dtype, by_column, name)


def tensor_streams(file: BinaryIO) -> dict[str, ArrayStream]:
    """Return the tensors of an open safetensors file by name; those of unknown dtypes are left out.

    Raises:
        ValueError: it is no such file.
    """
    length = int.from_bytes(file.read(8), "little")
    if not 2 <= length <= MOST_HEADER_BYTES:
        raise ValueError("no header of safetensors")
    header: Any = json.loads(file.read(length))
    found: dict[str, ArrayStream] = {}
    for name, about in cast(Mapping[str, Any], header).items():
        if name == "__metadata__" or about["dtype"] not in DTYPES:
            continue
        dtype, shape = np.dtype(DTYPES[about["dtype"]]), tuple(int(n) for n in about["shape"])
        first, last = about["data_offsets"]
        if last - first != math.prod(shape) * dtype.itemsize or min((*shape, first)) < 0:
            raise ValueError(f"'{name}' has another size than its shape says")
        halved = about["dtype"] == "BF16"
        found[name] = ArrayStream(
            file, 8 + length + first, shape, dtype, False, f"'{name}'", halved
        )
    return found
