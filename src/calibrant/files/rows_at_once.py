"""Formats that are read by rows, read whole."""

from __future__ import annotations

from pathlib import Path

from calibrant.core.arrays import Array
from calibrant.files.batched import open_rows
from calibrant.files.bounds import check_room
from calibrant.files.keys import Wanted, assemble, readable
from calibrant.predictions.predictions import Predictions


def read_rows(path: Path, wanted: Wanted, source: str) -> Predictions:
    """Read a file, or a folder of Hugging Face's data sets, of a format that has a `RowFile`."""
    with readable("the file", source), open_rows(str(path)) as rows:
        keys = rows.choose(wanted)

        def get(key: str) -> Array:
            shape = rows.shape(key)
            size = 8
            for length in shape:
                size *= max(1, length)
            check_room(size, f"'{key}'", source)
            return next(iter(rows.read([key], [slice(0, shape[0])])))[key]

        return assemble(keys, get, source)
