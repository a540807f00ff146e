"""How many rows one needs: the sample size at which a given ECE would stand out from noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from calibrant.core.arrays import FloatArray
from calibrant.core.errors import InputError
from calibrant.metrics.binned import ece_of_curves
from calibrant.metrics.top_label import ResidualCurves, TopLabel

SIMULATIONS = 400
FEWEST_ROWS, MOST_ROWS = 25, 1 << 20
# The answer is found to within this factor; simulation noise allows no more.
RESOLUTION = 1.1


@dataclass(frozen=True)
class SampleSize:
    """The answer of `rows_needed`.

    Attributes:
        rows: about how many rows are needed, or None if more than about a million.
        ece: the calibration error that is to be seen.
        power: the chance of seeing it with that many rows.
        significance: the chance of a false alarm on perfectly honest confidences.
    """

    rows: int | None
    ece: float
    power: float
    significance: float

    def __str__(self) -> str:
        many = f"more than {MOST_ROWS}" if self.rows is None else f"about {self.rows}"
        return (
            f"To see an ECE of {100 * self.ece:.3g} % with {100 * self.power:.0f} % power takes "
            f"{many} rows like these."
        )


def rows_needed(
    confidence: FloatArray,
    ece: float,
    *,
    power: float = 0.8,
    significance: float = 0.05,
    seed: int = 0,
) -> SampleSize:
    """Return how many rows it takes to tell a model of calibration error `ece` from an honest one.

    The model is taken to be overconfident by the same amount everywhere, as far as a probability
    can be: P(right | c) = max(c - shift, 0), with `shift` such that the mean gap is `ece`. Its
    confidences are drawn from the given ones. For a number of rows, the ECE of 400 honest data sets
    gives the threshold of the test and that of 400 miscalibrated ones its power; the number is
    found by bisection.

    The answer belongs to confidences like these. Overconfident ones pile up near 1, where noise is
    small, and make it small; to plan the check of a recalibrated model, pass its confidences.

    Args:
        confidence: (N,) confidences typical of the model.
        ece: calibration error to see, a fraction above 0 and below the mean confidence.
        power: chance to see it.
        significance: chance of a false alarm.
        seed: of the simulation.

    Raises:
        InputError: an argument out of range.
    """
    mean = float(np.mean(confidence))
    if not 0 < ece < mean:
        raise InputError(f"ece must lie between 0 and the mean confidence {mean:.3g}, not {ece}")
    for name, value in (("power", power), ("significance", significance)):
        if not 0 < value < 1:
            raise InputError(f"{name} must lie between 0 and 1, not {value}")
    shift = _shift_for_gap(confidence, ece)

    def seen(rows: int) -> bool:
        rng = np.random.default_rng([seed, rows])
        honest = _simulated_ece(confidence, 0.0, rows, rng)
        dishonest = _simulated_ece(confidence, shift, rows, rng)
        return float(np.mean(dishonest > np.quantile(honest, 1 - significance))) >= power

    low, high = FEWEST_ROWS, FEWEST_ROWS
    while not seen(high):
        low, high = high, 2 * high
        if high > MOST_ROWS:
            return SampleSize(None, ece, power, significance)
    while high > RESOLUTION * low:
        middle = round(np.sqrt(low * high))
        low, high = (low, middle) if seen(middle) else (middle, high)
    return SampleSize(high, ece, power, significance)


def _shift_for_gap(confidence: FloatArray, gap: float) -> float:
    """Return the shift s at which the mean of min(c, s), the gap that it makes, is `gap`."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if np.minimum(confidence, middle).mean() > gap else (middle, high)
    return high


def _simulated_ece(
    confidence: FloatArray, shift: float, rows: int, rng: np.random.Generator
) -> FloatArray:
    """Return (R,) ECEs of data sets whose rows are right with probability max(c - shift, 0)."""
    drawn = TopLabel.sort(rng.choice(confidence, rows), np.zeros(rows, dtype=np.bool_))
    batch = max(1, (1 << 21) // rows)
    found: list[FloatArray] = []
    for start in range(0, SIMULATIONS, batch):
        size = min(batch, SIMULATIONS - start)
        outcomes = rng.random((size, rows)) < drawn.confidence - shift
        found.append(ece_of_curves(ResidualCurves.with_labels(drawn, outcomes)))
    return np.concatenate(found)
