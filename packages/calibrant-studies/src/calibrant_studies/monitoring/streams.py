"""Streams whose truth is known: honest ones, slightly wrong ones, ones that go off."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from calibrant.core.arrays import BoolArray, FloatArray

ROWS, CHANGE = 10_000, 5_000

# Log odds that were said, and row numbers, to log odds that are true.
Truth = Callable[[FloatArray, FloatArray], FloatArray]


class Kind(NamedTuple):
    """One kind of stream: from which row on it is wrong, and how."""

    change: int | None
    truth: Truth

    @property
    def sudden(self) -> bool:
        """Whether it goes off from one row to the next."""
        return bool(self.change) and self.truth is not _drifting


def _before(change: int, truth: Truth) -> Truth:
    return lambda odds, row: np.where(row < change, odds, truth(odds, row))


def _tempered(slope: float) -> Truth:
    return lambda odds, row: slope * odds


def _shifted(shift: float) -> Truth:
    return lambda odds, row: odds + shift


def _drifting(odds: FloatArray, row: FloatArray) -> FloatArray:
    """Return log odds that shrink from row CHANGE on, to half at row ROWS."""
    return odds * (1 - 0.5 * np.clip((row - CHANGE) / (ROWS - CHANGE), 0, 1))


def _one_point_low(odds: FloatArray, row: FloatArray) -> FloatArray:
    p = np.clip(1 / (1 + np.exp(-odds)) - 0.01, 1e-6, 1)
    return np.log(p) - np.log1p(-p)


KINDS = {
    "honest": Kind(None, _tempered(1.0)),
    "one-point-low": Kind(None, _one_point_low),
    "tempered": Kind(0, _tempered(0.7)),
    "tempered-later": Kind(CHANGE, _before(CHANGE, _tempered(0.7))),
    "shifted-later": Kind(CHANGE, _before(CHANGE, _shifted(-0.5))),
    "drifting": Kind(CHANGE, _drifting),
}


def draw(kind: Kind, seed: int, rows: int = ROWS) -> tuple[FloatArray, BoolArray]:
    """Return (n,) confidences, logit p ~ N(2.2, 1.6), and whether each row is right."""
    rng = np.random.default_rng(seed)
    odds = rng.normal(2.2, 1.6, rows)
    true = kind.truth(odds, np.arange(rows, dtype=np.float64))
    return 1 / (1 + np.exp(-odds)), rng.random(rows) < 1 / (1 + np.exp(-true))
