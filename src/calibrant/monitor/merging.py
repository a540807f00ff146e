"""One monitor of several: what replicas counted apart, put together.

The hypothesis speaks of each row given all that came before, whoever saw it. For rows of several
replicas in the order of the clock the payments of alternative j multiply to one product, which the
sum of the replicas' log products is; and the sum of their R_j grows by no more than their rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from calibrant.core.errors import InputError
from calibrant.monitor.change import ChangePoint, change_point
from calibrant.monitor.evidence import Evidence
from calibrant.monitor.groups import Groups
from calibrant.monitor.trail import FOR_EVER, Trail
from calibrant.monitor.two_tests import Alarm, TwoTests
from calibrant.monitor.windows import Windows


def merged_tests(parts: Sequence[TwoTests]) -> TwoTests:
    """Return the tests of all rows together, with the alarms that rise by what they sum to.

    Raises:
        InputError: there are groups, but it isn't known how many.
    """
    first = parts[0]
    rows = sum(part.evidence.rows for part in parts)
    tests = TwoTests(
        first.tolerance,
        first.alpha,
        first.average_run_length,
        _summed([part.evidence for part in parts], Evidence(), rows),
        _merged_groups([part.groups for part in parts], rows),
    )
    bounds = {"level": -math.log(first.alpha), "change": math.log(first.average_run_length)}
    logs = {"level": tests.log_level, "change": tests.log_mass}
    for test in ("level", "change"):
        if rows and logs[test] >= bounds[test]:
            since = _since(parts)
            tests.alarms[test] = Alarm(test, rows - 1, logs[test], bounds[test], since)
    return tests


def merged_windows(parts: Sequence[Windows]) -> Windows:
    """Return the windows of all parts, one part after the other."""
    trail = parts[0].trail
    counts, levels, sums = [trail.count[:1]], [trail.level[:1]], [trail.sums[:1]]
    rows, total = 0, np.zeros_like(parts[0].sums)
    for part in parts:
        counts.append(part.trail.count[1:] + rows)
        levels.append(part.trail.level[1:])
        sums.append(part.trail.sums[1:] + total)
        rows, total = rows + part.rows, total + part.sums
        # Where a part ends, a window does.
        if part.rows and counts[-1][-1:] != rows:
            counts.append(np.array([rows], dtype=np.int64))
            levels.append(np.array([FOR_EVER], dtype=np.int64))
            sums.append(total[None, :])
    count = np.concatenate(counts)
    whole = Trail(
        trail.base, trail.keep, count, count.copy(), np.concatenate(levels), np.concatenate(sums)
    )
    return Windows(rows, total, whole)


def _summed(parts: Sequence[Evidence], empty: Evidence, rows: int) -> Evidence:
    """Return the sum of evidence; where in the parts a change lies is forgotten."""
    count = sum(part.rows for part in parts)
    products = np.sum([part.products for part in parts], axis=0)
    empty.trail.mark(count, rows, products)
    masses = np.sum([part.masses for part in parts], axis=0)
    return replace(empty, rows=count, products=products, masses=masses)


def _merged_groups(parts: Sequence[Groups], rows: int) -> Groups:
    merged = Groups(parts[0].known)
    if not any(part.names for part in parts):
        return merged
    if merged.known is None:
        raise InputError(
            "monitors with groups can be merged only if n_groups says how many there are, because "
            "the groups' weights must not change from one merging to the next"
        )
    merged.index_of([name for part in parts for name in part.names])
    for i, name in enumerate(merged.names):
        held = [(part, part.names.index(name)) for part in parts if name in part.names]
        own = [part.evidence[k] for part, k in held]
        merged.evidence[i] = _summed(own, Evidence.of_group(), rows)
        merged.sums[i] = np.sum([part.sums[k] for part, k in held], axis=0)
    return merged


def _since(parts: Sequence[TwoTests]) -> ChangePoint:
    """Return since when, by the part with the most evidence, in the numbers of the whole."""
    starts = np.cumsum([0, *(part.evidence.rows for part in parts)])
    most = int(np.argmax([part.evidence.mass for part in parts]))
    found, start = change_point(parts[most].evidence), int(starts[most])
    return ChangePoint(found.row + start, found.low + start, found.high + start)
