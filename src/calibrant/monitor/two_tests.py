"""The two tests of a stream, and the rows at which their alarms rose."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from calibrant.core.arrays import BoolArray, FloatArray, IntArray
from calibrant.monitor.change import ChangePoint, change_point
from calibrant.monitor.evidence import MOST_MASS, Evidence, Step
from calibrant.monitor.groups import LARGEST_LOG, Groups, GroupStep

TestName = Literal["level", "change"]


@dataclass(frozen=True)
class Alarm:
    """An alarm that rose, and what is known of it at that row.

    Attributes:
        test: ``"level"`` (has it ever been off?) or ``"change"`` (has it gone off?).
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

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Alarm:
        """Return the alarm of which `as_dict` gave these fields."""
        since: Any = ChangePoint(**fields["since"])
        return cls(**fields | {"since": since})


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
    def log_level(self) -> float:
        """Log of E, the whole stream's and the groups' averaged."""
        level, groups = self.evidence.log_level, self.groups
        if not groups.names:
            return level
        weights = np.array([groups.weight(i) for i in range(len(groups.names))])
        levels = np.exp(np.minimum(groups.log_levels(), LARGEST_LOG))
        of_groups = math.log(max(1 - weights.sum() + weights @ levels, 1e-300))
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

    def add(
        self, confidence: FloatArray, correct: BoolArray, row: IntArray, member: IntArray | None
    ) -> list[Alarm]:
        """Take n more rows, and return the alarms that rose at one of them.

        Args:
            confidence: (n,) in [0, 1].
            correct: (n,) whether each row is right.
            row: (n,) their numbers in the stream.
            member: (n,) index of each row's group, or None.
        """
        step = self.evidence.look(confidence, correct, self.tolerance, row)
        level, mass = step.log_level[1:], step.mass
        of_groups = None
        if member is not None:
            of_groups = self.groups.look(confidence, correct, member, self.tolerance, row)
            level = np.logaddexp(level, of_groups.log_level[1:]) - math.log(2)
            mass = (mass + of_groups.mass) / 2
        risen = [
            *self._risen("level", level, -math.log(self.alpha), step, of_groups),
            *self._risen(
                "change",
                np.log(np.clip(mass, 1e-300, MOST_MASS)),
                math.log(self.average_run_length),
                step,
                of_groups,
            ),
        ]
        self.alarms |= {alarm.test: alarm for alarm in risen}
        self.evidence.take(step)
        if of_groups is not None:
            self.groups.take(of_groups, confidence, correct)
        return risen

    def _risen(
        self, test: TestName, logs: FloatArray, bound: float, step: Step, groups: GroupStep | None
    ) -> list[Alarm]:
        if test in self.alarms or not (logs.max() >= bound):
            return []
        at = int((logs >= bound).argmax())
        since, group = self._since(at, step, groups)
        return [Alarm(test, int(step.row[at]), float(logs[at]), bound, since, group)]

    def _since(
        self, at: int, step: Step, groups: GroupStep | None
    ) -> tuple[ChangePoint, str | None]:
        """Return since when, by whatever holds most of R at a row of a step."""
        most, best = float(step.mass[at]), (self.evidence, step, at, None)
        # A group without rows in this step had no part in what rose here.
        for index, rows, own in [] if groups is None else groups.steps:
            upto = int(np.searchsorted(rows, at, side="right")) - 1
            if upto >= 0 and own.mass[upto] > most:
                most = float(own.mass[upto])
                best = (self.groups.evidence[index], own, upto, self.groups.names[index])
        evidence, taken, upto, name = best
        return change_point(evidence, taken, upto), name
