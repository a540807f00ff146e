"""The checks that people run on a stream, each looked at every hundred rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from calibrant.core.arrays import BoolArray, FloatArray, IntArray
from calibrant.metrics.bins import DEFAULT_BINS, bin_edges, bin_index
from calibrant.monitor.monitor import Monitor

EVERY, WINDOW = 100, 1_000
ECE_THRESHOLD = 0.05
# Two-sided normal and ten-degree chi-square, each at 5 %.
CRITICAL_Z, GROUPS, CRITICAL_CHI_SQUARE = 1.959964, 10, 18.307038

# Returns the row at which a check first raises an alarm, or None.
Check = Callable[[FloatArray, BoolArray], "int | None"]


def _first(rows: IntArray, high: BoolArray) -> int | None:
    return int(rows[high.argmax()]) if high.any() else None


def z_test(said: FloatArray, right: BoolArray) -> int | None:
    """Spiegelhalter's z of all rows so far, significant at 5 %."""
    top = np.cumsum((right - said) * (1 - 2 * said))
    under = np.cumsum((1 - 2 * said) ** 2 * said * (1 - said))
    at = np.arange(EVERY - 1, len(said), EVERY)
    return _first(at, np.abs(top[at]) > CRITICAL_Z * np.sqrt(under[at]))


def chi_square(said: FloatArray, right: BoolArray) -> int | None:
    """Hosmer and Lemeshow's chi-square of all rows so far, significant at 5 %."""
    cuts = np.quantile(said[:WINDOW], np.arange(1, GROUPS) / GROUPS)
    one = np.eye(GROUPS)[np.searchsorted(cuts, said)]
    at = np.arange(WINDOW - 1, len(said), EVERY)
    off = np.cumsum(one * (right - said)[:, None], axis=0)[at]
    spread = np.cumsum(one * (said * (1 - said))[:, None], axis=0)[at]
    return _first(at, (off**2 / spread).sum(axis=1) > CRITICAL_CHI_SQUARE)


def ece_threshold(said: FloatArray, right: BoolArray) -> int | None:
    """ECE of the latest thousand rows above 5 %."""
    one = np.eye(DEFAULT_BINS)[bin_index(said, bin_edges(DEFAULT_BINS))]
    sums = np.cumsum(one * (said - right)[:, None], axis=0)
    sums = np.vstack([np.zeros(DEFAULT_BINS), sums])
    end = np.arange(WINDOW, len(said) + 1, EVERY)
    ece = np.abs(sums[end] - sums[end - WINDOW]).sum(axis=1) / WINDOW
    return _first(end - 1, ece > ECE_THRESHOLD)


def monitored(said: FloatArray, right: BoolArray, tolerance: float) -> Monitor:
    """Return a monitor that has seen the rows, with c = 20 000 and alpha = 5 %."""
    monitor = Monitor(tolerance=tolerance, average_run_length=20_000)
    monitor.update(said, right)
    return monitor


CHECKS: dict[str, Check] = {
    "z": z_test,
    "chi-square": chi_square,
    "ece": ece_threshold,
}
