"""JSON lines, and JSON of rows or of columns."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from calibrant.core.errors import PredictionsError
from calibrant.files.formats.base import (
    CLASS_NAMES,
    LABEL_NAMES,
    OF_THE_NETWORK,
    Columns,
    objects,
    words_for,
)
from calibrant.files.formats.text import NUMBER, SHOWN_CHARACTERS, TextReader, TextWriter
from calibrant.files.gate import MOST_DOCUMENT_BYTES, json_entries, load_json, readable

# Keys of lists that name classes, and of those that hold their scores, as pipelines write them.
OF_NAMES, OF_SCORES = ("labels", "classes", "displayNames"), ("scores", "confidences")


def flat_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object with the keys of objects within it behind their own: ``prob_cat``.

    A list of classes with their scores is such an object, in whatever order they stand.
    """
    flat: dict[str, Any] = {}
    paired = row if row.keys().isdisjoint(OF_SCORES) else _paired(row)
    for key, value in paired.items():
        held: Any = value
        if isinstance(held, list) and held and isinstance(held[0], dict):
            held = _by_class(cast(list[Any], held))
        if isinstance(held, dict):
            stem = {"logits": "logit", "probs": "prob", "labels": "label"}.get(key, key)
            inner = flat_row(cast(dict[str, Any], held))
            flat |= {f"{stem}_{name}": one for name, one in inner.items()}
        else:
            flat[key] = held
    return flat


def _by_class(entries: list[Any]) -> Any:
    """Return a list of ``{"label": "cat", "score": 0.8}`` as an object, and others as they are."""
    found: dict[str, Any] = {}
    for entry in entries if len(entries) > 1 else ():
        held = list(cast(dict[str, Any], entry).values()) if isinstance(entry, dict) else []
        text = [one for one in held if isinstance(one, str)]
        numbers = [one for one in held if isinstance(one, int | float)]
        if [len(held), len(text), len(numbers)] != [2, 1, 1] or text[0] in found:
            return entries
        found[text[0]] = numbers[0]
    return found or entries


def _paired(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an object that lists classes, and their scores apart, with the scores by class."""
    names = [key for key in OF_NAMES if isinstance(row.get(key), list)]
    scores = [key for key in OF_SCORES if isinstance(row.get(key), list)]
    if len(names) != 1 or len(scores) != 1:
        return row
    called, numbers = cast(list[Any], row[names[0]]), cast(list[Any], row[scores[0]])
    if len(called) != len(numbers) or not all(isinstance(name, str) for name in called):
        return row
    found = dict(zip(called, numbers, strict=True))
    if len(found) < max(len(called), 2):
        return row
    return {key: value for key, value in row.items() if key != names[0]} | {scores[0]: found}


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
        if isinstance(cell, str):
            bare = cell.removesuffix("%") if self.options.are == "percent" else cell
            return "" if NUMBER.fullmatch(bare) and not bare.isdigit() else "text"
        with readable(f"'{name}'", self.where):
            return str(np.asarray(cell).dtype)

    def parsed(
        self, lines: list[tuple[int, str]], names: Sequence[str], words: Collection[str]
    ) -> Columns:
        """Return the fields of some lines."""
        rows = [self._row(number, line, names) for number, line in lines]
        numbers = [number for number, _ in lines]
        found = {
            name: self._column(name, [row[name] for row in rows], numbers, name in words)
            for name in names
        }
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

    def _row(self, line: int, content: str, names: Collection[str]) -> dict[str, Any]:
        row = self.flat(line, content)
        # A note that some rows lack holds no score.
        differ = row.keys() ^ self._keys
        differ = [k for k in differ if k in names or not _is_note({**self._first, **row}[k])]
        if differ:
            odd = sorted(differ)[0]
            raise PredictionsError(
                f"{self.where}: line {line} has other keys than the first; see '{odd}'"
            )
        return row

    def flat(self, line: int, content: str) -> dict[str, Any]:
        """Return the row that a line holds."""
        with suppress(ValueError, RecursionError):
            row: Any = json.loads(content)
            if isinstance(row, dict):
                return flat_row(cast(dict[str, Any], row))
        shown = content.strip()[:SHOWN_CHARACTERS]
        raise PredictionsError(f"{self.where}: line {line} is no JSON object: {shown!r}")

    def _column(
        self, name: str, cells: list[Any], numbers: list[int], worded: bool
    ) -> NDArray[Any]:
        wide = isinstance(self._first[name], list)
        for number, cell in zip(numbers, cells, strict=True):
            if cell is None:
                raise PredictionsError(f"{self.where}: line {number}: '{name}' is null")
            own = len(cast(list[Any], cell)) if isinstance(cell, list) else None
            if own != (len(self._first[name]) if wide else None):
                raise PredictionsError(
                    f"{self.where}: line {number}: lists of '{name}' differ in length"
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
