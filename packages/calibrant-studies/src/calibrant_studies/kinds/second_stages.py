"""New heads of a trained network beside its own, each as it comes and with one temperature.

What chooses a head (kappa, or an epoch) and what scales it may be the same held-out rows, or halves
of them: then no row has done both.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from calibrant._version import __version__
from calibrant.core.result import Table
from calibrant.evaluation.evaluate import evaluate
from calibrant.evaluation.results import Evaluation
from calibrant.evaluation.uncertainty import paired_difference
from calibrant.files import read_predictions
from calibrant.metrics.registry import METRICS
from calibrant.posthoc.registry import make_calibrator
from calibrant.predictions.predictions import Predictions
from calibrant_studies.cells import Cell, CellResults
from calibrant_studies.declaration import merged
from calibrant_studies.inputs import Inputs
from calibrant_studies.kinds.base import Kind, Measure, Need, quietly
from calibrant_studies.kinds.networks import NetworkKind
from calibrant_studies.networks.images import data_set
from calibrant_studies.networks.plans import SYNTHETIC
from calibrant_studies.networks.trained import Network, fit_to, locked

if TYPE_CHECKING:
    from torch import Tensor, nn

    from calibrant.training.data.dataset import DataSet
    from calibrant.training.data.images import Images
    from calibrant.training.run.rows import TrainingBatches

HEAD_METRICS = ("accuracy", "ece", "nll")
_HEAD_MEASURES = (
    Measure("accuracy", "accuracy", 100, 2, "high"),
    Measure("ece", "ECE", 100, 2, "low", "15 equal bins"),
    Measure("nll", "NLL", 1, 4, "low"),
    Measure("ece-temperature", "ECE + TS", 100, 2, "low", "with one temperature"),
    Measure("nll-temperature", "NLL + TS", 1, 4, "low", "with one temperature"),
    Measure("ece-share", "of the network's ECE", 1, 2, "low", "both heads as they come"),
    Measure("accuracy-apart", "accuracy minus the network's", 100, 2, "high", "paired"),
    Measure("ece-apart", "ECE minus network + TS", 100, 2, "low", "the head as it comes; paired"),
    Measure("nll-apart", "NLL minus network + TS", 1, 4, "low", "the head as it comes; paired"),
    Measure("ece-scaled-apart", "ECE + TS minus network + TS", 100, 2, "low", "paired"),
    Measure("nll-scaled-apart", "NLL + TS minus network + TS", 1, 4, "low", "paired"),
)


class Heads(NetworkKind):
    """Train a head with a seed of its own, and measure it beside the network's on the test rows."""

    version: ClassVar[str] = "1"
    unread: ClassVar[tuple[str, ...]] = ("after",)
    axes: ClassVar[tuple[str, ...]] = ("input", "network", "method")
    defaults: ClassVar[Mapping[str, Any]] = {
        **NetworkKind.defaults,
        "resamples": 1000,
        "network_seed": 0,  # of the network; those of the study are the head's
        "halves": False,  # whether other held-out rows choose a head than scale it
    }

    own_measures: ClassVar[tuple[Measure, ...]] = _HEAD_MEASURES

    def tables(self, result: CellResults) -> list[tuple[str, Table]]:
        keys = [key for key in result.study.rows if key in result.study.axes]
        rows = [
            [*(result.study.word(key, ran.cell.at) for key in keys), str(ran.cell.seed), note]
            for ran in result.ran
            for note in ran.result["notes"]
        ]
        head = [*keys, "seed", "note"]
        return [("Notes", Table(head, rows, labels=len(head)))] if rows else []

    def needs(self, cell: Cell) -> tuple[Need, ...]:
        return super().needs(_of_network(cell, self.setting(cell, "network_seed")))

    def configuration(self, cell: Cell, inputs: Inputs) -> dict[str, Any]:
        found = _of_network(cell, self.setting(cell, "network_seed"))
        return super().configuration(found, inputs) | {"head_seed": cell.seed}

    def measuring(self, cell: Cell) -> dict[str, Any]:
        return self.settings(cell, "resamples", "level", "halves")

    def run(self, cell: Cell, inputs: Inputs, work: Path) -> dict[str, Any]:
        return super().run(_of_network(cell, self.setting(cell, "network_seed")), inputs, work)

    def measure(self, cell: Cell, network: Network, inputs: Inputs) -> dict[str, Any]:
        choosing = scaling = network.validation
        if self.setting(cell, "halves"):
            seed = network.plan.stage_arguments["seed"]
            choosing, scaling = network.validation.split(network.validation.n // 2, seed)
        options = {
            "resamples": self.setting(cell, "resamples"),
            "level": self.setting(cell, "level"),
        }
        own = _measured(scaling, network.test, options)
        new = own
        notes, kappa = list[str](), None
        if network.plan.stage:
            stage = replace(network, validation=choosing).fit_stage()
            said = [
                Predictions.from_logits(stage.logits(rows.features), rows.labels)
                for rows in (scaling, network.test)
            ]
            new = _measured(said[0], said[1], options)
            notes, kappa = list(stage.notes_), stage.summary().get("kappa")
        values: dict[str, Any] = {name: new["none"][name].as_dict() for name in HEAD_METRICS}
        for metric in ("ece", "nll"):
            values[f"{metric}-temperature"] = new["temperature"][metric].as_dict()
        share = new["none"]["ece"].value / own["none"]["ece"].value
        values["ece-share"] = {"value": share}
        for name, metric, ours, theirs in (
            ("accuracy-apart", "accuracy", new["none"], own["none"]),
            ("ece-apart", "ece", new["none"], own["temperature"]),
            ("nll-apart", "nll", new["none"], own["temperature"]),
            ("ece-scaled-apart", "ece", new["temperature"], own["temperature"]),
            ("nll-scaled-apart", "nll", new["temperature"], own["temperature"]),
        ):
            a, b = ours[metric], theirs[metric]
            apart = paired_difference(
                a.replicates, b.replicates, (a.value, b.value), self.setting(cell, "level")
            )
            values[name] = {"value": apart.value, "low": apart.low, "high": apart.high}
        return {"values": values, "notes": notes, "kappa": kappa, "test_rows": network.test.n}


def _of_network(cell: Cell, seed: int) -> Cell:
    """Return the cell as one about a network with its own seed; the cell's is then the head's."""
    head = {"stage_arguments": {"seed": cell.seed}}
    return replace(cell, seed=seed, settings=merged(cell.settings, head))


def _measured(
    scaling: Predictions, test: Predictions, options: Mapping[str, Any]
) -> dict[str, Evaluation]:
    """Return the metrics of test rows as they come, and with one temperature."""
    found: dict[str, Evaluation] = {}
    for after in ("none", "temperature"):
        with quietly():
            calibrator = make_calibrator(after).fit(scaling.logits, scaling.labels)
            probs = calibrator.predict_proba(test.logits, kind="logits")
        rows = Predictions.from_probs(probs, test.labels)
        found[after] = evaluate(rows, metrics=HEAD_METRICS, **options)
    return found


# PLP, and BalCAL with its backbone, on images: second stages that train the network itself.
#
# ResNet-8 learns the training images of the data set, cropped and mirrored but in the last epochs,
# and is measured on the test images as it is, and after temperature scaling and SMART fitted to
# the validation images of protocol `quick`. `plain` is PLP's own schedule without freezing: its
# control. Any second stage that trains a head alone may stand beside them: it follows on the plain
# network.

IMAGES = "a data set in a form that `calibrant train` reads (--data NAME=PATH)"
# What rescales a network, and how titles call that.
RESCALED = {"none": "", "temperature": " + TS", "smart": " + SMART"}
NETWORK_METRICS = ("accuracy", "ece", "adaece", "overconfidence", "underconfidence", "nll")


PLAIN, WHOLE = "plain", ("plain", "plp", "balcal")
PARTS = ("train", "val", "test")
LINEAR = {"balcal": "1.linear"}  # of its two heads, the one that sees features as they are


class WholeNetworks(Kind):
    """Train a network by a method, and measure it as it is and rescaled."""

    version: ClassVar[str] = "2"
    defaults: ClassVar[Mapping[str, Any]] = {
        "epochs": 12,
        "batch_size": 128,
        "training_rows": 0,  # drawn at random, by the seed; 0 takes all
        "plain_share": 1 / 6,  # of the epochs, at the end, with images as they are
        "precision": "32",  # or bf16, of the network's training
        "stage_epochs": 40,  # of a second stage that follows
        "resamples": 1000,
    }

    @property
    def measures(self) -> Mapping[str, Measure]:
        found: dict[str, Measure] = {}
        for after, title in RESCALED.items():
            for name in NETWORK_METRICS:
                of = Measure.of(METRICS[name])
                key = name if after == "none" else f"{name}-{after}"
                found[key] = Measure(key, f"{of.title}{title}", of.scale, of.digits, of.better)
        return found

    def needs(self, cell: Cell) -> tuple[Need, ...]:
        return () if cell.input == SYNTHETIC else (Need(cell.input, IMAGES),)

    def configuration(self, cell: Cell, inputs: Inputs) -> dict[str, Any]:
        settings = self.settings(cell)
        if cell.method in WHOLE:
            del settings["stage_epochs"]
        return {"method": cell.method, "seed": cell.seed, **settings}

    def method_version(self, cell: Cell) -> str:
        return __version__

    def run(self, cell: Cell, inputs: Inputs, work: Path) -> dict[str, Any]:
        of_network = cell.method in ("plp", "balcal")
        folder = work if of_network else work.parent / f"plain-{self._plain_digest(cell, inputs)}"
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder):
            if not all((folder / f"{part}.npz").is_file() for part in PARTS):
                self._train(cell, inputs, work.parent / "image-cache", folder)
        train, fit, test = (read_predictions(folder / f"{part}.npz") for part in PARTS)
        if cell.method not in WHOLE:
            fit, test = self._with_new_head(cell, train, fit, test)
        values: dict[str, Any] = {}
        replicates: dict[str, Any] = {}
        for after in RESCALED:
            with quietly():
                probs = (
                    make_calibrator(after)
                    .fit_predictions(fit)
                    .predict_proba(test.logits, kind="logits")
                )
            found = evaluate(
                Predictions.from_probs(probs, test.labels),
                metrics=list(NETWORK_METRICS),
                resamples=self.setting(cell, "resamples"),
            )
            for name, result in found.results.items():
                key = name if after == "none" else f"{name}-{after}"
                values[key] = result.as_dict()
                replicates[key] = [float(value) for value in result.replicates]
        return {
            "values": values,
            "replicates": replicates,
            "pairing": f"{cell.input} {test.n}",  # the same test images, resampled alike
            "test_rows": test.n,
        }

    def _plain_digest(self, cell: Cell, inputs: Inputs) -> str:
        """Return what tells one plainly trained network from another."""
        at = self.configuration(cell, inputs)
        for name in ("method", "stage_epochs", "resamples"):
            at.pop(name, None)
        images = "" if cell.input == SYNTHETIC else inputs[cell.input].digest
        text = json.dumps([at, images, __version__], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:24]

    def _train(self, cell: Cell, inputs: Inputs, cache: Path, folder: Path) -> None:
        """Train a network, and write its outputs for its images into a folder."""
        from calibrant.training.run.outputs import predict, write_outputs
        from calibrant.training.run.rows import TrainingBatches
        from calibrant.training.run.train import statistics_for

        data = data_set(cell.input, inputs, cache)
        training, validation = self._parted(data, cell)
        epochs = self.setting(cell, "epochs")
        batches = TrainingBatches(
            training,
            statistics_for(training),
            self.setting(cell, "batch_size"),
            cell.seed,
            padding=2,
            drop_last=True,
            plain_from=epochs - round(epochs * self.setting(cell, "plain_share")),
        )
        method = cell.method if cell.method in WHOLE else PLAIN
        half = self.setting(cell, "precision") == "bf16"
        network = trained_network(method, Epochs(batches), data.n_classes, epochs, cell.seed, half)
        folder.mkdir(parents=True, exist_ok=True)
        for part, images in zip(PARTS, (training, validation, data.test), strict=True):
            outputs = predict(network, images, batches.normalise, layer=LINEAR.get(method))
            write_outputs(folder / f"{part}.npz", outputs)

    def _parted(self, data: DataSet, cell: Cell) -> tuple[Images, Images]:
        """Return the images to train on and those that are held out."""
        from calibrant.training.run import RunSettings
        from calibrant.training.run.rows import held_out

        rows = self.setting(cell, "training_rows") or None
        return held_out(data, RunSettings(cell.input, seed=cell.seed, training_rows=rows))

    def _with_new_head(
        self, cell: Cell, train: Predictions, fit: Predictions, test: Predictions
    ) -> tuple[Predictions, Predictions]:
        """Return what a new head says, trained on the features of the plain network."""
        from calibrant.training.second_stages import make_second_stage

        stage = make_second_stage(
            cell.method, seed=cell.seed, epochs=self.setting(cell, "stage_epochs")
        )
        fit_to(stage, train, fit)
        new = [
            Predictions.from_logits(stage.logits(rows.features), rows.labels)
            for rows in (fit, test)
        ]
        return new[0], new[1]


@dataclass
class Epochs:
    """An iterable of (images, labels) that goes on to its next epoch with each iteration."""

    batches: TrainingBatches
    epoch: int = 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = self.batches.order(self.epoch)
        for step in range(len(self.batches)):
            batch = self.batches.get(order, self.epoch, step)
            yield batch.images, batch.target
        self.epoch += 1


def trained_network(
    method: str, batches: Epochs, classes: int, epochs: int, seed: int, half: bool
) -> nn.Module:
    """Return the network of a method, in evaluation mode."""
    import torch

    from calibrant.training.nets import make_network
    from calibrant.training.run.rows import seed_everything
    from calibrant.training.second_stages import BalCAL, ProgressiveLayerPeeling

    seed_everything(seed)
    network = make_network("resnet8", classes)
    network.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    if method == "balcal":
        stage = BalCAL(epochs=epochs, seed=seed, optimizer="sgd", learning_rate=0.1)
        channels, body = network.fc.in_features, network.body
        with in_bfloat16(body, half):
            return stage.train_with_backbone(body, channels, classes, batches)
    cuts = None if method == "plp" else (len(list(network.parameters())),)
    with in_bfloat16(network, half):
        return ProgressiveLayerPeeling(epochs=epochs, cuts=cuts).train(network, batches)


@contextmanager
def in_bfloat16(network: nn.Module, half: bool) -> Generator[None]:
    """Let a network compute in bfloat16, and answer in float32."""
    import torch

    forward = network.forward

    def in_half(*inputs: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return forward(*inputs).float()

    if half:
        network.forward = in_half
    try:
        yield
    finally:
        vars(network).pop("forward", None)
