"""Running sums over rows, of floats or of whole numbers, which is quicker and exact."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import FloatArray, IntArray

# Sums over N rows in whole units have at most so many bits: they are exact as floats.
UNIT_BITS = 51


@dataclass(frozen=True, eq=False)
class Crossing:
    """Positions on R curves, each a share of the way through a run of equal confidences.

    Attributes:
        below: (R or 1, B) row where the run begins.
        above: (R or 1, B) row where it ends.
        share: (R or 1, B) how much of it is crossed, in [0, 1].
    """

    below: IntArray
    above: IntArray
    share: FloatArray

    def of(self, sums: FloatArray) -> FloatArray:
        """Return (R, B) values of running sums, (R or 1, N + 1), at the positions."""
        low = np.take_along_axis(sums, self.below, axis=1)
        return low + self.share * (np.take_along_axis(sums, self.above, axis=1) - low)


def unit_of(rows: int) -> int:
    """Return how many units 1 has in sums over so many rows."""
    return 1 << (UNIT_BITS - rows.bit_length())


class InUnits(NamedTuple):
    """Rows in whole numbers of a small unit.

    A running sum of floats waits four cycles for each addition, one of whole numbers one; and it is
    the same in whatever order and on whatever processor. The unit is so small that rounding a row
    to it changes the sum over N rows by less than the last bit of its float.

    Attributes:
        confidence: (N,) c.
        correct: (N,) a.
        unit: how many of them are 1.
    """

    confidence: IntArray
    correct: IntArray
    unit: int

    @classmethod
    def of_rows(cls, confidence: FloatArray, correct: FloatArray) -> Self:
        """Return (N,) confidences and outcomes in whole numbers."""
        unit = unit_of(len(confidence))
        whole = np.rint(confidence * unit).astype(np.int64)
        return cls(whole, correct.astype(np.int64) * unit, unit)

    def resampled(self, counts: NDArray[Any]) -> FloatArray:
        """Return (R, N + 1) running sums of c - a, each row as often as (R, N) `counts` say."""
        sums = _places_for_sums(counts)
        np.multiply(counts, self.confidence - self.correct, out=sums[:, 1:])
        return _running(sums, 1 / self.unit)

    def with_labels(self, correct: NDArray[Any]) -> FloatArray:
        """Return (R, N + 1) running sums of c - a for other outcomes, (R, N) booleans."""
        sums = _places_for_sums(correct)
        np.multiply(correct, -self.unit, out=sums[:, 1:])
        sums[:, 1:] += self.confidence
        return _running(sums, 1 / self.unit)


def _places_for_sums(values: NDArray[Any]) -> IntArray:
    """Return (R, N + 1) whole numbers for running sums of (R, N) values; the first is 0."""
    sums = np.empty((values.shape[0], values.shape[1] + 1), dtype=np.int64)
    sums[:, 0] = 0
    return sums


def _running(values: IntArray, unit: float) -> FloatArray:
    """Return running sums of the values as floats, in the memory of the values."""
    np.cumsum(values, axis=1, out=values)
    return np.multiply(values, unit, out=values.view(np.float64))


def accumulate(values: NDArray[Any]) -> FloatArray:
    """Return (R, N + 1) running sums of (R, N) values, from 0."""
    if values.dtype.kind in "ui":
        whole = _places_for_sums(values)
        whole[:, 1:] = values
        return _running(whole, 1.0)
    sums = np.empty((values.shape[0], values.shape[1] + 1))
    sums[:, 0] = 0.0
    np.cumsum(values, axis=1, out=sums[:, 1:])
    return sums
