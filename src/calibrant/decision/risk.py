"""Which rows may be answered so that few of the answers are wrong: learn, then test.

A threshold t answers the rows of confidence c >= t; its risk R(t) is the error rate among them.
That R(t) is above the wanted risk is a hypothesis for each threshold of a fixed grid. They are
tested from the highest threshold down, at the level 1 - sure, until the first that isn't rejected;
the last that was is taken. Whichever is the first true hypothesis, it is rejected with a
probability of at most 1 - sure, so the promise holds with that of at least `sure`, over the rows
that it was found on (fixed-sequence testing; Angelopoulos et al., "Learn then test", 2021).

Rows that count alike and stand alone have binomial errors, and the test is exact (Clopper and
Pearson 1934). With weights or clusters the units are independent, not the rows: with A the
answered weight of a unit and E what is wrong of it, R(t) > r is that E[E - r A] > 0, and the test
bets against it, unit by unit in random order, with stakes that only know the units before (Waudby-
Smith and Ramdas, "Estimating means of bounded random variables by betting", 2023).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import BoolArray, FloatArray
from calibrant.core.tables import Table
from calibrant.decision.base import DecidedRows, Decision, Share
from calibrant.evaluation.formatting import percent
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.scoring import said_of_top

# Thresholds in log odds: fixed before any row is seen. Below the lowest all rows are answered.
GRID_TOP, GRID_BOTTOM, GRID_STEP = 16.0, -9.0, 0.05
# Thresholds that are tested at once.
BLOCK = 32
# Stakes stay below this share of the one that a single unit could lose it all with.
LARGEST_STAKE = 0.75
# Thresholds that a picture shows, and halvings of their bounds.
SHOWN, HALVINGS = 24, 12
CURVE = ("threshold", "coverage", "error", "bound")
# How many times as many rows are looked ahead to; of units that are bet on no more than so many.
AHEAD, FURTHER, MOST_UNITS = (2, 4, 10), (2, 3, 5, 8, 12, 20, 50, 100, 1000), 20_000


def thresholds() -> FloatArray:
    """Return the grid, descending confidences; the last answers every row."""
    steps = round((GRID_TOP - GRID_BOTTOM) / GRID_STEP)
    odds = GRID_TOP - GRID_STEP * np.arange(steps + 1)
    return np.append(1 / (1 + np.exp(-odds)), 0.0)


@dataclass(frozen=True, eq=False)
class BinomialTest:
    """The exact test: rows and errors at or above each threshold, (G,)."""

    answered: FloatArray
    wrong: FloatArray

    def p_values(self, risk: float, places: slice, times: int = 1) -> FloatArray:
        """Return p-values of "the risk is above `risk`", for `times` as many rows."""
        from scipy.special import betainc

        k, x = self.answered[places] * times, self.wrong[places] * times
        # P(X <= x) of a binomial X, as an incomplete beta function.
        return np.where(k > x, betainc(np.maximum(k - x, 1), x + 1, 1 - risk), 1.0)

    def errorless(self, risk: float, place: int, times: int = 1) -> float:
        """Return the p-value that rows without any error would have at a threshold."""
        return float((1 - risk) ** (self.answered[place] * times))

    def bounds(self, sure: float, places: NDArray[np.intp]) -> FloatArray:
        """Return upper bounds of the risk at some thresholds, each by itself."""
        from scipy.special import betaincinv

        k, x = self.answered[places], self.wrong[places]
        bound = betaincinv(x + 1, np.maximum(k - x, 1e-9), sure)
        return np.where(k > x, bound, 1.0)


@dataclass(frozen=True, eq=False)
class BettingTest:
    """The test of weighted rows and of clusters.

    Attributes:
        cell: (N,) first threshold that answers each row; unit: (N,) what it belongs to, in random
            order; weight: (N,) of each row; wrong: (N,) whether it is.
        units: number of units M; heaviest: largest weight of one.
        sure: how often the promise is to hold, which stakes are made for.
    """

    cell: NDArray[np.intp]
    unit: NDArray[np.intp]
    weight: FloatArray
    wrong: BoolArray
    units: int
    heaviest: float
    sure: float

    @classmethod
    def of(cls, rows: DecidedRows, grid: FloatArray, sure: float, seed: int) -> BettingTest:
        """Return the test of rows at descending thresholds."""
        order = np.random.default_rng(seed).permutation(rows.units)
        weight = np.ones(len(rows.confidence)) if rows.weight is None else rows.weight
        cell = np.searchsorted(-grid, -rows.confidence, side="left")
        heaviest = float(np.bincount(rows.unit, weight).max())
        return cls(cell, order[rows.unit], weight, ~rows.correct, rows.units, heaviest, sure)

    def _sums(self, places: slice) -> tuple[FloatArray, FloatArray]:
        """Return (M, g) answered and wrong weights of the units at g thresholds."""
        width = places.stop - places.start
        here = self.cell < places.stop
        column = np.maximum(self.cell[here] - places.start, 0)
        place, weight = self.unit[here] * width + column, self.weight[here]

        def summed(values: FloatArray) -> FloatArray:
            cells = np.bincount(place, values, self.units * width).astype(np.float64)
            return np.cumsum(cells.reshape(self.units, width), axis=1)

        return summed(weight), summed(weight * self.wrong[here])

    def _p(self, answered: FloatArray, wrong: FloatArray, risk: float) -> FloatArray:
        """Return (g,) p-values of (M, g) sums."""
        excess = (wrong - risk * answered) / self.heaviest  # in [-risk, 1 - risk]
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
        answered, wrong = self._sums(places)
        return self._p(np.tile(answered, (times, 1)), np.tile(wrong, (times, 1)), risk)

    def errorless(self, risk: float, place: int, times: int = 1) -> float:
        """Return the p-value that rows without any error would have at a threshold."""
        answered = np.tile(self._sums(slice(place, place + 1))[0], (times, 1))
        return float(self._p(answered, np.zeros_like(answered), risk)[0])

    def bounds(self, sure: float, places: NDArray[np.intp]) -> FloatArray:
        """Return upper bounds of the risk at some thresholds, each by itself."""
        found: list[float] = []
        for place in places.tolist():
            answered, wrong = self._sums(slice(place, place + 1))
            low, high = 0.0, 1.0
            for _ in range(HALVINGS):
                middle = (low + high) / 2
                passed = self._p(answered, wrong, middle)[0] <= 1 - sure
                low, high = (low, middle) if passed else (middle, high)
            found.append(high)
        return np.array(found)


RiskTest = BinomialTest | BettingTest


def last_passed(test: RiskTest, risk: float, sure: float, times: int = 1) -> int | None:
    """Return the place of the threshold that fixed-sequence testing ends at, or None.

    It starts at the first threshold that could pass if none of its rows were wrong: one before it
    can't pass, and would end the sequence whatever the labels are.
    """
    size = len(thresholds())

    def possible(place: int) -> bool:
        return test.errorless(risk, place, times) <= 1 - sure

    start = bisect_left(range(size), True, key=possible)
    passed = 0
    for first in range(start, size, BLOCK):
        block = slice(first, min(first + BLOCK, size))
        failed = test.p_values(risk, block, times) > 1 - sure
        passed += int(failed.argmax()) if failed.any() else len(failed)
        if failed.any():
            break
    return start + passed - 1 if passed else None


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class RiskDecision(Decision):
    """Answer the rows above a threshold, so that few of the answers are wrong.

    Attributes:
        risk: error rate among answered rows that isn't to be passed.
        sure: how often that is to hold, over sets of rows to decide on.
        threshold: rows of this confidence or more are answered; None if none may be.
        coverage: share of rows that are answered; error: error rate among them. Both of the rows
            that it was found on, with intervals; the error without the guarantee's correction.
        more: so many times as many rows of this kind would give about this coverage.
        reachable_from: about how many rows it takes to answer any, where none may be; None if not
            even far more rows will do.
        curve: thresholds with the coverage, the error rate and the upper bound of the risk there.

    Examples:
        >>> import calibrant as cb
        >>> scaling = cb.TemperatureScaling().fit_predictions(cb.load_sample("validation"))
        >>> found = cb.decide(scaling, cb.load_sample("test"), risk=0.05)
        >>> round(found.threshold, 2), round(found.coverage.value, 2)
        (0.8, 0.69)
    """

    risk: float
    sure: float
    threshold: float | None
    coverage: Share
    error: Share
    more: tuple[tuple[int, float], ...]
    reachable_from: int | None
    curve: dict[str, FloatArray]

    rule: ClassVar[str] = "risk"

    @property
    def decides(self) -> bool:
        """Whether any row may be answered."""
        return self.threshold is not None

    def fault(self) -> str | None:
        """Return why the numbers of a file make no decision, as a clause, or None."""
        if self.threshold is None or not 0 <= self.threshold <= 1:
            return f"a threshold of {self.threshold}"
        if not (0 < self.risk < 1 and 0.5 <= self.sure < 1):
            return f"a risk of {self.risk:g}, {self.sure:g} sure"
        sizes = {column.shape for column in self.curve.values()}
        if set(self.curve) != {*CURVE} or len(sizes) != 1 or len(sizes.pop()) != 1:
            return "a curve without thresholds, coverage, error and bound"
        return None

    def headline(self) -> str:
        """Return what is answered, or from how many rows on something could be."""
        wanted = f"a risk of {percent(self.risk)} % ({percent(self.sure)} % sure)"
        if self.threshold is not None:
            return (
                f"Answer rows of confidence {self.threshold:.4g} or more: {self.coverage} of rows, "
                f"{self.error} of them wrong here, at {wanted}."
            )
        if self.reachable_from is not None:
            return (
                f"No row may be answered at {wanted} on the evidence of {self.rows_in_words}; "
                f"about {self.reachable_from} rows like these would do."
            )
        return (
            f"No row may be answered at {wanted}: of {self.rows_in_words}, too many of the most "
            "confident are wrong, and more rows like these would not mend it."
        )

    def promise(self) -> str:
        """Return what it promises of new rows, and under which conditions."""
        if self.threshold is None:
            return "Without an answer there is nothing to promise."
        unit = "clusters" if self.clusters is not None else "rows"
        return (
            f"The promise: among new rows that are answered, at most {percent(self.risk)} % are "
            f"wrong. It is broken by at most {percent(1 - self.sure)} % of all sets of {unit} that "
            "a threshold may be found on. It speaks of rows drawn like these, as a whole: not of "
            "single classes or groups, and not once the world has changed."
        )

    def columns(self, calibrated: Predictions) -> dict[str, NDArray[Any]]:
        """Return `answer`, (N,) whether a row is answered."""
        confidence, _ = said_of_top(calibrated)
        least = math.inf if self.threshold is None else self.threshold
        return {"answer": confidence >= least}

    def as_table(self) -> Table:
        """Return the coverage at this many rows, and at more."""
        lines = [[str(self.n), percent(self.coverage.value), "found"]]
        lines += [[str(n), percent(coverage), "expected"] for n, coverage in self.more]
        notes = "Coverage in percent; expected if more rows are like these."
        return Table(["rows", "coverage", ""], lines, notes=notes)

    def records(self) -> list[dict[str, Any]]:
        """Return the curve: a row for each threshold."""
        columns = [self.curve[name].tolist() for name in CURVE]
        return [dict(zip(CURVE, row, strict=True)) for row in zip(*columns, strict=True)]

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON takes it."""
        return {
            "rule": self.rule,
            "risk": self.risk,
            "sure": self.sure,
            "threshold": self.threshold,
            "coverage": self.coverage.as_dict(),
            "error": self.error.as_dict(),
            "more": [{"n": n, "coverage": coverage} for n, coverage in self.more],
            "reachable_from": self.reachable_from,
            "curve": self.records(),
            **self.facts(),
        }


def risk_test(rows: DecidedRows, sure: float, seed: int) -> RiskTest:
    """Return the test that rows allow: exact where they are independent and count alike."""
    grid = thresholds()
    if not rows.independent:
        return BettingTest.of(rows, grid, sure, seed)
    cell = np.searchsorted(-grid, -rows.confidence, side="left")
    answered = np.cumsum(np.bincount(cell, minlength=len(grid))).astype(np.float64)
    wrong = np.cumsum(np.bincount(cell, ~rows.correct, len(grid))).astype(np.float64)
    return BinomialTest(answered, wrong)


# Parameters: what is promised, on which rows, and what is known of them besides.
def by_risk(
    rows: DecidedRows,
    risk: float,
    sure: float,
    *,
    level: float,
    seed: int,
    common: dict[str, Any],
) -> RiskDecision:
    """Return the decision that answers as many rows as a risk allows.

    Args:
        rows: calibrated, with labels.
        risk: error rate among answered rows; sure: how often it is to hold.
        level: coverage of intervals.
        seed: of the order of the bets on clusters or weighted rows.
        common: the fields of every decision.
    """
    grid, test = thresholds(), risk_test(rows, sure, seed)
    place = last_passed(test, risk, sure)
    everything = np.ones(len(rows.confidence), dtype=bool)
    answered = rows.confidence >= grid[place] if place is not None else ~everything

    def covered(times: int) -> float | None:
        if isinstance(test, BettingTest) and times * rows.units > MOST_UNITS:
            return None
        found = last_passed(test, risk, sure, times)
        if found is None:
            return None
        return rows.share(rows.confidence >= grid[found], level).value

    more, reachable = [], None
    if place is not None:
        more = [(times * len(answered), c) for times in AHEAD if (c := covered(times)) is not None]
    else:
        reachable = next((t * len(answered) for t in FURTHER if covered(t) is not None), None)
    return RiskDecision(
        risk=risk,
        sure=sure,
        threshold=None if place is None else float(grid[place]),
        coverage=rows.share(answered, level),
        error=rows.share(~rows.correct, level, answered),
        more=tuple(more),
        reachable_from=reachable,
        curve=_curve(rows, grid, test, sure, place),
        **common,
    )


def _curve(
    rows: DecidedRows, grid: FloatArray, test: RiskTest, sure: float, place: int | None
) -> dict[str, FloatArray]:
    """Return the thresholds that a picture shows, evenly spread over coverage."""
    order = np.argsort(-rows.confidence, kind="stable")
    weight = np.ones(len(order)) if rows.weight is None else rows.weight[order]
    counted_up, wrong_up = np.cumsum(weight), np.cumsum(weight * ~rows.correct[order])
    last = np.searchsorted(-rows.confidence[order], -grid, side="right") - 1
    some = np.flatnonzero(last >= 0)
    coverage = counted_up[last[some]] / counted_up[-1]
    _, first = np.unique(np.floor(coverage * SHOWN), return_index=True)
    places = np.union1d(some[first], [] if place is None else [place]).astype(np.intp)
    at = last[places]
    return {
        "threshold": grid[places],
        "coverage": counted_up[at] / counted_up[-1],
        "error": wrong_up[at] / counted_up[at],
        "bound": test.bounds(sure, places),
    }
