"""Random crops and mirror images of whole batches at once."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad


def random_crop(
    images: Tensor, generator: torch.Generator, padding: int = 4, size: int | None = None
) -> Tensor:
    """Return a random window of each image, framed by `padding` black pixels first.

    Args:
        images: (B, C, H, W), any dtype.
        generator: of the randomness, on the CPU.
        padding: width of the frame.
        size: height and width of the window; those of the images by default.
    """
    count, _, height, width = images.shape
    height, width = (height, width) if size is None else (size, size)
    framed = pad(images, (padding,) * 4)
    top = _offsets(framed.shape[2] - height, count, generator)
    left = _offsets(framed.shape[3] - width, count, generator)
    rows = (top + torch.arange(height)).to(images.device)
    columns = (left + torch.arange(width)).to(images.device)
    return _gather(framed, rows, columns)


def random_flip(images: Tensor, generator: torch.Generator) -> Tensor:
    """Return (B, C, H, W) images, each mirrored left to right with probability 1/2."""
    mirrored = torch.rand(len(images), generator=generator) < 0.5
    return torch.where(mirrored.to(images.device)[:, None, None, None], images.flip(3), images)


def _offsets(room: int, count: int, generator: torch.Generator) -> Tensor:
    return torch.randint(0, room + 1, (count, 1), generator=generator)


def _gather(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return the pixels at (B, h) rows and (B, w) columns of (B, C, H, W) images.

    One gather for the whole batch: a loop over the images would cost more than a small network.
    """
    image = torch.arange(len(images), device=images.device)[:, None, None]
    chosen = images.permute(0, 2, 3, 1)[image, rows[:, :, None], columns[:, None, :]]
    return chosen.permute(0, 3, 1, 2)
