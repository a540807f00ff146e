"""Since when the confidences have been off: the change point, with an interval.

R sums, over all rows s at which the bets might have begun, what they would have made since. Divided
by R these sums are weights of s: the share of the evidence that each beginning explains. The
weights' largest is the estimate, and what holds their middle 95 % the interval. Where the stream is
remembered only at some rows, the weights between two of them go from the one's to the other's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from calibrant.core.arrays import FloatArray, IntArray
from calibrant.monitor.betting import log_mean_exp
from calibrant.monitor.evidence import Evidence, Step


@dataclass(frozen=True)
class ChangePoint:
    """The row from which on confidences have probably been off.

    Attributes:
        row: the 0-based row; low: the earliest that can't be excluded; high: the latest.
    """

    row: int
    low: int
    high: int


def change_point(
    evidence: Evidence, step: Step | None = None, upto: int = 0, level: float = 0.95
) -> ChangePoint:
    """Return the change point as it looks after some rows of a step.

    Args:
        evidence: before the step.
        step: of which the first `upto` + 1 rows are seen; None for the evidence alone.
        upto: the last row seen.
        level: nominal coverage of the interval.
    """
    trail, now = evidence.trail, evidence.products
    counts, rows, sums = trail.count, trail.row, trail.sums
    total = evidence.rows
    last = int(rows[-1]) + total - int(counts[-1]) - 1
    if step is not None:
        total, now, last = total + upto + 1, step.products[upto + 1], int(step.row[upto])
        due = trail.due(evidence.rows, total)
        at = due - evidence.rows
        counts = np.concatenate([counts, due])
        rows = np.concatenate([rows, step.row[at - 1] + 1])
        sums = np.concatenate([sums, step.products[at]])
    weight = log_mean_exp(now - sums)
    return _middle(counts, rows, weight, total, last, level)


def _middle(
    counts: IntArray, rows: IntArray, weight: FloatArray, total: int, last: int, level: float
) -> ChangePoint:
    """Return the estimate and the interval of (m,) marked rows with log weights."""
    ends = np.append(counts[1:], total)
    following = np.append(weight[1:], weight[-1])
    # Rows beginning at a mark, up to the next.
    mass = np.logaddexp(weight, following) + np.log(np.maximum(ends - counts, 1e-9) / 2)
    share = np.cumsum(np.exp(mass - mass.max()))
    share /= share[-1]
    tail = (1 - level) / 2
    first, final = (int(np.searchsorted(share, q)) for q in (tail, 1 - tail))
    after = np.append(rows[1:], last + 1)
    best = int(rows[weight.argmax()])
    return ChangePoint(best, min(int(rows[first]), best), max(int(after[final]) - 1, best))
