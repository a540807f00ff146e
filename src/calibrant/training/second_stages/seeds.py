"""Random numbers by name: the same key gives the same numbers, whatever was drawn before."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Sampler

# What a draw is for, so that no two purposes share their numbers.
ORDER, INITIAL_WEIGHTS, MASK, NOISE = range(4)


def generator_for(purpose: int, *key: int) -> torch.Generator:
    """Return a generator on the CPU that depends on nothing but its arguments.

    Ranks of a distributed run that pass the same key draw the same numbers.
    """
    seed = np.random.SeedSequence([purpose, *key]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(seed) & (2**63 - 1))


def epoch_order(rows: int, seed: int, epoch: int) -> Tensor:
    """Return the (rows,) order in which an epoch visits the training rows."""
    return torch.randperm(rows, generator=generator_for(ORDER, seed, epoch))


class SeededShuffle(Sampler[int]):
    """Sampler for a `DataLoader` that visits rows in the order that cached features are visited.

    With it, and without augmentation, a second stage fitted through a network and a loader sees the
    same batches as one fitted on an array of features. Each pass over it is the next epoch; the
    second stages call `set_epoch` to say which.

    Args:
        rows: length of the data set.
        seed: the `seed` of the second stage.
    """

    def __init__(self, rows: int, seed: int = 0) -> None:
        self.rows, self.seed, self.epoch = rows, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next pass is."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.rows

    def __iter__(self) -> Iterator[int]:
        yield from (int(row) for row in epoch_order(self.rows, self.seed, self.epoch))
        self.epoch += 1
