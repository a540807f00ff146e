"""What a set of rows leaves behind for its metrics, whose parts may be built apart and added."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from calibrant.core.arrays import FloatArray, IntArray
from calibrant.metrics.positive import POSITIVE_METRICS
from calibrant.metrics.registry import METRICS, MeanMetric
from calibrant.predictions.predictions import SMALLEST_PROBABILITY
from calibrant.predictions.scoring import RowScores
from calibrant.scale.cells import FINE, CellSums, Grid, added
from calibrant.scale.exact import exact_sum, mean_of

# Means over rows that aren't counts. Cells of their values are so many to a factor of two.
LOSSES = ("nll", "brier")
LOSSES_OF_POSITIVE = ("brier_positive", "log_loss")
TO_A_FACTOR_OF_TWO = 16
# Values below are counted as this.
SMALLEST_LOSS = 2.0**-60


@dataclass(frozen=True, eq=False)
class LossCells:
    """How often which losses occur: rows by cells whose edges are 3 to 6 % apart.

    Attributes:
        key: (P,) cells, ascending. count: (P, 1) rows of each.
    """

    key: IntArray
    count: IntArray

    @classmethod
    def of(cls, losses: FloatArray) -> LossCells:
        """Count losses of at least 0."""
        mantissa, exponent = np.frexp(np.maximum(losses, SMALLEST_LOSS))
        cell = (2 * mantissa - 1) * TO_A_FACTOR_OF_TWO
        key = exponent.astype(np.int64) * TO_A_FACTOR_OF_TWO + cell.astype(np.int64)
        lowest = int(key.min(initial=0))
        count = np.bincount(key - lowest)
        used = np.flatnonzero(count)
        return cls(used + lowest, count[used][:, None])

    def __add__(self, other: LossCells) -> LossCells:
        """Return the counts of both sets of rows together."""
        return LossCells(*added((self.key, other.key), (self.count, other.count)))

    @property
    def middles(self) -> FloatArray:
        """(P,) the losses in the middle of the cells."""
        exponent, cell = np.divmod(self.key, TO_A_FACTOR_OF_TWO)
        return np.ldexp(0.5 + (cell + 0.5) / (2 * TO_A_FACTOR_OF_TWO), exponent)


@dataclass(frozen=True, eq=False)
class RowSums:
    """Sums over rows from which metrics, their intervals and their floors follow.

    Attributes:
        n: number of rows.
        cells: rows by confidence and outcome.
        totals: by name the exact sum of a loss (`calibrant.scale.exact`); none for top-label form.
        losses: by name how often which losses occur.
        clipped: rows whose true class has a probability of nearly 0.
        positive: of binary predictions, rows by the probability of the positive class and by
            whether they are of it; None of others.
    """

    n: int
    cells: CellSums
    totals: dict[str, int]
    losses: dict[str, LossCells]
    clipped: int = 0
    positive: CellSums | None = None

    @classmethod
    def of(cls, scores: RowScores, grid: Grid = FINE, *, binary: bool = False) -> RowSums:
        """Sum scored rows, at most 2^26 of them; `binary` ones by their positive class as well."""
        each: dict[str, FloatArray] = {}
        if scores.has_rows:
            for name in (*LOSSES, *(LOSSES_OF_POSITIVE if binary else ())):
                metric = (METRICS | POSITIVE_METRICS)[name]
                assert isinstance(metric, MeanMetric)
                each[name] = metric.per_row(scores)
        positive = None
        if binary:
            said = scores.of_positive()
            positive = CellSums.of(said.confidence, said.correct, grid)
        clipped = np.sum(scores.nll >= -np.log(SMALLEST_PROBABILITY) * (1 - 1e-12))
        return cls(
            len(scores.confidence),
            CellSums.of(scores.confidence, scores.correct, grid),
            {name: exact_sum(values) for name, values in each.items()},
            {name: LossCells.of(values) for name, values in each.items()},
            int(clipped),
            positive,
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
        )

    def of_positive(self) -> RowSums:
        """Return sums of the same rows in which that probability is the confidence.

        Being of the positive class is then being right, as in `RowScores.of_positive`.
        """
        assert self.positive is not None
        return replace(self, cells=self.positive, positive=None)

    def mean(self, name: str) -> float:
        """Return the mean of a loss, the float64 nearest to the exact one."""
        return mean_of(self.totals[name], self.n)

    @property
    def right(self) -> int:
        """Number of right rows."""
        return int(self.cells.sums[self.cells.key % 2 == 1, 0].sum())


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
    )


def joined_scores(parts: Sequence[RowScores]) -> RowScores:
    """Return the scored rows of all parts, in order."""
    return RowScores(
        np.concatenate([part.confidence for part in parts]),
        np.concatenate([part.predicted for part in parts]),
        np.concatenate([part.correct for part in parts]),
        np.concatenate([part.nll for part in parts]),
        np.concatenate([part.brier for part in parts]),
    )
