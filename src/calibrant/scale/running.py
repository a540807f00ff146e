"""Shards through an engine: gathered as they are done, with progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from calibrant.core.errors import InputError
from calibrant.scale.engines import Engine
from calibrant.scale.shards import Shard, Shards
from calibrant.scale.sums import Plan, ShardSums, merge, summarise_shard

Result = TypeVar("Result")


@dataclass(frozen=True)
class Progress:
    """How far the work has come.

    Attributes:
        shards: how many are done; of: how many there are.
        rows: how many rows these hold; of_rows: how many there are in all.
        seconds: since the work began.
    """

    shards: int
    of: int
    rows: int
    of_rows: int
    seconds: float

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


def through(
    engine: Engine,
    function: Callable[[Shard], Result],
    shards: Sequence[Shard],
    take: Callable[[int, Result], None],
    watch: Watcher | None = None,
) -> None:
    """Call `function` with every shard, and `take` with the index and result of each."""
    began, rows, total = time.monotonic(), 0, sum(shard.rows for shard in shards)
    if watch is not None:
        watch(Progress(0, len(shards), 0, total, 0.0))
    for done, (i, result) in enumerate(engine.run(function, shards), 1):
        take(i, result)
        rows += shards[i].rows
        if watch is not None:
            watch(Progress(done, len(shards), rows, total, time.monotonic() - began))


def gathered(
    engine: Engine,
    function: Callable[[Shard], Result],
    shards: Sequence[Shard],
    join: Callable[[Any, Any], Any],
    watch: Watcher | None = None,
) -> Any:
    """Return what `function` makes of all shards, joined two by two as they are done."""
    found: list[Any] = []

    def take(_: int, result: Result) -> None:
        found[:] = [join(found[0], result) if found else result]

    through(engine, function, shards, take, watch)
    return found[0]


def summed(
    shards: Shards,
    plan: Plan,
    engine: Engine,
    *,
    skip_broken: bool = False,
    watch: Watcher | None = None,
) -> ShardSums:
    """Return the sums of all shards.

    Raises:
        InputError: no shard could be read.
    """
    function = partial(summarise_shard, plan=plan, skip_broken=skip_broken)
    sums: ShardSums = gathered(engine, function, shards.shards, merge, watch)
    if sums.rows is None:
        raise InputError(f"{shards.source}: no file could be read: {min(sums.broken.values())}")
    return replace(sums, broken=shards.broken | sums.broken)
