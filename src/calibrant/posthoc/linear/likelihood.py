"""Likelihood of a linear map of the logits, with its first and second derivatives.

The map is softmax((I + C) x + b) with x the log-probabilities or the centred logits in units of a
fitted temperature, or whatever is given; C is a diagonal, given by its (K,) entries, or a (K, K)
matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import (
    BoolArray,
    FloatArray,
    IntArray,
    for_row_chunks,
    masked_classes,
    pick,
    row_sums,
)
from calibrant.core.weights import times, total
from calibrant.posthoc.linear.inputs import Inputs, origins


class _Rows(NamedTuple):
    """A chunk: (n, K) inputs x, 0 where a class is masked; where that is, or None; labels.

    `weights` say how much each row counts, or None.
    """

    inputs: FloatArray
    masked: BoolArray | None
    labels: IntArray
    weights: FloatArray | None


@dataclass(frozen=True, eq=False)
class LinearLikelihood:
    """The summed NLL of (N, K) NumPy `logits` with (N,) `labels` as a function of the map.

    Sums are float64, whatever the logits are, and don't depend on the number of threads.

    Attributes:
        logits: (N, K); labels: (N,); beta: inverse of the temperature that logits are measured in.
        square: whether C is a (K, K) matrix rather than a diagonal.
        inputs: what x are, see `calibrant.posthoc.linear.inputs`; "given" takes `logits` for x.
        weights: (N,) how much each row counts; None where all count alike.
    """

    logits: NDArray[Any]
    labels: IntArray
    beta: float
    square: bool
    inputs: Inputs | Literal["given"] = "centred"
    weights: FloatArray | None = None

    @property
    def total(self) -> float:
        """How many rows the weights amount to."""
        return total(len(self.labels), self.weights)

    def take(self, index: NDArray[Any]) -> LinearLikelihood:
        """Return the likelihood of the rows in `index`."""
        weights = None if self.weights is None else self.weights[index]
        return replace(self, logits=self.logits[index], labels=self.labels[index], weights=weights)

    def nll(self, change: FloatArray, bias: FloatArray) -> tuple[float, FloatArray, FloatArray]:
        """Return the summed NLL of C = `change` and b = `bias`, and its gradients by both."""

        def sums(rows: _Rows) -> tuple[FloatArray, ...]:
            top, weights = self._exponentials(rows, change, bias)
            totals = row_sums(weights)
            if rows.weights is None:
                value, share = np.log(totals).sum() + top.sum(), 1 / totals
            else:
                value, share = rows.weights @ (np.log(totals) + top), rows.weights / totals
            by_bias = share @ weights
            if self.square:
                weights *= share[:, None]
                return value, weights.T @ rows.inputs, by_bias
            weights *= rows.inputs
            return value, share @ weights, by_bias

        value, by_change, by_bias = self._over_chunks(sums)
        own, at_labels, count = self._of_labels
        value -= own + (at_labels * change).sum() + count @ bias
        return float(value), by_change - at_labels, by_bias - count

    @cached_property
    def _of_labels(self) -> tuple[FloatArray, ...]:
        """The sum of x at the true labels, and what C and b are multiplied by in their scores."""

        def sums(rows: _Rows) -> tuple[FloatArray, ...]:
            inputs, labels, classes = rows.inputs, rows.labels, rows.inputs.shape[1]
            own = inputs[np.arange(len(labels)), labels]
            count = np.bincount(labels, rows.weights, classes).astype(np.float64)
            if rows.weights is not None:
                own, inputs = own * rows.weights, inputs * rows.weights[:, None]
            if self.square:
                at_labels = np.zeros((classes, classes))
                np.add.at(at_labels, labels, inputs)
            else:
                at_labels = np.bincount(labels, own, classes).astype(np.float64)
            return own.sum(), at_labels, count

        return self._over_chunks(sums)

    def losses(self, change: FloatArray, bias: FloatArray) -> FloatArray:
        """Return the (N,) NLL of each row."""
        found = np.empty(len(self.labels))

        def work(part: slice) -> None:
            rows = self._chunk(part)
            top, weights = self._exponentials(rows, change, bias)
            own, at = pick(rows.inputs, rows.labels), change[rows.labels]
            scores = own + ((rows.inputs * at).sum(axis=1) if self.square else own * at)
            found[part] = np.log(row_sums(weights)) + top - scores - bias[rows.labels]

        for_row_chunks(self.logits, work)
        return found

    def curvature(self, change: FloatArray, bias: FloatArray) -> tuple[FloatArray, ...]:
        """Return the second derivatives by each entry of C, by each of b, and by both of a class.

        The last is 0 for a matrix.
        """

        def sums(rows: _Rows) -> tuple[FloatArray, ...]:
            inputs = rows.inputs
            _, weights = self._exponentials(rows, change, bias)
            weights /= row_sums(weights)[:, None]
            weights *= 1 - weights
            weights = times(weights, rows.weights)
            by_bias = weights.sum(axis=0)
            if self.square:
                return weights.T @ (inputs * inputs), by_bias, np.zeros(len(by_bias))
            weights *= inputs
            mixed = weights.sum(axis=0)
            weights *= inputs
            return weights.sum(axis=0), by_bias, mixed

        return self._over_chunks(sums)

    def _exponentials(
        self, rows: _Rows, change: FloatArray, bias: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return the (n,) largest scores and the (n, K) exponentials of the others less it."""
        inputs = rows.inputs
        scores = inputs @ change.T + inputs if self.square else inputs * (1 + change)
        scores += bias
        if rows.masked is not None:
            scores[rows.masked] = -np.inf
        top = pick(scores, scores.argmax(axis=1))
        scores -= top[:, None]
        return top, np.exp(scores, out=scores)

    @cached_property
    def _origins(self) -> FloatArray:
        return origins(self.logits, self.inputs, self.beta)

    def _chunk(self, part: slice) -> _Rows:
        inputs, masked = self.logits[part].astype(np.float64), None
        if self.inputs != "given":
            masked = masked_classes(inputs) if self._masks else None
            inputs -= self._origins[part]
            if masked is not None:
                inputs[masked] = 0.0
        inputs *= self.beta
        weights = None if self.weights is None else self.weights[part]
        return _Rows(inputs, masked, self.labels[part], weights)

    @cached_property
    def possible(self) -> int:
        """How many classes some row can be."""
        return int((self.logits > -np.inf).any(axis=0).sum())

    @cached_property
    def _masks(self) -> bool:
        return bool((self.logits == -np.inf).any())

    def _over_chunks(
        self, sums: Callable[[_Rows], tuple[FloatArray, ...]]
    ) -> tuple[FloatArray, ...]:
        """Add up what `sums` returns for every chunk."""
        found: dict[int, tuple[FloatArray, ...]] = {}

        def work(part: slice) -> None:
            found[part.start] = sums(self._chunk(part))

        for_row_chunks(self.logits, work)
        ordered = [found[start] for start in sorted(found)]
        return tuple(np.sum(parts, axis=0) for parts in zip(*ordered, strict=True))
