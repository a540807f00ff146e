"""NumPy's own formats: ``.npz`` archives and ``.npy`` files side by side.

Spans of rows are read, not mapped: pages of a mapped file count as the process's own. A ``.npy``
file that is read whole is mapped.
"""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from calibrant.core.errors import InputError, PredictionsError
from calibrant.core.outputs import whole_set
from calibrant.files.formats.base import (
    OF_THE_NETWORK,
    ArrayReader,
    Columns,
    RowArray,
    RowWriter,
    SpooledWriter,
)
from calibrant.files.gate import check_members, check_regular, check_unpacked
from calibrant.files.opening import (
    beside,
    is_file,
    is_folder,
    is_url,
    open_binary,
    stem_of,
    within,
)

# Bytes that are read at once, so that an archive unpacks no more than these on the way.
READ_AT_ONCE = 1 << 20
SCORES = ("logits", "probs", "confidence", "score", "prob", "logit")
LABELS = ("labels", "label", "true_label")
BESIDE_SCORES = (
    *LABELS,
    "pred_label",
    "predicted",
    "correct",
    "features",
    "weight",
    "cluster",
    *OF_THE_NETWORK,
)
EXPECTED_FILES = (
    "PREFIXlogits.npy or PREFIXprobs.npy (PREFIXlogit.npy or PREFIXprob.npy of binary predictions) "
    "beside PREFIXlabels.npy, or any name with what it holds and the file of labels given"
)


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
        mapped: whether it is mapped into memory where it is read whole.
    """

    file: BinaryIO
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    by_column: bool
    name: str
    halved: bool = False
    mapped: bool = False

    @property
    def type(self) -> str:
        """Type of the numbers."""
        return "text" if self.dtype.kind in "US" else "bfloat16" if self.halved else str(self.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes that all of it takes."""
        return math.prod(self.shape) * self.dtype.itemsize * (1 + self.halved)

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
            return np.stack(columns, axis=1).reshape(stop - start, *self.shape[1:], order="F")
        flat = self._numbers(self.offset + start * width * size, (stop - start) * width)
        return self._widened(flat.reshape(stop - start, *self.shape[1:]))

    def whole(self) -> NDArray[Any]:
        """Return all of it; mapped if it may be."""
        order = "F" if self.by_column else "C"
        if self.mapped:
            return np.memmap(
                cast(Any, self.file), self.dtype, "r", self.offset, self.shape, order=order
            )
        flat = self._numbers(self.offset, math.prod(self.shape))
        return self._widened(flat.reshape(self.shape, order=order))

    def _widened(self, rows: NDArray[Any]) -> NDArray[Any]:
        return (rows.astype(np.uint32) << 16).view(np.float32) if self.halved else rows

    def _numbers(self, place: int, count: int) -> NDArray[Any]:
        numbers = np.empty(count, dtype=self.dtype)
        room = memoryview(cast(Any, numbers.view(np.uint8))) if numbers.nbytes else memoryview(b"")
        self.file.seek(place)
        done = 0
        while done < len(room):
            got = cast(Any, self.file).readinto(room[done : done + READ_AT_ONCE])
            if not got:
                raise PredictionsError(f"{self.name} ends after {place + done} bytes, cut short")
            done += got
        return numbers


def npy_stream(file: BinaryIO, name: str, *, mapped: bool = False) -> ArrayStream:
    """Return the array of an open ``.npy`` file.

    Raises:
        PredictionsError: it holds pickled objects. ValueError: it is no such file.
    """
    version = npy.read_magic(file)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    start = file.tell()
    try:
        shape, by_column, dtype = read(file)
    except SystemError:
        # NumPy parses the header as Python, which Python 3.11 now and then can't do while it
        # collects garbage ("AST constructor recursion depth mismatch"); it can a moment later.
        file.seek(start)
        shape, by_column, dtype = read(file)
    if dtype.hasobject:
        raise PredictionsError(
            f"{name} holds pickled Python objects, which are refused because they can run code; "
            "save an array of numbers"
        )
    return ArrayStream(file, file.tell(), shape, dtype, by_column, name, mapped=mapped)


class NpzReader(ArrayReader):
    """Arrays of an npz archive, unpacked as they are read."""

    def open(self) -> None:
        """Open the archive."""
        file = self.held.enter_context(open_binary(self.where))
        if not zipfile.is_zipfile(file):
            raise PredictionsError(f"{self.where}: is no npz archive, or cut short")
        self._archive = self.held.enter_context(zipfile.ZipFile(file))
        check_members(self._archive, self.where)
        self._members = {
            info.filename.removesuffix(".npy"): info for info in self._archive.infolist()
        }

    def names(self) -> Sequence[str]:
        """Return the names of the members."""
        return list(self._members)

    def open_array(self, name: str) -> RowArray:
        """Return a member, once its size is known to be true."""
        info, what = self._members[name], f"{self.where}: '{name}'"
        check_unpacked(info.file_size, info.compress_size, f"'{name}'", self.where)
        if not info.filename.endswith(".npy"):
            raise PredictionsError(f"{what} is no array; its name doesn't end in .npy")
        member = cast(Any, self.held.enter_context(self._archive.open(info)))
        stream = npy_stream(member, what)
        size, held = stream.nbytes, info.file_size - stream.offset
        # NumPy would reserve the memory that the header asks for, and read only then.
        if size > held:
            raise PredictionsError(
                f"{what} says that it has shape {stream.shape}, which takes {size} bytes, but "
                f"holds {held}"
            )
        return stream


class NpyReader(ArrayReader):
    """``.npy`` files that share a prefix, or lie in one folder."""

    expected = EXPECTED_FILES

    def open(self) -> None:
        """Open all files that go together, as they stand at one moment."""
        where, here = self.where, not is_url(self.where)
        files = self._files()
        with ExitStack() as moment:
            if here:
                folder = Path(where) if is_folder(where) else Path(where).parent
                moment.enter_context(whole_set(folder, exclusive=False))
            self._files_of = {
                name: self.held.enter_context(open_binary(place)) for name, place in files.items()
            }

    @cached_property
    def packed(self) -> float:
        """Number of bytes of all files that go together."""
        return sum(file.seek(0, os.SEEK_END) for file in self._files_of.values())

    def _files(self) -> dict[str, str]:
        where, labels = self.where, self.options.labels
        if is_folder(where):
            every = {key: within(where, f"{key}.npy") for key in (*SCORES, *BESIDE_SCORES)}
            files = {key: file for key, file in every.items() if is_file(file)}
        else:
            own = key_of_stem(where)
            prefix = stem_of(where).removesuffix(own or "")
            every = {key: beside(where, f"{prefix}{key}.npy") for key in BESIDE_SCORES}
            files = {key: file for key, file in every.items() if own and is_file(file)}
            # Whatever its name says, the file is what the caller says that it is.
            said = self.options.are
            kind = said if said in SCORES else None if said is None else "scores"
            if kind is None and own is None:
                raise PredictionsError(
                    f"{where}: the name doesn't say what the array is; expected {EXPECTED_FILES}"
                )
            files = {kind or str(own): where} | files
        if labels is not None:
            files = {key: file for key, file in files.items() if key not in LABELS}
            place = str(labels)
            if not is_url(place):
                there = os.path.lexists(place)
                check_regular(
                    Path(place), place if there else f"{where}: can't read 'labels': {place}"
                )
            files["labels"] = place
        return files

    def names(self) -> Sequence[str]:
        """Return which arrays there are."""
        return list(self._files_of)

    def open_array(self, name: str) -> RowArray:
        """Return the array of one file."""
        file, what = self._files_of[name], f"{self.where}: '{name}'"
        file.seek(0)
        stream = npy_stream(file, what, mapped=not is_url(self.where))
        if file.seek(0, os.SEEK_END) < stream.offset + stream.nbytes:
            raise ValueError(f"its header says {stream.shape}, but the file is shorter")
        return stream


def key_of_stem(where: str) -> str | None:
    """Return the kind of scores that a name of a file ends in."""
    return next((key for key in SCORES if stem_of(where).endswith(key)), None)


def write_npy_header(file: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """Write what comes before the numbers of an array."""
    about = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    npy.write_array_header_2_0(file, about)


class NpzWriter(SpooledWriter):
    """A compressed npz archive."""

    def begin(self, arrays: Columns) -> None:
        """Open the member of the scores."""
        super().begin(arrays)
        file = self.opened()
        self.archive = zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1)
        self.body = self.archive.open(f"{self.scores}.npy", "w", force_zip64=True)
        write_npy_header(self.body, *self.kinds[self.scores])

    def finish(self) -> None:
        """Write the other members."""
        self.body.close()
        for key in self.waiting:
            with self.archive.open(f"{key}.npy", "w", force_zip64=True) as member:
                write_npy_header(member, *self.kinds[key])
                self.pour(key, member)
        self.archive.close()

    def abandon(self) -> None:
        """Close the archive, whatever it lacks."""
        try:
            self.body.close()
        finally:
            self.archive.close()


class NpyWriter(RowWriter):
    """``.npy`` files; that of the scores is there last."""

    def begin(self, arrays: Columns) -> None:
        """Open a file for each array.

        Raises:
            InputError: the name doesn't end in that of the scores, or a file of labels, features
                and the like is there that these rows lack and that would be read along with them.
        """
        # What is held first is let go last: when all files are in place.
        self._moment = self.held.enter_context(ExitStack())
        stem = stem_of(self.where)
        if not stem.endswith(self.scores):
            raise InputError(
                f"{self.where}: the name must end in {self.scores}.npy to hold {self.scores}"
            )
        prefix = stem.removesuffix(self.scores)
        read_along = [] if self.scores in ("confidence", "score") else ["features", *OF_THE_NETWORK]
        read_along += ["weight"] + ([] if set(LABELS) & set(arrays) else [*LABELS])
        for key in (key for key in read_along if key not in arrays):
            stale = beside(self.where, f"{prefix}{key}.npy")
            if is_file(stale):
                raise InputError(
                    f"{self.where}: {prefix}{key}.npy lies beside it and would be read as the "
                    f"{key} of these rows; remove it, or choose another name"
                )
        self.files: dict[str, BinaryIO] = {}
        for key in (self.scores, *(key for key in arrays if key != self.scores)):
            array = arrays[key]
            self.files[key] = self.opened(beside(self.where, f"{prefix}{key}.npy"))
            of_rows = key not in OF_THE_NETWORK
            shape = (self.rows, *array.shape[1:]) if of_rows else array.shape
            write_npy_header(self.files[key], array.dtype, shape)
            if not of_rows:
                self.files[key].write(np.ascontiguousarray(array).data)

    def add(self, arrays: Columns) -> None:
        """Append to each file."""
        for key, array in arrays.items():
            if key not in OF_THE_NETWORK:
                self.files[key].write(np.ascontiguousarray(array).data)

    def finish(self) -> None:
        """From here on the files are put in place, one after the other."""
        if not is_url(self.where):
            self._moment.enter_context(whole_set(Path(self.where).parent, exclusive=True))
