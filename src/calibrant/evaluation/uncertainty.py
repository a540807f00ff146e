"""How sure a number is: bootstrap intervals, and the floor that noise alone would show.

**Interval.** Rows are resampled with replacement, with their weights, and clusters as wholes
(`calibrant.metrics.resampling`). For a mean the percentile interval is right. A calibration error
is biased upwards, and on a resample it is biased once more, so the percentiles of the resamples lie
too high; they are moved down by that second bias (mean of the resamples minus the value). The
interval then covers the *expected measured value at this N*: the very quantity that the floor
states for a perfectly calibrated model, so the two may be compared.

Errors that add up the gaps of bins are resampled around gaps drawn towards 0
(`calibrant.metrics.shrinkage`): small gaps are mostly noise. Near the floor the interval is still
on the safe side. Where hardly any row is wrong, or right, resamples know too little, and
`rare_outcomes` stretches it.

**Floor.** If the confidences were perfectly honest, each row would be right with probability c.
Drawing outcomes that way, those of a cluster as dependent as they are, and measuring again gives
the distribution of the metric under perfect calibration: its mean is the floor, and a value below
its 95 % quantile can't be told from perfect at this N.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Self

import numpy as np

from calibrant.core.arrays import FloatArray
from calibrant.core.errors import InputError

# Resamples when the caller doesn't say: this many, but no more than draw so many rows in all, and
# never fewer than the least that an interval can rest on. A million rows get 100.
MOST_RESAMPLES, ROWS_DRAWN, FEWEST_RESAMPLES = 1000, 10**8, 100
DEFAULT_LEVEL = 0.95
FLOOR_QUANTILE = 0.95
# Of many honest groups together, how often any may be called miscalibrated.
FAMILY_LEVEL = 0.05
ROUNDING = 1e-9


def default_resamples(rows: int) -> int:
    """Return how many resamples of so many rows are affordable."""
    return max(FEWEST_RESAMPLES, min(MOST_RESAMPLES, ROWS_DRAWN // rows))


def less_rounding(value: float) -> float:
    """Return a value less what rounding may have added, to compare it with simulated ones.

    Few rows have few possible values, and those of simulated labels tie with that of the real ones;
    sums in another order tell them apart in the last digit.
    """
    return value - ROUNDING * abs(value)


def interval(
    value: float, replicates: FloatArray, level: float = DEFAULT_LEVEL, *, biased: bool = False
) -> tuple[float, float]:
    """Return the ends of the bootstrap interval of `value`.

    Args:
        value: the metric, or a difference of two, on the rows themselves.
        replicates: (R,) its values on resamples.
        level: nominal coverage.
        biased: whether to move the interval down by the resamples' bias (see the module's text);
            its lower end then stops at 0.
    """
    tail = (1 - level) / 2
    low, high = np.quantile(replicates, [tail, 1 - tail])
    if biased:
        bias = float(replicates.mean()) - value
        low, high = max(low - bias, 0.0), high - bias
    return min(float(low), value), max(float(high), value)


def deviations(level: float) -> float:
    """Return how many standard errors a normal interval of this level reaches to either side."""
    return NormalDist().inv_cdf((1 + level) / 2)


def wilson_interval(
    successes: FloatArray, trials: FloatArray, level: float = DEFAULT_LEVEL, *, wider: float = 1.0
) -> tuple[FloatArray, FloatArray]:
    """Return the ends of Wilson's score interval for shares; NaN where there are no trials.

    Args:
        successes: (B,) how many; shares of a row are fine.
        trials: (B,) out of how many.
        level: nominal coverage.
        wider: how many normal quantiles it reaches, as the quantile of Student's t has more.

    References:
        Wilson, J. Am. Stat. Assoc. 1927. Brown, Cai, DasGupta, Statistical Science 2001.
    """
    z = wider * deviations(level)
    n = np.where(trials > 0, trials, np.nan)
    share = successes / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * np.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    # At 0 and at 1 the formula is exact but for rounding, which must not exclude the share itself.
    low = np.minimum(np.maximum(centre - half, 0.0), share)
    return low, np.maximum(np.minimum(centre + half, 1.0), share)


@dataclass(frozen=True)
class PairedDifference:
    """How far apart two calibrators are in one metric on the same rows.

    Attributes:
        value: first minus second.
        low: lower end of the bootstrap interval; high: upper end.
        p_value: two-sided, of the hypothesis that the two have the same expected value.
    """

    value: float
    low: float
    high: float
    p_value: float

    @classmethod
    def normal(cls, value: float, error: float, level: float) -> Self:
        """Return a difference of means, given its standard error."""
        p_value = 2 * NormalDist().cdf(-abs(value) / error) if error > 0 else float(value == 0)
        reach = deviations(level) * error
        return cls(value, value - reach, value + reach, p_value)

    @property
    def ends(self) -> tuple[float, float, float]:
        """The value and the ends of its interval."""
        return self.value, self.low, self.high


def paired_difference(
    first: FloatArray, second: FloatArray, values: tuple[float, float], level: float = DEFAULT_LEVEL
) -> PairedDifference:
    """Return the difference of two metrics on the same rows, with interval and p-value.

    Args:
        first: (R,) values of one calibrator on resamples.
        second: (R,) values of the other on the same resamples.
        values: both values on the rows themselves.
        level: nominal coverage.

    The biases of the two largely cancel in the difference; what is left is taken off. Two that
    differ by rounding alone, on every resample, don't differ.
    """
    difference = values[0] - values[1]
    replicates = first - second
    if np.abs(replicates).max(initial=abs(difference)) <= ROUNDING:
        return PairedDifference(0.0, 0.0, 0.0, 1.0)
    noise = replicates - replicates.mean()
    low, high = interval(difference, noise + difference, level)
    beyond = int(np.sum(np.abs(noise) >= abs(difference)))
    p_value = (1 + beyond) / (1 + len(noise))
    spread = float(noise.std())
    if beyond == 0 and spread > 0:  # resamples alone can't tell how far beyond all of them it is
        p_value = min(p_value, math.erfc(abs(difference) / (spread * math.sqrt(2))))
    return PairedDifference(difference, low, high, p_value)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for looking at all of them (Holm's step-down, family-wise)."""
    order = np.argsort(p_values, kind="stable")
    factors = len(p_values) - np.arange(len(p_values))
    stepped = np.maximum.accumulate(np.asarray(p_values, dtype=np.float64)[order] * factors)
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted.tolist()


def check_drawing(resamples: int, level: float, seed: int) -> None:
    """Raise `InputError` unless resamples can be drawn, and intervals made of them."""
    if resamples < 2:
        raise InputError(f"resamples must be at least 2, not {resamples}")
    if not 0 < level < 1:
        raise InputError(f"level must lie between 0 and 1, not {level}")
    if seed < 0:
        raise InputError(f"seed must not be negative, but is {seed}")
