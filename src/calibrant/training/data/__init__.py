"""Images to train on and to measure on: readers, splits, augmentation, corruptions.

Examples:
    >>> import torch
    >>> from calibrant.training.data import ImageSet
    >>> images = ImageSet(torch.zeros(3, 3, 32, 32, dtype=torch.uint8), torch.tensor([0, 1, 1]))
    >>> images.take(torch.tensor([2, 0])).labels
    tensor([1, 0])
"""

from calibrant.training.data.dataset import DataSet, read_data_set
from calibrant.training.data.images import (
    CIFAR10_STATISTICS,
    IMAGENET_STATISTICS,
    ImageFiles,
    Images,
    ImageSet,
    Normalisation,
)

__all__ = [
    "CIFAR10_STATISTICS",
    "IMAGENET_STATISTICS",
    "DataSet",
    "ImageFiles",
    "ImageSet",
    "Images",
    "Normalisation",
    "read_data_set",
]
