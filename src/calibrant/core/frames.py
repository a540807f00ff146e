"""Tables of pandas, polars and pyarrow as arrays. None of these libraries is imported for it."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from calibrant.core.errors import PredictionsError

LIBRARIES = ("pandas", "polars", "pyarrow")
TABLES = ("DataFrame", "Table", "RecordBatch")
COLUMNS = ("Series", "ChunkedArray", "Index")


def library_of(values: Any) -> str | None:
    """Return which of `LIBRARIES` a value is of, or None."""
    name = type(values).__module__.partition(".")[0]
    return name if name in LIBRARIES else None


def is_table(values: Any) -> bool:
    """Return whether a value is a table with named columns, rather than a single column."""
    return library_of(values) is not None and type(values).__name__ in TABLES


def is_frame(values: Any) -> bool:
    """Return whether a value is a table or a column of one of `LIBRARIES`."""
    library = library_of(values)
    if library is None:
        return False
    # Every pyarrow array is a column: Int64Array, StringArray, ...
    return type(values).__name__ in (*TABLES, *COLUMNS) or library == "pyarrow"


def column_names(table: Any) -> list[Any]:
    """Return the names of the columns of a table, as it has them."""
    names: Any = table.schema.names if library_of(table) == "pyarrow" else table.columns
    return list(names)


def frame_array(values: Any) -> NDArray[Any]:
    """Return a table as an (N, K) array, a column as (N,).

    Missing values of columns of numbers are NaN. A column of lists of equal length is (N, K).

    Raises:
        PredictionsError: columns of a table that aren't numbers.
    """
    if not is_table(values):
        return _column(values)
    names = column_names(values)
    if not names:
        return np.empty((len(values), 0))
    columns: list[NDArray[Any]] = []
    for place, name in enumerate(names):
        column = _column(_column_of(values, place))
        if column.dtype.kind not in "fiub" or column.ndim != 1:
            raise PredictionsError(
                f"the column '{name}' of a {library_of(values)} table holds no numbers, one a row; "
                "pass the columns of the scores only"
            )
        columns.append(column)
    return np.stack(columns, axis=1)


def _column_of(table: Any, place: int) -> Any:
    library = library_of(table)
    if library == "pandas":
        return table.iloc[:, place]
    return table.to_series(place) if library == "polars" else table.column(place)


def _column(values: Any) -> NDArray[Any]:
    library = library_of(values)
    if library == "pandas":
        found: Any = values.to_numpy()
        if found.dtype == object and _is_number(values.dtype):
            found = values.to_numpy(dtype=np.float64, na_value=np.nan)
    elif library == "polars":
        found = values.to_numpy()
    else:
        found = values.to_numpy(zero_copy_only=False)
    array = np.asarray(found)
    if array.dtype == object:
        array = _unpacked(array)
    return array


def _is_number(dtype: Any) -> bool:
    # Of pandas' nullable types, such as Int64 and double[pyarrow].
    return getattr(dtype, "kind", "O") in "iufb"


def _unpacked(array: NDArray[Any]) -> NDArray[Any]:
    """Return a column of objects as text, or as (N, K) where each is a list of K numbers."""
    items = cast(list[Any], array.tolist())
    if items and all(isinstance(item, str) for item in items):
        return np.array(items)
    if items and all(isinstance(item, list | tuple | np.ndarray) for item in items):
        lengths = {len(item) for item in items}
        if len(lengths) == 1:
            rows = np.array([np.asarray(item) for item in items])
            if rows.dtype.kind in "fiu":
                return rows
    return array
