"""Which images of a data set a run trains on, and which it holds out."""

from __future__ import annotations

import torch

from calibrant.core.errors import InputError
from calibrant.training.data.dataset import DataSet
from calibrant.training.data.images import Images
from calibrant.training.data.splits import shuffled_split, split_by_class
from calibrant.training.run.settings import RunSettings


def held_out(data: DataSet, settings: RunSettings) -> tuple[Images, Images]:
    """Return the training and the validation images, as the protocol holds some out.

    Raises:
        InputError: there are fewer images to train on than the settings ask for.
    """
    training, validation = _parted(data, settings)
    rows = settings.training_rows
    if rows is None:
        return training, validation
    if rows > len(training):
        raise InputError(
            f"{data.source}: has {len(training)} images to train on, and {rows} are asked for; "
            "lower training_rows or leave it out"
        )
    generator = torch.Generator().manual_seed(settings.seed)
    return training.take(torch.randperm(len(training), generator=generator)[:rows]), validation


def _parted(data: DataSet, settings: RunSettings) -> tuple[Images, Images]:
    recipe = settings.recipe
    if data.validation is not None:
        return data.train, data.validation
    if recipe.test_for_validation:
        return data.train, data.test
    seed = settings.seed if recipe.split_seed is None else recipe.split_seed
    if recipe.split_by_class:
        kept, taken = split_by_class(data.train.labels, seed)
    else:
        kept, taken = shuffled_split(len(data.train), seed)
    return data.train.take(kept), data.train.take(taken)
