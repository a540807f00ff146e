"""Two tests of a stream that may be looked at after every row: bets, evidence, groups, alarms.

**Bets.** A row says that it is right with probability p, and turns out right (y = 1) or wrong.
Alternative j says q_j instead, with logit q_j = a_j + b_j logit p: too sure, not sure enough, too
high, too low. Its bet on the row pays

    L_j = q_j^y (1 - q_j)^(1 - y) / (u_j^y (1 - u_j)^(1 - y)),   u_j = clip(q_j, p - e, p + e),

where u_j is whatever the hypothesis |P(y = 1 | past, p) - p| <= e allows that is nearest to q_j.
The expected payment is at most 1 as long as the hypothesis holds, for every j and every past: so
products of payments are supermartingales.
A. Henzi, M. Puke, T. Dimitriadis, J. Ziegel, *A safe Hosmer-Lemeshow test*, arXiv 2203.00426.

**Level**: has it ever been off? E_t = mean over j of prod_{i <= t} L_ij. While the hypothesis
holds, E is a nonnegative supermartingale that starts at 1, so it ever reaches 1 / alpha with
probability at most alpha (Ville).

**Units.** What is said of rows here goes for units of the bet: each row is one, or each cluster of
rows (`calibrant.monitor.clusters`), in the order in which they are counted.

**Change**: has it gone off? r_j <- (r_j + 1) L_j is the sum, over all rows at which the bets might
have begun, of what they would have made since; R = mean over j of r_j. R_t - t is a
supermartingale, so R reaches c after c rows on average, or later. J. Shin, A. Ramdas, A. Rinaldo,
*E-detectors*, NEJSDS.

**Change point.** Divided by R the terms of that sum are weights of the rows: the share of the
evidence that each beginning explains. The largest weight gives the estimate, and the rows that hold
the middle 95 % the interval. Where the stream is remembered only at some rows, the weights between
two of them go from the one's to the other's.

**Groups.** Of groups g with evidence E_g, sum_g w_g E_g with weights that add up to at most 1 is a
supermartingale as each E_g is, however the groups depend on one another. The weights must not
depend on outcomes: they are 1 / G where the number of groups is known from the start, and else
1 / (k (k + 1)) for the k-th group that shows up; groups still to come count with their E of 1.

For the change test, r_j <- r_j L_j + w of each group, where w is the share of the unit's rows that
are in the group: its bets begin anew behind the unit. Given the past, r_j L_j is at most r_j on
average, and the shares of a unit add up to 1, whatever they depend on. So the groups' R grow by no
more than 1 a unit together, and their sum keeps the promise.

What the whole stream shows counts for one half, what the groups show for the other: so a shift of
all groups together is found nearly as soon as without groups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from typing import Any, Literal

import numpy as np

from calibrant.core.arrays import BoolArray, FloatArray, IntArray
from calibrant.core.errors import InputError
from calibrant.metrics.binned import LOGIT_CLIP
from calibrant.monitor.windows import WIDTH, Trail, cell_sums

# --- bets

INTERCEPTS = (-2.0, -1.0, -0.5, -0.25, 0.0, 0.25, 0.5, 1.0)
SLOPES = (0.35, 0.5, 0.7, 0.85, 1.0, 1.2, 1.5)
HONEST = (0.0, 1.0)
# (J, 2) intercept a and slope b of every alternative.
ALTERNATIVES = np.array([pair for pair in product(INTERCEPTS, SLOPES) if pair != HONEST])
COUNT = len(ALTERNATIVES)
# Beyond this no alternative goes, and no confidence: a certainty that is wrong once would
# otherwise decide everything.
LARGEST_LOGIT = float(np.log1p(-LOGIT_CLIP) - np.log(LOGIT_CLIP))


def payments(confidence: FloatArray, correct: BoolArray, tolerance: float) -> FloatArray:
    """Return the (n, J) payments L of n rows.

    Both outcomes are treated alike: with o what happened, P(o) under the alternative over P(o)
    under the hypothesis, each from the log odds of o. So small probabilities keep their digits.

    Args:
        confidence: (n,) in [0, 1].
        correct: (n,) whether each row is right.
        tolerance: e.
    """
    sure = np.clip(confidence, LOGIT_CLIP, 1 - LOGIT_CLIP)
    said = np.where(correct, sure, 1 - sure)
    sign = np.where(correct, 1.0, -1.0)
    odds = np.log(said) - np.log1p(-said)
    paid = np.multiply.outer(odds, ALTERNATIVES[:, 1])
    paid += np.multiply.outer(sign, ALTERNATIVES[:, 0])
    np.clip(paid, -LARGEST_LOGIT, LARGEST_LOGIT, out=paid)
    np.negative(paid, out=paid)
    np.exp(paid, out=paid)
    paid += 1
    np.reciprocal(paid, out=paid)  # what the alternative said of what happened
    allowed = np.minimum(paid, (said + tolerance)[:, None])
    np.maximum(allowed, (said - tolerance)[:, None], out=allowed)
    paid /= allowed
    return paid


# Of one group: positions of its units among all, (k, J) payments there, (k,) shares of the units.
OfGroup = tuple[IntArray, FloatArray, FloatArray]


@dataclass
class Bets:
    """What n units of the bet pay: rows, or clusters of them.

    Attributes:
        paid: (n, J) payments.
        row: (n,) number of each unit's last row in the stream.
        groups: of each group that has rows here, by its index; empty without groups.
    """

    paid: FloatArray
    row: IntArray
    groups: dict[int, OfGroup] = field(default_factory=dict[int, OfGroup])


def bets_of_rows(paid: FloatArray, row: IntArray, member: IntArray | None) -> Bets:
    """Return the bets on rows, each of which is a unit.

    Args:
        paid: (n, J) payments.
        row: (n,) their numbers in the stream.
        member: (n,) index of each row's group, or None.
    """
    groups: dict[int, OfGroup] = {}
    present: list[int] = [] if member is None else sorted(set(member.tolist()))
    for group in present:
        at = np.flatnonzero(member == group)
        groups[group] = at, paid[at], np.ones(len(at))
    return Bets(paid, row, groups)


def log_mean_exp(logs: FloatArray) -> FloatArray:
    """Return log of the mean of exp over the last axis, without overflow."""
    top = logs.max(axis=-1)
    return top + np.log(np.exp(logs - top[..., None]).mean(axis=-1))


# --- evidence of the bets so far

# Where the change is looked for: rows between two marks near the present, and how fine the past.
MARK_ROWS, MARKS = 16, 16
# A group's share of the memory is smaller.
MARKS_OF_GROUP = 4
# More than any threshold; what lies beyond says no more.
MOST_MASS = 1e150


@dataclass
class Step:
    """What n more units would make of the evidence.

    Attributes:
        products: (n + 1, J) log of the products of payments, before the units and after each.
        masses: (n, J) r after each unit.
        row: (n,) number of each unit's last row in the whole stream.
    """

    products: FloatArray
    masses: FloatArray
    row: IntArray

    @property
    def log_level(self) -> FloatArray:
        """(n + 1,) log E, before the units and after each."""
        return log_mean_exp(self.products)

    @property
    def mass(self) -> FloatArray:
        """(n,) R after each unit; beyond `MOST_MASS` it is that."""
        return np.minimum(self.masses, MOST_MASS).mean(axis=1)


@dataclass
class Evidence:
    """The evidence of the units so far, in memory that hardly grows.

    Attributes:
        units: how many rows, or clusters, it is of.
        products: (J,) log of the products of payments.
        masses: (J,) r.
        trail: `products` as they were, to find a change.
    """

    units: int = 0
    products: FloatArray = field(default_factory=lambda: np.zeros(COUNT))
    masses: FloatArray = field(default_factory=lambda: np.zeros(COUNT))
    trail: Trail = field(default_factory=lambda: Trail.start(COUNT, MARK_ROWS, MARKS))

    @classmethod
    def of_group(cls) -> Evidence:
        """Return the evidence of a group, with a coarser memory of the past."""
        return cls(trail=Trail.start(COUNT, MARK_ROWS, MARKS_OF_GROUP))

    @property
    def log_level(self) -> float:
        """Log of E."""
        return float(log_mean_exp(self.products))

    @property
    def mass(self) -> float:
        """R."""
        return float(self.masses.mean())

    def look(self, paid: FloatArray, row: IntArray, share: FloatArray | None = None) -> Step:
        """Return what n units would make of this evidence, which stays as it is.

        Args:
            paid: (n, J) payments.
            row: (n,) number of each unit's last row.
            share: (n,) of a group its share of each unit, with which r begins anew behind it; None
                where r begins anew with 1, before each unit.
        """
        products = np.empty((len(paid) + 1, COUNT))
        products[0] = self.products
        np.log(paid, out=products[1:])
        # In the order of the units, so that it doesn't matter how many come at once.
        np.cumsum(products, axis=0, out=products)
        masses, mass = np.empty_like(paid), self.masses
        with np.errstate(over="ignore"):
            for i, pays in enumerate(paid):
                if share is None:
                    mass = np.add(mass, 1.0, out=masses[i])
                    mass *= pays
                else:
                    mass = np.multiply(mass, pays, out=masses[i])
                    mass += share[i]
        return Step(products, masses, row)

    def take(self, step: Step) -> None:
        """Make a step that `look` returned."""
        before, self.units = self.units, self.units + len(step.masses)
        self.products = step.products[-1].copy()
        self.masses = np.minimum(step.masses[-1], MOST_MASS)
        due = self.trail.due(before, self.units)
        self.trail.extend(due, step.row[due - before - 1] + 1, step.products[due - before])


# --- the change point


@dataclass(frozen=True)
class ChangePoint:
    """The row from which on confidences have probably been off.

    Attributes:
        row: the 0-based row; low: the earliest that can't be excluded; high: the latest.
    """

    row: int
    low: int
    high: int


def change_point(
    evidence: Evidence, seen: int | tuple[Step, int], level: float = 0.95
) -> ChangePoint:
    """Return the change point as it looks after some units of a step, or now.

    Args:
        evidence: before the step.
        seen: a step, and the position of its last unit that is seen; or, of the evidence as it is,
            the number of the last row.
        level: nominal coverage of the interval.
    """
    trail, now = evidence.trail, evidence.products
    counts, rows, sums = trail.count, trail.row, trail.sums
    total = evidence.units
    if isinstance(seen, int):
        last = seen
    else:
        step, upto = seen
        total, now, last = total + upto + 1, step.products[upto + 1], int(step.row[upto])
        due = trail.due(evidence.units, total)
        at = due - evidence.units
        counts = np.concatenate([counts, due])
        rows = np.concatenate([rows, step.row[at - 1] + 1])
        sums = np.concatenate([sums, step.products[at]])
    weight = log_mean_exp(now - sums)
    return _middle(counts, rows, weight, total, last, level)


def _middle(
    counts: IntArray, rows: IntArray, weight: FloatArray, total: int, last: int, level: float
) -> ChangePoint:
    """Return the estimate and the interval of (m,) marked rows with log weights."""
    ends = np.append(counts[1:], total)
    following = np.append(weight[1:], weight[-1])
    # Rows beginning at a mark, up to the next.
    mass = np.logaddexp(weight, following) + np.log(np.maximum(ends - counts, 1e-9) / 2)
    share = np.cumsum(np.exp(mass - mass.max()))
    share /= share[-1]
    tail = (1 - level) / 2
    first, final = (int(np.searchsorted(share, q)) for q in (tail, 1 - tail))
    after = np.append(rows[1:], last + 1)
    best = int(rows[weight.argmax()])
    return ChangePoint(best, min(int(rows[first]), best), max(int(after[final]) - 1, best))


# --- groups

# More groups than this share the last place.
MOST_GROUPS = 256
OTHERS = "(others)"
# Evidence beyond exp of this would overflow; thresholds are far below.
LARGEST_LOG = 600.0


@dataclass
class GroupStep:
    """What n more units would make of the evidence of all groups.

    Attributes:
        log_level: (n + 1,) log of the weighted mean of the groups' E, before and after each unit.
        mass: (n,) sum of the groups' R after each unit.
        steps: of each group that has rows: its index, the positions of its units, its step.
    """

    log_level: FloatArray
    mass: FloatArray
    steps: list[tuple[int, IntArray, Step]]


@dataclass
class Groups:
    """The evidence of each group.

    Attributes:
        known: how many groups there are, if that is known.
        names: of the groups, in the order in which they showed up.
        evidence: of each; sums: (3 C,) of the cells of each.
        spans: numbers of the first and the last row of each; -1 before the first.
    """

    known: int | None = None
    names: list[str] = field(default_factory=list[str])
    evidence: list[Evidence] = field(default_factory=list[Evidence])
    sums: list[FloatArray] = field(default_factory=list[FloatArray])
    spans: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    def weight(self, index: int) -> float:
        """Return the weight of a group."""
        return 1 / self.known if self.known else 1 / ((index + 1) * (index + 2))

    def index_of(self, names: Sequence[str]) -> IntArray:
        """Return the index of each row's group; one not seen before gets the next.

        Raises:
            InputError: there are more groups than was said there would be.
        """
        places = {name: place for place, name in enumerate(self.names)}
        new = [name for name in dict.fromkeys(names) if name not in places]
        if self.known is not None and len(places) + len(new) > self.known:
            raise InputError(
                f"n_groups is {self.known}, but '{new[self.known - len(places)]}' is one group more"
            )
        for name in new:
            if len(self.names) == MOST_GROUPS - 1:
                self._add(OTHERS)
            if len(self.names) < MOST_GROUPS:
                places[name] = self._add(name)
        last = MOST_GROUPS - 1
        return np.array([places.get(name, last) for name in names], dtype=np.int64)

    def _add(self, name: str) -> int:
        self.names.append(name)
        self.evidence.append(Evidence.of_group())
        self.sums.append(np.zeros(WIDTH))
        self.spans.append((-1, -1))
        return len(self.names) - 1

    def level(self) -> float:
        """Return the weighted mean of the groups' E, those still to come counting with 1."""
        weights = np.array([self.weight(group) for group in range(len(self.names))])
        return float(1 - weights.sum() + weights @ _capped(self.log_levels()))

    def log_levels(self) -> FloatArray:
        """Return (G,) log of each group's E."""
        return np.array([evidence.log_level for evidence in self.evidence])

    def look(self, bets: Bets) -> GroupStep:
        """Return what n units would make of the evidence."""
        steps: list[tuple[int, IntArray, Step]] = []
        level, mass = np.zeros(len(bets.row)), np.zeros(len(bets.row))
        for group, (at, paid, share) in bets.groups.items():
            evidence = self.evidence[group]
            step = evidence.look(paid, bets.row[at], share)
            steps.append((group, at, step))
            level[at] += self.weight(group) * np.diff(_capped(step.log_level))
            mass[at] += np.diff(step.mass, prepend=evidence.mass)
        levels = self.level() + np.concatenate([[0.0], np.cumsum(level)])
        held = sum(evidence.mass for evidence in self.evidence)
        # What falls again may leave a rounding error below zero.
        return GroupStep(
            np.log(np.maximum(levels, 1e-300)), np.maximum(held + np.cumsum(mass), 0.0), steps
        )

    def take(self, step: GroupStep) -> None:
        """Make a step that `look` returned."""
        for group, _, own in step.steps:
            self.evidence[group].take(own)

    def count(
        self, confidence: FloatArray, correct: BoolArray, member: IntArray, first: int
    ) -> None:
        """Sum the cells of (n,) rows of these groups, the first of which has the number `first`."""
        present: list[int] = sorted(set(member.tolist()))
        for group in present:
            at = member == group
            rows: list[int] = np.flatnonzero(at).tolist()
            begun = self.spans[group][0]
            self.spans[group] = begun if begun >= 0 else first + rows[0], first + rows[-1]
            self.sums[group] = self.sums[group] + cell_sums(confidence[at], correct[at])[0]


def _capped(logs: FloatArray) -> FloatArray:
    return np.exp(np.minimum(logs, LARGEST_LOG))


# --- the two tests

TestName = Literal["level", "change", "promise"]


@dataclass(frozen=True)
class Alarm:
    """An alarm that rose, and what is known of it at that row.

    Attributes:
        test: ``"level"`` (has it ever been off?), ``"change"`` (has it gone off?), or
            ``"promise"`` (is what a decision promised broken?).
        row: the 0-based row at which it rose.
        log_evidence: log E or log R at that row, in nats.
        threshold: what that had to reach: log(1 / alpha) or log c.
        since: the row from which on confidences have probably been off, with an interval.
        group: the group that shows it most; None for the whole stream.
    """

    test: TestName
    row: int
    log_evidence: float
    threshold: float
    since: ChangePoint
    group: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as JSON takes them."""
        return asdict(self)

    def moved(self, by: int) -> Alarm:
        """Return the alarm in a stream whose rows have numbers higher by so many."""
        at = self.since
        since = ChangePoint(at.row + by, at.low + by, at.high + by)
        return replace(self, row=self.row + by, since=since)


@dataclass
class TwoTests:
    """Both tests, of the whole stream and of its groups.

    Attributes:
        tolerance: e; alpha: of the level test; average_run_length: c of the change test.
        evidence: of the whole stream; groups: of each group, empty without any.
        alarms: those that rose, by test.
    """

    tolerance: float
    alpha: float
    average_run_length: float
    evidence: Evidence = field(default_factory=Evidence)
    groups: Groups = field(default_factory=Groups)
    alarms: dict[str, Alarm] = field(default_factory=dict[str, Alarm])

    @property
    def bounds(self) -> dict[TestName, float]:
        """What the evidence of each test has to reach for an alarm, in nats."""
        return {"level": -math.log(self.alpha), "change": math.log(self.average_run_length)}

    @property
    def log_level(self) -> float:
        """Log of E, the whole stream's and the groups' averaged."""
        level = self.evidence.log_level
        if not self.groups.names:
            return level
        of_groups = math.log(max(self.groups.level(), 1e-300))
        return float(np.logaddexp(level, of_groups)) - math.log(2)

    @property
    def log_mass(self) -> float:
        """Log of R, of the whole stream's and the groups' averaged."""
        mass = self.evidence.mass
        if self.groups.names:
            mass = (mass + sum(evidence.mass for evidence in self.groups.evidence)) / 2
        return math.log(max(mass, 1e-300))

    def flagged(self) -> list[str]:
        """Return the groups whose own evidence is enough, at alpha for all of them together."""
        groups = self.groups
        bound = -math.log(self.alpha) + math.log(2)
        levels = zip(groups.names, groups.log_levels().tolist(), strict=True)
        return [
            name
            for i, (name, level) in enumerate(levels)
            if level + math.log(groups.weight(i)) >= bound
        ]

    def begin(self, row: int) -> None:
        """Begin anew at a row of the stream; groups keep their places, and so their weights."""
        self.evidence, self.alarms = Evidence(), {}
        self.groups.evidence = [Evidence.of_group() for _ in self.groups.names]
        for evidence in (self.evidence, *self.groups.evidence):
            evidence.trail.row[:] = row

    def add(self, bets: Bets) -> list[Alarm]:
        """Take n more units, and return the alarms that rose at one of them."""
        step = self.evidence.look(bets.paid, bets.row)
        level, mass = step.log_level[1:], step.mass
        of_groups = self.groups.look(bets) if bets.groups else None
        if of_groups is not None:
            level = np.logaddexp(level, of_groups.log_level[1:]) - math.log(2)
            mass = (mass + of_groups.mass) / 2
        risen = [
            *self._risen("level", level, step, of_groups),
            *self._risen(
                "change",
                np.log(np.clip(mass, 1e-300, MOST_MASS)),
                step,
                of_groups,
            ),
        ]
        self.alarms |= {alarm.test: alarm for alarm in risen}
        self.evidence.take(step)
        if of_groups is not None:
            self.groups.take(of_groups)
        return risen

    def _risen(
        self, test: TestName, logs: FloatArray, step: Step, groups: GroupStep | None
    ) -> list[Alarm]:
        bound = self.bounds[test]
        if test in self.alarms or not (logs.max(initial=-np.inf) >= bound):
            return []
        at = int((logs >= bound).argmax())
        since, group = self._since(at, step, groups)
        return [Alarm(test, int(step.row[at]), float(logs[at]), bound, since, group)]

    def _since(
        self, at: int, step: Step, groups: GroupStep | None
    ) -> tuple[ChangePoint, str | None]:
        """Return since when, by whatever holds most of R at a row of a step."""
        most, best = float(step.mass[at]), (self.evidence, step, at, None)
        # A group without units in this step had no part in what rose here.
        for index, units, own in [] if groups is None else groups.steps:
            upto = int(np.searchsorted(units, at, side="right")) - 1
            if upto >= 0 and own.mass[upto] > most:
                most = float(own.mass[upto])
                best = (self.groups.evidence[index], own, upto, self.groups.names[index])
        evidence, taken, upto, name = best
        return change_point(evidence, (taken, upto)), name
