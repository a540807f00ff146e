"""A monitor that works for hours: its state is written again and again, alarms are announced.

Alarms go out as a line of JSON, to a command, and as Prometheus' text format.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from calibrant.core.errors import CalibrantError, InputError
from calibrant.core.outputs import replacing
from calibrant.monitor.monitor import Monitor
from calibrant.monitor.sequential_tests import Alarm

HOOK_SECONDS = 60.0
PAGE_SECONDS = 30.0
PREFIX = "calibrant_monitor"


@dataclass(frozen=True)
class Refitted:
    """What became of a refit.

    Attributes:
        path: its file; None where none was made. It takes what the stream holds: a stream of
            confidences gives a map of confidences, not of the probabilities of all classes.
        said: what it is worth on rows that it hasn't seen, or why there is none.
    """

    path: Path | None
    said: str

    def __str__(self) -> str:
        if self.path is None:
            return self.said
        apply = f"calibrant apply {self.path} FILE --out OUT"
        return f"{self.said} The refit is in {self.path}; for rows with the same fields: {apply}"


def alarm_line(alarm: Alarm, monitor: Monitor, refit: Refitted | None = None) -> str:
    """Return an alarm as one line of JSON, with what became of the refit if there was one."""
    found = monitor.findings()
    diagnosis = found.diagnosis
    said = None if diagnosis is None else diagnosis.what_a_refit_gives()
    document: dict[str, Any] = {"event": "calibrant_monitor_alarm", **alarm.as_dict()}
    document |= {
        "rows": monitor.rows,
        "tolerance": monitor.tolerance,
        "which_way": None if diagnosis is None else diagnosis.which_way(),
        "refit": said if refit is None else refit.said,
        "refit_file": None if refit is None or refit.path is None else str(refit.path),
        "condition": found.condition,
        "doubt": found.doubt or None,
        "left_out": str(monitor.unreadable) if monitor.unreadable.lines else None,
    }
    return json.dumps(document)


def run_hook(command: str, line: str) -> None:
    """Run a command of the shell, with an alarm's line of JSON on its standard input.

    Raises:
        InputError: it failed, or took longer than a minute.
    """
    try:
        done = subprocess.run(
            command, shell=True, input=line + "\n", text=True, timeout=HOOK_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise InputError(
            f"--on-alarm: '{command}' was still running after {HOOK_SECONDS:g} s, and was ended"
        ) from error
    if done.returncode:
        raise InputError(f"--on-alarm: '{command}' ended with code {done.returncode}")


def metrics_text(monitor: Monitor) -> str:
    """Return where the monitor stands in Prometheus' text format, for a textfile collector."""
    return "\n".join(_metrics(monitor)) + "\n"


OF_TESTS = {
    "alarm": "Whether the alarm has risen (1) or not (0).",
    "alarm_row": "0-based row at which the alarm rose.",
    "since_row": "0-based row since which confidences have probably been wrong.",
    "evidence_nats": "Log of the evidence that confidences are off.",
    "evidence_threshold_nats": "Log of the evidence at which the alarm rises.",
}
OF_WINDOWS = {
    "confidence": "Mean confidence",
    "accuracy": "Share of right predictions",
    "gap": "Confidence minus accuracy",
    "gap_low": "Lower end of the 95 % interval of confidence minus accuracy",
    "gap_high": "Upper end of the 95 % interval of confidence minus accuracy",
    "ece": "Expected calibration error",
    "ece_low": "Lower end of the 95 % interval of the ECE",
    "ece_high": "Upper end of the 95 % interval of the ECE",
    "floor": "ECE of calibrated confidences, on average",
    "floor_95": "What the ECE of calibrated confidences stays below in 95 % of cases",
}
OF_GROUPS = {
    "group_gap_ratio": "Confidence minus accuracy by group.",
    "group_off": "Whether a group is wrong by its own evidence, alpha for all groups together.",
}


def _metrics(monitor: Monitor) -> Iterator[str]:
    """Yield the lines. A service asks for them while it serves, so nothing slow is computed."""
    alarms, unlabelled, left = monitor.alarms, monitor.unlabelled, monitor.unreadable
    yield from _metric("rows_total", "Rows with an outcome.", {"": monitor.rows})
    of_tests = (
        {test: int(test in alarms) for test in monitor.bounds},
        {test: alarm.row for test, alarm in alarms.items()},
        {test: alarm.since.row for test, alarm in alarms.items()},
        monitor.evidence,
        monitor.bounds,
    )
    for (name, what), values in zip(OF_TESTS.items(), of_tests, strict=True):
        yield from _metric(name, what, {f'{{test="{test}"}}': n for test, n in values.items()})
    latest = monitor.latest_window()
    if latest is not None:
        yield from _metric("window_rows", "Rows of the latest window.", {"": latest.rows})
        for name, what in OF_WINDOWS.items():
            value = {"": getattr(latest, name)}
            yield from _metric(f"{name}_ratio", f"{what}, latest window.", value)
    yield from _metric("unlabelled_rows", "Rows without an outcome.", {"": unlabelled.rows})
    names = ("expected_accuracy", "expected_accuracy_low", "expected_accuracy_high")
    for name, value in zip(names, unlabelled.expected_accuracy or (), strict=False):
        what = "Expected accuracy of rows without outcome, if the confidences are calibrated."
        yield from _metric(f"{name}_ratio", what, {"": value})
    if left.read:
        what = "Lines left out because they hold no usable row."
        yield from _metric("lines_total", "Lines that were read.", {"": left.read})
        yield from _metric("lines_left_out_total", what, {"": left.lines})
    groups = [(_group(group.group), group) for group in monitor.groups()]
    of_groups = {name: found.gap for name, found in groups}, {n: int(g.off) for n, g in groups}
    for (name, what), values in zip(OF_GROUPS.items(), of_groups, strict=True):
        yield from _metric(name, what, values)


def _group(name: str) -> str:
    escaped = name.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return f'{{group="{escaped}"}}'


def _metric(name: str, what: str, values: Mapping[str, float]) -> Iterator[str]:
    if values:
        kind = "counter" if name.endswith("_total") else "gauge"
        yield f"# HELP {PREFIX}_{name} {what}"
        yield f"# TYPE {PREFIX}_{name} {kind}"
        for labels, value in values.items():
            yield f"{PREFIX}_{name}{labels} {value!r}"


@contextmanager
def only_one(state: Path | None) -> Generator[None]:
    """Within the body no other monitor works on the same state, where the file system has locks.

    Raises:
        InputError: another one does.
    """
    if state is None:
        yield
        return
    if not state.name:
        raise InputError(f"'{state}' is no name of a file for the state")
    lock = state.with_name(f".{state.name}.lock")
    handle = _lock(state, lock)
    try:
        yield
    finally:
        if handle is not None:
            # While it is still ours: whoever opened it meanwhile sees that it is gone.
            with suppress(PermissionError):  # Windows removes no open file
                lock.unlink(missing_ok=True)
            os.close(handle)


def _lock(state: Path, lock: Path) -> int | None:
    while True:
        try:
            handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError:  # to write the state will fail as well, and say why
            return None
        try:
            _take(handle)
            if os.path.samestat(os.fstat(handle), os.stat(lock)):
                return handle
            os.close(handle)
        except FileNotFoundError:
            os.close(handle)
        except BlockingIOError as error:
            os.close(handle)
            raise InputError(
                f"{state}: another monitor is at work on this state; end it first, or give this "
                "one a state of its own"
            ) from error
        except OSError:  # a file system without locks
            os.close(handle)
            return None


def _take(handle: int) -> None:
    """Lock an open file, on POSIX or on Windows.

    Raises:
        BlockingIOError: another process has the lock.
        OSError: the file system has none.
    """
    try:
        fcntl = import_module("fcntl")
    except ImportError:
        msvcrt = import_module("msvcrt")
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            raise BlockingIOError from error
    else:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


class Checkpoints:
    """Keep the state and announce alarms while rows are counted."""

    def __init__(
        self,
        watched: Monitor,
        state: Path | None,
        metrics_out: Path | None = None,
        on_alarm: str | None = None,
        seconds: float = 1.0,
        page: Path | None = None,
        method: str = "auto",
    ) -> None:
        """Remember where everything goes; the arguments are those of the command line.

        `page` is written every `PAGE_SECONDS` at most, and at each alarm; `method` is the refit's.
        """
        self.method, self._refit = method, (-1, Refitted(None, ""))
        self.page, self.shown = page, -math.inf
        self.watched, self.state, self.metrics_out = watched, state, metrics_out
        self.on_alarm, self.seconds = on_alarm, seconds
        self.saved, self.known = time.monotonic(), self._known()

    def _known(self) -> str:
        """Return what changes with every row that is counted, or that waits."""
        rows = self.watched.rows, self.watched.unlabelled.rows
        return json.dumps([rows, self.watched.notes])

    def keep(self, steps: Iterable[list[Alarm]]) -> None:
        """Go through the steps of a feed."""
        self.announce()
        for alarms in steps:
            if alarms:
                self.announce()
                self.shown = -math.inf
            elif time.monotonic() - self.saved >= self.seconds and self._known() != self.known:
                self.save()

    def announce(self) -> None:
        """Announce alarms that weren't yet: once each, or again if the process died meanwhile."""
        announced: list[str] = self.watched.notes.setdefault("announced", [])
        for test, alarm in self.watched.alarms.items():
            if test in announced:
                continue
            self.save()
            line = alarm_line(alarm, self.watched, self.refit())
            _say(line)
            if self.on_alarm is not None:
                try:
                    run_hook(self.on_alarm, line)
                except InputError as error:  # the monitor goes on
                    _say(f"warning: {error}")
            announced.append(test)
            self.save()

    def refit(self) -> Refitted | None:
        """Write the refit beside the state, ready for `apply`; None without alarm or state."""
        if self.state is None or not self.watched.alarms:
            return None
        if self._refit[0] != self.watched.rows:  # an alarm may follow another at once
            self._refit = self.watched.rows, self._refitted(self.state)
        return self._refit[1]

    def _refitted(self, state: Path) -> Refitted:
        path = state.with_name(f"{state.name}.refit.safetensors")
        try:
            fitted = self.watched.refit(self.method)
        except CalibrantError as error:  # a method that such rows don't fit
            return Refitted(None, f"No refit was made: {error}.")
        if fitted is None:
            return Refitted(None, "No refit was made: rows are too few, or too much alike.")
        fitted.save(path)
        worth = fitted.fit_report_.worth or {}
        rows = {"toplabel": "confidences", "binary": f"{fitted.kind_} of class 1"}
        kind = {"probs": "probabilities"}.get(fitted.kind_, fitted.kind_)
        what = rows.get(fitted.form_, f"{kind} of {fitted.n_classes_} classes")
        said = f"Refit on {worth['rows']} rows with {what}, by {self.method}. {worth['finding']}"
        return Refitted(path, said)

    def save(self) -> None:
        """Write the state and the metrics."""
        if self.state is not None:
            self.watched.save(self.state)
        if self.metrics_out is not None:
            with replacing(self.metrics_out) as temporary:
                temporary.write_text(
                    metrics_text(self.watched), encoding="utf-8", errors="backslashreplace"
                )
        if self.page is not None and time.monotonic() - self.shown >= PAGE_SECONDS:
            self.watched.to_html(self.page, refresh=PAGE_SECONDS)
            self.shown = time.monotonic()
        self.saved, self.known = time.monotonic(), self._known()


def _say(line: str) -> None:
    with suppress(OSError):
        print(line, file=sys.stderr, flush=True)
