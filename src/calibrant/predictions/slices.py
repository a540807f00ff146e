"""Scores of all rows with outcomes of some: what a judge's log holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from calibrant.core.arrays import FloatArray


@dataclass(frozen=True, eq=False)
class LabelledSlice:
    """Rows of which some have an outcome.

    Attributes:
        score: (N,) of every row.
        outcome: (N,) in [0, 1], NaN where it isn't known.
        clusters: (N,) names of what rows belong to, or None.
        inclusion: (N,) probability of having been drawn into the slice, or None.
    """

    score: FloatArray
    outcome: FloatArray
    clusters: NDArray[Any] | None = None
    inclusion: FloatArray | None = None

    @property
    def graded(self) -> bool:
        """Whether an outcome is neither 0 nor 1, so that it is no event."""
        known = self.outcome[self.outcome == self.outcome]
        return bool(((known != 0) & (known != 1)).any())
