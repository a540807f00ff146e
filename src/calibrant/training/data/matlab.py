"""SVHN's cropped digits as they are published: train_32x32.mat and test_32x32.mat."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from calibrant.core.errors import InputError
from calibrant.files.keys import readable
from calibrant.training.data.images import ImageSet

FILES = {"train": "train_32x32.mat", "test": "test_32x32.mat"}
DIGITS = tuple("0123456789")


def is_digits(folder: Path) -> bool:
    """Whether a folder holds SVHN's files."""
    return (folder / FILES["train"]).is_file()


def read_digits(folder: Path) -> dict[str, ImageSet]:
    """Read ``X`` (32, 32, 3, N), uint8, and ``y`` (N, 1) of both files; 10 stands for the digit 0.

    Raises:
        InputError: a file is missing or can't be read, or lacks one of the two, or they are no
            such images.
    """
    return {split: _images(folder / name) for split, name in FILES.items()}


def _images(file: Path) -> ImageSet:
    from scipy.io import loadmat

    if not file.is_file():
        raise InputError(f"{file}: is missing")
    with readable("the MATLAB file", str(file)):
        content: dict[str, Any] = loadmat(str(file), variable_names=["X", "y"])
    missing = [name for name in ("X", "y") if name not in content]
    if missing:
        raise InputError(f"{file}: needs the arrays X and y, but lacks {' and '.join(missing)}")
    images, labels = content["X"], content["y"]
    if images.ndim != 4 or labels.size != images.shape[-1]:
        raise InputError(
            f"{file}: X of shape {images.shape} and y of shape {labels.shape} are not images "
            "(32, 32, 3, N) with N labels"
        )
    return ImageSet.from_rows(images.transpose(3, 0, 1, 2), np.ravel(labels) % 10, str(file))
