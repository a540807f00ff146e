"""Rows without outcomes: the accuracy to expect if their confidences are honest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrant.core.arrays import FloatArray
from calibrant.core.text import counted
from calibrant.evaluation.formatting import percent

BLIND = (
    "This rests on the confidences being honest still: it can't see a change of what the inputs "
    "mean, which only outcomes show."
)
NORMAL_95 = 1.959963984540054


@dataclass
class Unlabelled:
    """Sums over rows without an outcome.

    With p the confidences, the expected accuracy is their mean, and the accuracy itself lies about
    it with deviation sqrt(sum p (1 - p)) / n (the confidence-based estimate that NannyML calls
    CBPE).

    Attributes:
        rows: how many there are.
        total: sum of p; variance: sum of p (1 - p).
    """

    rows: int = 0
    total: float = 0.0
    variance: float = 0.0

    def add(self, confidence: FloatArray, sign: int = 1) -> None:
        """Add (n,) rows, or with `sign` -1 take them out, their outcomes being known now."""
        self.rows += sign * len(confidence)
        self.total += sign * float(confidence.sum())
        self.variance += sign * float((confidence * (1 - confidence)).sum())

    def __add__(self, other: Unlabelled) -> Unlabelled:
        """Return the sums of both sets of rows."""
        return Unlabelled(
            self.rows + other.rows, self.total + other.total, self.variance + other.variance
        )

    @property
    def expected_accuracy(self) -> tuple[float, float, float] | None:
        """The expected accuracy, and the ends that hold the accuracy in 95 % of cases."""
        if self.rows == 0:
            return None
        mean = float(np.clip(self.total / self.rows, 0.0, 1.0))
        half = NORMAL_95 * max(self.variance, 0.0) ** 0.5 / self.rows
        return mean, max(mean - half, 0.0), min(mean + half, 1.0)

    def as_dict(self) -> dict[str, Any]:
        """Return what is known as JSON takes it."""
        value, low, high = self.expected_accuracy or (None, None, None)
        return {
            "rows": self.rows,
            "expected_accuracy": value,
            "low": low,
            "high": high,
            "blind_to": BLIND,
        }

    def __str__(self) -> str:
        found = self.expected_accuracy
        if found is None:
            return "No row is without its outcome."
        value, low, high = (percent(number) for number in found)
        return (
            f"{counted(self.rows, 'row')} without outcome: expected accuracy {value} % "
            f"({low} to {high}). {BLIND}"
        )
