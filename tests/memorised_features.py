"""Features of a network that knows its training rows by heart, for tests of second stages."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from calibrant.core.arrays import FloatArray, IntArray


class SimulatedFeatures(NamedTuple):
    """(N, D) features and (N,) labels."""

    features: FloatArray
    labels: IntArray


def memorised_features(
    train_rows: int = 4000,
    test_rows: int = 4000,
    n_classes: int = 10,
    width: int = 32,
    *,
    spread: float = 3.0,
    pull: float = 2.0,
    noise: float = 0.5,
    seed: int = 0,
) -> tuple[SimulatedFeatures, SimulatedFeatures, SimulatedFeatures]:
    """Return training, validation and test rows of a network that has memorised the first.

    Each row has K normal scores, and its label is drawn from their softmax. The network moves every
    row further towards one class: a training row towards its label, which it knows, another row
    towards the class of its largest score, which is all that it can know. So training rows are
    separated nearly without error, the others look the same, and a head that fits the former is too
    confident about the latter. Features are a random linear image of the moved scores, and noise.

    Args:
        train_rows: rows that the network has seen.
        test_rows: rows of each of the other two sets.
        n_classes: K.
        width: D.
        spread: deviation of the scores; larger, fewer labels differ from the largest score.
        pull: how far beyond the largest score the class that a row is moved to is put.
        noise: deviation of what is added to each feature.
        seed: of everything.
    """
    rng = np.random.default_rng(seed)
    directions = rng.normal(size=(n_classes, width)) / np.sqrt(width)

    def draw(rows: int, *, seen: bool) -> SimulatedFeatures:
        scores = rng.normal(scale=spread, size=(rows, n_classes))
        labels = (scores + rng.gumbel(size=scores.shape)).argmax(axis=1)
        target = labels if seen else scores.argmax(axis=1)
        scores[np.arange(rows), target] = scores.max(axis=1) + pull
        features = scores @ directions + rng.normal(scale=noise, size=(rows, width))
        return SimulatedFeatures(features, labels)

    return draw(train_rows, seen=True), draw(test_rows, seen=False), draw(test_rows, seen=False)
