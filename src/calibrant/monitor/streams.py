"""Where rows come from: files of predictions, files of JSON lines that may grow, standard input.

What was counted of each file belongs to the monitor's state, written with it in one piece: so a
run that was killed goes on where its last state was, and no row is lost or counted twice. Standard
input can't be wound back; there, ids see to it that a row that is sent again counts once.
"""

from __future__ import annotations

import os
import re
import select
import shlex
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import IntArray
from calibrant.core.errors import (
    InputError,
    MisreadWarning,
    PredictionsError,
    heard_warnings,
    warn_caller,
)
from calibrant.files import ReadOptions, read_column, read_predictions
from calibrant.files.formats import open_rows
from calibrant.files.gate import check_regular
from calibrant.files.proposing import RIGHT, TRUE, command
from calibrant.files.reading import propose
from calibrant.files.schema import CORRECT, LABELS
from calibrant.monitor.delayed_labels import Outcome
from calibrant.monitor.first_rows import FirstRows
from calibrant.monitor.lines import count_lines
from calibrant.monitor.monitor import Monitor
from calibrant.monitor.rows import NOT_APPLIED, Reading, Scored, is_half, parse, score, scored
from calibrant.monitor.sequential_tests import Alarm
from calibrant.predictions.grids import spread_over
from calibrant.predictions.plausibility import ROWS
from calibrant.predictions.predictions import Predictions

LINE_FILES = (".jsonl", ".ndjson", ".json")
# Files of predictions are scored this many rows at a time, and lines read this many bytes.
ROWS_AT_ONCE, BYTES_AT_ONCE = 1 << 15, 1 << 20
# The beginning of a file, by which it is known again.
BEGINNING = 4096
POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Following:
    """How long to wait for rows that come as time goes by.

    Attributes:
        stop: says whether to end, as after a signal.
        idle: seconds without a new row after which to end; None for never.
        files: whether files of JSON lines are waited for too, not only standard input.
    """

    stop: Callable[[], bool] = lambda: False
    idle: float | None = None
    files: bool = False


def is_lines(stream: str) -> bool:
    """Return whether a stream holds JSON lines: standard input, and files that are called so."""
    return stream == "-" or Path(stream).suffix.lower() in LINE_FILES


def feed(
    monitor: Monitor,
    streams: Sequence[str],
    reading: Reading,
    *,
    read: ReadOptions | None = None,
    follow: Following | None = None,
) -> Iterator[list[Alarm]]:
    """Let a monitor count the rows of streams, one stream after the other.

    Whenever it yields, the state is one that may be saved.

    Args:
        monitor: what of each file was counted already stands in its `notes`.
        streams: paths; ``-`` for standard input.
        reading: how rows are read.
        read: which columns of files of predictions are read, and as what.
        follow: whether to wait for more rows, and how long.

    Yields:
        The alarms that rose, after some rows each, and nothing while it waits.

    Raises:
        InputError: a stream isn't usable, or isn't what was counted before.
    """
    follow = follow or Following()
    growing: list[LineFile] = []
    for stream in streams:
        if stream == "-":
            yield from _standard_input(monitor, reading, follow)
        elif is_lines(stream):
            file = LineFile(stream, monitor, reading)
            if not file.note["offset"] and not _knows_outcomes(stream, reading):
                check_no_labels(stream, reading)
            yield from file.new_rows(to_the_end=not follow.files)
            growing.append(file)
        else:
            yield from _predictions(monitor, stream, reading, read)
    last = time.monotonic()
    while follow.files and growing and not follow.stop():
        for file in growing:
            for alarms in file.new_rows(to_the_end=False):
                last = time.monotonic()
                yield alarms
        if follow.idle is not None and time.monotonic() - last >= follow.idle:
            break
        yield []
        time.sleep(POLL_SECONDS)
    for file in growing:
        file.first.judge(ended=True)


def _note(monitor: Monitor, path: str) -> dict[str, int]:
    """Return what the monitor knows of an input, by its full path."""
    inputs: Any = monitor.notes.setdefault("inputs", {})
    note: Any = None
    if isinstance(inputs, dict):
        note = cast(dict[str, Any], inputs).setdefault(os.path.realpath(path), {})
    known = ({"rows", "check"}, {"offset", "lines", "begins"}, set[str]())
    whole = isinstance(note, dict) and set(cast(Any, note)) in known
    if not whole or not all(type(number) is int for number in cast(Any, note).values()):
        raise InputError(f"{path}: the state's notes of what was counted of it are damaged")
    return cast(dict[str, int], note)


def _predictions(
    monitor: Monitor, path: str, reading: Reading, read: ReadOptions | None
) -> Iterator[list[Alarm]]:
    """Count the rows of a file of predictions that weren't counted yet."""
    rows = read_predictions(path, read, labelled=False)
    if rows.known_labels is None and rows.grid is not None and rows.grid.labels is not None:
        # Tokens without labels are all there are; with them, those that count.
        rows = read_predictions(path, read, labelled=True)
    if rows.known_labels is None:
        check_no_labels(path, reading)
    if reading.acted is not None:
        try:
            read_column(path, reading.acted)
        except PredictionsError as error:
            raise InputError(f"{path}: {NOT_APPLIED}") from error
    if rows.weights is not None:
        raise InputError(f"{path}: its rows carry weights, and a monitor counts each row once")
    by, ids = reading.by, None if reading.key == "id" else read_column(path, reading.key)
    groups = None if by in (None, "class") else _of_rows(rows, read_column(path, str(by)), str(by))
    clusters = _clusters(rows, path, reading)
    name = reading.time
    times = None if name is None else _of_rows(rows, read_column(path, name), name)
    note = _note(monitor, path)
    counted, seen = note.get("rows", 0), 0
    if counted > rows.n:
        raise InputError(f"{path}: has {rows.n} rows, but {counted} of it were counted before")
    for start in _starts(counted, rows.n):
        stop = min(start + ROWS_AT_ONCE, rows.n) if start >= counted else counted
        stop = min(stop, start + ROWS_AT_ONCE)
        part = slice(start, stop)
        some = rows.take(np.arange(start, stop))
        said, predicted = score(some, reading.of)
        truth = some.known_labels
        of_rows = np.stack([said, np.full(len(said), -1) if truth is None else truth], axis=1)
        seen = zlib.crc32(of_rows.tobytes(), seen)
        if stop <= counted:
            if stop == counted and seen != note["check"]:
                raise InputError(f"{path}: doesn't begin with the {counted} rows counted before")
            continue
        names = predicted if by == "class" else None if groups is None else groups[part]
        own = None if names is None else [str(name) for name in names.tolist()]
        when = None if times is None else times[part].tolist()
        within = None if clusters is None else clusters[part].tolist()
        if ids is None:
            right = None if truth is None else predicted == truth
            alarms = monitor.update(said, right, own, within, when, some)
        else:
            known = (
                [None] * len(said) if truth is None else [Outcome(y, True) for y in truth.tolist()]
            )
            keys, scores = ids[part].tolist(), [(range(len(said)), some)]
            found = Scored(said, predicted, known, keys, own, within, when, scores)
            alarms = found.feed(monitor)
        note |= {"rows": stop, "check": seen}
        yield list(alarms)


def _knows_outcomes(path: str, reading: Reading) -> bool:
    """Return whether one of the first lines has an outcome; what isn't read is refused later."""
    with open(path, "rb") as file:
        data = whole_lines(file, to_the_end=True)
    known = {*LABELS, CORRECT, reading.read.labels, reading.read.correct}
    try:
        lines = data.splitlines()
        rows = parse(lines, range(len(lines)), path)
    except PredictionsError:
        return True
    return any(row.get(str(name)) is not None for row in rows for name in known)


def check_no_labels(path: str, reading: Reading) -> None:
    """Refuse a file of rows without outcome, of which a field has the name and values of labels.

    A field that might hold them but isn't called so is only warned of: rows may come without.

    Args:
        path: the file.
        reading: how its rows are read; a field that this names is no label.

    Raises:
        PredictionsError: it has labels that nobody named, of which none would be counted.
    """
    if reading.outcomes_apart:
        return
    read = reading.read.but(outcomes=(), labelled=True)
    others = {reading.by, reading.time, reading.key, reading.cluster, read.labels, read.correct}
    try:
        with open_rows(path, read) as file:
            names = list(file.names())
    # Lines may be of several forms, or none; whoever counts them says what is wrong.
    except PredictionsError:
        return
    ways = [way for name in names if name not in others for way in _called_outcomes(name, read)]
    lines = [command(path, way) for way in ways if _reads(path, way)]
    found = None if len(lines) == 1 else propose(path, read)
    line = lines[0] if len(lines) == 1 else None if found is None else found.line
    words = [] if line is None else shlex.split(line)
    told = [words[i : i + 2] for i, word in enumerate(words) if word in ("--labels", "--correct")]
    if line is None or not told or told[0][1] in others:
        return
    option, name = told[0]
    sentence = (
        f"{path}: no row has an outcome, so that none would be counted, but '{name}' may hold "
        f"labels; found {', '.join(map(repr, names))}"
    )
    if [*_called_outcomes(name, read)]:
        raise PredictionsError(sentence, f"say {option} {name}", line)
    warn_caller(MisreadWarning(f"{sentence}: if so, say {option} {name}"))


def _called_outcomes(name: str, read: ReadOptions) -> Iterator[ReadOptions]:
    """Yield the ways to read a field as outcomes that its name, or a word of it, suggests."""
    parts = {name.lower(), *re.split(r"[^a-z]+", name.lower())}
    if any(TRUE.fullmatch(part) for part in parts):
        yield read.but(labels=name)
    if any(RIGHT.fullmatch(part) for part in parts):
        yield read.but(correct=name)


def _reads(path: str, read: ReadOptions) -> bool:
    try:
        with heard_warnings():
            return read_predictions(path, read).known_labels is not None
    except PredictionsError:
        return False


def _of_rows(rows: Predictions, column: NDArray[Any], name: str) -> NDArray[Any]:
    """Return the (M,) entries of a column for rows, several of which may come from one."""
    if rows.grid is None:
        return column
    places = spread_over(np.arange(len(column)), rows.grid, name, rows.source)
    return column[places]


def _clusters(rows: Predictions, path: str, reading: Reading) -> NDArray[Any] | None:
    """Return the names of the clusters of rows; those that come from one row are a cluster."""
    if reading.cluster is not None:
        column = read_column(path, reading.cluster)
        return _of_rows(rows, np.array([str(name) for name in column.tolist()]), reading.cluster)
    if rows.grid is None:
        return None
    places = spread_over(np.arange(rows.grid.shape[0]), rows.grid, "rows", rows.source)
    # Another file has a row of this number too.
    source = zlib.crc32(os.path.realpath(path).encode("utf-8", "surrogateescape"))
    return np.array([f"row {place} of {source:08x}" for place in places.tolist()])


def _starts(counted: int, n: int) -> Iterator[int]:
    """Yield where chunks begin, so that one of them begins where the last run ended."""
    yield from range(0, counted, ROWS_AT_ONCE)
    yield from range(counted, n, ROWS_AT_ONCE)


class LineFile:
    """A file of JSON lines, of which the monitor's notes say how much was counted."""

    def __init__(self, path: str, monitor: Monitor, reading: Reading) -> None:
        """Open the file where the last run ended.

        Raises:
            InputError: it isn't the file of which so much was counted.
        """
        check_regular(Path(path), path)
        self.path, self.monitor, self.reading = path, monitor, reading
        self.note = _note(monitor, path)
        if not self.note:
            self.note |= {"offset": 0, "lines": 0, "begins": 0}
        with open(path, "rb") as file:
            self._check(file)
        before = self.note["offset"]
        self.first = FirstRows(path, reading.read, counted=before > 0)
        if before and self.note["lines"] < ROWS:
            # Few were there then, so that they are looked at again.
            with open(path, "rb") as file, suppress(PredictionsError):
                lines = file.read(min(before, BYTES_AT_ONCE)).splitlines()
                lines = [line for line in lines if line.strip()]
                scored(
                    parse(lines, range(len(lines)), path),
                    reading,
                    range(len(lines)),
                    path,
                    self.first,
                )

    def _check(self, file: BinaryIO) -> None:
        """Raise `InputError` unless an open file is the one that was counted before."""
        size, offset = os.fstat(file.fileno()).st_size, self.note["offset"]
        if size < offset or _beginning(file, offset) != self.note["begins"]:
            raise InputError(
                f"{self.path}: is shorter than, or doesn't begin as, the file of which "
                f"{self.note['lines']} lines were counted; give a new file a name of its own"
            )

    def new_rows(self, *, to_the_end: bool) -> Iterator[list[Alarm]]:
        """Count the lines that have come, and yield the alarms after each block of them.

        Args:
            to_the_end: whether the last line counts though nothing ends it. If the file grows, it
                may be the first half of a line.
        """
        note = self.note
        with open(self.path, "rb") as file:
            self._check(file)
            while True:
                file.seek(note["offset"])
                data = whole_lines(file, to_the_end=to_the_end)
                unfinished = self.reading.waits and not data.endswith(b"\n")
                if not data or (unfinished and is_half(data)):
                    return
                number = note["lines"] + 1
                alarms = count_lines(self.monitor, data, self.reading, number, self.first)
                note["lines"] += len(data.splitlines())
                note["offset"] += len(data)
                note["begins"] = _beginning(file, note["offset"])
                yield alarms


def _beginning(file: BinaryIO, offset: int) -> int:
    """Return a hash of the first bytes of a file, of which so many were counted."""
    file.seek(0)
    return zlib.crc32(file.read(min(offset, BEGINNING)))


def whole_lines(file: Any, *, to_the_end: bool) -> bytes:
    """Return the next whole lines of a file, about a megabyte of them; nothing at its end."""
    data: bytes = file.read(BYTES_AT_ONCE)
    while data and b"\n" not in data:  # a line as long as that
        more: bytes = file.read(BYTES_AT_ONCE)
        if not more:
            return data if to_the_end else b""
        data += more
    end = data.rfind(b"\n") + 1
    return data[:end]


def _standard_input(monitor: Monitor, reading: Reading, follow: Following) -> Iterator[list[Alarm]]:
    """Count the lines of standard input as they come, to its end or as long as it is wanted."""
    descriptor, rest, lines = 0, b"", 0
    first = FirstRows("-", reading.read)
    last = time.monotonic()
    while not follow.stop():
        # Windows can't tell whether a pipe holds anything.
        if os.name == "posix" and not select.select([descriptor], [], [], POLL_SECONDS)[0]:
            if follow.idle is not None and time.monotonic() - last >= follow.idle:
                break
            yield []
            continue
        data = os.read(descriptor, BYTES_AT_ONCE)
        last = time.monotonic()
        rest += data
        end = rest.rfind(b"\n") + 1 if data else len(rest)
        if end:
            alarms = count_lines(monitor, rest[:end], reading, lines + 1, first)
            lines, rest = lines + len(rest[:end].splitlines()), rest[end:]
            yield alarms
        if not data:
            break
    first.judge(ended=True)


def feed_outcomes(
    monitor: Monitor, path: str, key: str, read: ReadOptions
) -> Iterator[list[Alarm]]:
    """Let a monitor learn the outcomes in a file, by id.

    Args:
        monitor: has the predictions, or will.
        path: JSON lines, or a table with the columns `key` and ``label`` or ``correct``.
        key: where the ids stand.
        read: names of the outcomes, where they aren't the usual ones, and from where labels count.

    Yields:
        The alarms that rose, after some rows each.

    Raises:
        InputError: the file isn't usable.
    """
    if is_lines(path):
        file = LineFile(path, monitor, Reading(key=key, read=read))
        yield from file.new_rows(to_the_end=True)
        file.first.judge(ended=True)
        return
    ids, first = read_column(path, key), FirstRows(path, read)
    is_label, values = _outcome_column(path, key, read)
    for start in range(0, len(ids), ROWS_AT_ONCE):
        part = slice(start, start + ROWS_AT_ONCE)
        keys = ids[part].tolist()
        if not first.enough:
            said = [monitor.said_of(key) for key in keys]
            at = [i for i, one in enumerate(said) if one is not None]
            pairs = np.array([one for one in said if one is not None]).reshape(-1, 2)
            known = [Outcome(y, is_label) for y in values[part][at].tolist()]
            first.top(pairs[:, 0], pairs[:, 1].astype(np.int64), known)
            first.judge(ended=True)
        first.counted = True
        labels, correct = (values[part], None) if is_label else (None, values[part])
        yield list(monitor.learn(keys, labels, correct=correct))


def _outcome_column(path: str, key: str, read: ReadOptions) -> tuple[bool, IntArray]:
    """Return whether a table's column of outcomes holds labels, and its whole numbers from 0."""
    told = [(read.labels, True), (read.correct, False)]
    usual = [*((name, True) for name in LABELS), (CORRECT, False)]
    named = [(str(name), is_label) for name, is_label in told if name is not None]
    for name, is_label in named or usual:
        try:
            column: Any = read_column(path, name)
        except PredictionsError:
            continue
        words = {"true": 1, "false": 0}
        try:
            if column.dtype.kind in "US":
                column = np.array([words.get(str(w).lower(), w) for w in column]).astype(float)
            values = column.astype(np.int64)
        except ValueError:
            values = None
        first = (read.labels_from or 0) if is_label else 0
        if values is None or (values != column).any() or (values < first).any():
            raise PredictionsError(f"{path}: column '{name}' must hold whole numbers from {first}")
        if not is_label and (values > 1).any():
            raise PredictionsError(f"{path}: column '{name}' must hold 0 and 1")
        return is_label, values - first
    wanted = " or ".join(f"'{name}'" for name, _ in named) or "'label' or 'correct'"
    raise PredictionsError(f"{path}: there is no column {wanted} beside '{key}'")
