"""The temperature network of SMART: one hidden layer, written out with its gradient.

    T(x) = softplus(w2 . relu(W1 x + b1) + b2) + floor

With one input and 16 hidden units it has 49 parameters and is piecewise linear before the softplus,
so the temperature is a smooth-ended broken line of the margin.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from calibrant.core.arrays import Array, BoolArray, FloatArray
from calibrant.core.weights import quantiles
from calibrant.posthoc.pieces import softplus

HIDDEN_UNITS = 16
TEMPERATURE_FLOOR = 0.1


class Tape(NamedTuple):
    """What the backward pass needs of a forward pass."""

    inputs: FloatArray
    active: BoolArray
    softplus: FloatArray


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

    def slopes(self, tape: Tape) -> FloatArray:
        """Return the (N, P) derivatives of the temperatures by `flat()`."""
        inputs, active = tape.inputs, tape.active
        by_raw = -np.expm1(-tape.softplus)[:, None]
        by_bias = np.where(active, by_raw * self.w2, 0.0)
        by_w1 = by_bias[:, :, None] * inputs[:, None, :]
        by_w2 = np.where(active, by_raw * (inputs @ self.w1.T + self.b1), 0.0)
        return np.concatenate([by_w1.reshape(len(inputs), -1), by_bias, by_w2, by_raw], axis=1)


def temperatures(xp: Any, inputs: Array, w1: Array, b1: Array, w2: Array, b2: Array) -> Array:
    """Return what `TemperatureNetwork.forward` gives, as a pure function of arrays."""
    hidden = inputs @ w1.T + b1
    raw = xp.maximum(hidden, xp.zeros_like(hidden)) @ w2 + b2
    return softplus(xp, raw) + TEMPERATURE_FLOOR
