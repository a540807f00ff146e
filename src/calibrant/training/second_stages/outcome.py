"""A second stage from files or rows to result: trained, measured beside the old head, timed."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.core.errors import InputError, TrainingWarning, warn_caller
from calibrant.core.text import format_table, listed, wrap
from calibrant.evaluation.evaluate import evaluate
from calibrant.evaluation.formatting import show
from calibrant.evaluation.results import Evaluation
from calibrant.predictions.predictions import Predictions
from calibrant.training.run.folder import CONFIG
from calibrant.training.second_stages.measured import (
    BesideTemperature,
    Progress,
    beside_temperature,
)
from calibrant.training.second_stages.stage import HELD_OUT_SHARE, SecondStage

# What the new head is called where masks gained nothing.
PLAIN = "retrained head"


@dataclass(frozen=True, kw_only=True, eq=False)
class SecondStageOutcome:
    """A new head beside the network's own, on the same rows. Prints as a table with a verdict.

    Attributes:
        stage: the fitted second stage.
        baseline: the network's own head on the test rows.
        result: the new head on them.
        beside: the new head beside the old one with a single temperature, on the same rows.
        seconds: that the fit took.
    """

    stage: SecondStage
    baseline: Evaluation
    result: Evaluation
    beside: BesideTemperature
    seconds: float

    @property
    def name(self) -> str:
        """Name of the new head: the method's, or "retrained head" if masks gained nothing."""
        plain = self.stage.summary().get("plain_chosen", False)
        return PLAIN if plain else self.stage.method

    @property
    def _head(self) -> str:
        return self.name if self.name == PLAIN else f"head of {self.name}"

    @property
    def finding(self) -> str:
        """Whether to take the new head or one temperature, in a sentence."""
        gains = [title for title in self.beside.better if title != "accuracy"]
        if not gains:
            than = f"does as well as the {self._head}"
            if self.beside.worse:
                than = f"is better than the {self._head} in {listed(self.beside.worse)}"
            return (
                "Take the temperature: on the same held-out rows one temperature on the network's "
                f"own head {than}."
            )
        price = f", and worse in {listed(self.beside.worse)}" if self.beside.worse else ""
        return f"The {self._head} is better than one temperature in {listed(gains)}{price}."

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON takes it; fractions and nats."""
        return {
            "method": self.stage.method,
            "name": self.name,
            "finding": self.finding,
            "arguments": self.stage.get_params(),
            "baseline": self.baseline.as_dict(),
            "metrics": self.result.as_dict()["metrics"],
            "one_temperature": self.beside.as_dict(),
            "kappa": None,
            **self.stage.summary(),
            "seconds": self.seconds,
            "notes": self.stage.notes_,
            "history": [record.as_dict() for record in self.stage.history_],
        }

    def __str__(self) -> str:
        pairs = zip(self.baseline.results.values(), self.result.results.values(), strict=True)
        rows = [
            [after.metric.title, show(after.metric, before.value), show(after.metric, after.value)]
            for before, after in pairs
        ]
        summary = self.stage.summary()
        chosen = ""
        if "kappa" in summary:
            chosen = f", kappa {summary['kappa']:.3g}"
            if summary["plain_chosen"]:
                chosen = "; no mask did better, so this is a head retrained without"
        parts = (
            wrap(self.finding),
            format_table(["metric", "network's head", self.name], rows),
            f"{self.stage.epochs} epochs in {self.seconds:.1f} s{chosen}",
            wrap(self.result.headline()),
            wrap(str(self.beside)),
        )
        return "\n\n".join(parts)


def run_second_stage(
    stage: SecondStage,
    train: Predictions,
    test: Predictions,
    validation: Predictions | None = None,
    *,
    resamples: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> SecondStageOutcome:
    """Fit a second stage, and measure its head beside the network's own.

    Args:
        stage: an unfitted second stage; this call fits it.
        train: the network's predictions, with features, for the rows that it was trained on.
        test: the same for the rows to measure on.
        validation: the same for held-out rows, to choose settings and to fit the temperature that
            the new head is compared with; None takes a tenth of the training rows, drawn by the
            stage's seed, with a warning.
        resamples: of the bootstrap; None as for `evaluate`.
        seed: for the bootstrap.
        progress: called with a line of text as each epoch begins.

    Raises:
        InputError: rows without features, or with other numbers of features or classes.
    """
    _check_features([train, test] if validation is None else [train, test, validation])
    if validation is None:
        train, validation = _split(train, stage.seed)
    started = time.perf_counter()
    stage.fit(
        train.features,
        train.labels,
        (validation.features, validation.labels),
        n_classes=train.n_classes,
        reference_logits=validation.logits,
        progress=progress,
    )
    seconds = time.perf_counter() - started
    new = Predictions.from_logits(
        stage.logits(test.features), test.labels, source=f"{stage.method} on {test.source}"
    )
    return SecondStageOutcome(
        stage=stage,
        baseline=evaluate(test, resamples=resamples, seed=seed),
        result=evaluate(new, resamples=resamples, seed=seed),
        beside=beside_temperature(validation, test, new, resamples=resamples, seed=seed),
        seconds=seconds,
    )


def _split(train: Predictions, seed: int) -> tuple[Predictions, Predictions]:
    """Return training rows without a tenth of them, and these."""
    if train.n < 2:
        raise InputError(f"{train.source}: has one row only, of which none can be held out")
    held_out = max(1, round(HELD_OUT_SHARE * train.n))
    warn_caller(
        TrainingWarning(
            f"without validation rows, {held_out} of the training rows are held out to choose "
            "settings and to fit the temperature; this is right only if the network was not "
            "trained on them"
        )
    )
    order = np.random.default_rng(seed).permutation(train.n)
    return train.take(order[held_out:]), train.take(order[:held_out])


def _check_features(given: list[Predictions]) -> None:
    """Raise `InputError` unless all rows have features, as many of them and of classes."""
    for rows in given:
        if rows.features is None:
            raise InputError(
                f"{rows.source}: there is no 'features', which a second stage learns from; save "
                "the network's penultimate layer, (N, D), beside the logits"
            )
    first, *others = given
    for rows in others:
        if rows.n_classes != first.n_classes:
            raise InputError(
                f"{rows.source}: has {rows.n_classes} classes, but {first.source} {first.n_classes}"
            )
        assert rows.features is not None
        assert first.features is not None
        width, expected = rows.features.shape[1], first.features.shape[1]
        if width != expected:
            raise InputError(f"{rows.source}: has {width} features, but {first.source} {expected}")


TRAIN, VALIDATION, TEST = "train.npz", "val.npz", "test.npz"


def files_of_run(folder: Path, data: Path | None = None) -> tuple[Path, Path | None, Path]:
    """Return the predictions of a run on its training, validation and test images.

    A run does not keep predictions for its training images. If train.npz is missing, the network
    computes them once, without augmentation, and the file is written into the folder.

    Args:
        folder: of a finished run, or any that holds the three files.
        data: where the images are, if no longer where the run found them.

    Raises:
        InputError: the folder or what is needed in it is missing.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: there is no such folder")
    test = folder / TEST
    if not test.is_file():
        raise InputError(f"{folder}: holds no {TEST}; the run isn't finished")
    train = folder / TRAIN
    if not train.is_file():
        if not (folder / CONFIG).is_file():
            raise InputError(
                f"{folder}: holds no {TRAIN}, the network's predictions with features on its "
                "training rows"
            )
        write_training_predictions(folder, train, data)
    validation = folder / VALIDATION
    return train, validation if validation.is_file() else None, test


def write_training_predictions(folder: Path, file: Path, data: Path | None = None) -> None:
    """Run the network of a run over its own training images and write its outputs."""
    from calibrant.training.data import read_data_set
    from calibrant.training.run.outputs import predict, write_outputs
    from calibrant.training.run.rows import held_out
    from calibrant.training.run.settings import RunSettings
    from calibrant.training.run.trained import load_network

    settings = RunSettings.read(folder / CONFIG)
    network, normalise = load_network(folder)
    for name, value in network.state_dict().items():
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise InputError(f"{folder}: '{name}' of the network holds NaN or infinity")
    images = read_data_set(
        settings.data if data is None else data,
        n_classes=settings.n_classes,
        size=settings.stretched,
        cache=folder.resolve().parent / "image-cache",
    )
    training, _ = held_out(images, settings)
    write_outputs(file, predict(network, training, normalise), network)
