"""Files of outcomes that come apart from their predictions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from calibrant.core.arrays import IntArray
from calibrant.core.errors import PredictionsError
from calibrant.files import read_column
from calibrant.files.keys import LABELS
from calibrant.monitor.lines import Reading
from calibrant.monitor.monitor import Monitor
from calibrant.monitor.streams import ROWS_AT_ONCE, LineFile, is_lines
from calibrant.monitor.two_tests import Alarm


def feed_outcomes(monitor: Monitor, path: str, key: str) -> Iterator[list[Alarm]]:
    """Let a monitor learn the outcomes in a file, by id.

    Args:
        monitor: has the predictions, or will.
        path: JSON lines, or a table with the columns `key` and ``label`` or ``correct``.
        key: where the ids stand.

    Yields:
        The alarms that rose, after some rows each.

    Raises:
        InputError: the file isn't usable.
    """
    if is_lines(path):
        yield from LineFile(path, monitor, Reading(key=key)).new_rows(to_the_end=True)
        return
    ids = read_column(path, key)
    name, values = _outcome_column(path, key)
    for start in range(0, len(ids), ROWS_AT_ONCE):
        part = slice(start, start + ROWS_AT_ONCE)
        labels, correct = (None, values[part]) if name == "correct" else (values[part], None)
        yield list(monitor.learn(ids[part].tolist(), labels, correct=correct))


def _outcome_column(path: str, key: str) -> tuple[str, IntArray]:
    """Return the name and the whole numbers of a table's column of outcomes."""
    for name in (*LABELS, "correct"):
        try:
            column: Any = read_column(path, name)
        except PredictionsError:
            continue
        words = {"true": 1, "false": 0}
        try:
            if column.dtype.kind in "US":
                column = np.array([words.get(str(w).lower(), w) for w in column]).astype(float)
            values = column.astype(np.int64)
        except ValueError:
            values = None
        if values is None or (values != column).any() or (values < 0).any():
            raise PredictionsError(f"{path}: column '{name}' must hold whole numbers from 0")
        if name == "correct" and (values > 1).any():
            raise PredictionsError(f"{path}: column 'correct' must hold 0 and 1")
        return name, values
    raise PredictionsError(f"{path}: there is no column 'label' or 'correct' beside '{key}'")
