"""Weights of rows in whole numbers, and draws of rows that are known by sums of their weights only.

Rows in a cell are told apart by the power of two next above their weight. In units of it weights
lie in [1/2, 1), and add up as exactly as confidences do (`calibrant.core.exact`), whatever scale
they are on. And of rows whose weights differ by less than a factor of two, how many are drawn says
nearly all about what they weigh together; the rest is normal, with the variance that it has.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import FloatArray, IntArray
from calibrant.core.exact import HALF_BITS, halves, joined

# Added to exponents of weights, so that none is negative.
OFFSET = 1100
# Columns of whole numbers: rows; of rows with weights also their weights, in two halves, and
# squares.
COUNT, HIGH, LOW, SQUARE = 0, 1, 2, 3
# A variance in these units below this is what rounding leaves of equal weights.
ROUNDING = 2.0**-24


def powers_of(key: IntArray, width: int) -> IntArray:
    """Return the power of two whose multiples the sums of each key of rows with weights are."""
    return key // width - OFFSET


def tallied(
    cell: IntArray, width: int, weights: FloatArray | None, *values: FloatArray
) -> tuple[IntArray, NDArray[np.int64]]:
    """Return keys, ascending, and for each of them how many rows there are, and sums over these.

    Args:
        cell: (N,) of each row, from 0 to `width` - 1; at most 2^26 rows.
        width: how many cells there may be.
        weights: (N,) above 0; None where rows count alike.
        values: (N,) numbers in [0, 1] to sum, times the weight.

    Returns:
        (P,) cells, more than `width` apart for each power of two of the weights, and (P, C) columns
        `COUNT`, with weights `HIGH`, `LOW` and `SQUARE`, then two halves for each of the values.
    """
    key, index, columns = cell, cell, list[FloatArray]()
    if weights is not None:
        share, power = np.frexp(weights)
        key, index = np.unique(
            cell + width * (power.astype(np.int64) + OFFSET), return_inverse=True
        )
        columns = [*halves(share), np.rint(np.ldexp(share * share, HALF_BITS))]
        values = tuple(share * each for each in values)
    for each in values:
        columns += halves(each)
    count = np.bincount(index)
    sums = np.stack([count, *(np.bincount(index, c).astype(np.int64) for c in columns)], axis=1)
    if weights is not None:
        return key, sums
    used = np.flatnonzero(count)
    return used, sums[used]


@dataclass(frozen=True, eq=False)
class Kinds:
    """Q kinds of rows, each alike in its cell and nearly so in weight.

    Attributes:
        width: how many cells there are.
        cell: (Q,) ascending; kinds of one cell differ in weight.
        rows: (Q,) how many rows there are of each.
        weight: (Q,) their mean weight.
        spread: (Q,) the variance of their weights.
    """

    width: int
    cell: IntArray
    rows: IntArray
    weight: FloatArray
    spread: FloatArray

    @classmethod
    def of(
        cls, width: int, cell: IntArray, power: IntArray | None, sums: NDArray[np.int64]
    ) -> Kinds:
        """Return the kinds that columns of `tallied` tell apart.

        Args:
            width: how many cells there are.
            cell: (Q,) of each row of the columns.
            power: (Q,) the power of two whose multiples they are; None without weights.
            sums: (Q, C) columns.
        """
        order = np.argsort(cell, kind="stable")
        cell, sums = cell[order], sums[order]
        rows = sums[:, COUNT]
        if power is None:
            return cls(width, cell, rows, np.ones(len(cell)), np.zeros(len(cell)))
        mean = joined(sums[:, HIGH], sums[:, LOW]) / rows
        square = np.ldexp(sums[:, SQUARE].astype(np.float64), -HALF_BITS) / rows
        # Of one row there is no variance, but rounding.
        spread = np.where(rows > 1, np.maximum(square - mean * mean, 0.0), 0.0)
        spread[spread < ROUNDING] = 0.0
        unit = np.ldexp(1.0, power[order])
        return cls(width, cell, rows, mean * unit, spread * unit * unit)

    def scaled(self, scale: float) -> Kinds:
        """Return the same with weights times `scale`."""
        return replace(self, weight=self.weight * scale, spread=self.spread * scale * scale)

    def in_cells(self, values: NDArray[np.generic]) -> FloatArray:
        """Return (..., P) sums of (..., Q) values over the kinds of each cell."""
        found = np.zeros((*values.shape[:-1], self.width))
        if len(self.cell):
            starts = np.flatnonzero(np.append(True, self.cell[1:] != self.cell[:-1]))
            added = np.add.reduceat(values.astype(np.float64), starts, axis=-1)
            found[..., self.cell[starts]] = added
        return found

    @property
    def squares(self) -> FloatArray:
        """(P,) sums of squared weights in each cell."""
        return self.in_cells(self.rows * (self.weight**2 + self.spread))

    def resampled(self, rng: np.random.Generator, size: int) -> FloatArray:
        """Return (R, P) what the rows of each cell weigh in so many resamples of all rows."""
        n = int(self.rows.sum())
        drawn = rng.multinomial(n, self.rows / n, size=size).astype(np.float64)
        return self.in_cells(self._weighed(rng, drawn, drawn))

    def right(self, rng: np.random.Generator, chance: FloatArray, size: int) -> FloatArray:
        """Return (R, P) what the rows weigh that are right with the (P,) chance of their cell."""
        hits = rng.binomial(self.rows, chance[self.cell], size=(size, len(self.cell)))
        apart = hits * (self.rows - hits) / np.maximum(self.rows - 1, 1)
        return self.in_cells(self._weighed(rng, hits.astype(np.float64), apart))

    def _weighed(
        self, rng: np.random.Generator, drawn: FloatArray, apart: FloatArray
    ) -> FloatArray:
        """Return what so many rows weigh, whose weights vary as much as `apart` single ones do."""
        weighed = drawn * self.weight
        some = np.flatnonzero(self.spread)
        if len(some):
            noise = rng.standard_normal((len(drawn), len(some)))
            weighed[:, some] += noise * np.sqrt(apart[:, some] * self.spread[some])
        return np.maximum(weighed, 0.0)
