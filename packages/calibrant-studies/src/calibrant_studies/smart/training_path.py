"""How SMART's network learns, epoch by epoch: Figures 2 (right) and 3 of the paper.

The package's own fit takes a handful of steps by curvature, which have no epochs. Here the network
is trained as the paper says: full batch, Adam with a rate of 5e-3, from small random weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from calibrant.core.arrays import FloatArray
from calibrant.metrics.binned import ece_of_curves
from calibrant.metrics.top_label import TopLabel
from calibrant.posthoc.temperature.smart.fitting import Penalised, TemperatureNetwork
from calibrant.posthoc.temperature.smart.objectives import ObjectiveName, SoftBins, make_objective
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import RowSummary

RATE, DECAYS, TINY = 5e-3, (0.9, 0.999), 1e-8
HIDDEN = 16


@dataclass(frozen=True)
class TrainingPath:
    """What every epoch found, before its step; arrays (E + 1,), the last after the last step.

    Attributes:
        loss: training objective on the rows fitted to.
        gradient: Euclidean norm of its gradient by all weights.
        ece: ECE of 15 bins on the test rows, a fraction.
        nll: mean NLL on the test rows, in nats.
    """

    loss: FloatArray
    gradient: FloatArray
    ece: FloatArray
    nll: FloatArray

    def change(self, of: str, start: int, end: int) -> float:
        """Return how much a series changed between two epochs, relative to the first."""
        values: FloatArray = getattr(self, of)
        return float(values[end] / values[start] - 1)

    @property
    def epochs_to_settle(self) -> int:
        """The epoch after which the loss stays within 5 % of its whole fall above its lowest."""
        fallen = self.loss.min() + 0.05 * (self.loss[0] - self.loss.min())
        above = np.flatnonzero(self.loss > fallen)
        return int(above[-1] + 1) if len(above) else 0

    @property
    def unrest(self) -> float:
        """How far the gradient's norm moves from epoch to epoch, on average in the last quarter."""
        return float(np.abs(np.diff(self._late)).mean())

    @property
    def late_gradient(self) -> float:
        """Mean norm of the gradient in the last quarter."""
        return float(self._late.mean())

    @property
    def _late(self) -> FloatArray:
        return self.gradient[-max(2, len(self.gradient) // 4) :]


def train_by_adam(
    fit: Predictions,
    test: Predictions,
    objective: ObjectiveName,
    *,
    epochs: int,
    seed: int = 0,
    rate: float = RATE,
    width: float = 0.05,
    delta: float = 1e-3,
) -> TrainingPath:
    """Train SMART's network of 49 weights as the paper does, and measure after every epoch.

    Args:
        fit: logits and labels to train on.
        test: those to measure on.
        objective: a name that `SMART` takes.
        epochs: steps of Adam, each on all rows.
        seed: of the first weights.
        rate: of Adam.
        width, delta: of the calibration objectives, as in `SMART`.
    """
    rows, others = fit.summary, test.summary
    mean, deviation = rows.margin.mean(), rows.margin.std() or 1.0
    inputs, held = ((one.margin[:, None] - mean) / deviation for one in (rows, others))
    held = np.clip(held, inputs.min(), inputs.max())
    chosen = make_objective(objective, bins=SoftBins(15, width), delta=delta, smoothing=0.005)
    loss = Penalised(rows, 1.0, chosen, 0.0, 0.0)
    network, moments, found = _start(seed), np.zeros((2, 3 * HIDDEN + 1)), list[list[float]]()
    for epoch in range(epochs + 1):
        temperatures, tape = network.forward(inputs)
        value, by_temperature = loss(temperatures)
        gradient = network.backward(tape, by_temperature)
        found.append([value, float(np.linalg.norm(gradient)), *_measured(network, held, others)])
        network = network.with_flat(network.flat() - rate * _adam(moments, gradient, epoch + 1))
    return TrainingPath(*np.array(found).T)


def _start(seed: int) -> TemperatureNetwork:
    """Return weights as torch draws those of linear layers: uniform within 1 / sqrt(inputs)."""
    rng = np.random.default_rng(seed)
    narrow = 1 / np.sqrt(HIDDEN)
    return TemperatureNetwork(
        rng.uniform(-1, 1, (HIDDEN, 1)),
        rng.uniform(-1, 1, HIDDEN),
        rng.uniform(-narrow, narrow, HIDDEN),
        rng.uniform(-narrow, narrow, 1),
    )


def _adam(moments: FloatArray, gradient: FloatArray, step: int) -> FloatArray:
    """Return the direction of a step, and keep the running moments."""
    for moment, decay, power in zip(moments, DECAYS, (1, 2), strict=True):
        moment *= decay
        moment += (1 - decay) * gradient**power
    first, second = (m / (1 - d**step) for m, d in zip(moments, DECAYS, strict=True))
    return first / (np.sqrt(second) + TINY)


def _measured(
    network: TemperatureNetwork, inputs: FloatArray, rows: RowSummary
) -> tuple[float, float]:
    """Return ECE and mean NLL."""
    beta = 1 / network.forward(inputs)[0]
    point = rows.curve.evaluate(beta)
    curves = TopLabel.sort(np.exp(-point.value), rows.correct).curves()
    return float(ece_of_curves(curves)[0]), float((point.value + beta * rows.label_gap).mean())
