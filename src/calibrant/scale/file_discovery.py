"""Which files are meant: paths, folders, globs, manifests and URLs become one list, in order."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any, cast

from calibrant.core.errors import InputError, PredictionsError
from calibrant.files.formats import EXTENSIONS
from calibrant.files.formats.logs.reader import is_log
from calibrant.files.formats.numpy_files import SCORES
from calibrant.files.gate import check_name, load_json
from calibrant.files.opening import (
    entries,
    extension_of,
    is_file,
    is_folder,
    is_url,
    matching,
    name_of,
    open_binary,
    within,
)

Where = str | PathLike[str]
# Manifests that name manifests, one within the other.
MOST_MANIFESTS = 8
MANIFESTS = (".txt", ".list", ".manifest", ".json")
# Says, in a folder of calibrated shards, what calibrated them.
RECORD = "calibrant-apply.json"
# What Hugging Face's `save_to_disk` leaves beside its Arrow files.
OF_ARROW_FOLDERS = ("state.json", "dataset_info.json", "dataset_dict.json")


def located(wheres: Where | Sequence[Where]) -> list[str]:
    """Return the files that are meant, each once.

    A folder stands for the files of predictions in it, by name (``2`` before ``10``); one
    that holds ``logits.npy`` and the like is itself one set. In a folder that a calibrator wrote
    folders count as well. A pattern with ``*``, ``?`` or ``[`` stands for what it finds, sorted
    alike. A manifest (``.txt``, ``.list``, ``.manifest``: a place a line; ``.json``: a list of
    them) stands for what it names, in its order, beside itself.

    Raises:
        PredictionsError: nothing is there. InputError: a file is named twice.
    """
    several = [wheres] if isinstance(wheres, str | PathLike) else list(wheres)
    found = [place for where in several for place in _files_of(fspath(where))]
    if not found:
        raise PredictionsError("there are no files of predictions to read")
    seen: set[str] = set()
    for place in found:
        key = place if is_url(place) else str(Path(place).resolve())
        if key in seen:
            raise InputError(f"{place}: is named twice; each shard counts once")
        seen.add(key)
    return found


def stands_for_many(wheres: Sequence[Where]) -> bool:
    """Return whether this is more than the one file that a command without shards would read."""
    if len(wheres) != 1:
        return True
    where = fspath(wheres[0])
    if is_url(where) or (_is_pattern(where) and not Path(where).exists()):
        return True
    if is_folder(where):
        return not (_is_one_set(where) or is_log(where))
    return extension_of(where) in MANIFESTS and is_file(where) and not is_log(where)


def _files_of(where: str, above: tuple[str, ...] = ()) -> Iterator[str]:
    check_name(where)
    if _is_pattern(where) and (is_url(where) or not Path(where).exists()):
        found = sorted(matching(where), key=by_number)
        files = [place for place in found if extension_of(place) in EXTENSIONS and is_file(place)]
        if not files:
            raise PredictionsError(f"{where}: no file of predictions goes by this pattern")
        yield from _without_companions(files)
    elif is_log(where):
        yield where
    elif is_folder(where):
        yield from [where] if _is_one_set(where) else _of_folder(where)
    elif extension_of(where) in MANIFESTS:
        if len(above) >= MOST_MANIFESTS or where in above:
            raise PredictionsError(f"{where}: is a manifest that names itself, or too many others")
        yield from _of_manifest(where, above)
    else:
        yield where


def _is_pattern(where: str) -> bool:
    return re.search(r"[*?\[]", where) is not None


def _is_one_set(folder: str) -> bool:
    return any(is_file(within(folder, f"{key}.npy")) for key in SCORES)


def _of_folder(folder: str, *, deep: bool = False) -> list[str]:
    deep = deep or is_file(within(folder, RECORD))
    inside = sorted(entries(folder), key=by_number)
    files = [
        place
        for place in inside
        if extension_of(place) in EXTENSIONS
        and not name_of(place).startswith((".", "_"))
        and is_file(place)
    ]
    for place in inside:
        if is_folder(place):
            data_set = any(is_file(within(place, name)) for name in OF_ARROW_FOLDERS)
            if deep and _is_one_set(place):
                files.append(place)
            elif deep or data_set:
                files += _of_folder(place, deep=deep)
    files = _without_companions(files)
    if not files:
        raise PredictionsError(
            f"{folder}: holds no file of predictions; expected {', '.join(EXTENSIONS)}"
        )
    return files


def _without_companions(files: list[str]) -> list[str]:
    """Leave out the `.npy` files that go with others: labels, features and the like."""
    scores = tuple(f"{key}.npy" for key in SCORES)
    return [f for f in files if extension_of(f) != ".npy" or name_of(f).endswith(scores)]


def _of_manifest(where: str, above: tuple[str, ...]) -> Iterator[str]:
    with open_binary(where) as file:
        text = file.read().decode("utf-8", errors="replace")
    if extension_of(where) == ".json":
        content: Any = load_json(text, where)
        if isinstance(content, dict):
            content = cast(dict[str, Any], content).get("shards")
        named = cast(list[Any], content) if isinstance(content, list) else None
        if named is None or not all(isinstance(one, str) for one in named):
            raise PredictionsError(
                f"{where}: a manifest holds a list of paths or URLs, or one under 'shards'"
            )
        names = cast(list[str], named)
    else:
        lines = [line.strip() for line in text.splitlines()]
        names = [line for line in lines if line and not line.startswith("#")]
    if not names:
        raise PredictionsError(f"{where}: the manifest names no files")
    folder = where.rpartition("/")[0] if is_url(where) else str(Path(where).parent)
    for name in names:
        here = is_url(name) or (not is_url(folder) and Path(name).is_absolute())
        yield from _files_of(name if here else within(folder, name), (*above, where))


def by_number(place: str) -> list[tuple[int, int | str]]:
    """Return a key that sorts names by the numbers in them: 2 before 10."""
    parts = re.split(r"(\d+)", place)
    return [(0, int(part)) if i % 2 else (1, part) for i, part in enumerate(parts)]
