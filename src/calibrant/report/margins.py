"""Calibration along the logit margin: groups of rows by margin, and temperature as its function.

The margin is the gap between the two largest logits before any recalibration, so a row stays in its
group whatever a method does to it.

References:
    Sample Margin-Aware Recalibration of Temperature (2025), Figures 1 and 15.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from calibrant.core.arrays import Array, FloatArray
from calibrant.core.errors import InputError
from calibrant.core.weights import times
from calibrant.evaluation.uncertainty import DEFAULT_LEVEL
from calibrant.metrics.top_label import TopLabel
from calibrant.posthoc.temperature.scaling import RowTemperature
from calibrant.predictions.scoring import RowScores
from calibrant.report.series import Reliability, binned_reliability, wilson_interval

DEFAULT_GROUPS = 4
POINTS_PER_GROUP = 6
TEMPERATURE_POINTS = 160
# A curve with this many monotone pieces or fewer counts as a function of the margin.
MONOTONE_PIECES = 6


@dataclass(frozen=True, eq=False)
class MarginGroup:
    """The rows of one quantile range of the margin.

    Attributes:
        margin: smallest and largest margin among them.
        rows: how many there are.
        confidence: mean confidence.
        accuracy: share of right predictions.
        low: lower end of Wilson's interval of the accuracy.
        high: its upper end.
        points: reliability within the group, in bins of equally many rows.
    """

    margin: tuple[float, float]
    rows: int
    confidence: float
    accuracy: float
    low: float
    high: float
    points: Reliability

    @property
    def gap(self) -> float:
        """Mean confidence minus accuracy."""
        return self.confidence - self.accuracy


def margin_groups(
    scores: RowScores,
    margin: FloatArray,
    groups: int = DEFAULT_GROUPS,
    n_bins: int = POINTS_PER_GROUP,
    level: float = DEFAULT_LEVEL,
) -> list[MarginGroup]:
    """Return the reliability within quantile groups of the margin, smallest margins first.

    Rows of equal margin stay together, so there may be fewer groups than asked for.

    Args:
        scores: N scored rows.
        margin: (N,) margins of the same rows, from `Predictions.margins`.
        groups: how many.
        n_bins: points of each group's diagram.
        level: coverage of the intervals.

    Raises:
        InputError: margins of other rows, or no group.
    """
    if len(margin) != len(scores.confidence):
        raise InputError(f"{len(margin)} margins don't go with {len(scores.confidence)} rows")
    if groups < 1:
        raise InputError(f"groups must be at least 1, not {groups}")
    inner = np.quantile(margin, np.arange(1, groups) / groups)
    index = np.searchsorted(inner, margin, side="left")
    found: list[MarginGroup] = []
    for group in range(groups):
        chosen = index == group
        if not chosen.any():
            continue
        weights = None if scores.weights is None else scores.weights[chosen]
        rows = TopLabel.sort(scores.confidence[chosen], scores.correct[chosen], weights)
        right = times(rows.correct, rows.weight).sum(keepdims=True)
        low, high = wilson_interval(right, np.array([rows.total]), level)
        found.append(
            MarginGroup(
                (float(margin[chosen].min()), float(margin[chosen].max())),
                rows.n,
                rows.mean_confidence,
                rows.accuracy,
                float(low[0]),
                float(high[0]),
                binned_reliability(rows, n_bins, level, strategy="quantile"),
            )
        )
    return found


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
    margin, temperature = margin[order], calibrator.temperatures(logits)[order]
    by_rank = np.linspace(0, len(margin) - 1, max(2, points // 2)).astype(np.int64)
    targets = np.linspace(float(margin[0]), float(margin[-1]), max(2, points // 2))
    by_margin = np.clip(np.searchsorted(margin, targets), 0, len(margin) - 1)
    kept = np.unique(np.concatenate([by_rank, by_margin]))
    # A function of the margin moves up and down a few times over all rows; noise does at each.
    travelled, span = np.abs(np.diff(temperature)).sum(), np.ptp(temperature)
    is_function = travelled <= MONOTONE_PIECES * span + 1e-9 * temperature.max()
    return MarginTemperature(margin[kept], temperature[kept], bool(is_function))
