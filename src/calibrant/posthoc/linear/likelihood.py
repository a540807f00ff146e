"""Likelihood of a linear map of the logits: its inputs and its derivatives.

The map is softmax((I + C) x + b) with x the log-probabilities or the centred logits in units of a
fitted temperature, or whatever is given; C is a diagonal, given by its (K,) entries, or a (K, K)
matrix.

Inputs. The scores W x + b depend on the origin of x as soon as the weights of two classes differ,
and the origin of logits is arbitrary. So each row gets one: either its logits are centred, or they
are the log-probabilities that temperature scaling gives, ``x = z - logsumexp(beta z) / beta``, in
the units of the logits. The difference between the two says how sure the row is: the more sure, the
further the log-probabilities of the other classes lie below 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrant.core import numpy_namespace as xnp
from calibrant.core.arrays import (
    Array,
    BoolArray,
    FloatArray,
    IntArray,
    for_row_chunks,
    masked_classes,
    pick,
    row_sums,
    to_numpy,
    unmasked_mean,
)
from calibrant.core.weights import times, total
from calibrant.posthoc.array_ops import (
    below_top,
    centred,
    exp_of,
    largest,
    less,
    sums,
    zero_where_masked,
)
from calibrant.predictions.predictions import Predictions

Inputs = Literal["log-probabilities", "centred"]
INPUTS: tuple[Inputs, ...] = ("log-probabilities", "centred")
# Or whichever gives rows held out more likelihood.
InputChoice = Literal["likelier", "log-probabilities", "centred"]


def linear_inputs(xp: Any, logits: Array, inputs: str, beta: Array | float, masks: bool) -> Array:
    """Return (n, K) x of floating logits, 0 where a class is masked.

    Args:
        xp: array namespace.
        logits: (n, K) logits.
        inputs: one of `INPUTS`.
        beta: inverse temperature of the log-probabilities; not read for centred logits.
        masks: whether a logit may be minus infinity.
    """
    if inputs == "centred":
        return centred(xp, logits, masks)
    # In two steps: a large common offset mustn't cost the digits of a narrow float.
    gaps = below_top(xp, logits)
    return zero_where_masked(xp, logits, less(xp, gaps, _log_total(xp, gaps, beta)), masks)


def origins(logits: NDArray[Any], inputs: str, beta: float) -> FloatArray:
    """Return (N, 1) what `linear_inputs` takes off each row of (N, K) NumPy logits, as float64."""
    found = np.empty((len(logits), 1))

    def work(part: slice) -> None:
        chunk = logits[part].astype(np.float64)
        if inputs == "centred":
            found[part] = unmasked_mean(chunk)[0]
        else:
            most = largest(xnp, chunk)
            found[part] = most + _log_total(xnp, chunk - most, beta)

    for_row_chunks(logits, work)
    return found


def _log_total(xp: Any, gaps: Array, beta: Array | float) -> Array:
    """Return (n, 1) what logsumexp(beta z) / beta lies above the largest z, given z less that."""
    return xp.log(sums(xp, exp_of(xp, gaps * beta))[:, None]) / beta


class _Rows(NamedTuple):
    """A chunk: (n, K) inputs x, 0 where a class is masked; where that is, or None; labels.

    `weights` say how much each row counts, or None. `part` says which rows they are.
    """

    inputs: FloatArray
    masked: BoolArray | None
    labels: IntArray
    weights: FloatArray | None
    part: slice


# Inputs of so many numbers at most are computed once, and not again for every step.
MOST_KEPT = 1 << 22


@dataclass(frozen=True, eq=False)
class LinearLikelihood:
    """The summed NLL of (N, K) NumPy `logits` with (N,) `labels` as a function of the map.

    Sums are float64, whatever the logits are, and don't depend on the number of threads.

    Attributes:
        logits: (N, K); labels: (N,); beta: inverse of the temperature that logits are measured in.
        square: whether C is a (K, K) matrix rather than a diagonal.
        inputs: what x are, see `calibrant.posthoc.linear.likelihood`; "given" takes `logits` for x.
        weights: (N,) how much each row counts; None where all count alike.
    """

    logits: NDArray[Any]
    labels: IntArray
    beta: float
    square: bool
    inputs: Inputs | Literal["given"] = "centred"
    weights: FloatArray | None = None

    @classmethod
    def of(cls, predictions: Predictions, inputs: Inputs, *, square: bool) -> LinearLikelihood:
        """Return the likelihood of predictions, in units of the temperature that fits them best."""
        return LinearLikelihood(
            to_numpy(predictions.scores),
            predictions.labels,
            predictions.temperature.beta,
            square=square,
            inputs=inputs,
            weights=predictions.weights,
        )

    @property
    def total(self) -> float:
        """How many rows the weights amount to."""
        return total(len(self.labels), self.weights)

    def take(self, index: NDArray[Any]) -> LinearLikelihood:
        """Return the likelihood of the rows in `index`."""
        weights = None if self.weights is None else self.weights[index]
        return replace(self, logits=self.logits[index], labels=self.labels[index], weights=weights)

    def nll(
        self, change: FloatArray, bias: FloatArray, probs: NDArray[np.float32] | None = None
    ) -> tuple[float, FloatArray, FloatArray]:
        """Return the summed NLL of C = `change` and b = `bias`, and its gradients by both.

        (N, K) `probs` of a matrix are written to.
        """

        def sums(rows: _Rows) -> tuple[FloatArray, ...]:
            top, weights = self._exponentials(rows, change, bias)
            totals = row_sums(weights)
            if rows.weights is None:
                value, share = np.log(totals).sum() + top.sum(), 1 / totals
            else:
                value, share = rows.weights @ (np.log(totals) + top), rows.weights / totals
            by_bias = share @ weights
            if probs is not None:
                np.divide(weights, totals[:, None], out=probs[rows.part], casting="same_kind")
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
            own, inputs = times(own, rows.weights), times(inputs, rows.weights)
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
        """Return the (K,) second derivatives of a diagonal by C, by b, and by both of a class."""

        def sums(rows: _Rows) -> tuple[FloatArray, ...]:
            inputs = rows.inputs
            _, weights = self._exponentials(rows, change, bias)
            weights /= row_sums(weights)[:, None]
            weights *= 1 - weights
            weights = times(weights, rows.weights)
            by_bias = weights.sum(axis=0)
            weights *= inputs
            mixed = weights.sum(axis=0)
            weights *= inputs
            return weights.sum(axis=0), by_bias, mixed

        return self._over_chunks(sums)

    def bend(self, probs: NDArray[np.float32]) -> MatrixBend:
        """Return the curvature of the mean NLL by a matrix, where rows have these `probs`."""
        return MatrixBend(self._narrow, probs, self.weights, self.total)

    def evidence(self, pulls: Sequence[float]) -> list[float]:
        """Return the log evidence for a matrix pulled to 0, above that of none, by each pull.

        With p as hard a pull on every entry, g the gradients and h the curvatures of the summed NLL
        at 0, in the axes in which these are nearly diagonal, it is nearly

            sum g^2 / (2 (h + 2 p)) - log(1 + h / (2 p)) / 2.
        """
        classes, probs = int(self.logits.shape[1]), np.empty(self.logits.shape, dtype=np.float32)
        _, by_change, by_bias = self.nll(np.zeros((classes, classes)), np.zeros(classes), probs)
        of_class, of_input = self.bend(probs).factors()
        (high, by_class), (wide, by_input) = np.linalg.eigh(of_class), np.linalg.eigh(of_input)
        squares = (by_class.T @ np.column_stack([by_change, by_bias]) @ by_input) ** 2
        curvature = self.total * np.maximum(high, 0)[:, None] * np.maximum(wide, 0)
        return [
            float((squares / (curvature + 2 * p) - np.log1p(curvature / (2 * p))).sum()) / 2
            for p in pulls
        ]

    @cached_property
    def _narrow(self) -> NDArray[np.float32]:
        """The (N, K + 1) inputs, and ones behind them."""
        found = np.ones((len(self.labels), self.logits.shape[1] + 1), dtype=np.float32)

        def work(part: slice) -> None:
            found[part, :-1] = self._chunk(part).inputs

        for_row_chunks(self.logits, work)
        return found

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
        found = self._kept.get(part.start)
        if found is None:
            found = self._read(part)
            if self.logits.size <= MOST_KEPT:
                self._kept[part.start] = found
        return found

    @cached_property
    def _kept(self) -> dict[int, _Rows]:
        return {}

    def _read(self, part: slice) -> _Rows:
        inputs, masked = self.logits[part].astype(np.float64), None
        if self.inputs != "given":
            masked = masked_classes(inputs) if self._masks else None
            inputs -= self._origins[part]
            if masked is not None:
                inputs[masked] = 0.0
        inputs *= self.beta
        weights = None if self.weights is None else self.weights[part]
        return _Rows(inputs, masked, self.labels[part], weights, part)

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
        return _summed(self.logits, lambda part: sums(self._chunk(part)))


def _summed(
    rows: NDArray[Any], sums: Callable[[slice], tuple[NDArray[Any], ...]]
) -> tuple[FloatArray, ...]:
    """Add up what `sums` returns for every chunk of rows, in float64 and in their order."""
    found: dict[int, tuple[FloatArray, ...]] = {}

    def work(part: slice) -> None:
        found[part.start] = tuple(np.asarray(each, dtype=np.float64) for each in sums(part))

    for_row_chunks(rows, work)
    ordered = [found[start] for start in sorted(found)]
    return tuple(np.sum(parts, axis=0) for parts in zip(*ordered, strict=True))


@dataclass(frozen=True, eq=False)
class MatrixBend:
    """Curvature of the mean NLL by the (K, K + 1) matrix of C and, as its last column, b.

    With p the probabilities of a row and x its inputs and a 1, it is the mean over rows of

        (diag(p) - p p') kron x x'.

    Products with it are taken in float32: they choose where to look, and the gradient, which is
    float64, says when to stop.

    Attributes:
        inputs: (N, K + 1) x; probs: (N, K) p; weights: of the rows, or None; total: their sum.
    """

    inputs: NDArray[np.float32]
    probs: NDArray[np.float32]
    weights: FloatArray | None
    total: float

    def times(self, direction: FloatArray) -> FloatArray:
        """Return the (K, K + 1) product with a (K, K + 1) direction."""
        narrow = np.ascontiguousarray(direction.T, dtype=np.float32)

        def product(part: slice) -> tuple[NDArray[Any], ...]:
            inputs, probs = self.inputs[part], self.probs[part]
            scores = inputs @ narrow
            scores -= np.einsum("nk,nk->n", scores, probs)[:, None]
            scores *= probs
            if self.weights is not None:
                scores *= self.weights[part, None]
            return (scores.T @ inputs,)

        return _summed(self.probs, product)[0] / self.total

    def diagonal(self) -> FloatArray:
        """Return the (K, K) curvature by the diagonal of C."""

        def curvature(part: slice) -> tuple[NDArray[Any], ...]:
            inputs, probs = self.inputs[part, :-1], self.probs[part]
            own = weighted = inputs * probs
            if self.weights is not None:
                weighted = own * self.weights[part, None]
            return (np.diag((weighted * inputs).sum(axis=0)) - weighted.T @ own,)

        return _summed(self.probs, curvature)[0] / self.total

    def factors(self) -> tuple[FloatArray, FloatArray]:
        """Return (K, K) and (K + 1, K + 1) matrices whose Kronecker product is near the curvature.

        The first is the mean of diag(p) - p p', the second that of x x' weighted by how unsure each
        row is, the trace of its diag(p) - p p'.
        """

        def means(part: slice) -> tuple[NDArray[Any], ...]:
            inputs, probs = self.inputs[part], self.probs[part]
            unsure = 1 - np.einsum("nk,nk->n", probs, probs)
            counted = probs
            if self.weights is not None:
                unsure = unsure * self.weights[part]
                counted = probs * self.weights[part, None]
            shares = counted.sum(axis=0, dtype=np.float64)
            by_input = (inputs.T * unsure) @ inputs
            return np.diag(shares) - counted.T @ probs, by_input, np.asarray(unsure.sum())

        by_class, by_input, unsure = _summed(self.probs, means)
        every = max(float(unsure), np.finfo(np.float64).tiny)
        return by_class / self.total, by_input / every
