"""Calibration by hour of the clock, for reports: nothing is tested here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np

from calibrant.core.arrays import BoolArray, FloatArray, IntArray
from calibrant.core.errors import PredictionsError
from calibrant.monitor.windows import WIDTH, Window, cell_sums

HOUR = 3600
# Two weeks; what is older is forgotten.
KEPT = 14 * 24
# Years that a time may lie in, as hours since 1970: to 9999.
MOST_HOURS = 70_000_000
# A number above this counts milliseconds.
MILLISECONDS = 1e11


@dataclass
class Hours:
    """Sums of cells by hour of the clock.

    Attributes:
        sums: (3 C,) of each hour, by its number since 1970.
    """

    sums: dict[int, FloatArray] = field(default_factory=dict[int, FloatArray])

    def add(self, hour: IntArray, confidence: FloatArray, correct: BoolArray) -> None:
        """Sum (n,) rows of these hours; of all hours the latest `KEPT` stay."""
        present: list[int] = np.unique(hour).tolist()
        for each in present:
            at = hour == each
            before = self.sums.get(each, np.zeros(WIDTH))
            self.sums[each] = before + cell_sums(confidence[at], correct[at])[0]
        self._forget()

    def _forget(self) -> None:
        for old in sorted(self.sums)[:-KEPT]:
            del self.sums[old]

    def windows(self, effect: float) -> list[tuple[str, Window]]:
        """Return each hour's beginning and calibration; see `Window.of_sums` for `effect`."""
        return [
            (named(hour), Window.of_sums(hour, self.sums[hour], effect=effect))
            for hour in sorted(self.sums)
        ]

    def merge(self, others: Sequence[Hours]) -> Hours:
        """Return the sums of all."""
        merged = Hours(dict(self.sums))
        for other in others:
            for hour, sums in other.sums.items():
                merged.sums[hour] = merged.sums.get(hour, np.zeros(WIDTH)) + sums
        merged._forget()
        return merged


def named(hour: int) -> str:
    """Return the beginning of an hour since 1970, in words."""
    return datetime.fromtimestamp(hour * HOUR, UTC).strftime("%Y-%m-%d %H:00")


def hour_of(time: Any, where: str) -> int:
    """Return the hour since 1970 of a time.

    Args:
        time: seconds or milliseconds since 1970, a `datetime`, or text of ISO 8601; without a time
            zone it is UTC.
        where: begins the error message.

    Raises:
        PredictionsError: it is no such time.
    """
    try:
        if isinstance(time, str):
            time = time.strip()
            try:
                time = float(time)
            except ValueError:
                time = datetime.fromisoformat(time)
        if isinstance(time, datetime):
            time = (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
        seconds = float(time) / (1000 if float(time) > MILLISECONDS else 1)
        if not isinstance(time, bool) and 0 <= seconds < MOST_HOURS * HOUR:
            return int(seconds // HOUR)
    except (ValueError, TypeError, OverflowError):
        pass
    raise PredictionsError(
        f"{where}: a time must be seconds since 1970 or like 2026-11-23T16:20:00, not {time!r:.60}"
    )
