"""Images to train on and to measure on: in memory or in files, and how sets of them are laid out.

Examples:
    >>> import torch
    >>> from calibrant.training.data import ImageSet
    >>> images = ImageSet(torch.zeros(3, 3, 32, 32, dtype=torch.uint8), torch.tensor([0, 1, 1]))
    >>> images.take(torch.tensor([2, 0])).labels
    tensor([1, 0])
"""

from calibrant.training.data.dataset import DataSet as DataSet
from calibrant.training.data.dataset import read_data_set as read_data_set
from calibrant.training.data.images import CIFAR10_STATISTICS as CIFAR10_STATISTICS
from calibrant.training.data.images import IMAGENET_STATISTICS as IMAGENET_STATISTICS
from calibrant.training.data.images import ImageFiles as ImageFiles
from calibrant.training.data.images import Images as Images
from calibrant.training.data.images import ImageSet as ImageSet
from calibrant.training.data.images import Normalisation as Normalisation
