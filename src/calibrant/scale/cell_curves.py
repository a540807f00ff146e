"""Cells of confidence as rows are elsewhere: their residual curves, and those of resamples."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from calibrant.core.arrays import FloatArray
from calibrant.metrics.running_sums import accumulate
from calibrant.metrics.shrinkage import ShrunkGaps
from calibrant.metrics.top_label import ResidualCurves, TopLabel
from calibrant.scale.weighted_counts import Kinds


@dataclass(frozen=True, eq=False)
class Cells:
    """P cells that hold rows, ascending.

    Attributes:
        position: (P,) mean confidence.
        count: (2, P) wrong and right rows, with weights what they weigh.
        confidence: (2, P) the sums of their confidences, times the weights.
        outcome: kinds of rows in 2 P cells, the wrong rows of each and then the right ones.
        either: kinds of rows in P cells, whatever their outcome.
    """

    position: FloatArray
    count: FloatArray
    confidence: FloatArray
    outcome: Kinds
    either: Kinds

    @property
    def total(self) -> float:
        """Number of rows, with weights what they weigh."""
        return float(self.count.sum())

    @cached_property
    def rows(self) -> TopLabel:
        """The cells as if each were one row, as right as its rows are."""
        accuracy = self.count[1] / self.count.sum(axis=0)
        return TopLabel(self.position, accuracy, np.arange(len(self.position)))

    @cached_property
    def residual(self) -> FloatArray:
        """(2, P) mean of c - a of wrong and of right rows; 0 where there are none."""
        gap = self.confidence - self.count * np.array([[0.0], [1.0]])
        return np.divide(gap, self.count, out=np.zeros(gap.shape), where=self.count > 0)

    @cached_property
    def squares(self) -> FloatArray:
        """(2, P) sums of squared weights of wrong and of right rows."""
        return self.outcome.squares.reshape(2, -1)

    @cached_property
    def null_shift(self) -> FloatArray:
        """(P + 1,) what to add to residual curves so that small gaps are drawn towards 0.

        See `ShrunkGaps`: it is what resamples of single rows are given, with the rows of a cell as
        if they tied.
        """
        rows = self.either.in_cells(self.either.rows).astype(np.int64)
        gaps = ShrunkGaps.of_cells(self.residual, self.count, self.squares, rows)
        shrunk = gaps.of(slice(None)) * self.count.sum(axis=0)
        gap = (self.residual * self.count).sum(axis=0)
        return accumulate((shrunk - gap)[None, :])[0]

    def curve(self) -> ResidualCurves:
        """Return the residual curve of all rows."""
        gap = self.confidence.sum(axis=0) - self.count[1]
        return self._curves(gap[None], self.count.sum(axis=0)[None])

    def resampled(self, wrong: FloatArray, right: FloatArray) -> ResidualCurves:
        """Return the curves of (R, P) other numbers of wrong and of right rows."""
        return self._curves(wrong * self.residual[0] + right * self.residual[1], wrong + right)

    def with_hits(self, right: FloatArray) -> ResidualCurves:
        """Return the curves of the same rows with (R, P) other numbers of right ones."""
        return self._curves(self.confidence.sum(axis=0) - right, self.count.sum(axis=0)[None])

    def _curves(self, gap: FloatArray, count: FloatArray) -> ResidualCurves:
        residual, weight = accumulate(gap), accumulate(count)
        total, sums = self.total, weight[:, -1:]
        # Resampled blocks count in fractions, whose sum rounding must not leave beside N.
        near = np.abs(sums - total) < 1e-9 * total
        weight = np.where(near, np.minimum(weight, total), weight)
        weight[:, -1:] = np.where(near, total, sums)
        return CellCurves(self, residual, np.broadcast_to(weight, residual.shape))


class CellCurves(ResidualCurves):
    """Residual curves over cells.

    Args:
        cells: the cells.
        residual: (R, P + 1) sums of c - a over the first k of them.
        weight: (R, P + 1) how many rows they are.
    """

    _cells: Cells

    def __init__(self, cells: Cells, residual: FloatArray, weight: FloatArray) -> None:
        values: tuple[Any, ...] = (cells.rows, residual, weight, cells)
        for name, value in zip(("rows", "residual", "weight", "_cells"), values, strict=True):
            object.__setattr__(self, name, value)

    def shrink_gaps(self) -> None:
        """Draw small gaps towards 0, in place: see `ShrunkGaps`."""
        np.add(self.residual, self._cells.null_shift, out=self.residual)
        self.__dict__.pop("correct", None)  # it was made of the curves as they were
