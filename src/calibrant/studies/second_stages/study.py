"""Every second stage on one run: the methods, MaC-Cal step by step, and masks at inference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.predictions.rows import softmax
from calibrant.studies.second_stages.measures import after_calibration, fit, measured
from calibrant.studies.second_stages.runs import Run, seconds_of_stage_one
from calibrant.studies.second_stages.shifted_images import shifted
from calibrant.studies.second_stages.tables import NETWORK
from calibrant.studies.second_stages.under_shift import (
    UNDER_SHIFT,
    out_of_distribution,
    speaker,
    under_corruption,
)

if TYPE_CHECKING:
    from calibrant.training.second_stages import MaCCal, SecondStage

# As MaC-Cal's comparison trained them.
SGD = {"optimizer": "sgd", "learning_rate": 0.1, "batch_size": 128}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "retrain": ("retrain", {}),
    "maccal": ("maccal", {}),
    "maccal, two layers": ("maccal", {"bottleneck": True}),
    "maccal, last mask": ("maccal", {"mode": "last_mask"}),
    "tst": ("tst", {}),
    "tst, SGD": ("tst", SGD),
    "v-tst": ("v-tst", {}),
    "v-tst, SGD": ("v-tst", SGD),
    "balcal, frozen": ("balcal", {}),
}
FIXED_RETENTION = 0.5


def study(run: Run, epochs: int) -> dict[str, Any]:
    """Return everything that is measured of one run, as JSON takes it."""
    from calibrant.training.second_stages import MaCCal, make_second_stage

    stages: dict[str, SecondStage | None] = {NETWORK: None}
    seconds: dict[str, float] = {}
    for name, (method, arguments) in METHODS.items():
        stage = make_second_stage(method, seed=run.seed, epochs=epochs, **arguments)
        seconds[name] = fit(stage, run)
        stages[name] = stage
    default, full = stages["maccal"], stages["maccal, two layers"]
    assert isinstance(default, MaCCal)
    assert isinstance(full, MaCCal)
    moved = shifted(run.folder)
    speakers = {name: speaker(name, stages, run) for name in UNDER_SHIFT}
    return {
        "loss": run.loss,
        "seed": run.seed,
        "rows": [run.train.n, run.val.n, run.test.n],
        "methods": {name: after_calibration(stage, run) for name, stage in stages.items()},
        "notes": {name: stage.notes_ for name, stage in stages.items() if stage is not None},
        "ablation": ablation(full, run, epochs),
        "kappa": {"chosen": default.kappa_, "curve": default.summary()["kappa_curve"]},
        "retention": [record.as_dict() for record in default.history_],
        "masks_at_inference": masks_at_inference(run),
        "corruptions": under_corruption(speakers, moved),
        "out_of_distribution": out_of_distribution(speakers, run, moved),
        "seconds": {"stage 1": seconds_of_stage_one(run.folder), **seconds},
    }


def ablation(full: MaCCal, run: Run, epochs: int) -> dict[str, dict[str, float]]:
    """Return the steps of the paper's Table 5: fixed retention 0.5, then the kappa chosen."""
    from calibrant.training.second_stages import ABLATION, MaCCal

    results: dict[str, dict[str, float]] = {}
    whole = list(ABLATION)[-1]
    for name, settings in ABLATION.items():
        stage = full
        if name != whole:
            arguments: dict[str, Any] = dict(settings)
            if settings["adaptation"] == "none":
                arguments["initial_retention"] = FIXED_RETENTION
            stage = MaCCal(seed=run.seed, epochs=epochs, kappa=full.kappa_, **arguments)
            fit(stage, run)
        results[name] = measured(softmax(stage.logits(run.test.features)), run.test.labels)
    return results


def masks_at_inference(run: Run) -> list[dict[str, float]]:
    """Return what masks do to the network's own head (Fig. 1)."""
    from calibrant.training.second_stages import mask_at_inference

    assert run.test.source is not None
    with np.load(run.test.source) as file:
        weight, bias = file["head_weight"], file["head_bias"]
    points = mask_at_inference(weight, bias, run.test.features, run.test.labels, repeats=2)
    return [point.as_dict() for point in points]
