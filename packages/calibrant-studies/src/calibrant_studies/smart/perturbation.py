"""Figure 1: the smallest step along the sign of the gradient that changes a prediction, by margin.

FGSM takes one step of the same size in every pixel, along the sign of the loss's gradient. Here the
smallest size that changes the predicted class is searched for, on images through a trained network,
or on features through its last layer alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from calibrant.core.arrays import FloatArray, to_numpy
from calibrant.core.errors import InputError
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import softmax

# Sizes tried, as shares of the largest: a prediction may flip and flip back, so all are tried.
SIZES = 64


@dataclass(frozen=True)
class Perturbations:
    """The smallest steps that change predictions.

    Attributes:
        margin: (N,) gaps between the two largest logits, untouched.
        smallest: (N,) sizes, infinite where none that was tried changes the prediction.
        largest: the largest size tried.
    """

    margin: FloatArray
    smallest: FloatArray
    largest: float

    @property
    def flipped(self) -> float:
        """Share of rows whose prediction some size changes."""
        return float(np.isfinite(self.smallest).mean())

    @property
    def pearson(self) -> float:
        """Correlation of margin and smallest step over the rows that change; nan with few."""
        done = np.isfinite(self.smallest)
        if done.sum() < 3:
            return float("nan")
        return float(np.corrcoef(self.margin[done], self.smallest[done])[0, 1])

    @property
    def spearman(self) -> float:
        """Rank correlation over all rows; those that never change rank highest, together."""
        from scipy.stats import spearmanr

        return float(spearmanr(self.margin, np.minimum(self.smallest, 2 * self.largest)).statistic)


def through_the_head(predictions: Predictions, rows: int, largest: float = 1.0) -> Perturbations:
    """Perturb features, in units of their standard deviation over all rows, before the last layer.

    Raises:
        InputError: the predictions lack features or the last layer.
    """
    if predictions.features is None or predictions.head is None:
        raise InputError(
            f"{predictions.source}: needs 'features', 'head_weight' and 'head_bias' beside logits"
        )
    features = to_numpy(predictions.features).astype(np.float64)
    weight, bias = (to_numpy(part).astype(np.float64) for part in predictions.head)
    unit = float(features.std())
    features = features[:rows]
    logits = features @ weight.T + bias
    # The gradient of the loss at the predicted class by the features.
    away = np.asarray(softmax(logits))
    away[np.arange(len(away)), logits.argmax(axis=1)] -= 1
    direction = unit * np.sign(away @ weight)
    return _searched(logits, lambda size: (features + size * direction) @ weight.T + bias, largest)


def through_the_network(folder: Path, rows: int, largest: float = 16 / 255) -> Perturbations:
    """Perturb test images of a finished run of `calibrant train`, in units of the pixels' range.

    Raises:
        InputError: the folder holds no finished run, or its data set is gone.
    """
    import torch
    from torch.nn.functional import cross_entropy

    from calibrant.training.data.dataset import read_data_set
    from calibrant.training.run import RunSettings, load_network
    from calibrant.training.run.folder import CONFIG

    network, normalise = load_network(folder)
    settings = RunSettings.read(folder / CONFIG)
    cache = folder.resolve().parent / "image-cache"  # as for the run itself
    test = read_data_set(str(settings.data), n_classes=settings.n_classes, cache=cache).test
    index = torch.arange(min(rows, len(test)))
    pixels = test.batch(index).float() / 255

    def logits_of(images: torch.Tensor) -> torch.Tensor:
        return network(normalise(255 * images))

    pixels.requires_grad_(True)
    logits = logits_of(pixels)
    loss = cross_entropy(logits, logits.argmax(dim=1), reduction="sum")
    (gradient,) = torch.autograd.grad(loss, pixels)
    direction, start = gradient.sign(), pixels.detach()

    def moved(size: float) -> FloatArray:
        with torch.no_grad():
            said = logits_of((start + size * direction).clamp(0, 1))
        return said.double().numpy()

    return _searched(logits.detach().double().numpy(), moved, largest)


def _searched(
    logits: FloatArray, moved: Callable[[float], FloatArray], largest: float
) -> Perturbations:
    """Return the smallest of the sizes tried at which the prediction of each row is another."""
    top, ordered = logits.argmax(axis=1), np.sort(logits, axis=1)
    smallest = np.full(len(logits), np.inf)
    for share in range(SIZES, 0, -1):
        size = largest * share / SIZES
        smallest[moved(size).argmax(axis=1) != top] = size
    return Perturbations(ordered[:, -1] - ordered[:, -2], smallest, largest)
