"""Decisions by groups of rows, under one promise for all groups at once.

What is promised of all rows together may fail in a group. So each group has a threshold, or a
quantile, of its own, and all of them are to hold together: with a confidence of `sure` no group
breaks its promise. Each of G groups is given a part of what may go wrong, (1 - sure) / G
(Bonferroni): groups share no rows, so that little is lost by it.

How many groups are counted hangs on their sizes alone, never on labels: groups so small that they
couldn't pass with no error at all are left out, named, and nothing of theirs is answered.

- At a risk: fixed-sequence testing in each group (`calibrant.decision.risk`).
- As sets: of n rows of a group, the coverage of the quantile at place k is Beta(k, n + 1 - k)
  (without ties); the smallest place is taken that is above `cover` with the sureness of the group.

References:
    Angelopoulos et al., "Learn then test", arXiv 2110.01052. Vovk: Conditional validity of
    inductive conformal predictors. ACML 2012.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arguments import within
from calibrant.core.arrays import Array, IntArray
from calibrant.core.errors import InputError
from calibrant.core.result import Result
from calibrant.core.tables import Table
from calibrant.core.text import counted, wrap
from calibrant.decision.base import DecidedRows, Decision, check_sure
from calibrant.decision.decide import prepared
from calibrant.decision.risk import RiskDecision, by_risk
from calibrant.decision.sets import BETWEEN, SetDecision, by_set
from calibrant.evaluation.formatting import interval_of, percent
from calibrant.evaluation.grouping import grouping
from calibrant.evaluation.groups import QUANTILES
from calibrant.evaluation.uncertainty import DEFAULT_LEVEL, check_drawing
from calibrant.posthoc.base import Calibrator
from calibrant.predictions.predictions import Predictions


@dataclass(frozen=True, eq=False, repr=False)
class GroupedDecision(Result):
    """A decision for each group; prints as a table.

    Attributes:
        source: the rows that it was found on; by: what the groups are.
        groups: the decision of each group, by name.
        too_small: groups that are left out, with their number of rows; needed: how many it takes.
        wanted: the risk, or the coverage of sets; sure: how often all groups are to keep it.
        calibrator: the fitted calibrator that they stand behind.
        notes: what a reader should know besides.

    Examples:
        >>> import calibrant as cb
        >>> scaling = cb.TemperatureScaling().fit_predictions(cb.load_sample("validation"))
        >>> test = cb.load_sample("test")
        >>> from calibrant.decision import decide_by
        >>> found = decide_by(scaling, test, "predicted", risk=0.05)
        >>> found.groups["5"].threshold > found.groups["8"].threshold  # a dog, and a ship
        True
    """

    source: str
    by: str
    groups: dict[str, RiskDecision] | dict[str, SetDecision]
    too_small: dict[str, int]
    needed: int
    wanted: float
    sure: float
    level: float
    calibrator: Calibrator = field(repr=False)
    notes: tuple[str, ...] = ()

    @property
    def rule(self) -> str:
        """``"risk"`` or ``"set"``."""
        return next(iter(self.groups.values())).rule

    def headline(self) -> str:
        """Return how many groups are decided on, and the ends of what they get."""
        many = counted(len(self.groups), "group")
        if self.rule == "set":
            sizes = {n: cast(SetDecision, d).size.value for n, d in self.groups.items()}
            ends = [f"{sizes[n]:.3g} classes in {n}" for n in _ends(sizes)]
            return (
                f"Sets that hold the true class in {percent(self.wanted)} % of rows of each of "
                f"{many}: from {ends[0]} to {ends[1]} on average."
            )
        share = {n: cast(RiskDecision, d).coverage.value for n, d in self.groups.items()}
        ends = [f"{percent(share[n])} % of rows in {n}" for n in _ends(share)]
        return (
            f"At a risk of {percent(self.wanted)} % in each of {many} are answered: from {ends[0]} "
            f"to {ends[1]}."
        )

    def promise(self) -> str:
        """Return what it promises of new rows, and under which conditions."""
        what = (
            f"among new rows of it that are answered at most {percent(self.wanted)} % are wrong"
            if self.rule == "risk"
            else f"at least {percent(self.wanted)} % of the sets of new rows of it hold their class"
        )
        return (
            f"The promise: of every group, {what}. All of them hold together, but for at most "
            f"{percent(1 - self.sure)} % of all sets of rows that this may be found on; each of "
            f"{counted(len(self.groups), 'group')} has an equal part of these, and is decided on "
            f"{100 * (1 - (1 - self.sure) / len(self.groups)):.4g} % sure. Rows of other groups "
            "are not answered, or get all classes. Nothing is promised once the world has changed."
        )

    def of_rows(self, rows: Predictions, groups: Array | str) -> dict[str, NDArray[Any]]:
        """Return what is decided of rows, labelled or not, whose groups are known.

        Args:
            rows: as the calibrator takes them.
            groups: as in `decide_by`.
        """
        calibrated = self.calibrator.apply_predictions(rows)
        names, member = _groups_of(calibrated, groups)
        if self.rule == "risk":
            found: dict[str, NDArray[Any]] = {"answer": np.zeros(rows.n, dtype=bool)}
        else:
            classes = calibrated.class_names or [str(k) for k in range(calibrated.n_classes or 0)]
            found = {
                "set": np.full(rows.n, BETWEEN.join(classes), dtype=object),
                "set_size": np.full(rows.n, len(classes), dtype=np.int64),
            }
        for number, name in enumerate(names):
            at = np.flatnonzero(member == number)
            if name in self.groups and len(at):
                for column, values in self.groups[name].columns(calibrated.take(at)).items():
                    found[column][at] = values
        return {n: c.astype(str) if c.dtype == object else c for n, c in found.items()}

    def as_table(self) -> Table:
        """Return a line for each group."""
        if self.rule == "set":
            head = ["group", "rows", "coverage", "low", "high", "size"]
            lines = [
                [n, str(d.n), *map(percent, vars(d.coverage).values()), f"{d.size.value:.2f}"]
                for n, d in cast(dict[str, SetDecision], self.groups).items()
            ]
            what = "Coverage in percent with its"
        else:
            head = ["group", "rows", "threshold", "answered", "wrong", "low", "high"]
            lines = list[list[str]]()
            for n, d in cast(dict[str, RiskDecision], self.groups).items():
                cells = ["none", "0.0", "", "", ""]
                if d.threshold is not None:
                    wrong = map(percent, vars(d.error).values())
                    cells = [f"{d.threshold:.4g}", percent(d.coverage.value), *wrong]
                lines.append([n, str(d.n), *cells])
            what = "Answered and wrong answers in percent, these with their"
        return Table(head, lines, notes=f"{what} {interval_of(self.level)}.")

    def records(self) -> list[dict[str, Any]]:
        """Return a row a group."""
        head, rows = self.as_table().head, self.as_table().rows
        return [dict(zip(head, row, strict=True)) for row in rows]

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON takes it."""
        return {
            "rule": self.rule,
            "by": self.by,
            "wanted": self.wanted,
            "sure": self.sure,
            "groups": {name: each.as_dict() for name, each in self.groups.items()},
            "too_small": self.too_small,
            "needed": self.needed,
            "promise": self.promise(),
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        table = self.as_table()
        below = [table.notes, self.promise(), *self.notes]
        if self.too_small:
            few = ", ".join(f"{name} ({n})" for name, n in self.too_small.items())
            below.append(f"Too small, with fewer than {self.needed} rows or clusters: {few}.")
        return "\n\n".join([wrap(self.headline()), table.to_text(), *map(wrap, below)])


# Parameters: those of `decide` for two of its rules, and the groups.
def decide_by(
    calibrator: Calibrator,
    rows: Predictions,
    groups: Array | str,
    *,
    risk: float | None = None,
    cover: float | None = None,
    score: str = "lac",
    sure: float = 0.95,
    level: float = DEFAULT_LEVEL,
    seed: int = 0,
) -> GroupedDecision:
    """Decide in each group of rows, under one promise that holds for all groups at once.

    Args:
        calibrator: fitted, to other rows than these.
        rows: with labels.
        groups: (N,) values, a group for each, or ``"predicted"``, ``"confidence"``, ``"margin"``.
        risk: error rate among answered rows of each group, a fraction.
        cover: in place of it, the share of sets of each group that are to hold the true class.
        score: by which sets are made.
        sure: how often, over sets of rows like these, the promise is to hold for all groups.
        level: coverage of intervals.
        seed: of bets and halves.

    Raises:
        InputError: no rule or both, a number out of range, groups by true label, rows of the fit,
            or no group that is large enough.
        PredictionsError: rows that the calibrator doesn't take.

    Examples:
        >>> import calibrant as cb
        >>> scaling = cb.TemperatureScaling().fit_predictions(cb.load_sample("validation"))
        >>> from calibrant.decision import decide_by
        >>> found = decide_by(scaling, cb.load_sample("test"), "predicted", cover=0.9)
        >>> min(each.coverage.value for each in found.groups.values()) > 0.9
        True
    """
    if (risk is None) == (cover is None):
        raise InputError(
            "decisions by groups take one rule: risk=0.05 (--risk) or cover=0.9 (--cover)"
        )
    check_drawing(2, level, seed)
    wanted = cast(float, risk if risk is not None else cover)
    within("risk" if risk is not None else "cover", wanted, above=0, below=1)
    check_sure(sure)
    fitted, given, _, notes = prepared(calibrator, rows, seed)
    on = cast(Predictions, given)  # as were given, since the calibrator is fitted
    names, member = _groups_of(fitted.apply_predictions(on), groups)
    parts = [on.take(member == number) for number in range(len(names))]
    decided = {n: DecidedRows.of(fitted, part) for n, part in zip(names, parts, strict=True)}
    sizes = {name: each.units for name, each in decided.items()}
    rate = wanted if risk is not None else 1 - wanted
    chosen, needed = large_enough(sizes, rate, sure, spare=0 if risk is not None else 1)
    if not chosen:
        raise InputError(
            f"{on.source}: no group is large enough; at {percent(rate)} % and {percent(sure)} % "
            f"sure it takes {needed} rows (clusters, where there are some), and the largest has "
            f"{max(sizes.values())}"
        )
    each_sure = 1 - (1 - sure) / len(chosen)
    found: dict[str, Decision] = {}
    for name in chosen:
        part = decided[name]
        common: dict[str, Any] = {
            "calibrator": fitted,
            "source": f"{on.source}, {name}",
            "n": len(part.confidence),
            "clusters": part.clusters,
            "notes": (),
        }
        if risk is not None:
            found[name] = by_risk(part, risk, each_sure, level=level, seed=seed, common=common)
        else:
            place = place_of(sizes[name], wanted, each_sure)
            asked = place / (sizes[name] + 1)
            found[name] = by_set(part, asked, score, level=level, seed=seed, common=common)
    return GroupedDecision(
        on.source,
        groups if isinstance(groups, str) else "group",
        cast(Any, found),
        {name: size for name, size in sizes.items() if name not in found},
        needed,
        wanted,
        sure,
        level,
        fitted,
        notes,
    )


def large_enough(
    sizes: dict[str, int], rate: float, sure: float, spare: int = 0
) -> tuple[list[str], int]:
    """Return the groups that could keep a promise, and how many rows that takes.

    Args:
        sizes: number of rows, or clusters, of each group.
        rate: of errors, or of sets without the true class.
        sure: of all groups together.
        spare: errors that must be possible; sets measure themselves on halves.
    """

    def needed(groups: int) -> int:
        fewest = math.ceil(math.log((1 - sure) / groups) / math.log(1 - rate))
        if spare:
            part = 1 - (1 - sure) / groups
            while place_of(fewest, 1 - rate, part) > fewest - spare:
                fewest += 1
        return fewest

    order = sorted(sizes, key=lambda name: -sizes[name])
    count = len(order)
    while count and sizes[order[count - 1]] < needed(count):
        count -= 1
    kept = set(order[:count])
    return [name for name in sizes if name in kept], needed(max(count, 1))


def place_of(rows: int, cover: float, sure: float) -> int:
    """Return the smallest place k of n for which Beta(k, n + 1 - k) is above `cover` so surely."""
    from scipy.special import betainc

    places = np.arange(1, rows + 1)
    passed = np.flatnonzero(betainc(places, rows + 1 - places, cover) <= 1 - sure)
    return int(places[passed[0]]) if len(passed) else rows + 1


def _ends(values: dict[str, float]) -> tuple[str, str]:
    return min(values, key=lambda n: values[n]), max(values, key=lambda n: values[n])


def _groups_of(rows: Predictions, groups: Array | str) -> tuple[list[str], IntArray]:
    if isinstance(groups, str) and groups == "label":
        raise InputError("the true label of a new row isn't known; take groups by 'predicted'")
    return grouping(rows, groups, QUANTILES)
