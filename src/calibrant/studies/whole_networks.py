"""PLP, and BalCAL with its backbone, on real images: second stages that train the network itself.

    python -m calibrant.studies.whole_networks --data cifar10/ [--epochs 12] [--method plp]
        [--seed 0]

ResNet-8 learns the training images of the data set, cropped and mirrored but in the last sixth of
the epochs, and is measured on the test images as it is, and after temperature scaling and SMART
fitted to the validation images of protocol `quick`. `plain` is PLP's own schedule without freezing:
its control. In square brackets the 95 % bootstrap interval over test images.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from calibrant.evaluation.evaluate import Evaluation, evaluate
from calibrant.posthoc.registry import make_calibrator
from calibrant.predictions.predictions import Predictions
from calibrant.studies.measuring import quietly
from calibrant.studies.program import parser_for, run_study

if TYPE_CHECKING:
    from torch import Tensor, nn

    from calibrant.training.data.images import Images
    from calibrant.training.run.batches import TrainingBatches

METHODS = ("plain", "plp", "balcal")
BATCH = 128
AFTER = ("none", "temperature", "smart")
METRICS = ("accuracy", "ece", "adaece", "overconfidence", "underconfidence", "nll")


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


def cells_of(found: Evaluation) -> list[str]:
    """Return every metric with its interval, in percent but for the NLL."""
    cells: list[str] = []
    for name in METRICS:
        result, scale = found[name], 1 if name == "nll" else 100
        low, high = scale * result.low, scale * result.high
        digits = 4 if name == "nll" else 2
        cells.append(f"{scale * result.value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]")
    return cells


def main(words: Sequence[str] | None = None) -> None:
    """Train one network and print a row for each of AFTER."""
    parser = parser_for("whole_networks", __doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--method", choices=METHODS, default="plp")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(words)
    from calibrant.training.data import read_data_set
    from calibrant.training.run import RunSettings
    from calibrant.training.run.batches import TrainingBatches
    from calibrant.training.run.train import held_out, statistics_for

    data = read_data_set(arguments.data, cache=arguments.cache)
    training, validation = held_out(data, RunSettings(str(arguments.data), seed=arguments.seed))
    batches = TrainingBatches(
        training,
        statistics_for(training),
        BATCH,
        arguments.seed,
        padding=2,
        drop_last=True,
        plain_from=arguments.epochs - round(arguments.epochs / 6),
    )
    network = trained(
        arguments.method, Epochs(batches), data.n_classes, arguments.epochs, arguments.seed
    )
    fit, test = (predictions(network, images, batches) for images in (validation, data.test))
    for after in AFTER:
        with quietly():
            probs = make_calibrator(after).fit_predictions(fit).predict_proba(test.logits)
        found = evaluate(Predictions.from_probs(probs, test.labels), metrics=list(METRICS))
        print(f"| {arguments.method}, {after} | " + " | ".join(cells_of(found)) + " |", flush=True)


if __name__ == "__main__":
    run_study(main)
