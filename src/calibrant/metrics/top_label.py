"""The data of every top-label metric: how confident each prediction was, and whether it was right.

All of these metrics are functions of one curve. Sort the N rows by confidence and let R(k) be the
sum of the residuals c - a over the k least confident rows: a bin's gap, a cell's mass, the KS error
are differences of R. `ResidualCurves` holds R for the data, or for many resamples of them at once,
so that a metric that is written for it has its value, its bootstrap and its floor from one piece of
code.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import FloatArray, IntArray
from calibrant.core.weights import mean, total
from calibrant.metrics.breakpoints import Breakpoints, DenseBreakpoints
from calibrant.metrics.running_sums import Crossing, InUnits, accumulate
from calibrant.metrics.shrinkage import ShrunkGaps


@dataclass(frozen=True, eq=False)
class TopLabel:
    """N predictions sorted by confidence.

    Attributes:
        confidence: (N,) probabilities of the predicted labels, ascending, in [0, 1].
        correct: (N,) 1.0 where the predicted label is the true one, else 0.0, in the same order.
        order: (N,) position of each row in the caller's arrays.
        weight: (N,) how much each row counts, in the same order; None where all count alike.
    """

    confidence: FloatArray
    correct: FloatArray
    order: IntArray
    weight: FloatArray | None = None

    @classmethod
    def sort(
        cls,
        confidence: FloatArray,
        correct: NDArray[np.generic],
        weights: FloatArray | None = None,
    ) -> TopLabel:
        """Sort (N,) confidences with their (N,) correctness, and (N,) weights if there are any."""
        order = np.argsort(confidence, kind="stable")
        weight = None if weights is None else weights[order]
        # A renormalised float32 row can end a rounding error above 1.
        return cls(
            np.clip(confidence[order], 0.0, 1.0), correct[order].astype(np.float64), order, weight
        )

    @property
    def n(self) -> int:
        """Number of rows."""
        return len(self.confidence)

    @property
    def total(self) -> float:
        """How many rows the weights amount to: their sum, or N."""
        return total(self.n, self.weight)

    @property
    def mean_confidence(self) -> float:
        """Mean confidence, weighted."""
        return mean(self.confidence, self.weight)

    @property
    def accuracy(self) -> float:
        """Share of right predictions, weighted."""
        return mean(self.correct, self.weight)

    @cached_property
    def in_units(self) -> InUnits:
        """The confidences in whole numbers, for running sums that are quick and exact."""
        return InUnits.of_rows(self.confidence, self.correct)

    @cached_property
    def shrunk_gaps(self) -> ShrunkGaps:
        """What the gaps between confidence and accuracy are, most likely, along the confidences."""
        return ShrunkGaps.of_rows(self.confidence, self.correct, self.weight)

    def shrinkage(self, part: slice = slice(None)) -> FloatArray:
        """Return (n,) what to add to residuals of rows so that small gaps are drawn towards 0.

        See `ShrunkGaps`.
        """
        residual = self.shrunk_gaps.of(part) - (self.confidence[part] - self.correct[part])
        return residual if self.weight is None else residual * self.weight[part]

    @cached_property
    def null_shift(self) -> FloatArray:
        """(N + 1,) running sums of `shrinkage`, what to add to residual curves."""
        return accumulate(self.shrinkage()[None, :])[0]

    @cached_property
    def distinct(self) -> int:
        """Number of distinct confidences."""
        return 1 + int(np.count_nonzero(self.confidence[1:] != self.confidence[:-1]))

    @cached_property
    def tie_starts(self) -> IntArray:
        """(G + 1,) first row of every run of equal confidences, and N."""
        changes = np.flatnonzero(self.confidence[1:] != self.confidence[:-1])
        starts = np.zeros(len(changes) + 2, dtype=np.int64)
        np.add(changes, 1, out=starts[1:-1])
        starts[-1] = self.n
        return starts

    @cached_property
    def breakpoints(self) -> Breakpoints:
        """Where the usual metrics want running sums, as long as every row counts once."""
        return Breakpoints.of_rows(self.confidence)

    @cached_property
    def dense_breakpoints(self) -> DenseBreakpoints:
        """The same, made denser: every value that a resample looks up lies near one."""
        return DenseBreakpoints.among(self.breakpoints, self.tie_starts)

    def curves(self) -> ResidualCurves:
        """Return the residual curve of these rows as a batch of one."""
        if self.weight is not None:
            return ResidualCurves.weighted(self, self.weight[None, :])
        sums = np.zeros((1, self.n + 1))
        np.subtract(self.confidence, self.correct, out=sums[0, 1:])
        np.cumsum(sums[0, 1:], out=sums[0, 1:])  # in place: a million rows are 8 MB
        return ResidualCurves(self, sums, None)


@dataclass(frozen=True, eq=False)
class ResidualCurves:
    """R residual curves over the same sorted confidences.

    Attributes:
        rows: the rows they belong to.
        residual: (R, N + 1) sums of c - a over the first k rows, each row as often as resampled.
        weight: (R or 1, N + 1) how many rows they are, with weights and as often as resampled, or
            None if each row counts once.
    """

    rows: TopLabel
    residual: FloatArray
    weight: FloatArray | None

    @classmethod
    def weighted(cls, rows: TopLabel, weights: FloatArray) -> ResidualCurves:
        """Return the curves of rows that count as much as (R, N) `weights` say, in their order."""
        return cls(
            rows, accumulate(weights * (rows.confidence - rows.correct)), accumulate(weights)
        )

    def shrink_gaps(self) -> None:
        """Draw small gaps of resamples towards 0, in place: see `ShrunkGaps`."""
        np.add(self.residual, self.rows.null_shift, out=self.residual)
        self.__dict__.pop("correct", None)  # it was made of the curves as they were

    @classmethod
    def with_labels(cls, rows: TopLabel, correct: NDArray[np.generic]) -> ResidualCurves:
        """Return the curves for other outcomes: (R, N) `correct` in the order of `rows`."""
        if rows.weight is None:
            return cls(rows, rows.in_units.with_labels(correct), None)
        residual = rows.confidence - correct.astype(np.float64)
        return cls(rows, accumulate(residual * rows.weight), accumulate(rows.weight[None, :]))

    @property
    def n(self) -> int:
        """Number of rows that the first curve counts, to the nearest whole one."""
        return round(float(self.total[0]))

    @property
    def total(self) -> FloatArray:
        """(R or 1,) how many rows each curve counts: its weights' sum, or N."""
        return np.array([float(self.rows.n)]) if self.weight is None else self.weight[:, -1]

    @cached_property
    def weights(self) -> FloatArray:
        """(R or 1, N + 1) how many rows the first k are, each as often as resampled."""
        if self.weight is None:
            return np.arange(self.rows.n + 1, dtype=np.float64)[None, :]
        return self.weight

    @cached_property
    def confidence(self) -> FloatArray:
        """(R or 1, N + 1) sums of c over the first k rows."""
        return accumulate(np.diff(self.weights, axis=1) * self.rows.confidence)

    @cached_property
    def correct(self) -> FloatArray:
        """(R, N + 1) sums of a over the first k rows."""
        return self.confidence - self.residual

    def ties(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return (G,) distinct confidences, (R or 1, G) rows of each, and (R, G) right ones."""
        starts = self.rows.tie_starts
        count, correct = (np.diff(sums[:, starts], axis=1) for sums in (self.weights, self.correct))
        return self.rows.confidence[starts[:-1]], count, correct

    def cuts(self, edges: FloatArray) -> IntArray:
        """Return the row positions of the edges of bins (lo, hi]; the first holds 0 too."""
        cuts = np.searchsorted(self.rows.confidence, edges, side="right")
        cuts[0], cuts[-1] = 0, self.rows.n
        return cuts

    def between(self, cuts: IntArray) -> FloatArray:
        """Return (R, B) residual sums between the B + 1 row positions `cuts`."""
        return np.diff(self.residual[:, cuts], axis=1)

    def between_edges(self, edges: FloatArray) -> FloatArray:
        """Return (R, B) residual sums of the bins (lo, hi], the first of which holds 0 too."""
        return self.between(self.cuts(edges))

    def at_ranks(self, ranks: NDArray[Any]) -> FloatArray:
        """Return (R, B) values of R(k) at (B,) or (R, B) ranks in [0, total].

        Rows of equal confidence have no order, so a run of them is crossed in a straight line.
        """
        return self.crossing(ranks).of(self.residual)

    def crossing(self, ranks: NDArray[Any]) -> Crossing:
        """Return where each curve has counted as many rows as `ranks` in [0, total] say.

        Args:
            ranks: (B,) the same for all curves, or (R, B).
        """
        tied = self.rows.distinct < self.rows.n
        if self.weight is None and not tied:
            at = np.atleast_2d(ranks)
            return Crossing(at, at, np.zeros(at.shape))
        starts = self.rows.tie_starts
        weights = self.weights[:, starts] if tied else self.weights
        of_each = np.broadcast_to(ranks, (len(weights), ranks.shape[-1]))
        above = np.empty(of_each.shape, dtype=np.int64)
        for found, weight, wanted in zip(above, weights, of_each, strict=True):
            found[:] = np.searchsorted(weight, wanted)
        # The last rank may exceed the last sum by a rounding error.
        above = np.minimum(above, weights.shape[1] - 1)
        below = np.maximum(above - 1, 0)
        low = np.take_along_axis(weights, below, axis=1)
        width = np.take_along_axis(weights, above, axis=1) - low
        share = np.divide(of_each - low, width, out=np.zeros_like(low), where=width > 0)
        share = np.minimum(share, 1.0)
        return Crossing(starts[below], starts[above], share)
