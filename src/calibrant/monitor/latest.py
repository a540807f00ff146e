"""The latest rows of a stream, to say what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import BoolArray, FloatArray
from calibrant.monitor.diagnosis import Diagnosis, diagnose

# What is wrong since a change is said of as many rows at least.
FEWEST = 200


@dataclass
class Latest:
    """The last `most` rows.

    Attributes:
        most: how many are kept.
        confidence: (n,) theirs; correct: (n,) whether each was right.
    """

    most: int
    confidence: FloatArray
    correct: BoolArray

    @classmethod
    def start(cls, most: int) -> Latest:
        """Return none yet."""
        return cls(most, np.empty(0), np.empty(0, dtype=np.bool_))

    def add(self, confidence: FloatArray, correct: BoolArray) -> None:
        """Keep (n,) more rows."""
        self.confidence = np.concatenate([self.confidence, confidence])[-self.most :]
        self.correct = np.concatenate([self.correct, correct])[-self.most :]

    def diagnosis(self, rows: int, since: int | None) -> Diagnosis | None:
        """Return what the rows show from row `since` on, or all that are kept; None without any.

        Args:
            rows: how many rows the stream has.
            since: the row since when it is off, if it is known.
        """
        held = len(self.confidence)
        if held == 0:
            return None
        wanted = held if since is None else max(rows - since, FEWEST)
        part = slice(max(held - wanted, 0), None)
        said, right = self.confidence[part], self.correct[part]
        return diagnose(rows - len(said), said, right)

    def pack(self) -> dict[str, NDArray[Any]]:
        """Return the rows as arrays."""
        return {"latest.confidence": self.confidence, "latest.correct": self.correct}

    @classmethod
    def unpack(cls, most: int, arrays: dict[str, NDArray[Any]]) -> Latest:
        """Return what `pack` made arrays of."""
        return cls(most, arrays["latest.confidence"].copy(), arrays["latest.correct"].copy())

    @classmethod
    def merged(cls, parts: Sequence[Latest]) -> Latest:
        """Return as many of the latest rows of each part as there is room for."""
        most = parts[0].most
        whole, share = cls.start(most), max(most // len(parts), 1)
        for part in parts:
            whole.add(part.confidence[-share:], part.correct[-share:])
        return whole
