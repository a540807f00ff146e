"""Images that studies train on and measure on, besides those of data sets as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arguments import named, unknown
from calibrant.core.checks import check_labels
from calibrant.core.errors import InputError
from calibrant.files.gate import readable
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


# Corruptions of small images at five severities, to see how honest a network is under shift.
#
# The kinds of Hendrycks & Dietterich (ICLR 2019) that need no pictures of frost or the like, in
# NumPy and SciPy. Strengths are near those of CIFAR-10-C, and the names are its names; the images
# are not the published ones, so numbers from them belong beside each other and not in that
# benchmark. For the published images see `read_cifar_c`.

SEVERITIES = 5
Pixels = NDArray[np.float64]
# Each maps (N, H, W, 3) values in [0, 1] and a strength; what it returns is clipped to [0, 1].
Corruption = Callable[[Pixels, Any, np.random.Generator], Pixels]

GREY = np.array([0.299, 0.587, 0.114])


def corrupt(images: ImageSet, name: str, severity: int, seed: int = 0) -> ImageSet:
    """Return the images with one corruption; labels stay.

    Args:
        images: of any size; strengths suit 32x32.
        name: one of `CORRUPTIONS`.
        severity: 1 (mild) to 5.
        seed: of what is random in it.

    Raises:
        UnknownMethodError: no corruption goes by this name.
        InputError: no such severity.
    """
    from calibrant.training.data.images import ImageSet, tensor

    function, strengths = named(CORRUPTIONS, name, "corruption")
    if not 1 <= severity <= SEVERITIES:
        raise InputError(f"severity must be 1 to {SEVERITIES}, not {severity}")
    rng = np.random.default_rng(seed)
    pixels = images.images.numpy().transpose(0, 2, 3, 1)
    parts: list[NDArray[np.uint8]] = []
    for start in range(0, len(pixels), 1000):
        changed = function(pixels[start : start + 1000] / 255, strengths[severity - 1], rng)
        parts.append(np.rint(255 * changed.clip(0, 1)).astype(np.uint8))
    return ImageSet(tensor(np.concatenate(parts).transpose(0, 3, 1, 2)), images.labels)


def _gaussian_noise(x: Pixels, deviation: float, rng: np.random.Generator) -> Pixels:
    return x + rng.normal(scale=deviation, size=x.shape)


def _shot_noise(x: Pixels, photons: float, rng: np.random.Generator) -> Pixels:
    return rng.poisson(x * photons) / photons


def _impulse_noise(x: Pixels, share: float, rng: np.random.Generator) -> Pixels:
    hit = rng.random(x.shape) < share
    return np.where(hit, rng.integers(0, 2, x.shape), x)


def _speckle_noise(x: Pixels, deviation: float, rng: np.random.Generator) -> Pixels:
    return x * (1 + rng.normal(scale=deviation, size=x.shape))


def _gaussian_blur(x: Pixels, sigma: float, rng: np.random.Generator) -> Pixels:
    from scipy.ndimage import gaussian_filter

    return gaussian_filter(x, (0, sigma, sigma, 0), mode="nearest")


def _defocus_blur(x: Pixels, radius: float, rng: np.random.Generator) -> Pixels:
    """Average over a disc; pixels that its edge cuts count by the share that lies inside."""
    reach, fine = int(np.ceil(radius)), 9
    offsets = (np.arange((2 * reach + 1) * fine) + 0.5) / fine - reach - 0.5
    inside = offsets[:, None] ** 2 + offsets**2 <= radius**2
    cells = inside.reshape(2 * reach + 1, fine, 2 * reach + 1, fine).sum(axis=(1, 3))
    return _filter(x, cells / cells.sum())


def _motion_blur(x: Pixels, length: int, rng: np.random.Generator) -> Pixels:
    """Average along a line of `length` pixels, in a direction of its own for each image."""
    angles = rng.uniform(-np.pi / 4, np.pi / 4, len(x))
    steps = np.linspace(-(length - 1) / 2, (length - 1) / 2, 2 * length - 1)
    moved = [_shift(x, np.sin(angles) * step, np.cos(angles) * step) for step in steps]
    return np.mean(moved, axis=0)


def _zoom_blur(x: Pixels, most: float, rng: np.random.Generator) -> Pixels:
    """Average over views zoomed in by factors from 1 to `most`."""
    factors: list[float] = np.linspace(1, most, 7).tolist()
    return np.mean([_sample(x, *_zoom_grid(x, factor)) for factor in factors], axis=0)


def _zoom_grid(x: Pixels, factor: float) -> tuple[Pixels, Pixels]:
    rows, columns = _grid(x)
    row, column = (x.shape[1] - 1) / 2, (x.shape[2] - 1) / 2
    return (rows - row) / factor + row, (columns - column) / factor + column


def _fog(x: Pixels, strength: tuple[float, float], rng: np.random.Generator) -> Pixels:
    """Mix in a cloud, whose spectrum falls off with `decay`; the brightest white stays white."""
    amount, decay = strength
    height, width = x.shape[1:3]
    frequency = np.hypot(np.fft.fftfreq(height)[:, None] * height, np.fft.fftfreq(width) * width)
    frequency[0, 0] = 1
    noise = np.fft.fft2(rng.normal(size=(len(x), height, width))) / frequency**decay
    cloud = np.real(np.fft.ifft2(noise))
    cloud -= cloud.min(axis=(1, 2), keepdims=True)
    cloud /= cloud.max(axis=(1, 2), keepdims=True)
    brightest = x.max(axis=(1, 2, 3), keepdims=True)
    return (x + amount * cloud[..., None]) * brightest / (brightest + amount)


def _brightness(x: Pixels, amount: float, rng: np.random.Generator) -> Pixels:
    """Raise the value of HSV, the largest of the three colours, and keep hue and saturation."""
    value = x.max(axis=3, keepdims=True)
    brighter = np.minimum(value + amount, 1)
    # Black has no hue to keep, and becomes grey.
    return x * (brighter / np.maximum(value, 1e-12)) + (value == 0) * brighter


def _contrast(x: Pixels, factor: float, rng: np.random.Generator) -> Pixels:
    mean = x.mean(axis=(1, 2), keepdims=True)
    return mean + factor * (x - mean)


def _saturate(x: Pixels, factor: float, rng: np.random.Generator) -> Pixels:
    """Move the colours away from the grey of the same lightness, or towards it (factor < 1)."""
    grey = (x @ GREY)[..., None]
    return grey + factor * (x - grey)


def _pixelate(x: Pixels, share: float, rng: np.random.Generator) -> Pixels:
    """Average over cells of 1 / `share` pixels, each of which becomes one colour."""
    down = _cells(x.shape[1], share), _cells(x.shape[2], share)
    small = np.einsum("ah,nhwc,bw->nabc", down[0], x, down[1], optimize=True)
    rows, columns = (_nearest(*weights.shape) for weights in down)
    return small[:, rows][:, :, columns]


def _nearest(cells: int, side: int) -> NDArray[np.intp]:
    """Return in which of `cells` equal cells the middle of each of `side` pixels lies."""
    return (2 * np.arange(side, dtype=np.intp) + 1) * cells // (2 * side)


def _cells(side: int, share: float) -> Pixels:
    """Return the (cells, side) weights that average `side` pixels over fewer, equal cells."""
    cells = max(1, int(side * share))
    edges = np.linspace(0, side, cells + 1)
    pixel = np.arange(side)
    overlap = np.minimum(edges[1:, None], pixel + 1) - np.maximum(edges[:-1, None], pixel)
    return overlap.clip(0) * cells / side


def _jpeg(x: Pixels, quality: int, rng: np.random.Generator) -> Pixels:
    from PIL import Image

    from calibrant.training.data.images import open_image

    decoded: list[NDArray[np.uint8]] = []
    for image in np.rint(255 * x).astype(np.uint8):
        buffer = BytesIO()
        Image.fromarray(image).save(buffer, "JPEG", quality=quality)
        decoded.append(np.asarray(open_image(buffer.getvalue(), "a JPEG made here")))
    return np.stack(decoded) / 255


def _elastic(x: Pixels, strength: tuple[float, float], rng: np.random.Generator) -> Pixels:
    """Move each pixel by a random field, smooth over `smoothness` pixels, of this deviation."""
    from scipy.ndimage import gaussian_filter

    deviation, smoothness = strength
    field = rng.normal(size=(2, *x.shape[:3]))
    field = gaussian_filter(field, (0, 0, smoothness, smoothness), mode="reflect")
    field *= deviation / field.std(axis=(2, 3), keepdims=True)
    rows, columns = _grid(x)
    return _sample(x, rows + field[0], columns + field[1])


def _filter(x: Pixels, kernel: Pixels) -> Pixels:
    from scipy.ndimage import correlate

    return correlate(x, kernel[None, :, :, None], mode="nearest")


def _shift(x: Pixels, down: Pixels, right: Pixels) -> Pixels:
    rows, columns = _grid(x)
    return _sample(x, rows + down[:, None, None], columns + right[:, None, None])


def _grid(x: Pixels) -> tuple[Pixels, Pixels]:
    """Return the (N, H, W) row and column of every pixel."""
    grid: Pixels = np.indices(x.shape[:3], dtype=np.float64)
    return grid[1], grid[2]


def _sample(x: Pixels, rows: Pixels, columns: Pixels) -> Pixels:
    """Return (N, H, W, 3) colours at fractional places, bilinear; edges repeat outwards."""
    height, width = x.shape[1:3]
    rows, columns = rows.clip(0, height - 1), columns.clip(0, width - 1)
    top = np.minimum(rows.astype(int), height - 2)
    left = np.minimum(columns.astype(int), width - 2)
    down, right = (rows - top)[..., None], (columns - left)[..., None]
    image = np.arange(len(x))[:, None, None]
    upper = (1 - right) * x[image, top, left] + right * x[image, top, left + 1]
    lower = (1 - right) * x[image, top + 1, left] + right * x[image, top + 1, left + 1]
    return (1 - down) * upper + down * lower


CORRUPTIONS: dict[str, tuple[Corruption, tuple[Any, ...]]] = {
    "gaussian_noise": (_gaussian_noise, (0.04, 0.06, 0.08, 0.09, 0.10)),
    "shot_noise": (_shot_noise, (500, 250, 100, 75, 50)),
    "impulse_noise": (_impulse_noise, (0.01, 0.02, 0.03, 0.05, 0.07)),
    "speckle_noise": (_speckle_noise, (0.06, 0.10, 0.12, 0.16, 0.20)),
    "gaussian_blur": (_gaussian_blur, (0.4, 0.6, 0.7, 0.8, 1.0)),
    "defocus_blur": (_defocus_blur, (0.7, 0.9, 1.1, 1.3, 1.7)),
    "motion_blur": (_motion_blur, (2, 3, 4, 5, 6)),
    "zoom_blur": (_zoom_blur, (1.06, 1.11, 1.16, 1.21, 1.26)),
    "fog": (_fog, ((0.2, 2.0), (0.5, 2.0), (0.75, 1.75), (1.0, 1.5), (1.5, 1.25))),
    "brightness": (_brightness, (0.05, 0.10, 0.15, 0.20, 0.30)),
    "contrast": (_contrast, (0.75, 0.50, 0.40, 0.30, 0.15)),
    "saturate": (_saturate, (0.7, 0.4, 0.1, 2.0, 2.8)),
    "pixelate": (_pixelate, (0.95, 0.90, 0.80, 0.65, 0.50)),
    "jpeg_compression": (_jpeg, (80, 65, 58, 50, 40)),
    "elastic_transform": (_elastic, ((0.4, 2.0), (0.6, 2.0), (0.8, 2.0), (1.0, 2.0), (1.2, 2.0))),
}


def read_cifar_c(folder: Path, corruption: str, severity: int) -> ImageSet:
    """Read one corruption of CIFAR-10-C or CIFAR-100-C at one severity.

    Hendrycks & Dietterich, Benchmarking Neural Network Robustness to Common Corruptions and
    Perturbations, ICLR 2019. ``CORRUPTION.npy`` stacks the test set five times, from the mildest to
    the strongest, and ``labels.npy`` belongs to all of that.

    Raises:
        InputError: there is no such file or severity, or the shapes don't fit.
    """
    from calibrant.training.data.images import ImageSet

    if not 1 <= severity <= SEVERITIES:
        raise InputError(f"severity must be 1 to {SEVERITIES}, not {severity}")
    file = folder / f"{corruption}.npy"
    if not file.is_file():
        known = sorted(item.stem for item in folder.glob("*.npy") if item.stem != "labels")
        raise InputError(f"{folder}: no corruption '{corruption}'; there are: {', '.join(known)}")
    with readable("the arrays", str(folder)):
        images: Any = np.load(file, mmap_mode="r", allow_pickle=False)
        labels: Any = np.load(folder / "labels.npy", allow_pickle=False)
    for array in (images, labels):
        if not isinstance(array, np.ndarray):
            raise InputError(f"{folder}: holds an archive of arrays where an array is expected")
    if images.ndim != 4 or labels.shape != images.shape[:1] or len(images) % SEVERITIES:
        raise InputError(
            f"{file}: images of shape {images.shape} and labels of shape {labels.shape} are no "
            "five severities of one test set"
        )
    labels = check_labels(labels, len(images), None, str(folder / "labels.npy"))
    rows = len(images) // SEVERITIES
    chosen = slice((severity - 1) * rows, severity * rows)
    return ImageSet.from_rows(np.asarray(images[chosen]), labels[chosen], str(file))
