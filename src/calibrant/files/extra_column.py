"""One more column of a file of predictions: what its rows may be grouped or clustered by."""

from __future__ import annotations

import csv
import os
from os import fspath
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import is_numpy
from calibrant.core.errors import PredictionsError
from calibrant.files.atomic import StrPath
from calibrant.files.batched import open_rows
from calibrant.files.bounds import check_members, check_regular
from calibrant.files.csv_files import separator_of
from calibrant.files.hugging_face import is_data_set
from calibrant.files.json_lines import json_columns
from calibrant.files.keys import optional, readable
from calibrant.files.numpy_files import member


def read_column(path: StrPath, name: str) -> NDArray[Any]:
    """Return the (N,) column `name` of an npz, safetensors, CSV or parquet file, numbers or text.

    Raises:
        PredictionsError: another format, no such column, or one that isn't of shape (N,).
    """
    source, file = fspath(path), Path(path)
    readers = {
        ".npz": _from_npz,
        ".safetensors": _from_safetensors,
        ".csv": _from_csv,
        ".parquet": _from_parquet,
        ".tsv": _from_csv,
        ".jsonl": _from_json_lines,
        ".ndjson": _from_json_lines,
        ".h5": _from_rows,
        ".hdf5": _from_rows,
        ".arrow": _from_rows,
        ".feather": _from_rows,
    }
    folder = os.path.isdir(file) and is_data_set(source)
    extension = ".arrow" if folder else file.suffix.lower()
    if extension not in readers:
        raise PredictionsError(
            f"{source}: a column such as '{name}' can be read from {', '.join(readers)} only"
        )
    check_regular(file, source, folders=folder)
    with readable(f"column '{name}'", source):
        column: Any = readers[extension](file, name)
    if column is None:
        raise PredictionsError(f"{source}: there is no column '{name}'")
    if not is_numpy(column):
        raise PredictionsError(f"{source}: '{name}' is no array; its name doesn't end in .npy")
    if column.ndim != 1:
        raise PredictionsError(f"{source}: '{name}' must have shape (N,), not {column.shape}")
    return column


def _from_npz(path: Path, name: str) -> Any:
    with np.load(path, allow_pickle=False) as archive:
        check_members(archive.zip, str(path))
        return member(archive, name, str(path)) if name in archive.files else None


def _from_safetensors(path: Path, name: str) -> NDArray[Any] | None:
    library: Any = optional("safetensors", "safetensors", "safetensors")
    with library.safe_open(path, framework="numpy") as file:
        return file.get_tensor(name) if name in file.keys() else None  # noqa: SIM118


def _from_csv(path: Path, name: str) -> NDArray[Any] | None:
    with path.open(encoding="utf-8-sig", newline="") as text:
        separator = separator_of(text, str(path))
        text.seek(0)
        rows = csv.reader(text, delimiter=separator)
        header = [cell.strip() for cell in next(rows, list[str]())]
        if name not in header:
            return None
        position = header.index(name)
        return np.array([row[position].strip() for row in rows if any(row)])


def _from_parquet(path: Path, name: str) -> NDArray[Any] | None:
    parquet: Any = optional("pyarrow.parquet", "pyarrow", "arrow")
    file = parquet.ParquetFile(path)
    if name not in file.schema_arrow.names:
        return None
    return np.asarray(file.read(columns=[name])[name].to_numpy(zero_copy_only=False)).astype(str)


def _from_json_lines(path: Path, name: str) -> NDArray[Any] | None:
    return json_columns(path, str(path)).get(name)


def _from_rows(path: Path, name: str) -> NDArray[Any] | None:
    with open_rows(str(path)) as rows:
        if name not in rows.names():
            return None
        return next(iter(rows.read([name], [slice(0, rows.shape(name)[0])])))[name]
