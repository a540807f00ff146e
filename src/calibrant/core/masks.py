"""Classes that a row's logits mask with minus infinity: out of means, and with probability 0."""

from __future__ import annotations

import numpy as np

from calibrant.core.arrays import Array, FloatArray, namespace, row_chunks, row_sums, to_numpy


def masked_classes(chunk: Array) -> Array | None:
    """Return where (n, K) logits mask a class with minus infinity, or None if nowhere."""
    xp = namespace(chunk)
    masked = chunk == -xp.inf
    return masked if bool(xp.any(masked)) else None


def unmasked_mean(chunk: Array) -> tuple[Array, Array | None]:
    """Return the (n, 1) means of the unmasked logits of each row, and `masked_classes`."""
    xp = namespace(chunk)
    mean = row_sums(chunk)[:, None] / int(chunk.shape[1])
    if bool(xp.all(xp.isfinite(mean))):
        return mean, None
    masked = chunk == -xp.inf
    kept = xp.sum(xp.astype(~masked, chunk.dtype), axis=1, keepdims=True)
    return xp.sum(xp.where(masked, 0.0, chunk), axis=1, keepdims=True) / kept, masked


def centred(chunk: Array) -> tuple[Array, Array | None]:
    """Return (n, K) logits less their unmasked mean, 0 where masked, and `masked_classes`."""
    xp = namespace(chunk)
    mean, masked = unmasked_mean(chunk)
    return chunk - mean if masked is None else xp.where(masked, 0.0, chunk - mean), masked


def centred_copy(logits: Array) -> FloatArray:
    """Return (N, K) logits less their unmasked means, 0 where masked, as float64 NumPy."""
    rows = to_numpy(logits).astype(np.float64)
    for part in row_chunks(rows):
        rows[part] = centred(rows[part])[0]
    return rows
