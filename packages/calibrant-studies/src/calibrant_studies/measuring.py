"""What kinds of cells share: fits without their warnings, and means with an interval."""

from __future__ import annotations

import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager

import numpy as np

from calibrant.core.arrays import FloatArray
from calibrant.evaluation.over_data_sets import t_interval


@contextmanager
def quietly() -> Generator[None]:
    """Hide the warnings of fits, of which few rows give many: the table shows what comes of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def mean_with_interval(values: Sequence[float] | FloatArray) -> dict[str, float]:
    """Return the mean of independent numbers, with its 95 % t interval, as cells have it."""
    low, high = t_interval(np.asarray(values), 0.95)
    mean = float(np.mean(values))
    return (
        {"value": mean}
        if low is None or high is None
        else {"value": mean, "low": low, "high": high}
    )
