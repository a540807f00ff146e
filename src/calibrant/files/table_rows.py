"""Tables read a batch of rows at a time: parquet, Arrow, CSV."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from calibrant.core.errors import PredictionsError
from calibrant.files.arrow_metadata import class_names_in
from calibrant.files.choosing import TRAINER, select
from calibrant.files.columns import STEMS, join, select_columns
from calibrant.files.csv_files import first_fault, header_of, separator_of, with_point
from calibrant.files.keys import Keys, Wanted, optional
from calibrant.files.opening import open_binary
from calibrant.files.row_files import Batch, RowFile

# Rows that are decoded together, whoever asks for how many: a compromise of memory and calls.
ROWS_DECODED = 8192
# CSV is parsed so many cells at a time.
CELLS_PARSED = 1 << 19
# Characters that are kept of a cell of text that rows are grouped by.
TEXT = 64


class ColumnRows(RowFile):
    """Tables of Arrow columns; ``logits`` may be one column of lists, or ``logit_0``, ... many.

    Attributes:
        schema: the columns' names and types.
        rows: how many there are.
    """

    schema: Any
    rows: int

    def __init__(self, source: str, labels: str | None = None) -> None:
        self._places: dict[str, list[str]] = {}
        super().__init__(source, labels)

    def names(self) -> Sequence[str]:
        """Return the names of the columns."""
        return cast(list[str], self.schema.names)

    def choose(self, wanted: Wanted) -> Keys:
        """Return what to read: columns of lists first."""
        names = self.names()
        if any(self._lists(key) for key in (*STEMS, wanted.scores_key, TRAINER[0]) if key in names):
            keys = select(names, wanted, self.source)
            self._places = {key: [key] for key in keys.used}
        else:
            keys, places = select_columns(names, wanted, self.source)
            self._places = {key: [names[i] for i in of] for key, of in places.items()}
        if keys.class_names is None and not keys.binary:
            keys = replace(keys, class_names=class_names_in(self.schema, keys.labels))
        return keys

    def _lists(self, name: str | None) -> bool:
        kind = str(self.schema.field(name).type)
        return kind.startswith(("list", "large_list", "fixed_size_list"))

    def shape(self, key: str) -> tuple[int, ...]:
        """Return the shape; the width of lists that the schema doesn't fix is that of row 0."""
        columns = self._places.get(key, [key])
        if columns != [key] and (key in STEMS or len(columns) > 1):
            return self.rows, len(columns)
        if not self._lists(columns[0]):
            return (self.rows,)
        kind = self.schema.field(key).type
        fixed = getattr(kind, "list_size", -1)
        if fixed > 0:
            return self.rows, fixed
        first = next(self.read([key], [slice(0, 1)]), None)
        return self.rows, 0 if first is None else first[key].shape[1]

    def read(self, keys: Sequence[str], spans: Iterable[slice]) -> Iterator[Batch]:
        """Yield the columns span by span."""
        columns = [name for key in keys for name in self._places.get(key, [key])]
        supply: Iterator[Any] | None = None
        held, first, end = list[Any](), 0, 0
        for span in spans:
            if supply is None:
                supply = self._tables(columns, span.start)
                first = end = next(supply)
            while end < span.stop:
                held.append(next(supply))
                end += len(held[-1])
            while held and first + len(held[0]) <= span.start:
                first += len(held.pop(0))
            yield {key: self._array(key, held, span, first) for key in keys}

    def _array(self, key: str, held: list[Any], span: slice, first: int) -> NDArray[Any]:
        parts: list[NDArray[Any]] = []
        at = first
        for table in held:
            low, high = max(span.start - at, 0), min(span.stop - at, len(table))
            if low < high:
                part = table.slice(low, high - low)
                names = self._places.get(key, [key])
                rows = [self._numbers(part[name], name, at + low) for name in names]
                parts.append(join(key, rows) if names != [key] else rows[0])
            at += len(table)
        return np.concatenate(parts) if len(parts) > 1 else parts[0]

    def _numbers(self, column: Any, name: str, first: int) -> NDArray[Any]:
        arrow = optional("pyarrow", "pyarrow", "arrow")
        if isinstance(column, arrow.ChunkedArray):
            column = column.combine_chunks()
        if column.null_count:
            row = first + column.is_null().index(True).as_py()
            raise PredictionsError(f"{self.source}: row {row}, column '{name}': the cell is blank")
        types = arrow.types
        if types.is_fixed_size_list(column.type) or types.is_list(column.type):
            flat = column.flatten()
            if flat.null_count:
                raise PredictionsError(f"{self.source}: column '{name}' holds blank numbers")
            width, left = divmod(len(flat), len(column))
            if types.is_list(column.type) and not left:
                sizes = np.diff(column.offsets.to_numpy())
                left = int((sizes != width).any())
            if left:
                raise PredictionsError(f"{self.source}: lists of '{name}' differ in length")
            return cast(NDArray[Any], flat.to_numpy(zero_copy_only=False)).reshape(-1, width)
        values = cast(NDArray[Any], column.to_numpy(zero_copy_only=False))
        return values.astype(str) if values.dtype.hasobject else values

    def _tables(self, columns: list[str], start: int) -> Iterator[Any]:
        """Yield the row at which the first table begins, at or before `start`; then tables."""
        raise NotImplementedError


class ParquetRows(ColumnRows):
    """A parquet file, a few thousand rows at a time."""

    def open(self) -> None:
        """Read the footer."""
        parquet = optional("pyarrow.parquet", "pyarrow", "arrow")
        file = self.held.enter_context(open_binary(self.source))
        # A buffer bounds what is read of each column at once.
        self._file = self.held.enter_context(parquet.ParquetFile(file, buffer_size=1 << 20))
        self.schema, self.rows = self._file.schema_arrow, self._file.metadata.num_rows

    def _tables(self, columns: list[str], start: int) -> Iterator[Any]:
        sizes = [
            self._file.metadata.row_group(i).num_rows for i in range(self._file.num_row_groups)
        ]
        ends = np.cumsum(sizes)
        group = int(np.searchsorted(ends, start, side="right"))
        yield int(ends[group - 1]) if group else 0
        width = max(1, len(self.schema))
        yield from self._file.iter_batches(
            max(256, min(ROWS_DECODED, (1 << 22) // width)),
            row_groups=list(range(group, len(sizes))),
            columns=columns,
            use_threads=False,
        )


class ArrowRows(ColumnRows):
    """An Arrow file or stream, such as Hugging Face's data sets are kept in."""

    def open(self) -> None:
        """Read the schema, and count the rows."""
        self._ipc = optional("pyarrow.ipc", "pyarrow", "arrow")
        self._raw = self.held.enter_context(open_binary(self.source))
        self._is_file = self._raw.read(6) == b"ARROW1"
        with self._reader() as reader:
            self.schema = reader.schema
        # A stream has no table of contents: its batches are gone through, and forgotten at once.
        self.rows = sum(len(batch) for batch in self._batches())

    def _reader(self) -> Any:
        self._raw.seek(0)
        return (self._ipc.open_file if self._is_file else self._ipc.open_stream)(self._raw)

    def _batches(self) -> Iterator[Any]:
        with self._reader() as reader:
            if self._is_file:
                for i in range(reader.num_record_batches):
                    yield reader.get_batch(i)
            else:
                yield from reader

    def _tables(self, columns: list[str], start: int) -> Iterator[Any]:
        first = 0
        begun = False
        for batch in self._batches():
            if not begun and first + len(batch) <= start:
                first += len(batch)
                continue
            if not begun:
                begun = True
                yield first
            yield batch.select(columns)


class CsvRows(RowFile):
    """A CSV file, parsed some rows at a time; see `read_csv` for separators and decimal commas."""

    def open(self) -> None:
        """Read the header, and count the lines."""
        self._separator = separator_of(self._text(), self.source)
        self._header = header_of(self._text(), self.source, self._separator)
        self.rows = sum(1 for _ in self._lines())
        self._places: dict[str, list[int]] = {}

    def _text(self) -> io.TextIOWrapper:
        """Open it once more, to be read from the start."""
        raw = self.held.enter_context(open_binary(self.source))
        return self.held.enter_context(io.TextIOWrapper(raw, encoding="utf-8-sig"))

    def _lines(self) -> Iterator[str]:
        """Yield the lines of rows."""
        lines = (line for line in self._text() if line.strip())
        return islice(lines, 1, None)

    def names(self) -> Sequence[str]:
        """Return the header."""
        return self._header

    def choose(self, wanted: Wanted) -> Keys:
        """Return what to read."""
        if not self.rows:
            raise PredictionsError(f"{self.source}: has a header, but no rows")
        keys, self._places = select_columns(self._header, wanted, self.source)
        self._keys = keys
        return keys

    def shape(self, key: str) -> tuple[int, ...]:
        """Return the shape that the header says, and the lines."""
        width = len(self._places.get(key, [key]))
        return (self.rows, width) if key in STEMS or width > 1 else (self.rows,)

    def read(self, keys: Sequence[str], spans: Iterable[slice]) -> Iterator[Batch]:
        """Yield the columns span by span."""
        lines, at = self._lines(), 0
        places = {key: self._places.get(key) or [self._header.index(key)] for key in keys}
        worded = self._keys.positive is not None or self._keys.class_names is not None
        words = self._keys.labels if worded else None
        numbers = {i for key in keys if key in self._places and key != words for i in places[key]}
        used = {i for of in places.values() for i in of}
        kinds = [
            "f8" if i in numbers else f"U{TEXT if i in used else 1}"
            for i in range(len(self._header))
        ]
        fields = [(f"f{i}", kind) for i, kind in enumerate(kinds)]
        step = max(1, CELLS_PARSED // len(self._header))
        for span in spans:
            next(islice(lines, span.start - at, span.start - at), None)
            at, parts = span.start, list[Any]()
            while at < span.stop:
                some = list(islice(lines, min(step, span.stop - at)))
                parts.append(self._table(some, fields))
                at += len(some)
            table = np.concatenate(parts)
            yield {key: join(key, [table[f"f{i}"] for i in places[key]]) for key in keys}

    def _table(self, lines: list[str], fields: list[tuple[str, str]]) -> Any:
        try:
            decimal = self._separator != "," and any("," in line for line in lines)
            numbers = [i for i, (_, kind) in enumerate(fields) if kind == "f8"]
            converters: Any = dict.fromkeys(numbers, with_point) if decimal else None
            table = np.loadtxt(
                lines,
                fields,
                comments=None,
                delimiter=self._separator,
                quotechar='"',
                ndmin=1,
                converters=converters,
            )
            if len(table) != len(lines):
                raise ValueError("a quoted cell has swallowed line ends")
        except ValueError as error:
            args = (self._header, self._keys, self._places, self._separator)
            fault = first_fault(self._text(), *args)
            raise PredictionsError(f"{self.source}: {fault or error}") from error
        return table
