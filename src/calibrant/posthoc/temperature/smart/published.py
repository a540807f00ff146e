"""SMART as its authors' code fits it: Adam on all rows, from small random weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from calibrant.core.arguments import argument
from calibrant.core.arrays import Array, FloatArray
from calibrant.core.errors import ImproperObjectiveWarning, InputError, warn_caller
from calibrant.core.fit_report import FitReport
from calibrant.posthoc.applying import Learnt
from calibrant.posthoc.facts import ROW, Facts
from calibrant.posthoc.needs import refuse_masks
from calibrant.posthoc.state import learnt
from calibrant.posthoc.temperature.parameterised import LayeredNetwork
from calibrant.posthoc.temperature.scaling import SummaryTemperature
from calibrant.posthoc.temperature.smart.calibrator import (
    INDICATORS,
    IndicatorName,
    indicator_of,
    indicator_values,
)
from calibrant.posthoc.temperature.smart.fitting import (
    ObjectiveName,
    Penalised,
    SoftBins,
    betas_of,
    make_objective,
    objective_names,
)
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import DENSE_CLASSES, RowSummary

# Adam's memories of gradients and of their squares, and what keeps it from dividing by 0.
DECAYS, TINY = (0.9, 0.999), 1e-8


def adam(
    network: LayeredNetwork,
    inputs: FloatArray,
    loss: Penalised,
    rate: float,
    watch: Callable[[LayeredNetwork, float, FloatArray], bool],
) -> LayeredNetwork:
    """Take steps of Adam on all rows until `watch` says that it is enough.

    Args:
        network: where to start.
        inputs: (N, d), one row each of `loss`.
        loss: the training objective.
        rate: learning rate.
        watch: is given the network before each step, the loss and its gradient by all weights, and
            returns whether to take the step and go on. The network that it refuses is returned.
    """
    moments = np.zeros((2, network.weights.size))
    for step in range(1, np.iinfo(np.int64).max):
        temperatures, tape = network.forward(inputs)
        value, by_temperature = loss(temperatures)
        gradient = network.backward(tape, by_temperature)
        if not watch(network, value, gradient):
            break
        for moment, decay, power in zip(moments, DECAYS, (1, 2), strict=True):
            moment *= decay
            moment += (1 - decay) * gradient**power
        first, second = (m / (1 - d**step) for m, d in zip(moments, DECAYS, strict=True))
        network = network.with_flat(network.weights - rate * first / (np.sqrt(second) + TINY))
    return network


@dataclass(eq=False)
class PublishedSMART(SummaryTemperature):
    """SMART as its authors' repository fits it; 321 parameters.

    T(m) = softplus(h(x)) + 0.1, with h a network of rectified layers (two of 16 units in the
    repository, one in the paper's text: 49 parameters) and x the margin of the logits,
    standardised on the calibration rows. Nothing is measured in units of one temperature and
    nothing is clamped. Keeps the predicted class of every row.

    The fit takes full-batch steps of Adam with a rate of 0.005 on the objective alone, from small
    random weights, at most 2 000, and ends once 200 of them in a row have not lowered the loss by
    more than 0.0001. The last weights stay, as in the repository, whose restoring of the best ones
    has no effect. `SMART`, the package's default, has the same objective beside likelihood and
    shrinkage, and other steps; docs/smart-tables.md compares the two.

    Args:
        indicator: as in `SMART`; the default is the margin.
        hidden_layers: 2 as in the repository, 1 as in the paper's text.
        hidden: units of each.
        objective, n_bins, width, delta, smoothing: as in `SMART`.
        learning_rate: of Adam.
        max_epochs: steps at most.
        patience: steps without a lower loss after which the fit ends.
        min_delta: by how much a loss has to be lower to count as such.
        seed: for the first weights; the same seed gives the same fit, other seeds other ones.

    Attributes:
        mean_, deviation_: (d,) standardisation of the indicator (sample deviation).
        network_: all weights, kernel and bias of each layer in turn.

    References:
        Sample Margin-Aware Recalibration of Temperature (2025), Section 3 and Algorithm 1.

    Examples:
        >>> import calibrant as cb
        >>> rows = cb.synthetic.margin_tempered(500, 10, seed=1).predictions
        >>> fitted = cb.make_calibrator("smart:published", max_epochs=50).fit_predictions(rows)
        >>> fitted.n_parameters, fitted.fit_report_.iterations
        (321, 50)
    """

    method: ClassVar[str] = "smart:published"
    facts: ClassVar[Facts | None] = Facts(
        "SMART as published",
        ROW,
        "up to 2 000 passes over N x K, or over a table where K is large",
        "few rows, which it overfits; margins beyond those seen; it differs by seed",
    )
    indicator: IndicatorName = argument("margin", choices=tuple(INDICATORS))
    hidden_layers: int = argument(2, at_least=1, at_most=2)
    hidden: int = argument(16, at_least=1)
    objective: ObjectiveName = argument("charbonnier", choices=objective_names())
    n_bins: int = argument(15, at_least=1)
    width: float = argument(0.05, above=0)
    delta: float = argument(1e-3, at_least=0)
    smoothing: float = argument(0.005, at_least=0, at_most=1)
    learning_rate: float = argument(0.005, above=0)
    max_epochs: int = argument(2000, at_least=1)
    patience: int = argument(200, at_least=1)
    min_delta: float = argument(1e-4, at_least=0)
    seed: int = argument(0, at_least=0)

    mean_: FloatArray = learnt("d")
    deviation_: FloatArray = learnt("d", above=0)
    network_: FloatArray = learnt("w")

    @property
    def n_parameters(self) -> int:
        """321 for two layers of 16 units that read the margin, 49 for one."""
        return len(self.network_)

    def _units(self) -> tuple[int, ...]:
        return (self.hidden,) * self.hidden_layers

    def _fit(self, predictions: Predictions) -> FitReport:
        if self.indicator == "margin":
            return self._fit_rows(predictions.summary)
        if self.indicator == "logits":
            refuse_masks(self, predictions.scores)
        values = indicator_values(self.indicator, predictions.scores)
        return self._fit_network(predictions.summary, values)

    def _fit_rows(self, rows: RowSummary) -> FitReport:
        if self.indicator != "margin":
            raise InputError("a row summary holds the margin only; fit other indicators on logits")
        return self._fit_network(rows, rows.margin[:, None])

    def _fit_network(self, rows: RowSummary, values: FloatArray) -> FitReport:
        if self.objective == "charbonnier-eq6":
            message = "Eq. 6 is not a proper score: expect a worse calibration than before the fit"
            warn_caller(ImproperObjectiveWarning(message))
        self.mean_ = values.mean(axis=0)
        self.deviation_ = values.std(axis=0, ddof=min(1, rows.n - 1)) + 1e-8
        inputs = (values - self.mean_) / self.deviation_
        if rows.n_classes > DENSE_CLASSES:
            rows = rows.tabulated(1.0)
        bins = SoftBins(self.n_bins, self.width)
        objective = make_objective(
            self.objective, bins=bins, delta=self.delta, smoothing=self.smoothing
        )
        start = LayeredNetwork.drawn(
            (inputs.shape[1], *self._units(), 1), np.random.default_rng(self.seed)
        )
        lowest, since, losses = np.inf, 0, list[float]()

        def go_on(network: LayeredNetwork, value: float, gradient: FloatArray) -> bool:
            nonlocal lowest, since
            losses.append(value)
            # The repository looks after a step: the step that ends its patience is taken.
            if since >= self.patience or len(losses) > self.max_epochs:
                return False
            lower = value < lowest - self.min_delta
            lowest, since = (value, 0) if lower else (lowest, since + 1)
            return True

        loss = Penalised(rows, 1.0, objective, 0.0, 0.0)
        self.network_ = adam(start, inputs, loss, self.learning_rate, go_on).weights
        return FitReport(
            rows.n, self.objective, losses[-1], len(losses) - 1, since >= self.patience, ()
        )

    def betas(self, xp: Any, logits: Array, learnt: Learnt, masks: bool) -> Array:
        """Return the inverse temperatures that the network reads off the indicator."""
        inputs = indicator_of(self.indicator, xp, logits, masks) - learnt["mean_"]
        found = LayeredNetwork.temperatures(
            xp, inputs / learnt["deviation_"], learnt["network_"], self._units()
        )
        return betas_of(xp, found, 1.0)
