"""Whether a calibrator gives probabilities: it is tried on rows that differ in all that matters.

The numbers of a file may fit their attributes one by one and still not make a map together.
"""

from __future__ import annotations

from copy import copy

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import FloatArray
from calibrant.posthoc.base import Calibrator

# How far the sum of a row of probabilities may be from 1.
TOLERANCE = {np.dtype(np.float64): 1e-9, np.dtype(np.float32): 1e-5}
# Spreads of logits, from almost uniform probabilities to almost certain ones.
SPREADS = (1e-3, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 100.0)
# Confidences from one over the number of classes to all but 1, and 1.
LEAST_DOUBT = 1e-9
CERTAIN = 1e3
# Numbers that a trial may handle; many rows of few classes, few rows of many.
BUDGET = 1 << 18
MOST_ROWS, FEWEST_ROWS = 160, 12
# A map that holds nothing for each class is the same for any number of them.
MOST_CLASSES = 4099


def fault_of(calibrator: Calibrator) -> str | None:
    """Return why what a calibrator gives are no probabilities, or None if they are.

    Args:
        calibrator: fitted, as a file describes it. Numbers of classes and features are bounded by
            its arrays; where none has as many entries as there are classes, it is tried with fewer.
    """
    tried = calibrator if _holds_classes(calibrator) else _with_classes(calibrator, MOST_CLASSES)
    classes, width = tried.n_classes_, tried.feature_width
    rng = np.random.default_rng(0)
    share = BUDGET // (classes + (width or 0) + 1)
    rows = trial_rows(classes, max(FEWEST_ROWS, min(share, MOST_ROWS)), rng)
    features = None if width is None else _trial_features(len(rows), width, rng)
    for dtype, tolerance in TOLERANCE.items():
        given = None if features is None else features.astype(dtype)
        with np.errstate(all="ignore"):
            probs = tried.predict_proba(rows.astype(dtype), given)
            fault = _fault(np.asarray(probs), rows.shape, tolerance)
        if fault is not None:
            return fault
    return None


def trial_rows(classes: int, count: int, rng: np.random.Generator) -> FloatArray:
    """Return about `count` rows of logits: random, tied, certain, and of all confidences.

    No fewer than eight, one for each way in which rows are special.
    """
    special = np.zeros((8, classes))
    special[1, 0], special[2, -1], special[3, : classes // 2] = 1e3, -1e3, 5.0
    special[4, :2], special[5] = [1.0, 1 - 1e-6], np.linspace(-30, 30, classes)
    # Every class is both on top and far below once.
    special[6, ::2], special[7, 1::2] = 1e3, 1e3
    left = max(count - len(special), 0)
    spreads = np.resize(SPREADS, left - left // 2)[:, None]
    random = rng.normal(size=(len(spreads), classes)) * spreads
    return np.concatenate([special, random, _of_confidence(classes, left // 2)])


def _of_confidence(classes: int, count: int) -> FloatArray:
    """Return rows in which each class in turn is the top one, with rising confidence."""
    lowest, highest = -float(np.log(classes - 1)), -float(np.log(LEAST_DOUBT))
    odds = lowest + (highest - lowest) / max(count - 1, 1) * np.arange(count)
    odds[1::2] = CERTAIN
    rows = np.zeros((count, classes))
    rows[np.arange(count), np.arange(count) // 2 % classes] = odds - lowest
    return rows


def _trial_features(count: int, width: int, rng: np.random.Generator) -> FloatArray:
    spreads = np.resize([0.0, 1e-3, 1.0, 1.0, 10.0, 1e3], count)[:, None]
    return rng.normal(size=(count, width)) * spreads


def _fault(probs: NDArray[np.generic], shape: tuple[int, ...], tolerance: float) -> str | None:
    if probs.shape != shape or probs.dtype.kind != "f":
        return f"it gives {probs.dtype} of shape {probs.shape} for logits of shape {shape}"
    values = probs.astype(np.float64)
    if not np.isfinite(values).all():
        return "it gives NaN or infinity"
    if values.min() < 0 or values.max() > 1 + tolerance:
        return f"it gives probabilities from {values.min():.6g} to {values.max():.6g}"
    off = np.abs(values.sum(axis=1) - 1).max()
    return f"a row of probabilities is off 1 by {off:.3g} in sum" if off > tolerance else None


def _holds_classes(calibrator: Calibrator) -> bool:
    sizes = (size for array in calibrator.state().values() for size in array.shape)
    return calibrator.n_classes_ in sizes or any(map(_holds_classes, calibrator.parts().values()))


def _with_classes(calibrator: Calibrator, most: int) -> Calibrator:
    """Return a copy for at most so many classes, down to the parts that it is made of."""
    small = copy(calibrator)
    small.n_classes_ = min(calibrator.n_classes_, most)
    for name, part in calibrator.parts().items():
        setattr(small, name, _with_classes(part, most))
    return small
