"""Image sets in binary formats of their own: CIFAR's archives, IDX, and the arrays of CIFAR-C."""

from __future__ import annotations

import gzip
import math
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.core.errors import InputError
from calibrant.files.keys import readable
from calibrant.training.data.images import ByteArray, ImageSet
from calibrant.training.data.pickled import images_of, names_of, unpickled

SIDE = 32


@dataclass(frozen=True)
class _Layout:
    """A binary version of CIFAR: rows of `label_bytes` and then 3 x 32 x 32 pixels."""

    train: tuple[str, ...]
    test: tuple[str, ...]
    names: str
    label_bytes: int
    # Of the version for Python: the names of labels and of class names; None for the binary one.
    keys: tuple[str, str] | None = None


CIFAR10 = _Layout(
    tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    ("test_batch.bin",),
    "batches.meta.txt",
    1,
)
# The first of its two labels is the coarse one.
CIFAR100 = _Layout(("train.bin",), ("test.bin",), "fine_label_names.txt", 2)

PICKLED10 = _Layout(
    tuple(f"data_batch_{number}" for number in range(1, 6)),
    ("test_batch",),
    "batches.meta",
    0,
    ("labels", "label_names"),
)
PICKLED100 = _Layout(("train",), ("test",), "meta", 0, ("fine_labels", "fine_label_names"))


def is_cifar(path: Path) -> bool:
    """Whether a folder or a tar archive is CIFAR, in the binary version or that for Python."""
    return _layout(path) is not None


def read_cifar(path: Path) -> tuple[ImageSet, ImageSet, tuple[str, ...] | None]:
    """Read the training and the test images, and the class names, of CIFAR-10 or CIFAR-100.

    Args:
        path: the folder with the .bin files, or the (compressed) tar archive as published.

    Raises:
        InputError: a file is missing or is no whole number of rows.
    """
    layout = _layout(path)
    if layout is None:
        raise InputError(f"{path}: holds neither CIFAR-10 nor CIFAR-100")
    contents = _contents(path, (*layout.train, *layout.test, layout.names))
    if layout.keys is not None:
        return _from_pickles(contents, layout, layout.keys, path)
    train, test = (
        _cifar_rows([_member(contents, name, path) for name in names], layout, path)
        for names in (layout.train, layout.test)
    )
    names = contents.get(layout.names)
    with readable(layout.names, str(path)):
        return train, test, None if names is None else tuple(names.decode().split())


def _layout(path: Path) -> _Layout | None:
    present = _names_in(path)
    for layout in (CIFAR10, CIFAR100):
        if layout.test[0] in present:
            return layout
    # A name such as "test" says little alone.
    pickled = (PICKLED10, PICKLED100)
    return next((one for one in pickled if present >= {one.test[0], one.names}), None)


def _from_pickles(
    contents: dict[str, bytes], layout: _Layout, keys: tuple[str, str], path: Path
) -> tuple[ImageSet, ImageSet, tuple[str, ...] | None]:
    label, names = keys
    train, test = (
        images_of(
            [unpickled(_member(contents, name, path), f"{path}, {name}") for name in files],
            label,
            str(path),
        )
        for files in (layout.train, layout.test)
    )
    meta = unpickled(_member(contents, layout.names, path), f"{path}, {layout.names}")
    return train, test, names_of(meta, names)


def _names_in(path: Path) -> set[str]:
    if path.is_dir():
        with readable("the folder", str(path)):
            return {item.name for item in path.iterdir()}
    if ".tar" not in path.suffixes:
        return set()
    with readable("the archive", str(path)), tarfile.open(path) as archive:
        return {Path(name).name for name in archive.getnames()}


def _contents(path: Path, names: Sequence[str]) -> dict[str, bytes]:
    if path.is_dir():
        with readable("the binary files", str(path)):
            return {name: (path / name).read_bytes() for name in names if (path / name).is_file()}
    found: dict[str, bytes] = {}
    with readable("the archive", str(path)), tarfile.open(path) as archive:
        for member in archive:
            file = archive.extractfile(member) if Path(member.name).name in names else None
            if file is not None:
                found[Path(member.name).name] = file.read()
    return found


def _member(contents: dict[str, bytes], name: str, path: Path) -> bytes:
    if name not in contents:
        raise InputError(f"{path}: {name} is missing")
    return contents[name]


def _cifar_rows(parts: Sequence[bytes], layout: _Layout, path: Path) -> ImageSet:
    width = layout.label_bytes + 3 * SIDE**2
    values = np.frombuffer(b"".join(parts), dtype=np.uint8)
    if len(values) == 0 or len(values) % width:
        raise InputError(
            f"{path}: the binary files hold {len(values)} bytes, not a multiple of the {width} "
            "that each image takes"
        )
    rows = values.reshape(-1, width)
    pixels = rows[:, layout.label_bytes :].reshape(-1, 3, SIDE, SIDE)
    labels = rows[:, layout.label_bytes - 1]
    return ImageSet.from_rows(pixels.transpose(0, 2, 3, 1), labels, str(path))


def is_idx(folder: Path) -> bool:
    """Whether a folder holds IDX files under MNIST's names."""
    return _idx_file(folder, "train", "images-idx3") is not None


def read_idx_folder(folder: Path) -> tuple[ImageSet, ImageSet]:
    """Read MNIST's files (or those of a set made like it), plain or gzipped: train and t10k.

    Grey becomes RGB, and 28x28 images get a black frame of two pixels, since the networks are made
    for 32x32.
    """
    train, test = (_idx_images(folder, split) for split in ("train", "t10k"))
    return train, test


def _idx_images(folder: Path, split: str) -> ImageSet:
    parts: list[NDArray[Any]] = []
    for kind in ("images-idx3", "labels-idx1"):
        file = _idx_file(folder, split, kind)
        if file is None:
            raise InputError(f"{folder}: {split}-{kind}-ubyte (or .gz) is missing")
        parts.append(read_idx(file))
    images, labels = parts
    if images.ndim != 3 or labels.ndim != 1:
        raise InputError(
            f"{folder}: the {split} images must have three dimensions and their labels one, not "
            f"{images.ndim} and {labels.ndim}"
        )
    if images.shape[1:] == (28, 28):
        images = np.pad(images, ((0, 0), (2, 2), (2, 2)))
    return ImageSet.from_rows(images, labels, f"{folder}, {split}")


def _idx_file(folder: Path, split: str, kind: str) -> Path | None:
    # Some mirrors write a dot for the second hyphen.
    names = [f"{split}-{form}-ubyte" for form in (kind, kind.replace("-idx", ".idx"))]
    candidates = [folder / f"{name}{ending}" for name in names for ending in ("", ".gz")]
    return next((file for file in candidates if file.is_file()), None)


def read_idx(file: Path) -> ByteArray:
    """Read one IDX file of bytes: a magic number, the big-endian lengths, then the values.

    Raises:
        InputError: it is no such file, or its length isn't what its header says.
    """
    with readable("the IDX file", str(file)):
        content = file.read_bytes()
        if file.suffix == ".gz":
            content = gzip.decompress(content)
    # Two zeros, 8 for unsigned bytes, and the number of dimensions.
    if len(content) < 4 or content[:3] != b"\x00\x00\x08":
        raise InputError(f"{file}: is no IDX file of bytes")
    start = 4 + 4 * content[3]
    if len(content) < start:
        raise InputError(f"{file}: ends within its header")
    shape = tuple(int(side) for side in np.frombuffer(content[4:start], dtype=">u4"))
    values = np.frombuffer(content[start:], dtype=np.uint8)
    if len(values) != math.prod(shape):
        raise InputError(f"{file}: holds {len(values)} values, but its header says {shape}")
    return values.reshape(shape)
