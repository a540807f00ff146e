"""The accuracy of all rows, from outcomes of a random slice of them and scores of all.

A judge's score, or any other, is known of every row; what was true is known of a few that were
drawn at random. The score is mapped to the outcome by an increasing step function, fitted to the
slice by cross-validation, and the mean of what it predicts for all rows is corrected by how far off
it is on the slice (prediction-powered inference, cross-fitted). With prediction f, outcome y,
probability pi of having been drawn and R = 1 for those that were,

    theta = mean_i f_i + R_i / pi_i (y_i - f_i),

whose variance counts both the slice and the number of all rows. It is right whatever the judge is
worth, as long as the slice was drawn as stated; a good judge makes the interval narrower.

References:
    Angelopoulos et al. 2023, arXiv:2301.09633; Zrnic and Candes 2024, arXiv:2309.16598; Wilson,
    Journal of the American Statistical Association 22, 1927.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import Array, BoolArray, FloatArray, IntArray, to_numpy
from calibrant.core.errors import PredictionsError
from calibrant.core.text import wrap
from calibrant.evaluation.uncertainty import wilson_interval
from calibrant.metrics.resampling import cluster_doubt

FOLDS = 5
# Permutations of the test whether the slice is a sample of all rows, and when it warns.
PERMUTATIONS, ALARM = 999, 0.01
# Below so many labelled clusters no interval is to be trusted.
FEWEST = 10


@dataclass(frozen=True)
class Estimate:
    """A share with its interval, fractions."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.1%} ({self.low:.1%} to {self.high:.1%})"


@dataclass(frozen=True)
class SliceAccuracy:
    """What `accuracy_of_all` found.

    Attributes:
        all_rows: the mean outcome of all rows, by slice and scores.
        slice_alone: the same by the slice alone.
        rows: number of all rows.
        labelled: number of rows with an outcome.
        clusters: number of clusters among the labelled; None where rows stand alone.
        level: coverage of the intervals.
        p_value: of a test that the scores of the slice are a sample of all scores; None where rows
            were drawn with unequal probabilities.
    """

    all_rows: Estimate
    slice_alone: Estimate
    rows: int
    labelled: int
    clusters: int | None
    level: float
    p_value: float | None

    @property
    def suspicious(self) -> bool:
        """Whether the slice is hardly a random sample of the rows."""
        return self.p_value is not None and self.p_value < ALARM

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON takes it; fractions."""
        return asdict(self) | {"suspicious": self.suspicious}

    def __str__(self) -> str:
        of = "" if self.clusters is None else f" in {self.clusters} clusters"
        both, alone = self.all_rows, self.slice_alone
        text = (
            f"Accuracy of all {self.rows} rows: {both}, {self.level:.0%} interval, from the "
            f"outcomes of {self.labelled} of them{of} and the scores of all. The slice alone says "
            f"{alone}."
        )
        if self.suspicious:
            text += (
                f" The scores of the slice differ from those of the other rows (p = "
                f"{self.p_value:.3f}): unless it was drawn at random, neither number is valid."
            )
        if (self.clusters or self.labelled) < FEWEST:
            text += f" Don't trust an interval from fewer than {FEWEST} independent outcomes."
        return wrap(text)


# Parameters: the rows, and how they were drawn.
def accuracy_of_all(
    score: Array,
    outcome: Array,
    *,
    clusters: Array | None = None,
    inclusion: Array | None = None,
    level: float = 0.95,
    seed: int = 0,
) -> SliceAccuracy:
    """Estimate the mean outcome of all rows, where it is known of a random slice only.

    Args:
        score: (N,) numbers that are higher where the outcome is likelier good.
        outcome: (N,) in [0, 1]; NaN where it isn't known.
        clusters: (N,) names of clusters, such as prompts, whose rows aren't independent.
        inclusion: (N,) probability with which each row was drawn into the slice; None where all had
            the same.
        level: coverage of the intervals.
        seed: for folds and permutations.

    Raises:
        PredictionsError: other shapes, outcomes outside [0, 1], fewer than two of them, or
            probabilities outside (0, 1].

    Examples:
        >>> import numpy as np
        >>> from calibrant.evaluation.slices import accuracy_of_all
        >>> rng = np.random.default_rng(0)
        >>> score = rng.uniform(size=4000)
        >>> outcome = (rng.uniform(size=4000) < score).astype(float)
        >>> outcome[200:] = np.nan
        >>> found = accuracy_of_all(score, outcome)
        >>> width = lambda estimate: estimate.high - estimate.low
        >>> found.labelled, width(found.all_rows) < width(found.slice_alone)
        (200, True)
    """
    scores, outcomes = _checked(score, outcome)
    known = ~np.isnan(outcomes)
    n, labelled = len(scores), int(known.sum())
    groups: IntArray | None = None
    if clusters is not None:
        groups = np.unique(to_numpy(clusters), return_inverse=True)[1].astype(np.int64)
    drawn = np.full(n, labelled / n)
    if inclusion is not None:
        drawn = np.asarray(to_numpy(inclusion), dtype=np.float64)
        if drawn.shape != scores.shape or not ((drawn > 0) & (drawn <= 1)).all():
            raise PredictionsError("inclusion must hold a probability in (0, 1] for each row")
    factor = known / drawn
    factor = factor * (n / factor.sum())  # as many rows as there are: less spread
    truth = np.where(known, outcomes, 0.0)
    rng = np.random.default_rng(seed)
    predicted = _predicted(scores, truth, known, factor, groups, rng)
    off = factor * (truth - predicted)
    moves = predicted - predicted.mean() + off - factor * off.mean()
    units = len(np.unique(groups[known])) if groups is not None else labelled
    alone = factor * truth
    return SliceAccuracy(
        _estimate(predicted + off, moves, groups, units, level),
        _estimate(alone, factor * (truth - alone.mean()), groups, units, level),
        n,
        labelled,
        None if groups is None else units,
        level,
        None if inclusion is not None or labelled == n else _same(scores, known, groups, rng),
    )


def _checked(score: Array, outcome: Array) -> tuple[FloatArray, FloatArray]:
    scores = np.asarray(to_numpy(score), dtype=np.float64)
    outcomes = np.asarray(to_numpy(outcome), dtype=np.float64)
    if scores.ndim != 1 or outcomes.shape != scores.shape:
        raise PredictionsError(
            f"scores and outcomes must have one shape (N,), not {scores.shape} and {outcomes.shape}"
        )
    known = outcomes[~np.isnan(outcomes)]
    if not np.isfinite(scores).all() or ((known < 0) | (known > 1)).any():
        raise PredictionsError("scores must be finite, and outcomes lie in [0, 1] or be NaN")
    if len(known) < 2:
        raise PredictionsError("at least two rows need an outcome")
    return scores, outcomes


# Parameters: the rows, and what is drawn of them.
def _predicted(
    scores: FloatArray,
    truth: FloatArray,
    known: BoolArray,
    factor: FloatArray,
    groups: IntArray | None,
    rng: np.random.Generator,
) -> FloatArray:
    """Predict each outcome from the other folds; where it isn't known, by the mean of all folds."""
    units = np.arange(len(scores)) if groups is None else groups
    own = np.unique(units[known])
    folds = min(FOLDS, len(own))
    fold_of = np.full(int(units.max()) + 1, -1)
    fold_of[rng.permutation(own)] = np.arange(len(own)) % folds
    fold = fold_of[units]
    predicted = np.zeros(len(scores))
    for number in range(folds):
        train = known & (fold != number)
        values = _step(scores[train], truth[train], factor[train], scores)
        predicted += np.where(known, (fold == number) * values, values / folds)
    return predicted


def _step(x: FloatArray, y: FloatArray, weight: FloatArray, at: FloatArray) -> FloatArray:
    """Return an increasing function, fitted to weighted points by least squares, at some places."""
    from scipy.optimize import isotonic_regression

    if not len(x):
        return np.zeros(len(at))
    places, of = np.unique(x, return_inverse=True)
    weights = np.bincount(of, weight)
    means = np.bincount(of, weight * y) / weights
    return np.interp(at, places, isotonic_regression(means, weights=weights).x)


def _estimate(
    terms: FloatArray, influence: FloatArray, groups: IntArray | None, units: int, level: float
) -> Estimate:
    """Return the mean of terms with its interval, by the spread of what each cluster moves it.

    It is Wilson's, of as many independent outcomes as have that spread, with the quantile of t:
    where hardly any outcome is wrong, an interval of equal arms covers too seldom.
    """
    n, value = len(terms), min(max(float(terms.mean()), 0.0), 1.0)
    sums = influence if groups is None else np.bincount(groups, influence)
    spread = float(np.sqrt((sums**2).sum() * units / max(units - 1, 1))) / n
    if spread == 0:
        low, high = _of_no_spread(value, units, level)
        return Estimate(value, low, high)
    inside = min(max(value, 0.5 / units), 1 - 0.5 / units)
    alike = np.array(inside * (1 - inside) / spread**2)
    wider = cluster_doubt(max(units, 2), level)
    low, high = wilson_interval(inside * alike, alike, level, wider=wider)
    return Estimate(value, min(float(low), value), max(float(high), value))


def _of_no_spread(value: float, units: int, level: float) -> tuple[float, float]:
    """Return the exact binomial interval: where all outcomes are alike nothing else is known."""
    rare = ((1 - level) / 2) ** (1 / units)
    return (rare, 1.0) if value > 0.5 else (0.0, 1 - rare)


def _same(
    scores: FloatArray, known: BoolArray, groups: IntArray | None, rng: np.random.Generator
) -> float:
    """Return the p-value of a permutation test that slice and rest have one distribution of scores.

    The statistic is the largest gap of the distribution functions (Kolmogorov and Smirnov). Of
    clusters one row each is drawn, so that what is permuted is independent.
    """
    if groups is not None:
        order = rng.permutation(len(scores))
        first = order[np.unique(groups[order], return_index=True)[1]]
        scores, known = scores[first], known[first]
    order = np.argsort(scores, kind="stable")
    last: NDArray[np.intp] = np.flatnonzero(np.append(np.diff(scores[order]) > 0, True))
    known = known[order]
    count = int(known.sum())
    if count in (0, len(known)):
        return 1.0

    def gap(drawn: BoolArray) -> float:
        inside = np.cumsum(drawn)[last]
        return float(np.abs(inside / count - (last + 1 - inside) / (len(drawn) - count)).max())

    seen = gap(known)
    orders = (rng.permutation(known) for _ in range(PERMUTATIONS))
    as_far = sum(gap(drawn) >= seen - 1e-12 for drawn in orders)
    return (1 + as_far) / (1 + PERMUTATIONS)
