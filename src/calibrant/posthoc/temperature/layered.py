"""A small network of rectified layers that gives a temperature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from calibrant.core.arrays import Array, FloatArray, sigmoid
from calibrant.posthoc.array_ops import softplus
from calibrant.posthoc.temperature.smart.fitting import TEMPERATURE_FLOOR


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
