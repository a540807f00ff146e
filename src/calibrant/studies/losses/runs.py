"""The runs of the study of losses: which there are, and what is measured on each."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrant.core.errors import InputError
from calibrant.evaluation.evaluate import evaluate
from calibrant.files import read_predictions
from calibrant.posthoc.registry import make_calibrator
from calibrant.predictions.predictions import Predictions

REFERENCE = "cross-entropy"
# Name of a line to the arguments of `calibrant train` that make it.
LINES = {
    REFERENCE: ("--loss", "cross-entropy"),
    "label-smoothing": ("--loss", "label-smoothing"),
    "fedlas-ls": ("--loss", "fedlas-ls"),
    "mbls": ("--loss", "mbls"),
    "fedlas-mbls": ("--loss", "fedlas-mbls"),
    "acls": ("--loss", "acls"),
    "focal": ("--loss", "focal"),
    "dual-focal": ("--loss", "dual-focal"),
    "mixup": ("--loss", "cross-entropy", "--mixing", "mixup"),
}
# FeDLaS-LS smooths less than its alpha says: is it more than label smoothing with a smaller one?
SMALLER = {
    f"label-smoothing alpha={alpha}": ("--loss", "label-smoothing", "--set", f"alpha={alpha}")
    for alpha in (0.02, 0.03, 0.04)
}
# About the mean alpha that FeDLaS-LS ends with.
CONTROL = "label-smoothing alpha=0.03"
# Does it need what it takes from the features, and its gate?
ABLATIONS = {
    f"fedlas-ls {change}": ("--loss", "fedlas-ls", "--set", change)
    for change in ("indicator=constant", "indicator=random", "gate=random")
}
CONTROLS = SMALLER | ABLATIONS
AFTER = ("none", "temperature", "smart")
# How SMART is fitted today: a page keeps results of networks that are gone, and those after another
# fit of SMART aren't comparable. To be renamed when the fit changes.
SMART_FIT = "six damped steps"
METRICS = ("accuracy", "ece", "adaece", "overconfidence", "underconfidence", "nll")


class Measured(NamedTuple):
    """A metric of one network on the test images; fractions, NLL in nats.

    Attributes:
        value: on the images themselves.
        low, high: ends of the bootstrap interval over test images; NaN where no record has them.
        floor: what honest confidences would show on average; None where there is no such thing.
        replicates: (R,) on resamples, which are the same for every network; None if the predictions
            are gone.
    """

    value: float
    low: float
    high: float
    floor: float | None
    replicates: NDArray[np.float64] | None


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run.

    Attributes:
        line: its loss, or its mixing.
        seed: of the run.
        folder: where it is; None if only its results are left.
        settings: its config.json.
        scores: (after, metric) to what was measured.
        kept: what an earlier page found in it, by name; where the folder is there, it decides.
        smart_fit: how the SMART behind `scores` was fitted.
    """

    line: str
    seed: int
    folder: Path | None
    settings: dict[str, Any]
    scores: dict[tuple[str, str], Measured]
    kept: dict[str, Any] = field(default_factory=dict[str, Any])
    smart_fit: str = SMART_FIT


def line_of(settings: dict[str, Any]) -> str:
    """Return the name that tables give to a run with these settings."""
    loss, mixing = settings["loss"], settings["mixing"]
    name = " ".join([loss, *_words(settings["loss_arguments"])])
    if mixing == "none":
        return name
    mixing = " ".join([mixing, *_words(settings["mixing_arguments"])])
    return mixing if loss == "cross-entropy" else f"{name} + {mixing}"


def _words(arguments: dict[str, Any]) -> list[str]:
    return [f"{name}={value}" for name, value in arguments.items()]


def finished(folder: Path) -> bool:
    """Return whether the run in a folder has come to its end; test.npz is its last file."""
    return all((folder / name).is_file() for name in ("config.json", "val.npz", "test.npz"))


def read_runs(
    folder: Path, resamples: int, progress: Callable[[str], None] = lambda words: None
) -> list[Run]:
    """Measure all finished runs in the subfolders of a folder, sorted by line and seed.

    Raises:
        InputError: there is none, two are the same, or they differ in more than loss and seed.
    """
    places = sorted(place for place in folder.glob("*/") if finished(place))
    if not places:
        raise InputError(f"{folder}: holds no finished run")
    configs = {
        place: json.loads((place / "config.json").read_text(encoding="utf-8")) for place in places
    }
    check_alike(configs)
    labels: NDArray[Any] | None = None
    runs: list[Run] = []
    for place, settings in configs.items():
        progress(place.name)
        fit, test = (read_predictions(place / f"{name}.npz") for name in ("val", "test"))
        if labels is not None and not np.array_equal(labels, test.labels):
            raise InputError(f"{place}: was tested on other images than {places[0]}")
        labels = np.asarray(test.labels)
        scores = {
            (after, metric): found
            for after in AFTER
            for metric, found in measure(after, fit, test, resamples).items()
        }
        runs.append(Run(line_of(settings), settings["seed"], place, settings, scores))
    return in_order(runs)


def in_order(runs: Iterable[Run]) -> list[Run]:
    """Return runs by line, in the order of the tables, and seed."""
    known = [*LINES, *CONTROLS]
    places_of = {line: place for place, line in enumerate(known)}
    return sorted(runs, key=lambda run: (places_of.get(run.line, len(known)), run.line, run.seed))


def measure(after: str, fit: Predictions, test: Predictions, resamples: int) -> dict[str, Measured]:
    """Measure test predictions after a method that was fitted to the validation predictions."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        calibrator = make_calibrator(after).fit(fit.logits, fit.labels)
    probs = calibrator.predict_proba(test.logits)
    found = evaluate(
        Predictions.from_probs(probs, test.labels), metrics=METRICS, resamples=resamples
    )
    return {
        name: Measured(
            result.value, result.low, result.high, result.floor, np.asarray(result.replicates)
        )
        for name, result in found.results.items()
    }


def check_alike(configs: Mapping[Any, dict[str, Any]]) -> None:
    """Raise if runs can't be compared, or a line's runs aren't the same but for their seed."""
    free = {"seed", "data", "loss", "loss_arguments", "loss_settings_for", "mixing"}
    free.add("mixing_arguments")
    first_place, first = next(iter(configs.items()))
    lines: dict[str, tuple[Any, dict[str, Any]]] = {}
    seen: dict[tuple[str, int], Any] = {}
    for place, settings in configs.items():
        line = line_of(settings)
        same_line = lines.setdefault(line, (place, settings))
        for (other, values), names in (
            ((first_place, first), settings.keys() - free),
            (same_line, settings.keys() - {"seed", "data"}),
        ):
            for name in sorted(names & values.keys()):
                if values[name] != settings[name]:
                    raise InputError(
                        f"{place}: has {name} {settings[name]!r}, but {other} has "
                        f"{values[name]!r}; the two can't stand in one table"
                    )
        twin = seen.setdefault((line, settings["seed"]), place)
        if twin != place:
            raise InputError(f"{place}: is {line} with seed {settings['seed']}, as {twin} is")
