"""Which rows may be answered so that few of the answers are wrong, and its kin.

A threshold t acts on the rows of a score c >= t: it answers those of so much confidence, or calls
those of a class whose probability of it is that high. What its risk R(t) is:

============= ================================== =========================== ===================
``"error"``   share of errors                    among answered rows         lowest t taken
``"loss"``    mean of a loss in [0, 1]           over answered rows          lowest t taken
``"precision"`` share that isn't of the class    among rows called so        lowest t taken
``"recall"``  share that isn't called            among rows of the class     highest t taken
============= ================================== =========================== ===================

The threshold is the last that `calibrant.decision.fixed_sequence` finds safe: from the highest
down, and for recall from the lowest up, where every row is called and none missed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import Array, BoolArray, FloatArray, as_array, to_numpy
from calibrant.core.errors import InputError
from calibrant.core.result import Table
from calibrant.decision.base import DecidedRows, Decision, Share, mean_of
from calibrant.decision.fixed_sequence import (
    BettingTest,
    RiskTest,
    Tested,
    last_passed,
    resampled,
    risk_test,
    thresholds,
)
from calibrant.evaluation.formatting import percent, percent_asked
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.scoring import said_of_top, score_top

Measure = Literal["error", "loss", "precision", "recall"]
# A loss of each row, or what gives it of calibrated rows with labels.
Loss = Array | Callable[[Predictions], Array]
# A threshold that no row reaches.
ABOVE_ALL = 2.0
# Thresholds that a picture shows.
SHOWN = 24
CURVE = ("threshold", "coverage", "error", "bound")
# How many times as many rows are looked ahead to; of units that are bet on no more than so many.
AHEAD, FURTHER, MOST_UNITS = (2, 4, 10), (2, 3, 5, 8, 12, 20, 50, 100), 20_000
# Resamples that say how uncertain that is, and which of them, in order, are the ends of 80 %.
RESAMPLES, LOW_END, HIGH_END = 19, 1, 17
# Risks among which the lowest that the rows allow is sought, and how finely.
RISKS, FINEST = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 0.99), 0.001


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class RiskDecision(Decision):
    """Answer the rows above a threshold, so that few of the answers are wrong.

    Attributes:
        risk: highest error rate allowed among answered rows.
        sure: probability that this holds, over sets of rows on which the threshold is found.
        threshold: rows with at least this confidence are answered; None if no row may be answered.
        coverage: share of rows that are answered; error: error rate among them. Both are measured
            on the rows on which the threshold was found, with intervals; the error is not corrected
            for the search.
        more: for several multiples of the number of rows, about the coverage that so many rows
            would give.
        reachable_from: if no row may be answered, about how many rows it would take; None if a
            hundred times as many are too few.
        reachable_between: ends of its 80 % interval, from resampled rows; None for more than a
            hundred times as many.
        lowest_risk: if no row may be answered at `risk`, the lowest risk at which some may; None if
            there is none.
        lowest_between: ends of its 80 % interval, from resampled rows; None for no risk.
        curve: thresholds with the coverage, the error rate and the upper bound of the risk there.
        measure: what the risk measures: errors, a loss, or 1 minus the precision or the recall of a
            class.
        of: that class, by its number.

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
    reachable_between: tuple[int | None, ...] = ()
    lowest_risk: float | None = None
    lowest_between: tuple[float | None, ...] = ()
    curve: dict[str, FloatArray]
    measure: str = "error"
    of: int | None = None

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
        if self.measure not in get_args(Measure):
            return f"a risk of '{self.measure[:20]}'"
        classes = 0 if self.calibrator.form_ == "toplabel" else self.calibrator.n_classes_
        of_class = self.measure in ("precision", "recall")
        if of_class != (self.of is not None) or not 0 <= (self.of or 0) < max(classes, 1):
            return f"the {self.measure} of class {self.of}"
        sizes = {column.shape for column in self.curve.values()}
        if set(self.curve) != {*CURVE} or len(sizes) != 1 or len(sizes.pop()) != 1:
            return "a curve without thresholds, coverage, error and bound"
        return None

    @property
    def class_name(self) -> str:
        """The class of precision and recall."""
        names = self.calibrator.class_names_
        return f"'{names[cast(int, self.of)]}'" if names is not None else f"class {self.of}"

    @property
    def axis_titles(self) -> tuple[str, str]:
        """What a picture has over what: coverage, and the risk."""
        if self.of is None:
            every = "Mean loss of the" if self.measure == "loss" else "Wrong among the"
            return "Answered", f"{every} answered"
        of = "Missed, of" if self.measure == "recall" else "Others among those called"
        return "Called", f"{of} {self.class_name}"

    @property
    def most_shown(self) -> float:
        """The highest risk that a picture shows."""
        measured = float(self.curve["error"].max(initial=0.0))
        return min(1.0, max(4 * self.risk, 1.2 * measured))

    @property
    def _wanted(self) -> str:
        sure = f"({percent(self.sure)} % sure)"
        if self.of is not None:
            return f"a {self.measure} of at least {percent_asked(1 - self.risk)} % {sure}"
        of = "a mean loss" if self.measure == "loss" else "a risk"
        return f"{of} of {percent_asked(self.risk)} % {sure}"

    def headline(self) -> str:
        """Return which rows are answered, or how many rows it would take to answer any."""
        if self.threshold is not None:
            what = {
                "error": f"{self.error} of them are wrong",
                "loss": f"their mean loss is {self.error}",
                "precision": f"{self.error} of them are of other classes",
                "recall": f"{self.error} of the rows of the class are missed",
            }[self.measure]
            act = "answer rows with a confidence"
            if self.of is not None:
                act = f"call rows {self.class_name} with a probability"
            act = f"For {self._wanted}, {act} of {self.threshold:.4g} or more"
            return f"{act}: {self.coverage} of these rows; {what}."
        act = "answered" if self.of is None else f"called {self.class_name}"
        none = f"No row may be {act} at {self._wanted}"
        if self.reachable_from is not None:
            low, high = (
                f"more than {FURTHER[-1] * self.n}" if end is None else str(end)
                for end in self.reachable_between
            )
            why = (
                f"{none} on the evidence of {self.rows_in_words}. About {self.reachable_from} rows "
                f"would be enough if they are like these (80 % interval: {low} to {high})."
            )
        elif self.measure == "recall":
            why = f"{none}: of {self.rows_in_words}, there is no row of the class."
        else:
            why = (
                f"{none}: of {self.rows_in_words}, too many of the most confident are wrong, and "
                "more rows like these would not help."
            )
        return f"{why} {self._allowed}".strip()

    @property
    def _allowed(self) -> str:
        """What the rows allow where they don't allow what was asked for."""
        if self.lowest_risk is None:
            return ""
        of = f"highest {self.measure}"
        if self.of is None:
            of = "lowest mean loss" if self.measure == "loss" else "lowest risk"
        # The greatest risk that is tried.
        beyond = "more than 99.0" if self.of is None else "less than 1.0"
        low, high = (
            beyond if end is None else percent_asked(end if self.of is None else 1 - end)
            for end in self.lowest_between[:: 1 if self.of is None else -1]
        )
        at = percent_asked(self.lowest_risk if self.of is None else 1 - self.lowest_risk)
        return f"The {of} that these rows allow is {at} % (80 % interval: {low} to {high})."

    def promise(self) -> str:
        """Return what it promises of new rows, and under which conditions."""
        if self.threshold is None:
            again = ""
            if self.lowest_risk is not None:
                again = (
                    " If you choose another number because of these rows, find the threshold on "
                    "other rows: a promise on these would be void."
                )
            return f"Without an answer there is nothing to promise.{again}"
        unit = "clusters" if self.clusters is not None else "rows"
        most = percent_asked(self.risk)
        what = {
            "error": f"at most {most} % of the new rows that are answered are wrong",
            "loss": f"the mean loss of new rows that are answered is at most {most} %",
            "precision": f"at most {most} % of the new rows called so are of other classes",
            "recall": f"at most {most} % of the new rows of the class aren't called so",
        }[self.measure]
        return (
            f"The promise: {what}. It holds in {percent(self.sure)} % of cases (draws of the "
            f"{unit} that the threshold is found on), for rows drawn like these, taken together: "
            "not for single classes or groups, and not after the data have changed."
        )

    def outputs(self, xp: Any, probs: Array, confidence: Array) -> dict[str, Array]:
        """Return `answer`, or `called` for a class, (N,) whether a row is."""
        return self.outputs_at(self.limit, probs, confidence)

    @property
    def limit(self) -> float:
        """The threshold; above all confidences where no row may be answered."""
        return ABOVE_ALL if self.threshold is None else self.threshold

    def outputs_at(self, limit: Any, probs: Array, confidence: Array) -> dict[str, Array]:
        """Return the same at another threshold, or at (N,) thresholds, one for each row."""
        if self.of is None:
            return {"answer": confidence >= limit}
        return {"called": probs[:, self.of] >= limit}

    def columns(
        self, calibrated: Predictions, groups: Array | None = None
    ) -> dict[str, NDArray[Any]]:
        """Return `answer`, or `called` for a class, (N,) whether a row is."""
        return self.columns_at(self.limit, calibrated)

    def columns_at(self, limit: Any, calibrated: Predictions) -> dict[str, NDArray[Any]]:
        """Return the same at another threshold, or at (N,) thresholds, one for each row."""
        confidence, _ = said_of_top(calibrated)
        probs = None if self.of is None else to_numpy(calibrated.probs).astype(np.float64)
        return self.outputs_at(limit, cast(Any, probs), confidence)

    @property
    def promised(self) -> float | None:
        """The risk; None of a loss, which new rows don't have."""
        return None if self.measure == "loss" else self.risk

    def watched(self, calibrated: Predictions) -> tuple[BoolArray, BoolArray]:
        """Return (N,) which rows the promise is about, and which of these keep it."""
        (acted,) = self.columns(calibrated).values()
        if self.of is None:
            return acted, score_top(calibrated).correct
        is_class = calibrated.labels == self.of
        return (is_class, acted) if self.measure == "recall" else (acted, is_class)

    def as_table(self) -> Table:
        """Return the coverage at this many rows, and at more."""
        lines = [[str(self.n), percent(self.coverage.value), "measured"]]
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
            "measure": self.measure,
            "of": self.of,
            "risk": self.risk,
            "sure": self.sure,
            "threshold": self.threshold,
            "coverage": self.coverage.as_dict(),
            "error": self.error.as_dict(),
            "more": [{"n": n, "coverage": coverage} for n, coverage in self.more],
            "reachable_from": self.reachable_from,
            "reachable_between": list(self.reachable_between),
            "lowest_risk": self.lowest_risk,
            "lowest_between": list(self.lowest_between),
            "curve": self.records(),
            **self.facts(),
        }


def in_sequence(rows: DecidedRows, score: FloatArray, lost: FloatArray, measure: Measure) -> Tested:
    """Return what a sequence of thresholds sees of rows.

    Args:
        rows: see `DecidedRows`.
        score: (N,) what is compared with the threshold.
        lost: (N,) loss of each row, from 0 to 1; for recall whether it is of the class.
        measure: what is promised.
    """
    grid, counts_at_all = thresholds(), np.ones(len(score), dtype=bool)
    if measure == "recall":
        grid, counts_at_all = grid[::-1].copy(), lost > 0
        loses = np.searchsorted(grid, score, side="right")
        counts = np.zeros_like(loses)
    else:
        loses = counts = np.searchsorted(-grid, -score, side="left")
    weight, unit, units = rows.weight, rows.unit, rows.units
    if not counts_at_all.all():
        weight = None if weight is None else weight[counts_at_all]
        names, unit = np.unique(unit[counts_at_all], return_inverse=True)
        units = len(names)
    return Tested(
        grid,
        counts[counts_at_all].astype(np.int64),
        loses[counts_at_all].astype(np.int64),
        lost[counts_at_all].astype(np.float64),
        weight,
        unit.astype(np.int64),
        units,
        rows.independent,
    )


# Parameters: what is promised, on which rows, and what is known of them besides.
def by_risk(
    rows: DecidedRows,
    risk: float,
    sure: float,
    *,
    measure: Measure = "error",
    of: int | None = None,
    loss: FloatArray | None = None,
    level: float,
    seed: int,
    common: dict[str, Any],
) -> RiskDecision:
    """Return the decision that answers as many rows as a risk allows.

    Args:
        rows: calibrated, with labels; for precision and recall `as_event` of them.
        risk: what isn't to be passed; sure: how often it is to hold.
        measure: what the risk is of; of: the class of precision and recall.
        loss: (N,) of each row, where that is what it is of.
        level: coverage of intervals.
        seed: for the order of the bets on clusters or weighted rows.
        common: the fields of every decision.
    """
    score, lost = rows.confidence, (~rows.correct).astype(np.float64) if loss is None else loss
    if of is not None:
        score = to_numpy(rows.calibrated.positive_probs).astype(np.float64)
        is_class = rows.calibrated.labels == 1
        lost = (is_class if measure == "recall" else ~is_class).astype(np.float64)
    seen = in_sequence(rows, score, lost, measure)
    test = risk_test(seen, sure, seed)
    place = last_passed(seen, test, risk, sure)

    def answered_at(found: int | None) -> BoolArray:
        return score >= (math.inf if found is None else seen.grid[found])

    def covered(times: int) -> float | None:
        if not _may_be_looked_ahead_to(times, seen, test):
            return None
        found = last_passed(seen, test, risk, sure, times)
        return None if found is None else rows.share(answered_at(found), level).value

    answered, n = answered_at(place), len(score)
    if measure == "recall":
        error = rows.share(~answered, level, lost > 0)
    elif measure == "loss":
        error = mean_of(rows, lost, level, answered, ends=(0.0, 1.0))
    else:
        error = rows.share(lost > 0, level, answered)
    more, reachable, between, lowest, lowests = [], None, (), None, ()
    if place is not None:
        more = [(times * n, c) for times in AHEAD if (c := covered(times)) is not None]
    elif len(seen.loss):
        lowest = _lowest_risk(seen, test, risk, sure)
        reachable = _enough(seen, test, risk, sure)
        rng = np.random.default_rng(seed)
        others = [resampled(seen, rng) for _ in range(RESAMPLES)]
        tests = [(each, risk_test(each, sure, seed)) for each in others]
        if reachable is not None:
            between = _ends([_enough(*each, risk, sure) for each in tests])
            between = tuple(times and times * n for times in between)
        if lowest is not None:
            lowests = _ends([_lowest_risk(*each, 0.0, sure) for each in tests])
    return RiskDecision(
        risk=risk,
        sure=sure,
        threshold=None if place is None else float(seen.grid[place]),
        coverage=rows.share(answered, level),
        error=error,
        more=tuple(more),
        reachable_from=reachable and reachable * n,
        reachable_between=between,
        lowest_risk=lowest,
        lowest_between=lowests,
        curve=_curve(rows, score, seen, test, sure, place),
        measure=measure,
        of=of,
        **common,
    )


def _ends(found: Sequence[Any]) -> tuple[Any, ...]:
    """Return the ends of the 80 % interval of what resamples gave; None is beyond all numbers."""
    ordered = sorted(found, key=lambda each: math.inf if each is None else each)
    return ordered[LOW_END], ordered[HIGH_END]


def _enough(seen: Tested, test: RiskTest, risk: float, sure: float) -> int | None:
    """Return how many times as many rows would let a threshold pass, or None for very many."""
    times = (each for each in FURTHER if _may_be_looked_ahead_to(each, seen, test))
    return next((t for t in times if last_passed(seen, test, risk, sure, t) is not None), None)


def _may_be_looked_ahead_to(times: int, seen: Tested, test: RiskTest) -> bool:
    """Return whether so many times as many rows can be tried in bounded time."""
    return not isinstance(test, BettingTest) or times * seen.units <= MOST_UNITS


def _lowest_risk(seen: Tested, test: RiskTest, risk: float, sure: float) -> float | None:
    """Return a risk above `risk` at which a threshold passes, to a permille above the lowest."""

    def passes(wanted: float) -> bool:
        return last_passed(seen, test, wanted, sure) is not None

    high = next((each for each in RISKS if each > risk and passes(each)), None)
    if high is None:
        return None
    low = max([risk, *(each for each in RISKS if each < high)])
    while high - low > FINEST:
        middle = (low + high) / 2
        low, high = (low, middle) if passes(middle) else (middle, high)
    rounded = math.ceil(high / FINEST) * FINEST
    return rounded if passes(rounded) else high


# Parameters: the rows, twice as what they are seen as, and what was found of them.
def _curve(
    rows: DecidedRows,
    score: FloatArray,
    seen: Tested,
    test: RiskTest,
    sure: float,
    place: int | None,
) -> dict[str, FloatArray]:
    """Return the thresholds that a picture shows, evenly spread over coverage."""
    size = len(seen.grid)
    weight = np.ones(len(score)) if rows.weight is None else rows.weight
    order = np.argsort(score, kind="stable")
    sums = np.append(np.cumsum(weight[order][::-1])[::-1], 0.0)
    coverage = sums[np.searchsorted(score[order], seen.grid, side="left")] / sums[0]
    own = np.ones(len(seen.loss)) if seen.weight is None else seen.weight
    counted = np.cumsum(np.bincount(seen.counts, own, size + 1))[:size]
    lost = np.cumsum(np.bincount(seen.loses, own * seen.loss, size + 1))[:size]
    some = np.flatnonzero((counted > 0) & (coverage > 0))
    _, first = np.unique(np.floor(coverage[some] * SHOWN), return_index=True)
    places = np.union1d(some[first], [] if place is None else [place]).astype(np.intp)
    return {
        "threshold": seen.grid[places],
        "coverage": coverage[places],
        "error": lost[places] / counted[places],
        "bound": test.bounds(sure, places),
    }


def as_event(calibrated: Predictions, of: int) -> Predictions:
    """Return calibrated rows as rows about one class: whether it is the true one."""
    probs, labels = to_numpy(calibrated.probs)[:, of], calibrated.known_labels
    return Predictions.from_binary(
        probs,
        None if labels is None else labels == of,
        source=calibrated.source,
        sample_weight=calibrated.weights,
        clusters=calibrated.clusters,
    )


def class_numbered(of: int | str | None, rows: Any, names: Sequence[str] | None) -> int:
    """Return the number of a class that is meant by number or name; of two the second.

    Raises:
        InputError: rows of one number each, none named, or no such class.
    """
    classes = rows.n_classes
    if classes is None:
        raise InputError(
            f"{rows.source}: precision and recall need a probability for every class, and "
            "these rows hold only the confidence of the predicted one; take risk (--risk)"
        )
    known = [str(k) for k in range(classes)] if names is None else list(names)
    if of is None and classes == 2:
        return 1
    if isinstance(of, int) and 0 <= of < classes:
        return of
    if str(of) in known:
        return known.index(str(of))
    shown = ", ".join(known[:8]) + (", ..." if classes > 8 else "")
    asked = "name the class (of, --of)" if of is None else f"there is no class '{of}'"
    raise InputError(f"precision and recall are of one class: {asked}; there are {shown}")


def checked_loss(loss: Array, n: int, source: str) -> FloatArray:
    """Return (N,) losses, each from 0 to 1.

    Raises:
        InputError: another length, or a number out of range, named by its row.
    """
    found = to_numpy(as_array(loss))
    if found.shape != (n,):
        raise InputError(f"{source}: loss must have shape ({n},), not {found.shape}")
    try:
        found = found.astype(np.float64)
    except ValueError as error:
        raise InputError(f"{source}: losses must be numbers: {error}") from error
    bad = ~((found >= 0) & (found <= 1))
    if bad.any():
        row = int(bad.argmax())
        raise InputError(
            f"{source}: losses must lie between 0 and 1, but row {row} has {found[row]:g}; "
            "divide them by the largest possible loss"
        )
    return found
