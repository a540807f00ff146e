"""What studies measure of a fitted method, and how they write a mean."""

from __future__ import annotations

import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from calibrant.core.arrays import FloatArray
from calibrant.evaluation.over_data_sets import t_interval
from calibrant.metrics.binned import adaece_of_curves, ece_of_curves
from calibrant.metrics.top_label import TopLabel
from calibrant.posthoc.base import Calibrator
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.scoring import score_rows


class Scores(NamedTuple):
    """ECE and AdaECE of 15 bins, mean NLL in nats, and mean Brier score; fractions."""

    ece: float
    adaece: float
    nll: float
    brier: float


@contextmanager
def quietly() -> Generator[None]:
    """Hide the warnings of fits, of which few rows give many: the table shows what comes of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def fit_and_score(calibrator: Calibrator, fit: Predictions, test: Predictions) -> Scores:
    """Return the scores on `test` after a fit on `fit`."""
    with quietly():
        calibrator.fit(fit.logits, fit.labels)
    return scores_of(calibrator, test)


def scores_of(calibrator: Calibrator, test: Predictions) -> Scores:
    """Return the scores of a fitted calibrator."""
    rows = score_rows(Predictions.from_probs(calibrator.predict_proba(test.logits), test.labels))
    curves = TopLabel.sort(rows.confidence, rows.correct).curves()
    return Scores(
        float(ece_of_curves(curves)[0]),
        float(adaece_of_curves(curves)[0]),
        float(rows.nll.mean()),
        float(rows.brier.mean()),
    )


def with_error(values: FloatArray, digits: int) -> str:
    """Return the mean of (N,) values with its standard error."""
    error = float(values.std(ddof=1)) / np.sqrt(len(values))
    return f"{values.mean():.{digits}f} +- {error:.{digits}f}"


def mean_with_interval(values: Sequence[float]) -> dict[str, float]:
    """Return the mean of independent numbers, with its 95 % t interval, as cells have it."""
    low, high = t_interval(np.asarray(values), 0.95)
    mean = float(np.mean(values))
    return (
        {"value": mean}
        if low is None or high is None
        else {"value": mean, "low": low, "high": high}
    )
