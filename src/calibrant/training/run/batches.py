"""The batches of a run, in which all that is random follows from the seed and the place."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from calibrant.core.errors import InputError
from calibrant.training.data.augment import random_crop, random_flip
from calibrant.training.data.images import Images, Normalisation, tensor
from calibrant.training.run.examples import Examples
from calibrant.training.run.seeding import seed_everything


@dataclass(frozen=True, eq=False)
class Batch:
    """One step's share of images on one device.

    Attributes:
        images: (B, 3, H, W) float32, normalised; or inputs of a network of your own.
        target: (B,) classes.
        index: (B,) positions in the training set.
    """

    images: Tensor
    target: Tensor
    index: Tensor


@dataclass(frozen=True, eq=False)
class TrainingBatches:
    """The training images in the order of each epoch.

    Nothing here has a state: a run that goes on from a checkpoint asks for the batch that is next.

    Attributes:
        images: what to train on.
        normalise: applied last.
        batch_size: images a step, over all devices.
        seed: of order and augmentation.
        padding: of the random crop.
        drop_last: leave out a last batch that isn't full.
        rank: which of the devices this is.
        world: how many there are; each takes its share of every batch.
        plain_from: the first epoch without augmentation; None: there is none.
    """

    images: Images
    normalise: Normalisation
    batch_size: int
    seed: int
    padding: int = 4
    drop_last: bool = False
    rank: int = 0
    world: int = 1
    plain_from: int | None = None

    def __post_init__(self) -> None:
        if self.batch_size % self.world:
            raise InputError(
                f"a batch of {self.batch_size} images can't be shared evenly by {self.world} "
                "devices"
            )
        if self.batch_size < 2 * self.world:
            raise InputError(
                f"a batch of {self.batch_size} leaves less than two images for each of "
                f"{self.world} device(s), which batch norm needs"
            )
        if not len(self):
            raise InputError(
                f"{len(self.images)} training images don't fill one batch of {self.batch_size}; "
                "lower the batch size"
            )

    def __len__(self) -> int:
        """Steps in an epoch."""
        full, rest = divmod(len(self.images), self.batch_size)
        # Each device needs a row, and batch norm more than one.
        return full + (not self.drop_last and rest >= 2 * self.world)

    def order(self, epoch: int) -> Tensor:
        """Return the positions of all images in the order of an epoch."""
        return tensor(self.random(0, epoch).permutation(len(self.images)))

    def random(self, *place: int) -> np.random.Generator:
        """Return the generator that belongs to a purpose and a place in the run."""
        return np.random.default_rng([self.seed, *place])

    def step_seed(self, epoch: int, step: int) -> int:
        """Return the seed of everything else that is random in a step on this device."""
        return int(self.random(1, epoch, step, self.rank).integers(2**31))

    def get(self, order: Tensor, epoch: int, step: int) -> Batch:
        """Return this device's share of a step's images.

        Args:
            order: that of the epoch.
            epoch: counted from 0.
            step: within the epoch, counted from 0.
        """
        index = order[step * self.batch_size : (step + 1) * self.batch_size]
        # All devices take equally many; what a short last batch has beyond that is left out.
        even = len(index) - len(index) % self.world
        index = index[self.rank : even : self.world]
        if isinstance(self.images, Examples):
            # What the data set does at random follows from the place in the run, too.
            seed_everything(self.step_seed(epoch, step))
        images = self.images.batch(index)
        if self.plain_from is None or epoch < self.plain_from:
            generator = torch.Generator().manual_seed(self.step_seed(epoch, step))
            images = random_flip(random_crop(images, generator, self.padding), generator)
        return Batch(self.normalise(images), self.images.labels[index], index)
