"""Which gaps between confidence and accuracy are likely, as far as they aren't noise."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple, Self

import numpy as np

from calibrant.core.arrays import FloatArray, IntArray

# Groups of rows whose gaps are looked at; fewer where rows are few.
GAP_GROUPS, FEWEST_IN_GROUP = 20, 25


class ShrunkGaps(NamedTuple):
    """Gaps of groups of rows, drawn towards 0 as far as they may be noise.

    A bootstrap takes the gaps seen for the true ones. Where the truth is 0, or nearly, what was
    seen is noise, and resamples add theirs to it: an absolute value then scatters by up to 1.25
    times too much. So resamples scatter around gaps g^3 / (g^2 + s^2 / 2) instead of g, with s the
    standard error of g. The scatter of |g| is then right within .92 to 1.16 for any true gap (.95
    to 1.25 without).

    Attributes:
        bounds: (G + 1,) first row, or cell, of each group, and N.
        gaps: (G,) those gaps, c - a.
    """

    bounds: IntArray
    gaps: FloatArray

    @classmethod
    def of_rows(
        cls, confidence: FloatArray, correct: FloatArray, weight: FloatArray | None = None
    ) -> Self:
        """Return the likely gaps of (N,) ascending confidences with their outcomes."""
        n = len(confidence)
        at = confidence[_firsts(n)]
        # Rows that tie stay together.
        bounds = [*np.unique(np.searchsorted(confidence, at)).tolist(), n]
        gaps: list[float] = []
        for start, stop in pairwise(bounds):
            part = slice(start, stop)
            each = np.ones(stop - start) if weight is None else weight[part]
            gaps.append(_shrunk_gap(confidence[part] - correct[part], each, each * each))
        return cls(np.array(bounds), np.array(gaps))

    @classmethod
    def of_cells(
        cls, residual: FloatArray, mass: FloatArray, squares: FloatArray, rows: IntArray
    ) -> Self:
        """Return the likely gaps of P cells of rows, ascending, as if the rows of a cell tied.

        Args:
            residual: (2, P) mean of c - a of wrong and of right rows.
            mass: (2, P) what these rows weigh together.
            squares: (2, P) sums of their squared weights.
            rows: (P,) how many rows a cell holds.
        """
        ends = np.cumsum(rows)
        firsts = np.searchsorted(ends, _firsts(int(ends[-1])), side="right")
        bounds = [*np.unique(firsts).tolist(), len(rows)]
        gaps = [
            _shrunk_gap(*(each[:, start:stop].ravel() for each in (residual, mass, squares)))
            for start, stop in pairwise(bounds)
        ]
        return cls(np.array(bounds), np.array(gaps))

    def of(self, part: slice) -> FloatArray:
        """Return (n,) the gaps of single rows, or cells."""
        start, stop, _ = part.indices(int(self.bounds[-1]))
        sizes = np.diff(np.clip(self.bounds, start, stop))
        return np.repeat(self.gaps, sizes)


def _firsts(n: int) -> IntArray:
    """Return the first of N sorted rows of each group."""
    groups = max(1, min(GAP_GROUPS, n // FEWEST_IN_GROUP))
    return np.arange(groups) * n // groups


def _shrunk_gap(residual: FloatArray, mass: FloatArray, squares: FloatArray) -> float:
    """Return the mean of residuals, drawn towards 0 as far as it may be noise.

    Args:
        residual: (n,) of single rows, or means of rows that have nearly the same.
        mass: (n,) their weights.
        squares: (n,) the sums of squared weights.
    """
    total = float(mass.sum())
    if total == 0:
        return 0.0
    gap = float(mass @ residual) / total
    apart = residual - gap
    noise = math.sqrt(float(squares @ (apart * apart)) / 2) / total
    # No square of a gap, which may be too small to have one.
    ratio = noise / gap if gap else math.inf
    return gap / (1 + ratio * ratio)
