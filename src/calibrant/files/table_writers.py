"""Tables written a batch of rows at a time; and what writes any file, by its extension."""

from __future__ import annotations

import csv
import io
import json
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from calibrant.files.columns import STEMS, split
from calibrant.files.keys import CLASS_NAMES, OF_THE_NETWORK, Arrays, optional
from calibrant.files.opening import extension_of, make_folder, within
from calibrant.files.row_writers import (
    Hdf5Writer,
    NpyWriter,
    NpzWriter,
    RowWriter,
    SafetensorsWriter,
)

# A table of more columns than this has one column of lists instead.
MOST_COLUMNS = 256


def _table(arrays: Arrays, *, lists: bool) -> Any:
    arrow = optional("pyarrow", "pyarrow", "arrow")
    if not lists:
        return arrow.table(split(arrays))
    columns: dict[str, Any] = {}
    for key, array in arrays.items():
        if key in OF_THE_NETWORK:
            continue
        if array.ndim == 1:
            columns["label" if key == "labels" else key] = arrow.array(array)
        else:
            flat = arrow.array(np.ascontiguousarray(array).ravel())
            columns[key] = arrow.FixedSizeListArray.from_arrays(flat, array.shape[1])
    return arrow.table(columns)


class ParquetWriter(RowWriter):
    """A parquet file, a batch to a row group; with very many classes in one column of lists."""

    def begin(self, arrays: Arrays) -> None:
        """Write the schema."""
        parquet = optional("pyarrow.parquet", "pyarrow", "arrow")
        self.lists = arrays[self.scores].ndim > 1 and arrays[self.scores].shape[1] > MOST_COLUMNS
        schema = _table(arrays, lists=self.lists).schema
        self.writer: Any = parquet.ParquetWriter(self.opened(), schema)

    def add(self, arrays: Arrays) -> None:
        """Append a row group."""
        self.writer.write_table(_table(arrays, lists=self.lists))

    def finish(self) -> None:
        """Write the footer."""
        self.writer.close()


class ArrowWriter(RowWriter):
    """An Arrow stream with a column of lists, as Hugging Face's data sets have them."""

    def begin(self, arrays: Arrays) -> None:
        """Write the schema."""
        ipc = optional("pyarrow.ipc", "pyarrow", "arrow")
        self.writer: Any = ipc.new_stream(self.opened(), _table(arrays, lists=True).schema)

    def add(self, arrays: Arrays) -> None:
        """Append a record batch."""
        self.writer.write_table(_table(arrays, lists=True))

    def finish(self) -> None:
        """Write the end."""
        self.writer.close()


class _TextWriter(RowWriter):
    """Formats of text."""

    text: io.TextIOWrapper

    def begin(self, arrays: Arrays) -> None:
        """Open the file."""
        self.text = io.TextIOWrapper(self.opened(), encoding="utf-8", newline="")

    def finish(self) -> None:
        """Leave the file to be closed by whoever opened it."""
        self.text.flush()
        self.text.detach()


class CsvWriter(_TextWriter):
    """A table of text, with commas or, by its extension, tabs between the columns."""

    def begin(self, arrays: Arrays) -> None:
        """Write the header."""
        super().begin(arrays)
        mark = "\t" if extension_of(self.where) == ".tsv" else ","
        self.rows_of = csv.writer(self.text, delimiter=mark, lineterminator="\n")
        self.rows_of.writerow(split(arrays))

    def add(self, arrays: Arrays) -> None:
        """Append rows."""
        columns = cast(list[NDArray[Any]], list(split(arrays).values()))
        self.rows_of.writerows(zip(*(column.tolist() for column in columns), strict=True))


class JsonLinesWriter(_TextWriter):
    """An object a line, with a list of the scores, or where classes have names an object."""

    def add(self, arrays: Arrays) -> None:
        """Append rows."""
        called = arrays.get(CLASS_NAMES)
        names = None if called is None else [str(name) for name in called.tolist()]
        of_rows = {key: array for key, array in arrays.items() if key not in OF_THE_NETWORK}
        columns = {"label" if k == "labels" else k: array.tolist() for k, array in of_rows.items()}
        if names is not None:
            columns[self.scores] = [
                dict(zip(names, row, strict=True)) for row in columns[self.scores]
            ]
            if "label" in columns:
                columns["label"] = [names[label] for label in columns["label"]]
        for row in zip(*columns.values(), strict=True):
            self.text.write(json.dumps(dict(zip(columns, row, strict=True))) + "\n")


ROW_WRITERS: dict[str, type[RowWriter]] = {
    ".npz": NpzWriter,
    ".npy": NpyWriter,
    ".safetensors": SafetensorsWriter,
    ".h5": Hdf5Writer,
    ".hdf5": Hdf5Writer,
    ".parquet": ParquetWriter,
    ".arrow": ArrowWriter,
    ".feather": ArrowWriter,
    ".csv": CsvWriter,
    ".tsv": CsvWriter,
    ".jsonl": JsonLinesWriter,
    ".ndjson": JsonLinesWriter,
}
# Formats that are read but not written, and what is written instead.
INSTEAD = {".pt": ".npz", ".pth": ".npz"}


def written_as(name: str, scores: str) -> str:
    """Return the name under which calibrated scores of a file `name` are written.

    It is the same, but where it says that the file holds logits, or the format isn't written.
    """
    extension = extension_of(name)
    if extension == "":  # a folder of npy arrays
        return within(name, f"{scores}.npy")
    head, _, tail = name.rpartition("/")
    stem = tail.removesuffix(tail[-len(extension) :])
    if extension == ".npy":
        for kind in (*STEMS, "logit", "prob", "confidence"):
            if stem.endswith(kind):
                stem = stem.removesuffix(kind) + scores
                break
    else:
        extension = INSTEAD.get(extension, extension)
    return f"{head}/{stem}{extension}" if head else f"{stem}{extension}"


def open_writer(where: str, rows: int, scores: str) -> RowWriter:
    """Return what writes so many rows to a path or URL, by its extension."""
    make_folder(where.rpartition("/")[0] or ".")
    return ROW_WRITERS[extension_of(where)](where, rows, scores)
