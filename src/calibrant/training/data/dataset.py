"""A data set whatever its layout: the training images, the test images, and maybe a third set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import fspath
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.core.errors import InputError, TrainingWarning, warn_caller
from calibrant.core.outputs import StrPath
from calibrant.core.text import first_few
from calibrant.training.data.columns import ARROW, PARQUET
from calibrant.training.data.folders import AIRCRAFT, CLASS_FOLDERS, CUB
from calibrant.training.data.images import Images, Size
from calibrant.training.data.small_sets import ARRAYS, CIFAR, DIGITS, IDX

# In the order in which they are looked for.
LAYOUTS = (CIFAR, PARQUET, ARROW, DIGITS, ARRAYS, IDX, CUB, AIRCRAFT, CLASS_FOLDERS)
KNOWN = ", ".join(layout.words for layout in LAYOUTS)


@dataclass(frozen=True, eq=False)
class DataSet:
    """The sets of one data set, with labels that mean the same in all of them.

    Attributes:
        train: what to learn from, and to hold validation images out of.
        test: what to measure on; the official validation images where there are no others.
        validation: an official third set; None where there is none.
        n_classes: K.
        class_names: by class number, if the files say.
        source: where it was read from.
    """

    train: Images
    test: Images
    validation: Images | None
    n_classes: int
    class_names: tuple[str, ...] | None = None
    source: str = "data"

    def __post_init__(self) -> None:
        for name, images in (
            ("train", self.train),
            ("test", self.test),
            ("validation", self.validation),
        ):
            if images is None:
                continue
            if not len(images):
                raise InputError(f"{self.source}: the {name} set holds no images")
            low, high = int(images.labels.min()), int(images.labels.max())
            if low < 0 or high >= self.n_classes:
                raise InputError(
                    f"{self.source}: the {name} labels go from {low} to {high}, but there are "
                    f"{self.n_classes} classes, numbered from 0 to {self.n_classes - 1}"
                )

    def warn_of_empty_classes(self) -> None:
        """Warn if there are classes that no training row has: labels may start elsewhere than 0.

        Where the classes have names, labels were numbered along with them.
        """
        if self.class_names is not None:
            return
        rows = np.bincount(self.train.labels.numpy(), minlength=self.n_classes)
        empty = [str(label) for label in np.flatnonzero(rows == 0)]
        if empty:
            warn_caller(
                TrainingWarning(
                    f"{self.source}: no training row is of class {first_few(empty)}, among "
                    f"{self.n_classes} classes numbered from 0"
                )
            )


def read_data_set(
    path: StrPath,
    *,
    n_classes: int | None = None,
    size: Size = None,
    cache: StrPath | None = None,
) -> DataSet:
    """Read a data set; its layout is recognised by the names of its files.

    Small images are decoded into memory; those in folders and in Arrow files stay there, decoded
    batch by batch.

    Args:
        path: the folder or archive.
        n_classes: K, needed only if the files don't name the classes.
        size: (height, width) to stretch the images of folders and of Arrow files to; other layouts
            refuse it. CUB and Aircraft: 448x448 by default.
        cache: folder for the decoded images of parquet files, so that the next run needn't decode
            them; made if need be. Default: none is kept.

    Raises:
        InputError: no known layout, or something is missing or damaged; the message names it.
        MissingDependencyError: Pillow or pyarrow isn't there.
    """
    folder, source = Path(path), fspath(path)
    if not folder.exists():
        raise InputError(f"{source}: there is no such file or folder")
    for layout in LAYOUTS if folder.is_dir() else (CIFAR,):
        found = layout.find(folder)
        if not found:
            continue
        if size is not None and not layout.stretches:
            raise InputError(
                f"{source}: only images in folders and Arrow files can be stretched to a size"
            )
        sets, names = layout.read(found, size, None if cache is None else Path(cache))
        return _data_set(sets, names, n_classes, source)
    raise _unknown_layout(folder)


def _unknown_layout(path: Path) -> InputError:
    """Return the error for a path that holds no data set, which names what it does hold."""
    no_layout = f"{path}: is no data set of a known layout"
    if path.is_file():
        return InputError(f"{no_layout}, but a file; give the folder that it lies in, or: {KNOWN}")
    held = sorted(item.name for item in path.iterdir())
    if any(name.startswith("data-") and name.endswith(".arrow") for name in held):
        return InputError(
            f"{no_layout}, but a single split; give the folder above if that has train and test, "
            "or save both, as dataset.train_test_split(0.2).save_to_disk(...) does"
        )
    shown = first_few(held) or "nothing"
    return InputError(f"{no_layout}; it holds {shown}, where there should be {KNOWN}")


def _data_set(
    sets: dict[str, Any], names: Sequence[str] | None, n_classes: int | None, source: str
) -> DataSet:
    if n_classes is None and names is None:
        raise InputError(
            f"{source}: doesn't name its classes; give their number (n_classes=, --n-classes)"
        )
    count = len(names or ()) if n_classes is None else n_classes
    validation = sets.get("validation")
    test = sets.get("test", validation)
    if "train" not in sets or test is None:
        raise InputError(f"{source}: needs training and test images, but has: {', '.join(sets)}")
    # Tiny-ImageNet has no labelled test images: its validation images are what papers test on.
    validation = None if test is validation else validation
    names = None if names is None else tuple(names)
    return DataSet(sets["train"], test, validation, count, names, source)
