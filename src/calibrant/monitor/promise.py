"""The promise of a decision, watched: its own evidence beside that of the confidences.

A decision promises that among the rows that it is about at most a share r breaks it: of answered
rows the wrong ones, of rows called so those of other classes, of rows of the class those that
aren't called. While the promise holds, each such row breaks it with a probability of at most r,
whatever came before. Alternative j says r_j > r, and its bet on a row pays r_j / r if the row
breaks it, and (1 - r_j) / (1 - r) if not: at most 1 on average, as long as the promise holds. So
the mean over j of the products of payments ever reaches 1 / alpha with a probability of at most
alpha (Ville). Fewer broken rows than promised count for nothing.

Of rows in clusters a cluster is one unit, whatever its rows do among themselves; see
`calibrant.monitor.clusters`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from calibrant.core.arguments import within
from calibrant.core.arrays import BoolArray, FloatArray, IntArray
from calibrant.core.errors import InputError
from calibrant.core.text import counted
from calibrant.decision.base import Decision, wilson
from calibrant.decision.grouped import GroupedDecision
from calibrant.decision.risk import RiskDecision
from calibrant.evaluation.formatting import percent, percent_asked
from calibrant.monitor.sequential_tests import COUNT, Alarm, Evidence, OfGroup, change_point

# By how much alternatives lie above the promise, in log odds.
FURTHER = np.linspace(0.05, 3.0, COUNT)
# How close to zero the factor of a cluster may come, as a share of the way from 1.
MOST_OF_THE_WAY = 0.95
MEASURES = ("error", "precision", "recall")


@dataclass(frozen=True)
class Promise:
    """What was promised, as a monitor needs it.

    Args:
        risk: the share r of rows that may break it.
        threshold: rows of this confidence or more are answered; of this probability called so.
        measure: ``"error"``, ``"precision"`` or ``"recall"``.
        groups: the threshold of each group by its name, in place of that; nothing is promised of
            rows of other groups.

    Raises:
        InputError: a number out of its limits, or another measure.

    Examples:
        >>> from calibrant.monitor.promise import Promise
        >>> Promise(0.05, 0.8).about([0.7, 0.9], [False, True])
        (array([False,  True]), array([False,  True]))
    """

    risk: float
    threshold: float
    measure: str = "error"
    groups: dict[str, float] | None = None

    def __post_init__(self) -> None:
        within("risk", self.risk, above=0, below=1)
        for threshold in [self.threshold, *(self.groups or {}).values()]:
            within("threshold", threshold, at_least=0, at_most=1)
        within("measure", self.measure, choices=MEASURES)

    def about(
        self, said: Any, right: Any, names: Sequence[str] | None = None
    ) -> tuple[BoolArray, BoolArray]:
        """Return (n,) which rows it is about, and which of them keep it.

        Args:
            said: (n,) confidence in the predicted class, or probability of the class.
            right: (n,) whether the prediction is right, or the row of the class.
            names: (n,) groups, where each has a threshold.

        Raises:
            InputError: groups have thresholds, and rows have no groups.
        """
        limits, true = np.asarray(self.threshold), np.asarray(right, dtype=np.bool_)
        if self.groups is not None:
            if names is None:
                raise InputError(
                    "this promise has a threshold for each group, so every row needs its "
                    "group (groups; on the command line the column of --by)"
                )
            # Whole numbers have one name, whichever type a file gives them.
            known = (self.groups.get(str(name).removesuffix(".0"), np.nan) for name in names)
            limits = np.fromiter(known, np.float64, len(names))
            true = true & ~np.isnan(limits)
        acted = np.asarray(said) >= limits
        return (true, acted & true) if self.measure == "recall" else (acted, true & acted)

    @property
    def in_words(self) -> str:
        """What is promised, as a clause."""
        share = f"at most {percent_asked(self.risk)} %"
        return {
            "error": f"{share} of the answered rows are wrong",
            "precision": f"{share} of the rows that are called so are of other classes",
            "recall": f"{share} of the rows of the class aren't called so",
        }[self.measure] + (", in all groups together" if self.groups is not None else "")


def promise_of(decision: Decision) -> Promise:
    """Return what a decision promises, for `Monitor(promise=...)`.

    Sets promise that they hold the true class, which a stream of confidences doesn't show. Of them
    `Decision.watched` says which rows keep the promise, and `Monitor(promise=Promise(
    decision.promised, 0))` watches it where it is fed that with a confidence of 1. A decision by
    groups is watched in all groups together, in rows with the group of each.

    Raises:
        InputError: it promises nothing, or nothing that confidences and outcomes show.

    Examples:
        >>> import calibrant as cb
        >>> from calibrant.monitor.promise import promise_of
        >>> found = cb.decide("temperature", cb.load_sample("test"), risk=0.05)
        >>> promise_of(found).risk
        0.05
    """
    rule = decision.each if isinstance(decision, GroupedDecision) else decision.rule
    if rule != "risk" or not isinstance(decision, (GroupedDecision, RiskDecision)):
        what = "sets" if rule == "set" else "costs"
        raise InputError(
            f"a decision by {rule} can't be watched in a stream of confidences, which "
            f"hold no {what}; watch the confidences alone, or a decision by --risk, --precision, "
            "--recall"
        )
    if isinstance(decision, GroupedDecision):
        return _of_groups(decision)
    if decision.promised is None or decision.threshold is None:
        raise InputError("the loss of new rows isn't known, so that its mean can't be watched")
    return Promise(decision.risk, decision.threshold, decision.measure)


def _of_groups(decision: GroupedDecision) -> Promise:
    """Return what a decision by groups promises of the rows of all groups together."""
    if decision.kind not in ("column", "predicted"):
        raise InputError(
            f"a decision by groups of {decision.by} can't be watched, for a stream doesn't name "
            "them; decide by a column or by predicted class (calibrant decide --by class)"
        )
    parts = {n: d for n, d in decision.groups.items() if isinstance(d, RiskDecision) and d.decides}
    measure = next(each.measure for each in parts.values())
    if decision.promised is None:
        raise InputError("the loss of new rows isn't known, so that its mean can't be watched")
    # A stream numbers predicted classes.
    names = decision.calibrator.class_names_ if decision.kind == "predicted" else None
    number = {name: str(k) for k, name in enumerate(names or ())}
    limits = {number.get(name, name): each.limit for name, each in parts.items()}
    return Promise(decision.wanted, 0.0, measure, limits)


@dataclass(frozen=True)
class PromiseFound:
    """What is known of a promise.

    Attributes:
        promise: see `Promise`.
        rows: rows that it was about; broken: how many of them broke it.
        share: (value, low, high) of those, all rows counted alike; None without rows.
        log_e: evidence against it, in nats; bound: what that has to reach.
        alarm: that rose when it did; None while it holds.
    """

    promise: Promise
    rows: int
    broken: int
    share: tuple[float, float, float] | None
    log_e: float
    bound: float
    alarm: Alarm | None

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as JSON takes them."""
        return asdict(self)

    def __str__(self) -> str:
        if self.share is None:
            return f"The promise that {self.promise.in_words}: no row yet falls under it."
        value, low, high = map(percent, self.share)
        seen = f"so far {value} % ({low} to {high}) of {counted(self.rows, 'row')} are"
        if self.alarm is None:
            return (
                f"Nothing shows that the promise is broken. It is that {self.promise.in_words}; "
                f"{seen}. Evidence against it (natural logarithm): {self.log_e:.2f} (alarm at "
                f"{self.bound:.2f})."
            )
        since = self.alarm.since
        return (
            f"The promise that {self.promise.in_words} no longer holds, probably since row "
            f"{since.row} ({since.low} to {since.high}): an alarm rose at row {self.alarm.row}; "
            f"{seen}. A false alarm has a probability of at most "
            f"{100 * math.exp(-self.bound):g} %, however long the stream; it is false if each of "
            "these rows broke the promise with at most the promised probability, given all rows "
            "before it (of other clusters, if rows have clusters). Find a new threshold on recent "
            "rows: calibrant decide."
        )


@dataclass
class Watched:
    """The evidence against a promise.

    Attributes:
        promise: what is watched; alpha: probability of a false alarm, ever.
        evidence: of units that have rows which the promise is about.
        rows, broken: of these rows, counted.
        alarm: once it rose.
    """

    promise: Promise
    alpha: float
    evidence: Evidence = field(default_factory=Evidence)
    rows: int = 0
    broken: int = 0
    alarm: Alarm | None = None

    @property
    def bound(self) -> float:
        """What the evidence has to reach for an alarm, in nats."""
        return -math.log(self.alpha)

    @property
    def pays(self) -> tuple[FloatArray, FloatArray]:
        """The (J,) payments of a row that keeps the promise, and of one that breaks it."""
        risk = self.promise.risk
        other = 1 / (1 + np.exp(-(math.log(risk / (1 - risk)) + FURTHER)))
        return (1 - other) / (1 - risk), other / risk

    @property
    def largest(self) -> FloatArray:
        """The (J,) stakes up to which every factor of a cluster stays positive."""
        return np.maximum(MOST_OF_THE_WAY / (1 - self.pays[0]), 1.0)

    def count(
        self, said: FloatArray, right: BoolArray, names: Sequence[str] | None = None
    ) -> OfGroup:
        """Count (n,) rows, and return the places and payments of those that it is about."""
        about, kept = self.promise.about(said, right, names)
        at = np.flatnonzero(about)
        self.rows += len(at)
        self.broken += int((~kept[at]).sum())
        return at, np.where(kept[at, None], *self.pays), np.ones(len(at))

    def bet(self, paid: FloatArray, last: IntArray) -> list[Alarm]:
        """Bet on units, and return the alarm if it rose at one of them.

        Args:
            paid: (m, J) payments of units that have rows which the promise is about.
            last: (m,) number of each unit's last row.
        """
        if not len(last):
            return []
        step = self.evidence.look(paid, last)
        logs = step.log_level[1:]
        risen: list[Alarm] = []
        if self.alarm is None and logs.max() >= self.bound:
            at = int((logs >= self.bound).argmax())
            since = change_point(self.evidence, (step, at))
            self.alarm = Alarm("promise", int(last[at]), float(logs[at]), self.bound, since)
            risen.append(self.alarm)
        self.evidence.take(step)
        return risen

    def found(self) -> PromiseFound:
        """Return what is known so far."""
        share = None
        if self.rows:
            value = self.broken / self.rows
            share = (value, *wilson(value, self.rows, 0.95))
        return PromiseFound(
            self.promise,
            self.rows,
            self.broken,
            share,
            self.evidence.log_level,
            self.bound,
            self.alarm,
        )
