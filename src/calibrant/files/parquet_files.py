"""Parquet tables, through pyarrow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from calibrant.core.errors import PredictionsError
from calibrant.files.arrow_metadata import class_names_in
from calibrant.files.bounds import check_room
from calibrant.files.choosing import TRAINER
from calibrant.files.columns import join, select_columns, split
from calibrant.files.keys import Arrays, Wanted, assemble, optional, readable
from calibrant.files.rows_at_once import read_rows
from calibrant.predictions.predictions import Predictions

# Types of columns that hold a list a row.
LISTS = ("list", "large_list", "fixed_size_list")


def read_parquet(path: Path, wanted: Wanted, source: str) -> Predictions:
    """Read the columns needed from a parquet file."""
    parquet = optional("pyarrow.parquet", "pyarrow", "arrow")
    with readable("the parquet file", source):
        file: Any = parquet.ParquetFile(path, memory_map=True)
    with file:
        header: list[str] = file.schema_arrow.names
        whole = ("logits", "probs", "features", TRAINER[0], wanted.scores_key)
        kinds = {field.name: str(field.type) for field in file.schema_arrow}
        if any(kinds.get(str(name), "").startswith(LISTS) for name in whole):
            return read_rows(path, wanted, source)
        keys, places = select_columns(header, wanted, source)
        if keys.class_names is None and not keys.binary:
            names = class_names_in(file.schema_arrow, keys.labels)
            keys = replace(keys, class_names=names)

        def get(key: str) -> NDArray[Any]:
            names = [header[i] for i in places[key]]
            check_room(8 * file.metadata.num_rows * len(names), f"'{key}'", source)
            table = file.read(columns=names)
            words = keys.worded and key in (keys.labels, keys.predicted)
            return join(key, [_values(table[name], name, source, words=words) for name in names])

        return assemble(keys, get, source)


def _values(column: Any, name: str, source: str, *, words: bool) -> NDArray[Any]:
    """Return a column of numbers, or of `words`, which may be numbers too."""
    if column.null_count:
        row = column.is_null().index(True).as_py()
        raise PredictionsError(f"{source}: row {row}, column '{name}': the cell is blank")
    values: NDArray[Any] = column.to_numpy()
    if words:
        return values
    if values.dtype.kind not in "fiu":
        raise PredictionsError(f"{source}: column '{name}' must hold numbers, not {column.type}")
    return values


def write_parquet(arrays: Arrays, path: Path) -> None:
    """Write a parquet file."""
    arrow = optional("pyarrow", "pyarrow", "arrow")
    parquet = optional("pyarrow.parquet", "pyarrow", "arrow")
    parquet.write_table(arrow.table(split(arrays)), path)
