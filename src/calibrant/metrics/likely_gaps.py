"""Which gaps between confidence and accuracy are likely, as far as they aren't noise."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple, Self

import numpy as np

from calibrant.core.arrays import FloatArray, IntArray

# Groups of rows whose gaps are looked at; fewer where rows are few.
GAP_GROUPS, FEWEST_IN_GROUP = 20, 25


class LikelyGaps(NamedTuple):
    """Gaps of groups of rows, drawn towards 0 as far as they may be noise.

    A bootstrap takes the gaps seen for the true ones. Where the truth is 0, or nearly, what was
    seen is noise, and resamples add theirs to it: an absolute value then scatters by up to 1.25
    times too much. So resamples scatter around gaps g^3 / (g^2 + s^2 / 2) instead of g, with s the
    standard error of g. The scatter of |g| is then right within .92 to 1.16 for any true gap (.95
    to 1.25 without).

    Attributes:
        bounds: (G + 1,) first row of each group, and N.
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
        groups = max(1, min(GAP_GROUPS, n // FEWEST_IN_GROUP))
        at = confidence[np.arange(groups) * n // groups]
        # Rows that tie stay together.
        bounds = [*np.unique(np.searchsorted(confidence, at)).tolist(), n]
        gaps: list[float] = []
        for start, stop in pairwise(bounds):
            part = slice(start, stop)
            each = np.ones(stop - start) if weight is None else weight[part]
            gaps.append(_likely_gap(confidence[part] - correct[part], each))
        return cls(np.array(bounds), np.array(gaps))

    def of(self, part: slice) -> FloatArray:
        """Return (n,) the gaps of single rows."""
        start, stop, _ = part.indices(int(self.bounds[-1]))
        sizes = np.diff(np.clip(self.bounds, start, stop))
        return np.repeat(self.gaps, sizes)


def _likely_gap(residual: FloatArray, weight: FloatArray) -> float:
    """Return the mean of residuals, drawn towards 0 as far as it may be noise."""
    mass = float(weight.sum())
    if mass == 0:
        return 0.0
    gap = float(weight @ residual) / mass
    apart = (residual - gap) * weight
    square = float(apart @ apart) / mass**2
    return gap**3 / (gap**2 + square / 2) if gap else 0.0
