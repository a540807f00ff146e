"""Rows about their own mean: what maps read that would else depend on the logits' origin."""

from __future__ import annotations

import numpy as np

from calibrant.arrays import Array, FloatArray, namespace, row_chunks, to_numpy


def centred_rows(chunk: Array) -> tuple[Array, Array]:
    """Return rows less their mean, and which entries are masked with minus infinity.

    Masked entries stay out of the mean and are 0 in the result, so they give nothing to others.
    """
    xp = namespace(chunk)
    masked = chunk == -xp.inf
    kept = xp.sum(xp.astype(~masked, chunk.dtype), axis=1, keepdims=True)
    known = xp.where(masked, 0.0, chunk)
    return xp.where(masked, 0.0, chunk - xp.sum(known, axis=1, keepdims=True) / kept), masked


def centred_copy(logits: Array) -> FloatArray:
    """Return finite (N, K) logits less their row means, as float64 NumPy."""
    rows = to_numpy(logits).astype(np.float64)
    for part in row_chunks(rows):
        rows[part] -= rows[part].mean(axis=1, keepdims=True)
    return rows
