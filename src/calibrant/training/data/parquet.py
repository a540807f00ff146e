"""Image sets in the parquet layout of the Hugging Face Hub.

A folder, or the one subfolder of it that has any (``data``, or the name of the configuration, such
as ``plain_text``), holds ``train-00000-of-00001.parquet`` and the like. A column of images holds
encoded files, one column the class numbers, and the metadata the class names:

===================  ==========  =======================
data set             images      labels
===================  ==========  =======================
CIFAR-10             ``img``     ``label``
CIFAR-100            ``img``     ``fine_label``
SVHN, Tiny-ImageNet  ``image``   ``label``
===================  ==========  =======================
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from calibrant.core.checks import check_labels
from calibrant.core.errors import InputError
from calibrant.files.keys import optional, readable
from calibrant.training.data.images import ImageSet, decode

IMAGE_COLUMNS = ("img", "image")
LABEL_COLUMNS = ("fine_label", "label", "labels")
SPLITS = {"train": ("train",), "validation": ("validation", "valid", "val"), "test": ("test",)}


class ParquetImages(NamedTuple):
    """What a parquet file says: the images, and the names of the classes if it has any."""

    images: ImageSet
    class_names: tuple[str, ...] | None


def find_parquet(folder: Path) -> dict[str, list[Path]]:
    """Return the files of each split (train, validation, test) that a folder has, in order.

    Raises:
        InputError: more than one of its subfolders has some.
    """
    here = _splits_of(folder)
    if here:
        return here
    below = {place.name: _splits_of(place) for place in sorted(folder.iterdir()) if place.is_dir()}
    found = {name: splits for name, splits in below.items() if splits}
    if len(found) > 1:
        raise InputError(
            f"{folder}: several folders in it hold parquet files: {', '.join(found)}; name one"
        )
    return next(iter(found.values())) if found else {}


def _splits_of(place: Path) -> dict[str, list[Path]]:
    found = {split: sorted(_files_of(place, names)) for split, names in SPLITS.items()}
    return {split: files for split, files in found.items() if files}


def _files_of(folder: Path, names: Sequence[str]) -> Iterator[Path]:
    for name in names:
        yield from folder.glob(f"{name}-*.parquet")
        yield from folder.glob(f"{name}.parquet")


def read_parquet_images(files: Sequence[Path]) -> ParquetImages:
    """Read and decode the images of one split.

    Raises:
        InputError: a file can't be read, lacks a column of images or labels, or holds an image that
            can't be decoded or differs in size from the others; the message names the file.
        MissingDependencyError: pyarrow or Pillow isn't there.
    """
    rows: list[Any] = []
    labels: list[Any] = []
    names: tuple[str, ...] | None = None
    for file in files:
        contents, truth, names = _read_columns(file)
        with ThreadPoolExecutor() as pool:
            sources = (f"{file}, row {row}" for row in range(len(contents)))
            pixels = list(pool.map(decode, contents, sources))
        rows += pixels
        labels.append(truth)
    if not rows:
        raise InputError(f"{files[0]}: holds no images")
    if len({image.shape for image in rows}) != 1:
        raise InputError(f"{files[0]}: the images must all have one size to be held in memory")
    images, truth = np.stack(rows), np.concatenate(labels)
    return ParquetImages(ImageSet.from_rows(images, truth, str(files[0].parent)), names)


def _read_columns(file: Path) -> tuple[list[bytes], Any, tuple[str, ...] | None]:
    parquet = optional("pyarrow.parquet", "pyarrow", "train")
    with readable("the parquet file", str(file)):
        archive: Any = parquet.ParquetFile(file)
        schema = archive.schema_arrow
        image = column(schema.names, IMAGE_COLUMNS, "images", file)
        label = column(schema.names, LABEL_COLUMNS, "labels", file)
        table = archive.read(columns=[image, label])
        contents = [encoded(cell) for cell in table[image].to_pylist()]
        truth = np.asarray(table[label].to_numpy())
    for row, content in enumerate(contents):
        if not isinstance(content, bytes):
            raise InputError(f"{file}: row {row} of '{image}' holds no encoded image")
    # Here, where rows have the numbers that they have in the file.
    truth = check_labels(truth, len(contents), None, str(file), label)
    return contents, truth, class_names(schema.metadata or {}, label)


def column(names: Sequence[str], known: Sequence[str], what: str, file: Path) -> str:
    """Return the first of the known columns that a file has.

    Raises:
        InputError: it has none.
    """
    for name in known:
        if name in names:
            return name
    raise InputError(
        f"{file}: no column of {what}; expected one of {', '.join(known)}, found {', '.join(names)}"
    )


def encoded(cell: Any) -> Any:
    """Return the bytes of a cell, which in the Hub's files is a pair of bytes and path."""
    return cell.get("bytes") if hasattr(cell, "keys") else cell


def class_names(metadata: dict[bytes, bytes], label: str) -> tuple[str, ...] | None:
    """Return the class names that the Hub's metadata give for the column of labels."""
    try:
        names = json.loads(metadata[b"huggingface"])["info"]["features"][label]["names"]
    except (KeyError, ValueError, TypeError, RecursionError):
        return None
    listed = cast(list[Any], names) if isinstance(names, list) else []
    return tuple(listed) if listed and all(isinstance(name, str) for name in listed) else None
