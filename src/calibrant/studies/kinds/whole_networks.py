"""PLP, and BalCAL with its backbone, on images: second stages that train the network itself.

ResNet-8 learns the training images of the data set, cropped and mirrored but in the last sixth of
the epochs, and is measured on the test images as it is, and after temperature scaling and SMART
fitted to the validation images of protocol `quick`. `plain` is PLP's own schedule without freezing:
its control.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from calibrant._version import __version__
from calibrant.evaluation.evaluate import evaluate
from calibrant.metrics.registry import METRICS
from calibrant.posthoc.registry import make_calibrator
from calibrant.predictions.predictions import Predictions
from calibrant.studies.cells import Cell
from calibrant.studies.inputs import Inputs
from calibrant.studies.kinds.base import Kind, Measure, Need
from calibrant.studies.measuring import quietly
from calibrant.studies.networks.images import data_set
from calibrant.studies.networks.plans import SYNTHETIC

if TYPE_CHECKING:
    from torch import Tensor, nn

    from calibrant.training.data.images import Images
    from calibrant.training.run.batches import TrainingBatches

IMAGES = "a data set in a form that `calibrant train` reads (--data NAME=PATH)"
# What rescales a network, and how titles call that.
AFTER = {"none": "", "temperature": " + TS", "smart": " + SMART"}
NAMES = ("accuracy", "ece", "adaece", "overconfidence", "underconfidence", "nll")


class WholeNetworks(Kind):
    """Train a network by a method, and measure it as it is and rescaled."""

    version: ClassVar[str] = "1"
    defaults: ClassVar[Mapping[str, Any]] = {"epochs": 12, "batch_size": 128, "resamples": 1000}

    @property
    def measures(self) -> Mapping[str, Measure]:
        """Every metric as trained, and such as ``ece-temperature`` after rescaling."""
        found: dict[str, Measure] = {}
        for after, title in AFTER.items():
            for name in NAMES:
                of = Measure.of(METRICS[name])
                key = name if after == "none" else f"{name}-{after}"
                found[key] = Measure(key, f"{of.title}{title}", of.scale, of.digits, of.better)
        return found

    def needs(self, cell: Cell) -> tuple[Need, ...]:
        """Return the images, unless they are made here."""
        return () if cell.input == SYNTHETIC else (Need(cell.input, IMAGES),)

    def configuration(self, cell: Cell, inputs: Inputs) -> dict[str, Any]:
        """Return method, seed and settings."""
        settings = {name: self.setting(cell, name) for name in self.defaults}
        return {"method": cell.method, "seed": cell.seed, **settings}

    def method_version(self, cell: Cell) -> str:
        """Return the version of the package."""
        return __version__

    def run(self, cell: Cell, inputs: Inputs, work: Path) -> dict[str, Any]:
        """Return metrics with intervals."""
        from calibrant.training.run import RunSettings
        from calibrant.training.run.batches import TrainingBatches
        from calibrant.training.run.train import held_out, statistics_for

        epochs = self.setting(cell, "epochs")
        data = data_set(cell.input, inputs, work.parent / "image-cache")
        training, validation = held_out(data, RunSettings(cell.input, seed=cell.seed))
        batches = TrainingBatches(
            training,
            statistics_for(training),
            self.setting(cell, "batch_size"),
            cell.seed,
            padding=2,
            drop_last=True,
            plain_from=epochs - round(epochs / 6),
        )
        network = trained(cell.method, Epochs(batches), data.n_classes, epochs, cell.seed)
        fit, test = (predictions(network, images, batches) for images in (validation, data.test))
        values: dict[str, Any] = {}
        for after in AFTER:
            with quietly():
                probs = make_calibrator(after).fit_predictions(fit).predict_proba(test.logits)
            found = evaluate(
                Predictions.from_probs(probs, test.labels),
                metrics=list(NAMES),
                resamples=self.setting(cell, "resamples"),
            )
            for name, result in found.results.items():
                values[name if after == "none" else f"{name}-{after}"] = result.as_dict()
        return {"values": values, "test_rows": test.n}


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


def trained(method: str, batches: Epochs, classes: int, epochs: int, seed: int) -> nn.Module:
    """Return the network of a method, in evaluation mode."""
    from calibrant.training.nets import make_network
    from calibrant.training.run.seeding import seed_everything
    from calibrant.training.second_stages import BalCAL, ProgressiveLayerPeeling

    seed_everything(seed)
    network = make_network("resnet8", classes)
    if method == "balcal":
        stage = BalCAL(epochs=epochs, seed=seed, optimizer="sgd", learning_rate=0.1)
        channels = network.fc.in_features
        return stage.train_with_backbone(network.body, channels, classes, batches)
    cuts = None if method == "plp" else (len(list(network.parameters())),)
    return ProgressiveLayerPeeling(epochs=epochs, cuts=cuts).train(network, batches)


def predictions(network: nn.Module, images: Images, batches: TrainingBatches) -> Predictions:
    """Return the logits of all images."""
    import torch

    from calibrant.training.second_stages.tensors import row_parts

    with torch.inference_mode():
        parts = row_parts(torch.arange(len(images)), 500)
        logits = torch.cat([network(batches.normalise(images.batch(part))) for part in parts])
    return Predictions.from_logits(logits.numpy(), images.labels.numpy())


KIND = WholeNetworks()
