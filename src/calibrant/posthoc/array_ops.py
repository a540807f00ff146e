"""Building blocks of maps in the array-API standard, which every engine runs and traces.

No Python branch on values in here: what holds for a NumPy row holds for a traced graph. Where
NumPy has a quicker way to the same numbers than the standard's, the function takes it, so that no
map has to.
`xp` is the array namespace of the arrays, n a number of rows, K of classes.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, cast

import numpy as np

from calibrant.core import numpy_namespace as xnp
from calibrant.core.arrays import Array, FloatArray, IntArray, largest_entries, row_sums
from calibrant.predictions.predictions import SMALLEST_PROBABILITY

# Rows are searched in blocks from so many entries a block on.
FEWEST_DEEP = 4


def columns(xp: Any, rows: Array) -> Array:
    """Return the (1, K) indices of the columns of (n, K) `rows`, on their device."""
    return xp.arange(int(rows.shape[1]), device=getattr(rows, "device", None))[None, :]


def top(xp: Any, rows: Array) -> tuple[Array, Array]:
    """Return the (n, 1) index and the (n, 1) value of the largest entry of each row.

    Of tied entries the first is taken.
    """
    if xp is not xnp:
        index = xp.argmax(rows, axis=1, keepdims=True)
        return index, xp.max(rows, axis=1, keepdims=True)
    index, most = largest_entries(rows)
    return index[:, None], most[:, None]


def largest(xp: Any, rows: Array) -> Array:
    """Return the (n, 1) largest entries of (n, K) rows."""
    if xp is not xnp:
        return xp.max(rows, axis=1, keepdims=True)
    return top(xp, rows)[1]


def replaced(xp: Any, rows: Array, index: Array, values: Array | float) -> Array:
    """Return a copy of (n, K) rows with (n, 1) `values`, or one, at their (n, 1) `index`."""
    if xp is not xnp:
        new = xp.full_like(rows[:, :1], values) if isinstance(values, (int, float)) else values
        return xp.where(columns(xp, rows) == index, new, rows)
    # Writing n entries takes a fifth of the time of comparing and choosing n K of them.
    out = rows.copy()
    out[np.arange(len(rows)), index[:, 0]] = (
        values if isinstance(values, (int, float)) else values[:, 0]
    )
    return out


def exp_of(xp: Any, own: Array) -> Array:
    """Return the exponentials of an array that nobody else will read: NumPy's is written over."""
    return np.exp(own, out=own) if xp is xnp else xp.exp(own)


def less(xp: Any, own: Array, column: Array) -> Array:
    """Return the difference to an array that nobody else will read: NumPy's is written over."""
    if xp is xnp:
        own -= column
        return own
    return own - column


def over(xp: Any, own: Array, divisor: Array) -> Array:
    """Return the quotient of an array that nobody else will read: NumPy's is written over."""
    if xp is xnp:
        own /= divisor
        return own
    return own / divisor


def within(xp: Any, x: Array, low: Array | float, high: Array | float) -> Array:
    """Return `x` clipped to [low, high]."""
    if xp is xnp:  # for a few numbers `clip` takes five times as long
        return np.minimum(np.maximum(x, low), high)
    return xp.clip(x, low, high)


def sums(xp: Any, rows: Array) -> Array:
    """Return the (n,) sums of the rows of (n, K)."""
    return row_sums(rows) if xp is xnp else xp.sum(rows, axis=1)


def below_top(xp: Any, rows: Array) -> Array:
    """Return (n, K) rows less their largest entries."""
    return rows - largest(xp, rows)


def softmax_of_gaps(xp: Any, gaps: Array) -> Array:
    """Return the softmax of (n, K) rows of one's own whose largest entries are 0 or near it."""
    if xp is not xnp and hasattr(xp, "softmax"):  # torch's, and ONNX's: one pass instead of four
        return xp.softmax(gaps, 1)
    weights = exp_of(xp, gaps)
    return over(xp, weights, sums(xp, weights)[:, None])


def softmax(xp: Any, rows: Array) -> Array:
    """Return the softmax of (n, K) rows."""
    return softmax_of_gaps(xp, below_top(xp, rows))


def softmax_of_own(xp: Any, own: Array) -> Array:
    """Return the softmax of (n, K) rows that nobody else will read."""
    return softmax_of_gaps(xp, less(xp, own, largest(xp, own)))


class TopAndOthers(NamedTuple):
    """Rows parted into the largest entry and the others, all relative to the largest.

    Attributes:
        index: (n, 1) where the largest entry is (the first of tied ones).
        weights: (n, K) exp(z - max z) of the others, 0 for the largest.
        rest: (n,) sum of the weights in float64. The confidence is 1 / (1 + rest); a float32 sum
            that took in the largest would round the rest away where it matters most, next to a
            confidence of 1.
    """

    index: Array
    weights: Array
    rest: Array

    @property
    def confidence(self) -> Array:
        """(n,) largest probability of the softmax, in float64."""
        return 1 / (1 + self.rest)


def parted(xp: Any, rows: Array, beta: Array | None = None) -> TopAndOthers:
    """Return what the softmax of (n, K) rows is made of, apart from the largest entry.

    With an inverse temperature `beta` of the softmax of rows times that. Rounding may make its
    largest two tie, so which is the largest comes from the rows.
    """
    index, most = top(xp, rows)
    gaps = rows - most if beta is None else (rows - most) * beta
    if xp is xnp:
        gaps[np.arange(len(gaps)), index[:, 0]] = -np.inf
    else:
        gaps = replaced(xp, gaps, index, -xp.inf)
    weights = exp_of(xp, gaps)
    return TopAndOthers(index, weights, xp.astype(sums(xp, weights), xp.float64))


def smallest(xp: Any, rows: Array, count: int) -> Array:
    """Return the (n, count) indices of the smallest entries of (n, M) rows, in any order."""
    if count >= int(rows.shape[1]):
        return xp.argsort(rows, axis=1)
    if xp is xnp:  # the standard has a full sort only, which takes far longer
        return smallest_of_blocks(rows, count)
    if hasattr(xp, "topk"):
        return xp.topk(rows, count, dim=1, largest=False, sorted=False)[1]
    return xp.argsort(rows, axis=1)[:, :count]


def smallest_of_blocks(rows: FloatArray, count: int) -> IntArray:
    """Return what `smallest` does, of NumPy rows of M > count entries, in a quarter of the time.

    Each row is a table whose columns are blocks. The smallest entries of all stand in the `count`
    blocks with the smallest minima, so that only those few are searched.
    """
    n, width = rows.shape
    across = math.isqrt(count * width)  # blocks; as many entries are left to search
    deep = width // across
    if deep < FEWEST_DEEP:
        return np.argpartition(rows, count - 1, axis=1)[:, :count]
    whole = deep * across
    least: FloatArray = rows[:, :whole].reshape(n, deep, across).min(axis=1)
    blocks: IntArray = np.argpartition(least, count - 1, axis=1)[:, :count]
    places = np.empty((n, count * deep + width - whole), dtype=np.int64)
    for level in range(deep):
        places[:, level * count : (level + 1) * count] = blocks + level * across
    places[:, count * deep :] = np.arange(whole, width)
    found = np.argpartition(np.take_along_axis(rows, places, axis=1), count - 1, axis=1)[:, :count]
    return np.take_along_axis(places, found, axis=1)


def largest_few(xp: Any, rows: Array, count: int) -> Array:
    """Return the (n, count) largest entries of (n, M) rows, in falling order."""
    if count < int(rows.shape[1]) and xp is xnp:
        rows = np.partition(np.asarray(rows), -count, axis=1)[:, -count:]
    elif hasattr(xp, "topk"):
        return xp.topk(rows, min(count, int(rows.shape[1])), dim=1)[0]
    return xp.sort(rows, axis=1, descending=True)[:, :count]


def as_type(xp: Any, value: Array, rows: Array) -> Array:
    """Return a learnt `value` in the type of the `rows` that it is combined with.

    What is learnt is float64; left so it would widen (n, K) float32 rows.
    """
    if xp is xnp:  # the general way costs a microsecond
        return value.astype(rows.dtype, copy=False)
    return xp.astype(value, rows.dtype, copy=False)


def sigmoid(xp: Any, x: Array) -> Array:
    """Return 1 / (1 + exp(-x)), to the last digits on both sides."""
    small = xp.exp(-xp.abs(x))
    return xp.where(x < 0, small, xp.ones_like(small)) / (1 + small)


def softplus(xp: Any, x: Array) -> Array:
    """Return log(1 + exp(x)), to the last digits on both sides."""
    return xp.maximum(x, xp.zeros_like(x)) + xp.log1p(xp.exp(-xp.abs(x)))


def steps(xp: Any, x: Array, edges: Array, values: Array) -> Array:
    """Return (n,) values of a map that is constant between edges.

    Args:
        x: (n,) where to read it.
        edges: (B - 1,) inner edges in ascending order; a piece holds its upper edge.
        values: (B,) of the pieces.
    """
    return xp.take(values, xp.searchsorted(edges, x), axis=0)


def lines(xp: Any, x: Array, knots: Array, values: Array) -> Array:
    """Return (n,) values of the broken line through (knots, values); constant beyond its ends.

    Args:
        x: (n,) where to read it.
        knots: (P,) in ascending order, P >= 1.
        values: (P,) at the knots.
    """
    last = int(knots.shape[0]) - 1
    if last == 0:
        return xp.zeros_like(x) + values[0]
    if xp is xnp:
        found: Array = cast(Any, np).interp(x, knots, values)
        return found
    inside = within(xp, x, knots[0], knots[last])
    right = within(xp, xp.searchsorted(knots, inside), 1, last)
    low, high = xp.take(knots, right - 1, axis=0), xp.take(knots, right, axis=0)
    start, end = xp.take(values, right - 1, axis=0), xp.take(values, right, axis=0)
    return start + (inside - low) / (high - low) * (end - start)


def cubics(
    xp: Any, x: Array, breaks: Array, starts: Array, last: Array, coefficients: Array
) -> Array:
    """Return (n,) values of a piecewise cubic, constant beyond its ends; see `SplinePieces`."""
    piece, u = place_in(xp, x, breaks, starts, last)
    c = xp.take(coefficients, piece, axis=0)
    return c[:, 0] + u * (c[:, 1] + u * (c[:, 2] + u * c[:, 3]))


def place_in(xp: Any, x: Array, breaks: Array, starts: Array, last: Array) -> tuple[Array, Array]:
    """Return the (n,) pieces that hold x, and how far from their starts; see `SplinePieces`."""
    inside = within(xp, x, starts[0], last)
    piece = xp.searchsorted(breaks, inside, side="right")
    return piece, inside - xp.take(starts, piece, axis=0)


def unmasked(xp: Any, logits: Array) -> Array:
    """Return (n, K) ones and, where minus infinity masks a class, zeros."""
    return xp.astype(logits > -xp.inf, logits.dtype)


def uniform(xp: Any, logits: Array, masks: bool) -> Array | float:
    """Return the uniform distribution over the classes that (n, K) logits leave unmasked."""
    if not masks:
        return 1 / int(logits.shape[1])
    free = unmasked(xp, logits)
    return free / sums(xp, free)[:, None]


def zero_where_masked(xp: Any, logits: Array, values: Array, masks: bool) -> Array:
    """Return (n, K) `values`, 0 where minus infinity masks a class in `logits`."""
    return xp.where(logits > -xp.inf, values, xp.zeros_like(values)) if masks else values


def still_masked(xp: Any, logits: Array, scores: Array, masks: bool) -> Array:
    """Return (n, K) `scores`, minus infinity where `logits` are."""
    return xp.where(logits > -xp.inf, scores, logits) if masks else scores


def centred(xp: Any, logits: Array, masks: bool) -> Array:
    """Return (n, K) logits minus the mean of those not masked, 0 where masked."""
    if not masks:
        return logits - sums(xp, logits)[:, None] / int(logits.shape[1])
    known = zero_where_masked(xp, logits, logits, masks)
    mean = sums(xp, known) / sums(xp, unmasked(xp, logits))
    return zero_where_masked(xp, logits, known - mean[:, None], masks)


def scores_behind(xp: Any, probs: Array, logits: Array, *, masks: bool, keeps: bool) -> Array:
    """Return the (n, K) logits of the step behind one that made `probs` of `logits`.

    They are log-probabilities. None counts as less than the smallest that NLL takes.

    Args:
        xp: array namespace.
        probs: (n, K) what the step gave; logits: (n, K) what it was given.
        masks: whether a logit may be minus infinity.
        keeps: whether all steps so far keep the predicted class. Then that of the row's largest
            logit is lifted by a rounding error, so that no class overtakes it in the step behind
            that is level with it after this one.
    """
    scores = xp.log(xp.clip(probs, SMALLEST_PROBABILITY, None))
    if keeps:
        most = largest(xp, scores)
        lifted = most + 2 * float(xp.finfo(scores.dtype).eps) * (1 + xp.abs(most))
        index = top(xp, logits)[0]
        scores = replaced(xp, scores, index, lifted)
    return still_masked(xp, logits, scores, masks)
