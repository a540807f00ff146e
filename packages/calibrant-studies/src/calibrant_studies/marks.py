"""Which of the competitors in a study is the best, and which of them may be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.core.arrays import FloatArray
from calibrant_studies.over_seeds import may_be_best_over_seeds

if TYPE_CHECKING:
    from calibrant_studies.results import Estimate

LEVEL = 0.95


def competing(estimates: Sequence[Estimate], axis: str) -> list[list[Estimate]]:
    """Return the estimates of one metric that compete: alike in all but one axis."""
    groups: dict[tuple[Any, ...], list[Estimate]] = {}
    for estimate in estimates:
        key = (estimate.measure.name, *((k, v) for k, v in estimate.at.items() if k != axis))
        groups.setdefault(key, []).append(estimate)
    return list(groups.values())


def marked(estimates: list[Estimate], axis: str | None) -> list[Estimate]:
    """Return the estimates with the best of each group marked, and those that may be it."""
    if axis is None:
        return estimates
    marks: dict[int, tuple[bool, bool | None]] = {}
    for group in competing(estimates, axis):
        if len(group) < 2 or group[0].measure.better == "neither":
            continue
        costs = np.array([e.measure.cost(e.value) for e in group])
        best = int(np.argmin(costs))
        may: Sequence[bool | None] = [None] * len(group)
        together = _together(group)
        if together is not None:
            sign = -1.0 if group[0].measure.better == "high" else 1.0
            values, replicates = (sign * each for each in together)
            may = may_be_best_over_seeds(values, replicates, LEVEL).tolist()
        for i, estimate in enumerate(group):
            marks[id(estimate)] = (i == best, may[i])
    return [_with_marks(e, *marks.get(id(e), (False, None))) for e in estimates]


def _together(group: Sequence[Estimate]) -> tuple[FloatArray, FloatArray] | None:
    """Return (M, S) values and (M, S, R) replicates, or None where they can't be paired.

    What doesn't depend on the seed is the same for all of them. Where some seeds of some are
    missing, what stands side by side would be of different seeds.
    """
    if len({frozenset(e.of_seed) for e in group}) > 1:
        return None
    seeds = max(len(e.replicates) for e in group)
    sizes = {len(each) for e in group for each in e.replicates}
    alike = all(len(e.replicates) in (1, seeds) for e in group) and len(sizes) == 1
    if not alike or len({e.pairing for e in group}) != 1:
        return None
    values = np.array([np.broadcast_to(e.values, (seeds,)) for e in group])
    return values, np.array([np.broadcast_to(e.replicates, (seeds, *sizes)) for e in group])


def _with_marks(estimate: Estimate, best: bool, may: bool | None) -> Estimate:
    return replace(estimate, best=best, may_be_best=may)
