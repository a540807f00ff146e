"""Features and a last layer for any logits, so that one test serves methods with other needs."""

from __future__ import annotations

import warnings

import numpy as np
import torch

from calibrant.core.arrays import as_array, to_numpy
from calibrant.core.errors import CalibrationWarning
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.registry import make_calibrator
from calibrant.predictions.last_layer import Head
from calibrant.predictions.predictions import Predictions

# More partitions, folds and noise would only take longer.
QUICK = {
    "group": {"partitions": 4},
    "given-groups": {"pairs": False, "penalty": 1.0},
    "auto": {"folds": 2, "repeats": 1},
}


def features_of(logits):
    """Return (N, K) features that don't depend on the origin of the rows, of the logits' kind."""
    values = to_numpy(as_array(logits)).astype(np.float64)
    values = np.where(np.isfinite(values), values, 0.0)
    values = values - values.mean(axis=1, keepdims=True)
    return torch.tensor(values) if isinstance(logits, torch.Tensor) else values


def head_of(classes: int) -> Head:
    """Return the last layer that makes logits of `features_of`, up to their origin."""
    return Head(np.eye(classes), np.zeros(classes))


def rows_with_features(logits, labels, source="logits") -> Predictions:
    logits = as_array(logits)
    return Predictions.from_logits(
        logits, labels, features_of(logits), source, head=head_of(logits.shape[1])
    )


def fit_on(calibrator: Calibrator, logits, labels) -> Calibrator:
    if not calibrator.needs:
        return calibrator.fit(logits, labels)
    logits = as_array(logits)
    return calibrator.fit(
        logits, labels, features_of(logits), head=head_of(int(np.shape(logits)[1]))
    )


def fitted(method: str, logits, labels, **arguments) -> Calibrator:
    calibrator = make_calibrator(method, **QUICK.get(method, {}) | arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        return fit_on(calibrator, logits, labels)


def probs_of(calibrator: Calibrator, logits):
    return calibrator.predict_proba(logits, features_of(logits) if calibrator.needs else None)


def pairs_of(calibrator: Calibrator, logits):
    return calibrator.predict_confidence(logits, features_of(logits) if calibrator.needs else None)
