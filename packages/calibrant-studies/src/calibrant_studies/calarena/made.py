"""A few experiments of known truth, in place of a file of CalArena."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import softmax
from calibrant_studies.calarena.stored import Experiment

MADE = {"made-binary": 2, "made-multiclass": 5}
_FIT, _TEST = 300, 500
_DATASETS, _MODELS = ("a", "b", "c"), {"sharp": 1.8, "flat": 0.6}


class MadeExperiments:
    """What `StoredExperiments` is, without a file: models that are too sure, or not sure enough.

    Args:
        name: one of `MADE`.
    """

    def __init__(self, name: str) -> None:
        self.benchmark = name
        classes = MADE[name]
        self.experiments = [
            Experiment(name, dataset, model, _FIT, _TEST, classes, classes == 2)
            for dataset in _DATASETS
            for model in _MODELS
        ]

    def __enter__(self) -> MadeExperiments:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def fit(self, experiment: Experiment) -> Predictions:
        """Return the rows to fit on."""
        return self._rows(experiment).take(np.arange(_FIT))

    def test(self, experiment: Experiment) -> Iterator[Predictions]:
        """Yield the rows to measure on."""
        yield self._rows(experiment).take(np.arange(_FIT, _FIT + _TEST))

    def _rows(self, experiment: Experiment) -> Predictions:
        rng = np.random.default_rng([ord(experiment.dataset), experiment.n_classes])
        honest = rng.normal(scale=1.6, size=(_FIT + _TEST, experiment.n_classes))
        truth = softmax(honest)
        labels = (truth.cumsum(axis=1) > rng.random((len(truth), 1))).argmax(axis=1)
        probs = softmax(_MODELS[experiment.model] * honest)
        if experiment.binary:
            return Predictions.from_binary(probs[:, 1], labels, source=experiment.name)
        return Predictions.from_probs(probs, labels, source=experiment.name)
