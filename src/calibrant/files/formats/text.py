"""Tables of text: CSV, fast when all is well and exact about the cell when it isn't."""

from __future__ import annotations

import codecs
import csv
import io
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import Any, BinaryIO

import numpy as np

from calibrant.core.checks import check_scores, what_sums_say
from calibrant.core.errors import PredictionsError
from calibrant.files.formats.base import (
    OF_THE_NETWORK,
    CellRule,
    Columns,
    RowReader,
    RowWriter,
    as_text,
    objects,
)
from calibrant.files.formats.cells import NUMBER, SHOWN_CHARACTERS, parsed
from calibrant.files.formats.tables import split
from calibrant.files.gate import PARTLY, TEXT_SHARE, readable, unpacked
from calibrant.files.opening import extension_of, open_binary

SEPARATORS = (",", ";", "\t")
# What separates columns where none of these does.
RARE_SEPARATORS = ("|", " ")
# A number with decimals; cells in which the first is looked for.
DECIMAL = re.compile(r"\s*-?[0-9]*([.,])[0-9]+(?:[eE][-+]?[0-9]+)?\s*%?\s*")
CELLS_OF_MARKS = 10_000
EXCEL = re.compile(r"\ufeff?sep=(.)\s*", flags=re.I)
# Cells of CSV that are parsed at once, and rows that become Python numbers at once.
CELLS_PARSED, ROWS_AT_ONCE = 1 << 19, 4096


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
    _unpacked: bytes | None = None
    share = TEXT_SHARE

    def text(self) -> io.TextIOWrapper:
        """Open the file once more, unpacked, to be read from the start."""
        if self._unpacked is not None:
            raw: BinaryIO = io.BytesIO(self._unpacked)
        else:
            raw = unpacked(open_binary(self.where), self.where)
        self.held.enter_context(raw)
        if isinstance(raw, io.BytesIO):
            self._unpacked = raw.getvalue()
        mark = raw.read(2)
        raw.seek(0)
        # As Excel writes "Unicode text", and as others do that don't mark it.
        encoding = "utf-16" if mark in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"
        if mark.isascii() and mark.count(0) == 1:
            encoding = "utf-16-le" if mark[1] == 0 else "utf-16-be"
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
        return self._together(self.lines(), names, words, whole=True)

    def _together(
        self,
        lines: Iterator[Any],
        names: Sequence[str],
        words: Collection[str],
        *,
        whole: bool = False,
    ) -> Columns:
        parts: list[Columns] = []
        # The text is held beside what is read of it.
        size = len(self._unpacked or b"")
        while some := list(islice(lines, self.lines_at_once())):
            parts.append(self.parsed(some, names, words))
            size += sum(cells.nbytes for cells in parts[-1].values())
            if whole and self._unpacked is not None:
                self.check_bounded(size, "what is read of it", PARTLY)
        if not parts:
            raise PredictionsError(f"{self.where}: has a header, but no rows")
        return self.together(parts)


class CsvReader(TextReader):
    """A table of text with a header line, in UTF-8.

    Columns are separated by commas, semicolons or tabs, whichever the header has. Where it isn't
    commas, numbers may have decimal commas.
    """

    noun = "the CSV file"

    # Lines above the header: Excel's, which says what separates the columns, or comments.
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
            self._above = _comments(self.text()) if said is None else 1
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
            if self._header[0] == "#" and len(self._header) == len(self._first) + 1:
                self._header.pop(0)
            self._header[0] = re.sub(r"^#\s*(?=.)", "", self._header[0])  # as NumPy writes it
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
        rare = [mark for mark in RARE_SEPARATORS if mark in bare.strip()]
        return (found or rare or SEPARATORS)[0]

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the line number in the file and the cells of each row that isn't blank."""
        reader = csv.reader(self.text(), delimiter=self._separator)
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield reader.line_num + self._above, cells

    def names(self) -> Sequence[str]:
        """Return the header."""
        return self._header

    @cached_property
    def _places(self) -> dict[str, int]:
        # The first of two columns of one name.
        return {name: i for i, name in reversed(list(enumerate(self._header)))}

    def shape(self, name: str) -> tuple[int, ...]:
        """Return how many rows there are."""
        with readable(self.noun, self.where):
            return (self.rows,)

    def type_of(self, name: str) -> str:
        """Return ``"text"`` where the first row holds text that is no number."""
        place = self._places[name]
        cell = self._first[place] if place < len(self._first) else ""
        return "text" if cell.strip() and self._number(cell) is None else ""

    def nested(self) -> bool:
        """Return whether cells of the first row hold more than a number or text."""
        return any(parsed(cell) is not cell for cell in self._first)

    def objects(self, names: Collection[str] | None) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the number of the line, and the cells by column, of each row."""
        header = [name for name in self._header if name]
        if twice := next((name for name, times in Counter(header).items() if times > 1), None):
            raise PredictionsError(f"{self.where}: the column '{twice}' occurs twice")
        records = self._records()
        next(records)
        for line, cells in records:
            if len(cells) != len(self._header):
                raise PredictionsError(f"{self.where}: {self._other_width(line, cells)}")
            row = dict(zip(self._header, cells, strict=True))
            yield line, row if names is None else {name: row[name] for name in names}

    def kept(self, names: Sequence[str], spans: Iterable[slice]) -> Iterator[Columns]:
        """Yield the cells, letter by letter."""
        places = [self._places[name] for name in names]
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
        next(cells for cells in reader if any(cell.strip() for cell in cells))
        blank = f"{self._separator} \r\n"
        return (line for line in text if line.strip(blank))

    def lines_at_once(self) -> int:
        """Return how many lines hold as many cells as are parsed together."""
        return max(1, CELLS_PARSED // len(self._header))

    def parsed(self, lines: list[str], names: Sequence[str], words: Collection[str]) -> Columns:
        """Return the fields of some lines."""
        places = {name: self._places[name] for name in names}
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
        found: Columns = {name: table[f"f{i}"] for name, i in places.items() if i in numbers}
        if len(found) < len(names):
            rows = list(csv.reader(lines, delimiter=self._separator))
            for name in names:
                if name in words:
                    cells = [row[places[name]].strip() for row in rows]
                    found[name] = self.texts(name, cells)
        return found

    def bad_cell(self, rules: Sequence[CellRule]) -> str | None:
        """Go through the file row by row and say what is wrong with the first bad one, if any."""
        placed = sorted(
            ((self._places[rule.column], rule) for rule in rules),
            key=lambda item: item[0],
        )
        records, line = self._records(), None
        next(records)
        for line, cells in records:
            if len(cells) != len(self._header):
                return self._other_width(line, cells)
            fault = self._fault(cells, placed)
            if fault is not None:
                return f"line {line}{fault}"
        return "has a header, but no rows" if line is None else None

    def _other_width(self, line: int, cells: list[str]) -> str:
        found = "1 cell" if len(cells) == 1 else f"{len(cells)} cells"
        return f"line {line} has {found}, but the header has {len(self._header)}"

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
                f" but sum to {sum(shares):.6g}; {what_sums_say(np.array(shares))}"
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


def _comments(lines: Iterable[str]) -> int:
    """Return how many lines above the header begin with ``#``; one above numbers is the header."""
    for above, line in enumerate(lines):
        if not line.startswith("#"):
            held = any(NUMBER.fullmatch(cell) for cell in re.split(r"[,;\t|]", line))
            held = held or all(map(NUMBER.fullmatch, line.split()))
            return max(above - int(held), 0)
    return 0


def _with_point(cell: str) -> float:
    """Return a number with a decimal comma; one with a point is refused."""
    if "." in cell:
        raise ValueError("a decimal point among decimal commas")
    return float(cell.replace(",", "."))


class TextWriter(RowWriter):
    """Formats of text."""

    text: io.TextIOWrapper

    def begin(self, arrays: Columns) -> None:
        """Open the file."""
        self.text = io.TextIOWrapper(self.opened(), encoding="utf-8", newline="")

    def finish(self) -> None:
        """Leave the file to be closed by whoever opened it."""
        self.text.flush()
        self.text.detach()


class CsvWriter(TextWriter):
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
