"""One more column of a file of predictions: what its rows may be grouped or clustered by."""

from __future__ import annotations

import csv
from os import fspath
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import is_numpy
from calibrant.core.errors import PredictionsError
from calibrant.files.atomic import StrPath
from calibrant.files.bounds import check_members, check_regular
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
    }
    if file.suffix.lower() not in readers:
        raise PredictionsError(
            f"{source}: a column such as '{name}' can be read from {', '.join(readers)} only"
        )
    check_regular(file, source)
    with readable(f"column '{name}'", source):
        column: Any = readers[file.suffix.lower()](file, name)
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
        rows = csv.reader(text)
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
