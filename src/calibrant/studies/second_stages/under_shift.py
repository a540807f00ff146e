"""What heads say of images that the network was not trained for: corrupted and unknown ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calibrant.metrics.binned import expected_calibration_error
from calibrant.metrics.detection import auroc, fpr_at_tpr
from calibrant.posthoc.registry import make_calibrator
from calibrant.predictions.predictions import Predictions
from calibrant.studies.second_stages.measures import logits_of
from calibrant.studies.second_stages.runs import Run
from calibrant.studies.second_stages.shifted_images import Shifted
from calibrant.studies.second_stages.tables import NETWORK

if TYPE_CHECKING:
    from calibrant.training.second_stages import SecondStage

SCALED = f"{NETWORK}, temperature"
UNDER_SHIFT = (
    NETWORK,
    SCALED,
    "retrain",
    "maccal",
    "maccal, two layers",
    "tst",
    "balcal, frozen",
)

Speaker = Callable[["Predictions | Shifted"], NDArray[np.floating]]


def speaker(name: str, stages: dict[str, SecondStage | None], run: Run) -> Speaker:
    """Return what gives a head's probabilities for rows; SCALED is fitted on validation rows."""
    stage = None if name == SCALED else stages[name]
    kind = "temperature" if name == SCALED else "none"
    calibrator = make_calibrator(kind).fit(logits_of(stage, run.val), run.val.labels)
    return lambda rows: calibrator.predict_proba(logits_of(stage, rows))


def under_corruption(
    speakers: dict[str, Speaker], moved: list[Shifted]
) -> dict[str, list[dict[str, Any]]]:
    """Return accuracy and ECE of some methods on every corruption and severity (Fig. 5)."""
    results: dict[str, list[dict[str, Any]]] = {}
    for name, speak in speakers.items():
        results[name] = []
        for rows in moved:
            if rows.severity is None:
                continue
            probs = speak(rows)
            results[name].append(
                {
                    "corruption": rows.kind,
                    "severity": rows.severity,
                    "accuracy": float((probs.argmax(axis=1) == rows.labels).mean()),
                    "ece": float(expected_calibration_error(probs, rows.labels)),
                }
            )
    return results


def out_of_distribution(
    speakers: dict[str, Speaker], run: Run, moved: list[Shifted]
) -> dict[str, dict[str, dict[str, float]]]:
    """Return AUROC and FPR95 of the top probability, test images against images of nothing."""
    results: dict[str, dict[str, dict[str, float]]] = {}
    for name, speak in speakers.items():
        known = speak(run.test).max(axis=1)
        results[name] = {}
        for rows in moved:
            if rows.severity is None:
                unknown = speak(rows).max(axis=1)
                results[name][rows.kind] = {
                    "auroc": auroc(known, unknown),
                    "fpr95": fpr_at_tpr(known, unknown),
                }
    return results
