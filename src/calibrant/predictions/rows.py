"""Rows of logits: how the confidence of each moves with temperature, and what fits need of it.

With beta = 1/T and gaps d_k = z_k - max z <= 0, a row's **confidence curve** is

    f(beta) = log sum_k exp(beta d_k)

convex, falling from log K at beta = 0 to log(number of tied maxima). Everything that a temperature
can do to the row follows from it and a few scalars: confidence exp(-f), negative log-likelihood
f + beta g (g: gap of the true label), sum of squared probabilities exp(f(2 beta) - 2 f(beta)),
entropy f - beta f'.

Two implementations, one interface: `DenseCurve` keeps the rows and is exact; `TabulatedCurve` keeps
f and two derivatives at knots a constant factor apart, and forgets the K classes.

`RowSummary` has both, gathered in one pass. Rows are independent, so summaries of shards can be
built apart and joined with `RowSummary.concatenate`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import (
    SHORT_ROW,
    Array,
    BoolArray,
    FloatArray,
    IntArray,
    as_array,
    device_of,
    for_row_chunks,
    is_numpy,
    largest_entries,
    like,
    namespace,
    on_cpu,
    pick,
    row_sums,
    to_numpy,
    top_two,
    unmasked_mean,
    working_dtype,
)
from calibrant.core.checks import check_labels, refuse_infinite
from calibrant.core.errors import InputError
from calibrant.core.weights import check_weights


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
                weights = columns * betas[part]
                np.exp(weights, out=weights)
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


# Up to this many classes the rows themselves are as quick to evaluate as a table of their curves,
# in float64, and a table would be larger than they are.
DENSE_CLASSES = 128


# The arrays of a summary that hold a number a row, besides weights.
OF_ROWS = ("top", "margin", "label_gap", "mean_gap", "unmasked", "predicted", "labels")


@dataclass(frozen=True, eq=False)
class RowSummary:
    """N rows of logits with their labels, reduced to what temperature-like maps depend on.

    All arrays are (N,) NumPy, whatever kind the logits were.

    Attributes:
        curve: the confidence curves (see `calibrant.predictions.rows`).
        top: largest logit.
        margin: largest minus second largest logit, >= 0; 0 where the maximum is tied.
        label_gap: largest minus true label's logit, >= 0.
        mean_gap: largest minus mean logit, >= 0; the mean is that of the classes left unmasked.
        unmasked: number of classes that aren't masked with minus infinity.
        predicted: index of the largest logit (the first one if tied).
        labels: true labels.
        n_classes: K.
        weights: (N,) how much each row counts; None where all count alike.

    Examples:
        >>> import calibrant as cb
        >>> rows = cb.predictions.summarize([[3.0, 1.0, 0.0]], labels=[1])
        >>> rows.margin, rows.label_gap  # second largest and true class are the same here
        (array([2.]), array([2.]))
        >>> rows.confidence(beta=0.0).round(2)  # softmax at infinite temperature
        array([0.33])
    """

    curve: ConfidenceCurve
    top: FloatArray
    margin: FloatArray
    label_gap: FloatArray
    mean_gap: FloatArray
    unmasked: FloatArray
    predicted: IntArray
    labels: IntArray
    n_classes: int
    weights: FloatArray | None = None

    @property
    def n(self) -> int:
        """Number of rows."""
        return len(self.labels)

    @property
    def correct(self) -> BoolArray:
        """(N,) whether the predicted label is the true one."""
        return self.predicted == self.labels

    def confidence(self, beta: FloatArray | float) -> FloatArray:
        """Return (N,) probabilities of the predicted labels at inverse temperature `beta`."""
        return np.exp(-self.curve.evaluate(beta).value)

    def losses(self, beta: FloatArray | float) -> FloatArray:
        """Return the (N,) log losses at inverse temperature `beta`."""
        return self.curve.evaluate(beta).value + beta * self.label_gap

    def tabulated(self, reference: float, above: int = OCTAVES_ABOVE) -> RowSummary:
        """Return the summary with its dense curves tabulated around `reference`.

        See `TabulatedCurve.build` for `above`.
        """
        if not isinstance(self.curve, DenseCurve):
            return self
        table = TabulatedCurve.build(self.curve.logits, self.top, reference, above)
        return replace(self, curve=table)

    def take(self, index: NDArray[Any] | slice) -> RowSummary:
        """Return the summary of the rows in `index`; a slice copies nothing of NumPy arrays."""
        own = {name: getattr(self, name)[index] for name in OF_ROWS}
        weights = None if self.weights is None else self.weights[index]
        return RowSummary(self.curve.take(index), n_classes=self.n_classes, weights=weights, **own)

    @classmethod
    def concatenate(cls, parts: Sequence[RowSummary]) -> RowSummary:
        """Join the summaries of shards, in order.

        Raises:
            InputError: other numbers of classes or knots, other kinds of curves, or weights of
                some shards only.
        """
        head = parts[0]
        if any(part.n_classes != head.n_classes for part in parts):
            classes = ", ".join(str(part.n_classes) for part in parts)
            raise InputError(f"summaries can't be joined: their numbers of classes are {classes}")
        if any(type(part.curve) is not type(head.curve) for part in parts):
            raise InputError("dense summaries can't be joined with tabulated ones")
        weights = [part.weights for part in parts if part.weights is not None]
        if 0 < len(weights) < len(parts):
            raise InputError("summaries with weights can't be joined with ones that have none")
        own = {name: np.concatenate([getattr(p, name) for p in parts]) for name in OF_ROWS}
        curve = type(head.curve).concatenate([part.curve for part in parts])
        every = np.concatenate(weights) if weights else None
        return cls(curve, n_classes=head.n_classes, weights=every, **own)


def summarize(
    logits: Array,
    labels: Array,
    *,
    curve: Literal["auto", "dense", "table"] = "auto",
    reference: float = 1.0,
    weights: Array | None = None,
) -> RowSummary:
    """Summarise (N, K) `logits` of any array kind with (N,) `labels`, in bounded memory.

    Args:
        logits: (N, K) real numbers, assumed checked (see `calibrant.predictions.predictions`).
        labels: (N,) true labels in [0, K).
        curve: ``"dense"`` keeps the rows and is exact; ``"table"`` forgets them and is right to
            2e-5 in confidence over reference * [1/32, 16]; ``"auto"`` takes the cheaper one.
        reference: the beta around which to tabulate, say the inverse of a first temperature.
        weights: (N,) how much each row counts, at least 0; None where all count alike.

    Raises:
        PredictionsError: labels or weights of the wrong length or range.

    Examples:
        >>> import calibrant as cb
        >>> rows = cb.predictions.summarize([[2.0, 0.0], [0.0, 1.0]], labels=[0, 0])
        >>> rows.predicted, rows.margin
        (array([0, 1]), array([2., 1.]))
        >>> rows.confidence(beta=1.0).round(2)
        array([0.88, 0.73])
    """
    logits = as_array(logits)
    rows, classes = logits.shape
    truth = check_labels(labels, rows, classes, "logits")
    counts = None if weights is None else check_weights(weights, rows, "logits")
    xp, dtype = namespace(logits), working_dtype(logits)
    top, margin, label_gap, mean_gap, unmasked = (np.empty(rows) for _ in range(5))
    predicted = np.empty(rows, dtype=np.int64)

    def work(part: slice) -> None:
        chunk = xp.astype(logits[part], dtype, copy=False)
        first, second, index = top_two(chunk)
        top[part], predicted[part] = to_numpy(first), to_numpy(index)
        margin[part] = to_numpy(first - second)
        label_gap[part] = to_numpy(first - pick(chunk, like(truth[part], logits)))
        mean, masked = unmasked_mean(chunk)
        mean_gap[part] = to_numpy(first - mean[:, 0])
        unmasked[part] = classes if masked is None else classes - to_numpy(masked).sum(axis=1)

    for_row_chunks(logits, work)
    if curve == "dense" or (curve == "auto" and classes <= DENSE_CLASSES):
        made: ConfidenceCurve = DenseCurve(logits, top)
    else:
        made = TabulatedCurve.build(logits, top, reference)
    mean_gap = np.maximum(mean_gap, 0.0)  # rounding of the mean
    return RowSummary(
        made, top, margin, label_gap, mean_gap, unmasked, predicted, truth, int(classes), counts
    )


def softmax(logits: Array, beta: FloatArray | float = 1.0) -> Array:
    """Return softmax(beta_i * z_i) for every row, as an array of the same kind.

    Args:
        logits: (N, K).
        beta: inverse temperature, one for all rows or (N,).

    Returns:
        (N, K) probabilities: float64 for float64 or integer logits, float32 for narrower ones.

    Raises:
        PredictionsError: a row holds NaN or infinity (minus infinity, a masked class, is fine).

    Examples:
        >>> import numpy as np
        >>> import calibrant as cb
        >>> cb.predictions.softmax(np.log([[1.0, 3.0]]))
        array([[0.25, 0.75]])
        >>> cb.predictions.softmax(np.log([[1.0, 3.0]]), beta=0.0)
        array([[0.5, 0.5]])
    """
    logits = as_array(logits)
    betas = np.broadcast_to(np.asarray(beta, dtype=np.float64), (logits.shape[0],))
    shared = float(betas[0]) if len(betas) > 0 and bool((betas == betas[0]).all()) else None
    xp, dtype = namespace(logits), working_dtype(logits)
    out = xp.empty_like(logits, dtype=dtype)

    def work(part: slice) -> None:
        chunk = xp.astype(logits[part], dtype, copy=False)
        with np.errstate(invalid="ignore"):  # infinity minus infinity, refused below
            scaled = chunk - largest_entries(chunk)[1][:, None]
        scaled *= like_column(betas[part], chunk, dtype) if shared is None else shared
        out[part] = softmax_chunk(scaled, part)

    for_row_chunks(logits, work)
    return out


def softmax_chunk(scores: Array, part: slice) -> Array:
    """Return the softmax of `scores` whose row maxima are 0.

    Raises:
        PredictionsError: a row, counted from `part.start`, is not finite.
    """
    xp = namespace(scores)
    weights = xp.exp(scores)
    total = row_sums(weights)[:, None]
    refuse_infinite(xp.isfinite(total)[:, 0], part.start)
    weights /= total
    return weights
