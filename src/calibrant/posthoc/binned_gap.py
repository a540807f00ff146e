"""The ECE of arrays that are at hand, for searches that ask for it thousands of times."""

from __future__ import annotations

import numpy as np

from calibrant.arrays import FloatArray
from calibrant.metrics.bins import bin_edges


def binned_gap(confidence: FloatArray, correct: FloatArray, bins: int) -> float:
    """Return the ECE of (N,) confidences, binned as `calibrant.metrics` does: closed on the right.

    `correct` may be a fraction, for rows whose prediction is one of several tied classes.
    """
    cell = np.searchsorted(bin_edges(bins)[1:-1], confidence, side="left")
    gaps = np.bincount(cell, confidence - correct, bins)
    return float(np.abs(gaps).sum()) / len(confidence)
