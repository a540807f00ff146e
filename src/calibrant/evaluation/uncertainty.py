"""How sure a number is: bootstrap intervals, and the floor that noise alone would show.

**Interval.** Rows are resampled with replacement, with their weights, and clusters as wholes
(`calibrant.metrics.resampling`). For a mean the percentile interval is right. A calibration error
is biased upwards, and on a resample it is biased once more, so the percentiles of the resamples lie
too high; they are moved down by that second bias (mean of the resamples minus the value). The
interval then covers the *expected measured value at this N*: the very quantity that the floor
states for a perfectly calibrated model, so the two may be compared.

Errors that add up the gaps of bins are resampled around gaps drawn towards 0
(`calibrant.metrics.shrinkage`): small gaps are mostly noise. Near the floor the interval is still
on the safe side. Where hardly any row is wrong, or right, resamples know too little, and it is
stretched, as said below.

**Floor.** If the confidences were perfectly calibrated, each row would be right with probability c.
Drawing outcomes that way, those of a cluster as dependent as they are, and measuring again gives
the distribution of the metric under perfect calibration: its mean is the floor, and a value below
its 95 % quantile can't be told from perfect at this N.

Intervals where hardly any row is wrong, or hardly any is right.

A bootstrap resamples what was seen: of rows that are all right it makes none that is wrong, and its
interval has no width. So the interval is stretched to what the metric would show with as many rows
of the rarer outcome as can't be excluded: none seen among N leaves up to 3.7 in N at 95 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import NamedTuple, Self

import numpy as np

from calibrant.core.arrays import FloatArray, IntArray, to_numpy
from calibrant.core.errors import InputError
from calibrant.metrics.metric_types import Metric, RowsMetric, each_once, values_of_rows
from calibrant.metrics.resampling import Clusters, cluster_doubt
from calibrant.metrics.top_label import TopLabel
from calibrant.predictions.predictions import SMALLEST_PROBABILITY, Predictions
from calibrant.predictions.scoring import RowScores

# Resamples when the caller doesn't say: this many, but no more than draw so many rows in all, and
# never fewer than the least that an interval can rest on. A million rows get 100.
MOST_RESAMPLES, ROWS_DRAWN, FEWEST_RESAMPLES = 1000, 10**8, 100
DEFAULT_LEVEL = 0.95
FLOOR_QUANTILE = 0.95
# Of many calibrated groups together, how often any may be called miscalibrated.
FAMILY_LEVEL = 0.05
ROUNDING = 1e-9
# Results keep replicates with the digits of float32.
DIGITS_KEPT = 2.0**-23


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


def difference_of(first: FloatArray, second: FloatArray) -> FloatArray:
    """Return first - second, of any shapes that go together; 0 where the digits kept don't tell."""
    found = first - second
    return np.where(np.abs(found) <= DIGITS_KEPT * np.abs(first), 0.0, found)


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
    difference = float(difference_of(*np.array(values)))
    replicates = difference_of(first, second)
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


# From so many rows of either outcome on, resamples know enough of them.
ENOUGH = 10
# Choices of the rows that turn out otherwise; values are averaged over them.
CHOICES, CHOICES_OF_WHOLE_ROWS = 8, 2
# How many numbers of such rows are tried: a calibration error may fall before it rises.
NUMBERS = 4


class MeanResidual(NamedTuple):
    """How sure the weighted mean of c - a is of rows with weights, or in clusters.

    Attributes:
        mean: itself.
        variance: of it.
        share: one over the number of independent rows of equal weight that are as sure.
    """

    mean: float
    variance: float
    share: float

    @classmethod
    def of(cls, rows: TopLabel, clusters: Clusters | None) -> Self:
        """Return it for sorted rows, and clusters in their order."""
        weights = np.ones(rows.n) if rows.weight is None else rows.weight
        residual, blocks = rows.confidence - rows.correct, None
        if clusters is not None:
            each = (weights * residual, weights)
            blocks = np.array([np.bincount(clusters.codes, values) for values in each], dtype=float)
        return cls.of_cells(residual, weights, weights * weights, blocks)

    @classmethod
    def of_cells(
        cls,
        residual: FloatArray,
        mass: FloatArray,
        squares: FloatArray,
        blocks: FloatArray | None = None,
    ) -> Self:
        """Return it for cells of rows that have nearly the same residual.

        Args:
            residual: (C,) mean of c - a.
            mass: (C,) what these rows weigh.
            squares: (C,) sums of their squared weights.
            blocks: (2, G) for each cluster the weighted sum of c - a, and what its rows weigh.
        """
        size = float(mass.sum())
        mean = float(mass @ residual) / size
        apart = (residual - mean) ** 2
        share = float(squares.sum()) / size**2
        if blocks is None:
            return cls(mean, float(squares @ apart) / size**2, share)
        sums, number = blocks[0] - mean * blocks[1], blocks.shape[1]
        variance = number / (number - 1) * float(sums @ sums) / float(blocks[1].sum()) ** 2
        of_row = float(mass @ apart) / size
        return cls(mean, variance, max(share, variance / of_row) if of_row > 0 else share)


class Gap(NamedTuple):
    """Mean confidence minus accuracy of some rows, with its interval; positive: overconfident."""

    value: float
    low: float
    high: float

    @classmethod
    def of(
        cls, rows: TopLabel, level: float = DEFAULT_LEVEL, clusters: Clusters | None = None
    ) -> Self:
        """Return the gap of N rows with its score interval.

        As Wilson's for a share, it holds the gaps g whose distance to the measured one is at most z
        of the standard errors that a data set of gap g would have: with p the accuracy measured,
        q = p + gap - g the one that goes with g, and s^2 the variance of the residuals,

            (gap - g)^2 <= (z^2 / N) (s^2 + q (1 - q) - p (1 - p)).

        For equal confidences it is Wilson's interval; for many rows the normal one. Rows that are
        all alike, or a single one, get an interval of the right width. With weights or clusters the
        means are weighted, and both variances over N become those of such means: sums over
        clusters, of weighed residuals, squared and added, over the squared sum of weights.

        Args:
            rows: N sorted rows.
            level: nominal coverage.
            clusters: of the rows, in their order; None where every row stands alone.
        """
        if rows.weight is not None or clusters is not None:
            law, number = MeanResidual.of(rows, clusters), clusters and clusters.number
            return cls.of_law(law, rows.accuracy, level, number)
        residual = rows.confidence - rows.correct
        gap = float(residual.mean())
        residual -= gap
        spread = float(residual @ residual) / rows.n
        return cls.of_moments(gap, spread, float(rows.correct.mean()), rows.n, level)

    @classmethod
    def of_law(
        cls, law: MeanResidual, accuracy: float, level: float, clusters: int | None = None
    ) -> Self:
        """Return the same of rows with weights or in so many clusters."""
        n = 1 / law.share
        if clusters is not None:
            n /= cluster_doubt(clusters, level) ** 2
        return cls.of_moments(law.mean, law.variance / law.share, accuracy, n, level)

    @classmethod
    def of_moments(
        cls, gap: float, spread: float, accuracy: float, n: float, level: float = DEFAULT_LEVEL
    ) -> Self:
        """Return the gap of n rows of which only sums are known; see `of`.

        Args:
            gap: mean residual.
            spread: variance of the residuals.
            accuracy: share of right rows.
            n: number of rows.
            level: nominal coverage.
        """
        tilt = 1 - 2 * accuracy
        k = deviations(level) ** 2 / n
        # Of d = gap - g: (1 + k) d^2 - k tilt d - k s^2 = 0.
        middle = k * tilt / (2 * (1 + k))
        half = (middle**2 + k * spread / (1 + k)) ** 0.5
        return cls(gap, min(gap - middle - half, gap), max(gap - middle + half, gap))


def stretched(
    metrics: Sequence[Metric],
    predictions: Predictions,
    scores: RowScores,
    level: float,
    seed: int,
) -> dict[str, tuple[float, float]]:
    """Return the least and the most that each metric shows with more of the rarer outcome.

    Empty if there are enough rows of both outcomes. With m of N rows of the rarer outcome, up to
    the Clopper-Pearson bound of its share are not excluded; one more, so many more, and two
    numbers between are tried. Rows that turn out otherwise are drawn with probability proportional
    to 1 - c + 1 / N if they become wrong, c + 1 / N if they become right; a wrong label is drawn
    from the row's other classes.

    Args:
        metrics: what to compute.
        predictions: N rows.
        scores: the same, scored.
        level: nominal coverage of the interval.
        seed: for the choice of rows.
    """
    n, wrong = len(scores.correct), int(np.sum(~scores.correct))
    to_wrong = wrong <= n - wrong
    rare = min(wrong, n - wrong)
    seen, units = rare, n
    if predictions.clusters is not None:
        # Rows of a cluster tell hardly more than one row does of what was not seen.
        units = len(np.unique(predictions.clusters))
        seen = len(np.unique(predictions.clusters[scores.correct != to_wrong]))
    if seen >= ENOUGH or not metrics:
        return {}
    from scipy.special import betaincinv

    bound = float(betaincinv(seen + 1, units - seen, (1 + level) / 2)) if seen < units else 1.0
    common = np.flatnonzero(scores.correct == to_wrong)
    more = min(max(int(np.ceil(n * bound)) - rare, 0), len(common))
    if more == 0:
        return {}
    doubt = (1 - scores.confidence if to_wrong else scores.confidence)[common] + 1 / n
    rng = np.random.default_rng([seed, 4])
    orders = [rng.choice(common, more, False, doubt / doubt.sum()) for _ in range(CHOICES)]
    sizes = np.unique(np.linspace(1, more, NUMBERS).round()).astype(np.int64).tolist()
    whole = {m.name: m.measure for m in metrics if isinstance(m, RowsMetric)}
    others = [metric for metric in metrics if not isinstance(metric, RowsMetric)]

    def values(chosen: IntArray) -> dict[str, float]:
        turned = _with_others(scores, chosen)
        return values_of_rows(others, turned, _sorted(turned))

    tried = [_means([values(order[:size]) for order in orders]) for size in sizes]
    ends = {m.name: _ends([each[m.name] for each in tried]) for m in others}
    if whole:
        measured = [
            each_once(whole, _relabelled(predictions, scores, order, seed), 2, seed)
            for order in orders[:CHOICES_OF_WHOLE_ROWS]
        ]
        of_whole = _means([{n: found.value for n, found in each.items()} for each in measured])
        ends |= {name: (value, value) for name, value in of_whole.items()}
    return ends


def _sorted(scores: RowScores) -> TopLabel:
    return TopLabel.sort(scores.confidence, scores.correct, scores.weights)


def _means(found: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([each[name] for each in found])) for name in found[0]}


def _ends(values: Sequence[float]) -> tuple[float, float]:
    return min(values), max(values)


def _with_others(scores: RowScores, chosen: IntArray) -> RowScores:
    """Return the scores with the other outcome in the chosen rows.

    A row that becomes wrong gives the true label the mean probability of a label drawn from its
    other classes.
    """
    correct, nll, brier = scores.correct.copy(), scores.nll.copy(), scores.brier.copy()
    confidence = scores.confidence[chosen]
    squares = brier[chosen] + 2 * np.exp(-nll[chosen]) - 1
    rest = np.maximum(1 - confidence, SMALLEST_PROBABILITY)
    of_rest = np.clip((squares - confidence**2) / rest, SMALLEST_PROBABILITY, rest)
    of_label = np.where(correct[chosen], of_rest, confidence)
    correct[chosen] = ~correct[chosen]
    nll[chosen] = -np.log(of_label)
    brier[chosen] = squares - 2 * of_label + 1
    return replace(scores, correct=correct, nll=nll, brier=brier)


def _relabelled(
    predictions: Predictions, scores: RowScores, chosen: IntArray, seed: int
) -> Predictions:
    """Return the predictions with labels that make the other outcome of the chosen rows."""
    labels, rng = predictions.labels.copy(), np.random.default_rng([seed, 5])
    probs: FloatArray = to_numpy(predictions.take(chosen).probs).astype(np.float64)
    for i, row in zip(chosen.tolist(), probs, strict=True):
        predicted = int(scores.predicted[i])
        if labels[i] != predicted:
            labels[i] = predicted
            continue
        row[predicted] = 0.0
        if row.any():  # else no other class is possible
            labels[i] = rng.choice(len(row), p=row / row.sum())
    return replace(predictions, known_labels=labels)
