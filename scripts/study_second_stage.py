"""What second stages do to calibration: every method, the ablation and the kappa curve of MaC-Cal.

    python scripts/study_second_stage.py RUN [RUN ...] [--seeds 3] [--ablation] [--kappa-curve]
    python scripts/study_second_stage.py --simulate 3

A RUN is a folder with train.npz, val.npz and test.npz of one network: logits (or probs), labels and
features of the rows it was trained on, of held-out rows and of test rows. Each method is trained on
the training rows with every seed, chooses what it has to choose on the validation rows, and is
measured on the test rows, before and after temperature scaling and SMART fitted on the validation
rows. Numbers are means over runs and seeds with their standard deviation, in percent but for NLL;
a star marks an ECE below what noise alone gives in 95 % of cases, on average over runs and seeds.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrant.errors import InputError
from calibrant.evaluation import evaluate
from calibrant.files import read_predictions
from calibrant.posthoc.registry import make_calibrator
from calibrant.predictions import Predictions
from calibrant.tables import format_table
from calibrant.training.heads import ABLATION, HeadRetraining, MaCCal, SecondStage, make_head
from calibrant.training.heads.simulation import memorised_features

METRICS = ("accuracy", "ece", "adaece", "mce", "overconfidence", "underconfidence", "nll")
AFTER = ("none", "temperature", "smart")
RESAMPLES = 200
NETWORK = "network's head"

Stages = dict[str, Callable[[int], SecondStage | None]]


class Run(NamedTuple):
    """Predictions of one network on its three sets."""

    name: str
    train: Predictions
    val: Predictions
    test: Predictions


class Score(NamedTuple):
    """Metrics of one head on one test set, the ECE's 95 % floor, and training time in seconds."""

    values: NDArray[np.float64]
    floor: float
    seconds: float


def read_run(folder: Path) -> Run:
    """Read the three files of a run, which must hold features."""
    parts = [read_predictions(folder / f"{name}.npz") for name in ("train", "val", "test")]
    for part in parts:
        if part.features is None:
            raise InputError(f"{part.source}: there is no 'features'")
    return Run(folder.name, *parts)


def simulated_run(seed: int) -> Run:
    """Return features of a simulated network whose head has been trained for long."""
    parts = memorised_features(spread=6.0, pull=3.0, seed=seed)
    network = HeadRetraining(epochs=80).fit(*parts[0])
    return Run(
        f"simulated {seed}",
        *(Predictions.from_logits(network.logits(x), y, x) for x, y in parts),
    )


def every_method(epochs: int, rate_of_sgd: float) -> Stages:
    """Return all second stages; TST and V-TST also as MaC-Cal's comparison trained them."""
    sgd = {"optimizer": "sgd", "learning_rate": rate_of_sgd, "batch_size": 128}
    settings: dict[str, dict[str, object]] = {
        "retrain": {},
        "maccal": {},
        "maccal last_mask": {"mode": "last_mask"},
        "maccal linear": {"bottleneck": False},
        "tst": {},
        "tst sgd": sgd,
        "v-tst": {},
        "v-tst sgd": sgd,
        "balcal frozen": {},
    }

    def maker(name: str) -> Callable[[int], SecondStage]:
        method = name.partition(" ")[0]
        return lambda seed: make_head(method, seed=seed, epochs=epochs, **settings[name])

    stages: Stages = {NETWORK: lambda seed: None}
    return stages | {name: maker(name) for name in settings}


def ablation(epochs: int) -> Stages:
    """Return the steps of the paper's ablation; those without adaptation keep p at 0.5."""

    def maker(settings: dict[str, object]) -> Callable[[int], SecondStage]:
        fixed = {"initial_retention": 0.5} if settings.get("adaptation") == "none" else {}
        arguments = settings | fixed
        return lambda seed: MaCCal(seed=seed, epochs=epochs, **arguments)  # pyright: ignore[reportArgumentType]

    stages: Stages = {
        NETWORK: lambda seed: None,
        "retrain": lambda seed: HeadRetraining(seed=seed, epochs=epochs),
    }
    return stages | {f"+ {name}": maker(settings) for name, settings in ABLATION.items()}


def score(run: Run, stage: SecondStage | None) -> dict[str, Score]:
    """Train a second stage (None: keep the network's head) and measure it in three ways."""
    val, test, seconds = run.val, run.test, 0.0
    if stage is not None:
        right = np.asarray(run.val.logits).argmax(axis=1) == run.val.labels
        started = time.perf_counter()
        stage.fit(
            run.train.features,
            run.train.labels,
            (run.val.features, run.val.labels),
            classes=run.train.classes,
            reference_accuracy=float(right.mean()),
        )
        seconds = time.perf_counter() - started
        val, test = (
            Predictions.from_logits(stage.logits(rows.features), rows.labels)
            for rows in (run.val, run.test)
        )
    results: dict[str, Score] = {}
    for name in AFTER:
        calibrator = make_calibrator(name).fit(val.logits, val.labels)
        probs = calibrator.predict_proba(test.logits)
        found = evaluate(probs, test.labels, metrics=METRICS, resamples=RESAMPLES)
        values = np.array([found[metric].value for metric in METRICS])
        results[name] = Score(values, found["ece"].floor_95 or 0.0, seconds)
    return results


def table(runs: list[Run], stages: Stages, seeds: int) -> str:
    """Return one line for each method and each calibrator after it."""
    lines: list[list[str]] = []
    for name, make in stages.items():
        found: dict[str, list[Score]] = {after: [] for after in AFTER}
        for run in runs:
            # The network's own head doesn't depend on a seed.
            for seed in range(1 if make(0) is None else seeds):
                for after, result in score(run, make(seed)).items():
                    found[after].append(result)
        for after, results in found.items():
            values = np.array([result.values for result in results])
            at_floor = values[:, 1].mean() <= np.mean([result.floor for result in results])
            cells = [
                show(values[:, place], percent=metric != "nll")
                for place, metric in enumerate(METRICS)
            ]
            cells[1] += "*" if at_floor else ""
            seconds = np.mean([result.seconds for result in results])
            shown = f"{name}, {after}" if after != "none" else name
            lines.append([shown, *cells, f"{seconds:.1f}"])
    return format_table(["method", *METRICS, "seconds"], lines)


def show(values: NDArray[np.float64], *, percent: bool) -> str:
    """Return mean and standard deviation over runs and seeds."""
    scale, digits = (100, 2) if percent else (1, 4)
    mean = f"{scale * values.mean():.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ({scale * values.std(ddof=1):.{digits}f})"


def kappa_table(runs: list[Run], epochs: int) -> str:
    """Return the sensitivity to kappa on validation rows, and what was chosen."""
    lines: list[list[str]] = []
    for run in runs:
        stage = MaCCal(epochs=epochs)
        stage.fit(
            run.train.features,
            run.train.labels,
            (run.val.features, run.val.labels),
            classes=run.train.classes,
        )
        for point in stage.kappa_curve_:
            chosen = "<- chosen" if point.kappa == stage.kappa_ else ""
            shares = (point.accuracy, point.confidence, point.ece)
            lines.append(
                [
                    run.name,
                    f"{point.kappa:g}",
                    f"{point.retention:.2f}",
                    *(f"{100 * value:.2f}" for value in shares),
                    f"{point.nll:.4f}",
                    chosen,
                ]
            )
    return format_table(
        ["run", "kappa", "retention", "accuracy", "confidence", "ece", "nll", ""], lines
    )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("runs", type=Path, nargs="*")
    parser.add_argument("--simulate", type=int, default=0, help="so many simulated networks")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--sgd-rate", type=float, default=0.1, help="of TST and V-TST with SGD")
    parser.add_argument("--ablation", action="store_true")
    parser.add_argument("--kappa-curve", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    runs = [read_run(folder) for folder in arguments.runs]
    runs += [simulated_run(seed) for seed in range(arguments.simulate)]
    if not runs:
        parser.error("name folders of runs, or --simulate so many")
    if arguments.kappa_curve:
        print(kappa_table(runs, arguments.epochs))
    elif arguments.ablation:
        print(table(runs, ablation(arguments.epochs), arguments.seeds))
    else:
        stages = every_method(arguments.epochs, arguments.sgd_rate)
        print(table(runs, stages, arguments.seeds))


if __name__ == "__main__":
    main()
