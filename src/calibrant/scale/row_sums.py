"""What a set of rows leaves behind for its metrics, whose parts may be built apart and added."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import FloatArray, IntArray
from calibrant.core.exact import exact_sum, mean_of
from calibrant.core.weights import times
from calibrant.metrics.positive import POSITIVE_METRICS
from calibrant.metrics.registry import METRICS, MeanMetric
from calibrant.predictions.predictions import SMALLEST_PROBABILITY
from calibrant.predictions.scoring import RowScores
from calibrant.scale.cells import FINE, CellSums, Grid, added
from calibrant.scale.weighted_counts import Kinds, powers_of, tallied

# Means over rows that aren't counts. Cells of their values are so many to a factor of two.
LOSSES = ("nll", "brier")
LOSSES_OF_POSITIVE = ("brier_positive", "log_loss")
TO_A_FACTOR_OF_TWO = 16
# Values below are counted as this.
SMALLEST_LOSS = 2.0**-60
LOWEST_EXPONENT = -60
LOSS_CELLS = (1025 - LOWEST_EXPONENT) * TO_A_FACTOR_OF_TWO


@dataclass(frozen=True, eq=False)
class LossCells:
    """How often which losses occur: rows by cells whose edges are 3 to 6 % apart.

    Attributes:
        key: (P,) cells, ascending; of rows with weights apart by the power of two of these.
        sums: (P, 1) rows of each; (P, 4) with their weights (`calibrant.scale.weighted_counts`).
    """

    key: IntArray
    sums: NDArray[np.int64]

    @classmethod
    def of(cls, losses: FloatArray, weights: FloatArray | None = None) -> LossCells:
        """Count losses of at least 0."""
        mantissa, exponent = np.frexp(np.maximum(losses, SMALLEST_LOSS))
        within = ((2 * mantissa - 1) * TO_A_FACTOR_OF_TWO).astype(np.int64)
        cell = (exponent.astype(np.int64) - LOWEST_EXPONENT) * TO_A_FACTOR_OF_TWO + within
        return cls(*tallied(cell, LOSS_CELLS, weights))

    def __add__(self, other: LossCells) -> LossCells:
        """Return the counts of both sets of rows together."""
        return LossCells(*added((self.key, other.key), (self.sums, other.sums)))

    def kinds(self) -> tuple[Kinds, FloatArray]:
        """Return the kinds of rows in P cells, and (P,) the losses in the middle of these."""
        cell, index = np.unique(self.key % LOSS_CELLS, return_inverse=True)
        power = powers_of(self.key, LOSS_CELLS) if self.sums.shape[1] > 1 else None
        exponent, within = np.divmod(cell, TO_A_FACTOR_OF_TWO)
        middle = 0.5 + (within + 0.5) / (2 * TO_A_FACTOR_OF_TWO)
        kinds = Kinds.of(len(cell), index, power, self.sums)
        return kinds, np.ldexp(middle, exponent + LOWEST_EXPONENT)


@dataclass(frozen=True, eq=False)
class RowSums:
    """Sums over rows from which metrics, their intervals and their floors follow.

    Rows of weight 0 aren't among them.

    Attributes:
        n: number of rows.
        cells: rows by confidence and outcome.
        totals: by name the exact sum of a loss (`calibrant.core.exact`), times the weights; none
            for top-label form.
        losses: by name how often which losses occur.
        clipped: rows whose true class has a probability of nearly 0.
        positive: of binary predictions, rows by the probability of the positive class and by
            whether they are of it; None of others.
        weight: the exact sum of the weights; None where rows count alike.
    """

    n: int
    cells: CellSums
    totals: dict[str, int]
    losses: dict[str, LossCells]
    clipped: int = 0
    positive: CellSums | None = None
    weight: int | None = None

    @classmethod
    def of(cls, scores: RowScores, grid: Grid = FINE, *, binary: bool = False) -> RowSums:
        """Sum scored rows, at most 2^26 of them; `binary` ones by their positive class as well."""
        names = (*LOSSES, *(LOSSES_OF_POSITIVE if binary else ())) if scores.has_rows else ()
        weights = scores.weights
        if weights is not None and not weights.all():
            scores = scores_of(scores, np.flatnonzero(weights))
            weights = scores.weights
        each: dict[str, FloatArray] = {}
        for name in names:
            metric = (METRICS | POSITIVE_METRICS)[name]
            assert isinstance(metric, MeanMetric)
            each[name] = metric.per_row(scores)
        positive = None
        if binary:
            said = scores.of_positive()
            positive = CellSums.of(said.confidence, said.correct, grid, weights)
        clipped = np.sum(scores.nll >= -np.log(SMALLEST_PROBABILITY) * (1 - 1e-12))
        return cls(
            len(scores.confidence),
            CellSums.of(scores.confidence, scores.correct, grid, weights),
            {name: exact_sum(times(values, weights)) for name, values in each.items()},
            {name: LossCells.of(values, weights) for name, values in each.items()},
            int(clipped),
            positive,
            None if weights is None else exact_sum(weights),
        )

    def __add__(self, other: RowSums) -> RowSums:
        """Return the sums of both sets of rows together."""
        return RowSums(
            self.n + other.n,
            self.cells + other.cells,
            {name: total + other.totals[name] for name, total in self.totals.items()},
            {name: cells + other.losses[name] for name, cells in self.losses.items()},
            self.clipped + other.clipped,
            None
            if self.positive is None or other.positive is None
            else self.positive + other.positive,
            None if self.weight is None or other.weight is None else self.weight + other.weight,
        )

    def of_positive(self) -> RowSums:
        """Return sums of the same rows in which that probability is the confidence.

        Being of the positive class is then being right, as in `RowScores.of_positive`.
        """
        assert self.positive is not None
        return replace(self, cells=self.positive, positive=None)

    def mean(self, name: str) -> float:
        """Return the mean of a loss, the float64 nearest to the exact one."""
        total = self.totals[name]
        return mean_of(total, self.n) if self.weight is None else total / self.weight

    @property
    def right(self) -> int:
        """Number of right rows."""
        return self.cells.right

    @property
    def accuracy(self) -> float:
        """Share of right rows, weighted."""
        if self.weight is None:
            return self.right / self.n
        wrong, right = self.cells.cells().count.sum(axis=1).tolist()
        return right / (wrong + right)

    @property
    def share(self) -> float:
        """One over the number of rows of equal weight that are as sure: sum w^2 / (sum w)^2."""
        if self.weight is None:
            return 1 / self.n
        cells = self.cells.cells()
        return float(cells.squares.sum()) / cells.total**2


def by_member(
    scores: RowScores, member: IntArray, grid: Grid, *, binary: bool = False
) -> Iterator[tuple[int, RowSums]]:
    """Yield each number in (n,) `member` with the sums of its rows."""
    order = np.argsort(member, kind="stable")
    ordered = member[order]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    ends = np.append(starts[1:], len(order))
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        rows = order[start:end]
        yield int(ordered[start]), RowSums.of(scores_of(scores, rows), grid, binary=binary)


def scores_of(scores: RowScores, rows: IntArray) -> RowScores:
    """Return some of the scored rows."""
    return RowScores(
        scores.confidence[rows],
        scores.predicted[rows],
        scores.correct[rows],
        scores.nll[rows],
        scores.brier[rows],
        None if scores.weights is None else scores.weights[rows],
    )


def joined_scores(parts: Sequence[RowScores]) -> RowScores:
    """Return the scored rows of all parts, in order."""
    weights = [part.weights for part in parts if part.weights is not None]
    return RowScores(
        np.concatenate([part.confidence for part in parts]),
        np.concatenate([part.predicted for part in parts]),
        np.concatenate([part.correct for part in parts]),
        np.concatenate([part.nll for part in parts]),
        np.concatenate([part.brier for part in parts]),
        None if len(weights) < len(parts) else np.concatenate(weights),
    )
