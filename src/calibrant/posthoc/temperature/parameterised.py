"""Parameterised temperature scaling: a small network reads a temperature off the largest logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import numpy as np

from calibrant.core.arguments import argument
from calibrant.core.arrays import Array, FloatArray, sigmoid, to_numpy
from calibrant.core.fit_report import FitReport
from calibrant.posthoc.applying import Learnt, apply_map
from calibrant.posthoc.array_ops import largest_few, softplus, sums, unmasked, zero_where_masked
from calibrant.posthoc.facts import ROW, Facts
from calibrant.posthoc.fitting.cross_validation import NO_CLEAR_GAIN, gains_on_temperature
from calibrant.posthoc.fitting.minimizing import in_own_order
from calibrant.posthoc.state import learnt
from calibrant.posthoc.temperature.scaling import RowTemperature
from calibrant.posthoc.temperature.smart.fitting import (
    Penalised,
    betas_of,
    brier,
    fit_network,
    on_scale,
    standardised,
)
from calibrant.posthoc.temperature.smart.network import TEMPERATURE_FLOOR
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import DENSE_CLASSES, RowSummary, summarize
from calibrant.predictions.temperature import fit_temperature


class Tape(NamedTuple):
    """What the backward pass needs of a forward pass.

    Attributes:
        seen: what each layer read, the network's inputs first; raw: (N,) before the softplus.
    """

    seen: list[FloatArray]
    raw: FloatArray


def _by_layer(weights: Array, sizes: Sequence[int]) -> list[tuple[Array, Array]]:
    """Return kernel and bias of every layer, views of one vector of any array kind.

    The last layer has one output and its kernel one dimension.
    """
    layers: list[tuple[Array, Array]] = []
    start = 0
    for read, given in pairwise(sizes):
        kernel = weights[start : start + read * given]
        start += read * given
        bias = weights[start : start + given]
        start += given
        layers.append(
            (kernel if len(layers) == len(sizes) - 2 else kernel.reshape((given, read)), bias)
        )
    return layers


@dataclass(frozen=True, eq=False)
class LayeredNetwork:
    """softplus(w . relu(... relu(W1 x + b1) ...) + b) + 0.1.

    Attributes:
        weights: all of them as one vector, kernel and bias of each layer in turn.
        sizes: number of inputs, units of each hidden layer, 1.
    """

    weights: FloatArray
    sizes: tuple[int, ...]

    @classmethod
    def constant(cls, sizes: Sequence[int], rng: np.random.Generator) -> LayeredNetwork:
        """Return a network that says 1 everywhere: its last layer has nothing but a bias."""
        parts: list[FloatArray] = []
        for read, given in pairwise(sizes[:-1]):
            parts.append(rng.normal(scale=np.sqrt(2 / read), size=given * read))
            # A little bias keeps units of the next layer alive where this one is silent.
            parts.append(np.full(given, 0.1))
        parts.append(np.zeros(sizes[-2]))
        parts.append(np.array([np.log(np.expm1(1 - TEMPERATURE_FLOOR))]))
        return cls(np.concatenate(parts), tuple(sizes))

    @classmethod
    def drawn(cls, sizes: Sequence[int], rng: np.random.Generator) -> LayeredNetwork:
        """Return weights as torch draws those of linear layers: uniform within 1 / sqrt(inputs)."""
        parts: list[FloatArray] = []
        for read, given in pairwise(sizes):
            end = 1 / np.sqrt(read)
            parts += [rng.uniform(-end, end, read * given), rng.uniform(-end, end, given)]
        return cls(np.concatenate(parts), tuple(sizes))

    def flat(self) -> FloatArray:
        """Return all weights as one vector."""
        return self.weights

    def with_flat(self, vector: FloatArray) -> LayeredNetwork:
        """Return a network of these sizes with the weights of `vector`."""
        return LayeredNetwork(vector, self.sizes)

    def kernels(self) -> FloatArray:
        """Return 1 for every weight of a kernel and 0 for every bias."""
        counts = [n for read, given in pairwise(self.sizes) for n in (read * given, given)]
        return np.repeat(np.resize([1.0, 0.0], len(counts)), counts)

    def forward(self, inputs: FloatArray) -> tuple[FloatArray, Tape]:
        """Return (N,) temperatures for (N, d) `inputs`, and the tape for `backward`."""
        *hidden, (kernel, bias) = _by_layer(self.weights, self.sizes)
        seen = [inputs]
        for w, b in hidden:
            seen.append(np.maximum(seen[-1] @ w.T + b, 0.0))
        raw = seen[-1] @ kernel + bias[0]
        return np.logaddexp(raw, 0.0) + TEMPERATURE_FLOOR, Tape(seen, raw)

    @staticmethod
    def temperatures(xp: Any, inputs: Array, weights: Array, hidden: Sequence[int]) -> Array:
        """Return what `forward` gives, as a pure function of arrays; `hidden` are the units."""
        *layers, (kernel, bias) = _by_layer(weights, (int(inputs.shape[1]), *hidden, 1))
        seen = inputs
        for w, b in layers:
            seen = seen @ w.T + b
            seen = xp.maximum(seen, xp.zeros_like(seen))
        return softplus(xp, seen @ kernel + bias) + TEMPERATURE_FLOOR

    def backward(self, tape: Tape, by_temperature: FloatArray) -> FloatArray:
        """Return the gradient of a loss by `flat()`, given its (N,) gradient by temperature."""
        *hidden, (kernel, _) = _by_layer(self.weights, self.sizes)
        by_raw = by_temperature * sigmoid(tape.raw)
        parts = [np.array([by_raw.sum()]), by_raw @ tape.seen[-1]]
        by_given, above = by_raw[:, None], kernel[None]
        for layer in range(len(hidden) - 1, -1, -1):
            by_given = (by_given @ above) * (tape.seen[layer + 1] > 0)
            parts += [by_given.sum(axis=0), (by_given.T @ tape.seen[layer]).ravel()]
            above = hidden[layer][0]
        return np.concatenate(parts[::-1])


# Units of the two hidden layers.
HIDDEN = (5, 5)
# With more rows its weights are well known, and five fits more would take long.
MOST_GUARDED = 5_000


@dataclass(eq=False)
class ParameterisedTemperature(RowTemperature):
    """Each row gets its own temperature, a network's function of its ten largest logits.

    T(x) = T0 * (softplus(h(x)) + 0.1), with T0 the single temperature of greatest likelihood and h
    a network with two hidden layers of 5 rectified units: 91 parameters for ten inputs. The inputs
    are the `inputs` largest logits in falling order (all, if the classes are fewer) less the row's
    mean, in units of T0, standardised on the calibration rows and clamped to the range seen there.
    Only inputs are clamped, so no two classes become equal: the order within every row is kept.
    Neither the origin nor the scale of the logits matters.

    The fit minimises the squared error of the probabilities, summed over classes,

        mean_i sum_k (p_ik - [k = y_i])^2 + weight_decay / N * (squares of all kernels)

    on all rows at once by L-BFGS with the analytic gradient, from `restarts` networks that begin as
    temperature scaling exactly; the one with the lowest objective stays. The paper takes 100 000
    steps of Adam on batches of 1 000, a temperature |h| that has no gradient at 0, and inputs that
    depend on the origin of the logits.

    Args:
        inputs: logits that the network sees.
        weight_decay: see above. Of 0.3, 1, 3 and 10, with 5 000 rows, 3 gave the best likelihood on
            a CIFAR-10 network, and 3 and 10 did on a CIFAR-100 network.
        restarts: networks to start from.
        max_iterations: L-BFGS steps at most, for each.
        seed: for the first layers; the same seed gives the same fit.
        guard: with at most 5 000 rows, take temperature scaling unless the network gains on it by
            more than a standard error of the paired difference, in five-fold cross-validation.
            False is the network as published.

    Attributes:
        reference_: 1 / T0.
        mean_, deviation_: (d,) standardisation of the inputs.
        low_, high_: (d,) range that standardised inputs are clamped to.
        network_: all weights: (5, d) and (5,) of the first layer, (5, 5) and (5,) of the second,
            (5,) and (1,) of the output, one after the other.

    References:
        Tomani, Cremers, Buettner: Parameterized Temperature Scaling for Boosting the Expressive
        Power in Post-Hoc Uncertainty Calibration. ECCV 2022.

    Examples:
        >>> import calibrant as cb
        >>> fit, test = (cb.synthetic.margin_tempered(5_000, 10, seed=seed) for seed in (1, 2))
        >>> errors = []
        >>> for method in (cb.TemperatureScaling(), cb.posthoc.ParameterisedTemperature()):
        ...     fitted = method.fit_predictions(fit.predictions)
        ...     probs = fitted.predict_proba(test.predictions.logits)
        ...     errors.append(test.true_calibration_error(probs))
        >>> round(errors[0], 2), errors[1] < errors[0] / 5
        (0.07, True)
    """

    method: ClassVar[str] = "pts"
    facts: ClassVar[Facts | None] = Facts(
        "parameterised temperature",
        ROW,
        "hundreds of passes over N x 10",
        "few rows: its network follows noise",
    )
    fits_masked: ClassVar[bool] = False  # a masked class has no logit for the network to see

    inputs: int = argument(10, at_least=1)
    weight_decay: float = argument(3.0, at_least=0)
    restarts: int = argument(3, at_least=1)
    max_iterations: int = argument(100, at_least=1)
    seed: int = argument(0, at_least=0)
    guard: bool = argument(True)

    reference_: float = learnt(above=0)
    mean_: FloatArray = learnt("d")
    deviation_: FloatArray = learnt("d", above=0)
    low_: FloatArray = learnt("d")
    high_: FloatArray = learnt("d")
    network_: FloatArray = learnt("w")

    @property
    def cross_validates(self) -> bool:
        """Whether the guard compares it with temperature scaling on rows held out."""
        return self.guard

    @property
    def n_parameters(self) -> int:
        """5 d + 41, with d inputs, or one where temperature scaling was taken."""
        rng = np.random.default_rng(self.seed)
        start = LayeredNetwork.constant((len(self.mean_), *HIDDEN, 1), rng)
        return 1 if np.array_equal(self.network_, start.weights) else len(self.network_)

    def _fit(self, predictions: Predictions) -> FitReport:
        # Rows in an order of their own, classes too: an optimiser makes the most of any rounding.
        ranked, ranks, _ = in_own_order(predictions)
        rows = summarize(ranked, ranks, curve="dense")
        start = fit_temperature(rows)
        notes = start.report(rows.n).notes
        self.reference_ = start.beta
        values = self._largest(ranked, start.beta)
        # Of few classes the last is what the others leave: rounding isn't information.
        inputs, scale = standardised(values, least=1e-9)
        self.mean_, self.deviation_, self.low_, self.high_ = scale
        no_gain = start.warning is None and self.guard and self._no_gain(predictions)
        if no_gain:
            notes = (*notes, NO_CLEAR_GAIN)
        if no_gain or start.warning is not None:
            rng = np.random.default_rng(self.seed)
            self.network_ = LayeredNetwork.constant((values.shape[1], *HIDDEN, 1), rng).weights
            return FitReport(rows.n, "brier", float("nan"), start.iterations, True, notes)
        if rows.n_classes > DENSE_CLASSES:
            rows = rows.tabulated(start.beta)
        return self._fit_networks(rows, inputs, notes)

    def _no_gain(self, predictions: Predictions) -> bool:
        """Return whether few rows show no clear gain on one temperature, by networks of one start.

        Three starts answered the same on 18 draws of 300 to 5 000 rows, in three times the time.
        """
        few = predictions.n <= MOST_GUARDED
        return few and not gains_on_temperature(replace(self, guard=False, restarts=1), predictions)

    def _fit_networks(
        self, rows: RowSummary, inputs: FloatArray, notes: tuple[str, ...]
    ) -> FitReport:
        loss = Penalised(rows, self.reference_, brier, 0.0, 0.0)
        rng, sizes = np.random.default_rng(self.seed), (inputs.shape[1], *HIDDEN, 1)
        starts = [LayeredNetwork.constant(sizes, rng) for _ in range(self.restarts)]
        decay = self.weight_decay / rows.n * starts[0].kernels()
        best = min(
            (fit_network(start, inputs, loss, self.max_iterations, decay) for start in starts),
            key=lambda fit: fit.value,
        )
        self.network_ = best.network.weights
        return FitReport(rows.n, "brier", best.value, best.iterations, best.converged, notes)

    def _largest(self, logits: Array, reference: float) -> FloatArray:
        """Return the (N, d) largest logits minus the mean of those not masked, in units of T0."""
        width = min(self.inputs, self.n_classes_)

        def of(xp: Any, rows: Array, _: None, learnt: Learnt, masks: bool) -> Array:
            return _largest_of(xp, xp.astype(rows, xp.float64), width, masks)

        return to_numpy(apply_map(of, logits, None, {})) * reference

    def betas(self, xp: Any, logits: Array, learnt: Learnt, masks: bool) -> Array:
        """Return the inverse temperatures that the network reads off the largest logits."""
        width = int(learnt["mean_"].shape[0])
        known = _largest_of(xp, xp.astype(logits, xp.float64), width, masks)
        inputs = on_scale(xp, known * learnt["reference_"], learnt)
        relative = LayeredNetwork.temperatures(xp, inputs, learnt["network_"], HIDDEN)
        return betas_of(xp, relative, learnt["reference_"])


def _largest_of(xp: Any, logits: Array, width: int, masks: bool) -> Array:
    """Return the (n, width) largest logits in falling order, less the mean of those not masked."""
    known = zero_where_masked(xp, logits, logits, masks)
    count = sums(xp, unmasked(xp, logits)) if masks else int(logits.shape[1])
    return largest_few(xp, logits, width) - (sums(xp, known) / count)[:, None]
