"""What stays of a stream when its tests begin anew: alarms that were dealt with, and when."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from calibrant.monitor.sequential_tests import Alarm

# Alarms that are remembered, the latest.
MOST = 100


@dataclass(frozen=True)
class PastAlarm:
    """An alarm that was dealt with.

    Attributes:
        alarm: as it rose; until: number of the row at which the tests began anew.
    """

    alarm: Alarm
    until: int

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as JSON takes them."""
        return asdict(self)


@dataclass
class History:
    """When the tests began, and the alarms before that.

    Attributes:
        begun: number of the row with which the present tests began.
        before: how many rows were counted before that, of all replicas together.
        alarms: those before it, the oldest first.
    """

    begun: int = 0
    before: int = 0
    alarms: list[PastAlarm] = field(default_factory=list[PastAlarm])

    def begin(self, row: int, alarms: Iterable[Alarm]) -> None:
        """Note that the tests begin anew at a row, after these alarms."""
        self.begun = self.before = row
        self.alarms = [*self.alarms, *(PastAlarm(alarm, row) for alarm in alarms)][-MOST:]

    @classmethod
    def merged(cls, parts: Sequence[History], starts: Sequence[int]) -> History:
        """Return the history of parts whose rows begin at `starts`, as their numbers are there."""
        past = [
            PastAlarm(one.alarm.moved(start), one.until + start)
            for part, start in zip(parts, starts, strict=True)
            for one in part.alarms
        ]
        return cls(0, sum(part.before for part in parts), past[-MOST:])
