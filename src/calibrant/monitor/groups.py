"""Evidence by class or any other group, put together so that one guarantee holds for them all.

**Level.** Of groups g with evidence E_g, sum_g w_g E_g with weights that add up to at most 1 is a
supermartingale as each E_g is, whatever one group has to do with another. The weights must not hang
on outcomes: they are 1 / G where the number of groups is known from the start, and else
1 / (k (k + 1)) for the k-th group that shows up; groups still to come count with their E of 1.

**Change.** The R_g of groups that share no row may be added up: each grows by no more than the
group has rows, so their sum by no more than the stream has.

What the whole stream shows counts for one half, what the groups show for the other: so a shift of
all groups together is found nearly as soon as without groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from calibrant.core.arrays import BoolArray, FloatArray, IntArray
from calibrant.core.errors import InputError
from calibrant.monitor.evidence import Evidence, Step
from calibrant.monitor.windows import WIDTH, cell_sums

# More groups than this share the last place.
MOST_GROUPS = 256
OTHERS = "(others)"
# Evidence beyond exp of this would overflow; thresholds are far below.
LARGEST_LOG = 600.0


@dataclass
class GroupStep:
    """What n more rows would make of the evidence of all groups.

    Attributes:
        log_level: (n + 1,) log of the weighted mean of the groups' E, before and after each row.
        mass: (n,) sum of the groups' R after each row.
        steps: of each group that has rows: its index, the positions of its rows, its step.
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
    """

    known: int | None = None
    names: list[str] = field(default_factory=list[str])
    evidence: list[Evidence] = field(default_factory=list[Evidence])
    sums: list[FloatArray] = field(default_factory=list[FloatArray])

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
                f"there were to be {self.known} groups, but '{new[self.known - len(places)]}' "
                "is one more"
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
        return len(self.names) - 1

    def log_levels(self) -> FloatArray:
        """Return (G,) log of each group's E."""
        return np.array([evidence.log_level for evidence in self.evidence])

    def look(
        self,
        confidence: FloatArray,
        correct: BoolArray,
        member: IntArray,
        tolerance: float,
        row: IntArray,
    ) -> GroupStep:
        """Return what n rows, (n,) `member` of which groups, would make of the evidence."""
        steps: list[tuple[int, IntArray, Step]] = []
        level, mass = np.zeros(len(row)), np.zeros(len(row))
        present: list[int] = sorted(set(member.tolist()))
        for group in present:
            at = np.flatnonzero(member == group)
            evidence = self.evidence[group]
            step = evidence.look(confidence[at], correct[at], tolerance, row[at])
            steps.append((group, at, step))
            level[at] = self.weight(group) * np.diff(_capped(step.log_level))
            mass[at] = np.diff(step.mass, prepend=evidence.mass)
        weights = np.array([self.weight(group) for group in range(len(self.names))])
        start = 1 - weights.sum() + weights @ _capped(self.log_levels())
        levels = start + np.concatenate([[0.0], np.cumsum(level)])
        held = sum(evidence.mass for evidence in self.evidence)
        # What falls again may leave a rounding error below zero.
        return GroupStep(
            np.log(np.maximum(levels, 1e-300)), np.maximum(held + np.cumsum(mass), 0.0), steps
        )

    def take(self, step: GroupStep, confidence: FloatArray, correct: BoolArray) -> None:
        """Make a step that `look` returned, of the same rows."""
        for group, at, own in step.steps:
            self.evidence[group].take(own)
            self.sums[group] = self.sums[group] + cell_sums(confidence[at], correct[at])[0]


def _capped(logs: FloatArray) -> FloatArray:
    return np.exp(np.minimum(logs, LARGEST_LOG))
