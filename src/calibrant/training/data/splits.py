"""Which training images are held out for validation, as the two families of papers do it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from calibrant.core.errors import InputError
from calibrant.training.data.images import tensor

SHARE = 0.1


def shuffled_split(rows: int, seed: int, share: float = SHARE) -> tuple[Tensor, Tensor]:
    """Return the indices of training and validation rows: the first `share` of a shuffle.

    The shuffle is that of NumPy's legacy generator, so that a seed holds out the same images as the
    code of Mukhoti et al. (seed 1, whatever the seed of the run) and of the margin-based losses
    (the seed of the run). In CIFAR it leaves 45 000 and 5 000.

    Raises:
        InputError: no row would be left for one of the two.
    """
    order = np.arange(rows)
    np.random.RandomState(seed).shuffle(order)
    held_out = int(np.floor(share * rows))
    _check(held_out, rows)
    return tensor(order[held_out:]), tensor(order[:held_out])


def split_by_class(labels: Tensor, seed: int, share: float = SHARE) -> tuple[Tensor, Tensor]:
    """Return the indices of training and validation rows: `share` of every class.

    In Tiny-ImageNet it leaves 450 and 50 images a class.

    Raises:
        InputError: no row would be left for one of the two.
    """
    truth: NDArray[np.int64] = labels.numpy()
    order = np.random.RandomState(seed).permutation(len(truth))
    by_class = order[np.argsort(truth[order], kind="stable")]
    counts = np.bincount(truth)
    rank = np.arange(len(truth)) - np.repeat(np.cumsum(counts) - counts, counts)
    held_out = rank < np.floor(share * np.repeat(counts, counts))
    _check(int(held_out.sum()), len(truth))
    kept, taken = np.sort(by_class[~held_out]), np.sort(by_class[held_out])
    return tensor(kept), tensor(taken)


def _check(held_out: int, rows: int) -> None:
    if not 0 < held_out < rows:
        raise InputError(
            f"{rows} training images are too few to hold some out for validation; give more, or "
            "validation images of their own"
        )
