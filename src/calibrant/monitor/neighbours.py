"""Whether rows that came one after another depend on one another, though nobody said so."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from calibrant.core.arrays import BoolArray, FloatArray, IntArray

# Residuals lose the mean of so many rows around them, so that a drift is no dependence.
AROUND = 401
# Neighbours are rows at most so far apart. Fewer rows than this say nothing.
LAG, FEWEST = 10, 100
# Beginnings of ids that are fewer don't tell which rows belong together.
FEWEST_BEGINNINGS = 10
# Standard errors from zero at which a dependence is told of, whenever one looks.
ENOUGH = 4.0


@dataclass(frozen=True)
class Neighbours:
    """How much what is left of neighbouring rows beside their confidence correlates.

    Attributes:
        by: ``"lag"`` where neighbours are up to ten rows apart, ``"id"`` where they share the
            beginning of their id.
        correlation: of the residuals of two neighbours; low, high: ends of its 95 % interval.
        rows: how many it was estimated from.
        doubtful: whether it is surely above zero.
    """

    by: str
    correlation: float
    low: float
    high: float
    rows: int
    doubtful: bool

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as JSON takes them."""
        return asdict(self)

    def __str__(self) -> str:
        what = f"rows up to {LAG} apart" if self.by == "lag" else "rows whose ids begin alike"
        ends = f"{self.low:.2f} to {self.high:.2f}"
        return (
            f"The promises are in doubt: they need independent rows, and outcomes of {what} "
            f"correlate by {self.correlation:.2f} beyond their confidences (95 % interval {ends}, "
            f"latest {self.rows} rows). If the rows come in documents, users or sessions, give "
            "--cluster COLUMN (clusters= in Python); otherwise alarms may be false."
        )


def doubt(found: Neighbours | None) -> str:
    """Return why the promises are in doubt, as sentences; empty if nothing shows it."""
    return str(found) if found is not None and found.doubtful else ""


def neighbours(confidence: FloatArray, correct: BoolArray, origin: IntArray) -> Neighbours | None:
    """Return how rows depend on their neighbours; None for few rows, or rows all right or wrong.

    With e the residuals less their mean nearby, and s_t the product of e_t and the mean of its
    neighbours before it, the estimate is sum s_t / sum e_t^2. Without dependence each s_t has an
    expectation of 0 given the past, so that sqrt(sum s_t^2) is its standard error.

    Args:
        confidence: (n,) in the order of the stream.
        correct: (n,) whether each row is right.
        origin: (n,) hash of what each row's id begins with; 0 where that isn't known.
    """
    n = len(confidence)
    residual = confidence - correct
    if n < FEWEST or not correct.any() or correct.all():
        return None
    width = min(AROUND, n)
    total = np.convolve(residual, np.ones(width), mode="same")
    number = np.convolve(np.ones(n), np.ones(width), mode="same")
    left = residual - total / number
    found = [_estimated("lag", *_of_lags(left), left)]
    _, code, size = np.unique(origin, return_inverse=True, return_counts=True)
    alike = (origin != 0) & (size[code] > 1)
    # One beginning for all, such as `request-`, tells no rows apart.
    if alike.sum() >= FEWEST and len(np.unique(code[alike])) >= FEWEST_BEGINNINGS:
        found.append(_estimated("id", *_of_ids(left[alike], code[alike]), left))
    known = [one for one in found if one is not None]
    return max(known, key=lambda one: (one.doubtful, one.by == "id"), default=None)


def _estimated(by: str, terms: FloatArray, pairs: float, left: FloatArray) -> Neighbours | None:
    """Return the estimate from products of residuals, whose expectation is 0 without dependence."""
    n = len(left)
    unit = float(left @ left) / n * pairs
    if unit <= 0:
        return None
    value, error = float(terms.sum()) / unit, float(np.sqrt(terms @ terms)) / unit
    return Neighbours(
        by, value, value - 1.96 * error, value + 1.96 * error, n, value > ENOUGH * error
    )


def _of_lags(left: FloatArray) -> tuple[FloatArray, float]:
    """Return each row's product with the mean of those before it, and how many rows have any."""
    sums = np.concatenate([[0.0], np.cumsum(left)])
    at = np.arange(LAG, len(left))
    return left[at] * (sums[at] - sums[at - LAG]) / LAG, float(len(at))


def _of_ids(left: FloatArray, code: IntArray) -> tuple[FloatArray, float]:
    """Return the products of all pairs of each id's beginning, added up, and how many pairs."""
    _, code, size = np.unique(code, return_inverse=True, return_counts=True)
    sums = np.bincount(code, left)
    return (sums**2 - np.bincount(code, left**2)) / 2, float((size * (size - 1)).sum()) / 2


def beginning(key: str) -> str | None:
    """Return what an id begins with, before its last separator; None without one."""
    at = max(key.rfind(mark) for mark in "-_:/.#|")
    return key[:at] if at > 0 else None
