"""Figure 2 (left): how well an indicator pins down the temperature that a row needs.

Random logit vectors are brought to one confidence, each by a temperature of its own. An indicator
is good if rows with the same value need the same temperature.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from calibrant.core.arrays import FloatArray
from calibrant.posthoc.temperature.smart.calibrator import IndicatorName, indicator_values
from calibrant.predictions.predictions import Predictions

INDICATORS: tuple[IndicatorName, ...] = ("margin", "max", "max-mean")
OCTAVES, HALVINGS = 16.0, 60
GROUPS = 10


@dataclass(frozen=True)
class SolvedTemperatures:
    """Temperatures at which random rows have the confidence wanted.

    Attributes:
        temperature: (N,) temperatures.
        indicator: name to the (N,) values of it.
    """

    temperature: FloatArray
    indicator: dict[IndicatorName, FloatArray]

    def left_open(self, name: IndicatorName) -> float:
        """Return the share of the variance of log T within tenths of an indicator's range.

        0 where the indicator says the temperature, 1 where it says nothing.
        """
        logs = np.log(self.temperature)
        groups = np.array_split(logs[np.argsort(self.indicator[name])], GROUPS)
        within = sum(float(((group - group.mean()) ** 2).sum()) for group in groups)
        return float(within / ((logs - logs.mean()) ** 2).sum())


def solve_temperatures(
    rows: int = 1000, classes: int = 10, confidence: float = 0.8, scale: float = 2.0, seed: int = 0
) -> SolvedTemperatures:
    """Draw normal logits and solve for the temperature of each row, by bisection.

    Args:
        rows: vectors to draw.
        classes: K logits in each.
        confidence: what every row is brought to, above 1 / K and below 1.
        scale: standard deviation of the logits; their mean is drawn for each row from a normal of
            the same deviation, since networks don't centre them.
        seed: of the draws.
    """
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=scale, size=(rows, classes)) + rng.normal(scale=scale, size=(rows, 1))
    curve = Predictions.from_logits(logits, np.zeros(rows, dtype=int)).summary.curve
    low, high = np.full(rows, -OCTAVES), np.full(rows, OCTAVES)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        # The confidence rises with beta, so too low a one asks for more octaves.
        short = np.exp(-curve.evaluate(2.0**middle).value) < confidence
        low, high = np.where(short, middle, low), np.where(short, high, middle)
    values: dict[IndicatorName, FloatArray] = {
        name: indicator_values(name, logits)[:, 0] for name in INDICATORS
    }
    return SolvedTemperatures(2.0 ** -((low + high) / 2), values)
