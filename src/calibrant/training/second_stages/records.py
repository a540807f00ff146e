"""What a second stage tells while it trains and keeps of it afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

Progress = Callable[[str], None]


@dataclass(frozen=True)
class EpochRecord:
    """What an epoch showed on its training rows, seen while it trained.

    Attributes:
        epoch: counted from 1.
        retention: share of connections kept; 1 where nothing is masked.
        accuracy: share of rows whose label was predicted.
        confidence: mean probability of the predicted label.
    """

    epoch: int
    retention: float
    accuracy: float
    confidence: float

    def as_dict(self) -> dict[str, float]:
        """Return the numbers as JSON takes them."""
        return asdict(self)


def silent(_: str) -> None:
    """Show no progress."""
