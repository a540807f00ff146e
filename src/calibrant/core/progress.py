"""How far work has come, told to whoever watches it."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Progress:
    """How far the work has come.

    Attributes:
        done: how many steps: files, groups or methods; rows in memory are one. of: how many there
            are.
        rows: how many rows these hold; of_rows: how many there are in all; 0 where steps aren't
            parts of the rows.
        seconds: since the work began.
        step: what begins now, where steps have names.
    """

    done: int
    of: int
    rows: int
    of_rows: int
    seconds: float
    step: str = ""

    @property
    def rows_a_second(self) -> float:
        """Rows done in a second."""
        return self.rows / self.seconds if self.seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float:
        """What the rest takes at that pace."""
        left = self.of_rows - self.rows
        return left / self.rows_a_second if self.rows else float("inf")

    def __str__(self) -> str:
        if self.step or not self.rows:
            return self.step or "on the first files"
        return f"{self.rows_a_second:,.0f} rows a second, {_duration(self.seconds_left)} left"


def _duration(seconds: float) -> str:
    if seconds == float("inf"):
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (
        f"{hours} h {minutes} min"
        if hours
        else f"{minutes} min {rest} s"
        if minutes
        else f"{rest} s"
    )


Watcher = Callable[[Progress], None]


@contextmanager
def watched(watch: Watcher | None, rows: int) -> Generator[None]:
    """Report work on rows in memory, which is one step."""
    began = time.monotonic()
    if watch is not None:
        watch(Progress(0, 1, 0, rows, 0.0))
    yield
    if watch is not None:
        watch(Progress(1, 1, rows, rows, time.monotonic() - began))


def steps(watch: Watcher | None, of: int) -> Callable[[str], None]:
    """Return a function to call with the name of each of so many steps as it begins."""
    began, done = time.monotonic(), -1

    def begin(step: str) -> None:
        nonlocal done
        done += 1
        if watch is not None:
            watch(Progress(done, of, 0, 0, time.monotonic() - began, step))

    return begin


def part_of(watch: Watcher | None, where: str, part: int, parts: int) -> Watcher:
    """Return who watches one of several parts of the work, each of as many steps.

    Args:
        watch: who watches the whole.
        where: name of the part.
        part: its number, from 0; parts: how many there are.
    """

    def step(one: Progress) -> None:
        if watch is not None:
            done, of = part * one.of + one.done, parts * one.of
            watch(replace(one, done=done, of=of, step=f"{where}: {one.step}"))

    return step
