"""CSV: fast when all is well, and exact about the cell when it isn't."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
from numpy.typing import NDArray

from calibrant.core.checks import ROW_SUM_TOLERANCE, check_scores
from calibrant.core.errors import PredictionsError
from calibrant.files.columns import join, select_columns, split
from calibrant.files.keys import ONE_SCORE, SCORES, WEIGHT, Arrays, Keys, Wanted, assemble, readable
from calibrant.predictions.predictions import Predictions

# Rows become Python numbers this many at a time, to bound the memory.
ROWS_AT_ONCE = 4096
# As much of an offending cell as a message shows.
SHOWN_CHARACTERS = 40


SEPARATORS = (",", ";", "\t")


class Column(NamedTuple):
    """A column that is read, and what its cells must hold."""

    name: str
    position: int
    key: str
    expected: str
    accepts: Callable[[float], bool]


def read_csv(path: Path, wanted: Wanted, source: str) -> Predictions:
    """Read a table of numbers with a header line, in UTF-8.

    Columns are separated by commas, semicolons or tabs, whichever the header has. Where it isn't
    commas, numbers may have decimal commas.
    """
    with readable("the CSV file", source):
        with _opened(path) as text:
            separator = separator_of(text, source)
        with _opened(path) as text:
            header = header_of(text, source, separator)
        keys, places = select_columns(header, wanted, source)
        worded = keys.grid is None and (keys.positive, keys.class_names) != (None, None)
        named = {keys.labels} if worded else set[str | None]()
        if keys.predicted is not None and _holds_text(path, places[keys.predicted][0], separator):
            named = {keys.labels, keys.predicted}
        numbers = {key: columns for key, columns in places.items() if key not in named}
        try:
            used = {i for columns in numbers.values() for i in columns}
            table = _table(path, len(header), used, separator)

            def get(key: str) -> NDArray[Any]:
                if key in named:
                    return _words(path, places[key][0], separator)
                return join(key, [table[f"f{i}"] for i in places[key]])

            return assemble(keys, get, source)
        # From a cell that is no number, or (a `PredictionsError`) one that isn't usable.
        except ValueError as error:
            with _opened(path) as text:
                fault = first_fault(text, header, keys, numbers, separator)
            if fault is None:
                raise
            raise PredictionsError(f"{source}: {fault}") from error


def separator_of(text: TextIO, source: str) -> str:
    """Return what separates the columns of an open table.

    Raises:
        PredictionsError: its header has two kinds of separators outside quotes.
    """
    line = next((line for line in text if line.strip()), "")
    bare = "".join(line.split('"')[::2])
    found = [mark for mark in SEPARATORS if mark in bare]
    if len(found) > 1:
        marks = " and ".join(repr(mark) for mark in found)
        raise PredictionsError(
            f"{source}: its header holds {marks}, each of which could separate the columns; leave "
            "one of them out of the names, or quote these"
        )
    return found[0] if found else SEPARATORS[0]


def header_of(text: TextIO, source: str, separator: str = ",") -> list[str]:
    """Return the names of the columns of an open table.

    Raises:
        PredictionsError: there is no line at all.
    """
    _, header = next(_records(text, separator), (0, list[str]()))
    if not header:
        raise PredictionsError(f"{source}: is empty; expected a header and rows")
    return [name.strip() for name in header]


def _opened(path: Path) -> TextIO:
    return path.open(encoding="utf-8-sig")


def _records(text: TextIO, separator: str = ",") -> Iterator[tuple[int, list[str]]]:
    """Yield the line number in the file and the cells of each row that isn't blank."""
    reader = csv.reader(text, delimiter=separator)
    for cells in reader:
        if len(cells) > 1 or any(cell.strip() for cell in cells):
            yield reader.line_num, cells


def _table(path: Path, width: int, used: set[int], separator: str) -> Any:
    """Return the rows as a structured array with a field ``f0``, ``f1``, ... for each column."""
    with _opened(path) as text:
        next(_records(text, separator))
        lines = [line for line in text if line.strip()]
    if not lines:
        raise ValueError("no rows")
    # A column that isn't used may hold any text, of which one character is kept.
    fields = [(f"f{i}", "f8" if i in used else "U1") for i in range(width)]
    decimal = separator != "," and any("," in line for line in lines)
    # A call of Python for each cell takes its time, so only where it must be.
    converters: Any = dict.fromkeys(used, with_point) if decimal else None
    table = np.loadtxt(
        lines,
        fields,
        comments=None,
        delimiter=separator,
        quotechar='"',
        ndmin=1,
        converters=converters,
    )
    if len(table) != len(lines):
        raise ValueError("a quoted cell has swallowed line ends")
    return table


def with_point(cell: str) -> float:
    """Return a number with a decimal comma; one with points as well is refused."""
    return float(cell.replace(",", "."))


def _holds_text(path: Path, position: int, separator: str) -> bool:
    """Return whether a column of the first row holds text that is no number."""
    with _opened(path) as text:
        records = _records(text, separator)
        next(records)
        _, cells = next(records, (0, list[str]()))
    return (
        position < len(cells) and bool(cells[position].strip()) and _number(cells[position]) is None
    )


def _words(path: Path, position: int, separator: str) -> NDArray[np.str_]:
    """Return a column as text."""
    with _opened(path) as text:
        records = _records(text, separator)
        next(records)
        return np.array([cells[position].strip() for _, cells in records])


def _columns(header: list[str], keys: Keys, places: dict[str, list[int]]) -> list[Column]:
    """Describe the columns that are read, in the order of the file."""
    classes = math.inf if keys.kind == "toplabel" else len(places[keys.scores])
    if keys.kind in ONE_SCORE:
        classes = 2
    top = "" if keys.kind == "toplabel" else f" to {classes - 1}"

    def rule(key: str) -> tuple[str, Callable[[float], bool]]:
        if key == keys.labels and (keys.binary or keys.grid is not None):
            return "0 or 1 (or names, of which --positive NAME says one)", lambda x: x in (0, 1)
        if key in (keys.labels, keys.predicted):
            return f"a whole number from 0{top}", lambda x: x.is_integer() and 0 <= x < classes
        if key in (SCORES["toplabel"], SCORES["prob"]):
            return "a number from 0 to 1", lambda x: 0 <= x <= 1
        if key == SCORES["probs"] and keys.grid is not None:
            return "a number from 0 to 1", lambda x: 0 <= x <= 1
        if key in (SCORES["probs"], WEIGHT):
            return "a finite number of at least 0", lambda x: 0 <= x < math.inf
        return "a finite number", math.isfinite

    columns = [
        Column(header[i], i, key, *rule(key))
        for key, positions in places.items()
        for i in positions
    ]
    return sorted(columns, key=lambda column: column.position)


def first_fault(
    text: TextIO,
    header: list[str],
    keys: Keys,
    places: dict[str, list[int]],
    separator: str = ",",
) -> str | None:
    """Go through an open table row by row and say what is wrong with the first bad one, if any."""
    columns, width = _columns(header, keys, places), len(header)
    records = _records(text, separator)
    next(records)
    line = None
    for line, cells in records:
        if len(cells) != width:
            found = "1 cell" if len(cells) == 1 else f"{len(cells)} cells"
            return f"line {line} has {found}, but the header has {width}"
        fault = _fault(cells, columns, decimal=separator != ",")
        if fault is not None:
            return f"line {line}{fault}"
    return "has a header, but no rows" if line is None else None


def _fault(cells: list[str], columns: list[Column], *, decimal: bool) -> str | None:
    if any("\n" in cell for cell in cells):
        return " ends a quoted cell that goes over several lines; is a quote missing?"
    total = 0.0
    for column in columns:
        text = cells[column.position]
        value = _number(text.replace(",", ".") if decimal else text)
        if value is None or not column.accepts(value):
            shown = repr(text[:SHOWN_CHARACTERS]) if text.strip() else "a blank cell"
            return f", column '{column.name}': expected {column.expected}, found {shown}"
        total += value if column.key == SCORES["probs"] else 0
    has_probs = any(column.key == SCORES["probs"] for column in columns)
    if has_probs and abs(total - 1) > ROW_SUM_TOLERANCE["float64"]:
        return (
            f": the columns prob_0, prob_1, ... must sum to 1, but sum to {total:.6g}; name them "
            "logit_0, logit_1, ... if these are logits"
        )
    return None


def _number(text: str) -> float | None:
    # Python, unlike NumPy, also takes the digits of any script, and underscores among them.
    if not text.isascii() or "_" in text:
        return None
    try:
        return float(text)
    except ValueError:
        return None


def write_csv(arrays: Arrays, path: Path) -> None:
    """Write a table; every number gets the fewest digits that give back the same float64."""
    if "probs" in arrays and arrays["probs"].shape != arrays.get("labels", np.empty(0)).shape:
        # Sums may be off by more in float16 than the float64 that a reader makes of it allows.
        check_scores(arrays["probs"].astype(np.float64), "probs", "as float64, which CSV holds")
    columns = split(arrays)
    rows = len(next(iter(columns.values())))
    with path.open("w", encoding="utf-8", newline="") as text:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        for start in range(0, rows, ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            cells = [column[part].tolist() for column in columns.values()]
            writer.writerows(zip(*cells, strict=True))
