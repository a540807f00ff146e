"""How what isn't a logit becomes one: scores by their mean and unit, exact zeros by a floor.

A forest of a hundred trees says 0 where it means less than one in a hundred. The logarithm of 0 is
minus infinity, or what the smallest number makes of it, -87, and a temperature then makes up for
these few in all other rows. So a fit to probabilities with exact zeros first raises them to a floor
that it chooses by likelihood on rows held out; the calibrator keeps it and raises other rows' too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import FloatArray, IntArray, namespace, to_numpy
from calibrant.core.errors import NotIdentifiedWarning, PredictionsError, warn_caller
from calibrant.core.weights import mean
from calibrant.posthoc.state import Estimator
from calibrant.predictions.binary import SMALLEST_PROBABILITY, as_logits
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import RowSummary, summarize
from calibrant.predictions.temperature import fit_temperature

if TYPE_CHECKING:
    from calibrant.scale.shards import Shards

# Scores lie at most so many units from their mean, lest probabilities beyond 1 - 1e-16 are one.
FARTHEST = 20.0
# The highest floor that is tried, and how many from half of the least probability above 0 up to it.
# A lower one would gain at most that half in log-likelihood, and a single surprise costs far more.
HIGHEST_FLOOR, FLOORS = 0.1, 8
# More rows wouldn't choose another one.
FLOOR_ROWS, FLOOR_FOLDS = 20_000, 5
# Of many files so many rows show whether there are zeros.
FIRST_ROWS = 4096


def rows_of_event(estimator: Estimator, predictions: Predictions) -> Predictions:
    """Return logits: of rows of one number those of "the predicted label is right".

    Scores and zeros are put on the scale of log odds as `estimator` has learnt to (`placing_`).
    """
    if predictions.kind != "score":
        rows = predictions.as_correctness()
        (floor,) = estimator.placing_ or (SMALLEST_PROBABILITY,)
        return rows.as_logits(floor)
    scores = predictions.scores
    return predictions.as_correctness(
        as_logits(namespace(scores), scores, "score", estimator.placing_)
    )


def placing_of(estimator: Estimator, predictions: Predictions) -> tuple[float, ...] | None:
    """Return the numbers by which the rows of a fit become logits, `placing_`; None without any."""
    if predictions.kind == "score":
        return _place_of_scores(predictions)
    if predictions.kind == "logits" or not estimator.raises_zeros:
        return None
    return _floor_of(predictions.as_correctness())


def _place_of_scores(predictions: Predictions) -> tuple[float, float]:
    """Return the mean of scores and their unit, which puts them on the scale of log odds.

    That is their standard deviation, or more where some lie very far out. Where they don't rank
    right rows above wrong ones, it warns.
    """
    scores, weights = np.asarray(predictions.scores), predictions.weights
    middle = mean(scores, weights)
    spread = np.sqrt(mean((scores - middle) ** 2, weights))
    farthest = float(np.abs(scores - middle).max())
    right = predictions.predicted == predictions.labels
    count = np.ones(len(scores)) if weights is None else weights
    _, rank = np.unique(scores, return_inverse=True)
    if right.any() and not right.all():
        of_right, of_all = (float(np.average(rank, weights=count * r)) for r in (right, 1))
        if of_right < of_all:
            warn_caller(
                NotIdentifiedWarning(
                    f"{predictions.source}: rows of higher scores are right less often; of a "
                    "number that is low where the prediction is sure, such as a loss, give minus it"
                )
            )
    unit = max(float(spread), farthest / FARTHEST)
    return float(middle), unit or 1.0


def note_of_zeros(estimator: Estimator) -> str | None:
    """Return what a fit report says of exact zeros, if the fit saw some."""
    if estimator.kind_ != "probs" or estimator.placing_ is None:
        return None
    (floor,) = estimator.placing_
    return (
        f"a probability of exactly 0 counts as {floor:.2g}: of the values tried, this gave the "
        "lowest NLL on held-out rows"
    )


def holds_zeros(rows: Predictions | Shards) -> bool:
    """Return whether rows, the first of many files, have probabilities of exactly 0."""
    if rows.kind != "probs":
        return False
    if not isinstance(rows, Predictions):
        from calibrant.scale.map_reduce import Task
        from calibrant.scale.sampling import chosen_rows

        shard = next((each for each in rows if each.rows), None)
        if shard is None:
            return False
        try:
            rows = chosen_rows(Task(shard, np.arange(min(shard.rows, FIRST_ROWS))))
        except PredictionsError:  # whoever reads all of them says what is wrong
            return False
    return bool((to_numpy(rows.scores) == 0).any())


def half_of_least(probs: NDArray[Any]) -> float:
    """Return half of the least probability above 0, which is what an exact 0 stands for."""
    return max(float(probs.min(initial=1.0, where=probs > 0)) / 2, SMALLEST_PROBABILITY)


def _floor_of(rows: Predictions) -> tuple[float] | None:
    """Return what exact zeros of (N, K) probabilities are raised to; None where there are none.

    It is half of the least probability above 0 or a higher one, whichever gives rows held out from
    a temperature the most likelihood.
    """
    probs = to_numpy(rows.scores).astype(np.float64)
    if not (probs == 0).any():
        return None
    usual = half_of_least(probs)

    def summary(floor: float) -> RowSummary:
        return summarize(np.log(np.maximum(probs, floor)), labels, weights=weights)

    labels, weights = rows.labels, rows.weights
    first = summary(usual)
    # Rows and their folds are chosen no matter in which order they come.
    chosen = np.lexsort((first.label_gap, first.margin))[:: -(-rows.n // FLOOR_ROWS)]
    probs, labels = probs[chosen], labels[chosen]
    weights = None if weights is None else weights[chosen]
    fold = np.arange(len(chosen)) % FLOOR_FOLDS
    floors = np.geomspace(usual, max(usual, HIGHEST_FLOOR), FLOORS).tolist()
    means = [mean(_held_out(summary(floor), fold), weights) for floor in floors]
    return (floors[int(np.argmin(means))],)


def _held_out(rows: RowSummary, fold: IntArray) -> FloatArray:
    """Return the (N,) log losses of rows by a temperature that was fitted to the other folds."""
    losses = np.zeros(rows.n)
    for part in np.unique(fold) if rows.n >= FLOOR_FOLDS else ():
        seen, away = np.flatnonzero(fold != part), np.flatnonzero(fold == part)
        beta = fit_temperature(rows.take(seen)).beta
        unseen = rows.take(away)
        losses[away] = unseen.curve.evaluate(beta).value + beta * unseen.label_gap
    return losses
