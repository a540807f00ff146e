"""What metrics of whole probability vectors share: chunks of rows, honest labels, block resampling.

Such a metric costs O(NK) to evaluate once, so a thousand evaluations are out of the question. Most
are functions of sums over rows, and those of a resample can be had without the rows: the rows are
dealt at random into blocks, the sums of each block are kept, and blocks are resampled. The
variance of a resampled sum is that of resampled rows, known to about 1 / sqrt(2 M) from M blocks
(5 % for 200); with fewer rows than that, each is a block of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from calibrant.core.arrays import FloatArray, IntArray, row_chunks, to_numpy
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import softmax

BLOCKS = 200
HONEST_DRAWS = 200


class Measured(NamedTuple):
    """A metric of whole rows with what its uncertainty needs.

    Attributes:
        value: on all rows.
        replicates: (R,) values on bootstrap resamples.
        honest: (D,) values on labels drawn from the probabilities; None if that means nothing.
        biased: whether noise drives the value upwards, and that of a resample twice.
    """

    value: float
    replicates: FloatArray
    honest: FloatArray | None
    biased: bool


def prob_chunks(predictions: Predictions) -> Iterator[tuple[slice, FloatArray]]:
    """Yield the rows of (N, K) probabilities as float64 NumPy, a chunk at a time."""
    scores = predictions.scores
    for part in row_chunks(scores):
        chunk = softmax(scores[part]) if predictions.kind == "logits" else scores[part]
        yield part, to_numpy(chunk).astype(np.float64)


def honest_labels(predictions: Predictions, draws: int, seed: int) -> IntArray:
    """Return (D, N) labels drawn from the probabilities themselves."""
    rng = np.random.default_rng(seed)
    labels = np.empty((draws, predictions.n), dtype=np.int64)
    for part, probs in prob_chunks(predictions):
        rows, classes = len(probs), int(probs.shape[1])
        cumulative = np.cumsum(probs, axis=1)
        cumulative /= cumulative[:, -1:]
        # Row i occupies [i, i + 1), so that one search serves all rows.
        offset = np.arange(rows)
        steps = (cumulative + offset[:, None]).ravel()
        found = np.searchsorted(steps, rng.random((draws, rows)) + offset, side="right")
        labels[:, part] = np.clip(found - offset * classes, 0, classes - 1)
    return labels


def by_class(labels: IntArray, classes: int) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield, for each class in turn, which draw and which row of (D, N) labels are of it."""
    flat = labels.ravel()
    order = np.argsort(flat, kind="stable")
    ends = np.searchsorted(flat[order], np.arange(classes + 1))
    for start, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        yield np.divmod(order[start:end], labels.shape[1])


def deal_into_blocks(n: int, seed: int) -> IntArray:
    """Return the (N,) block of each row: `BLOCKS` blocks at most, of sizes that differ by one."""
    return np.random.default_rng(seed).permutation(n) % min(n, BLOCKS)


def resampled_counts(blocks: int, resamples: int, seed: int) -> FloatArray:
    """Return (R, M) how often each block is drawn."""
    rng = np.random.default_rng([seed, 1])
    return rng.multinomial(blocks, np.full(blocks, 1 / blocks), size=resamples).astype(np.float64)
