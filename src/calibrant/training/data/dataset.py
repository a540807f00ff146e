"""A data set whatever its layout: the training images, the test images, and maybe a third set."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import fspath
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.core.errors import InputError, TrainingWarning, warn_caller
from calibrant.files.atomic import StrPath, replacing
from calibrant.training.data.columns import (
    ParquetImages,
    find_arrow,
    find_parquet,
    read_arrow_images,
    read_parquet_images,
)
from calibrant.training.data.folders import read_aircraft, read_class_folders, read_cub
from calibrant.training.data.images import Images, ImageSet, tensor
from calibrant.training.data.small_sets import (
    DIGITS,
    is_arrays,
    is_cifar,
    is_digits,
    is_idx,
    read_arrays,
    read_cifar,
    read_digits,
    read_idx_folder,
)

LAYOUTS = (
    "train-*.parquet and test-*.parquet, Arrow files of Hugging Face datasets, CIFAR's files or "
    "archive, SVHN's .mat files, train.npz and test.npz, IDX files, CUB-200-2011, FGVC-Aircraft, "
    "or folders train/CLASS/ and test/CLASS/"
)

# The images of each split, and the names of the classes if the files say.
_Contents = tuple[dict[str, Any], Sequence[str] | None]


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
            shown = ", ".join(empty[:5]) + ", ..." * (len(empty) > 5)
            warn_caller(
                TrainingWarning(
                    f"{self.source}: no training row is of class {shown}, among "
                    f"{self.n_classes} classes numbered from 0"
                )
            )


def read_data_set(
    path: StrPath,
    *,
    n_classes: int | None = None,
    size: tuple[int, int] | None = None,
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
    stay = find_arrow(folder) if folder.is_dir() and not find_parquet(folder) else {}
    if stay:
        return _data_set(*_arrow(stay, size), n_classes, source)
    read = _reader_into_memory(folder, None if cache is None else Path(cache))
    if read is not None:
        if size is not None:
            raise InputError(
                f"{source}: only images in folders and Arrow files can be stretched to a size"
            )
        return _data_set(*read(), n_classes, source)
    if not folder.is_dir():
        raise _unknown_layout(folder)
    return _read_folders(folder, n_classes, size, source)


def _reader_into_memory(folder: Path, cache: Path | None) -> Callable[[], _Contents] | None:
    """Return what reads the layout of a folder or archive of small images; None for others."""
    if is_cifar(folder):
        return lambda: _cifar(folder)
    if not folder.is_dir():
        return None
    files = find_parquet(folder)
    if files:
        return lambda: _parquet(files, cache)
    if is_digits(folder):
        return lambda: (dict(read_digits(folder)), DIGITS)
    if is_arrays(folder):
        return lambda: (dict(read_arrays(folder)), None)
    return (lambda: _idx(folder)) if is_idx(folder) else None


def _cifar(folder: Path) -> _Contents:
    train, test, names = read_cifar(folder)
    return {"train": train, "test": test}, names


def _parquet(files: dict[str, list[Path]], cache: Path | None) -> _Contents:
    parts = {split: _cached(paths, cache) for split, paths in files.items()}
    names = next(iter(parts.values())).class_names
    return {split: part.images for split, part in parts.items()}, names


def _arrow(files: dict[str, list[Path]], size: tuple[int, int] | None) -> _Contents:
    parts = {split: read_arrow_images(paths, size) for split, paths in files.items()}
    return {split: images for split, (images, _) in parts.items()}, parts["train"][1]


def _idx(folder: Path) -> _Contents:
    train, test = read_idx_folder(folder)
    return {"train": train, "test": test}, None


def _read_folders(
    folder: Path, n_classes: int | None, size: tuple[int, int] | None, source: str
) -> DataSet:
    if (folder / "image_class_labels.txt").is_file():
        found = read_cub(folder, size or (448, 448))
        return _data_set(found.sets, found.class_names, n_classes, source)
    if any((place / "images_variant_train.txt").is_file() for place in (folder, folder / "data")):
        found = read_aircraft(folder, size or (448, 448))
        return _data_set(found.sets, found.class_names, n_classes, source)
    if not (folder / "train").is_dir():
        raise _unknown_layout(folder)
    train, names = read_class_folders(folder / "train", size)
    sets: dict[str, Any] = {"train": train}
    for split, words in (("validation", ("val", "valid", "validation")), ("test", ("test",))):
        for word in words:
            if (folder / word).is_dir():
                sets[split], _ = read_class_folders(folder / word, size, names)
    return _data_set(sets, names, n_classes, source)


def _unknown_layout(path: Path) -> InputError:
    """Return what to say of a path that holds no data set, by what it does hold."""
    no_layout = f"{path}: is no data set of a known layout"
    if path.is_file():
        return InputError(
            f"{no_layout}, but a file; give the folder that it lies in, or: {LAYOUTS}"
        )
    held = sorted(item.name for item in path.iterdir())
    if any(name.startswith("data-") and name.endswith(".arrow") for name in held):
        return InputError(
            f"{no_layout}, but a single split; give the folder above if that has train and test, "
            "or save both, as dataset.train_test_split(0.2).save_to_disk(...) does"
        )
    shown = ", ".join(held[:5]) + ", ..." * (len(held) > 5)
    return InputError(
        f"{no_layout}; it holds {shown or 'nothing'}, where there should be {LAYOUTS}"
    )


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
