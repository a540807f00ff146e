"""Image sets in Arrow files: folders of `save_to_disk` and of the cache of Hugging Face datasets.

A folder of `save_to_disk` holds a folder for each split, with ``data-00000-of-00001.arrow`` and the
like; a cache holds ``NAME-train.arrow`` or ``NAME-train-00000-of-00002.arrow``, often some folders
deeper. Columns and class names are those of parquet files.

The files are mapped into memory, and images decoded batch by batch: a set may be larger than the
memory is.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from calibrant.core.checks import check_labels
from calibrant.core.errors import InputError
from calibrant.files.keys import optional, readable
from calibrant.training.data.images import ByteArray, decode, decoded_batch, tensor
from calibrant.training.data.parquet import (
    IMAGE_COLUMNS,
    LABEL_COLUMNS,
    SPLITS,
    class_names,
    column,
    encoded,
)


def find_arrow(folder: Path) -> dict[str, list[Path]]:
    """Return the Arrow files of each split (train, validation, test) of a folder, in order.

    Raises:
        InputError: several folders in it hold files of the same split.
    """
    saved = {
        split: files
        for split, names in SPLITS.items()
        for name in names
        if (files := sorted((folder / name).glob("data-*.arrow")))
    }
    if saved:
        return saved
    found: dict[str, list[Path]] = {}
    for file in sorted(folder.rglob("*.arrow")):
        # Files called cache-... hold what somebody computed from the set.
        split = None if file.name.startswith("cache-") else _split_of(file.name)
        if split is not None:
            found.setdefault(split, []).append(file)
    for split, files in found.items():
        if len(places := {str(file.parent) for file in files}) > 1:
            raise InputError(
                f"{folder}: several folders in it hold Arrow files of '{split}': "
                f"{', '.join(sorted(places))}; name one"
            )
    return found if "train" in found else {}


def _split_of(name: str) -> str | None:
    found = re.fullmatch(r".*-([a-z]+)(-\d+-of-\d+)?\.arrow", name)
    splits = [split for split, names in SPLITS.items() if found and found[1] in names]
    return splits[0] if splits else None


@dataclass(frozen=True, eq=False)
class ArrowImages:
    """Images in Arrow files, decoded batch by batch.

    Attributes:
        tables: the files, mapped into memory, and their names.
        column: that of the images.
        rows: (N,) positions in all tables one after another.
        labels: (N,) int64.
        size: (height, width) to which every image is stretched; None keeps the size, which then
            must be the same for all images of a batch.
    """

    tables: Sequence[tuple[Path, Any]]
    column: str
    rows: Tensor
    labels: Tensor
    size: tuple[int, int] | None = None
    ends: list[int] = field(init=False)

    def __post_init__(self) -> None:
        ends = np.cumsum([table.num_rows for _, table in self.tables]).tolist()
        object.__setattr__(self, "ends", ends)

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, index: Tensor) -> Tensor:
        """Return the (B, 3, H, W) bytes of the images at an index of B rows, in its order."""
        wanted = cast(list[int], cast(Any, self.rows[index]).tolist())
        return decoded_batch(self._decode, wanted, self.tables[0][0])

    def take(self, index: Tensor) -> ArrowImages:
        """Return the images at an index, in its order; the files stay where they are."""
        rows, labels = self.rows[index], self.labels[index]
        return ArrowImages(self.tables, self.column, rows, labels, self.size)

    def _decode(self, row: int) -> ByteArray:
        number = bisect_right(self.ends, row)
        file, table = self.tables[number]
        row -= self.ends[number - 1] if number else 0
        content = encoded(table[self.column][row].as_py())
        if not isinstance(content, bytes):
            raise InputError(f"{file}: row {row} of '{self.column}' holds no encoded image")
        return decode(content, f"{file}, row {row}", self.size)


def read_arrow_images(
    files: Sequence[Path], size: tuple[int, int] | None = None
) -> tuple[ArrowImages, tuple[str, ...] | None]:
    """Open the images of one split, and return the names of the classes if the files have any.

    Raises:
        InputError: a file can't be read, or lacks a column of images or labels.
        MissingDependencyError: pyarrow isn't there.
    """
    pyarrow = optional("pyarrow", "pyarrow", "train")
    ipc = optional("pyarrow.ipc", "pyarrow", "train")
    tables: list[tuple[Path, Any]] = []
    labels: list[Any] = []
    images = ""
    names: tuple[str, ...] | None = None
    for file in files:
        with readable("the Arrow file", str(file)):
            # Data sets are written as streams; a file of the random-access kind begins with ARROW1.
            source = pyarrow.memory_map(str(file))
            random_access = source.read(6) == b"ARROW1"
            source.seek(0)
            opened: Any = (ipc.open_file if random_access else ipc.open_stream)(source)
            table = opened.read_all()
            images = column(table.column_names, IMAGE_COLUMNS, "images", file)
            label = column(table.column_names, LABEL_COLUMNS, "labels", file)
            truth = np.asarray(table[label].to_numpy())
        labels.append(check_labels(truth, table.num_rows, None, str(file), label))
        names = class_names(table.schema.metadata or {}, label)
        tables.append((file, table))
    known = tensor(np.concatenate(labels))
    if not len(known):
        raise InputError(f"{files[0]}: holds no images")
    return ArrowImages(tables, images, torch.arange(len(known)), known, size), names
