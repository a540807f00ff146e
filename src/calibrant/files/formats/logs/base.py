"""What a log of an evaluation tool is: found by its content, read as columns of rows.

A format names its tool, says whether a file is its own, and fills a `LogTable` with the rows that
have a confidence; it counts all others with the reason. What its columns hold, and whether that is
usable, is decided where all files are (`calibrant.files.schema`, `calibrant.files.assembly`).
"""

from __future__ import annotations

import csv
import io
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import Any, BinaryIO, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from calibrant.core.errors import PredictionsError
from calibrant.files.formats.base import Columns
from calibrant.files.gate import MOST_DOCUMENT_BYTES, load_json, optional, readable, unpacked
from calibrant.files.opening import extension_of, is_folder, name_of, open_binary
from calibrant.files.options import ReadOptions
from calibrant.predictions.origin import LeftOut, Origin

Row = dict[str, Any]
# A first line that is longer isn't looked at.
LONGEST_LINE = 1 << 26
# A mean in a log may be rounded by so much.
TOLERANCE = 1e-6
# What archives and parquet files begin with.
ARCHIVE, PARQUET = b"PK\x03\x04", b"PAR1"


def as_object(value: Any) -> Row:
    """Return a JSON object as it is, and an empty one for anything else."""
    return value if value.__class__ is dict else {}


def as_list(value: Any) -> list[Any]:
    """Return a JSON list as it is, and an empty one for anything else."""
    return value if value.__class__ is list else []


def number_of(value: Any) -> float | None:
    """Return a finite number, as it is or as text, and 1 or 0 for true and false; else None."""
    if isinstance(value, str):
        value = {"true": 1, "false": 0}.get(value.strip().lower(), value)
    try:
        number = float(value)
    except (ValueError, TypeError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def zero_or_one(value: Any) -> float | None:
    """Return a number or truth value, or its text, that is 0 or 1; None for anything else."""
    number = number_of(value)
    return number if number in (0, 1) else None


class LogFile:
    """A file or folder that may be a log; its beginning is read when somebody looks at it.

    Attributes:
        where: its path or URL.
        folder: whether it is a folder.
    """

    def __init__(self, where: str) -> None:
        self.where, self.folder = where, is_folder(where)
        self.extension, self.name = extension_of(where), name_of(where).removesuffix(".gz")

    def open(self) -> BinaryIO:
        """Open the file; what is packed is unpacked, up to a bound."""
        return unpacked(open_binary(self.where), self.where)

    @cached_property
    def first_line(self) -> bytes:
        """The first line that isn't blank; empty for folders."""
        if self.folder:
            return b""
        with self.open() as file:
            for line in islice(iter(lambda: file.readline(LONGEST_LINE), b""), 100):
                if line.strip():
                    return line.removeprefix(b"\xef\xbb\xbf")
        return b""

    @cached_property
    def document(self) -> Any:
        """A JSON document of many lines or a list; None where the file is none."""
        start = self.first_line.lstrip()[:1]
        if start not in (b"{", b"[") or (start == b"{" and self._of_line):
            return None
        with self.open() as file:
            text = file.read(MOST_DOCUMENT_BYTES + 1)
        if len(text) > MOST_DOCUMENT_BYTES:
            return None
        try:
            return load_json(text, self.where)
        except PredictionsError:
            return None

    @cached_property
    def _of_line(self) -> Row:
        """The JSON object of the first line; empty if it is none."""
        try:
            return as_object(json.loads(self.first_line))
        except (ValueError, RecursionError):
            return {}

    @cached_property
    def first(self) -> Row:
        """The first JSON object: of a line, of a list, or the whole document; empty if none."""
        if self._of_line:
            return self._of_line
        items = as_list(self.document)
        return as_object(items[0]) if items else as_object(self.document)

    @cached_property
    def header(self) -> list[str]:
        """The columns of a table, which is text or parquet; empty for JSON."""
        if self.first_line.startswith(PARQUET):
            parquet = optional("pyarrow.parquet", "pyarrow", "arrow")
            with self.open() as file, readable("the parquet file", self.where):
                return list(parquet.read_schema(file).names)
        if self.first_line.lstrip()[:1] in (b"{", b"[", b"") or self.first_line.startswith(ARCHIVE):
            return []
        text = self.first_line.decode("utf-8", errors="replace").strip("\r\n")
        mark = "\t" if "\t" in text else ","
        try:
            cells = next(csv.reader([text], delimiter=mark), list[str]())
        except csv.Error:  # what stands there is no table
            return []
        return [cell.strip() for cell in cells]

    def rows(self) -> Iterator[tuple[str, Row]]:
        """Yield each JSON object of the file, with what messages call its place.

        Raises:
            PredictionsError: a line that is no JSON object.
        """
        if self.document is not None:
            items: list[Any] = as_list(self.document) or [self.document]
            for number, item in enumerate(items):
                yield f"entry {number}", self._row(item, f"entry {number}")
            return
        with self.open() as file, readable("the log", self.where):
            for number, line in enumerate(file, start=1):
                if line.strip():
                    place = f"line {number}"
                    try:
                        item: Any = json.loads(line)
                    except (ValueError, RecursionError) as error:
                        start = line[:40].decode("utf-8", errors="replace")
                        fault = f"expected a whole JSON object, found {start!r}"
                        raise self.error(place, fault) from error
                    yield place, self._row(item, place)

    def _row(self, item: Any, place: str) -> Row:
        if not isinstance(item, dict):
            raise self.error(place, f"expected a JSON object, found {str(item)[:40]!r}")
        return cast(Row, item)

    def table(self, columns: Collection[str] | None = None) -> Iterator[tuple[str, Row]]:
        """Yield each row of a table by the names of its columns, with its place.

        Of parquet only some `columns` may be read; of text all cells are text.
        """
        if self.first_line.startswith(PARQUET):
            parquet = optional("pyarrow.parquet", "pyarrow", "arrow")
            names = [name for name in self.header if columns is None or name in columns]
            with self.open() as file, readable("the parquet file", self.where):
                cells = cast(list[Row], parquet.read_table(file, columns=names).to_pylist())
            yield from ((f"row {number}", row) for number, row in enumerate(cells))
            return
        with self.open() as file, readable("the table", self.where):
            text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
            reader = csv.reader(text, delimiter="\t" if b"\t" in self.first_line else ",")
            header = [cell.strip() for cell in next(reader)]
            for cells in reader:
                if len(cells) != len(header):
                    if not cells:
                        continue
                    raise self.error(
                        f"line {reader.line_num}",
                        f"has {len(cells)} cells, but the header has {len(header)}",
                    )
                yield f"line {reader.line_num}", dict(zip(header, cells, strict=True))

    @cached_property
    def names(self) -> list[str]:
        """The columns of a table, or the keys of the first JSON object."""
        return self.header or list(self.first)

    def records(self) -> Iterator[tuple[str, Row]]:
        """Yield each row of a table, or each JSON object, with its place."""
        yield from self.table() if self.header else self.rows()

    def check_mean(self, name: str, stated: float, found: float, where: str = "results") -> None:
        """Raise `PredictionsError` unless a mean that a log states comes out of its rows."""
        if abs(found - stated) > TOLERANCE:
            raise self.error(
                where,
                f"{name} is {stated:.6g} there, but {found:.6g} by its rows; expected all rows of "
                "the run",
            )

    def error(self, place: str, fault: str) -> PredictionsError:
        """Return the error about a line."""
        return PredictionsError(f"{self.where}: {place}: {fault}")


class LogTable:
    """Rows of a log as they are found, and what is known beside them.

    Args:
        tool: that wrote the log.
        version: of the tool, "" where nothing says it.

    Attributes:
        signal: what the confidence is read from.
        positions: whether a class is nothing but the position of a choice.
        checked: whether the log's own accuracy came out of its rows.
        notes: what a reader should know besides.
    """

    def __init__(self, tool: str, version: str = "") -> None:
        self.tool, self.version, self.signal = tool, version, ""
        self.positions = self.checked = False
        self.notes: list[str] = []
        self.left_out: dict[str, LeftOut] = {}
        self.cells: list[Row] = []
        self.names: tuple[str, ...] | None = None

    def add(self, **cells: Any) -> None:
        """Add a row.

        One of `logits`, `probs` (a list a row, of any length), `confidence` or `score` is what
        the tool said, `labels` or `correct` what was true, `question` what repeats of a question
        share; all other columns are there to group by.
        """
        self.cells.append(cells)

    def leave_out(self, reason: str, correct: float | None = None) -> None:
        """Count a row without a confidence, and whether it is right where that is known."""
        known = correct is not None
        one = LeftOut(1, float(correct) if known else 0.0, int(known))
        self.left_out[reason] = self.left_out.get(reason, LeftOut()) + one

    def origin(self) -> Origin:
        """Return what is known beside the rows."""
        widths = [len(row[key]) for row in self.cells for key in ("logits", "probs") if key in row]
        return Origin(
            self.tool,
            self.version,
            self.signal,
            len(self.cells),
            (min(widths), max(widths)) if widths else None,
            self.positions,
            self.left_out,
            tuple(self.notes),
            self.checked,
        )


class LogFormat(ABC):
    """A kind of log. A package adds its own by the entry point ``calibrant.formats``.

    Attributes:
        tool: what writes such logs.

    Examples:
        >>> import json
        >>> import calibrant as cb
        >>> from calibrant.files.formats.logs.base import LogFormat, LogTable
        >>> class OneAnswerALine(LogFormat):
        ...     tool = "my tool"
        ...     def recognises(self, file):
        ...         return {"sure", "hit"} <= file.first.keys()
        ...     def read(self, file, options):
        ...         table = LogTable(self.tool)
        ...         for place, row in file.rows():
        ...             table.add(confidence=row["sure"], correct=row["hit"])
        ...         return table
        >>> OneAnswerALine().tool
        'my tool'
    """

    tool: ClassVar[str]

    @abstractmethod
    def recognises(self, file: LogFile) -> bool:
        """Return whether a file is such a log; only its beginning should be looked at."""

    @abstractmethod
    def read(self, file: LogFile, options: ReadOptions) -> LogTable:
        """Return the rows of a log.

        Raises:
            PredictionsError: a row can't be what the tool writes, or the tool's own accuracy
                doesn't come out of the rows.
        """


def columns_of(cells: Sequence[Row]) -> Columns:
    """Return rows as columns: lists of unequal length get -inf (logits) or 0 (probabilities)."""
    found: Columns = {}
    for name in dict.fromkeys(key for row in cells for key in row):
        values = [row.get(name) for row in cells]
        if name in ("logits", "probs"):
            found[name] = _padded(cast(Any, values), -np.inf if name == "logits" else 0.0)
        elif any(isinstance(value, str | list | dict) for value in values):
            found[name] = np.array(["" if value is None else str(value) for value in values])
        else:
            missing = any(value is None for value in values)
            numbers = [np.nan if value is None else value for value in values]
            found[name] = np.array(numbers, dtype=np.float64 if missing else None)
    return found


def _padded(rows: Sequence[Sequence[float]], filling: float) -> NDArray[np.float64]:
    wide = np.full((len(rows), max(map(len, rows), default=0)), filling)
    lengths = np.array([len(row) for row in rows])
    wide[np.arange(wide.shape[1]) < lengths[:, None]] = np.concatenate(
        [np.asarray(row, dtype=np.float64) for row in rows]
    )
    return wide
