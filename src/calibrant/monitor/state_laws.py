"""The laws that every state of a monitor obeys, and every one that follows from it.

A state comes from a file, and decides whether an alarm rises. What its numbers can't be together is
refused: more rows than there are, evidence of none, sums that no rows have.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from calibrant.core.arrays import FloatArray
from calibrant.metrics.binned import LOGIT_CLIP
from calibrant.monitor.clusters import ALL, MOST_OF_THE_WAY, PROMISE, largest_stakes
from calibrant.monitor.latest import Form, Scores
from calibrant.monitor.sequential_tests import MOST_GROUPS, MOST_MASS, Alarm, Evidence, Groups
from calibrant.monitor.state import MOST_ALARMS, State
from calibrant.monitor.windows import FOR_EVER, HOURS_KEPT, MOST_HOURS, WIDTH, Trail

# As a row's number in a file holds.
MOST_ROWS = (1 << 62) - 1
# Sums were added up in another order than they are added up in here.
ROUNDING = 1e-6
# Hardly a row pays less.
LEAST = LOGIT_CLIP / 2
# No payment is further from 1 than the smallest number of all.
MOST_LOG = 750.0


class Damaged(ValueError):
    """What is wrong with a state; `damaged_is_said` makes an error of it that names the file."""


def require(holds: Any, wrong: str) -> None:
    """Raise `Damaged` with what is wrong unless something holds, everywhere."""
    if not np.all(holds):
        raise Damaged(wrong)


def check_laws(state: State) -> None:
    """Raise `Damaged` unless the laws hold that every state obeys, and every one that follows."""
    rows, windows, history = state.windows.rows, state.windows, state.history
    groups, clusters, latest = state.tests.groups, state.clusters, state.latest
    about = 0 if state.promise is None else state.promise.rows
    numbers = [history.begun, history.before, clusters.late, clusters.beyond, about]
    numbers += [clusters.dependence.clusters, *(one.until for one in history.alarms)]
    require(0 <= min(numbers) <= max(numbers) <= rows <= MOST_ROWS, "more rows than there are")
    counts = state.waiting.counts()
    require(0 <= min(counts) <= max(counts) <= MOST_ROWS, "it counts more than can be")

    _check_cells(windows.sums, rows, "the stream")
    _check_trail(windows.trail, rows, rows)
    sums = windows.trail.sums
    require(not sums[0].any(), "windows begin with rows")
    _check_cells(np.diff(sums, axis=0, append=windows.sums[None]), rows, "windows")
    each = np.array([*state.hours.sums.values()]).reshape(-1, WIDTH)
    hours = [*state.hours.sums]
    require(len(hours) <= HOURS_KEPT, "more hours than are kept")
    require(
        0 <= min(hours, default=0) <= max(hours, default=0) <= MOST_HOURS, "hours that can't be"
    )
    _check_cells(each, None, "an hour")
    require(each[:, : WIDTH // 3].sum() <= rows, "hours have more rows than there are")

    units = clusters.dependence.clusters if state.clustered else rows
    before = history.before
    own = None if state.clustered and before else units - before
    _check_evidence(state.tests.evidence, own, rows)
    _check_groups(groups, rows, rowwise=not (state.clustered or before))
    require(len(history.alarms) <= MOST_ALARMS, "more past alarms than are kept")
    for alarm in state.tests.alarms.values():
        _check_alarm(alarm, state.tests.bounds, rows)
        require(alarm.group in (None, *groups.names), "an alarm of an unknown group")
    for past in history.alarms:
        _check_alarm(past.alarm, {past.alarm.test: past.alarm.threshold}, rows)
    if state.promise is not None:
        _check_evidence(state.promise.evidence, None, rows)
        require(0 <= state.promise.broken <= about, "more rows break the promise than there are")
        if state.promise.alarm is not None:
            _check_alarm(state.promise.alarm, {"promise": state.promise.bound}, rows)
    _check_clusters(state, units, rows)

    n = len(latest.confidence)
    require({len(latest.correct), len(latest.origin), n} == {n}, "latest rows of several lengths")
    require(n <= min(rows, latest.most), "more latest rows than there are")
    require((latest.confidence >= 0) & (latest.confidence <= 1), "a confidence beyond 0 and 1")
    if state.scores.form is not None:
        _check_scores(state.scores, state.scores.form, rows)
    _check_waiting(state, rows)
    announced = state.notes.get("announced", [])
    require(isinstance(announced, list), "notes of alarms that can't be")


def _check_cells(sums: FloatArray, rows: int | None, what: str) -> None:
    """Check the (..., 3 C) sums of cells; so many rows in all, unless that is None."""
    count, confidence, right = np.split(sums, 3, axis=-1)
    require(rows is None or count.sum() == rows, f"{what} has other rows")
    least = (count >= 0) & (confidence >= 0) & (right >= 0)
    most = (count <= MOST_ROWS) & (confidence <= count + ROUNDING) & (right <= count)
    whole = (count == np.rint(count)) & (right == np.rint(right))
    require(least & most & whole, f"sums of {what} that can't be")


def _check_trail(trail: Trail, count: int, rows: int) -> None:
    """Check the trail of `count` units of a stream of `rows`."""
    n = len(trail.count)
    require(n and {n, len(trail.row), len(trail.level)} == {len(trail.sums)}, "parts of a trail")
    begins = trail.count[0] == 0 and trail.level[0] == FOR_EVER and trail.count[-1] <= count
    follow = (np.diff(trail.count) >= 0).all() and (np.diff(trail.row) >= 0).all()
    follow = follow and trail.row[-1] <= rows and (trail.row >= trail.count).all()
    levels = (trail.level >= 0) & (trail.level <= FOR_EVER)
    require(begins and follow and levels.all(), "the rows of a trail don't follow one another")


def _check_evidence(evidence: Evidence, units: int | None, rows: int) -> None:
    """Check evidence of so many units, or as many as it says, of a stream of `rows`."""
    most = rows if units is None else units
    require((most if units is not None else 0) <= evidence.units <= most, "evidence of other rows")
    known = np.abs(evidence.products) <= MOST_LOG * evidence.units
    known &= (evidence.masses >= 0) & (evidence.masses <= MOST_MASS**2 * min(evidence.units, 1))
    require(known, "evidence that can't be")
    _check_trail(evidence.trail, evidence.units, rows)


def _check_groups(groups: Groups, rows: int, *, rowwise: bool) -> None:
    """Check the groups of a stream of so many rows; `rowwise` if each was bet on by itself."""
    n = len(groups.names)
    require(len(set(groups.names)) == n == len(groups.spans), "groups that aren't different")
    require(n <= min(MOST_GROUPS, groups.known or MOST_GROUPS), "more groups than there may be")
    total = 0
    for evidence, sums, (first, last) in zip(
        groups.evidence, groups.sums, groups.spans, strict=True
    ):
        _check_cells(sums, None, "a group")
        count = round(float(sums[: WIDTH // 3].sum()))
        _check_evidence(evidence, count if rowwise else None, rows)
        require(evidence.units <= count, "a group has fewer rows than clusters")
        require(-1 <= first <= last < max(rows, 1), "rows of groups that can't be")
        total += count
    require(total in (0, rows), "groups don't have all rows")


def _check_alarm(alarm: Alarm, bounds: Mapping[Any, float], rows: int) -> None:
    """Check an alarm of one of these tests that rose in so many rows."""
    since = alarm.since
    require(0 <= since.low <= since.row <= since.high <= alarm.row + 1 <= rows, "rows of an alarm")
    known = alarm.test in ("level", "change", "promise") and alarm.test in bounds
    require(known and alarm.threshold == bounds[alarm.test], "an alarm of no test")
    require(alarm.threshold <= alarm.log_evidence < np.inf, "an alarm without evidence")


def _check_clusters(state: State, units: int, rows: int) -> None:
    """Check the clusters of a stream of so many rows, of which so many were closed."""
    clusters, groups = state.clusters, len(state.tests.groups.names)
    require(len(clusters.closed) <= min(units, clusters.most_known), "too many closed clusters")
    # Residuals are at most 1 in size, and so no larger than the numbers of rows.
    most = np.repeat([1.0, rows], 3) * rows + ROUNDING
    require(np.abs(clusters.dependence.sums) <= most, "closed clusters with more than all rows")
    stakes = largest_stakes(state.tests.tolerance)
    for one in clusters.unfinished.values():
        require(0 <= one.last < rows and np.abs(one.moments).max() <= rows, "rows of a cluster")
        require(one.counts[ALL] == one.moments[0], "a cluster isn't of so many rows")
        for key, part in one.parts.items():
            count = one.counts[key]
            fits = PROMISE <= key < groups and part.rows == min(count, part.most) >= 1
            require(fits and count <= rows, "a part of a cluster isn't of so many rows")
            watched = state.promise if key == PROMISE else None
            require(key != PROMISE or watched is not None, "a part of no promise")
            largest = stakes if watched is None else watched.largest
            # What rows pay, about: so no factor falls to 0.
            low = np.where(largest > 1, 1 - 1.01 * MOST_OF_THE_WAY / largest, LEAST)
            high = 1 / LEAST if watched is None else watched.pays[1]
            paid = part.payments / part.rows
            require((paid >= low) & (paid <= high * 1.01), "payments that can't be")
    for part, (number, total, squares) in clusters.sizes.items():
        require(PROMISE <= part < groups, "sizes of no group")
        require(1 <= number <= total <= squares <= float(rows) ** 2 + 1, "sizes that can't be")


def _check_scores(scores: Scores, form: Form, rows: int) -> None:
    """Check the scores of the latest of so many rows."""
    kept, labels, number, origin = scores.together()
    sizes = {len(kept), len(labels), len(number), len(origin)}
    require(sizes == {len(labels)}, "scores of several lengths")
    require(max(len(labels), len(scores.waiting)) <= scores.most, "more scores than are kept")
    require((labels >= 0) & (labels < form.width), "labels beyond the classes")
    require((number >= 0) & (number < rows), "scores of rows that there aren't")
    if form.kind == "probs":
        for some in (kept, *scores.waiting.values()):
            require((some >= 0) & (some <= 1), "probabilities beyond 0 and 1")


def _check_waiting(state: State, rows: int) -> None:
    """Check what waits, and the sums over rows without an outcome, of which it is a part."""
    waiting, without = state.waiting, state.unlabelled
    most = max(len(waiting.predictions), len(waiting.outcomes), len(waiting.done))
    require(most <= waiting.most, "more predictions or outcomes wait than may")
    said = np.array([one.confidence for one in waiting.predictions.values()])
    require((said >= 0) & (said <= 1), "a confidence beyond 0 and 1")
    for one in waiting.predictions.values():
        numbers = 0 <= (one.predicted or 0) <= MOST_ROWS and 0 <= (one.hour or 0) <= MOST_HOURS
        require(numbers, "a class or an hour that can't be")
    values = [one.value for one in waiting.outcomes.values()]
    require(0 <= min(values, default=0) <= max(values, default=0) <= MOST_ROWS, "outcomes beyond 0")
    others = without.rows - len(said)
    require(0 <= others <= MOST_ROWS, "fewer rows without outcome than wait for theirs")
    # Rows are taken out again, and leave a rounding error.
    slack = ROUNDING * (rows + without.rows + 1)
    for total, own in ((without.total, said), (without.variance, said * (1 - said))):
        rest = total - own.sum()
        require(-slack <= rest <= others + slack, "sums of rows without outcome that can't be")
