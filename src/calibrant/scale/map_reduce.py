"""Shards through an engine: gathered as they are done, with progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from calibrant.core.errors import InputError, PredictionsError
from calibrant.core.progress import Progress, Watcher
from calibrant.core.text import counted
from calibrant.scale.engines import Engine
from calibrant.scale.shards import Shard

Result = TypeVar("Result")


class Work(Protocol):
    """What an engine is given: a shard, or a part of one."""

    @property
    def where(self) -> str:
        """Its path or URL."""
        ...

    @property
    def rows(self) -> int:
        """How many rows it holds."""
        ...


SomeWork = TypeVar("SomeWork", bound=Work)
Concerned = TypeVar("Concerned")


@dataclass(frozen=True, eq=False)
class Task(Generic[Concerned]):
    """A shard with what a piece of work is about: which of its rows, or where to write them.

    Attributes:
        shard: the shard.
        about: that.
    """

    shard: Shard
    about: Concerned

    @property
    def where(self) -> str:
        """Where the shard lies."""
        return self.shard.where

    @property
    def rows(self) -> int:
        """How many rows it holds."""
        return self.shard.rows


class Broken(NamedTuple):
    """What comes of a shard that can't be read."""

    reason: str


def guarded(work: Any, function: Callable[[Any], Result]) -> Result | Broken:
    """Return what `function` makes of a shard, or why it can't be read."""
    try:
        return function(work)
    except PredictionsError as error:
        return Broken(str(error))


def left_out(broken: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the shards that were left out as JSON takes them."""
    return [{"shard": name, "reason": broken[name]} for name in sorted(broken)]


def left_out_text(broken: Mapping[str, str]) -> str:
    """Return what is printed of them below a result; nothing if there are none."""
    if not broken:
        return ""
    lines = [f"left out: {broken[name]}" for name in sorted(broken)]
    return "\n\n" + "\n".join([f"{counted(len(lines), 'file')} couldn't be read:", *lines])


def through(
    engine: Engine,
    function: Callable[[SomeWork], Result],
    shards: Sequence[SomeWork],
    take: Callable[[int, Result], None],
    watch: Watcher | None = None,
    broken: dict[str, str] | None = None,
) -> None:
    """Call `function` with every shard, and `take` with the index and result of each.

    Shards that can't be read go into `broken`, with the reason; None to end with them.
    """
    began, rows, total = time.monotonic(), 0, sum(shard.rows for shard in shards)
    if watch is not None:
        watch(Progress(0, len(shards), 0, total, 0.0))
    called: Any = function if broken is None else partial(guarded, function=function)
    for done, (i, result) in enumerate(engine.run(called, shards), 1):
        if isinstance(result, Broken):
            assert broken is not None
            broken[shards[i].where] = result.reason
        else:
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
    broken: dict[str, str] | None = None,
) -> Any:
    """Return what `function` makes of all shards, joined two by two as they are done.

    Shards in `broken` are left out, and those that turn out so are added; None to end with them.

    Raises:
        InputError: none could be read.
    """
    found: list[Any] = []

    def take(_: int, result: Result) -> None:
        found[:] = [join(found[0], result) if found else result]

    sound = [shard for shard in shards if shard.where not in (broken or {})]
    through(engine, function, sound, take, watch, broken)
    if not found:
        reasons = sorted((broken or {}).values())
        raise InputError(f"no file could be read: {reasons[0] if reasons else 'there are none'}")
    return found[0]
