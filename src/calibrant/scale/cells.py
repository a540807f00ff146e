"""Fine cells of confidence, and counts of rows in them that add up over shards.

The edges of a grid are those of two: even in confidence, so that sums over 10, 12, 15, 20, ... bins
are sums over whole cells, and even in log odds, which keeps apart confidences that crowd at 1. What
treating the rows of a cell as equally confident may change, `calibrant.metrics.bins` says; a cell
here is never wider than one of either grid there.

In each cell right rows and wrong ones are counted apart. So the cell knows all that a resample can
do to it, up to its own width.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import BoolArray, FloatArray, IntArray
from calibrant.metrics.bins import bin_index, cell_edges
from calibrant.metrics.top_label import ResidualCurves, TopLabel, accumulate
from calibrant.scale.exact import halves, joined

# Cells even in confidence and in log odds: for one set of rows, and for each of many groups.
FINE, COARSE = (3600, 5000), (240, 500)
Grid = tuple[int, int]


@lru_cache
def edges_of(grid: Grid) -> FloatArray:
    """Return the edges of a grid, from 0 to 1."""
    even, logit = grid
    return np.unique(np.concatenate([cell_edges(even, "uniform"), cell_edges(logit, "logit")]))


@dataclass(frozen=True, eq=False)
class CellSums:
    """Rows by cell and outcome, only of cells that hold any. Two of them add up exactly.

    Attributes:
        grid: how fine the cells are.
        key: (P,) twice the cell, and 1 more for right rows, ascending.
        sums: (P, 3) how many rows, and their confidences in two halves (`calibrant.scale.exact`).
    """

    grid: Grid
    key: IntArray
    sums: NDArray[np.int64]

    @classmethod
    def of(cls, confidence: FloatArray, correct: BoolArray, grid: Grid = FINE) -> CellSums:
        """Sum at most 2^26 rows; a confidence that rounding left above 1 counts as 1."""
        clipped = np.clip(confidence, 0.0, 1.0)
        key = 2 * bin_index(clipped, edges_of(grid)) + correct
        high, low = halves(clipped)
        count = np.bincount(key)
        used = np.flatnonzero(count)
        parts = (count, np.bincount(key, high), np.bincount(key, low))
        return cls(grid, used, np.stack([part[used].astype(np.int64) for part in parts], axis=1))

    @classmethod
    def none(cls, grid: Grid = FINE) -> CellSums:
        """Return the sums of no rows."""
        return cls(grid, np.empty(0, np.int64), np.empty((0, 3), np.int64))

    def __add__(self, other: CellSums) -> CellSums:
        """Return the sums of both sets of rows together."""
        key, sums = added((self.key, other.key), (self.sums, other.sums))
        return CellSums(self.grid, key, sums)

    @property
    def n(self) -> int:
        """Number of rows."""
        return int(self.sums[:, 0].sum())

    def cells(self) -> Cells:
        """Return the cells as floats, right and wrong rows side by side."""
        cell, index = np.unique(self.key // 2, return_inverse=True)
        count, confidence = np.zeros((2, len(cell))), np.zeros((2, len(cell)))
        right = self.key % 2
        count[right, index] = self.sums[:, 0]
        confidence[right, index] = joined(self.sums[:, 1], self.sums[:, 2])
        edges = edges_of(self.grid)
        low = np.nextafter(edges[cell], 1.0)
        low[cell == 0] = 0.0
        mean = confidence.sum(axis=0) / count.sum(axis=0)
        # Rounding must not move the mean of a cell into the next.
        return Cells(np.clip(mean, low, edges[cell + 1]), count, confidence)


@dataclass(frozen=True, eq=False)
class Cells:
    """P cells that hold rows, ascending.

    Attributes:
        position: (P,) mean confidence.
        count: (2, P) wrong and right rows.
        confidence: (2, P) the sums of their confidences.
    """

    position: FloatArray
    count: FloatArray
    confidence: FloatArray

    @property
    def n(self) -> int:
        """Number of rows."""
        return int(self.count.sum())

    @property
    def rows(self) -> TopLabel:
        """The cells as if each were one row, as right as its rows are."""
        accuracy = self.count[1] / self.count.sum(axis=0)
        return TopLabel(self.position, accuracy, np.arange(len(self.position)))

    def curve(self) -> ResidualCurves:
        """Return the residual curve of all rows."""
        gap = self.confidence.sum(axis=0) - self.count[1]
        return self._curves(gap[None], self.count.sum(axis=0)[None])

    def resampled(self, wrong: FloatArray, right: FloatArray) -> ResidualCurves:
        """Return the curves of (R, P) other numbers of wrong and of right rows."""
        each = np.divide(
            self.confidence,
            self.count,
            out=np.zeros(self.count.shape),
            where=self.count > 0,
        )
        return self._curves(wrong * each[0] + right * (each[1] - 1), wrong + right)

    def with_hits(self, right: FloatArray) -> ResidualCurves:
        """Return the curves of the same rows with (R, P) other numbers of right ones."""
        return self._curves(self.confidence.sum(axis=0) - right, self.count.sum(axis=0)[None])

    def _curves(self, gap: FloatArray, count: FloatArray) -> ResidualCurves:
        residual, weight = accumulate(gap), accumulate(count)
        # Resampled blocks count in fractions, whose sum rounding must not leave beside N.
        np.minimum(weight, self.n, out=weight)
        weight[:, -1] = self.n
        return ResidualCurves(self.rows, residual, np.broadcast_to(weight, residual.shape))


def added(
    keys: tuple[IntArray, ...], sums: tuple[NDArray[np.int64], ...]
) -> tuple[IntArray, NDArray[np.int64]]:
    """Return distinct keys, ascending, and the sums of the rows that belong to each."""
    key, values = np.concatenate(keys), np.concatenate(sums)
    order = np.argsort(key, kind="stable")
    key, values = key[order], values[order]
    if len(key) == 0:
        return key, values
    starts = np.flatnonzero(np.append(True, key[1:] != key[:-1]))
    return key[starts], np.add.reduceat(values, starts, axis=0)
