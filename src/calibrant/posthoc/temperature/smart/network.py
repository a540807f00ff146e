"""The temperature network of SMART, written out with its derivatives.

It has one hidden layer:

    T(x) = softplus(w2 . relu(W1 x + b1) + b2) + floor

With one input and 16 hidden units it has 49 parameters and is piecewise linear before the softplus,
so the temperature is a smooth-ended broken line of the margin.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import Array, BoolArray, FloatArray, IntArray, ascending
from calibrant.core.weights import quantiles
from calibrant.posthoc.array_ops import softplus

HIDDEN_UNITS = 16
TEMPERATURE_FLOOR = 0.1


class Slopes(Protocol):
    """The (N, P) derivatives of N temperatures by the P weights, less a factor of each row."""

    @property
    def factor(self) -> FloatArray:
        """(N,) by what all derivatives of a row are to be multiplied."""
        ...

    def sums(self, columns: FloatArray) -> FloatArray:
        """Return the (P, m) sums over the rows of derivatives times (N, m) columns."""
        ...

    def squares(self, weights: FloatArray) -> FloatArray:
        """Return the (P, P) sums over the rows of products of two, times (N,) weights >= 0."""
        ...


class Tape(NamedTuple):
    """What derivatives need of a forward pass.

    Attributes:
        inputs: (N, d); active: (H, N) of which units; softplus: (N,) temperatures minus the floor.
    """

    inputs: FloatArray
    active: BoolArray
    softplus: FloatArray

    def slopes(self, network: TemperatureNetwork) -> Slopes:
        """Return the derivatives by `flat()`.

        What a unit gives is w1 x + b1 where it is active. So the derivatives by all its weights are
        sums of its inputs where it is active, and of whether it is.
        """
        active = self.active.astype(np.float64)
        given = (active[:, None, :] * self.inputs.T).reshape(-1, len(self.inputs))
        rows = np.concatenate([given, active, np.ones((1, len(self.inputs)))])
        return RowSlopes(-np.expm1(-self.softplus), rows, network.mixing())


@dataclass(frozen=True)
class RowSlopes:
    """Derivatives as sums of (Q, N) numbers of each row, shared among the weights by (Q, P)."""

    factor: FloatArray
    rows: FloatArray
    mixing: FloatArray

    def sums(self, columns: FloatArray) -> FloatArray:
        """See `Slopes`."""
        return self.mixing.T @ (self.rows @ columns)

    def squares(self, weights: FloatArray) -> FloatArray:
        """See `Slopes`."""
        halves = self.rows * np.sqrt(weights)  # NumPy computes half of a product with its transpose
        return self.mixing.T @ (halves @ halves.T) @ self.mixing


class Ascending(NamedTuple):
    """A single input of each row, from the least on; between its bends, a network is a line.

    Attributes:
        values: (N,) inputs; order: (N,) whose they are, of as few bytes as will do.
    """

    values: FloatArray
    order: NDArray[np.integer[Any]]

    @classmethod
    def of(cls, inputs: FloatArray) -> Ascending:
        """Sort (N,) inputs."""
        order = ascending(inputs)
        return cls(inputs[order], order.astype(np.min_scalar_type(len(order))))


Inputs = FloatArray | Ascending


class Stretches(NamedTuple):
    """What derivatives need of a forward pass along a single input: few sums of rows.

    Attributes:
        inputs: the rows; starts: (S,) the first of each stretch between bends.
        active: (H, S) which units are active there; softplus: as in `Tape`.
    """

    inputs: Ascending
    starts: IntArray
    active: FloatArray
    softplus: FloatArray

    def slopes(self, network: TemperatureNetwork) -> Slopes:
        """Return the derivatives by `flat()`."""
        units, stretches = self.active.shape
        # x and 1 of each stretch, of which the numbers of a row that `Tape.slopes` has are sums.
        parts = np.zeros((2, stretches, 2 * units + 1))
        parts[0, :, :units] = parts[1, :, units:-1] = self.active.T
        parts[1, :, -1] = 1.0
        mixing = parts.reshape(2 * stretches, -1) @ network.mixing()
        return StretchSlopes(-np.expm1(-self.softplus), self.inputs, self.starts, mixing)


@dataclass(frozen=True)
class StretchSlopes:
    """Derivatives as sums of x and 1 on each of S stretches, shared by (2 S, P)."""

    factor: FloatArray
    inputs: Ascending
    starts: IntArray
    mixing: FloatArray

    def sums(self, columns: FloatArray) -> FloatArray:
        """See `Slopes`."""
        numbers = columns.T.take(self.inputs.order, axis=1)
        zeroth = self._summed(numbers)
        numbers *= self.inputs.values
        return self.mixing.T @ np.concatenate([self._summed(numbers), zeroth], axis=1).T

    def squares(self, weights: FloatArray) -> FloatArray:
        """See `Slopes`."""
        values, powers = self.inputs.values, np.empty((3, len(weights)))
        powers[0] = weights[self.inputs.order]
        np.multiply(powers[0], values, out=powers[1])
        np.multiply(powers[1], values, out=powers[2])
        zeroth, first, second = self._summed(powers)[:, :, None]
        x, one = self.mixing[: len(self.starts)], self.mixing[len(self.starts) :]
        return x.T @ (second * x + first * one) + one.T @ (first * x + zeroth * one)

    def _summed(self, numbers: FloatArray) -> FloatArray:
        """Return (m, S) sums of (m, N) numbers over the stretches."""
        return np.add.reduceat(numbers, self.starts, axis=1)


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

    @overload
    def forward(self, inputs: FloatArray) -> tuple[FloatArray, Tape]: ...

    @overload
    def forward(self, inputs: Ascending) -> tuple[FloatArray, Stretches]: ...

    def forward(self, inputs: Inputs) -> tuple[FloatArray, Tape | Stretches]:
        """Return (N,) temperatures for (N, d) or sorted inputs, and what derivatives need."""
        if isinstance(inputs, Ascending):
            return self._along(inputs)
        # Units come first in memory: NumPy is slow along a short last axis.
        hidden = self.w1 @ inputs.T
        hidden += self.b1[:, None]
        active = hidden > 0
        positive = _softplus(self.w2 @ np.maximum(hidden, 0.0, out=hidden) + self.b2[0])
        return positive + TEMPERATURE_FLOOR, Tape(inputs, active, positive)

    def _along(self, inputs: Ascending) -> tuple[FloatArray, Stretches]:
        w1, values = self.w1[:, 0], inputs.values
        with np.errstate(divide="ignore", invalid="ignore"):
            bends = -self.b1 / w1
        rising = np.where(w1 == 0, self.b1 > 0, w1 > 0)
        # The rows up to where a unit is 0: before they are active or after.
        ends = np.where(
            w1 > 0, np.searchsorted(values, bends, "right"), np.searchsorted(values, bends)
        )
        ends[w1 == 0] = 0
        starts = np.unique(np.append(ends, 0))
        starts = starts[starts < len(values)]
        active = ((starts >= ends[:, None]) == rising[:, None]).astype(np.float64)
        lines = np.stack([self.w2 * w1, self.w2 * self.b1]) @ active
        slope, level = np.repeat(lines, np.diff(starts, append=len(values)), axis=1)
        positive = np.empty(len(values))
        positive[inputs.order] = _softplus(slope * values + level + self.b2[0])
        return positive + TEMPERATURE_FLOOR, Stretches(inputs, starts, active, positive)

    def backward(self, tape: Tape, by_temperature: FloatArray) -> FloatArray:
        """Return the gradient of a loss by `flat()`, given its (N,) gradient by temperature."""
        by_raw = by_temperature * -np.expm1(-tape.softplus)
        active = tape.active.astype(np.float64)
        # Sums over the rows where a unit is active, of what it is active on and of the constant.
        of_inputs, of_one = active @ (by_raw[:, None] * tape.inputs), active @ by_raw
        by_w1, by_b1 = of_inputs * self.w2[:, None], of_one * self.w2
        by_w2 = (of_inputs * self.w1).sum(axis=1) + of_one * self.b1
        return np.concatenate([by_w1.ravel(), by_b1, by_w2, [by_raw.sum()]])

    def mixing(self) -> FloatArray:
        """Return (Q, P) how the weights share the numbers of a row: see `Tape.slopes`."""
        hidden, width = self.w1.shape
        first = hidden * width
        mixing = np.zeros((first + hidden + 1, self.size))
        units: IntArray = np.arange(hidden, dtype=np.int64)
        inputs: IntArray = np.arange(first, dtype=np.int64)
        mixing[inputs, inputs] = np.repeat(self.w2, width)
        mixing[first + units, first + units] = self.w2
        mixing[inputs, first + hidden + inputs // width] = self.w1.ravel()
        mixing[first + units, first + hidden + units] = self.b1
        mixing[-1, -1] = 1.0
        return mixing


def _softplus(raw: FloatArray) -> FloatArray:
    """Return what logaddexp(raw, 0) is, without its scalar loop."""
    return np.maximum(raw, 0.0) + np.log1p(np.exp(-np.abs(raw)))


def temperatures(xp: Any, inputs: Array, w1: Array, b1: Array, w2: Array, b2: Array) -> Array:
    """Return what `TemperatureNetwork.forward` gives, as a pure function of arrays."""
    hidden = inputs @ w1.T + b1
    raw = xp.maximum(hidden, xp.zeros_like(hidden)) @ w2 + b2
    return softplus(xp, raw) + TEMPERATURE_FLOOR
