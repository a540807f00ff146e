"""Images that studies train on and measure on, besides those of data sets as they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arguments import unknown
from calibrant.core.errors import InputError
from calibrant_studies.inputs import Inputs
from calibrant_studies.networks.plans import SYNTHETIC

if TYPE_CHECKING:
    from calibrant.training.data.dataset import DataSet
    from calibrant.training.data.images import ImageSet

# Sets of images that show nothing, made of the test images: what a network can't know.
TILES = {"shuffled-tiles": 8, "shuffled-pixels": 1}
_CLASSES, _SIDE = 4, 32
_ROWS = {"train": 320, "test": 160}


def synthetic_images() -> DataSet:
    """Return images of four classes, blurred spots of noise that overlap, the same every time."""
    from calibrant.training.data.dataset import DataSet

    rng = np.random.default_rng(20)
    centres = rng.uniform(60, 200, (_CLASSES, 3, 1, 1))
    sets: dict[str, ImageSet] = {}
    for name, rows in _ROWS.items():
        labels = rng.integers(_CLASSES, size=rows)
        pixels = rng.normal(centres[labels], 70, (rows, 3, 4, 4))
        pixels = np.repeat(np.repeat(pixels, _SIDE // 4, 2), _SIDE // 4, 3)
        pixels = pixels + rng.normal(0, 20, pixels.shape)
        sets[name] = _image_set(np.rint(pixels.clip(0, 255)).astype(np.uint8), labels)
    return DataSet(sets["train"], sets["test"], None, _CLASSES, source=SYNTHETIC)


def _image_set(pixels: NDArray[np.uint8], labels: NDArray[Any]) -> ImageSet:
    from calibrant.training.data.images import ImageSet, tensor

    return ImageSet(tensor(pixels), tensor(labels.astype(np.int64)))


def data_set(name: str, inputs: Inputs, cache: Path, n_classes: int | None = None) -> DataSet:
    """Return a data set by its name.

    Args:
        name: of an input, or of the synthetic images.
        inputs: what is given.
        cache: folder for decoded images.
        n_classes: needed where the data don't name their classes.
    """
    from calibrant.training.data.dataset import read_data_set

    if name == SYNTHETIC:
        return synthetic_images()
    return read_data_set(inputs[name].path, n_classes=n_classes, cache=cache)


def in_memory(images: Any, most: int | None = None) -> ImageSet:
    """Return the images of a set, the first `most` of them, decoded."""
    import torch

    from calibrant.training.data.images import ImageSet

    index = torch.arange(len(images) if most is None else min(most, len(images)))
    return ImageSet(images.batch(index), images.labels[index])


def unknown_images(
    name: str, known: ImageSet, inputs: Inputs, cache: Path, most: int | None = None
) -> ImageSet:
    """Return test images that a network can't know, by the name of their set.

    Args:
        name: of an input, or one of `TILES`.
        known: the network's own test images, which those of `TILES` are made of.
        inputs: what is given.
        cache: folder for decoded images.
        most: how many at most.
    """
    if name in TILES:
        return shuffled(known, TILES[name])
    return in_memory(data_set(name, inputs, cache, _any_classes(name)).test, most)


def _any_classes(name: str) -> int | None:
    """Return a number of classes that labels of a set can't exceed; only its images count."""
    return 1000 if name not in (SYNTHETIC,) else None


def shuffled(images: ImageSet, size: int, rng: np.random.Generator | None = None) -> ImageSet:
    """Return images whose tiles, of so many pixels a side, are in an order of their own."""
    rng = rng or np.random.default_rng(0)
    pixels: NDArray[np.uint8] = images.images.numpy()
    count, channels, height, width = pixels.shape
    rows, columns = int(height) // size, int(width) // size
    if rows * size != height or columns * size != width:
        raise InputError(f"images of {height} x {width} can't be cut into tiles of {size} pixels")
    tiles = pixels.reshape(count, channels, rows, size, columns, size)
    tiles = tiles.transpose(0, 2, 4, 1, 3, 5).reshape(count, rows * columns, -1)
    order = rng.permuted(np.tile(np.arange(rows * columns), (count, 1)), axis=1)
    tiles = np.take_along_axis(tiles, order[..., None], axis=1)
    tiles = tiles.reshape(count, rows, columns, channels, size, size)
    whole = tiles.transpose(0, 3, 1, 4, 2, 5).reshape(pixels.shape)
    return _image_set(whole, images.labels.numpy())


def corrupted(
    name: str, known: ImageSet, severity: int, inputs: Inputs
) -> Iterator[tuple[str, ImageSet]]:
    """Yield corrupted test images by the name of the corruption.

    Args:
        name: of the input with the published images, ``CORRUPTION.npy`` and ``labels.npy`` as in
            CIFAR-10-C; where there is none, the corruptions of this package are applied to `known`.
        known: test images.
        severity: 1 to 5.
        inputs: what is given.
    """
    from calibrant_studies.corruptions import CORRUPTIONS, corrupt, read_cifar_c

    if name in inputs:
        folder = inputs[name].path
        files = sorted(path.stem for path in folder.glob("*.npy") if path.stem != "labels")
        if not files:
            raise unknown(["CORRUPTION.npy"], str(folder), "folder of corrupted images")
        for corruption in files:
            yield corruption, read_cifar_c(folder, corruption, severity)
        return
    for corruption in CORRUPTIONS:
        yield corruption, corrupt(known, corruption, severity)
