"""What callers hand a monitor, single things or arrays, as rows."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import Array, as_array, to_numpy
from calibrant.core.errors import PredictionsError


def as_rows(values: Array | float) -> NDArray[Any]:
    """Return an array of any library, or a single number, as NumPy with an axis of rows."""
    if isinstance(values, (int, float)):
        return np.array([values])
    return np.atleast_1d(to_numpy(as_array(values)))


def as_ids(ids: Any) -> list[Any]:
    """Return (n,) ids, or a single one, as a list."""
    if isinstance(ids, (str, int)):
        return [ids]
    if isinstance(ids, (list, tuple)):
        return list(cast(Sequence[Any], ids))
    return as_rows(ids).tolist()


def as_names(groups: Any, rows: int) -> list[str] | None:
    """Return the group's name of each of so many rows; one name is for all of them."""
    if groups is None:
        return None
    names = [str(name) for name in as_ids(groups)]
    if len(names) == 1:
        return names * rows
    if len(names) != rows:
        raise PredictionsError(f"groups has {len(names)} entries, but there are {rows} rows")
    return names


def check_lengths(ids: Sized, *columns: Sequence[Any] | NDArray[Any]) -> None:
    """Raise `PredictionsError` unless every column has an entry for each id."""
    for column in columns:
        if len(column) != len(ids):
            raise PredictionsError(f"there are {len(ids)} ids, but {len(column)} entries with them")
