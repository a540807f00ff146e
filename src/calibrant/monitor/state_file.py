"""The file in which a monitor's state is kept: safetensors with a header of JSON, written whole.

Whatever is read from it is checked, since a state decides whether an alarm rises. Arrays have the
type and the width of those that a new monitor writes; what was read of all is the same when it is
written again; and the laws of a state hold (`calibrant.monitor.state_laws`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from os import fspath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import FloatArray
from calibrant.core.errors import CalibrantError, CalibratorFileError
from calibrant.core.outputs import StrPath
from calibrant.core.typed import OtherTypeError, typed
from calibrant.files.parameters import ParameterFormat
from calibrant.monitor.clusters import (
    ALL,
    PROMISE,
    Clusters,
    Dependence,
    Part,
    Unfinished,
)
from calibrant.monitor.delayed_labels import DelayedLabels, Outcome, Said, Unlabelled
from calibrant.monitor.latest import NUMBERS, Form, Scores
from calibrant.monitor.sequential_tests import (
    ALTERNATIVES,
    COUNT,
    Alarm,
    Evidence,
    Groups,
)
from calibrant.monitor.state import History, State
from calibrant.monitor.state_laws import Damaged, check_laws, require
from calibrant.monitor.windows import WIDTH, Hours, Trail

Arrays = dict[str, NDArray[Any]]
Header = dict[str, Any]

FORMAT = ParameterFormat("calibrant-monitor", 2, "the state of a monitor", "numpy")
# Arrays of one length, by the last part of their names; others have as many entries as they need.
_WHOLE = {"units", "products", "masses", "cells", "dependence"}


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
        raise CalibratorFileError(
            f"{fspath(path)}: was written by a version with other tests; begin a new state"
        )
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
    check_laws(state)


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
