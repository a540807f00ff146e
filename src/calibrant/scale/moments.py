"""How the loss of rows moves with temperature near a given one: a few numbers a row, in one pass.

With x_k = beta_0 (z_k - max z) and t = beta / beta_0 - 1, a row's confidence curve is

    f(beta) = log sum_k exp(x_k (1 + t)) = f(beta_0) + sum_j kappa_j t^j / j!

where kappa_j are the cumulants of x under softmax at beta_0. The mean of these over all rows gives
the mean loss near beta_0 to many digits, so that the best temperature of very many rows takes one
or two passes, and one exponential a logit in each.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import CHUNK_ELEMENTS_CPU, FloatArray, IntArray, row_sums, working_dtype
from calibrant.predictions.curves import DOUBLE_PRECISION_CLASSES_AT_ONE

# Cumulants that are kept.
ORDER = 6
# exp of what lies below is nothing, and its powers mustn't overflow.
LOWEST, LOWEST_DOUBLE = -100.0, -700.0
# Multiplied by this, the bits of a half are those of a float32 once they have been moved.
HALF_BITS, HALF_SHIFT = np.int32(0x0FFFE000 - (1 << 31)), 13
HALF_SCALE, HALF_INFINITY = np.float32(2.0**112), np.float32(65536.0)


class RowMoments(NamedTuple):
    """What a pass leaves of N rows of logits.

    Attributes:
        kappa: (ORDER + 1, N) log-sum and cumulants.
        label_gap: (N,) largest minus true label's logit.
        mean_gap: (N,) largest minus mean logit, of the classes left unmasked.
        log_classes: (N,) logarithm of how many these are.
    """

    kappa: FloatArray
    label_gap: FloatArray
    mean_gap: FloatArray
    log_classes: FloatArray


def row_moments(logits: NDArray[Any], labels: IntArray, beta: float) -> RowMoments:
    """Return the moments of (N, K) checked logits around an inverse temperature."""
    n, classes = logits.shape
    dtype = working_dtype(logits)
    if classes <= DOUBLE_PRECISION_CLASSES_AT_ONE:
        dtype = np.dtype(np.float64)
    found = RowMoments(np.empty((ORDER + 1, n)), *(np.empty(n) for _ in range(3)))
    step = max(1, CHUNK_ELEMENTS_CPU // classes)
    # Rooms that every chunk uses again: fresh memory costs more than the arithmetic.
    rooms = [np.empty((min(step, n), classes), dtype=dtype) for _ in range(3)]
    for start in range(0, n, step):
        part = slice(start, min(start + step, n))
        own = [room[: part.stop - part.start] for room in rooms]
        _of_chunk(logits[part], labels[part], beta, own, RowMoments(*(a[..., part] for a in found)))
    return found


def _of_chunk(
    chunk: NDArray[Any], labels: IntArray, beta: float, rooms: list[NDArray[Any]], out: RowMoments
) -> None:
    x, w, y = rooms
    widen(chunk, x)
    rows = np.arange(len(x))
    top = x.max(axis=1)
    out.label_gap[:] = top - x[rows, labels]
    mean = row_sums(x).astype(np.float64) / x.shape[1]
    out.log_classes[:] = np.log(x.shape[1])
    if not np.isfinite(mean).all():
        kept = x > -np.inf
        number = kept.sum(axis=1)
        mean = np.where(kept, x, 0).sum(axis=1, dtype=np.float64) / number
        out.log_classes[:] = np.log(number)
    out.mean_gap[:] = np.maximum(top - mean, 0.0)
    x -= top[:, None]
    x *= x.dtype.type(beta)
    np.maximum(x, LOWEST if x.dtype == np.float32 else LOWEST_DOUBLE, out=x)
    np.exp(x, out=w)
    total = row_sums(w).astype(np.float64)
    raw = np.empty((ORDER, len(x)))
    np.multiply(x, x, out=y)
    raw[0], raw[1] = np.vecdot(w, x), np.vecdot(w, y)
    for j in range(2, ORDER, 2):
        w *= y
        raw[j], raw[j + 1] = np.vecdot(w, x), np.vecdot(w, y)
    raw /= total
    out.kappa[0] = np.log(total)
    out.kappa[1:] = cumulants(raw)


def widen(chunk: NDArray[Any], out: NDArray[Any]) -> None:
    """Write a chunk into a room of a wider type; halves by their bits, twice as quick."""
    if chunk.dtype != np.float16 or out.dtype != np.float32:
        out[...] = chunk
        return
    bits = out.view(np.int32)
    bits[...] = chunk.view(np.int16)
    bits <<= HALF_SHIFT
    bits &= HALF_BITS
    out *= HALF_SCALE
    if (
        float(out.min(initial=0.0)) <= -HALF_INFINITY
        or float(out.max(initial=0.0)) >= HALF_INFINITY
    ):
        out[...] = chunk


def cumulants(raw: FloatArray) -> FloatArray:
    """Return the first cumulants of (J, N) raw moments E[x], E[x^2], ..."""
    found = np.empty(raw.shape)
    for n in range(1, len(raw) + 1):
        found[n - 1] = raw[n - 1]
        choose = 1.0
        for m in range(1, n):
            # choose = (n - 1 over m - 1)
            found[n - 1] -= choose * found[m - 1] * raw[n - m - 1]
            choose *= (n - m) / m
    return found
