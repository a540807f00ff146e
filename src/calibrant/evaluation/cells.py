"""Fine cells of confidence, and of losses, with whole numbers in them that add up over any parts.

The edges of a grid are those of two: even in confidence, so that sums over 10, 12, 15, 20, ... bins
are sums over whole cells, and even in log odds, which keeps apart confidences that crowd at 1. A
curve of cells (`Cells.curve`) treats the rows of a cell as tied at their mean confidence, so each
row moves by less than the width of a cell. What that may change is known:

- sums over bins whose edges are edges of the grid: nothing;
- smCE: at most the width; MMCE squared: at most the width / 0.4;
- KS error: never above the true value, nor below by more than the largest (1/N) sum of |c - a|
  over one cell;
- slope and intercept: about a hundredth of their standard errors;
- what depends on the order of rows (AdaECE, ECE-sweep, AURC, isotonic fits): rows of a cell tie.
  Where confidences crowd at 1, cells in log odds keep apart what even ones don't.

In each cell right rows and wrong ones are counted apart. So the cell knows all that a resample can
do to it, up to its own width.

Rows with weights are told apart by the power of two next above their weight. In units of it weights
lie in [1/2, 1), and add up as exactly as confidences do (`calibrant.core.weights`), whatever scale
they are on. Where weights differ by less than a factor of two, the number of rows in a resample
nearly settles their total weight; the rest is drawn from a normal distribution of its variance.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import BoolArray, FloatArray, IntArray
from calibrant.core.errors import InputError
from calibrant.core.weights import HALF_BITS, are_counts, halves, joined
from calibrant.metrics.binned import bin_index, cell_edges
from calibrant.metrics.shrinkage import ShrunkGaps
from calibrant.metrics.top_label import ResidualCurves, TopLabel, accumulate

# Cells even in confidence and in log odds: for one set of rows, and for each of many groups.
FINE, COARSE = (3600, 5000), (240, 500)
Grid = tuple[int, int]
# Cells of numbers are so many to a factor of two; numbers nearer to 0 than 2^LOWEST_EXPONENT are 0.
TO_A_FACTOR_OF_TWO = 16
LOWEST_EXPONENT = -60
NUMBER_CELLS = (1025 - LOWEST_EXPONENT) * TO_A_FACTOR_OF_TWO
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
    def alike(cls, rows: FloatArray) -> Kinds:
        """Return one kind of (P,) rows of weight 1 for each cell."""
        width = len(rows)
        ones, cell = np.ones(width), np.arange(width)
        return cls(width, cell, rows.astype(np.int64), ones, 0 * ones)

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
            by the power of two of these.
        sums: (P, 3) how many rows, and their confidences in two halves (`calibrant.core.weights`);
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
        """Return the sums of both sets of rows together.

        Raises:
            InputError: the cells differ.
        """
        if self.grid != other.grid:
            raise InputError(f"cells of {self.grid} can't be added to cells of {other.grid}")
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
        count = outcome.in_cells(outcome.rows * outcome.weight).reshape(2, -1)
        mean = confidence.sum(axis=0) / count.sum(axis=0)
        return Cells(_within(mean, edges, cell), count, confidence, outcome, either)


def _within(mean: FloatArray, edges: FloatArray, cell: IntArray) -> FloatArray:
    """Return mean confidences of cells; rounding must not move one into the next cell."""
    low = np.nextafter(edges[cell], 1.0)
    low[cell == 0] = 0.0
    return np.clip(mean, low, edges[cell + 1])


@dataclass(frozen=True, eq=False)
class NumberCells:
    """Numbers of rows, such as losses, by size: cells whose edges are 3 to 6 % apart.

    Attributes:
        key: (P,) cells, ascending; of rows with weights apart by the power of two of these.
        sums: (P, 3) how many rows, and their numbers in two halves, in units of the power of two
            next above; (P, 6) with sums of weights and of their squares, and numbers times weights.
    """

    key: IntArray
    sums: NDArray[np.int64]

    @classmethod
    def of(cls, values: FloatArray, weights: FloatArray | None = None) -> NumberCells:
        """Sum at most 2^26 finite numbers; those nearer to 0 than 2^-60 count as 0."""
        mantissa, exponent = np.frexp(values)
        odd = values < 2.0**LOWEST_EXPONENT  # hardly any loss is
        if odd.any():
            mantissa = np.where(np.abs(values) < 2.0**LOWEST_EXPONENT, 0.0, np.abs(mantissa))
        cell = exponent.astype(np.int64) - (LOWEST_EXPONENT + 1)
        cell *= TO_A_FACTOR_OF_TWO
        cell += (mantissa * (2 * TO_A_FACTOR_OF_TWO)).astype(np.int64)
        if odd.any():
            cell[mantissa == 0] = 0
            cell[values < 0] += NUMBER_CELLS
        return cls(*tallied(cell, 2 * NUMBER_CELLS, weights, mantissa))

    def __add__(self, other: NumberCells) -> NumberCells:
        """Return the sums of both sets of rows together."""
        return NumberCells(*added((self.key, other.key), (self.sums, other.sums)))

    @property
    def _power(self) -> IntArray | None:
        return powers_of(self.key, 2 * NUMBER_CELLS) if self.sums.shape[1] > 3 else None

    @cached_property
    def totals(self) -> FloatArray:
        """(P,) sums of the numbers, times the weights."""
        cell = self.key % (2 * NUMBER_CELLS)
        sign = np.where(cell < NUMBER_CELLS, 1.0, -1.0)
        exponent = cell % NUMBER_CELLS // TO_A_FACTOR_OF_TWO + LOWEST_EXPONENT
        power = exponent if self._power is None else exponent + self._power
        return sign * np.ldexp(joined(self.sums[:, -2], self.sums[:, -1]), power)

    @cached_property
    def _masses(self) -> FloatArray:
        if self._power is None:
            return self.sums[:, COUNT].astype(np.float64)
        return np.ldexp(joined(self.sums[:, HIGH], self.sums[:, LOW]), self._power)

    @property
    def mean(self) -> float:
        """Mean of the numbers, weighted, the same whatever parts it was added up from."""
        return math.fsum(self.totals.tolist()) / math.fsum(self._masses.tolist())

    def resampled(self, rng: np.random.Generator, size: int) -> FloatArray:
        """Return (R,) means on so many resamples of all rows."""
        cell, index = np.unique(self.key % (2 * NUMBER_CELLS), return_inverse=True)
        kinds = Kinds.of(len(cell), index, self._power, self.sums)
        means = np.bincount(index, self.totals) / np.bincount(index, self._masses)
        drawn = kinds.resampled(rng, size)
        return np.asarray(drawn @ means / drawn.sum(axis=1), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Cells:
    """P cells that hold rows, ascending.

    Attributes:
        position: (P,) mean confidence.
        count: (2, P) wrong and right rows, with weights what they weigh.
        confidence: (2, P) the sums of their confidences, times the weights.
        outcome: kinds of rows in 2 P cells, the wrong rows of each and then the right ones.
        either: kinds of rows in P cells, whatever their outcome.
        effect: how many rows say as much as one that depends on no other; noise has a variance
            that many times as large.
    """

    position: FloatArray
    count: FloatArray
    confidence: FloatArray
    outcome: Kinds
    either: Kinds
    effect: float = 1.0

    @classmethod
    def of_sums(cls, edges: FloatArray, sums: FloatArray, effect: float = 1.0) -> Cells:
        """Return the cells between (C + 1,) edges of rows of which only sums are known.

        Right rows of a cell and wrong ones count as equally confident.

        Args:
            edges: from 0 to 1.
            sums: (3, C) of rows, of their confidences, and of right ones.
            effect: see the class.
        """
        used = np.flatnonzero(sums[0])
        rows, said, right = sums[:, used]
        position = _within(said / rows, edges, used)
        count = np.stack([rows - right, right])
        outcome, either = Kinds.alike(count.ravel()), Kinds.alike(rows)
        return cls(position, count, count * position, outcome, either, effect)

    @property
    def total(self) -> float:
        """Number of rows, with weights what they weigh."""
        return float(self.count.sum())

    @cached_property
    def rows(self) -> TopLabel:
        """The cells as if each were one row, as right as its rows are."""
        accuracy = self.count[1] / self.count.sum(axis=0)
        return RowsOfCells(self.position, accuracy, np.arange(len(self.position)), cells=self)

    @cached_property
    def residual(self) -> FloatArray:
        """(2, P) mean of c - a of wrong and of right rows; 0 where there are none."""
        gap = self.confidence - self.count * np.array([[0.0], [1.0]])
        return np.divide(gap, self.count, out=np.zeros(gap.shape), where=self.count > 0)

    @cached_property
    def squares(self) -> FloatArray:
        """(2, P) sums of squared weights of wrong and of right rows, times `effect`."""
        return self.effect * self.outcome.squares.reshape(2, -1)

    @cached_property
    def chance(self) -> FloatArray:
        """(P,) with which rows are right if they are calibrated."""
        return np.clip(self.confidence.sum(axis=0) / self.count.sum(axis=0), 0.0, 1.0)

    def curve(self) -> ResidualCurves:
        """Return the residual curve of all rows."""
        gap = self.confidence.sum(axis=0) - self.count[1]
        return self._curves(gap[None], self.count.sum(axis=0)[None])

    def drawn(self, rng: np.random.Generator, size: int) -> ResidualCurves:
        """Return the curves of so many resamples of all rows."""
        drawn = self._wider(self.outcome.resampled(rng, size), self.count.ravel())
        width = len(self.position)
        return self.resampled(drawn[:, :width], drawn[:, width:])

    def honest(self, rng: np.random.Generator, size: int) -> ResidualCurves:
        """Return the curves of so many sets of calibrated outcomes."""
        right = self.either.right(rng, self.chance, size)
        return self.with_hits(self._wider(right, self.count.sum(axis=0) * self.chance))

    def _wider(self, drawn: FloatArray, expected: FloatArray) -> FloatArray:
        return drawn if self.effect == 1 else expected + self.effect**0.5 * (drawn - expected)

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
        return ResidualCurves(self.rows, residual, np.broadcast_to(weight, residual.shape))


@dataclass(frozen=True, eq=False)
class RowsOfCells(TopLabel):
    """Cells as if each were one row, of which resamples are drawn as those of the rows in them.

    Attributes:
        cells: the cells.
    """

    _: KW_ONLY
    cells: Cells

    @cached_property
    def null_shift(self) -> FloatArray:
        """(P + 1,) what to add to residual curves so that small gaps are drawn towards 0.

        See `ShrunkGaps`: it is what resamples of single rows are given, with the rows of a cell as
        if they tied.
        """
        of, count = self.cells, self.cells.count
        rows = of.either.in_cells(of.either.rows).astype(np.int64)
        gaps = ShrunkGaps.of_cells(of.residual, count, of.squares, rows)
        shrunk = gaps.of(slice(None)) * count.sum(axis=0)
        gap = (of.residual * count).sum(axis=0)
        return accumulate((shrunk - gap)[None, :])[0]
