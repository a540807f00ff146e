"""Columnar tables through pyarrow: parquet, Arrow, and the folders that Hugging Face writes."""

from __future__ import annotations

import json
import math
import os
import struct
from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from calibrant.core.errors import InputError, PredictionsError
from calibrant.files.formats.base import (
    CLASS_NAMES,
    LABEL_NAMES,
    OF_THE_NETWORK,
    Columns,
    RowReader,
    RowWriter,
    as_text,
    refuse_text,
    words_for,
)
from calibrant.files.formats.cells import parsed
from calibrant.files.gate import PARTLY, check_regular, load_json, optional, readable
from calibrant.files.opening import open_binary

# Rows that are decoded together, whoever asks for how many: a compromise of memory and calls.
ROWS_DECODED = 8192
# A table of more columns than this has one column of lists instead.
MOST_COLUMNS = 256
# Types of columns that hold a list a row.
LISTS = ("list", "large_list", "fixed_size_list")
# Those of objects, whose fields are named as in JSON lines: ``prob_cat``.
DEEP = ("struct", "map")
# Names of columns of one (N, K) array: ``logit_0``, ``logit_1``, ...
STEMS = {"logits": "logit", "probs": "prob", "features": "feature"}
# The key of Arrow's metadata under which names of many labels stand.
NOTE = "calibrant"
# Where `save_to_disk` lists the files of a data set, and its splits.
STATE, SPLITS = "state.json", "dataset_dict.json"


class ColumnReader(RowReader):
    """Tables of Arrow columns.

    Attributes:
        schema: the columns' names and types.
        rows: how many there are.
    """

    tabular = True
    schema: Any
    rows: int

    @cached_property
    def kinds(self) -> dict[str, Any]:
        """Types of the columns by name."""
        return {column.name: column.type for column in self.schema}

    def nested(self) -> bool:
        """Return whether a column holds objects, or text that stands for lists of numbers."""
        texts: list[str] = []
        for name, kind in self.kinds.items():
            inner = str(getattr(kind, "value_type", kind))
            if inner.startswith(DEEP):
                return self.rows > 0
            texts += [name] if inner.endswith(("string", "string_view")) else []
        rows = islice(self.objects(texts), 1) if texts and self.rows else ()
        return any(parsed(cell) is not cell for _, row in rows for cell in row.values())

    def objects(self, names: Collection[str] | None) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the rows, numbered, some of the columns or all of them."""
        tables = self.tables([*(self.kinds if names is None else names)], 0)
        at = next(tables)
        for table in tables:
            for start in range(0, len(table), ROWS_DECODED):
                for row in table.slice(start, ROWS_DECODED).to_pylist():
                    yield at, row
                    at += 1

    def names(self) -> Sequence[str]:
        """Return the names of the columns; one may be there twice."""
        return self.schema.names

    def lists(self) -> Collection[str]:
        """Return the columns of lists."""
        return [name for name, kind in self.kinds.items() if str(kind).startswith(LISTS)]

    def class_names(self, label: str | None) -> tuple[str, ...] | None:
        """Return the names in Arrow's metadata: of classes Hugging Face's, of many labels ours."""
        metadata: dict[bytes, bytes] = self.schema.metadata or {}
        noted, ours = metadata.get(b"huggingface"), metadata.get(NOTE.encode())
        names: Any = None
        # Another program's note is none.
        with suppress(PredictionsError, KeyError, TypeError):
            if ours:
                names = load_json(ours, self.where)[LABEL_NAMES]
            elif noted and label:
                names = load_json(noted, self.where)["info"]["features"][label]["names"]
        return tuple(map(str, cast(list[Any], names))) if isinstance(names, list) else None

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape; the width of lists that the schema doesn't fix is that of row 0."""
        if name not in self.lists():
            return (self.rows,)
        fixed = getattr(self.kinds[name], "list_size", -1)
        if fixed > 0 or not self.rows:
            return self.rows, max(fixed, 0)
        return self.rows, next(iter(self.read([name], [slice(0, 1)])))[name].shape[1]

    def type_of(self, name: str) -> str:
        """Return the type of a column, or of the numbers in its lists."""
        kind = self.kinds[name]
        kind = kind.value_type if name in self.lists() else kind
        if str(kind).startswith("decimal"):
            return "float64"
        with suppress(NotImplementedError, ValueError):
            held = np.dtype(kind.to_pandas_dtype())
            return "text" if held.hasobject else str(held)
        return "text"

    @abstractmethod
    def tables(self, names: Sequence[str], start: int) -> Iterator[Any]:
        """Yield the row at which the first table begins, at or before `start`; then tables."""

    def read(
        self, names: Sequence[str], spans: Iterable[slice], words: Collection[str] = ()
    ) -> Iterator[Columns]:
        """Yield the columns span by span."""
        for at, tables in self._parts(names, spans):
            parts: list[Columns] = []
            for table in tables:
                parts.append({n: self._values(table[n], n, at, words) for n in names})
                at += len(table)
            yield self.together(parts)

    def kept(self, names: Sequence[str], spans: Iterable[slice]) -> Iterator[dict[str, Any]]:
        """Yield the columns as Arrow has them."""
        arrow = optional("pyarrow", "pyarrow", "arrow")
        for _, tables in self._parts(names, spans):
            rows = [
                arrow.Table.from_batches([part]) if isinstance(part, arrow.RecordBatch) else part
                for part in tables
            ]
            table = arrow.concat_tables(rows)
            yield {name: table[name].combine_chunks() for name in names}

    def _parts(
        self, names: Sequence[str], spans: Iterable[slice]
    ) -> Iterator[tuple[int, list[Any]]]:
        """Yield for each span its first row, and the parts of tables that hold its rows."""
        supply: Iterator[Any] | None = None
        held, first, end = list[Any](), 0, 0
        for span in spans:
            if supply is None:
                supply = self.tables(list(dict.fromkeys(names)), span.start)
                first = end = next(supply)
            while end < span.stop:
                held.append(next(supply))
                end += len(held[-1])
            while held and first + len(held[0]) <= span.start:
                first += len(held.pop(0))
            parts, at = list[Any](), first
            for table in held:
                low, high = max(span.start - at, 0), min(span.stop - at, len(table))
                if low < high:
                    parts.append(table.slice(low, high - low))
                at += len(table)
            yield span.start, parts

    def everything(self, names: Sequence[str], words: Collection[str] = ()) -> Columns:
        """Return whole columns, which are decoded part by part."""
        size = sum(8 * math.prod(self.shape(name)) for name in dict.fromkeys(names))
        self.check_bounded(size, "the table", PARTLY)
        if not self.rows:
            return {name: np.zeros(0) for name in names}
        spans = (
            slice(first, min(first + ROWS_DECODED, self.rows))
            for first in range(0, self.rows, ROWS_DECODED)
        )
        found, texts, at = Columns(), list[Columns](), 0
        for part in self.read(names, spans, words):
            texts.append({name: part.pop(name) for name in names if part[name].dtype.kind == "U"})
            # Filled as they come: many small arrays would leave holes when they go.
            for name, values in part.items():
                if not at:
                    found[name] = np.empty((self.rows, *values.shape[1:]), values.dtype)
                if found[name].shape[1:] != values.shape[1:]:
                    raise PredictionsError(f"{self.where}: lists of '{name}' differ in length")
                found[name][at : at + len(values)] = values
            at += len(next(iter((part or texts[-1]).values())))
        return found | self.together(texts)

    def _values(self, column: Any, name: str, first: int, words: Collection[str]) -> NDArray[Any]:
        """Return some rows of a column, the first of which is row `first` of the file."""
        arrow = optional("pyarrow", "pyarrow", "arrow")
        if isinstance(column, arrow.ChunkedArray):
            column = column.combine_chunks()
        if arrow.types.is_decimal(column.type):
            column = column.cast(arrow.float64())
        if column.null_count:
            row = first + column.is_null().index(True).as_py()
            raise PredictionsError(f"{self.where}: row {row}, column '{name}': the cell is blank")
        if name in self.lists():
            flat = column.flatten()
            if flat.null_count:
                raise PredictionsError(f"{self.where}: column '{name}' holds blank numbers")
            width, left = divmod(len(flat), len(column))
            if not left and not arrow.types.is_fixed_size_list(column.type):
                left = int((np.diff(column.offsets.to_numpy()) != width).any())
            if left:
                raise PredictionsError(f"{self.where}: lists of '{name}' differ in length")
            return cast(NDArray[Any], flat.to_numpy(zero_copy_only=False)).reshape(-1, width)
        values = cast(NDArray[Any], column.to_numpy(zero_copy_only=False))
        if name in words:
            return self.texts(name, values) if values.dtype.hasobject else values
        if values.dtype.kind not in "fiu":
            raise refuse_text(name, column.type, self.where)
        return values


class ParquetReader(ColumnReader):
    """A parquet file, a few thousand rows at a time."""

    def open(self) -> None:
        """Read the footer."""
        parquet = optional("pyarrow.parquet", "pyarrow", "arrow")
        file = self.held.enter_context(open_binary(self.where))
        # A buffer bounds what is read of each column at once.
        with readable("the parquet file", self.where):
            self._file = self.held.enter_context(parquet.ParquetFile(file, buffer_size=1 << 20))
        footer = self._file.metadata
        self.schema, self.rows = self._file.schema_arrow, footer.num_rows
        self._sizes = [footer.row_group(i).num_rows for i in range(footer.num_row_groups)]
        if sum(self._sizes) != self.rows:
            raise PredictionsError(
                f"{self.where}: is damaged: its footer says {self.rows} rows, and of its parts "
                f"{sum(self._sizes)}"
            )
        self._widths: dict[str, int] = {}

    def _width(self, name: str) -> int:
        """Return how many numbers the first row of a column takes.

        The footer counts them too, but pyarrow ends the process where one that is damaged is asked.
        """
        if name not in self._widths:
            first = self._file.iter_batches(1, columns=[name], use_threads=False)
            self._widths[name] = sum(batch.nbytes for batch in islice(first, 1)) // 8
        return self._widths[name]

    def tables(self, names: Sequence[str], start: int) -> Iterator[Any]:
        """Yield tables from the row group on that holds the first row."""
        ends = np.cumsum(self._sizes)
        group = int(np.searchsorted(ends, start, side="right"))
        yield int(ends[group - 1]) if group else 0
        deep = [name for name in names if str(self.kinds[name]).startswith((*LISTS, *DEEP))]
        width = max(1, len(self.schema), *map(self._width, deep))
        yield from self._file.iter_batches(
            max(1, min(ROWS_DECODED, (1 << 22) // width)),
            row_groups=list(range(group, len(self._sizes))),
            columns=list(names),
            use_threads=False,
        )


class ArrowReader(ColumnReader):
    """An Arrow file or stream, such as Hugging Face's data sets are kept in."""

    def open(self) -> None:
        """Read the schema, and count the rows."""
        self._ipc = optional("pyarrow.ipc", "pyarrow", "arrow")
        self._raw = self.held.enter_context(open_binary(self.where))
        with readable("the Arrow file", self.where):
            self._is_file = self._raw.read(6) == b"ARROW1"
            with self._reader() as reader:
                self.schema = reader.schema
            self._raw.seek(0)
            for size in unpacked_sizes(self._raw):
                self.check_bounded(size, "a batch", "; write smaller record batches")
            # A stream has no table of contents: its batches are gone through, and forgotten.
            self.rows = sum(len(batch) for batch in self._batches())

    def _reader(self) -> Any:
        self._raw.seek(0)
        return (self._ipc.open_file if self._is_file else self._ipc.open_stream)(self._raw)

    def _batches(self) -> Iterator[Any]:
        with self._reader() as reader:
            if self._is_file:
                batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
            else:
                batches = iter(reader)
            for batch in batches:
                # The offsets in a damaged file may lead outside of it.
                batch.validate(full=True)
                yield batch

    def tables(self, names: Sequence[str], start: int) -> Iterator[Any]:
        """Yield the batches of the file."""
        first, begun = 0, False
        for batch in self._batches():
            if not begun and first + len(batch) <= start:
                first += len(batch)
                continue
            if not begun:
                begun = True
                yield first
            yield batch.select(names)


class HuggingFaceReader(ColumnReader):
    """A data set that `save_to_disk` wrote: Arrow files, which are mapped, and a list of them."""

    def open(self) -> None:
        """Map the files that the folder lists."""
        arrow = optional("pyarrow", "pyarrow", "arrow")
        folder = Path(self.where)
        if (folder / SPLITS).is_file():
            splits = self._document(folder / SPLITS).get("splits", [])
            named = ", ".join(str(folder / str(name)) for name in splits[:5])
            raise PredictionsError(f"{self.where}: holds several splits; read one: {named}")
        state = self._document(folder / STATE)
        tables: list[Any] = []
        with readable("the list of files", self.where):
            files = [str(item["filename"]) for item in state["_data_files"]]
        for name in files:
            if os.path.basename(name) != name:
                raise PredictionsError(f"{self.where}: lists a file elsewhere, {name!r}")
            check_regular(folder / name, f"{self.where}/{name}")
            with readable(f"'{name}'", self.where):
                with open(folder / name, "rb") as raw:
                    self.check_bounded(sum(unpacked_sizes(raw)), f"'{name}'")
                mapped = self.held.enter_context(arrow.memory_map(str(folder / name)))
                tables.append(arrow.ipc.open_stream(mapped).read_all())
                tables[-1].validate(full=True)
        if not tables:
            raise PredictionsError(f"{self.where}: lists no files of rows")
        if state.get("_indices_files"):
            raise PredictionsError(
                f"{self.where}: holds a selection of rows; call flatten_indices() before "
                "save_to_disk"
            )
        with readable("the files", self.where):
            self._table = arrow.concat_tables(tables)
        self.schema, self.rows = self._table.schema, self._table.num_rows

    def _document(self, path: Path) -> dict[str, Any]:
        check_regular(path, str(path))
        with readable(f"'{path.name}'", self.where):
            found = load_json(path.read_bytes(), self.where, f"'{path.name}'")
            if not isinstance(found, dict):
                raise PredictionsError(f"{self.where}: '{path.name}' must hold an object")
            return cast(dict[str, Any], found)

    def tables(self, names: Sequence[str], start: int) -> Iterator[Any]:
        """Yield the whole table, of which nothing is read yet."""
        yield 0
        yield self._table.select(names)


def is_data_set(folder: str) -> bool:
    """Return whether a folder is one that `save_to_disk` wrote."""
    return any(os.path.isfile(os.path.join(folder, name)) for name in (STATE, SPLITS))


def unpacked_sizes(file: Any) -> Iterator[int]:
    """Yield how many bytes each part of an Arrow file or stream takes once it is unpacked.

    A compressed buffer begins with that number. Metadata are flatbuffers, as Arrow's `Message.fbs`
    and `File.fbs` describe them.
    """
    ipc = optional("pyarrow.ipc", "pyarrow", "arrow")
    begins = file.read(6)
    if begins == b"ARROW1":
        file.seek(-10, os.SEEK_END)
        (length,) = struct.unpack("<i", file.read(4))
        file.seek(-10 - length, os.SEEK_END)
        footer = file.read(length)
        contents = _FlatTable(footer, *struct.unpack_from("<I", footer))
        for parts in (contents.places(2, 24), contents.places(3, 24)):
            for place in parts:
                file.seek(*struct.unpack_from("<q", footer, place))
                yield _unpacked(ipc.read_message(file))
        return
    file.seek(0)
    for message in ipc.MessageReader.open_stream(file):
        yield _unpacked(message)


def _unpacked(message: Any) -> int:
    """Return how many bytes the buffers of a message take once they are unpacked."""
    data = message.metadata.to_pybytes()
    table = _FlatTable(data, *struct.unpack_from("<I", data))
    kind = data[table.place(1) or 0]
    if kind not in (2, 3):  # a schema
        return 0
    batch = table.below(2) if kind == 3 else table.below(2).below(1)
    # Arrow 0.17 noted it elsewhere.
    packed = batch.place(3) is not None or b"experimental_compression" in data
    size = 0
    for place in batch.places(2, 16):
        first, length = struct.unpack_from("<qq", data, place)
        (whole,) = (
            struct.unpack("<q", message.body[first : first + 8]) if packed * length else (-1,)
        )
        size += length if whole == -1 else whole
    return size


class _FlatTable:
    """A table of a flatbuffer, whose fields are numbered."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data, self.at = data, at

    def place(self, key: int) -> int | None:
        """Return where a field stands, or None where it has its default."""
        slots = self.at - struct.unpack_from("<i", self.data, self.at)[0]
        if 4 + 2 * key >= struct.unpack_from("<H", self.data, slots)[0]:
            return None
        (off,) = struct.unpack_from("<H", self.data, slots + 4 + 2 * key)
        return self.at + off if off else None

    def _below(self, key: int) -> int:
        place = self.place(key)
        if place is None:
            raise ValueError("a part of its table of contents is missing")
        return place + struct.unpack_from("<I", self.data, place)[0]

    def below(self, key: int) -> _FlatTable:
        """Return the table that a field is."""
        return _FlatTable(self.data, self._below(key))

    def places(self, key: int, size: int) -> range:
        """Return where the entries of a list stand, each of so many bytes."""
        if self.place(key) is None:
            return range(0)
        first = self._below(key)
        (count,) = struct.unpack_from("<I", self.data, first)
        return range(first + 4, first + 4 + size * count, size)


def split(arrays: Columns, where: str) -> Columns:
    """Return the named columns of a table that holds these arrays.

    What is known of the network, not of a row, is left out.

    Raises:
        InputError: an array of more dimensions than a table has.
    """
    columns: Columns = {}
    # The short columns come first, where a reader of the file looks for them.
    of_rows = [key for key in arrays if key not in OF_THE_NETWORK]
    called = arrays.get(CLASS_NAMES, arrays.get(LABEL_NAMES))
    names = words_for(None if called is None else called.tolist())
    _refuse_deep(arrays, where)
    for key in sorted(of_rows, key=lambda key: arrays[key].ndim):
        if arrays[key].ndim == 2:
            rows = arrays[key]
            ends = names if names and key != "features" else range(rows.shape[1])
            stem = STEMS.get(key, "label" if key == "labels" else key)
            columns |= {f"{stem}_{end}": rows[:, i] for i, end in enumerate(ends)}
        elif key == "labels":
            columns["label"] = np.array(names)[arrays[key]] if names else arrays[key]
        else:
            columns[key] = arrays[key]
    return columns


def _refuse_deep(arrays: Columns, where: str) -> None:
    """Raise `InputError` for an array of rows of more dimensions than a table has."""
    deep = (key for key in arrays if key not in OF_THE_NETWORK and arrays[key].ndim > 2)
    for key in deep:
        raise InputError(
            f"{where}: '{key}' of shape {arrays[key].shape} is no column of a table, which has a "
            "prediction a row; write .npz, .npy or .safetensors"
        )


def _arrow(column: Any) -> Any:
    """Return a column as Arrow has it, (n, K) numbers as one of lists."""
    arrow = optional("pyarrow", "pyarrow", "arrow")
    if not isinstance(column, np.ndarray):
        return column
    values = cast(NDArray[Any], column)
    if values.ndim == 2:
        flat = arrow.array(np.ascontiguousarray(values).ravel())
        return arrow.FixedSizeListArray.from_arrays(flat, values.shape[1])
    if not values.dtype.hasobject:
        return arrow.array(values)
    try:
        return arrow.array(values.tolist())
    except (arrow.ArrowInvalid, arrow.ArrowTypeError):  # values of several types
        return arrow.array([None if value is None else as_text(value) for value in values.tolist()])


class _TableWriter(RowWriter):
    lists: bool

    def begin(self, arrays: Columns) -> None:
        """Write the schema."""
        self.network = {key: arrays[key] for key in OF_THE_NETWORK if key in arrays}
        # A column that stays as it stands in its file has no shape.
        shape = getattr(arrays.get(self.scores), "shape", ())
        self.lists = self.always_lists or (len(shape) > 1 and shape[1] > MOST_COLUMNS)
        self.writer = self.opened_writer(self._table(arrays).schema)

    always_lists = False
    writer: Any

    def opened_writer(self, schema: Any) -> Any:
        """Return pyarrow's writer."""
        raise NotImplementedError

    def add(self, arrays: Columns) -> None:
        """Append a row group or a record batch."""
        self.writer.write_table(self._table(self.network | arrays))

    def finish(self) -> None:
        """Write the end."""
        self.writer.close()

    def abandon(self) -> None:
        """Close the file, whatever it lacks."""
        self.writer.close()

    def _table(self, arrays: Columns) -> Any:
        arrow = optional("pyarrow", "pyarrow", "arrow")
        if self.as_named:
            table = arrow.table({name: _arrow(values) for name, values in arrays.items()})
            return table.replace_schema_metadata(self._noted())
        if not self.lists:
            return arrow.table(split(arrays, self.where))
        _refuse_deep(arrays, self.where)
        columns = {
            "label" if key == "labels" and array.ndim == 1 else key: _arrow(array)
            for key, array in arrays.items()
            if key not in OF_THE_NETWORK
        }
        return arrow.table(columns).replace_schema_metadata(self._noted())

    def _noted(self) -> dict[str, str] | None:
        """Return the names of classes as Hugging Face notes them, or of many labels.

        Lists and numbers as labels aren't named by them.
        """
        if LABEL_NAMES in self.network:
            return {NOTE: json.dumps({LABEL_NAMES: self.network[LABEL_NAMES].tolist()})}
        column, names = self.numbered or ("label", self.network.get(CLASS_NAMES, np.empty(0)))
        if not len(names):
            return None
        feature = {"names": [str(name) for name in names], "_type": "ClassLabel"}
        return {"huggingface": json.dumps({"info": {"features": {column: feature}}})}


class ParquetWriter(_TableWriter):
    """A parquet file, a batch to a row group; with very many classes in one column of lists."""

    def opened_writer(self, schema: Any) -> Any:
        """Open the file."""
        parquet = optional("pyarrow.parquet", "pyarrow", "arrow")
        return parquet.ParquetWriter(self.opened(), schema)


class ArrowWriter(_TableWriter):
    """An Arrow stream with a column of lists, as Hugging Face's data sets have them."""

    always_lists = True

    def opened_writer(self, schema: Any) -> Any:
        """Open the file."""
        ipc = optional("pyarrow.ipc", "pyarrow", "arrow")
        return ipc.new_stream(self.opened(), schema)
