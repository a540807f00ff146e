"""Folders that hold predictions: runs of `calibrant train`, and files side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from calibrant.files.gate import load_json

# What a run of `calibrant train` leaves, and what is read of it.
RUN_FILES = ("val.npz", "test.npz")
# Files of predictions in a folder; .npy scores come with labels of their own, and are named alone.
SUFFIXES = {".npz", ".csv", ".parquet", ".safetensors", ".pt", ".h5", ".hdf5"}


def is_run(folder: Path) -> bool:
    """Return whether a folder holds the predictions of a run."""
    return all((folder / name).is_file() for name in RUN_FILES)


def read_configuration(file: Path) -> dict[str, Any]:
    """Return what ``config.json`` of a run says.

    Raises:
        OSError: it can't be read.
        ValueError: it is no JSON object.
    """
    document = load_json(file.read_bytes(), str(file))
    if not isinstance(document, dict):
        raise ValueError("must be a JSON object")
    return cast(dict[str, Any], document)
