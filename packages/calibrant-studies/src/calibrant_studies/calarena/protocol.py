"""How CalArena ranks methods: improvement over the base model, win rates and Elo ratings.

All of them read one table of scores, lower is better, a row for each experiment and a column for
each method; NaN where a method failed, which then loses against all that didn't. (In CalArena's own
code it is beaten by nobody, and draws for its Elo rating: ``failures="draw"``.) Intervals come from
a bootstrap over experiments, or over data sets with all of their experiments, since models of one
data set aren't independent.

Sources: Berta, Holzmüller, Bach and Jordan, "CalArena: A Large-Scale Post-Hoc Calibration
Benchmark", arXiv 2605.30188 (2026); Bradley and Terry, "Rank Analysis of Incomplete Block Designs"
(1952).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import FloatArray

Failures = Literal["lose", "draw"]
RESAMPLES = 1000
LEVEL = 0.95
# Elo ratings: odds of 10 to 1 are 400 points apart, and the mean method has 1000.
POINTS, MEAN_RATING = 400.0, 1000.0
# Between any two methods this share of a comparison is added that ends in a draw, so that one which
# wins always has a finite rating. It moves no other rating visibly.
DRAW = 1e-2
# A score of ours that differs by less from a published one is the same: probabilities of four
# bytes, stored or in CalArena's sums, move a log loss by 6e-8 and by a few parts in ten million.
ROUNDING, RELATIVE_ROUNDING = 1e-7, 1e-6
# By CalArena's own rule, models of one data set stand or fall together in these benchmarks.
BY_DATASET = frozenset({"tabrepo-binary", "tabrepo-multiclass", "tabarena-binary"})


@dataclass(frozen=True)
class Estimates:
    """One number for each of M methods with its interval, each (M,)."""

    values: FloatArray
    low: FloatArray
    high: FloatArray


def blocks_of(datasets: Sequence[str], benchmark: str) -> NDArray[np.int64]:
    """Return (E,) numbers of what is resampled whole: data sets, or single experiments."""
    if benchmark not in BY_DATASET:
        return np.arange(len(datasets))
    return np.unique(np.asarray(datasets), return_inverse=True)[1].astype(np.int64)


def resampled_weights(
    blocks: NDArray[np.int64], seed: int = 0, resamples: int = RESAMPLES
) -> FloatArray:
    """Return (R, E) how often each experiment is in each resample."""
    count = int(blocks.max()) + 1
    drawn = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), resamples)
    return drawn[:, blocks].astype(np.float64)


def improvements(scores: FloatArray, base: FloatArray, weights: FloatArray) -> Estimates:
    """Return how much lower the mean score is than the base model's, larger is better.

    Where a method failed the base model stands in for it.

    Args:
        scores: (E, M) scores of methods.
        base: (E,) scores of the base model.
        weights: (R, E) of `resampled_weights`.
    """
    gains = base[:, None] - scores
    return _means(np.where(np.isnan(scores), 0.0, gains), weights)


def win_rates(
    scores: FloatArray,
    weights: FloatArray,
    against: FloatArray | None = None,
    failures: Failures = "lose",
    own: Sequence[int] = (),
) -> Estimates:
    """Return the mean share of other methods that have a strictly larger score.

    Args:
        scores: (E, M) scores of methods.
        weights: (R, E) of `resampled_weights`.
        against: (E, N) published scores of those to win against, if not the other columns.
        failures: what a method that failed does.
        own: columns that were measured here: they win, and are beaten, by more than rounding only.
    """
    here = np.array([i in own for i in range(scores.shape[1])])
    others = scores if against is None else against
    theirs = here if against is None else np.zeros(others.shape[1], np.bool_)
    wins = _beats(scores, others, failures, here[:, None] | theirs).sum(axis=2)
    opponents = others.shape[1] - (against is None)
    return _means(wins / max(opponents, 1), weights)


def _beats(
    scores: FloatArray, others: FloatArray, failures: Failures, rounded: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Return (E, M, N) whether each method has a lower score than each of the others.

    Two implementations of one method differ by rounding, of which nobody wins: where (M, N)
    `rounded` is true. Published scores among one another are taken as CalArena takes them.
    """
    if failures == "lose":
        scores, others = (np.where(np.isnan(x), np.inf, x) for x in (scores, others))
    ours, theirs = scores[:, :, None], others[:, None, :]
    smaller = np.minimum(np.abs(ours), np.abs(theirs))
    # Failures have no rounding.
    least = ROUNDING + RELATIVE_ROUNDING * np.where(np.isfinite(smaller), smaller, 0.0)
    return ours < theirs - np.where(rounded, least, 0.0)


def _means(values: FloatArray, weights: FloatArray) -> Estimates:
    drawn = weights @ values / weights.sum(axis=1, keepdims=True)
    return Estimates(values.mean(axis=0), *_ends(drawn))


def _ends(drawn: FloatArray) -> tuple[FloatArray, FloatArray]:
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return low, high


def elo_ratings(
    scores: FloatArray,
    weights: FloatArray,
    failures: Failures = "lose",
    own: Sequence[int] = (),
) -> Estimates:
    """Return Elo ratings: the Bradley-Terry model of who beats whom, ties counting half.

    Args:
        scores: (E, M) scores of methods.
        weights: (R, E) of `resampled_weights`.
        failures: what a method that failed does.
        own: columns that were measured here, as in `win_rates`.
    """
    methods = scores.shape[1]
    here = np.array([i in own for i in range(methods)])
    better = _beats(scores, scores, failures, here[:, None] | here)
    points = better + 0.5 * ~(better | better.transpose(0, 2, 1))
    points = points.reshape(len(scores), -1)
    values = ratings_of(points.sum(axis=0).reshape(methods, methods))
    drawn = np.array(
        [ratings_of(each.reshape(methods, methods), values) for each in weights @ points]
    )
    return Estimates(_in_points(values), *_ends(_in_points(drawn)))


def _in_points(ratings: FloatArray) -> FloatArray:
    return MEAN_RATING + POINTS / np.log(10) * ratings


def ratings_of(wins: FloatArray, start: FloatArray | None = None) -> FloatArray:
    """Return (M,) Bradley-Terry ratings in natural units with mean 0.

    Args:
        wins: (M, M) how often the method of the row beat that of the column, draws counting half.
        start: where to begin; zeros by default.
    """
    methods = len(wins)
    wins = wins * (1 - np.eye(methods)) + DRAW / 2 * (1 - np.eye(methods))
    games = wins + wins.T
    ratings: FloatArray = np.zeros(methods) if start is None else start.copy()
    scored = wins.sum(axis=1)
    for _ in range(100):
        chances: FloatArray = 1 / (1 + np.exp(ratings[None, :] - ratings[:, None]))
        gradient = scored - (games * chances).sum(axis=1)
        curvature = games * chances * chances.T
        hessian = np.diag(curvature.sum(axis=1)) - curvature
        # Adding the same to all changes nothing: that direction is held at mean 0.
        level = float(curvature.max()) / methods
        step = cast(FloatArray, np.linalg.solve(hessian + level, gradient))
        # The likelihood is concave; a bounded step keeps Newton from leaping over a flat region.
        ratings = ratings + step * min(1.0, 2.0 / max(float(np.abs(step).max()), 1e-300))
        ratings = ratings - ratings.mean()
        if np.abs(step).max() < 1e-9:
            break
    return ratings
