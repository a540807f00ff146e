"""Temperatures of rows against their margin, for pictures.

References:
    Sample Margin-Aware Recalibration of Temperature (2025), Figure 15.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from calibrant.core.arrays import Array, FloatArray, like, namespace
from calibrant.posthoc.temperature.scaling import RowTemperature

TEMPERATURE_POINTS = 160
# A curve with this many monotone pieces or fewer counts as a function of the margin.
MONOTONE_PIECES = 6
# Rows that tell whether it is one; of more, as many evenly spaced by rank.
MOST_ROWS = 4000


@dataclass(frozen=True, eq=False)
class MarginTemperature:
    """Temperatures of some rows against their margin; arrays (P,), by rising margin.

    Attributes:
        margin: gaps between the two largest logits.
        temperature: what the row's logits are divided by.
        is_function: whether the temperature follows from the margin, and may be drawn as a line.
    """

    margin: FloatArray
    temperature: FloatArray
    is_function: bool


def margin_temperature(
    calibrator: RowTemperature,
    logits: Array,
    margin: FloatArray,
    points: int = TEMPERATURE_POINTS,
) -> MarginTemperature:
    """Return the temperatures that a fitted method gives to (N, K) logits.

    Of the N rows about `points` are kept, half of them evenly spaced by rank and half evenly spaced
    by margin, so that neither the crowded nor the sparse end is lost.

    Args:
        calibrator: fitted.
        logits: (N, K).
        margin: (N,) from `Predictions.margins`.
        points: see above.
    """
    order = np.argsort(margin, kind="stable")
    ranked = margin[order]
    by_rank = np.linspace(0, len(ranked) - 1, max(2, points // 2)).astype(np.int64)
    targets = np.linspace(float(ranked[0]), float(ranked[-1]), max(2, points // 2))
    by_margin = np.clip(np.searchsorted(ranked, targets), 0, len(ranked) - 1)
    kept = np.unique(np.concatenate([by_rank, by_margin]))
    some = np.linspace(0, len(ranked) - 1, min(len(ranked), MOST_ROWS)).astype(np.int64)
    asked = np.union1d(kept, some)
    temperature = calibrator.temperatures(
        namespace(logits).take(logits, like(order[asked], logits), axis=0)
    )
    # A function of the margin moves up and down a few times over all rows; noise does at each.
    travelled, span = np.abs(np.diff(temperature)).sum(), np.ptp(temperature)
    is_function = travelled <= MONOTONE_PIECES * span + 1e-9 * temperature.max()
    own = temperature[np.searchsorted(asked, kept)]
    return MarginTemperature(ranked[kept], own, bool(is_function))
