"""Single columns of files: ids, groups, weights, and pictures."""

from __future__ import annotations

from os import fspath
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from calibrant.core.errors import PredictionsError
from calibrant.core.outputs import StrPath
from calibrant.files.formats import FORMATS, open_rows
from calibrant.files.formats.logs.reader import is_log
from calibrant.files.formats.numpy_files import npy_stream
from calibrant.files.formats.tables import is_data_set
from calibrant.files.gate import check_regular, readable
from calibrant.files.opening import extension_of, is_folder
from calibrant.files.options import ReadOptions
from calibrant.files.reading import check_place


def read_column(path: StrPath, name: str, options: ReadOptions | None = None) -> NDArray[Any]:
    """Return the (N,) field `name` of a file, numbers or text.

    Raises:
        PredictionsError: no such field, one that isn't of shape (N,), or a format of single arrays.
    """
    where, options = fspath(path), options or ReadOptions()
    folder = is_folder(where) and not is_data_set(where) and not is_log(where)
    if folder or options.format == "npy" or extension_of(where) == ".npy":
        known = [end for each in FORMATS.values() for end in each.extensions if end != ".npy"]
        raise PredictionsError(
            f"{where}: a column such as '{name}' can be read from {', '.join(known)} only"
        )
    check_place(where, options)
    with open_rows(where, options) as file, readable(f"column '{name}'", where):
        if name not in file.names():
            raise PredictionsError(f"{where}: there is no column '{name}'")
        column = file.everything([name], [name])[name]
    if column.ndim != 1:
        raise PredictionsError(f"{where}: '{name}' must have shape (N,), not {column.shape}")
    return column


def read_ids(path: StrPath, options: ReadOptions | None = None) -> NDArray[Any] | None:
    """Return what rows of a file are called, (N,), or None where it doesn't say.

    That is the field that `options` names as ``id``, or one called ``id``.

    Raises:
        PredictionsError: the named field isn't there, or isn't of shape (N,).
    """
    where, options = fspath(path), options or ReadOptions()
    if options.id is not None:
        return read_column(path, options.id, options)
    if is_folder(where) and not is_data_set(where) and not is_log(where):
        return None
    with open_rows(where, options) as file:
        if "id" not in file.names() or len(file.shape("id")) != 1:
            return None
    return read_column(path, "id", options)


def read_images(path: StrPath) -> NDArray[Any]:
    """Return the pictures of a ``.npy`` file, mapped, not read.

    Raises:
        PredictionsError: it is no such file.
    """
    where = fspath(path)
    check_regular(Path(where), where)
    with readable("images", where), open(where, "rb") as file:
        return npy_stream(file, where, mapped=True).whole()
