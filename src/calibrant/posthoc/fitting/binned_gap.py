"""The ECE of arrays that are at hand, for searches that ask for it thousands of times."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from calibrant.core.arrays import FloatArray, IntArray
from calibrant.metrics.binned import bin_edges


def binned_gaps(confidence: FloatArray, correct: FloatArray, n_bins: int) -> FloatArray:
    """Return the (M,) ECEs of (M, N) confidences, binned as in `calibrant.metrics`.

    Bins are closed on the right. `correct` may be a fraction, for rows whose prediction is one of
    several tied classes.
    """
    several, rows = len(confidence), int(confidence.shape[1])
    search = cast(Any, np.searchsorted)  # its types don't know of (M, N) values
    cell: IntArray = search(bin_edges(n_bins)[1:-1], confidence, side="left")
    first: IntArray = np.arange(several)
    cell = cell + n_bins * first.reshape(-1, 1)
    gaps = np.bincount(cell.ravel(), (confidence - correct).ravel(), n_bins * several)
    return np.abs(gaps.reshape(several, n_bins)).sum(axis=1) / rows


def binned_gap(confidence: FloatArray, correct: FloatArray, n_bins: int) -> float:
    """Return the ECE of (N,) confidences; see `binned_gaps`."""
    return float(binned_gaps(confidence[None], correct[None], n_bins)[0])
