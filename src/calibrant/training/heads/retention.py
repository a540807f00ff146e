"""How MaC-Cal's share of kept connections follows the gap between accuracy and confidence."""

from __future__ import annotations

from typing import Literal

import numpy as np

from calibrant.arrays import FloatArray

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
