"""Fine cells of confidence, and counts of rows in them that add up over shards.

The edges of a grid are those of two: even in confidence, so that sums over 10, 12, 15, 20, ... bins
are sums over whole cells, and even in log odds, which keeps apart confidences that crowd at 1. What
treating the rows of a cell as equally confident may change, `calibrant.metrics.bins` says; a cell
here is never wider than one of either grid there.

In each cell right rows and wrong ones are counted apart. So the cell knows all that a resample can
do to it, up to its own width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import BoolArray, FloatArray, IntArray
from calibrant.core.exact import joined
from calibrant.core.weights import are_counts
from calibrant.metrics.bins import bin_index, cell_edges
from calibrant.scale.cell_curves import Cells
from calibrant.scale.weighted_counts import COUNT, Kinds, powers_of, tallied

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
        key: (P,) twice the cell, and 1 more for right rows, ascending; of rows with weights apart
            by the power of two of these (`calibrant.scale.weighted_counts`).
        sums: (P, 3) how many rows, and their confidences in two halves (`calibrant.core.exact`);
            (P, 6) with sums of weights and of their squares, and confidences times weights.
        counts: whether weights, if there are any, are whole numbers, which count rows.
    """

    grid: Grid
    key: IntArray
    sums: NDArray[np.int64]
    counts: bool = True

    @classmethod
    def of(
        cls,
        confidence: FloatArray,
        correct: BoolArray,
        grid: Grid = FINE,
        weights: FloatArray | None = None,
    ) -> CellSums:
        """Sum at most 2^26 rows; a confidence that rounding left above 1 counts as 1."""
        clipped = np.clip(confidence, 0.0, 1.0)
        cell = 2 * bin_index(clipped, edges_of(grid)) + correct
        key, sums = tallied(cell, 2 * len(edges_of(grid)), weights, clipped)
        return cls(grid, key, sums, are_counts(weights))

    @classmethod
    def none(cls, grid: Grid = FINE, *, weighted: bool = False) -> CellSums:
        """Return the sums of no rows."""
        return cls(grid, np.empty(0, np.int64), np.empty((0, 6 if weighted else 3), np.int64))

    def __add__(self, other: CellSums) -> CellSums:
        """Return the sums of both sets of rows together."""
        key, sums = added((self.key, other.key), (self.sums, other.sums))
        return CellSums(self.grid, key, sums, self.counts and other.counts)

    @property
    def n(self) -> int:
        """Number of rows."""
        return int(self.sums[:, COUNT].sum())

    @property
    def weighted(self) -> bool:
        """Whether rows have weights."""
        return self.sums.shape[1] > 3

    @property
    def right(self) -> int:
        """Number of right rows."""
        return int(self.sums[self.key % 2 == 1, COUNT].sum())

    @property
    def unscaled(self) -> CellSums:
        """The same rows with weights that `cells` leaves as they are."""
        return replace(self, counts=True)

    @property
    def numbers(self) -> IntArray:
        """(P,) the cells that hold rows, ascending."""
        return np.unique(self.key % (2 * len(edges_of(self.grid))) // 2)

    def cells(self) -> Cells:
        """Return the cells as floats, right and wrong rows side by side.

        Weights that count rows stay as they are, others are scaled to a mean of 1.
        """
        edges = edges_of(self.grid)
        width = 2 * len(edges)
        cell, index = np.unique(self.key % width // 2, return_inverse=True)
        power = powers_of(self.key, width) if self.weighted else None
        outcome = Kinds.of(2 * len(cell), index + len(cell) * (self.key % 2), power, self.sums)
        key, sums = added((self.key // 2,), (self.sums,))
        power = powers_of(key, width // 2) if self.weighted else None
        either = Kinds.of(len(cell), np.searchsorted(cell, key % (width // 2)), power, sums)
        scale = 1.0
        if not self.counts:
            scale = self.n / float(outcome.in_cells(outcome.rows * outcome.weight).sum())
            outcome, either = outcome.scaled(scale), either.scaled(scale)
        confidence = np.zeros((2, len(cell)))
        unit = 1.0 if power is None else np.ldexp(scale, powers_of(self.key, width))
        each = joined(self.sums[:, -2], self.sums[:, -1]) * unit
        np.add.at(confidence, (self.key % 2, index), each)
        low = np.nextafter(edges[cell], 1.0)
        low[cell == 0] = 0.0
        count = outcome.in_cells(outcome.rows * outcome.weight).reshape(2, -1)
        mean = confidence.sum(axis=0) / count.sum(axis=0)
        # Rounding must not move the mean of a cell into the next.
        return Cells(np.clip(mean, low, edges[cell + 1]), count, confidence, outcome, either)


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
