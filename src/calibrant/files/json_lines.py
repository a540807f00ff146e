"""JSON lines: an object a row, with numbers, lists of numbers, or probabilities by class."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from calibrant.core.errors import PredictionsError
from calibrant.files.columns import join, select_columns
from calibrant.files.keys import Keys, Wanted, assemble, readable
from calibrant.predictions.predictions import Predictions

# Rows are Python objects so many at a time, to bound the memory.
ROWS_AT_ONCE = 4096
SHOWN_CHARACTERS = 40


def read_json_lines(path: Path, wanted: Wanted, source: str) -> Predictions:
    """Read a file with a JSON object in each line, all with the same keys.

    ``{"label": 1, "logits": [2.0, 0.5]}``, ``{"label": "cat", "probs": {"cat": 0.8, "dog": 0.2}}``
    and flat ones with ``logit_0``, ``logit_1``, ... are the same here.
    """
    with readable("the JSON lines", source):
        columns = json_columns(path, source)
    lists = [name for name, column in columns.items() if column.ndim > 1]
    keys, places = chosen_columns(list(columns), wanted, source, lists)
    return assemble(keys, lambda key: of_columns(columns, key, places[key]), source)


def chosen_columns(
    header: Sequence[str], wanted: Wanted, source: str, lists: Collection[str]
) -> tuple[Keys, dict[str, list[str]]]:
    """Return what to read, and the names of the columns that hold it; see `select_columns`."""
    keys, places = select_columns(header, wanted, source, lists)
    return keys, {key: [header[i] for i in of] for key, of in places.items()}


def of_columns(columns: Mapping[str, NDArray[Any]], key: str, names: Sequence[str]) -> NDArray[Any]:
    """Return the array of a key from the columns that hold it."""
    found = [columns[name] for name in names]
    return found[0] if names[0] == key else join(key, found)


def json_columns(path: Path, source: str) -> dict[str, NDArray[Any]]:
    """Return the columns of a file: (N,) numbers or text, or (N, K) of lists.

    An object within a row, such as probabilities by class, gives a column for each of its keys:
    ``prob_cat``, ``logit_cat``, or ``NAME_cat``.

    Raises:
        PredictionsError: a line that is no object, or has other keys than the first.
    """
    with path.open(encoding="utf-8-sig") as text:
        parts = list(json_parts(enumerate(text, start=1), source))
    if not parts:
        raise PredictionsError(f"{source}: is empty; expected a JSON object in each line")
    with readable("the JSON lines", source):
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def json_parts(
    lines: Iterable[tuple[int, str]], source: str, names: Sequence[str] = ()
) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield the columns of a few thousand rows at a time.

    Args:
        lines: numbered lines; blank ones are passed over.
        source: begins error messages.
        names: of the columns; those of the first row where there are none.
    """
    rows: list[dict[str, Any]] = []
    line = 0
    for line, content in lines:
        if not content.strip():
            continue
        row = flat_row(content, line, source)
        names = names or list(row)
        if row.keys() != set(names):
            odd = sorted(row.keys() ^ set(names))[0]
            raise PredictionsError(
                f"{source}: line {line} has other keys than the first; see '{odd}'"
            )
        rows.append(row)
        if len(rows) == ROWS_AT_ONCE:
            yield _arrays(rows, names, line, source)
            rows = []
    if rows:
        yield _arrays(rows, names, line, source)


def flat_row(content: str, line: int, source: str) -> dict[str, Any]:
    """Return the row that a line holds, with the keys of objects within it behind their own.

    Raises:
        PredictionsError: it is no object.
    """
    try:
        row: Any = json.loads(content)
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict):
        shown = content.strip()[:SHOWN_CHARACTERS]
        raise PredictionsError(f"{source}: line {line} is no JSON object: {shown!r}")
    flat: dict[str, Any] = {}
    for key, value in cast(dict[str, Any], row).items():
        if isinstance(value, dict):
            stem = {"logits": "logit", "probs": "prob"}.get(key, key)
            flat |= {f"{stem}_{name}": one for name, one in cast(dict[str, Any], value).items()}
        else:
            flat[key] = value
    return flat


def _arrays(
    rows: list[dict[str, Any]], names: Sequence[str], line: int, source: str
) -> dict[str, NDArray[Any]]:
    """Return the columns of some rows, the last of which is in `line`."""
    found: dict[str, NDArray[Any]] = {}
    for name in names:
        cells = [row[name] for row in rows]
        widths = {len(cast(list[Any], cell)) for cell in cells if isinstance(cell, list)}
        if len(widths) > 1 or (widths and not all(isinstance(cell, list) for cell in cells)):
            raise PredictionsError(
                f"{source}: lists of '{name}' differ in length, up to line {line}"
            )
        if any(cell is None for cell in cells):
            place = line - len(rows) + 1 + [cell is None for cell in cells].index(True)
            raise PredictionsError(f"{source}: about line {place}, '{name}' is null")
        words = any(isinstance(cell, str) for cell in cells)
        found[name] = np.array([str(cell) for cell in cells]) if words else np.array(cells)
    return found
