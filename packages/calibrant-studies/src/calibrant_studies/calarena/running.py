"""Methods on CalArena's experiments: fitted on the one part, measured on the other."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from calibrant.core.errors import NotApplicableError
from calibrant.metrics.binned import ece_of_curves
from calibrant.metrics.top_label import TopLabel
from calibrant.posthoc.base import Calibrator
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.scoring import RowScores, score_rows
from calibrant_studies.calarena.stored import Experiment


class Experiments(Protocol):
    """Experiments that are read one at a time, such as `StoredExperiments`."""

    experiments: list[Experiment]

    def fit(self, experiment: Experiment) -> Predictions:
        """Return the rows to fit on."""
        ...

    def test(self, experiment: Experiment) -> Iterator[Predictions]:
        """Yield the rows to measure on."""
        ...


def scores_of(
    stored: Experiments, experiment: Experiment, calibrator: Calibrator
) -> dict[str, float]:
    """Fit a method on the calibration rows of an experiment and score it on the test rows.

    Returns:
        ``brier`` (sum over classes, two for binary problems), ``logloss`` (nats), ``accuracy`` and
        ``ece-15`` (fractions; of the positive class for binary problems, of the top label for
        others) and ``time`` (seconds to fit and to apply). The test rows are read block by block.

    Raises:
        PredictionsError: rows that can't be read, or that the method refuses.
        NotApplicableError: the method needs what such files don't hold.
    """
    fit = stored.fit(experiment)
    reason = calibrator.lacks(fit)
    if reason is not None:
        raise NotApplicableError(reason)
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        calibrator.fit_predictions(fit)
    seconds = time.perf_counter() - started
    scored: list[RowScores] = []
    for block in stored.test(experiment):
        started = time.perf_counter()
        calibrated = calibrator.apply_predictions(block)
        seconds += time.perf_counter() - started
        rows = score_rows(calibrated)
        scored.append(rows.of_positive() if experiment.binary else rows)
    right = np.concatenate([rows.correct for rows in scored])
    top = TopLabel.sort(_joined(scored, "confidence"), right)
    accuracy = right
    if experiment.binary:
        # `of_positive` asks whether the class is 1; the prediction is right where both agree.
        accuracy = (_joined(scored, "confidence") > 0.5) == right
    return {
        "brier": float(_joined(scored, "brier").mean()),
        "logloss": float(_joined(scored, "nll").mean()),
        "accuracy": float(accuracy.mean()),
        "ece-15": float(ece_of_curves(top.curves())[0]),
        "time": seconds,
    }


def _joined(scored: Sequence[RowScores], name: str) -> np.ndarray:
    return np.concatenate([getattr(rows, name) for rows in scored])
