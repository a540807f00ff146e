"""Images in folders: a folder for each class, or lists of files, read batch by batch.

========================  ====================================================================
ImageNet, its Sketch      ``train/n01440764/*.JPEG`` and so on: `read_class_folders`
ImageNet-C                ``CORRUPTION/SEVERITY/n01440764/*.JPEG``: the same, at the innermost
ImageNet-LT               a text file of ``train/n01440764/x.JPEG 0`` lines: `read_list`
CUB-200-2011              ``images.txt``, ``image_class_labels.txt``, ...: `read_cub`
FGVC-Aircraft             ``data/images_variant_train.txt``, ...: `read_aircraft`
========================  ====================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from calibrant.core.errors import InputError
from calibrant.files.gate import readable
from calibrant.training.data.images import ImageFiles, Layout, Size

EXTENSIONS = (".jpeg", ".jpg", ".png", ".bmp", ".webp", ".ppm")
# The note with photographer and copyright below every photograph.
AIRCRAFT_BANNER = 20
# To which CUB and Aircraft are stretched.
LARGE = (448, 448)


class FolderImages(NamedTuple):
    """The sets of an image folder, and the names of the classes in the order of their numbers."""

    sets: dict[str, ImageFiles]
    class_names: tuple[str, ...]


def read_class_folders(
    folder: Path, size: Size = None, class_names: Sequence[str] | None = None
) -> tuple[ImageFiles, tuple[str, ...]]:
    """List the images of a folder that has one subfolder for each class.

    Args:
        folder: whose subfolders are the classes, numbered in alphabetic order.
        size: (height, width) to stretch the images to.
        class_names: the classes by number, where those of the network are known: a shifted test set
            may lack some of them, which mustn't renumber the others.

    Raises:
        InputError: there are no images, or a class that isn't in `class_names`.
    """
    with readable("the folder", str(folder)):
        present = sorted(item.name for item in folder.iterdir() if item.is_dir())
    names = tuple(present if class_names is None else class_names)
    numbers = {name: number for number, name in enumerate(names)}
    paths: list[Path] = []
    labels: list[int] = []
    for name in present:
        if name not in numbers:
            raise InputError(f"{folder / name}: no class of the training set is called '{name}'")
        below = (folder / name).rglob("*")
        found = sorted(item for item in below if item.suffix.lower() in EXTENSIONS)
        paths += found
        labels += [numbers[name]] * len(found)
    return _files(paths, labels, size, folder), names


def read_list(list_file: Path, root: Path, size: Size = None) -> ImageFiles:
    """List the images that a text file names, as ImageNet-LT does: a path below `root`, a label.

    Raises:
        InputError: a line isn't of this form, or its file doesn't exist.
    """
    paths: list[Path] = []
    labels: list[int] = []
    for number, line in enumerate(_lines(list_file), start=1):
        name, _, text = line.strip().rpartition(" ")
        label = _class_number(text)
        if not name or label is None:
            raise InputError(f"{list_file}: line {number} is not of the form PATH LABEL")
        with readable(f"line {number}", str(list_file)):
            present = (root / name).is_file()
        if not present:
            raise InputError(f"{list_file}: line {number} names {root / name}, which isn't there")
        paths.append(root / name)
        labels.append(label)
    return _files(paths, labels, size, list_file)


def _class_number(text: str) -> int | None:
    """Return a whole number that an int64 holds; None for any other text."""
    plain = text.isascii() and text.isdigit() and len(text.lstrip("0")) <= 18
    return int(text) if plain else None


def read_cub(folder: Path, size: Size = LARGE) -> FolderImages:
    """List the 200 classes of birds in CUB-200-2011 (Wah et al., 2011), with its own split."""
    images, labels, training, names = (
        _numbered(folder / file)
        for file in (
            "images.txt",
            "image_class_labels.txt",
            "train_test_split.txt",
            "classes.txt",
        )
    )
    sets: dict[str, ImageFiles] = {}
    for split, flag in (("train", "1"), ("test", "0")):
        rows = [row for row in images if training.get(row) == flag]
        paths = [folder / "images" / images[row] for row in rows]
        numbers: list[int] = []
        for row in rows:
            number = _class_number(labels.get(row, ""))
            # They count from 1.
            if not number:
                raise InputError(
                    f"{folder / 'image_class_labels.txt'}: image '{row}' needs a class number from "
                    f"1, not '{labels.get(row, '')[:40]}'"
                )
            numbers.append(number - 1)
        sets[split] = _files(paths, numbers, size, folder)
    return FolderImages(sets, tuple(names.values()))


def _numbered(file: Path) -> dict[str, str]:
    lines = (line.partition(" ") for line in _lines(file))
    return {number: text.strip() for number, _, text in lines if number}


def _lines(file: Path) -> list[str]:
    with readable("the list", str(file)):
        return file.read_text(encoding="utf-8").splitlines()


def read_aircraft(folder: Path, size: Size = LARGE) -> FolderImages:
    """List the 100 variants of FGVC-Aircraft (Maji et al., 2013): train, validation and test.

    The banner below every photograph is cut off. `folder` is the one that holds ``data``, or that.
    """
    folder = folder / "data" if (folder / "data").is_dir() else folder
    names = tuple(_lines(folder / "variants.txt"))
    numbers = {name: number for number, name in enumerate(names)}
    sets: dict[str, ImageFiles] = {}
    for split, word in (("train", "train"), ("validation", "val"), ("test", "test")):
        file = folder / f"images_variant_{word}.txt"
        paths: list[Path] = []
        labels: list[int] = []
        for image, variant in _numbered(file).items():
            if variant not in numbers:
                raise InputError(f"{file}: '{variant}' isn't listed in variants.txt")
            paths.append(folder / "images" / f"{image}.jpg")
            labels.append(numbers[variant])
        sets[split] = _files(paths, labels, size, file, AIRCRAFT_BANNER)
    return FolderImages(sets, names)


def _files(
    paths: Sequence[Path], labels: Sequence[int], size: Size, source: Path, cut_bottom: int = 0
) -> ImageFiles:
    if not paths:
        raise InputError(f"{source}: holds no images")
    known = torch.tensor(labels, dtype=torch.int64)
    return ImageFiles(paths, known, _content, paths[0].parent, size, cut_bottom)


def _content(file: Path) -> tuple[bytes, str]:
    with readable("the image", str(file)):
        return file.read_bytes(), str(file)


def _with_splits(
    folder: Path, size: Size, _cache: Path | None
) -> tuple[dict[str, Any], Sequence[str] | None]:
    train, names = read_class_folders(folder / "train", size)
    sets: dict[str, Any] = {"train": train}
    for split, words in (("validation", ("val", "valid", "validation")), ("test", ("test",))):
        for word in words:
            if (folder / word).is_dir():
                sets[split], _ = read_class_folders(folder / word, size, names)
    return sets, names


CUB = Layout(
    "CUB-200-2011",
    lambda folder: folder if (folder / "image_class_labels.txt").is_file() else None,
    lambda folder, size, _: read_cub(folder, size or LARGE),
    stretches=True,
)
AIRCRAFT = Layout(
    "FGVC-Aircraft",
    lambda folder: next(
        (
            folder
            for place in (folder, folder / "data")
            if (place / "images_variant_train.txt").is_file()
        ),
        None,
    ),
    lambda folder, size, _: read_aircraft(folder, size or LARGE),
    stretches=True,
)
CLASS_FOLDERS = Layout(
    "or folders train/CLASS/ and test/CLASS/",
    lambda folder: folder if (folder / "train").is_dir() else None,
    _with_splits,
    stretches=True,
)
