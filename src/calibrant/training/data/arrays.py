"""Image sets as arrays of NumPy: train.npz, test.npz and maybe val.npz in one folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import numpy as np

from calibrant.core.errors import InputError
from calibrant.files.keys import readable
from calibrant.training.data.images import ImageSet

SPLITS = {
    "train": ("train.npz",),
    "validation": ("val.npz", "valid.npz", "validation.npz"),
    "test": ("test.npz",),
}


def is_arrays(folder: Path) -> bool:
    """Whether a folder holds arrays to train on."""
    return (folder / SPLITS["train"][0]).is_file()


def read_arrays(folder: Path) -> dict[str, ImageSet]:
    """Read `images` (N, H, W, 3) or (N, H, W), uint8, and `labels` (N,) of each split there is.

    Raises:
        InputError: a file can't be read, or lacks one of the two, or they are no images; or there
            are two files of one split.
    """
    found: dict[str, ImageSet] = {}
    for split, names in SPLITS.items():
        files = [folder / name for name in names if (folder / name).is_file()]
        if len(files) > 1:
            both = " and ".join(file.name for file in files)
            raise InputError(f"{folder}: holds {both}, which are of one split; keep one of them")
        if files:
            found[split] = _images(files[0])
    return found


def _images(file: Path) -> ImageSet:
    if not is_zipfile(file):
        raise InputError(
            f"{file}: can't read the arrays: is no npz file, or cut short; numpy.savez writes one"
        )
    with readable("the arrays", str(file)), file.open("rb") as opened:
        content: Any = np.load(opened, allow_pickle=False)
        present = list(content)
        arrays = [content[name] for name in ("images", "labels") if name in present]
    if len(arrays) < 2:
        raise InputError(
            f"{file}: needs the arrays images and labels, but has: {', '.join(present) or 'none'}"
        )
    return ImageSet.from_rows(arrays[0], arrays[1], str(file))
