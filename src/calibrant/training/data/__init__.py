"""Images to train on and to measure on: readers, splits, augmentation, corruptions."""

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
