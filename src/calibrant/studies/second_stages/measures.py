"""What is measured of one head: how long it learns, and its metrics on the test rows."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from calibrant.evaluation.evaluate import evaluate
from calibrant.posthoc.registry import make_calibrator
from calibrant.predictions.predictions import Predictions
from calibrant.studies.second_stages.runs import Run

if TYPE_CHECKING:
    from calibrant.studies.second_stages.shifted_images import Shifted
    from calibrant.training.second_stages import SecondStage

METRICS = ("accuracy", "ece", "adaece", "mce", "overconfidence", "underconfidence", "nll")
AFTER = ("none", "temperature", "smart")
RESAMPLES = 200


def fit(stage: SecondStage, run: Run) -> float:
    """Train a second stage on a run's features; return the seconds of processor time."""
    started = time.process_time()
    stage.fit(
        run.train.features,
        run.train.labels,
        (run.val.features, run.val.labels),
        n_classes=run.train.n_classes,
        reference_logits=run.val.logits,
    )
    return time.process_time() - started


def logits_of(stage: SecondStage | None, rows: Predictions | Shifted) -> Any:
    """Return what a head says of rows; None is the network's own."""
    return rows.logits if stage is None else stage.logits(rows.features)


def after_calibration(stage: SecondStage | None, run: Run) -> dict[str, dict[str, float]]:
    """Return the metrics on the test rows, as they come and after two calibrators."""
    val, test = logits_of(stage, run.val), logits_of(stage, run.test)
    results: dict[str, dict[str, float]] = {}
    for name in AFTER:
        calibrator = make_calibrator(name).fit(val, run.val.labels)
        results[name] = measured(calibrator.predict_proba(test), run.test.labels)
    return results


def measured(probs: Any, labels: Any) -> dict[str, float]:
    """Return all metrics and the ECE's 95 % floor."""
    found = evaluate(probs, labels, metrics=METRICS, resamples=RESAMPLES)
    values = {metric: float(found[metric].value) for metric in METRICS}
    return values | {"ece_floor_95": found["ece"].floor_95 or 0.0}
