"""What a mean over few seeds may be off by: by other seeds, and by other test rows.

With S seeds the difference of two competitors has a value d_s for each, and R values on resamples
of its test rows. Two things move the mean of d_s. Other seeds would: their variance B is estimated
from S numbers, so it gets Student's quantile with S - 1 degrees, 4.3 for three seeds instead of
1.96. And other test rows would, as far as all seeds share them: that part, C, is the covariance
between seeds over resamples, and resamples know it well. An interval reaches

    sqrt(t^2 B / S + z^2 C)

to either side. B holds also what each seed's own rows, or its own answers to the same rows, vary
by, whose share V - C of the variance V of means of resamples is therefore not added once more.

It covers: given B, the mean lies inside with probability F((t^2 B / S + z^2 C) / (A + C)), where A
is the true value of B / S and F the distribution function of a squared normal number. F is concave,
so this is at least A / (A + C) F(t^2 B / (S A)) + C / (A + C) F(z^2), of which both have the level
as their expectation. (Banerjee, Sankhya 1961, for means of several samples.) Seeds drawn with
replacement don't cover: their means vary by (S - 1) / S of B / S, with ends as if B were known.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import FloatArray
from calibrant.evaluation.best_set import may_be_best, t_interval

LEVEL = 0.95


class Noise(NamedTuple):
    """Variances of a mean over seeds.

    Attributes:
        seeds: B / S, what seeds and rows that they don't share add, from their scatter; 0 for one.
        rows: V, by resamples of rows alone.
        shared: C, the part of `rows` that all seeds have in common.
    """

    seeds: FloatArray
    rows: FloatArray
    shared: FloatArray

    def reach(self, rows: FloatArray, seeds: float) -> FloatArray:
        """Return how far an interval reaches.

        It never falls short of what rows alone give, also where seeds agree by chance.

        Args:
            rows: how far it would reach by resamples of rows, that is sqrt(V) times a quantile.
            seeds: the quantile for the scatter of seeds.
        """
        share = np.divide(self.shared, self.rows, out=np.ones_like(self.rows), where=self.rows > 0)
        own = np.maximum(seeds**2 * self.seeds, (1 - share) * rows**2)
        return np.sqrt(own + share * rows**2)


def noise_of(values: FloatArray, replicates: FloatArray) -> Noise:
    """Return the variances of means over seeds.

    Args:
        values: (..., S) values.
        replicates: (..., S, R) on resamples. Seeds that share their test rows must share their
            resamples; else they are taken as independent.
    """
    seeds = values.shape[-1]
    rows = replicates.mean(axis=-2).var(axis=-1)
    if seeds < 2:
        return Noise(np.zeros_like(rows), rows, rows)
    each = replicates.var(axis=-1).mean(axis=-1)
    shared = np.clip((seeds * rows - each) / (seeds - 1), 0.0, rows)
    return Noise(values.var(axis=-1, ddof=1) / seeds, rows, shared)


def interval_over_seeds(
    values: FloatArray, replicates: FloatArray, level: float
) -> tuple[float, float]:
    """Return the ends of the interval of a mean over seeds; of one seed those of its resamples.

    Replicates may be too large by their own noise, as those of an ECE are: they say how far it
    scatters, and to which side more, and not around what.

    Args:
        values: (S,) values.
        replicates: (S, R) on resamples, see `noise_of`.
        level: how often the interval holds the truth.

    Examples:
        >>> import numpy as np
        >>> from calibrant_studies.significance import interval_over_seeds
        >>> rows = 0.1 * np.random.default_rng(0).normal(size=500)
        >>> low, high = interval_over_seeds(np.array([1.0]), rows[None], 0.95)
        >>> round(low, 2), round(high, 2)
        (0.81, 1.19)
        >>> low, high = interval_over_seeds(np.array([0.9, 1.1]), np.stack([rows, rows]), 0.95)
        >>> round(low, 2), round(high, 2)
        (-0.28, 2.28)
    """
    value, means = float(values.mean()), replicates.mean(axis=-2)
    tail = (1 - level) / 2
    sides = np.abs(np.quantile(means - means.mean(), [tail, 1 - tail]))
    below, above = noise_of(values, replicates).reach(sides, _student(1 - tail, len(values)))
    return value - float(below), value + float(above)


def may_be_best_over_seeds(
    values: FloatArray, replicates: FloatArray, level: float
) -> NDArray[np.bool_]:
    """Return which of M competitors may have the lowest mean, over other seeds and other rows.

    The rule of `may_be_best` with the reach above. Its quantile for rows is that of the largest of
    all differences over resamples, as there. For seeds it is Student's of 1 - (1 - level) /
    (M - 1): a scatter of few seeds doesn't tell how the differences of several competitors hang
    together.

    Args:
        values: (M, S) costs, lower for better.
        replicates: (M, S, R) on resamples, the same for all competitors.
        level: probability that the set holds the best one.

    Returns:
        (M,) booleans; at least the one of the lowest mean is true.

    Examples:
        >>> import numpy as np
        >>> from calibrant_studies.significance import may_be_best_over_seeds
        >>> noise = 0.1 * np.random.default_rng(0).normal(size=(3, 3, 500))
        >>> values = np.array([[0.0, 0.1, 0.2], [0.2, 0.3, 0.1], [9.0, 9.2, 9.1]])
        >>> may_be_best_over_seeds(values, noise, 0.95)
        array([ True,  True, False])
    """
    competitors, seeds = values.shape
    # Not the sum over the number, by which equal values may differ in their last digit.
    costs = values[:, 0] + (values - values[:, :1]).mean(axis=1)
    student = _student(1 - (1 - level) / max(1, competitors - 1), seeds)

    def reach(i: int, rows: FloatArray) -> FloatArray:
        return noise_of(values[i] - values, replicates[i] - replicates).reach(rows, student)

    return may_be_best(costs, replicates.mean(axis=1), level, reach)


def _student(level: float, seeds: int) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(seeds - 1, level)) if seeds > 1 else 0.0


def mean_with_interval(values: Sequence[float] | FloatArray) -> dict[str, float]:
    """Return the mean of independent numbers, with its 95 % t interval, as cells have it."""
    low, high = t_interval(np.asarray(values), 0.95)
    mean = float(np.mean(values))
    return (
        {"value": mean}
        if low is None or high is None
        else {"value": mean, "low": low, "high": high}
    )


class Difference(NamedTuple):
    """A mean difference over seeds, and the ends of its interval."""

    value: float
    low: float
    high: float

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.low > 0 or self.high < 0


def paired(ours: Sequence[Any], theirs: Sequence[Any], metric: str) -> Difference | None:
    """Return the mean difference of a metric between results on the same resamples, or None.

    The interval holds what other seeds and other test rows would change, see `interval_over_seeds`.

    Args:
        ours: results of one, seed by seed.
        theirs: of the other, for the same seeds.
        metric: by name.
    """
    values: list[float] = []
    drawn: list[FloatArray] = []
    for a, b in zip(ours, theirs, strict=True):
        points = [each["values"].get(metric, {}).get("value") for each in (a, b)]
        replicates = [each.get("replicates", {}).get(metric, ()) for each in (a, b)]
        same = a.get("pairing") == b.get("pairing") and len(replicates[0]) == len(replicates[1])
        if None in points or not same or not replicates[0]:
            return None
        values.append(points[0] - points[1])
        drawn.append(np.asarray(replicates[0]) - np.asarray(replicates[1]))
    ends = interval_over_seeds(np.array(values), np.array(drawn), LEVEL)
    return Difference(float(np.mean(values)), *ends)


def paired_or_by_seeds(ours: Sequence[Any], theirs: Sequence[Any], metric: str) -> Difference:
    """Return `paired`; where nothing was kept of the resamples, by Student's t over the seeds.

    One seed, of which no resamples were kept, has no interval: its ends are infinite.

    Args:
        ours: results of one, seed by seed.
        theirs: of the other, for the same seeds.
        metric: by name.
    """
    found = paired(ours, theirs, metric)
    if found is not None:
        return found
    pairs = zip(ours, theirs, strict=True)
    apart = [a["values"][metric]["value"] - b["values"][metric]["value"] for a, b in pairs]
    low, high = t_interval(np.asarray(apart), LEVEL)
    mean = float(np.mean(apart))
    return Difference(mean, -inf if low is None else low, inf if high is None else high)
