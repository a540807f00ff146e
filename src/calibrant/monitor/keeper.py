"""A monitor that works for hours: its state is written again and again, alarms are announced."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from calibrant.core.errors import InputError
from calibrant.files.atomic import replacing
from calibrant.monitor.announcing import alarm_line, metrics_text, run_hook
from calibrant.monitor.monitor import Monitor
from calibrant.monitor.two_tests import Alarm


class Keeper:
    """Keep the state and announce alarms while rows are counted."""

    def __init__(
        self,
        watched: Monitor,
        state: Path | None,
        metrics_out: Path | None = None,
        on_alarm: str | None = None,
        seconds: float = 1.0,
    ) -> None:
        """Remember where everything goes; the arguments are those of the command line."""
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
            elif time.monotonic() - self.saved >= self.seconds and self._known() != self.known:
                self.save()

    def announce(self) -> None:
        """Announce alarms that weren't yet: once each, or again if the process died meanwhile."""
        announced: list[str] = self.watched.notes.setdefault("announced", [])
        for test, alarm in self.watched.alarms.items():
            if test in announced:
                continue
            self.save()
            line = alarm_line(alarm, self.watched)
            _say(line)
            if self.on_alarm is not None:
                try:
                    run_hook(self.on_alarm, line)
                except InputError as error:  # the monitor goes on
                    _say(f"warning: {error}")
            announced.append(test)
            self.save()

    def save(self) -> None:
        """Write the state and the metrics."""
        if self.state is not None:
            self.watched.save(self.state)
        if self.metrics_out is not None:
            with replacing(self.metrics_out) as temporary:
                temporary.write_text(
                    metrics_text(self.watched), encoding="utf-8", errors="backslashreplace"
                )
        self.saved, self.known = time.monotonic(), self._known()


def _say(line: str) -> None:
    with suppress(OSError):
        print(line, file=sys.stderr, flush=True)
