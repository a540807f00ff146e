"""MaC-Cal's kappa: how the share of kept connections follows it, and how it is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from calibrant.core.arrays import FloatArray
from calibrant.training.heads.held_out import Held

# Denser towards 1, where networks that generalise well have their kappa.
KAPPAS = (1.0, 0.97, 0.94, 0.91, 0.88, 0.85, 0.82, 0.79, 0.75, 0.7, 0.6)
Adaptation = Literal["none", "static", "decaying"]


def step_bound(
    epoch: int, epochs: int, largest: float, smallest: float, adaptation: Adaptation
) -> float:
    """Return how far retention may move after an epoch, counted from 0.

    ``largest * (smallest / largest) ** (epoch / epochs)`` if the bound decays, `largest` if the
    adaptation is static, and 0 if there is none.
    """
    if adaptation == "none":
        return 0.0
    if adaptation == "static":
        return largest
    return largest * (smallest / largest) ** (epoch / epochs)


def next_retention(
    retention: FloatArray,
    accuracy: FloatArray,
    confidence: FloatArray,
    kappa: FloatArray,
    bound: float,
    lowest: float,
    highest: float = 1.0,
) -> FloatArray:
    """Return the retention of the next epoch for each of R heads; all arrays are (R,).

    It falls where confidence exceeds `kappa` times accuracy on the training rows, because a head
    with fewer connections is less confident; it moves by at most `bound` and stays between
    `lowest` and `highest`.
    """
    step = np.clip(kappa * accuracy - confidence, -bound, bound)
    return np.clip(retention + step, lowest, highest)


@dataclass(frozen=True, kw_only=True)
class KappaPoint(Held):
    """What one kappa led to, measured on held-out rows.

    Attributes:
        kappa: the factor on training accuracy.
        retention: of the last epoch.
    """

    kappa: float
    retention: float


@dataclass(frozen=True)
class KappaChoice:
    """Which of several kappas to take.

    Attributes:
        index: its place among the points; None if no kappa keeps the accuracy.
        note: what there is to say about it, or None.
    """

    index: int | None
    note: str | None


def choose_kappa(
    points: Sequence[KappaPoint], reference_accuracy: float, tolerance: float
) -> KappaChoice:
    """Return the kappa whose held-out confidence is nearest to accuracy, if it keeps the accuracy.

    That is what kappa is there for, and the gap varies less from sample to sample than a binned
    error. A kappa keeps the accuracy if its held-out accuracy is at most `tolerance`
    below the reference.
    """
    gaps = [abs(point.confidence - point.accuracy) for point in points]
    best = min(range(len(points)), key=lambda index: gaps[index])
    keeps = [point.accuracy >= reference_accuracy - tolerance for point in points]
    if keeps[best]:
        return KappaChoice(best, None)
    loss = reference_accuracy - points[best].accuracy
    if len(points) == 1:
        return KappaChoice(
            None,
            f"kappa {points[0].kappa:g} loses {100 * loss:.2f} points of held-out accuracy, more "
            f"than the tolerance of {100 * tolerance:g}",
        )
    if not any(keeps):
        return KappaChoice(
            None,
            f"no kappa keeps held-out accuracy within {100 * tolerance:g} points of the plain "
            f"head's {100 * reference_accuracy:.2f} %; backed off to plain retraining",
        )
    admissible = [index for index, kept in enumerate(keeps) if kept]
    chosen = min(admissible, key=lambda index: gaps[index])
    return KappaChoice(
        chosen,
        f"kappa {points[best].kappa:g} brings held-out confidence nearest to accuracy but loses "
        f"{100 * loss:.2f} points of it; backed off to {points[chosen].kappa:g}",
    )
