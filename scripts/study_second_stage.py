"""What second stages do to calibration, on the networks of `calibrant train`.

    python scripts/study_second_stage.py RUNS [--epochs 20] [--out FILE] [--docs]

RUNS is a folder of run folders named LOSS-SEED. Every finished run of the losses asked for is
taken, however many there are. Each method is trained on its training rows with the run's seed,
chooses what it has to choose on the validation rows, and is measured on the test rows, before and
after temperature scaling and SMART fitted on the same validation rows. Further: MaC-Cal step by
step (the paper's Table 5), its kappa (Fig. 7), masks at inference (Fig. 1), corrupted images
(Fig. 5), images of nothing (Table 2) and what it costs (Table 4).

Results are kept in the file after every run. A run that is in there already, with the same test
predictions, epochs and methods, isn't repeated; results of other methods are dropped. `--docs`
writes the tables into docs/second-stages.md.
"""

from __future__ import annotations

import argparse
import json
import re
import time
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from second_stage_shift import Shifted, shifted
from second_stage_tables import refresh

from calibrant.core.errors import InputError
from calibrant.evaluation.evaluate import evaluate
from calibrant.files import read_predictions
from calibrant.files.atomic import replacing
from calibrant.metrics.binned import expected_calibration_error
from calibrant.metrics.detection import auroc, fpr_at_tpr
from calibrant.posthoc.registry import make_calibrator
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import softmax
from calibrant.training.heads import ABLATION, MaCCal, SecondStage, make_head, mask_at_inference
from calibrant.training.heads.runs import files_of_run

ROOT = Path(__file__).parents[1]
LOSSES = ("cross-entropy", "label-smoothing", "focal", "mixup")
METRICS = ("accuracy", "ece", "adaece", "mce", "overconfidence", "underconfidence", "nll")
AFTER = ("none", "temperature", "smart")
RESAMPLES = 200
NETWORK = "network's head"

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
FIXED_RETENTION = 0.5


Speaker = Callable[["Predictions | Shifted"], NDArray[np.floating]]


class Run(NamedTuple):
    """Predictions of one network on its three sets."""

    folder: Path
    loss: str
    seed: int
    train: Predictions
    val: Predictions
    test: Predictions


def read_run(folder: Path) -> Run:
    """Read the three files of a run; that of the training images is made if need be."""
    loss, _, seed = folder.name.rpartition("-")
    train, val, test = files_of_run(folder)
    if val is None:
        raise InputError(f"{folder}: holds no val.npz")
    parts = [read_predictions(file) for file in (train, val, test)]
    for part in parts:
        if part.features is None:
            raise InputError(f"{part.source}: there is no 'features'")
    return Run(folder, loss, int(seed), *parts)


def study(run: Run, epochs: int) -> dict[str, Any]:
    """Return everything that is measured of one run, as JSON takes it."""
    stages: dict[str, SecondStage | None] = {NETWORK: None}
    seconds: dict[str, float] = {}
    for name, (method, arguments) in METHODS.items():
        stage = make_head(method, seed=run.seed, epochs=epochs, **arguments)
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


def fit(stage: SecondStage, run: Run) -> float:
    """Train a second stage on a run's features; return the seconds of processor time."""
    started = time.process_time()
    stage.fit(
        run.train.features,
        run.train.labels,
        (run.val.features, run.val.labels),
        classes=run.train.classes,
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


def ablation(full: MaCCal, run: Run, epochs: int) -> dict[str, dict[str, float]]:
    """Return the steps of the paper's Table 5: fixed retention 0.5, then the kappa chosen."""
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
    assert run.test.source is not None
    with np.load(run.test.source) as file:
        weight, bias = file["head_weight"], file["head_bias"]
    points = mask_at_inference(weight, bias, run.test.features, run.test.labels, repeats=2)
    return [point.as_dict() for point in points]


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


def seconds_of_stage_one(folder: Path) -> float | None:
    """Return how long a run took by the times of its first and last file.

    None where the run was taken up again or the folder was copied, as far as that can be told.
    """
    first, last = folder / "config.json", folder / "test.npz"
    if not first.is_file():
        return None
    seconds = last.stat().st_mtime - first.stat().st_mtime
    return seconds if seconds > 1 else None


def rounded(value: Any) -> Any:
    """Return nested lists and dictionaries with five decimals, which is more than is known."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return round(value, 5) if isinstance(value, float) else value


def finished(place: Path, losses: list[str]) -> list[Path]:
    """Return the folders of finished runs, in the order of the losses."""
    found: list[Path] = []
    for loss in losses:
        for folder in sorted(place.iterdir()):
            if re.fullmatch(re.escape(loss) + r"-\d+", folder.name) and all(
                (folder / f"{name}.npz").is_file() for name in ("val", "test")
            ):
                found.append(folder)
    return found


def main() -> None:
    """Study all runs and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("runs", type=Path)
    parser.add_argument("--losses", nargs="+", default=list(LOSSES))
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--out", type=Path, default=ROOT / "docs/results/second-stages.json")
    parser.add_argument("--docs", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    results: dict[str, Any] = {}
    if arguments.out.is_file():
        kept = json.loads(arguments.out.read_text(encoding="utf-8"))["runs"]
        results = {name: run for name, run in kept.items() if set(METHODS) <= set(run["methods"])}
    folders = finished(arguments.runs, arguments.losses)
    if not folders:
        parser.error(f"{arguments.runs}: holds no finished run named LOSS-SEED")
    for folder in folders:
        mark = f"{zlib.crc32((folder / 'test.npz').read_bytes()):08x}, {arguments.epochs} epochs"
        if results.get(folder.name, {}).get("mark") == mark:
            continue
        started = time.process_time()
        results[folder.name] = {"mark": mark} | study(read_run(folder), arguments.epochs)
        print(f"{folder.name}: {time.process_time() - started:.0f} s of processor time", flush=True)
        with replacing(arguments.out) as temporary:
            document = rounded({"epochs": arguments.epochs, "runs": results})
            temporary.write_text(json.dumps(document, indent=0) + "\n", encoding="utf-8")
    tables = refresh(ROOT / "docs/second-stages.md", results, write=arguments.docs)
    print("\n\n".join(tables.values()))


if __name__ == "__main__":
    main()
