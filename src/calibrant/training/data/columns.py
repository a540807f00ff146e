"""Image sets in columns, as the Hugging Face Hub has them: parquet and Arrow files.

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

A folder of `save_to_disk` holds a folder for each split, with ``data-00000-of-00001.arrow`` and the
like; a cache of Hugging Face datasets ``NAME-train.arrow`` or ``NAME-train-00000-of-00002.arrow``,
often some folders deeper. Arrow files are mapped into memory, and their images decoded batch by
batch: a set may be larger than the memory is.
"""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from calibrant.core.checks import check_labels
from calibrant.core.errors import InputError
from calibrant.core.outputs import replacing
from calibrant.files.gate import optional, readable
from calibrant.training.data.images import (
    ImageFiles,
    ImageSet,
    Layout,
    Size,
    decode,
    tensor,
)

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


def read_arrow_images(
    files: Sequence[Path], size: Size = None
) -> tuple[ImageFiles, tuple[str, ...] | None]:
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
    ends: list[int] = np.cumsum([table.num_rows for _, table in tables]).tolist()

    def read(row: int) -> tuple[bytes, str]:
        number = bisect_right(ends, row)
        file, table = tables[number]
        row -= ends[number - 1] if number else 0
        content = encoded(table[images][row].as_py())
        if not isinstance(content, bytes):
            raise InputError(f"{file}: row {row} of '{images}' holds no encoded image")
        return content, f"{file}, row {row}"

    return ImageFiles(range(len(known)), known, read, files[0], size), names


def _kept(place: Path) -> ParquetImages | None:
    """Return the decoded images of a cache; None where there are none, or no whole ones."""
    if not place.is_file():
        return None
    try:
        with place.open("rb") as file:
            content: Any = np.load(file, allow_pickle=False)
            images = ImageSet(tensor(content["images"]), tensor(content["labels"]))
            return ParquetImages(images, tuple(content["names"].tolist()) or None)
    # A damaged file makes the decoder that meets it raise almost anything; it is written anew.
    except Exception:
        return None


def _cached(files: Sequence[Path], folder: Path | None) -> ParquetImages:
    """Read parquet images, by way of a file of the decoded ones that goes with just these files."""
    if folder is None:
        return read_parquet_images(files)
    stats = [(str(file.resolve()), file.stat()) for file in files]
    key = repr([(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats])
    digest = hashlib.blake2b(key.encode(), digest_size=8).hexdigest()
    place = folder / f"{files[0].name.split('-')[0]}-{digest}.npz"
    kept = _kept(place)
    if kept is not None:
        return kept
    read = read_parquet_images(files)
    folder.mkdir(parents=True, exist_ok=True)
    names = np.array(read.class_names or (), dtype=np.str_)
    images, labels = read.images.images.numpy(), read.images.labels.numpy()
    with replacing(place) as temporary:
        np.savez(temporary, images=images, labels=labels, names=names)
    return read


def _parquet(
    files: dict[str, list[Path]], cache: Path | None
) -> tuple[dict[str, Any], Sequence[str] | None]:
    parts = {split: _cached(paths, cache) for split, paths in files.items()}
    names = next(iter(parts.values())).class_names
    return {split: part.images for split, part in parts.items()}, names


def _arrow(files: dict[str, list[Path]], size: Size) -> tuple[dict[str, Any], Sequence[str] | None]:
    parts = {split: read_arrow_images(paths, size) for split, paths in files.items()}
    return {split: images for split, (images, _) in parts.items()}, parts["train"][1]


PARQUET = Layout(
    "train-*.parquet and test-*.parquet",
    find_parquet,
    lambda files, _, cache: _parquet(files, cache),
)
ARROW = Layout(
    "Arrow files of Hugging Face datasets",
    find_arrow,
    lambda files, size, _: _arrow(files, size),
    stretches=True,
)
