"""JSON lines: an object a row, with numbers, lists of numbers, or probabilities by class."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from calibrant.core.errors import PredictionsError
from calibrant.files.columns import join, select_columns
from calibrant.files.keys import Wanted, assemble, readable
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
    header = list(columns)
    lists = [name for name, column in columns.items() if column.ndim > 1]
    keys, places = select_columns(header, wanted, source, lists)

    def get(key: str) -> NDArray[Any]:
        found = [columns[header[i]] for i in places[key]]
        return found[0] if header[places[key][0]] == key else join(key, found)

    return assemble(keys, get, source)


def json_columns(path: Path, source: str) -> dict[str, NDArray[Any]]:
    """Return the columns of a file: (N,) numbers or text, or (N, K) of lists.

    An object within a row, such as probabilities by class, gives a column for each of its keys:
    ``prob_cat``, ``logit_cat``, or ``NAME_cat``.

    Raises:
        PredictionsError: a line that is no object, or has other keys than the first.
    """
    parts: list[dict[str, NDArray[Any]]] = []
    rows: list[dict[str, Any]] = []
    names: list[str] = []
    line = 0
    with path.open(encoding="utf-8-sig") as text:
        for line, content in enumerate(text, start=1):
            if not content.strip():
                continue
            row = _flat(_object(content, line, source))
            if not names:
                names = list(row)
            if row.keys() != set(names):
                odd = sorted(row.keys() ^ set(names))[0]
                raise PredictionsError(
                    f"{source}: line {line} has other keys than the first; see '{odd}'"
                )
            rows.append(row)
            if len(rows) == ROWS_AT_ONCE:
                parts.append(_arrays(rows, names, line, source))
                rows = []
        if rows:
            parts.append(_arrays(rows, names, line, source))
    if not parts:
        raise PredictionsError(f"{source}: is empty; expected a JSON object in each line")
    with readable("the JSON lines", source):
        return {name: np.concatenate([part[name] for part in parts]) for name in names}


def _object(content: str, line: int, source: str) -> dict[str, Any]:
    try:
        row: Any = json.loads(content)
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict):
        shown = content.strip()[:SHOWN_CHARACTERS]
        raise PredictionsError(f"{source}: line {line} is no JSON object: {shown!r}")
    return cast(dict[str, Any], row)


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with the keys of objects within it behind their own."""
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, dict):
            stem = {"logits": "logit", "probs": "prob"}.get(key, key)
            flat |= {f"{stem}_{name}": one for name, one in cast(dict[str, Any], value).items()}
        else:
            flat[key] = value
    return flat


def _arrays(
    rows: list[dict[str, Any]], names: list[str], line: int, source: str
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
