"""The network of a plan, trained if need be, and what it says of images."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.core.errors import InputError
from calibrant.files import read_predictions
from calibrant.files.atomic import whole_set
from calibrant.files.folders import RUN_FILES, is_run
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.registry import make_calibrator
from calibrant.predictions.predictions import Predictions
from calibrant_studies.inputs import Given, Inputs
from calibrant_studies.measuring import quietly
from calibrant_studies.networks.heads import Head, file_of, fitted, kept
from calibrant_studies.networks.images import data_set, in_memory
from calibrant_studies.networks.plans import SYNTHETIC, Plan
from calibrant_studies.networks.sources import Source, source_of
from calibrant_studies.networks.spent import Spent, measured

if TYPE_CHECKING:
    from calibrant.training.data.dataset import DataSet
    from calibrant.training.data.images import ImageSet
    from calibrant.training.second_stages import SecondStage

_TRAIN = "train.npz"


@dataclass(frozen=True)
class Network:
    """A network that is trained, with the head and the calibrator behind it.

    Attributes:
        plan: what it is.
        source: where it comes from.
        folder: of its run; None where there are only predictions.
        validation, test: its predictions, those of its own head.
        place: folder for what several cells share.
        inputs: what is given.
    """

    plan: Plan
    source: Source
    folder: Path | None
    validation: Predictions
    test: Predictions
    place: Path
    inputs: Inputs

    @property
    def spent(self) -> Spent | None:
        """What its training took, if it was trained here in one go."""
        return None if self.folder is None else Spent.read(self.folder)

    def _run(self) -> Path:
        if self.folder is None:
            raise InputError(
                f"{self.plan.name}: only predictions are given, and this needs the network: a run "
                "of `calibrant train`, or the images to train it on"
            )
        return self.folder

    @property
    def labels_digest(self) -> str:
        """The digest of the labels of its test rows."""
        labels = np.ascontiguousarray(np.asarray(self.test.labels, np.int64))
        return hashlib.sha256(labels.tobytes()).hexdigest()[:16]

    def epochs(self) -> list[dict[str, Any]]:
        """Return what its run kept of each epoch.

        Raises:
            InputError: there is no history.
        """
        path = self._run() / "history.json"
        try:
            return list(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: can't be read as the history of a run") from error

    def training_rows(self) -> Predictions:
        """Return what it says of its training images, seen as they are; made if need be.

        Raises:
            InputError: neither ``train.npz`` nor the network and its images are there.
        """
        run = self._run()
        if (run / _TRAIN).is_file():
            return read_predictions(run / _TRAIN)
        digest = self.plan.digest(self.source.digest)
        file = self.place / f"train-{digest}.npz"
        with locked(file):
            if not file.is_file():
                self.make_training_rows(file)
        return read_predictions(file)

    def make_training_rows(self, file: Path | None = None) -> None:
        """Run the network over its training images once, and write what it says if asked."""
        from calibrant.training.run import RunSettings, load_network, predict, write_outputs
        from calibrant.training.run.rows import held_out

        run = self._run()
        network, normalise = load_network(run)
        training, _ = held_out(self.images, RunSettings.read(run / "config.json"))
        outputs = predict(network, training, normalise)
        if file is not None:
            write_outputs(file, outputs, network)

    def test_images(self, most: int | None = None) -> ImageSet:
        """Return the first test images of its data set."""
        return in_memory(self.images.test, most)

    @cached_property
    def images(self) -> DataSet:
        """Its data set, as given or where its run found it."""
        name, inputs = self.plan.input, self.inputs
        configuration = Given(name, (self._run(),)).configuration
        if name not in inputs and name != SYNTHETIC:
            inputs = Inputs({name: Given(name, (Path(str(configuration["data"])),))})
        return data_set(name, inputs, self.place / "image-cache", configuration.get("n_classes"))

    def says_of(self, images: ImageSet, *, known: bool = True) -> Predictions:
        """Return logits and features of images, by its own head.

        Args:
            images: which.
            known: whether their labels are of the classes that it knows.
        """
        from calibrant.training.run.outputs import predict
        from calibrant.training.run.trained import load_network

        network, normalise = load_network(self._run())
        said = predict(network, images, normalise)
        return Predictions.from_logits(
            said.logits.numpy(),
            said.labels.numpy() if known else None,
            said.features.numpy(),
            source="images",
        )

    def head(self) -> Head | None:
        """Return the head of its second stage, trained if need be; None if the plan has none."""
        if not self.plan.stage:
            return None
        file = self.place / file_of(self.plan, self.plan.digest(self.source.digest))
        with locked(file):
            if not file.is_file():
                self.fit_stage().save(file)
        return kept(file)

    def fit_stage(self) -> SecondStage:
        """Return its second stage, fitted anew."""
        return fitted(self.plan, self.training_rows(), self.validation, self.test)

    def speaker(self, head: Head | None = None) -> Speaker:
        """Return what gives the probabilities that count: those of head and calibrator."""
        calibrator = make_calibrator(self.plan.after)
        with quietly():
            calibrator.fit(_logits(head, self.validation), self.validation.labels)
        return Speaker(head, calibrator)


@dataclass(frozen=True)
class Speaker:
    """A head with a calibrator behind it."""

    head: Head | None
    calibrator: Calibrator

    def __call__(self, rows: Predictions) -> Predictions:
        """Return calibrated probabilities of rows."""
        probs = self.calibrator.predict_proba(_logits(self.head, rows))
        return Predictions.from_probs(np.asarray(probs), rows.known_labels, source=rows.source)


def _logits(head: Head | None, rows: Predictions) -> Any:
    return rows.logits if head is None else head.logits(rows.features)


def network_of(plan: Plan, inputs: Inputs, work: Path) -> Network:
    """Return the network of a plan: found, or trained beside the folder of a cell.

    Args:
        plan: which.
        inputs: what is given.
        work: the cell's folder; the run lies beside it, for all cells that are about it.
    """
    source = source_of(plan, inputs)
    assert source is not None  # or the cell would lack what it needs
    place = work.parent
    place.mkdir(parents=True, exist_ok=True)
    if source.kind == "predictions":
        assert source.given is not None
        validation, test = source.given.predictions()
        if test is None:
            raise InputError(
                f"{source.given.path}: there must be {plan.name}-val beside {plan.name}-test: one "
                "file can't say which rows the network was chosen by"
            )
        return Network(plan, source, None, validation, test, place, inputs)
    if source.kind == "run":
        assert source.given is not None
        folder = source.given.path
    else:
        folder = _train(plan, source, inputs, place)
    validation, test = (read_predictions(folder / name) for name in RUN_FILES)
    return Network(plan, source, folder, validation, test, place, inputs)


def _train(plan: Plan, source: Source, inputs: Inputs, place: Path) -> Path:
    """Train the network of a plan, or go on where that was broken off; return the run's folder."""
    from calibrant.training.data.dataset import read_data_set
    from calibrant.training.run import RunSettings, train

    folder = place / f"run-{plan.digest(source.digest)}"
    with locked(folder):
        if is_run(folder):
            return folder
        name = SYNTHETIC if source.given is None else str(source.given.path.resolve())
        settings, cache = RunSettings(name, **plan.run), place / "image-cache"
        # Read, and loaded, before anything is timed: the first network of a process would pay.
        data = (
            data_set(SYNTHETIC, inputs, place)
            if source.kind == "synthetic"
            else read_data_set(
                name, n_classes=settings.n_classes, size=settings.stretched, cache=cache
            )
        )
        with suppress(ImportError), quietly():  # the training says what is to be installed
            import_module("lightning.fabric")
        fresh = not folder.exists()
        with measured(plan.accelerator) as spent:
            trained = train(settings, folder, resume=True, accelerator=plan.accelerator, data=data)
        assert trained is not None  # on one device
        if fresh:
            spent.write(folder)
    return folder


@contextmanager
def locked(path: Path) -> Generator[None]:
    """Let one process at a time make what is to lie at a path; a process that dies lets go."""
    folder = path.parent / f"{path.name}.lock"
    folder.mkdir(parents=True, exist_ok=True)
    with whole_set(folder, exclusive=True):
        yield
