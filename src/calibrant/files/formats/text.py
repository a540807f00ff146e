"""Tables of text: CSV, fast when all is well and exact about the cell when it isn't; JSON lines."""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from calibrant.core.checks import check_scores, what_sums_say
from calibrant.core.errors import PredictionsError
from calibrant.files.formats.base import (
    CLASS_NAMES,
    LABEL_NAMES,
    OF_THE_NETWORK,
    CellRule,
    Columns,
    RowReader,
    RowWriter,
    as_text,
    objects,
    words_for,
)
from calibrant.files.formats.tables import split
from calibrant.files.gate import MOST_DOCUMENT_BYTES, json_entries, load_json, readable
from calibrant.files.opening import extension_of, open_binary

SEPARATORS = (",", ";", "\t")
# A number with decimals; cells in which the first is looked for.
DECIMAL = re.compile(r"\s*-?[0-9]*([.,])[0-9]+(?:[eE][-+]?[0-9]+)?\s*%?\s*")
CELLS_OF_MARKS = 10_000
EXCEL = re.compile(r"\ufeff?sep=(.)\s*", flags=re.I)
# Cells of CSV that are parsed at once, and rows that become Python numbers at once.
CELLS_PARSED, ROWS_AT_ONCE = 1 << 19, 4096
# As much of an offending cell as a message shows.
SHOWN_CHARACTERS = 40


class HeaderlessError(PredictionsError):
    """The first line of a table holds numbers.

    Args:
        where: the file.
        separator: what stands between the columns.
    """

    def __init__(self, where: str, separator: str) -> None:
        super().__init__(f"{where}: its first line holds numbers, not names of columns")
        self.where, self.separator = where, separator


class TextReader(RowReader):
    """Formats with a row a line; how many there are is counted when somebody asks."""

    tabular = True
    _rows: int | None = None

    def text(self) -> io.TextIOWrapper:
        """Open the file once more, to be read from the start."""
        raw = self.held.enter_context(open_binary(self.where))
        mark = raw.read(2)
        raw.seek(0)
        # As Excel writes "Unicode text".
        encoding = "utf-16" if mark in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"
        return self.held.enter_context(io.TextIOWrapper(raw, encoding=encoding))

    @abstractmethod
    def lines(self) -> Iterator[Any]:
        """Yield the lines of rows, in order."""

    @abstractmethod
    def parsed(self, lines: list[Any], names: Sequence[str], words: Collection[str]) -> Columns:
        """Return the fields of some lines.

        Raises:
            PredictionsError: a line that can't be read.
        """

    def lines_at_once(self) -> int:
        """Return how many lines are parsed together."""
        return ROWS_AT_ONCE

    @property
    def rows(self) -> int:
        """Number of rows."""
        if self._rows is None:
            self._rows = sum(1 for _ in self.lines())
        return self._rows

    def read(
        self, names: Sequence[str], spans: Iterable[slice], words: Collection[str] = ()
    ) -> Iterator[Columns]:
        """Yield the fields span by span."""
        lines, at = self.lines(), 0
        for span in spans:
            next(islice(lines, span.start - at, span.start - at), None)
            at = span.stop
            yield self._together(islice(lines, span.stop - span.start), names, words)

    def everything(self, names: Sequence[str], words: Collection[str] = ()) -> Columns:
        """Return the fields of all rows, gone through once."""
        return self._together(self.lines(), names, words)

    def _together(
        self, lines: Iterator[Any], names: Sequence[str], words: Collection[str]
    ) -> Columns:
        parts: list[Columns] = []
        while some := list(islice(lines, self.lines_at_once())):
            parts.append(self.parsed(some, names, words))
        if not parts:
            raise PredictionsError(f"{self.where}: has a header, but no rows")
        return self.together(parts)


class CsvReader(TextReader):
    """A table of text with a header line, in UTF-8.

    Columns are separated by commas, semicolons or tabs, whichever the header has. Where it isn't
    commas, numbers may have decimal commas.
    """

    noun = "the CSV file"

    # Lines above the header: one of Excel's, which says what separates the columns.
    _above = 0
    # What stands before decimals, where the first cells say so.
    _mark: str | None = "."

    def text(self) -> io.TextIOWrapper:
        """Open the file once more, to be read from the header on."""
        text = super().text()
        for _ in range(self._above):
            text.readline()
        return text

    def open(self) -> None:
        """Read the header and the first row."""
        with readable(self.noun, self.where):
            said = EXCEL.fullmatch(self.text().readline())
            self._above = int(said is not None)
            self._separator = said[1] if said else self._separator_of(self.text())
            records = self._records()
            _, header = next(records, (0, list[str]()))
            if not header:
                raise PredictionsError(f"{self.where}: is empty; expected a header and rows")
            self._header = [name.strip() for name in header]
            numbers = [self._number(name) for name in self._header]
            if None not in numbers and not all(name.isdigit() for name in self._header):
                raise HeaderlessError(self.where, self._separator)
            _, self._first = next(records, (0, list[str]()))
            if self._separator != ",":
                cells = (cell for _, row in self._records() for cell in row)
                marks = map(DECIMAL.fullmatch, islice(cells, CELLS_OF_MARKS))
                self._mark = next((mark[1] for mark in marks if mark), None)
            if len(self._first) == len(header) + 1 and self._first[-1].strip():
                # As R writes names of rows, and R and pandas read them.
                self._header.insert(0, "")

    def _separator_of(self, text: io.TextIOWrapper) -> str:
        line = next((line for line in text if line.strip()), "")
        bare = "".join(line.split('"')[::2])
        found = [mark for mark in SEPARATORS if mark in bare]
        if len(found) > 1:
            marks = " and ".join(repr(mark) for mark in found)
            raise PredictionsError(
                f"{self.where}: its header holds {marks}, each of which could separate the columns;"
                " leave one of them out of the names, or quote these"
            )
        return found[0] if found else SEPARATORS[0]

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the line number in the file and the cells of each row that isn't blank."""
        reader = csv.reader(self.text(), delimiter=self._separator)
        for cells in reader:
            if len(cells) > 1 or any(cell.strip() for cell in cells):
                yield reader.line_num + self._above, cells

    def names(self) -> Sequence[str]:
        """Return the header."""
        return self._header

    def shape(self, name: str) -> tuple[int, ...]:
        """Return how many rows there are."""
        with readable(self.noun, self.where):
            return (self.rows,)

    def type_of(self, name: str) -> str:
        """Return ``"text"`` where the first row holds text that is no number."""
        place = self._header.index(name)
        cell = self._first[place] if place < len(self._first) else ""
        return "text" if cell.strip() and self._number(cell) is None else ""

    def kept(self, names: Sequence[str], spans: Iterable[slice]) -> Iterator[Columns]:
        """Yield the cells, letter by letter."""
        places = [self._header.index(name) for name in names]
        records, at = self._records(), 0
        next(records)
        for span in spans:
            rows = [cells for _, cells in islice(records, span.start - at, span.stop - at)]
            at = span.stop
            columns = ([cells[place] for cells in rows] for place in places)
            yield {name: objects(c) for name, c in zip(names, columns, strict=True)}

    def lines(self) -> Iterator[str]:
        """Yield the lines below the header."""
        text = self.text()
        reader = csv.reader(text, delimiter=self._separator)
        next(cells for cells in reader if len(cells) > 1 or any(cell.strip() for cell in cells))
        return filter(str.strip, text)

    def lines_at_once(self) -> int:
        """Return how many lines hold as many cells as are parsed together."""
        return max(1, CELLS_PARSED // len(self._header))

    def parsed(self, lines: list[str], names: Sequence[str], words: Collection[str]) -> Columns:
        """Return the fields of some lines."""
        places = {name: self._header.index(name) for name in names}
        numbers = {place for name, place in places.items() if name not in words}
        # A column that isn't used may hold any text, of which one character is kept.
        fields = [(f"f{i}", "f8" if i in numbers else "U1") for i in range(len(self._header))]
        decimal = self._mark == "," or (self._mark is None and any("," in line for line in lines))
        # A call of Python for each cell takes its time, so only where it must be.
        converters: Any = dict.fromkeys(numbers, _with_point) if decimal else None
        signs = self.options.are == "percent"
        table: Any = np.loadtxt(
            [line.replace("%", "") for line in lines] if signs else lines,
            fields,
            comments=None,
            delimiter=self._separator,
            quotechar='"',
            ndmin=1,
            converters=converters,
        )
        if len(table) != len(lines):
            raise ValueError("a quoted cell has swallowed line ends")
        found: Columns = {name: table[f"f{places[name]}"] for name in names if name not in words}
        if len(found) < len(names):
            cells = list(csv.reader(lines, delimiter=self._separator))
            for name in names:
                if name in words:
                    found[name] = self.texts(name, [row[places[name]].strip() for row in cells])
        return found

    def bad_cell(self, rules: Sequence[CellRule]) -> str | None:
        """Go through the file row by row and say what is wrong with the first bad one, if any."""
        width = len(self._header)
        placed = sorted(
            ((self._header.index(rule.column), rule) for rule in rules), key=lambda item: item[0]
        )
        records, line = self._records(), None
        next(records)
        for line, cells in records:
            if len(cells) != width:
                found = "1 cell" if len(cells) == 1 else f"{len(cells)} cells"
                return f"line {line} has {found}, but the header has {width}"
            fault = self._fault(cells, placed)
            if fault is not None:
                return f"line {line}{fault}"
        return "has a header, but no rows" if line is None else None

    def _fault(self, cells: list[str], placed: list[tuple[int, CellRule]]) -> str | None:
        if any("\n" in cell for cell in cells):
            return " ends a quoted cell that goes over several lines; is a quote missing?"
        shares: list[float] = []
        for place, rule in placed:
            value = self._number(cells[place])
            if value is None or not rule.accepts(value):
                text = cells[place]
                shown = repr(text[:SHOWN_CHARACTERS]) if text.strip() else "a blank cell"
                return f", column '{rule.column}': expected {rule.expected}, found {shown}"
            shares += [] if rule.tolerance is None else [value]
        summed = [rule for _, rule in placed if rule.tolerance is not None]
        if summed and abs(sum(shares) - 1) > (summed[0].tolerance or 0):
            return (
                f": the columns {', '.join(rule.column for rule in summed[:2])}, ... must sum to 1,"
                f" but sum to {sum(shares):.6g}{what_sums_say(np.array(shares))}"
            )
        return None

    def _number(self, text: str) -> float | None:
        if self._mark == "," and "." in text:
            return None
        if self._mark != ".":
            text = text.replace(",", ".")
        if self.options.are == "percent":
            text = text.strip().removesuffix("%")
        # Python, unlike NumPy, also takes the digits of any script, and underscores among them.
        if not text.isascii() or "_" in text:
            return None
        try:
            return float(text)
        except ValueError:
            return None


def _with_point(cell: str) -> float:
    """Return a number with a decimal comma; one with a point is refused."""
    if "." in cell:
        raise ValueError("a decimal point among decimal commas")
    return float(cell.replace(",", "."))


def flat_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object with the keys of objects within it behind their own: ``prob_cat``."""
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, dict):
            stem = {"logits": "logit", "probs": "prob", "labels": "label"}.get(key, key)
            flat |= {f"{stem}_{name}": one for name, one in cast(dict[str, Any], value).items()}
        else:
            flat[key] = value
    return flat


class JsonLinesReader(TextReader):
    """An object a line, all with the same keys.

    ``{"label": 1, "logits": [2.0, 0.5]}``, ``{"label": "cat", "probs": {"cat": 0.8, "dog": 0.2}}``
    and flat ones with ``logit_0``, ``logit_1``, ... are the same here.
    """

    noun = "the JSON lines"
    _entries: list[str] | None = None
    _holders: dict[str, str] | None = None

    def open(self) -> None:
        """Read the first row."""
        with readable(self.noun, self.where):
            first = next(self.lines(), None)
        if first is None:
            raise PredictionsError(f"{self.where}: is empty; expected a JSON object in each line")
        self._first = self.flat(*first)
        self._keys = self._first.keys()

    def lines(self) -> Iterator[tuple[int, str]]:
        """Yield the lines that aren't blank, numbered; of one JSON array its entries."""
        if self._entries is None:
            start = re.match(r"\s*\[\s*\{", self.text().read(SHOWN_CHARACTERS))
            self._entries = self._array() if start else []
        if self._entries:
            return iter(enumerate(self._entries, start=1))
        return ((i, line) for i, line in enumerate(self.text(), start=1) if line.strip())

    def _array(self) -> list[str]:
        """Return the entries of a file that is one JSON array, as lines."""
        return json_entries(self.text().read(MOST_DOCUMENT_BYTES + 1), self.where)

    def names(self) -> Sequence[str]:
        """Return the keys, those of objects within a row behind their own."""
        return list(self._first)

    def holder(self, name: str) -> str:
        """Return the key of the object that holds a field."""
        if self._holders is None:
            first = cast(dict[str, Any], json.loads(next(self.lines())[1]))
            self._holders = {field: key for key in first for field in flat_row({key: first[key]})}
        return self._holders[name]

    def kept(self, names: Sequence[str], spans: Iterable[slice]) -> Iterator[Columns]:
        """Yield the values, whatever they are."""
        lines, at = self.lines(), 0
        for span in spans:
            some = islice(lines, span.start - at, span.stop - at)
            rows = [cast(dict[str, Any], json.loads(line)) for _, line in some]
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
        with readable(f"'{name}'", self.where):
            return "text" if isinstance(cell, str) else str(np.asarray(cell).dtype)

    def parsed(
        self, lines: list[tuple[int, str]], names: Sequence[str], words: Collection[str]
    ) -> Columns:
        """Return the fields of some lines."""
        rows = [self._row(number, line) for number, line in lines]
        numbers = [number for number, _ in lines]
        found = {name: self._column(name, [row[name] for row in rows], numbers) for name in names}
        # Most lines hold neither, so that not every value is looked at.
        some = any("true" in text or "false" in text for _, text in lines)
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
                    f"{self.where}: line {number}: '{name}' holds true or false where other lines "
                    "hold numbers, or the other way round; write one of them"
                )

    def _row(self, line: int, content: str) -> dict[str, Any]:
        row = self.flat(line, content)
        if row.keys() != self._keys:
            odd = sorted(row.keys() ^ self._keys)[0]
            raise PredictionsError(
                f"{self.where}: line {line} has other keys than the first; see '{odd}'"
            )
        return row

    def flat(self, line: int, content: str) -> dict[str, Any]:
        """Return the row that a line holds."""
        try:
            row: Any = json.loads(content)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            shown = content.strip()[:SHOWN_CHARACTERS]
            raise PredictionsError(f"{self.where}: line {line} is no JSON object: {shown!r}")
        return flat_row(cast(dict[str, Any], row))

    def _column(self, name: str, cells: list[Any], numbers: list[int]) -> NDArray[Any]:
        wide = isinstance(self._first[name], list)
        for number, cell in zip(numbers, cells, strict=True):
            if cell is None:
                raise PredictionsError(f"{self.where}: line {number}: '{name}' is null")
            own = len(cast(list[Any], cell)) if isinstance(cell, list) else None
            if own != (len(self._first[name]) if wide else None):
                raise PredictionsError(
                    f"{self.where}: line {number}: lists of '{name}' differ in length"
                )
        words = any(isinstance(cell, str) for cell in cells)
        return self.texts(name, [str(cell) for cell in cells]) if words else np.array(cells)


class JsonReader(JsonLinesReader):
    """One object of columns: each a list of all rows, or as pandas has it, an object by row.

    What isn't of rows, such as the name of a model, is left out.
    """

    noun = "the JSON"

    def lines(self) -> Iterator[tuple[int, str]]:
        """Yield the rows, numbered."""
        if self._entries is None:
            self._entries = self._rows_of(self.text().read(MOST_DOCUMENT_BYTES + 1))
        return iter(enumerate(self._entries, start=1))

    def _rows_of(self, text: str) -> list[str]:
        """Return the rows as lines."""
        if text.lstrip()[:1] == "[":
            return json_entries(text, self.where)
        document: Any = load_json(text, self.where)
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


def _truths(cell: Any) -> set[bool]:
    """Return whether what a cell holds are truth values (True), numbers (False) or both."""
    several = cast(list[Any], cell) if isinstance(cell, list) else [cell]
    return {isinstance(one, bool) for one in several if not isinstance(one, str)}


class _TextWriter(RowWriter):
    """Formats of text."""

    text: io.TextIOWrapper

    def begin(self, arrays: Columns) -> None:
        """Open the file."""
        self.text = io.TextIOWrapper(self.opened(), encoding="utf-8", newline="")

    def finish(self) -> None:
        """Leave the file to be closed by whoever opened it."""
        self.text.flush()
        self.text.detach()


class CsvWriter(_TextWriter):
    """A table of text, with commas or, by its extension, tabs between the columns.

    Every number gets the fewest digits that give back the same float64.
    """

    def begin(self, arrays: Columns) -> None:
        """Write the header."""
        super().begin(arrays)
        mark = "\t" if extension_of(self.where) == ".tsv" else ","
        self.rows_of = csv.writer(self.text, delimiter=mark, lineterminator="\n")
        self.names = {key: arrays[key] for key in OF_THE_NETWORK if key in arrays}
        self.rows_of.writerow(arrays if self.as_named else split(arrays, self.where))

    def add(self, arrays: Columns) -> None:
        """Append rows.

        Raises:
            PredictionsError: probabilities whose float64, which is read back, don't sum to 1.
        """
        probs, labels = arrays.get("probs"), arrays.get("labels", np.empty(0))
        if probs is not None and probs.dtype == np.float16 and probs.shape != labels.shape:
            source = f"{self.where}: as float64, which CSV holds"
            check_scores(probs.astype(np.float64), "probs", source)
        held = arrays if self.as_named else split(self.names | arrays, self.where)
        columns = list(held.values())
        for start in range(0, len(columns[0]), ROWS_AT_ONCE):
            cells = [column[start : start + ROWS_AT_ONCE].tolist() for column in columns]
            if self.as_named:
                cells = [[_cell(value) for value in column] for column in cells]
            self.rows_of.writerows(zip(*cells, strict=True))


def _cell(value: Any) -> Any:
    """Return a value as a cell: what is no text and no number as JSON."""
    return as_text(value) if isinstance(value, list | dict) else value


class JsonLinesWriter(_TextWriter):
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
