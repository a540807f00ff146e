"""JSON lines a batch of rows at a time."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, cast

import numpy as np

from calibrant.core.errors import PredictionsError
from calibrant.files.json_lines import chosen_columns, flat_row, json_parts, of_columns
from calibrant.files.keys import Keys, Wanted
from calibrant.files.opening import open_binary
from calibrant.files.row_files import Batch, RowFile


class JsonLinesRows(RowFile):
    """A JSON object a line, all with the keys of the first."""

    def open(self) -> None:
        """Read the first row, and count the others."""
        lines = self._lines()
        first = next(lines, None)
        if first is None:
            raise PredictionsError(f"{self.source}: is empty; expected a JSON object in each line")
        row = flat_row(first[1], first[0], self.source)
        self._widths = {
            name: len(cast(list[Any], cell)) if isinstance(cell, list) else None
            for name, cell in row.items()
        }
        self.rows = 1 + sum(1 for _ in lines)
        self._places: dict[str, list[str]] = {}

    def _lines(self) -> Iterator[tuple[int, str]]:
        """Yield the lines of rows, numbered."""
        raw = self.held.enter_context(open_binary(self.source))
        text = self.held.enter_context(io.TextIOWrapper(raw, encoding="utf-8-sig"))
        return ((i, line) for i, line in enumerate(text, start=1) if line.strip())

    def names(self) -> Sequence[str]:
        """Return the names of the columns."""
        return list(self._widths)

    def choose(self, wanted: Wanted) -> Keys:
        """Return what to read."""
        lists = [name for name, width in self._widths.items() if width is not None]
        keys, self._places = chosen_columns(self.names(), wanted, self.source, lists)
        return keys

    def shape(self, key: str) -> tuple[int, ...]:
        """Return the shape that the first row and the number of lines say."""
        columns = self._places.get(key, [key])
        width = self._widths[columns[0]] if columns == [key] else len(columns)
        return (self.rows,) if width is None else (self.rows, width)

    def read(self, keys: Sequence[str], spans: Iterable[slice]) -> Iterator[Batch]:
        """Yield the columns span by span."""
        lines, at = self._lines(), 0
        for span in spans:
            next(islice(lines, span.start - at, span.start - at), None)
            some = islice(lines, span.stop - span.start)
            at = span.stop
            parts: list[Batch] = []
            for columns in json_parts(some, self.source, self.names()):
                self._check_widths(columns)
                places = {key: self._places.get(key, [key]) for key in keys}
                parts.append({key: of_columns(columns, key, of) for key, of in places.items()})
            yield {key: np.concatenate([part[key] for part in parts]) for key in keys}

    def _check_widths(self, columns: Batch) -> None:
        for name, column in columns.items():
            if (column.shape[1] if column.ndim > 1 else None) != self._widths[name]:
                raise PredictionsError(f"{self.source}: lists of '{name}' differ in length")
