"""Heads of second stages: trained once, kept as a file, and read by every cell about them."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from calibrant._version import __version__
from calibrant.core.errors import InputError
from calibrant.core.outputs import replacing, whole_set
from calibrant.files import read_predictions
from calibrant.files.opening import RUN_FILES, is_run
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.registry import make_calibrator
from calibrant.predictions.predictions import Predictions
from calibrant_studies.inputs import Inputs, StudyInput
from calibrant_studies.kinds.base import quietly
from calibrant_studies.networks.images import data_set, in_memory
from calibrant_studies.networks.plans import SYNTHETIC, Plan
from calibrant_studies.networks.sources import Source, source_of

if TYPE_CHECKING:
    from torch import nn

    from calibrant.training.data.dataset import DataSet
    from calibrant.training.data.images import ImageSet
    from calibrant.training.second_stages import SecondStage


@dataclass(frozen=True)
class Head:
    """A head that a second stage has trained.

    Attributes:
        module: (N, D) features in, (N, K) logits out.
        history: what was kept of each epoch.
        notes: what the fit warned of.
    """

    module: nn.Module
    history: list[dict[str, float]]
    notes: list[str]

    def logits(self, features: Any) -> Any:
        """Return (N, K) logits of (N, D) features."""
        import torch

        from calibrant.training.second_stages.sources import (
            READ_ROWS,
            head_logits,
            row_parts,
            tensor_of,
        )

        rows = tensor_of(np.asarray(features))
        parts = [head_logits(self.module, part) for part in row_parts(rows, READ_ROWS)]
        return torch.cat(parts).numpy()


def file_of(plan: Plan, digest: str) -> str:
    """Return what the file of a plan's head is called; `digest` is that of its network."""
    told = [digest, plan.stage, dict(plan.stage_arguments), plan.seed, __version__]
    text = json.dumps(told, sort_keys=True)
    return f"head-{hashlib.sha256(text.encode()).hexdigest()[:24]}.safetensors"


def fitted_stage(
    plan: Plan, training: Predictions, validation: Predictions, test: Predictions
) -> SecondStage:
    """Return the second stage of a plan, fitted to the features of the training rows.

    Raises:
        InputError: one of the sets holds no features.
    """
    from calibrant.training.second_stages import make_second_stage

    stage = make_second_stage(plan.stage, **{"seed": plan.seed, **plan.stage_arguments})
    for part in (training, validation, test):
        if part.features is None:
            raise InputError(f"{part.source}: holds no features for a second stage to learn from")
    fit_to(stage, training, validation)
    return stage


def fit_to(stage: SecondStage, training: Predictions, validation: Predictions) -> None:
    """Fit a second stage to the features of the training rows, beside the network's own head."""
    with quietly():
        stage.fit(
            training.features,
            training.labels,
            (validation.features, validation.labels),
            n_classes=validation.n_classes,
            reference_logits=validation.logits,
        )


def kept_head(file: Path) -> Head:
    """Return the head in a file."""
    from calibrant.training.second_stages import load_head
    from calibrant.training.second_stages.heads import FORMAT

    header, _ = FORMAT.read(file)
    return Head(load_head(file), json.loads(header["history"]), json.loads(header["notes"]))


# What a training took: seconds by the clock, and seconds of the processor.

SECONDS_FILE = "seconds.json"


@dataclass
class Spent:
    """How long something took.

    Attributes:
        clock: seconds that passed.
        processor: seconds that this process computed, all its threads together. They don't grow
            when others use the machine; None where the work was done elsewhere, on a GPU.
    """

    clock: float = 0.0
    processor: float | None = 0.0

    def __add__(self, other: Spent) -> Spent:
        both = (self.processor, other.processor)
        known = None if None in both else sum(cast("tuple[float, float]", both))
        return Spent(self.clock + other.clock, known)

    def write(self, folder: Path) -> None:
        """Keep it in a folder."""
        with replacing(folder / SECONDS_FILE) as temporary:
            temporary.write_text(json.dumps(vars(self)) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Spent | None:
        """Return what was kept in a folder; None if nothing was."""
        try:
            found: Any = json.loads((folder / SECONDS_FILE).read_text(encoding="utf-8"))
            processor = found["processor"]
            return cls(float(found["clock"]), None if processor is None else float(processor))
        except (OSError, ValueError, TypeError, KeyError):
            return None


@contextmanager
def measured(on: str = "cpu") -> Generator[Spent]:
    """Measure the block: what it took is known behind it.

    Args:
        on: where its work is done: "cpu", "cuda", "mps" or "auto", as Lightning understands them.
    """
    spent = Spent()
    began, computed = time.perf_counter(), time.process_time()
    yield spent
    spent.clock = time.perf_counter() - began
    spent.processor = time.process_time() - computed if _on_processor(on) else None


def _on_processor(accelerator: str) -> bool:
    import torch

    others = (torch.cuda.is_available(), torch.backends.mps.is_available())
    return accelerator == "cpu" or (accelerator == "auto" and not any(others))


# The network of a plan, trained if need be, and its outputs for images.

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
        members: of an ensemble.
    """

    plan: Plan
    source: Source
    folder: Path | None
    validation: Predictions
    test: Predictions
    place: Path
    inputs: Inputs
    members: tuple[Network, ...] = ()

    @property
    def spent(self) -> Spent | None:
        """What its training took, if it was trained here in one go."""
        if self.members:
            each = [member.spent for member in self.members]
            known = [spent for spent in each if spent is not None]
            return sum(known, Spent()) if len(known) == len(each) else None
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
        """Return its outputs for its training images without augmentation; made if need be.

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
        configuration = StudyInput(name, (self._run(),)).configuration
        if name not in inputs and name != SYNTHETIC:
            inputs = Inputs({name: StudyInput(name, (Path(str(configuration["data"])),))})
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
        return kept_head(file)

    def fit_stage(self) -> SecondStage:
        """Return its second stage, fitted anew."""
        return fitted_stage(self.plan, self.training_rows(), self.validation, self.test)

    def speaker(self, head: Head | None = None) -> CalibratedNetwork:
        """Return what gives the probabilities that count: those of head and calibrator."""
        calibrator = make_calibrator(self.plan.after)
        with quietly():
            calibrator.fit(_logits(head, self.validation), self.validation.labels)
        return CalibratedNetwork(head, calibrator)


@dataclass(frozen=True)
class CalibratedNetwork:
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
    if len(plan.members) > 1 and source.kind in ("images", "synthetic"):
        return _ensemble(plan, source, inputs, work)
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


def _ensemble(plan: Plan, source: Source, inputs: Inputs, work: Path) -> Network:
    """Return networks as one, each found or trained by itself: what it says is their mean."""
    from calibrant.training.run.trained import ensemble_of

    members = [network_of(member, inputs, work) for member in plan.members]
    validation, test = (
        ensemble_of([getattr(member, rows) for member in members], plan.name)
        for rows in ("validation", "test")
    )
    return Network(plan, source, None, validation, test, work.parent, inputs, tuple(members))


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
