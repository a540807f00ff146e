"""The file in which a monitor's state is kept: safetensors with a header of JSON, written whole.

Whatever is read from it is checked, since a state decides whether an alarm rises. Arrays have the
type and the width of those that a new monitor writes; what was read of all is the same when it is
written again; and the laws hold that every state obeys, whatever is counted next.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from os import fspath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import FloatArray
from calibrant.core.errors import CalibrantError, CalibratorFileError
from calibrant.core.typed import OtherTypeError, typed
from calibrant.files.atomic import StrPath
from calibrant.files.parameters import ParameterFormat
from calibrant.metrics.binned import LOGIT_CLIP
from calibrant.monitor.clusters import (
    ALL,
    MOST_OF_THE_WAY,
    PROMISE,
    Clusters,
    Dependence,
    Part,
    Unfinished,
    largest_stakes,
)
from calibrant.monitor.delayed_labels import DelayedLabels, Outcome, Said, Unlabelled
from calibrant.monitor.latest import NUMBERS, Form, Scores
from calibrant.monitor.sequential_tests import (
    ALTERNATIVES,
    COUNT,
    MOST_GROUPS,
    MOST_MASS,
    Alarm,
    Evidence,
    Groups,
)
from calibrant.monitor.state import MOST_ALARMS, History, State
from calibrant.monitor.windows import FOR_EVER, HOURS_KEPT, MOST_HOURS, WIDTH, Hours, Trail

Arrays = dict[str, NDArray[Any]]
Header = dict[str, Any]

# As a row's number in a file holds.
MOST_ROWS = (1 << 62) - 1
FORMAT = ParameterFormat("calibrant-monitor", 2, "the state of a monitor", "numpy")
# Sums were added up in another order than they are added up in here.
ROUNDING = 1e-6
# Hardly a row pays less.
LEAST = LOGIT_CLIP / 2
# No payment is further from 1 than the smallest number of all.
MOST_LOG = 750.0
# Arrays of one length, by the last part of their names; others have as many entries as they need.
_WHOLE = {"units", "products", "masses", "cells", "dependence"}


class Damaged(ValueError):
    """What is wrong with a state; `damaged_is_said` makes an error of it that names the file."""


def require(holds: Any, wrong: str) -> None:
    """Raise `Damaged` with what is wrong unless something holds, everywhere."""
    if not np.all(holds):
        raise Damaged(wrong)


# --- the file


@dataclass(frozen=True)
class Saved:
    """The content of a state's file, unchecked: a header of JSON, and arrays by name."""

    header: Header
    arrays: Arrays


def write_state(path: StrPath, header: Header, arrays: Arrays) -> None:
    """Write header and arrays, whole or not at all.

    Raises:
        InputError: a folder that doesn't exist, or no room.
    """
    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    whole["alternatives"] = ALTERNATIVES
    text = json.dumps(header)
    FORMAT.write(path, {"monitor": text, "checksum": _checksum(text, whole)}, whole)


def read_state(path: StrPath) -> Saved:
    """Return what is in the file of a state.

    Raises:
        CalibratorFileError: the file is missing, damaged or something else.
    """
    header, arrays = FORMAT.read(path)
    bets = arrays.get("alternatives")
    if bets is None or not np.array_equal(bets, ALTERNATIVES):
        raise CalibratorFileError(f"{fspath(path)}: was made with other bets; begin a new state")
    with damaged_is_said(path):
        text = header["monitor"]
        require(header.get("checksum") == _checksum(text, arrays), "it was changed since")
        found: Any = json.loads(text)
        require(isinstance(found, dict), "its header is no JSON object")
        return Saved(found, {name: array.copy() for name, array in arrays.items()})


def _checksum(text: str, arrays: Arrays) -> str:
    """Return a hash of all that a state holds."""
    found = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16)
    for name, array in sorted(arrays.items()):
        found.update(f"{name} {array.dtype.str} {array.shape}".encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


@contextmanager
def damaged_is_said(path: StrPath) -> Generator[None]:
    """Turn whatever a damaged state raises in the body into one sentence."""
    try:
        yield
    except CalibrantError:
        raise
    except Exception as error:
        why = f": {error}" if isinstance(error, Damaged | OtherTypeError) else ""
        raise CalibratorFileError(
            f"{fspath(path)}: is a damaged state of a monitor{why}; begin a new one"
        ) from error


# --- a state as a header and arrays


@dataclass(frozen=True)
class ScoresHeader(Form):
    """Of scores: their form, and the ids that wait for their labels."""

    waiting: list[str]


@dataclass(frozen=True)
class PromiseHeader:
    """Of a promise that is watched, what `Watched` has."""

    rows: int
    broken: int
    alarm: Alarm | None


@dataclass(frozen=True)
class HeaderFields:
    """What a header holds besides the monitor's settings."""

    notes: dict[str, Any]
    groups: list[str]
    alarms: list[Alarm]
    unlabelled: Unlabelled
    rows: int
    grouped: bool | None
    clustered: bool | None
    unfinished: list[str]
    late: int
    beyond: int
    clusters: int
    group_rows: list[tuple[int, int]]
    history: History
    scores: ScoresHeader | None = None
    promise: PromiseHeader | None = None

    def as_dict(self) -> Header:
        """Return the header."""
        optional = {"scores", "promise"}
        return {n: own for n, own in asdict(self).items() if own is not None or n not in optional}


# Predictions and outcomes that wait, how many came again, and how many were given up.
WaitingFields = tuple[dict[str, Said], dict[str, Outcome], int, int]


def pack(state: State) -> tuple[Header, Arrays]:
    """Return all that was counted as a header and arrays."""
    tests, watched, clusters = state.tests, state.promise, state.clusters
    hours, form = state.hours.sums, state.scores.form
    header = HeaderFields(
        state.notes,
        tests.groups.names,
        list(tests.alarms.values()),
        state.unlabelled,
        state.windows.rows,
        state.grouped,
        state.clustered,
        list(clusters.unfinished),
        clusters.late,
        clusters.beyond,
        clusters.dependence.clusters,
        tests.groups.spans,
        state.history,
        form and ScoresHeader(**vars(form), waiting=list(state.scores.waiting)),
        watched and PromiseHeader(watched.rows, watched.broken, watched.alarm),
    )
    arrays = _evidence_arrays("stream", tests.evidence)
    arrays |= _arrays("windows", state.windows.trail) | _arrays("latest", state.latest)
    for i, evidence in enumerate(tests.groups.evidence):
        arrays |= _evidence_arrays(f"group{i}", evidence)
        arrays[f"group{i}.cells"] = tests.groups.sums[i]
    arrays |= {
        "windows.cells": state.windows.sums,
        "hours": np.array(list(hours), dtype=np.int64),
        "hours.cells": np.array(list(hours.values())).reshape(-1, WIDTH),
    }
    arrays |= state.waiting.pack() | _cluster_arrays(clusters)
    if form is not None:
        arrays |= _score_arrays(state.scores, form)
    if watched is not None:
        arrays |= _evidence_arrays("promise", watched.evidence)
    return header.as_dict(), arrays


def unpack(saved: Saved, state: State) -> None:
    """Take over what `pack` returned into a state that has counted nothing so far.

    Raises:
        Damaged: something is of another type or shape, or out of its limits; or any other error
            where something is missing.
    """
    header = {name: own for name, own in saved.header.items() if name != "settings"}
    arrays = {name: own for name, own in saved.arrays.items() if name != "alternatives"}
    if "open.part" not in arrays:
        header["beyond"] = 0
        arrays = _with_parts(arrays, state, grouped=header["grouped"] is True)
    own = typed(HeaderFields, header, "its header")
    _check_types(arrays, state, own)
    _take(own, arrays, state)
    again, same = pack(state)
    require(_text(again) == _text(header), "its header isn't what a monitor writes")
    require(same.keys() == arrays.keys(), "arrays are missing, or too many")
    for name, array in arrays.items():
        require(np.array_equal(array, same[name]), f"'{name}' isn't what a monitor writes")
    _check_laws(state)


def _text(header: Header) -> str:
    return json.dumps(header, sort_keys=True)


def _check_types(arrays: Arrays, state: State, header: HeaderFields) -> None:
    """Raise `Damaged` unless arrays are finite and like those of a new state with these scores."""
    like = pack(state)[1]
    own = header.scores
    if own is not None:
        names = own.class_names
        require(2 <= own.width <= NUMBERS, "scores of no form")
        require(names is None or len(names) == own.width, "scores of no form")
        like |= _score_arrays(Scores(1), own)
    like |= _evidence_arrays("group0", Evidence.of_group()) | {"group0.cells": np.zeros(WIDTH)}
    for name, array in arrays.items():
        own = like.get(re.sub(r"^group\d+", "group0", name))
        require(own is not None and array.dtype == own.dtype, f"'{name}' is of another type")
        if own is not None:
            first = 0 if name.rpartition(".")[2] in _WHOLE and name != "hours.cells" else 1
            alike = array.ndim == own.ndim and array.shape[first:] == own.shape[first:]
            require(alike, f"'{name}' is of another shape")
        require(np.isfinite(array), f"'{name}' holds a number out of its limits")


def _take(header: HeaderFields, arrays: Arrays, state: State) -> None:
    """Fill a state."""
    tests, windows = state.tests, state.windows
    windows.rows, windows.sums = header.rows, arrays["windows.cells"]
    windows.trail = _filled("windows", windows.trail, arrays)
    state.grouped, state.clustered, state.history = header.grouped, header.clustered, header.history
    tests.evidence = _evidence("stream", tests.evidence, arrays)
    names, empty = header.groups, Evidence.of_group()
    tests.groups = Groups(
        tests.groups.known,
        names,
        [_evidence(f"group{i}", empty, arrays) for i in range(len(names))],
        [arrays[f"group{i}.cells"] for i in range(len(names))],
        header.group_rows,
    )
    tests.alarms = {alarm.test: alarm for alarm in header.alarms}
    if state.promise is not None:
        evidence = _evidence("promise", state.promise.evidence, arrays)
        state.promise = replace(state.promise, evidence=evidence, **vars(header.promise))
    state.clusters = _clusters(header, arrays, state.clusters)
    state.latest = _filled("latest", state.latest, arrays)
    state.hours = Hours(dict(zip(arrays["hours"].tolist(), arrays["hours.cells"], strict=True)))
    waiting = typed(WaitingFields, json.loads(arrays["waiting"].tobytes()), "what waits")
    known, outcomes, *numbers = waiting
    done = dict.fromkeys(arrays["done"].tolist())
    state.waiting = DelayedLabels(state.waiting.most, known, outcomes, done, *numbers)
    if header.scores is not None:
        state.scores = _scores(header.scores, arrays, state.scores)
    state.unlabelled, state.notes = header.unlabelled, header.notes


def _arrays(name: str, own: Any) -> Arrays:
    """Return the arrays among the fields of a dataclass, and of those within it."""
    found: Arrays = {}
    for each in fields(own):
        field, value = each.name, getattr(own, each.name)
        if isinstance(value, np.ndarray):
            found[f"{name}.{field}"] = value
        elif isinstance(value, Trail):
            found |= _arrays(f"{name}.{field}", value)
    return found


def _filled(name: str, empty: Any, arrays: Arrays) -> Any:
    """Return a dataclass with those arrays in place of its own."""
    found: dict[str, Any] = {}
    for each in fields(empty):
        field, value = each.name, getattr(empty, each.name)
        if isinstance(value, np.ndarray):
            found[field] = arrays[f"{name}.{field}"]
        elif isinstance(value, Trail):
            found[field] = _filled(f"{name}.{field}", value, arrays)
    return replace(empty, **found)


def _evidence_arrays(name: str, evidence: Evidence) -> Arrays:
    return _arrays(name, evidence) | {f"{name}.units": np.array([evidence.units])}


def _evidence(name: str, empty: Evidence, arrays: Arrays) -> Evidence:
    (units,) = arrays[f"{name}.units"].tolist()
    return replace(_filled(name, empty, arrays), units=units)


def _cluster_arrays(clusters: Clusters) -> Arrays:
    """Return the sums of unfinished clusters, and which were closed; names go into the header."""
    unfinished = clusters.unfinished.values()
    parts = [
        (i, key, part, [one.counts[key], part.most, part.rows])
        for i, one in enumerate(unfinished)
        for key, part in one.parts.items()
    ]
    whole = {
        "open.last": [one.last for one in unfinished],
        "open.cluster": [i for i, _, _, _ in parts],
        "open.part": [key for _, key, _, _ in parts],
        "closed": list(clusters.closed),
        "sizes.part": list(clusters.sizes),
    }
    sums = {
        "open.moments": (3, [one.moments for one in unfinished]),
        "open.payments": (COUNT, [part.payments for _, _, part, _ in parts]),
        "sizes": (3, list(clusters.sizes.values())),
    }
    arrays: Arrays = {name: np.array(own, dtype=np.int64) for name, own in whole.items()}
    arrays["open.rows"] = np.array([rows for *_, rows in parts], dtype=np.int64).reshape(-1, 3)
    arrays |= {name: np.array(own).reshape(-1, width) for name, (width, own) in sums.items()}
    return arrays | {"dependence": clusters.dependence.sums}


def _clusters(header: HeaderFields, arrays: Arrays, empty: Clusters) -> Clusters:
    pairs = zip(arrays["open.last"].tolist(), arrays["open.moments"], strict=True)
    found = [Unfinished(last, moments) for last, moments in pairs]
    columns = (arrays[f"open.{name}"].tolist() for name in ("cluster", "part", "rows"))
    for i, key, rows, sums in zip(*columns, arrays["open.payments"], strict=True):
        one, (count, most, some) = found[int(i)], rows
        one.counts[key], one.parts[key] = count, Part(most, some, sums)
    return replace(
        empty,
        unfinished=dict(zip(header.unfinished, found, strict=True)),
        closed=dict.fromkeys(arrays["closed"].tolist()),
        late=header.late,
        beyond=header.beyond,
        dependence=Dependence(header.clusters, arrays["dependence"]),
        sizes=dict(zip(arrays["sizes.part"].tolist(), arrays["sizes"], strict=True)),
    )


def _with_parts(arrays: Arrays, state: State, *, grouped: bool) -> Arrays:
    """Return the arrays of a state of 0.2.0 with the parts of its unfinished clusters.

    It has the sums of a cluster's payments by group, and how many rows keep and break a promise.
    They are bet on as they are then; rows that follow aren't.
    """
    old = {name: own for name, own in arrays.items() if name not in ("open.group", "open.promised")}
    cluster, rows, paid = (arrays[f"open.{name}"] for name in ("cluster", "rows", "payments"))
    found = [Unfinished(row) for row in arrays["open.last"].tolist()]
    for i, (one, moments) in enumerate(zip(found, arrays["open.moments"], strict=True)):
        one.moments, at = moments, cluster == i
        held: list[tuple[int, Any, FloatArray]] = [(ALL, rows[at].sum(), paid[at].sum(axis=0))]
        if grouped:
            held += zip(arrays["open.group"][at].tolist(), rows[at], paid[at], strict=True)
        if state.promise is not None and "open.promised" in arrays:
            kept, broken = arrays["open.promised"][i]
            some = kept * state.promise.pays[0] + broken * state.promise.pays[1]
            held += [(PROMISE, kept + broken, some)] if kept + broken else []
        for key, n, some in held:
            one.parts[key], one.counts[key] = Part(int(n), int(n), some), int(n)
    new = _cluster_arrays(
        replace(state.clusters, unfinished={str(i): one for i, one in enumerate(found)})
    )
    return new | old | {name: new[name] for name in new if name.startswith("open.")}


def _score_arrays(scores: Scores, form: Form) -> Arrays:
    names = ("kept", "labels", "row", "origin")
    arrays = {
        f"scores.{n}": part
        for n, part in zip(names, replace(scores, form=form).together(), strict=True)
    }
    waiting = np.array([*scores.waiting.values()], dtype=np.float32).reshape(-1, form.width)
    return arrays | {"scores.waiting": waiting}


def _scores(own: ScoresHeader, arrays: Arrays, empty: Scores) -> Scores:
    names = ("kept", "labels", "row", "origin")
    kept, labels, row, origin = (arrays[f"scores.{name}"] for name in names)
    waiting = dict(zip(own.waiting, arrays["scores.waiting"], strict=True))
    parts = [(kept, labels, row, origin)] if len(labels) else []
    form = Form(own.kind, own.binary, own.width, own.class_names)
    return replace(empty, form=form, waiting=waiting, parts=parts)


# --- the laws of a state


def _check_laws(state: State) -> None:
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
    require(clusters.dependence.sums[0] <= rows, "closed clusters have more rows than there are")
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
