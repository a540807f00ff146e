"""The temperature network of SMART and of PTS, and how it is fitted.

SMART's has one hidden layer, written out with its gradient:

    T(x) = softplus(w2 . relu(W1 x + b1) + b2) + floor

With one input and 16 hidden units it has 49 parameters and is piecewise linear before the softplus,
so the temperature is a smooth-ended broken line of the margin.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

import numpy as np

from calibrant.core.arrays import Array, BoolArray, FloatArray, IntArray, for_each
from calibrant.core.weights import mean, quantiles, times, total
from calibrant.posthoc.array_ops import softplus
from calibrant.posthoc.fitting.minimizing import minimize
from calibrant.posthoc.temperature.smart.objectives import (
    Objective,
    SoftBinnedCalibration,
    negative_log_likelihood,
)
from calibrant.predictions.curves import CurvePoint
from calibrant.predictions.rows import RowSummary

HIDDEN_UNITS = 16
TEMPERATURE_FLOOR = 0.1


class Tape(NamedTuple):
    """What the backward pass needs of a forward pass."""

    inputs: FloatArray
    active: BoolArray
    softplus: FloatArray


class Slopes(NamedTuple):
    """The (N, P) derivatives of the temperatures by the weights, diag(factor) rows' mixing.

    Attributes:
        rows: (Q, N) numbers of each row, Q less than P; factor: (N,) by what all of a row's are
            multiplied.
        mixing: (Q, P) how the weights share them.
    """

    rows: FloatArray
    factor: FloatArray
    mixing: FloatArray


@dataclass(frozen=True)
class TemperatureNetwork:
    """Weights of the network.

    Attributes:
        w1: (H, d) first layer; b1: (H,) its bias.
        w2: (H,) second layer; b2: (1,) its bias.
    """

    w1: FloatArray
    b1: FloatArray
    w2: FloatArray
    b2: FloatArray

    @classmethod
    def constant(
        cls,
        temperature: float,
        inputs: FloatArray,
        seed: int,
        hidden: int = HIDDEN_UNITS,
        weights: FloatArray | None = None,
    ) -> TemperatureNetwork:
        """Return a network that says `temperature` everywhere, ready to learn.

        The second layer is zero, so the start is exactly temperature scaling. Every hidden unit
        bends at a data point drawn from `inputs`, half of them rising to each side, which leaves
        no unit dead. `weights`, (N,), say how much each row counts.
        """
        rng = np.random.default_rng(seed)
        width = inputs.shape[1]
        directions = rng.normal(size=(hidden, width))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        if width == 1:
            directions = np.where(np.arange(hidden) % 2 == 0, 1.0, -1.0)[:, None]
        shares = (np.arange(hidden) + rng.random(hidden)) / hidden
        if weights is None:
            bends = np.quantile(inputs, shares, axis=0)
        else:
            bends = np.stack([quantiles(column, shares, weights) for column in inputs.T], axis=1)
        bias = np.log(np.expm1(temperature - TEMPERATURE_FLOOR))
        return cls(
            directions, -(directions * bends).sum(axis=1), np.zeros(hidden), np.array([bias])
        )

    @property
    def size(self) -> int:
        """Number of parameters."""
        return self.w1.size + self.b1.size + self.w2.size + self.b2.size

    def flat(self) -> FloatArray:
        """Return all parameters as one vector."""
        return np.concatenate([self.w1.ravel(), self.b1, self.w2, self.b2])

    def with_flat(self, vector: FloatArray) -> TemperatureNetwork:
        """Return a network of this shape with the parameters of `vector`."""
        hidden, width = self.w1.shape
        w1, b1, w2, b2 = np.split(vector, np.cumsum([hidden * width, hidden, hidden]))
        return TemperatureNetwork(w1.reshape(hidden, width), b1, w2, b2)

    def forward(self, inputs: FloatArray) -> tuple[FloatArray, Tape]:
        """Return (N,) temperatures for (N, d) `inputs`, and the tape for `backward`."""
        hidden = inputs @ self.w1.T
        hidden += self.b1
        active = hidden > 0
        hidden *= active
        raw = hidden @ self.w2 + self.b2[0]
        # What logaddexp(raw, 0) is, without its scalar loop.
        softplus = np.maximum(raw, 0.0) + np.log1p(np.exp(-np.abs(raw)))
        return softplus + TEMPERATURE_FLOOR, Tape(inputs, active, softplus)

    def backward(self, tape: Tape, by_temperature: FloatArray) -> FloatArray:
        """Return the gradient of a loss by `flat()`, given its (N,) gradient by temperature."""
        by_raw = by_temperature * -np.expm1(-tape.softplus)
        active = tape.active.astype(np.float64)
        # Sums over the rows where a unit is active, of what it is active on and of the constant.
        of_inputs, of_one = active.T @ (by_raw[:, None] * tape.inputs), by_raw @ active
        by_w1, by_b1 = of_inputs * self.w2[:, None], of_one * self.w2
        by_w2 = (of_inputs * self.w1).sum(axis=1) + of_one * self.b1
        return np.concatenate([by_w1.ravel(), by_b1, by_w2, [by_raw.sum()]])

    def slopes(self, tape: Tape) -> Slopes:
        """Return the (N, P) derivatives of the temperatures by `flat()`, as a product.

        What a unit gives is w1 x + b1 where it is active. So the derivatives by all its weights are
        sums of two numbers of a row: whether it is active, and x if so.
        """
        hidden, width = self.w1.shape
        first = hidden * width
        rows = np.empty((first + hidden + 1, len(tape.inputs)))
        active = rows[first : first + hidden]
        active[:] = tape.active.T
        np.multiply(
            active[:, None, :],
            tape.inputs.T[None, :, :],
            out=rows[:first].reshape(hidden, width, -1),
        )
        rows[-1] = 1.0
        mixing = np.zeros((len(rows), self.size))
        units: IntArray = np.arange(hidden, dtype=np.int64)
        inputs: IntArray = np.arange(first, dtype=np.int64)
        mixing[inputs, inputs] = np.repeat(self.w2, width)
        mixing[first + units, first + units] = self.w2
        mixing[inputs, first + hidden + inputs // width] = self.w1.ravel()
        mixing[first + units, first + hidden + units] = self.b1
        mixing[-1, -1] = 1.0
        return Slopes(rows, -np.expm1(-tape.softplus), mixing)


def temperatures(xp: Any, inputs: Array, w1: Array, b1: Array, w2: Array, b2: Array) -> Array:
    """Return what `TemperatureNetwork.forward` gives, as a pure function of arrays."""
    hidden = inputs @ w1.T + b1
    raw = xp.maximum(hidden, xp.zeros_like(hidden)) @ w2 + b2
    return softplus(xp, raw) + TEMPERATURE_FLOOR


# No row's temperature leaves the fitted single one by more than this factor: a table's upper end.
LARGEST_RELATIVE_TEMPERATURE = 32.0


# Rows that are worked on together, so that memberships and hidden units stay in the cache: of all
# rows at once they would take many times the memory of the rows.
PART_ROWS = 1 << 12


def parts_of(rows: int) -> list[slice]:
    """Return the parts that rows are worked on in."""
    return [slice(start, start + PART_ROWS) for start in range(0, rows, PART_ROWS)]


@dataclass(frozen=True)
class Penalised:
    """The whole training objective as a function of relative temperatures T / T0."""

    rows: RowSummary
    reference: float
    objective: Objective
    likelihood_weight: float
    shrinkage: float

    @cached_property
    def parts(self) -> list[tuple[slice, RowSummary]]:
        """The rows in parts, which copy nothing."""
        places = parts_of(self.rows.n)
        if len(places) == 1:
            return [(slice(None), self.rows)]
        return [(place, self.rows.take(place)) for place in places]

    def __call__(self, temperatures: FloatArray) -> tuple[float, FloatArray]:
        """Return the value and its (N,) gradient by temperature."""
        parts, every = self.parts, total(self.rows.n, self.rows.weights)
        gradient, values = np.empty(self.rows.n), np.empty(len(parts))
        objective, points = self.objective, dict[int, CurvePoint]()
        if isinstance(objective, SoftBinnedCalibration) and len(parts) > 1:
            sums = np.empty((len(parts), 2, objective.bins.n_bins))

            def gather(index: int) -> None:
                place, rows = parts[index]
                point = rows.curve.evaluate(self.beta_of(temperatures[place]))
                points[index] = point._replace(curvature=np.empty(0))  # that nobody asks for
                sums[index] = self.objective.sums(rows, point)  # type: ignore[attr-defined]

            for_each(range(len(parts)), gather)
            objective = replace(objective, known=sums.sum(axis=0))

        def work(index: int) -> None:
            place, rows = parts[index]
            point = points.pop(index, None) or rows.curve.evaluate(
                self.beta_of(temperatures[place])
            )
            value, by_temperature = self._part(rows, temperatures[place], point, objective)
            share = total(rows.n, rows.weights) / every
            values[index], gradient[place] = share * value, share * by_temperature

        for_each(range(len(parts)), work)
        return float(values.sum()), gradient

    def beta_of(self, temperatures: FloatArray) -> FloatArray:
        """Return the (n,) inverse temperatures of relative ones."""
        return self.reference / np.minimum(temperatures, LARGEST_RELATIVE_TEMPERATURE)

    def is_free(self, temperatures: FloatArray) -> BoolArray:
        """Return (n,) whether a relative temperature may still rise."""
        return temperatures < LARGEST_RELATIVE_TEMPERATURE

    def _part(
        self, rows: RowSummary, temperatures: FloatArray, point: CurvePoint, objective: Objective
    ) -> tuple[float, FloatArray]:
        """Return value and gradient as if these rows were all."""
        bounded = np.minimum(temperatures, LARGEST_RELATIVE_TEMPERATURE)
        beta = self.beta_of(temperatures)
        value, by_beta = objective(rows, beta, point)
        if self.likelihood_weight > 0:
            nll, nll_by_beta = negative_log_likelihood(rows, beta, point)
            value += self.likelihood_weight * nll
            by_beta = by_beta + self.likelihood_weight * nll_by_beta
        log = np.log(bounded)
        pull = self.shrinkage / total(self.rows.n, self.rows.weights)
        value += pull * mean(log * log, rows.weights)
        held = 2 * pull / total(rows.n, rows.weights) * times(log, rows.weights)
        gradient = (held - by_beta * beta) / bounded
        return value, np.where(self.is_free(temperatures), gradient, 0.0)


class Network(Protocol):
    """Maps (N, d) inputs to (N,) temperatures."""

    def flat(self) -> FloatArray:
        """Return all parameters as one vector."""
        ...

    def with_flat(self, vector: FloatArray) -> Self:
        """Return a network of this shape with the parameters of `vector`."""
        ...

    def forward(self, inputs: FloatArray) -> tuple[FloatArray, Any]:
        """Return (N,) temperatures, and what `backward` needs of how they came about."""
        ...

    def backward(self, tape: Any, by_temperature: FloatArray) -> FloatArray:
        """Return the gradient of a loss by `flat()`, given its (N,) gradient by temperature."""
        ...


AnyNetwork = TypeVar("AnyNetwork", bound=Network)


class NetworkFit(NamedTuple, Generic[AnyNetwork]):
    """Outcome of `fit_network`."""

    network: AnyNetwork
    value: float
    iterations: int
    converged: bool


def temperatures_of(network: Network, inputs: FloatArray) -> FloatArray:
    """Return the (N,) temperatures of (N, d) inputs, a part at a time."""
    temperatures = np.empty(len(inputs))

    def forward(part: slice) -> None:
        temperatures[part] = network.forward(inputs[part])[0]

    for_each(parts_of(len(inputs)), forward)
    return temperatures


def fit_network(
    network: AnyNetwork,
    inputs: FloatArray,
    loss: Penalised,
    max_iterations: int,
    decay: FloatArray | float = 0.0,
) -> NetworkFit[AnyNetwork]:
    """Minimise `loss` plus the sum of `decay` times each parameter's square, by L-BFGS.

    Returns:
        The best state that was seen.
    """

    best = np.inf, network.flat()
    parts = parts_of(len(inputs))

    def value_and_gradient(vector: FloatArray) -> tuple[float, FloatArray]:
        nonlocal best
        candidate = network.with_flat(vector)
        temperatures, tapes = np.empty(len(inputs)), dict[int, Any]()

        def forward(index: int) -> None:
            temperatures[parts[index]], tape = candidate.forward(inputs[parts[index]])
            if len(parts) == 1:
                tapes[index] = tape

        for_each(range(len(parts)), forward)
        value, by_temperature = loss(temperatures)
        pull = decay * vector
        value += float(pull @ vector)
        if value < best[0]:
            best = value, vector.copy()
        gradients = np.empty((len(parts), len(vector)))

        def backward(index: int) -> None:
            place = parts[index]
            # Going forward once more takes less than the memory of all tapes would.
            tape = tapes[index] if tapes else candidate.forward(inputs[place])[1]
            gradients[index] = candidate.backward(tape, by_temperature[place])

        for_each(range(len(parts)), backward)
        return value, gradients.sum(axis=0) + 2 * pull

    found = minimize(
        value_and_gradient,
        network.flat(),
        maxiter=max_iterations,
        gtol=1e-7,
        ftol=1e-10,
        maxcor=20,
    )
    value, vector = best
    # Ending at the planned number of steps is no failure; ending earlier for another reason is.
    ended_well = bool(found.success) or found.nit >= max_iterations
    return NetworkFit(network.with_flat(vector), value, int(found.nit), ended_well)
