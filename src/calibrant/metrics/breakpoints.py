"""Where along the sorted rows the usual metrics want running sums: at a few hundred places only.

A resample of N rows is a number for each row, and running sums of them cost several passes over all
N. ECE, smCE and smECE read them at the edges of their cells, which are the same for all resamples,
and AdaECE where a resample has counted a share of its rows: within a stretch of some 32 of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from calibrant.core.arrays import BoolArray, FloatArray, IntArray

# Even cells whose edges are breakpoints: those of ECE and those of smECE, which hold those of smCE.
GRIDS = (15, 256)
# Bins of equal mass whose cuts are breakpoints while every row counts once.
MASS_BINS = 15
# Rows between two breakpoints, more where there would be more breakpoints than this.
ROWS_BETWEEN, MOST_BREAKPOINTS = 32, 4096


@dataclass(frozen=True, eq=False)
class Breakpoints:
    """Positions in N sorted rows, each where a run of equal confidences begins.

    Attributes:
        positions: (P + 1,) ascending, from 0 to N.
    """

    positions: IntArray

    @classmethod
    def of_rows(cls, confidence: FloatArray) -> Self:
        """Return the places that all usual metrics of (N,) ascending confidences read."""
        n = len(confidence)
        edges = [np.searchsorted(confidence, np.arange(1, b) / b, side="right") for b in GRIDS]
        index = np.arange(1, MASS_BINS + 1)
        cuts = index * (n // MASS_BINS) + np.minimum(index, n % MASS_BINS)
        # A cut within a run of equal confidences lies between the run's ends.
        end = np.searchsorted(confidence, confidence[np.maximum(cuts - 1, 0)], side="right")
        begin = np.searchsorted(confidence, confidence[np.maximum(cuts - 1, 0)], side="left")
        return cls(np.unique(np.concatenate([*edges, begin, end, [0, n]])))

    @property
    def stretches(self) -> int:
        """P, how many stretches there are between them."""
        return len(self.positions) - 1

    def places(self, positions: IntArray) -> IntArray:
        """Return which breakpoints (..., B) positions are.

        Raises:
            ValueError: one is none.
        """
        found = np.searchsorted(self.positions, positions)
        if not np.array_equal(self.positions[found], positions):
            raise ValueError("running sums are known at breakpoints only")
        return found


@dataclass(frozen=True, eq=False)
class DenseBreakpoints(Breakpoints):
    """Breakpoints so dense that every value a resample looks up lies near one.

    Attributes:
        single: (P,) whether a stretch is a single run; others have a few rows.
        width: the most rows of those.
    """

    single: BoolArray
    width: int

    @classmethod
    def among(cls, few: Breakpoints, starts: IntArray) -> Self:
        """Return more breakpoints.

        Args:
            few: what all rows together want.
            starts: (G + 1,) first row of every run of equal confidences, and N.
        """
        between = max(ROWS_BETWEEN, int(starts[-1]) // MOST_BREAKPOINTS)
        first = np.flatnonzero(np.diff(starts[:-1] // between, prepend=-1))
        long = np.flatnonzero(np.diff(starts) > between)
        positions = np.unique(np.concatenate([few.positions, starts[first], starts[long]]))
        single = np.diff(np.searchsorted(starts, positions)) == 1
        return cls(positions, single, int(np.diff(positions)[~single].max(initial=0)))
