"""How one row's confidence moves with temperature, the function that most of calibration rests on.

With beta = 1/T and gaps d_k = z_k - max z <= 0, a row's **confidence curve** is

    f(beta) = log sum_k exp(beta d_k)

convex, falling from log K at beta = 0 to log(number of tied maxima). Everything that a temperature
can do to the row follows from it and a few scalars: confidence exp(-f), negative log-likelihood
f + beta g (g: gap of the true label), sum of squared probabilities exp(f(2 beta) - 2 f(beta)),
entropy f - beta f'.

Two implementations, one interface: `DenseCurve` keeps the rows and is exact; `TabulatedCurve` keeps
f and two derivatives at knots a constant factor apart, and forgets the K classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import (
    SHORT_ROW,
    Array,
    FloatArray,
    device_of,
    for_row_chunks,
    is_numpy,
    like,
    namespace,
    on_cpu,
    row_sums,
    to_numpy,
    working_dtype,
)
from calibrant.core.errors import InputError


class CurvePoint(NamedTuple):
    """f and its derivatives by beta, each (N,)."""

    value: FloatArray
    slope: FloatArray
    curvature: FloatArray


class ConfidenceCurve(Protocol):
    """The confidence curves of N rows."""

    @property
    def span(self) -> tuple[float, float]:
        """The smallest and largest beta that can be told apart."""
        ...

    def evaluate(self, beta: FloatArray | float) -> CurvePoint:
        """Return f, f' and f'' at one beta for all rows, or at one for each ((N,))."""
        ...

    def take(self, index: NDArray[Any] | slice) -> Self:
        """Return the curves of the rows in `index`."""
        ...

    @classmethod
    def concatenate(cls, curves: Sequence[Self]) -> Self:
        """Return the rows of all `curves`, in order."""
        ...


# A class masked with -1e30 has no weight, but the square of its gap would overflow in float32, and
# that of one masked with minus infinity in any case.
FARTHEST, FARTHEST_DOUBLE = -1e15, -1e150
# Narrow rows are evaluated in float64. It costs little there and spares optimisers the noise, which
# twenty steps on a broken line turn into another fit; at one beta for all rows it averages out.
DOUBLE_PRECISION_CLASSES, DOUBLE_PRECISION_CLASSES_AT_ONE = 128, 64
# Rows of a table that are evaluated together: what that takes stays in cache.
ROWS_AT_ONCE = 2048


@dataclass(frozen=True, eq=False)
class DenseCurve:
    """Exact curves, computed from the (N, K) logits themselves, a cache-sized chunk at a time.

    Attributes:
        logits: (N, K), of any array kind; computed on where it lives.
        top: (N,) largest logit of each row.
    """

    logits: Array
    top: FloatArray

    @property
    def span(self) -> tuple[float, float]:
        """Zero to infinity: no beta is beyond exact curves."""
        return 0.0, math.inf

    def evaluate(self, beta: FloatArray | float) -> CurvePoint:
        """Return f, f' and f'' of every row, exactly, in passes over chunks of the logits."""
        betas = np.broadcast_to(np.asarray(beta, dtype=np.float64), self.top.shape)
        shared = float(beta) if np.ndim(beta) == 0 else None
        narrow = DOUBLE_PRECISION_CLASSES if shared is None else DOUBLE_PRECISION_CLASSES_AT_ONE
        xp, dtype = namespace(self.logits), working_dtype(self.logits)
        if on_cpu(self.logits) and self.logits.shape[1] <= narrow:
            dtype = xp.float64
        value, slope, curvature = (np.empty(len(self.top)) for _ in range(3))
        farthest = FARTHEST if dtype == xp.float32 else FARTHEST_DOUBLE
        few = is_numpy(self.logits) and self.logits.shape[1] <= SHORT_ROW

        def work(part: slice) -> None:
            if few:  # classes first: NumPy is slow along a short last axis
                columns = self.logits[part].T.astype(np.float64, order="C")
                columns -= self.top[part]
                np.maximum(columns, farthest, out=columns)
                weights = np.exp(columns * betas[part])
                total = weights.sum(axis=0)
                weights *= columns
                mean = weights.sum(axis=0) / total
                weights *= columns
                spread = weights.sum(axis=0) / total
                value[part], slope[part] = np.log(total), mean
                curvature[part] = spread - mean * mean
                return
            gaps = xp.astype(self.logits[part], dtype, copy=False) - like_column(
                self.top[part], self.logits, dtype
            )
            if self._lowest_gap < farthest:
                gaps = xp.clip(gaps, farthest, None)
            own = like_column(betas[part], self.logits, dtype) if shared is None else shared
            weights = xp.exp(gaps * own)
            total = row_sums(weights)
            mean = xp.vecdot(weights, gaps) / total
            gaps *= gaps
            value[part] = to_numpy(xp.log(total))
            slope[part] = to_numpy(mean)
            curvature[part] = to_numpy(xp.vecdot(weights, gaps) / total - mean * mean)

        for_row_chunks(self.logits, work)
        return CurvePoint(value, slope, np.maximum(curvature, 0.0))

    @cached_property
    def _lowest_gap(self) -> float:
        """A bound that no gap lies below."""
        lowest = float(namespace(self.logits).min(self.logits))
        return lowest - float(self.top.max(initial=0.0))

    def take(self, index: NDArray[Any] | slice) -> DenseCurve:
        """Return the curves of some rows, their logits where and what they are."""
        if is_numpy(self.logits):
            return DenseCurve(self.logits[index], self.top[index])
        xp = namespace(self.logits)
        chosen = np.arange(len(self.top))[index]  # whatever NumPy takes as an index will do
        return DenseCurve(xp.take(self.logits, like(chosen, self.logits), axis=0), self.top[chosen])

    @classmethod
    def concatenate(cls, curves: Sequence[DenseCurve]) -> DenseCurve:
        """Return the rows of all `curves`, their logits of one array kind, in order."""
        xp = namespace(curves[0].logits)
        return cls(
            xp.concat([curve.logits for curve in curves], axis=0),
            np.concatenate([curve.top for curve in curves]),
        )


LOG2 = math.log(2.0)
# The table spans reference * [1/32, 32]. Temperatures may use all but the last octave, which is
# there because the Brier score of a row needs f(2 beta).
OCTAVES_BELOW, OCTAVES_ABOVE = 5, 5
# Squaring doubles the relative rounding error, so the powers start afresh after this many octaves.
SQUARINGS_IN_A_ROW = 5


@dataclass(frozen=True, eq=False)
class TabulatedCurve:
    """Curves as quintic Hermite tables in log2 beta; a row costs 492 bytes whatever K is.

    Knots a constant factor apart let exp(2 beta d) come from exp(beta d) by squaring, so eight
    exponentials a logit fill a table of 41 knots. The confidence is within 2e-5 of exact on
    reference * [1/32, 16] for K up to 1 024; the worst rows are those whose other logits all tie.

    Attributes:
        table: (N, knots, 3) float32: f and its first two derivatives by log2 beta, a step apart.
        reference: the beta at the middle of the table.
        per_octave: knots in a factor of two.
    """

    table: NDArray[np.float32]
    reference: float
    per_octave: int

    @property
    def span(self) -> tuple[float, float]:
        """The smallest and largest beta of the table; others are clamped to it."""
        above = (self.table.shape[1] - 1) // self.per_octave - OCTAVES_BELOW
        return self.reference * 2.0**-OCTAVES_BELOW, self.reference * 2.0**above

    def evaluate(self, beta: FloatArray | float) -> CurvePoint:
        """Return f, f' and f'' of every row from the table; a beta outside `span` is clamped."""
        betas = np.clip(np.asarray(beta, dtype=np.float64), *self.span)
        found = np.empty((3, len(self.table)))
        for first in range(0, len(self.table), ROWS_AT_ONCE):
            part = slice(first, first + ROWS_AT_ONCE)
            found[:, part] = self._evaluate(part, betas if betas.ndim == 0 else betas[part])
        return CurvePoint(*found)

    def _evaluate(self, part: slice, betas: NDArray[np.float64]) -> tuple[FloatArray, ...]:
        """Return value, slope and curvature of some rows."""
        position = (np.log2(betas / self.reference) + OCTAVES_BELOW) * self.per_octave
        knot = np.clip(position.astype(np.int64), 0, self.table.shape[1] - 2)
        table = self.table[part]
        if betas.ndim == 0:
            ends = table[:, int(knot) : int(knot) + 2, :].astype(np.float64)
        else:
            rows = np.arange(len(table))
            ends = np.stack([table[rows, knot], table[rows, knot + 1]], axis=1).astype(np.float64)
        value, first, second = quintic(ends, np.asarray(position - knot, dtype=np.float64))
        slope = first * self.per_octave / (LOG2 * betas)
        curvature = (second * (self.per_octave / LOG2) ** 2 / betas - slope) / betas
        return value, slope, np.maximum(curvature, 0.0)

    def take(self, index: NDArray[Any] | slice) -> TabulatedCurve:
        """Return the tables of some rows, with the same knots."""
        return TabulatedCurve(self.table[index], self.reference, self.per_octave)

    @classmethod
    def concatenate(cls, curves: Sequence[TabulatedCurve]) -> TabulatedCurve:
        """Return the tables of all `curves` in order; raises `InputError` if their knots differ."""
        head = curves[0]
        if any((c.reference, c.per_octave) != (head.reference, head.per_octave) for c in curves):
            raise InputError(
                "summaries can only be joined if their tables share their knots: build each with "
                "the same `reference`"
            )
        return cls(
            np.concatenate([curve.table for curve in curves]), head.reference, head.per_octave
        )

    @classmethod
    def build(
        cls, logits: Array, top: FloatArray, reference: float = 1.0, above: int = OCTAVES_ABOVE
    ) -> TabulatedCurve:
        """Tabulate the curves of (N, K) logits whose row maxima are `top`.

        `above` octaves beyond `reference` are tabulated; the last is for f(2 beta) alone.
        """
        per_octave = knots_per_octave(int(logits.shape[1]))
        knots = (OCTAVES_BELOW + above) * per_octave + 1
        table = np.empty((len(top), knots, 3), dtype=np.float32)

        def work(part: slice) -> None:
            table[part] = _tabulate(logits[part], top[part], reference, per_octave, knots)

        for_row_chunks(logits, work)
        return cls(table, reference, per_octave)


def knots_per_octave(classes: int) -> int:
    """Return how densely to tabulate: many tied classes make the curve's bend sharper."""
    return 4 if classes <= 1024 else 6


def like_column(values: FloatArray, reference: Array, dtype: Any) -> Array:
    """Return (n,) `values` as an (n, 1) column of `reference`'s kind."""
    return like(values[:, None], reference, dtype)


def _tabulate(
    chunk: Array, top: FloatArray, reference: float, per_octave: int, knots: int
) -> NDArray[np.float64]:
    """Return the (n, knots, 3) table of one chunk."""
    xp, dtype = namespace(chunk), working_dtype(chunk)
    gaps = xp.astype(chunk, dtype) - like_column(top, chunk, dtype)
    if float(xp.min(gaps)) < FARTHEST / reference:
        gaps = xp.clip(gaps, FARTHEST / reference, None)
    gaps_squared = gaps * gaps
    sums = xp.empty((3, knots, len(top)), dtype=dtype, **_on_device_of(chunk))
    for start in range(per_octave):
        weights = None
        for step, knot in enumerate(range(start, knots, per_octave)):
            if weights is None or step % SQUARINGS_IN_A_ROW == 0:
                weights = xp.exp(gaps * (reference * 2.0 ** (knot / per_octave - OCTAVES_BELOW)))
            else:
                weights *= weights
            sums[0, knot, :] = row_sums(weights)
            sums[1, knot, :] = xp.vecdot(weights, gaps)
            sums[2, knot, :] = xp.vecdot(weights, gaps_squared)
    total, first, second = to_numpy(sums).astype(np.float64)
    beta = reference * 2.0 ** (np.arange(knots)[:, None] / per_octave - OCTAVES_BELOW)
    slope = beta * first / total
    curvature = beta * beta * (second / total - (first / total) ** 2)
    step = LOG2 / per_octave
    return np.stack(
        [np.log(total), step * slope, step * step * (curvature + slope)], axis=-1
    ).swapaxes(0, 1)


def _on_device_of(array: Array) -> dict[str, Any]:
    return {} if is_numpy(array) else {"device": device_of(array)}


def quintic(ends: FloatArray, t: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Interpolate between two knots; derivatives are by t in [0, 1].

    Args:
        ends: (N, 2, 3) value and two derivatives at both knots.
        t: (N,) or () position between them.
    """
    (f0, d0, s0), (f1, d1, s1) = ends[:, 0, :].T, ends[:, 1, :].T
    rise = f1 - f0
    c2 = s0 / 2
    c3 = 10 * rise - 6 * d0 - 4 * d1 - 1.5 * s0 + 0.5 * s1
    c4 = -15 * rise + 8 * d0 + 7 * d1 + 1.5 * s0 - s1
    c5 = 6 * rise - 3 * (d0 + d1) + 0.5 * (s1 - s0)
    value = f0 + t * (d0 + t * (c2 + t * (c3 + t * (c4 + t * c5))))
    first = d0 + t * (2 * c2 + t * (3 * c3 + t * (4 * c4 + t * 5 * c5)))
    second = 2 * c2 + t * (6 * c3 + t * (12 * c4 + t * 20 * c5))
    return value, first, second
