"""Timing in turn: every contender runs once before any runs again, so all meet the same machine."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

# What reads the time. On a busy machine pin the run to one core and take `time.process_time`, the
# processor's time of all threads: whoever takes longer is interrupted more often, which makes wall
# time as unfair as it is noisy.
read: Callable[[], float] = time.perf_counter

# A contender that has used this much time is not asked again.
SECONDS_EACH = 5.0


@dataclass
class Timing:
    """How long the repeats of one contender took, what it returned first, or why it failed."""

    seconds: list[float] = field(default_factory=list)
    result: Any = None
    error: str = ""

    @property
    def median(self) -> float:
        """Median of the repeats in seconds; NaN if there is none."""
        return statistics.median(self.seconds) if self.seconds else float("nan")

    @property
    def spread(self) -> tuple[float, float]:
        """Quickest and slowest repeat in seconds."""
        if not self.seconds:
            return float("nan"), float("nan")
        return min(self.seconds), max(self.seconds)


def in_turn(
    contenders: Mapping[str, Callable[[], Any]], repeats: int, warm_up: bool = True
) -> dict[str, Timing]:
    """Time all contenders alternately.

    Args:
        contenders: what to call, by name.
        repeats: timed calls of each, fewer for one that has used up `SECONDS_EACH`.
        warm_up: whether to make one untimed call of each first, which loads what it imports late.
    """
    timings = {name: Timing() for name in contenders}
    for turn in range(-1 if warm_up else 0, repeats):
        for name, call in contenders.items():
            timing = timings[name]
            if timing.error or sum(timing.seconds) > SECONDS_EACH:
                continue
            gc.collect()
            began = read()
            try:
                result = call()
            except Exception as error:  # a peer that fails is a line of the table
                timing.error = f"{type(error).__name__}: {error}".splitlines()[0][:200]
                continue
            took = read() - began
            if turn < 0 and took < SECONDS_EACH:
                continue
            timing.seconds.append(took)
            if timing.result is None:
                timing.result = result
    return timings
