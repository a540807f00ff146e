"""What a package of one's own may add to studies: a metric, a loss, a network, a kind of cell."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from calibrant.metrics.registry import MeanMetric
from calibrant_studies import Kind, Measure

SURPRISE = MeanMetric(
    name="surprise",
    title="surprise",
    definition="mean of 1 - p_y",
    needs_classes=True,
    per_row=lambda rows: 1 - np.exp(-rows.nll),
)


def make_cubic_loss():
    from calibrant.training import CalibrationLoss
    from calibrant.training.losses.base import LossName

    @dataclass(eq=False, repr=False)
    class CubicLoss(CalibrationLoss):
        """The cube of 1 - p_y."""

        names = (LossName("cubic", "the cube of 1 - p_y"),)
        power: float = 3.0

        def _row_losses(self, rows):
            p = rows.log_probs.exp().gather(1, rows.target[:, None])[:, 0]
            return (1 - p) ** self.power

    return CubicLoss


def __getattr__(name):  # torch is imported when the loss is asked for
    if name == "CubicLoss":
        return make_cubic_loss()
    raise AttributeError(name)


def narrow(n_classes):
    """Return a network of few channels."""
    from torch import nn

    from calibrant.training.nets import ImageClassifier

    body = [nn.Sequential(nn.Conv2d(3, 8, 3, 4), nn.ReLU())]
    return ImageClassifier(body, 8, n_classes)


class Coins(Kind):
    """Throw coins."""

    version: ClassVar[str] = "1"
    axes: ClassVar[tuple[str, ...]] = ("throws",)
    defaults: ClassVar[dict[str, float]] = {"bias": 0.5}
    own_measures: ClassVar[tuple[Measure, ...]] = (Measure("heads", "heads", 100.0, 1, "neither"),)

    def needs(self, cell):
        return ()

    def configuration(self, cell, inputs):
        return {**cell.at, "seed": cell.seed, **self.settings(cell)}

    def run(self, cell, inputs, work):
        rng = np.random.default_rng(cell.seed)
        heads = rng.random(int(cell.at["throws"])) < self.setting(cell, "bias")
        return {"values": {"heads": {"value": float(heads.mean())}}}
