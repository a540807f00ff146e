"""Labelled images: decoded once into memory, or decoded from their files batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.core.checks import check_labels
from calibrant.core.errors import InputError, MissingDependencyError
from calibrant.core.text import reason_of

if TYPE_CHECKING:
    from PIL.Image import Image

ByteArray = NDArray[np.uint8]


def tensor(array: NDArray[Any]) -> Tensor:
    """Return an array as a tensor, copied if it can't be written to or is in another order."""
    # `Any`, because torch's types leave NumPy's arrays open.
    return cast(Any, torch).from_numpy(np.require(array, requirements=("C", "W")))


class Images(Protocol):
    """N labelled images that can be had in batches."""

    @property
    def labels(self) -> Tensor:
        """(N,) int64 class numbers."""
        ...

    def __len__(self) -> int: ...

    def batch(self, index: Tensor) -> Tensor:
        """Return the (B, 3, H, W) bytes of the images at an index of B rows, in its order."""
        ...

    def take(self, index: Tensor) -> Images:
        """Return the images at an index, in its order."""
        ...


Size = tuple[int, int] | None


@dataclass(frozen=True)
class Layout:
    """One way in which image sets lie in folders and archives: all that reading one takes.

    Attributes:
        words: names it, for messages.
        find: gives what `read` needs of a folder or archive; None or nothing if it is laid out
            otherwise.
        read: gives the images of the splits "train", "test" and maybe "validation", and the names
            of the classes if the files say, from what was found, a (height, width) to stretch the
            images to and a folder for decoded images.
        stretches: whether it heeds that size.
    """

    words: str
    find: Callable[[Path], Any]
    read: Callable[[Any, Size, Path | None], tuple[dict[str, Any], Sequence[str] | None]]
    stretches: bool = False


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images in memory.

    Attributes:
        images: (N, 3, H, W) uint8.
        labels: (N,) int64.
    """

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        shape = tuple(self.images.shape)
        if len(shape) != 4 or shape[1] != 3 or self.images.dtype != torch.uint8:
            raise InputError(
                f"images must be uint8 of shape (N, 3, H, W), not {self.images.dtype} of {shape}"
            )
        if tuple(self.labels.shape) != shape[:1] or self.labels.dtype != torch.int64:
            raise InputError(
                f"there are {shape[0]} images, so labels must be int64 of shape ({shape[0]},), not "
                f"{self.labels.dtype} of {tuple(self.labels.shape)}"
            )

    @classmethod
    def from_rows(cls, rows: NDArray[Any], labels: NDArray[Any], source: str = "data") -> ImageSet:
        """Wrap (N, H, W, 3) or (N, H, W) bytes, the order of image files; grey becomes RGB.

        Args:
            rows: the pixels of at least one image.
            labels: (N,) whole numbers from 0.
            source: begins the error message.

        Raises:
            InputError: these are no images, or labels that name no class.
        """
        coloured = rows.ndim == 4 and rows.shape[3] == 3
        if rows.dtype != np.uint8 or not (coloured or rows.ndim == 3) or 0 in rows.shape:
            raise InputError(
                f"{source}: images must be bytes (uint8) of shape (N, H, W, 3) or (N, H, W), not "
                f"{rows.dtype} of {rows.shape}"
            )
        if labels.shape != rows.shape[:1]:
            raise InputError(
                f"{source}: there are {len(rows)} images, but labels of shape {labels.shape}"
            )
        classes = check_labels(labels, len(rows), None, source)
        if not coloured:
            rows = np.repeat(rows[..., None], 3, axis=3)
        return cls(tensor(rows.transpose(0, 3, 1, 2)), tensor(classes))

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, index: Tensor) -> Tensor:
        """Return the (B, 3, H, W) bytes of the images at an index of B rows, in its order."""
        return self.images[index]

    def take(self, index: Tensor) -> ImageSet:
        """Return the images at an index, in its order."""
        return ImageSet(self.images[index], self.labels[index])


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Images too many or too large for memory: each batch is decoded when it is wanted.

    Attributes:
        items: (N,) what `read` is given of each: a file, or a number of a row.
        labels: (N,) int64.
        read: returns the encoded image of an item, and its name for messages.
        where: they lie, for messages.
        size: (height, width) to which every image is stretched; None keeps the size, which then
            must be the same for all images of a batch.
        cut_bottom: rows to cut off before that, such as a banner with a copyright note.
    """

    items: Sequence[Any]
    labels: Tensor
    read: Callable[[Any], tuple[bytes, str]]
    where: Path
    size: Size = None
    cut_bottom: int = 0

    def __len__(self) -> int:
        return len(self.items)

    def batch(self, index: Tensor) -> Tensor:
        """Return the (B, 3, H, W) bytes of the images at an index of B rows, in its order.

        Raises:
            InputError: they differ in size.
        """
        wanted = self._at(index)
        # Pillow lets go of the interpreter while it decodes.
        with ThreadPoolExecutor() as pool:
            pixels = list(pool.map(self._decode, wanted))
        if len({image.shape for image in pixels}) > 1:
            raise InputError(
                f"{self.where}: the images differ in size; give the size to stretch them to "
                "(--image-size)"
            )
        return tensor(np.stack(pixels).transpose(0, 3, 1, 2))

    def take(self, index: Tensor) -> ImageFiles:
        """Return the images at an index, in its order; the files stay where they are."""
        return replace(self, items=self._at(index), labels=self.labels[index])

    def load(self) -> ImageSet:
        """Decode all images into memory."""
        return ImageSet(self.batch(torch.arange(len(self))), self.labels)

    def _at(self, index: Tensor) -> list[Any]:
        return [self.items[row] for row in cast(list[int], cast(Any, index).tolist())]

    def _decode(self, item: Any) -> ByteArray:
        content, source = self.read(item)
        return decode(content, source, self.size, self.cut_bottom)


def decode(content: bytes, source: str, size: Size = None, cut_bottom: int = 0) -> ByteArray:
    """Return the (H, W, 3) pixels of an encoded image (JPEG, PNG, ...).

    Raises:
        InputError: this isn't an image that Pillow can read; the message begins with `source`.
        MissingDependencyError: Pillow isn't there.
    """
    image = open_image(content, source)
    if image.height <= cut_bottom:
        raise InputError(
            f"{source}: the image has {image.height} rows of pixels, of which {cut_bottom} are cut "
            "off"
        )
    if cut_bottom:
        image = image.crop((0, 0, image.width, image.height - cut_bottom))
    if size is not None and (image.height, image.width) != size:
        image = image.resize((size[1], size[0]), resample=2)  # 2 is bilinear
    return np.asarray(image)


def open_image(content: bytes, source: str) -> Image:
    """Return a decoded RGB image; raises as `decode` does."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingDependencyError(
            "decoding images needs Pillow: pip install 'calibrant[train]'"
        ) from error
    try:
        return Image.open(BytesIO(content)).convert("RGB")
    # Each of Pillow's decoders meets damage in its own way: ValueError, SyntaxError, struct.error,
    # and an error without a base class for an image that is too large.
    except Exception as error:
        fault = f"{source}: holds no image that can be decoded ({reason_of(error)})"
        raise InputError(fault) from error


@dataclass(frozen=True)
class Normalisation:
    """Maps bytes to what the network reads: (x / 255 - mean) / std for each colour.

    A network keeps the one that it was trained with. Images from elsewhere, such as an
    out-of-distribution set, go through the same map: with statistics of their own, part of what
    sets them apart would be the preprocessing. `AS_IT_IS` is that of inputs of any form which need
    none.
    """

    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def __call__(self, images: Tensor) -> Tensor:
        """Return (B, 3, H, W) float32 of (B, 3, H, W) uint8, on the same device."""
        if self == AS_IT_IS:
            return images
        mean, std = (
            torch.tensor(value, device=images.device)[:, None, None]
            for value in (self.mean, self.std)
        )
        return (images / 255 - mean) / std


AS_IT_IS = Normalisation((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
CIFAR10_STATISTICS = Normalisation((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
IMAGENET_STATISTICS = Normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
