"""NumPy's own formats: ``.npz`` archives and memory-mapped ``.npy`` arrays."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap

from calibrant.core.arrays import Array
from calibrant.core.errors import InputError, PredictionsError
from calibrant.files.atomic import whole_set
from calibrant.files.bounds import check_member, check_members
from calibrant.files.choosing import select
from calibrant.files.keys import (
    LABELS,
    OF_THE_NETWORK,
    PREDICTED,
    SCORES,
    WEIGHT,
    Arrays,
    Wanted,
    assemble,
    readable,
)
from calibrant.predictions.predictions import Predictions

BESIDE_SCORES = (*LABELS, *PREDICTED, "features", WEIGHT, *OF_THE_NETWORK)
EXPECTED_FILES = (
    "PREFIXlogits.npy or PREFIXprobs.npy (PREFIXlogit.npy or PREFIXprob.npy of binary predictions) "
    "beside PREFIXlabels.npy, or any name with its kind and file of labels given"
)


def read_npz(path: Path, wanted: Wanted, source: str) -> Predictions:
    """Read the arrays needed from an ``.npz`` archive."""
    # `np.load` given the name would leave the file open when the archive is damaged.
    with readable("the npz archive", source), path.open("rb") as file:
        # For whatever is no zip, `np.load` would speak of pickles.
        if not zipfile.is_zipfile(file):
            raise PredictionsError(f"{source}: is no npz archive, or cut short")
        file.seek(0)
        archive: Any = np.load(file, allow_pickle=False)
        check_members(archive.zip, source)
        keys = select(archive.files, wanted, source)

        def get(key: str) -> Array:
            return member(archive, key, source)

        return assemble(keys, _numbers_only(get, source), source)


def member(archive: Any, key: str, source: str) -> Any:
    """Return the array `key` of an open npz archive, once its size is known to be true.

    A member that is no array comes as bytes.

    Raises:
        PredictionsError: it claims to be larger than it is.
    """
    check_member(archive.zip, key, source)
    return archive[key]


def read_npy(path: Path, wanted: Wanted, source: str, labels: Path | None = None) -> Predictions:
    """Memory-map the ``.npy`` arrays of a folder, or the ones that share a prefix with `path`."""
    if path.is_dir():
        files = _siblings(path, "", ".npy")
    else:
        files: dict[str, Path] = {}
        held = SCORES.get(wanted.kind) if wanted.kind is not None else None
        for key in SCORES.values():
            if path.stem.endswith(key):
                files = _siblings(path.parent, path.stem.removesuffix(key), path.suffix)
                held = held or key
        if held is None:
            raise PredictionsError(
                f"{source}: the name doesn't say what the array is; expected {EXPECTED_FILES}"
            )
        kept = {key: file for key, file in files.items() if key not in SCORES.values()}
        files = {held: path, **kept}
    if labels is not None:
        files = {key: file for key, file in files.items() if key not in LABELS}
        files["labels"] = labels
    keys = select(files, wanted, source, expected=EXPECTED_FILES)

    def opened(key: str) -> Array:
        with readable(f"'{key}'", source):
            return open_memmap(files[key], mode="r")

    get = _numbers_only(opened, source)
    with whole_set(path if path.is_dir() else path.parent, exclusive=False):
        arrays = {key: get(key) for key in keys.used}
    return assemble(keys, arrays.__getitem__, source)


def _siblings(folder: Path, prefix: str, suffix: str) -> dict[str, Path]:
    files = {key: folder / f"{prefix}{key}{suffix}" for key in (*SCORES.values(), *BESIDE_SCORES)}
    return {key: file for key, file in files.items() if file.is_file()}


def _numbers_only(get: Callable[[str], Array], source: str) -> Callable[[str], Array]:
    """Say plainly what NumPy's refusal of an object array means."""

    def checked(key: str) -> Array:
        try:
            return get(key)
        except ValueError as error:
            if "allow_pickle" in str(error) or "Python objects" in str(error):
                raise PredictionsError(
                    f"{source}: '{key}' holds pickled Python objects, which are refused because "
                    "they can run code; save an array of numbers"
                ) from error
            raise

    return checked


def write_npz(arrays: Arrays, path: Path) -> None:
    """Write a compressed ``.npz`` archive."""
    # `Any`, because NumPy's types take any key for the `allow_pickle` of its newer versions.
    save: Any = np.savez_compressed
    save(path, **arrays)


def npy_parts(arrays: Arrays, path: Path, source: str) -> dict[Path, Arrays]:
    """Return which array goes to which ``.npy`` file, when the scores go to `path`.

    Raises:
        InputError: `path` doesn't end in the name of the scores, or a file of labels, features and
            the like is there that these predictions lack and that would be read along with them.
    """
    scores = next(key for key in SCORES.values() if key in arrays)
    if not path.stem.endswith(scores):
        raise InputError(f"{source}: the name must end in {scores}{path.suffix} to hold {scores}")
    prefix = path.stem.removesuffix(scores)
    beside: list[str] = [] if scores == SCORES["toplabel"] else ["features", *OF_THE_NETWORK]
    beside.append(WEIGHT)
    if arrays.keys().isdisjoint(LABELS):
        beside.extend(LABELS)
    for key in [key for key in beside if key not in arrays]:
        stale = path.with_name(f"{prefix}{key}{path.suffix}")
        if stale.exists():
            raise InputError(
                f"{source}: {stale.name} lies beside it and would pass for the {key} of these "
                "rows; remove it, or choose another name"
            )
    return {
        path.with_name(f"{prefix}{key}{path.suffix}"): {key: array} for key, array in arrays.items()
    }


def write_npy(arrays: Arrays, path: Path) -> None:
    """Write the one array to a ``.npy`` file."""
    (array,) = arrays.values()
    np.save(path, array, allow_pickle=False)
