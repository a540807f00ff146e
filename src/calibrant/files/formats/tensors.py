"""Formats of the deep-learning world: safetensors, and torch's own (tensors only, no code)."""

from __future__ import annotations

import json
import math
import os
import pickletools
import struct
import zipfile
from collections.abc import Iterable, Sequence
from typing import Any, BinaryIO, NoReturn, cast

import numpy as np
from numpy.typing import NDArray

from calibrant.core.errors import InputError, PredictionsError
from calibrant.files.formats.base import (
    NAMES,
    ArrayReader,
    Columns,
    RowArray,
    SpooledWriter,
    native,
)
from calibrant.files.formats.numpy_files import READ_AT_ONCE, ArrayStream
from calibrant.files.gate import check_members, load_json, optional, readable
from calibrant.files.opening import is_url, open_binary

# A header of safetensors is text about tensors; none is as long as this.
MOST_HEADER_BYTES = 100 << 20
# In an older torch file: two marks of it, the machine, the tensors, and whose numbers follow.
_PARTS_BEFORE_NUMBERS = 5
# An array in a torch file may repeat its numbers, as one that was expanded does, up to this size.
MOST_REPEATED_BYTES = 1 << 26
DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "|i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "|u1",
    "BOOL": "|b1",
}
# What a tensor is written as.
NAMES_OF_DTYPES = {dtype: name for name, dtype in DTYPES.items() if name != "BF16"}
# Bytes of a number of types that aren't read.
OTHER_SIZES = {"F8_E4M3": 1, "F8_E5M2": 1, "C64": 8}


class _Unreadable:
    """A tensor of a type that nothing here can hold."""

    def __init__(self, shape: tuple[int, ...], kind: str, name: str) -> None:
        self.shape, self.type, self.name, self.nbytes = shape, kind, name, 0

    def read(self, start: int, stop: int) -> NoReturn:
        """Refuse."""
        raise ValueError(f"numbers of type {self.type} aren't read")

    def whole(self) -> NoReturn:
        """Refuse."""
        self.read(0, 0)


class _Names:
    """Names of classes or labels that stand in a header."""

    type = "text"

    def __init__(self, names: list[str]) -> None:
        self.names, self.shape = np.array(names), (len(names),)
        self.nbytes = self.names.nbytes

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return some of them."""
        return self.names[start:stop]

    def whole(self) -> NDArray[Any]:
        """Return all of them."""
        return self.names


class SafetensorsReader(ArrayReader):
    """Tensors of a safetensors file, bfloat16 as float32."""

    def open(self) -> None:
        """Read the header.

        Raises:
            PredictionsError: tensors overlap, leave bytes between them or reach beyond the file.
        """
        with readable("the safetensors file", self.where):
            file = self.held.enter_context(open_binary(self.where))
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(MOST_HEADER_BYTES, size - 8):
                raise ValueError("no header of safetensors")
            header = cast(dict[str, Any], load_json(file.read(length), self.where, "the header"))
            self._tensors: dict[str, RowArray] = dict(_names_in(header.pop("__metadata__", None)))
            ends: list[tuple[int, int, str]] = []
            for name, about in header.items():
                first, last = (int(place) for place in about["data_offsets"])
                shape = tuple(int(n) for n in about["shape"])
                kind, what = str(about["dtype"]), f"{self.where}: '{name}'"
                numbers = OTHER_SIZES.get(kind) or np.dtype(DTYPES[kind]).itemsize
                if last - first != math.prod(shape) * numbers or min((*shape, first)) < 0:
                    raise ValueError(f"'{name}' has another size than its shape says")
                ends.append((first, last, name))
                if kind in DTYPES:
                    place, dtype = 8 + length + first, np.dtype(DTYPES[kind])
                    stream = ArrayStream(file, place, shape, dtype, False, what, kind == "BF16")
                    self._tensors[name] = stream
                else:
                    self._tensors[name] = _Unreadable(shape, kind, what)
            before = 0
            for first, last, name in sorted(ends):
                if first != before:
                    raise ValueError(f"'{name}' doesn't begin where the tensor before it ends")
                before = last
            if before != size - 8 - length:
                short = before > size - 8 - length
                raise ValueError("it is cut short" if short else "it goes on behind the tensors")

    def names(self) -> Sequence[str]:
        """Return the names of the tensors."""
        return list(self._tensors)

    def open_array(self, name: str) -> RowArray:
        """Return a tensor."""
        return self._tensors[name]


def _names_in(header: dict[str, str] | None) -> dict[str, _Names]:
    """Return names of classes or labels that a header holds as JSON; tensors hold no text."""
    found: dict[str, _Names] = {}
    for key in NAMES:
        try:
            names: Any = json.loads((header or {}).get(key, "null"))
        except (ValueError, RecursionError, TypeError, AttributeError):
            continue  # another program's, and no names
        if isinstance(names, list) and all(isinstance(name, str) for name in cast(Any, names)):
            found[key] = _Names(cast(list[str], names))
    return found


class _Tensor:
    """A tensor of a torch file, most likely one that is mapped into memory."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor
        self.shape: tuple[int, ...] = tuple(tensor.shape)
        self.type = str(tensor.dtype).removeprefix("torch.")
        self.nbytes = int(tensor.numel() * tensor.element_size())

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return some of its rows."""
        return native(self.tensor[start:stop])

    def whole(self) -> NDArray[Any]:
        """Return all of it."""
        return native(self.tensor)


def _listed(held: Any) -> list[Any]:
    """Return what a list or a tuple holds; nothing of anything else."""
    return [*cast(Sequence[Any], held)] if isinstance(held, list | tuple) else []


def _by_key(content: Any) -> Any:
    """Return a list of batches or rows, each a dict or a pair, as a dict or a pair of lists."""
    parts = _listed(content)
    if parts and all(isinstance(part, dict) and part.keys() == parts[0].keys() for part in parts):
        return {key: [part[key] for part in parts] for key in parts[0]}
    if parts and all(len(_listed(part)) == 2 for part in parts):
        return [[part[place] for part in parts] for place in (0, 1)]
    return content


def _of_rows(columns: Iterable[Any]) -> bool:
    """Return whether lists among some columns hold an entry a row, rather than a batch."""
    return any(held and not getattr(held[0], "shape", ()) for held in map(_listed, columns))


class TorchReader(ArrayReader):
    """Tensors that `torch.save` wrote, in a dict, or scores and labels as a pair.

    Lists of either, or in either, are batches or rows, which are read as one tensor.

    Numbers of a path stay in the file, mapped into memory, until they are asked for, if the file is
    a zip archive, as torch has written since 2020. A URL, or an older file, is read whole.
    """

    def open(self) -> None:
        """Read which tensors there are.

        Raises:
            PredictionsError: anything else than tensors.
        """
        torch = optional("torch", "torch", "torch")
        with open_binary(self.where) as file:
            sizes = _sizes_of_parts(file, self.where)
            mapped = sizes is not None and not is_url(self.where)
            self._sizes = sizes if mapped else None
            file.seek(0)
            options: dict[str, Any] = {"map_location": "cpu", "weights_only": True}
            try:
                content: Any = (
                    torch.load(self.where, mmap=True, **options)
                    if mapped
                    else torch.load(file, **options)
                )
            # As for `readable`; but torch's own words advise to switch the protection off.
            except Exception as error:
                raise PredictionsError(
                    f"{self.where}: is damaged, or no torch file of tensors only (anything else "
                    "could run code); save a dict of tensors, or a .npz"
                ) from error
            if sizes is None:
                self._check_listed(file, content)
        self._pair: list[tuple[int, ...]] | None = None
        content = _by_key(content)
        if isinstance(content, tuple | list):
            content = self._of_pair(cast(Sequence[Any], content))
        if not isinstance(content, dict):
            raise PredictionsError(
                f"{self.where}: must hold a dict of tensors, not a {type(content).__name__}"
            )
        self._content = {str(key): one for key, one in cast(dict[Any, Any], content).items()}

    def _check_listed(self, file: BinaryIO, content: Any) -> None:
        """Refuse an older file that doesn't list the numbers of all its tensors.

        torch gives a tensor that isn't listed whatever is in memory. The list is only looked at.
        """
        file.seek(0)
        listed = set[str]()
        with readable("the torch file", self.where):
            for _ in range(_PARTS_BEFORE_NUMBERS):
                listed = {held for _, held, _ in pickletools.genops(file) if isinstance(held, str)}
        begun, held = set[int](), [content]
        while held:
            one = held.pop()
            if hasattr(one, "untyped_storage"):
                begun.add(one.untyped_storage().data_ptr())
            else:
                held += one.values() if isinstance(one, dict) else _listed(one)
        if len(begun - {0}) > len(listed):
            raise PredictionsError(f"{self.where}: is damaged: it lacks the numbers of a tensor")

    def _joined(self, name: str, parts: list[Any], *, by_row: bool) -> Any:
        """Return the tensor that those of all batches, or of all rows, make together."""
        torch = optional("torch", "torch", "torch")
        if all(type(part) in (int, float) for part in parts):
            return torch.tensor(parts)
        if not all(isinstance(part, torch.Tensor) for part in parts):
            return parts
        tensors = [self._sound(name, part) for part in parts]
        self.check_bounded(sum(t.numel() * t.element_size() for t in tensors), f"'{name}'")
        with readable(f"'{name}'", self.where):
            return (torch.stack if by_row else torch.cat)(tensors)

    def _of_pair(self, parts: Sequence[Any]) -> dict[str, Any]:
        by_row = _of_rows(parts)
        shapes: list[tuple[int, ...]] = []
        for part in parts:
            held = _listed(part)
            whole = self._joined("the pair", held, by_row=by_row) if held else part
            shapes.append(tuple(getattr(whole, "shape", ())))
        if [len(shape) for shape in shapes] == [1, 2]:  # labels first
            shapes, parts = shapes[::-1], parts[::-1]
        if len(parts) != 2 or len(shapes[0]) != 2 or len(shapes[1]) not in (1, 2):
            raise PredictionsError(
                f"{self.where}: a tuple must hold two tensors, scores (N, K) and labels (N,), not "
                f"shapes {shapes[:4]}; save a dict of tensors"
            )
        self._pair = shapes
        return {"scores": parts[0], "labels": parts[1]}

    def hint(self) -> str:
        """Return what a pair of tensors looks like."""
        if self._pair is None:
            return ""
        return (
            f"holds a tuple of tensors of shapes {self._pair[0]} and {self._pair[1]}; say by "
            "--are logits or --are probs (are=) what the first is"
        )

    def names(self) -> Sequence[str]:
        """Return the names of what the file holds."""
        return list(self._content)

    def open_array(self, name: str) -> RowArray:
        """Return a tensor.

        Raises:
            PredictionsError: it is none, or repeats few numbers to look large.
        """
        tensor: Any = self._content[name]
        listed = _listed(tensor)
        if listed and all(isinstance(one, str) for one in listed):
            return _Names(listed)
        if listed:
            by_row = _of_rows(self._content.values())
            joined = self._joined(name, listed, by_row=by_row)
            if joined is not listed:
                return _Tensor(joined)
        return _Tensor(self._sound(name, tensor))

    def _sound(self, name: str, tensor: Any) -> Any:
        """Return a tensor whose numbers are in the file, and not far fewer than it has."""
        torch = optional("torch", "torch", "torch")
        if not isinstance(tensor, torch.Tensor):
            raise PredictionsError(
                f"{self.where}: '{name}' must be a tensor, not a {type(tensor).__name__}"
            )
        held = tensor.untyped_storage().nbytes()
        if self._sizes is not None and held not in self._sizes:
            # Mapped, it would go on into whatever lies behind it.
            raise PredictionsError(
                f"{self.where}: '{name}' is said to have {held} bytes, which no part of the file "
                "has"
            )
        size = tensor.numel() * tensor.element_size()
        # Of a tensor that repeats its numbers a small file may hold any size.
        if size > max(held, MOST_REPEATED_BYTES):
            raise PredictionsError(
                f"{self.where}: '{name}' of shape {tuple(tensor.shape)} repeats its stored "
                "numbers; save its .contiguous()"
            )
        return tensor


def _sizes_of_parts(file: Any, where: str) -> frozenset[int] | None:
    """Return how many bytes the parts of an open torch file have, if it is a zip archive.

    Raises:
        PredictionsError: its parts are compressed, as torch never writes them, or damaged.
    """
    with readable("the torch file", where):
        if not zipfile.is_zipfile(file):
            return None
        with zipfile.ZipFile(file) as archive:
            check_members(archive, where)
            sizes = [info.file_size for info in archive.infolist()]
            if sum(sizes) > file.seek(0, os.SEEK_END):
                raise PredictionsError(f"{where}: is compressed, which torch files aren't")
            for info in archive.infolist():
                # A header that says another size makes torch read what was never written.
                file.seek(info.header_offset + 18)
                if not {*struct.unpack("<II", file.read(8))} <= {0, info.file_size, 2**32 - 1}:
                    raise PredictionsError(f"{where}: is damaged; a part has two sizes")
                with archive.open(info) as part:
                    # torch doesn't look whether it is what was written; 0 is said where none was.
                    while info.CRC and part.read(READ_AT_ONCE):
                        pass
    return frozenset(sizes)


class SafetensorsWriter(SpooledWriter):
    """A safetensors file; names of classes and labels stand in its header."""

    def begin(self, arrays: Columns) -> None:
        """Write the header."""
        named = {key: json.dumps(arrays[key].tolist()) for key in NAMES if key in arrays}
        super().begin(self._numbers(arrays))
        header: dict[str, Any] = {"__metadata__": named} if named else {}
        first = 0
        for key in (self.scores, *self.waiting):
            dtype, shape = self.kinds[key]
            if dtype.str not in NAMES_OF_DTYPES:
                raise InputError(f"{self.where}: safetensors can't hold '{key}' of type {dtype}")
            last = first + math.prod(shape) * dtype.itemsize
            header[key] = {
                "dtype": NAMES_OF_DTYPES[dtype.str],
                "shape": list(shape),
                "data_offsets": [first, last],
            }
            first = last
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        self.body = self.opened()
        self.body.write(len(text).to_bytes(8, "little") + text)

    def add(self, arrays: Columns) -> None:
        """Append to each tensor."""
        super().add(self._numbers(arrays))

    def _numbers(self, arrays: Columns) -> Columns:
        return {key: array for key, array in arrays.items() if key not in NAMES}

    def finish(self) -> None:
        """Write the other tensors."""
        for key in self.waiting:
            self.pour(key, self.body)
