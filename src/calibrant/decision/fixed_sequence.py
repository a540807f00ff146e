"""Learn, then test: the last of a sequence of thresholds whose risk is shown to be low enough.

Of each threshold of a fixed grid the hypothesis is that its risk R is above the wanted one. All
are tested in a fixed order until the first that isn't rejected; the last that was is taken
(fixed-sequence testing; Angelopoulos et al., "Learn then test", 2021). A few wrong rows among the
most confident would end that where most rows could be answered, so other sequences start further
on, each with a part of the chance 1 - sure of going wrong. A sequence that gets to the start of the
next one hands its part on; one that ends has spent it (the fallback procedure; Wiens, "A fixed
sequence Bonferroni procedure for testing multiple endpoints", 2003). A true hypothesis is rejected
at the parts of the sequences that have come to it. The first of them either is, or spends those
parts, so that no part can go wrong twice: the promise holds with a probability of at least `sure`,
over the rows that it was found on.

A risk is a mean loss over the rows that count, such as the share of errors among answered rows.
Losses of 0 and 1 of rows that count alike and stand alone are binomial, and the test is exact
(Clopper and Pearson 1934). Otherwise, with A the counted weight of a unit and E its loss, R > r is
that E[E - r A] > 0, and the test bets against it, unit by unit in random order, with stakes that
only know the units before (Waudby-Smith and Ramdas, "Estimating means of bounded random variables
by betting", 2023).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import FloatArray, IntArray, places_in_runs

# Thresholds in log odds: fixed before any row is seen. Below the lowest all rows are answered.
GRID_TOP, GRID_BOTTOM, GRID_STEP = 16.0, -9.0, 0.05
# Thresholds that are tested at once, fewer of many units: cells of a table that is held at once.
BLOCK, CELLS = 32, 1 << 22
# Stakes stay below this share of the one that a single unit could lose it all with. Units that are
# wrong as a whole are rare, and with few of them smaller stakes can't win enough.
LARGEST_STAKE = 0.95
# The first threshold could bear the first of these errors with which it counts no more than EARLY
# of the rows; of units that are bet on, which are wrong together, they are more.
BORNE, BORNE_OF_UNITS, EARLY = (2, 1), (8, 4, 2, 1), 0.5
# Where later sequences start, as shares of the rows, what each has of what may go wrong, and the
# errors that its first threshold must be able to bear.
LATER, PART, SPARE = (0.25, 0.5, 0.75), 0.01, 4
# Halvings of a bound.
HALVINGS = 12


def thresholds() -> FloatArray:
    """Return the grid, descending probabilities; the last answers every row."""
    steps = round((GRID_TOP - GRID_BOTTOM) / GRID_STEP)
    odds = GRID_TOP - GRID_STEP * np.arange(steps + 1)
    return np.append(1 / (1 + np.exp(-odds)), 0.0)


@dataclass(frozen=True, eq=False)
class Tested:
    """Rows as a sequence of G thresholds sees them; rows that never count are left out.

    Attributes:
        grid: (G,) the thresholds, in the order in which they are tested.
        counts, loses: (N,) from which place on a row counts, and its loss does; G for never.
        loss: (N,) its loss, from 0 to 1.
        weight: (N,) of each row; None where all count alike.
        unit: (N,) what each row belongs to, from 0; units: their number.
        independent: whether rows count alike and stand alone.
    """

    grid: FloatArray
    counts: IntArray
    loses: IntArray
    loss: FloatArray
    weight: FloatArray | None
    unit: IntArray
    units: int
    independent: bool


@dataclass(frozen=True, eq=False)
class BinomialTest:
    """The exact test: rows that count and their errors at each threshold, (G,)."""

    counted: FloatArray
    wrong: FloatArray

    @classmethod
    def of(cls, rows: Tested) -> BinomialTest:
        """Return the test of rows whose losses are 0 and 1."""
        size = len(rows.grid) + 1
        counted = np.cumsum(np.bincount(rows.counts, minlength=size))[:-1]
        wrong = np.cumsum(np.bincount(rows.loses, rows.loss, size))[:-1]
        return cls(counted.astype(np.float64), wrong.astype(np.float64))

    def p_values(self, risk: float, places: slice, times: int = 1) -> FloatArray:
        """Return p-values of "the risk is above `risk`", for `times` as many rows."""
        from scipy.special import betainc

        k, x = self.counted[places] * times, self.wrong[places] * times
        # P(X <= x) of a binomial X, as an incomplete beta function.
        return np.where(k > x, betainc(np.maximum(k - x, 1), x + 1, 1 - risk), 1.0)

    def with_errors(self, errors: int, risk: float, place: int, times: int = 1) -> float:
        """Return the p-value that rows with so many errors would have at a threshold."""
        from scipy.special import betainc

        k = self.counted[place] * times
        # P(X <= errors) of a binomial X, as in `p_values`.
        if k <= errors:
            return 1.0
        return float(cast(Any, betainc)(k - errors, errors + 1, 1 - risk))

    def share(self, place: int) -> float:
        """Return the share that counts of what counts at the last threshold."""
        return float(self.counted[place] / self.counted[-1])

    def bounds(self, sure: float, places: NDArray[np.intp]) -> FloatArray:
        """Return upper bounds of the risk at some thresholds, each by itself."""
        from scipy.special import betaincinv

        k, x = self.counted[places], self.wrong[places]
        bound = betaincinv(x + 1, np.maximum(k - x, 1e-9), sure)
        return np.where(k > x, bound, 1.0)


@dataclass(frozen=True, eq=False)
class BettingTest:
    """The test of losses between 0 and 1, of weighted rows and of clusters.

    Attributes:
        rows: with their units in random order.
        weight: (N,) of each row; heaviest: largest weight of a unit.
        sure: how often the promise is to hold, which stakes are made for.
    """

    rows: Tested
    weight: FloatArray
    heaviest: float
    sure: float

    @classmethod
    def of(cls, rows: Tested, sure: float, seed: int) -> BettingTest:
        """Return the test of rows."""
        order = np.random.default_rng(seed).permutation(rows.units)
        weight = np.ones(len(rows.loss)) if rows.weight is None else rows.weight
        heaviest = float(np.bincount(rows.unit, weight, 1).max())
        return cls(replace(rows, unit=order[rows.unit]), weight, heaviest, sure)

    def _sums(self, places: slice) -> tuple[FloatArray, FloatArray]:
        """Return (M, g) counted weights and losses of the units at g thresholds."""
        rows, width = self.rows, places.stop - places.start

        def summed(cell: IntArray, values: FloatArray) -> FloatArray:
            here = cell < places.stop
            place = rows.unit[here] * width + np.maximum(cell[here] - places.start, 0)
            cells = np.bincount(place, values[here], rows.units * width).astype(np.float64)
            return np.cumsum(cells.reshape(rows.units, width), axis=1)

        return summed(rows.counts, self.weight), summed(rows.loses, self.weight * rows.loss)

    def _p(self, counted: FloatArray, wrong: FloatArray, risk: float) -> FloatArray:
        """Return (g,) p-values of (M, g) sums."""
        excess = (wrong - risk * counted) / self.heaviest  # in [-risk, 1 - risk]
        count = np.arange(1, len(excess) + 1)[:, None]
        mean = np.cumsum(excess, axis=0) / (count + 1)
        before = np.vstack([np.zeros_like(mean[:1]), mean[:-1]])
        spread = risk * (1 - risk) / 4 + np.cumsum((excess - before) ** 2, axis=0)
        variance = np.vstack(
            [np.zeros_like(mean[:1]) + risk * (1 - risk), spread[:-1] / count[:-1]]
        )
        aim = 2 * math.log(1 / (1 - self.sure)) / len(excess)
        stake = np.minimum(np.sqrt(aim / variance), LARGEST_STAKE / (1 - np.asarray(risk)))
        capital = np.cumsum(np.log1p(-stake * excess), axis=0)
        return np.exp(-np.maximum(capital.max(axis=0), 0.0))

    def p_values(self, risk: float, places: slice, times: int = 1) -> FloatArray:
        """Return p-values of "the risk is above `risk`", for `times` as many units."""
        counted, wrong = self._sums(places)
        return self._p(np.tile(counted, (times, 1)), np.tile(wrong, (times, 1)), risk)

    def with_errors(self, errors: int, risk: float, place: int, times: int = 1) -> float:
        """Return the p-value if a row of so many units, spread over all, were wrong."""
        counted = np.tile(self._sums(slice(place, place + 1))[0], (times, 1))
        some, wrong = np.flatnonzero(counted > 0), np.zeros_like(counted)
        if len(some) < errors:
            return 1.0
        at = some[(np.arange(errors) + 0.5).astype(np.int64) * len(some) // max(errors, 1)]
        wrong[at] = np.minimum(counted[at], self.weight.mean())
        return float(self._p(counted, wrong, risk)[0])

    def share(self, place: int) -> float:
        """Return the share that counts of what counts at the last threshold."""
        return float(self.weight[self.rows.counts <= place].sum() / self.weight.sum())

    def bounds(self, sure: float, places: NDArray[np.intp]) -> FloatArray:
        """Return upper bounds of the risk at some thresholds, each by itself."""
        found: list[float] = []
        for place in places.tolist():
            counted, wrong = self._sums(slice(place, place + 1))
            low, high = 0.0, 1.0
            for _ in range(HALVINGS):
                middle = (low + high) / 2
                passed = self._p(counted, wrong, middle)[0] <= 1 - sure
                low, high = (low, middle) if passed else (middle, high)
            found.append(high)
        return np.array(found)


RiskTest = BinomialTest | BettingTest


def resampled(rows: Tested, rng: np.random.Generator) -> Tested:
    """Return as many units drawn with replacement, each with all of its rows."""
    order = np.argsort(rows.unit, kind="stable")
    ends = np.searchsorted(rows.unit[order], np.arange(rows.units + 1))
    drawn = rng.integers(rows.units, size=rows.units)
    sizes = np.diff(ends)[drawn]
    unit = np.repeat(np.arange(rows.units), sizes)
    taken = order[ends[drawn][unit] + places_in_runs(sizes)]
    return replace(
        rows,
        counts=rows.counts[taken],
        loses=rows.loses[taken],
        loss=rows.loss[taken],
        weight=None if rows.weight is None else rows.weight[taken],
        unit=unit,
    )


def risk_test(rows: Tested, sure: float, seed: int) -> RiskTest:
    """Return the test that rows allow: exact where they are alike and losses are 0 and 1."""
    if rows.independent and np.isin(rows.loss, (0.0, 1.0)).all():
        return BinomialTest.of(rows)
    return BettingTest.of(rows, sure, seed)


def last_passed(
    rows: Tested, test: RiskTest, risk: float, sure: float, times: int = 1
) -> int | None:
    """Return the place of the last threshold that passes, or None.

    The first sequence starts at the first threshold that could pass with two errors (eight of
    clusters), or with fewer or none where that would take more than half of the rows. One that
    can't pass would end the sequence whatever the labels are; one that passes only without any
    error ends it in every fifth draw for nothing. Where sequences start depends on how many rows
    count, not on how many are wrong, as the promise needs.
    """
    size, wrong = len(rows.grid), 1 - sure
    if not len(rows.loss):
        return None

    def first(errors: int, chance: float) -> int:
        """Return the first place that could pass with so many errors."""
        return bisect_left(
            range(size),
            True,
            key=lambda place: test.with_errors(errors, risk, place, times) <= chance,
        )

    def start(chance: float) -> int:
        """Return where a sequence starts that may go wrong with a chance."""
        borne = BORNE if isinstance(test, BinomialTest) else BORNE_OF_UNITS
        starts = (first(errors, chance) for errors in borne)
        found = next((at for at in starts if at < size and test.share(at) <= EARLY), None)
        return first(0, chance) if found is None else found

    def end(begin: int, until: int, chance: float) -> int:
        """Return the first place from one on that fails, or the one after the last."""
        step = min(max(CELLS // (rows.units * times), 1), BLOCK)
        for at in range(begin, until, step):
            failed = test.p_values(risk, slice(at, min(at + step, until)), times) > chance
            if failed.any():
                return at + int(failed.argmax())
        return until

    soonest = start(wrong)
    places = (bisect_left(range(size), share, key=test.share) for share in LATER)
    parts = {
        at: PART * wrong
        for at in places
        if soonest < at < size and test.with_errors(SPARE, risk, at, times) <= PART * wrong
    }
    rest = wrong - sum(parts.values())
    soonest = start(rest) if parts else soonest
    parts[soonest] = parts.get(soonest, 0.0) + rest
    found, chance = None, 0.0
    for begin, until in pairwise([*sorted(parts), size]):
        chance += parts[begin]
        ended = end(begin, until, chance)
        found = ended - 1 if ended > begin else found
        chance = chance if ended == until else 0.0
    return found
