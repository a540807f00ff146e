"""Calibrators as they would be if their rows had been drawn again: what a fit is unsure of.

What is computed behind a calibrator hangs on the rows of the fit. These are resampled, clusters as
wholes, and the method is fitted to each resample anew; how much the result moves is the
calibrator's own share of its error.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from calibrant.core.arrays import FloatArray, IntArray, to_numpy
from calibrant.core.errors import PredictionsError, heard_warnings
from calibrant.core.progress import Progress, Watcher
from calibrant.core.weights import codes_of
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.fitted_rows import share_among, were_fitted
from calibrant.posthoc.prior_shift import PriorShift, shifted
from calibrant.predictions.predictions import Predictions

# Resamples by default: each takes as long as a fit.
RESAMPLES = 100


def refitted(
    calibrator: Calibrator, rows: Predictions, resamples: int, seed: int, watch: Watcher | None
) -> Iterator[tuple[Calibrator, IntArray]]:
    """Yield, so many times, a calibrator and the resampled rows that it was fitted to.

    A calibrator that wasn't fitted to these rows is yielded as it is: what it is unsure of can't be
    told from other rows.
    """
    again, units = fitted_to(calibrator, rows), units_of(rows)
    for number in range(resamples):
        if watch is not None:
            watch(Progress(number, resamples, 0, 0, 0.0, f"resample {number + 1}"))
        rng = np.random.default_rng([seed, number])
        index = drawn(rng, units)
        if again:
            with heard_warnings():  # what a resample lacks all rows may have
                fresh = _fitted_again(calibrator, rows.take(index))
            yield fresh, index
        else:
            yield calibrator, index


def _fitted_again(calibrator: Calibrator, rows: Predictions) -> Calibrator:
    """Return the same method, fitted to other rows; with the same shares of classes behind it."""
    if isinstance(calibrator, PriorShift):
        return shifted(_fitted_again(calibrator.base_, rows), calibrator.log_ratio_)
    return type(calibrator)(**calibrator.get_params()).fit_predictions(rows)


def fitted_to(calibrator: Calibrator, rows: Predictions) -> bool:
    """Return whether a calibrator was fitted to these rows, as far as can be told."""
    share = share_among(calibrator.fitted_to_, rows)
    return share is not None and were_fitted(share, rows)


def not_fitted_note(calibrator: Calibrator, rows: Predictions) -> str:
    """Return what to say of intervals where `fitted_to` these rows a calibrator isn't."""
    return (
        f"{calibrator.method} wasn't fitted to {rows.source}, as far as can be told, so the "
        "intervals leave out the uncertainty of its fit."
    )


def units_of(rows: Predictions) -> IntArray:
    """Return the (N,) number of what each row is drawn with: its cluster, or itself."""
    if rows.clusters is None:
        return np.arange(rows.n, dtype=np.int64)
    return codes_of(rows.clusters)[0]


def drawn(rng: np.random.Generator, units: IntArray) -> IntArray:
    """Return the rows of a resample of whole units."""
    number = int(units.max()) + 1
    times = np.bincount(rng.integers(number, size=number), minlength=number)[units]
    return np.repeat(np.arange(len(units)), times)


def class_probabilities(calibrator: Calibrator, rows: Predictions) -> FloatArray:
    """Return (N, K) calibrated probabilities of all classes.

    Raises:
        PredictionsError: rows with one number each.
    """
    after = calibrator.apply_predictions(rows)
    if after.top_only:
        raise PredictionsError(
            f"{rows.source}: holds the confidence of the predicted class only, and this needs a "
            "probability for every class"
        )
    return to_numpy(after.probs).astype(np.float64)


def mean_with_covariance(
    values: FloatArray, units: IntArray, weights: FloatArray | None
) -> tuple[FloatArray, FloatArray]:
    """Return the (D,) mean of (N, D) values and its (D, D) covariance over independent units."""
    weight = np.ones(len(values)) if weights is None else weights
    total = float(weight.sum())
    mean = weight @ values / total
    number = int(units.max()) + 1
    moves = weight[:, None] * (values - mean)
    if number < len(values):
        summed = [np.bincount(units, column, number) for column in moves.T]
        moves = np.stack(summed, axis=1)
    return mean, moves.T @ moves / total**2 * (number / max(number - 1, 1))


def chance_of_mean(difference: FloatArray, covariance: FloatArray, units: int) -> float:
    """Return the p-value of "the mean is 0" of (D,) numbers with a covariance (Hotelling 1931)."""
    from scipy.stats import f

    values, vectors = np.linalg.eigh(covariance)
    kept = values > 1e-10 * max(float(values.max(initial=0.0)), 1e-300)
    rank = int(kept.sum())
    if rank == 0 or units - 1 <= rank:
        return 1.0
    along = vectors.T[kept] @ difference
    square = float((along**2 / values[kept]).sum())
    free = units - 1
    return float(f.sf(square * (free - rank + 1) / (rank * free), rank, free - rank + 1))


def chance(p_value: float) -> str:
    """Return a p-value as sentences have it, as in "p = 0.031" or "p < 0.0001"."""
    return f"p = {p_value:.2g}" if p_value >= 1e-4 else "p < 0.0001"
