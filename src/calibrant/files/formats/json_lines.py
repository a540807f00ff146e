"""JSON lines, and JSON of rows or of columns."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from itertools import islice
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from calibrant.core.errors import PredictionsError
from calibrant.files.formats.base import (
    CLASS_NAMES,
    LABEL_NAMES,
    OF_THE_NETWORK,
    CellRule,
    Columns,
    RowReader,
    objects,
    words_for,
)
from calibrant.files.formats.cells import NUMBER, SHOWN_CHARACTERS, flat_row
from calibrant.files.formats.text import TextReader, TextWriter
from calibrant.files.gate import MOST_DOCUMENT_BYTES, json_entries, load_json, readable


class JsonLinesReader(TextReader):
    """An object a line, all with the same keys.

    ``{"label": 1, "logits": [2.0, 0.5]}``, ``{"label": "cat", "probs": {"cat": 0.8, "dog": 0.2}}``
    and flat ones with ``logit_0``, ``logit_1``, ... are the same here.
    """

    noun = "the JSON lines"
    _entries: list[str] | None = None
    _holders: dict[str, str] | None = None
    _batched = False
    unit = "line"
    _keys: set[str]

    def open(self) -> None:
        """Read the first row."""
        with readable(self.noun, self.where):
            first = next(self.lines(), None)
        if first is None:
            raise PredictionsError(f"{self.where}: is empty; expected a JSON object in each line")
        self._first = self.flat(*first)
        if self.options.kind is None and _is_batch(self._first.values()):
            self._batched = True
            self._first = self.flat(*next(self.lines()))
        self._keys = {*self._first}

    def lines(self) -> Iterator[tuple[int, Any]]:
        """Yield the lines that aren't blank, numbered; of one JSON array its entries."""
        if self._entries is None:
            start = re.match(r"\s*\[\s*\{", self.text().read(SHOWN_CHARACTERS))
            self._entries = self._array() if start else []
        lines = enumerate(self._entries or self.text(), start=1)
        return self._rows_in((i, line) for i, line in lines if line.strip())

    def _rows_in(self, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
        """Yield rows, those of a batch one by one."""
        for number, line in lines:
            for row in self._rows_of(line) if self._batched else [line]:
                yield number, row

    def _array(self) -> list[str]:
        """Return the entries of a file that is one JSON array, as lines."""
        return json_entries(self.text().read(MOST_DOCUMENT_BYTES + 1), self.where)

    def _rows_of(self, text: str) -> list[str]:
        """Return the rows of an object of columns as lines."""
        document: Any = load_json(text, self.where)
        document = _by_columns(document)
        lists: dict[str, list[Any]] = {}
        indices = set[tuple[str, ...]]()
        for name, column in cast(dict[str, Any], document).items():
            own = cast(dict[str, Any], column) if isinstance(column, dict) else {}
            if own and all(isinstance(one, list) for one in own.values()):
                lists |= flat_row({name: own})
            elif own:
                indices.add(tuple(own))
                lists[name] = list(own.values())
            elif isinstance(column, list):
                lists[name] = column
        rows = max(map(len, lists.values()), default=0)
        if not rows or len({index for index in indices if len(index) == rows}) > 1:
            raise PredictionsError(
                f"{self.where}: must hold an array of objects, or an object of columns, each a list"
            )
        columns = {name: column for name, column in lists.items() if len(column) == rows}
        each = zip(*columns.values(), strict=True)
        return [json.dumps(dict(zip(columns, row, strict=True))) for row in each]

    def names(self) -> Sequence[str]:
        """Return the keys, those of objects within a row behind their own."""
        return list(self._first)

    def holder(self, name: str) -> str:
        """Return the key of the object that holds a field."""
        if self._holders is None:
            first = self.object(*next(self.lines()))
            self._holders = {field: key for key in first for field in flat_row({key: first[key]})}
        return self._holders[name]

    def kept(self, names: Sequence[str], spans: Iterable[slice]) -> Iterator[Columns]:
        """Yield the values, whatever they are."""
        lines, at = self.lines(), 0
        for span in spans:
            some = islice(lines, span.start - at, span.stop - at)
            rows = [self.object(number, line) for number, line in some]
            at = span.stop
            yield {name: objects([row[name] for row in rows]) for name in names}

    def lists(self) -> Collection[str]:
        """Return the keys that hold lists."""
        return [name for name, cell in self._first.items() if isinstance(cell, list)]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape that the first row and the number of lines say."""
        cell = self._first[name]
        with readable(self.noun, self.where):
            own = (self.rows,)
        return (*own, len(cast(list[Any], cell))) if isinstance(cell, list) else own

    def type_of(self, name: str) -> str:
        """Return the type of the first row's value."""
        cell = self._first[name]
        if isinstance(cell, str):
            bare = cell.removesuffix("%") if self.options.are == "percent" else cell
            return "" if NUMBER.fullmatch(bare) and not bare.isdigit() else "text"
        if isinstance(cell, bytes):
            return "text"
        with readable(f"'{name}'", self.where):
            return str(np.asarray(cell).dtype)

    def in_quotes(self, name: str) -> bool:
        """Return whether the first row's value is a whole number in quotes."""
        cell = self._first[name]
        return isinstance(cell, str) and cell.isdigit()

    def parsed(
        self, lines: list[tuple[int, Any]], names: Sequence[str], words: Collection[str]
    ) -> Columns:
        """Return the fields of some lines."""
        rows = [self._row(number, line, names) for number, line in lines]
        numbers = [number for number, _ in lines]
        found = {
            name: self._column(name, [row[name] for row in rows], numbers, name in words)
            for name in names
        }
        # Most lines hold neither, so that not every value is looked at.
        some = any("true" in held or "false" in held for _, held in lines)
        for name in names:
            if some or True in _truths(self._first[name]):
                self._check_truth(name, [row[name] for row in rows], numbers)
        return found

    def _check_truth(self, name: str, cells: list[Any], numbers: list[int]) -> None:
        """Raise `PredictionsError` where true and false stand among numbers, as 1 and 0 would."""
        first = _truths(self._first[name])
        for number, cell in zip(numbers, cells, strict=True):
            if len(first | _truths(cell)) > 1:
                raise PredictionsError(
                    f"{self.where}: {self.unit} {number}: '{name}' holds true or false where "
                    f"other {self.unit}s hold numbers, or the other way round; write one of them"
                )

    def _row(self, line: int, content: Any, names: Collection[str]) -> dict[str, Any]:
        row = self.flat(line, content)
        # A note that some rows lack holds no score.
        differ = row.keys() ^ self._keys
        differ = [k for k in differ if k in names or not _is_note({**self._first, **row}[k])]
        if differ:
            for empty in [key for key in row if row[key] is None and key not in self._keys]:
                raise PredictionsError(f"{self.where}: {self.unit} {line}: '{empty}' is null")
            odd = sorted(differ)[0]
            raise PredictionsError(
                f"{self.where}: {self.unit} {line} and the first one have different keys; see "
                f"'{odd}'"
            )
        return row

    def flat(self, line: int, content: Any) -> dict[str, Any]:
        """Return the row that a line holds."""
        return flat_row(self.object(line, content))

    def object(self, line: int, content: Any) -> dict[str, Any]:
        """Return the object that a line holds."""
        with suppress(ValueError, RecursionError):
            row: Any = json.loads(content)
            if isinstance(row, dict):
                return cast(dict[str, Any], row)
        shown = content.strip()[:SHOWN_CHARACTERS]
        raise PredictionsError(f"{self.where}: {self.unit} {line} is no JSON object: {shown!r}")

    def _column(
        self, name: str, cells: list[Any], numbers: list[int], worded: bool
    ) -> NDArray[Any]:
        wide = isinstance(self._first[name], list)
        for number, cell in zip(numbers, cells, strict=True):
            if cell is None:
                raise PredictionsError(f"{self.where}: {self.unit} {number}: '{name}' is null")
            own = len(cast(list[Any], cell)) if isinstance(cell, list) else None
            if own != (len(self._first[name]) if wide else None):
                raise PredictionsError(
                    f"{self.where}: {self.unit} {number}: lists of '{name}' differ in length"
                )
        found = np.array(cells)
        if any(isinstance(cell, str) for cell in cells):
            signs = "%" if self.options.are == "percent" and not worded else ""
            found = self.texts(name, [str(cell).strip().removesuffix(signs) for cell in cells])
        # Numbers may stand in quotes.
        if found.dtype.kind == "U" and not worded:
            with suppress(ValueError):
                return found.astype(np.float64)
        return found


class NestedReader(JsonLinesReader):
    """A table of which some cells hold lists, numbers by class, or numbers as programs print them.

    Where these are asked for, its rows are read as JSON lines are; anything else the table reads.

    Args:
        table: the open table.
    """

    def __init__(self, table: RowReader) -> None:
        self._table, self.noun = table, table.noun
        self._asked: list[str] | None = None
        self.unit = "line" if isinstance(table, TextReader) else "row"
        super().__init__(table.where, table.options)

    def open(self) -> None:
        """Read the first row."""
        self.held.enter_context(self._table.held)
        super().open()
        cells = self.object(*next(self.lines()))
        self._plain = {name for name, cell in cells.items() if self._first.get(name) is cell}

    @property
    def rows(self) -> int:
        """Number of rows."""
        return cast(Any, self._table).rows

    def lines(self) -> Iterator[tuple[int, Any]]:
        """Yield the rows, numbered."""
        return self._table.objects(self._asked)

    def object(self, line: int, content: Any) -> dict[str, Any]:
        """Return a row, which is an object already."""
        return content

    def lists(self) -> Collection[str]:
        """Return the columns that hold lists."""
        plain = self._plain.intersection(self._table.lists())
        return [*plain, *(name for name in super().lists() if name not in self._plain)]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape, as the table or the first row says it."""
        return self._table.shape(name) if name in self._plain else super().shape(name)

    def type_of(self, name: str) -> str:
        """Return the type, as the table or the first row says it."""
        return self._table.type_of(name) if name in self._plain else super().type_of(name)

    def in_quotes(self, name: str) -> bool:
        """Return whether the first value is a whole number in quotes."""
        return name not in self._plain and super().in_quotes(name)

    def _of(self, names: Collection[str]) -> NestedReader | None:
        """Return a reader of no more columns than some fields take; None where the table does."""
        if self._plain.issuperset(names):
            return None
        some = copy(self)
        some._asked = [*dict.fromkeys(map(self.holder, names))]
        some._keys = {name for name in self._first if self.holder(name) in some._asked}
        return some

    def read(
        self, names: Sequence[str], spans: Iterable[slice], words: Collection[str] = ()
    ) -> Iterator[Columns]:
        """Yield the fields span by span."""
        some = self._of(names)
        if some is None:
            return self._table.read(names, spans, words)
        return super(NestedReader, some).read(names, spans, words)

    def everything(self, names: Sequence[str], words: Collection[str] = ()) -> Columns:
        """Return the fields of all rows."""
        some = self._of(names)
        if some is None:
            return self._table.everything(names, words)
        return super(NestedReader, some).everything(names, words)

    def bad_cell(self, rules: Sequence[CellRule]) -> str | None:
        """Return what is wrong with the first bad cell, where the table is read as it is."""
        plain = self._plain.issuperset(rule.column for rule in rules)
        return self._table.bad_cell(rules) if plain else None

    def kept(self, names: Sequence[str], spans: Iterable[slice]) -> Iterator[Any]:
        """Yield the cells as the table has them."""
        return self._table.kept(names, spans)

    def class_names(self, label: str | None) -> tuple[str, ...] | None:
        """Return the names of classes that the table notes."""
        return self._table.class_names(label)


class JsonReader(JsonLinesReader):
    """One object of columns: each a list of all rows, or as pandas has it, an object by row.

    What isn't of rows, such as the name of a model, is left out.
    """

    noun = "the JSON"

    def lines(self) -> Iterator[tuple[int, str]]:
        """Yield the rows, numbered."""
        if self._entries is None:
            text = self.text().read(MOST_DOCUMENT_BYTES + 1)
            array = text.lstrip()[:1] == "["
            self._entries = json_entries(text, self.where) if array else self._rows_of(text)
        return self._rows_in(enumerate(self._entries, start=1))


def _by_columns(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document of columns of one that holds rows, as pandas writes them, or as it is."""
    names, rows = document.get("columns"), document.get("data")
    if isinstance(names, list) and isinstance(rows, list) and rows:
        called, each = cast(list[Any], names), cast(list[Any], rows)
        if all(isinstance(row, list) and len(cast(Any, row)) == len(called) for row in each):
            return {str(name): [row[place] for row in each] for place, name in enumerate(called)}
    inner = list(document.values())
    first: Any = inner[0] if inner else None
    alike = all(isinstance(row, dict) and row.keys() == first.keys() for row in inner)
    # More rows than columns, or there is no telling.
    if first and alike and len(inner) > len(first):
        return {name: [row[name] for row in inner] for name in first}
    return document


def _is_batch(cells: Iterable[Any]) -> bool:
    """Return whether cells hold the lists of several rows, and beside them an entry for each."""
    lists = [cast(list[Any], cell) for cell in cells if isinstance(cell, list) and cell]
    wide = [
        held
        for held in lists
        if isinstance(held[0], list)
        and not any(isinstance(one, list) for one in cast(list[Any], held[0])[:1])
    ]
    flat = {len(held) for held in lists if not isinstance(held[0], list)}
    return any(len(held) in flat for held in wide)


def _is_note(cell: Any) -> bool:
    """Return whether a cell holds text that is no number, or nothing."""
    return cell is None or (isinstance(cell, str) and not NUMBER.fullmatch(cell))


def _truths(cell: Any) -> set[bool]:
    """Return whether what a cell holds are truth values (True), numbers (False) or both."""
    several = cast(list[Any], cell) if isinstance(cell, list) else [cell]
    return {isinstance(one, bool) for one in several if not isinstance(one, str)}


class JsonLinesWriter(TextWriter):
    """An object a line, with a list of the scores, or where classes have names an object."""

    def add(self, arrays: Columns) -> None:
        """Append rows."""
        if self.as_named:
            columns = {name: values.tolist() for name, values in arrays.items()}
            for row in zip(*columns.values(), strict=True):
                line = json.dumps(dict(zip(columns, row, strict=True)), default=str)
                self.text.write(line + "\n")
            return
        called = arrays.get(CLASS_NAMES, arrays.get(LABEL_NAMES))
        names = words_for(None if called is None else called.tolist())
        of_rows = {key: array for key, array in arrays.items() if key not in OF_THE_NETWORK}
        columns = {"label" if k == "labels" else k: array.tolist() for k, array in of_rows.items()}
        # Of many labels the outcomes and the weights bear the names of the scores.
        several = arrays[self.scores].shape if LABEL_NAMES in arrays else None
        for key, array in of_rows.items() if names else ():
            name = "label" if key == "labels" else key
            if key == self.scores or array.shape == several:
                columns[name] = [dict(zip(names, row, strict=True)) for row in columns[name]]
            elif key == "labels":
                columns[name] = [names[label] for label in columns[name]]
        for row in zip(*columns.values(), strict=True):
            self.text.write(json.dumps(dict(zip(columns, row, strict=True))) + "\n")
