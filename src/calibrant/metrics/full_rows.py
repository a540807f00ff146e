"""What metrics of whole probability vectors share: chunks, calibrated labels, block resampling.

Such a metric costs O(NK) to evaluate once, so a thousand evaluations are out of the question. Most
are functions of sums over rows, and those of a resample can be had without the rows: the rows are
dealt at random into blocks, the sums of each block are kept, and blocks are resampled. The
variance of a resampled sum is that of resampled rows, known to about 1 / sqrt(2 M) from M blocks
(5 % for 200); with fewer rows than that, each is a block of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from calibrant.core.arrays import FloatArray, IntArray, row_chunks, to_numpy
from calibrant.core.weights import codes_of, mixed
from calibrant.metrics.resampling import Clusters, HonestDraws
from calibrant.metrics.top_label import TopLabel
from calibrant.predictions.predictions import SMALLEST_PROBABILITY, Predictions
from calibrant.predictions.rows import softmax
from calibrant.predictions.scoring import score_top

BLOCKS = 200
HONEST_DRAWS = 200


def prob_chunks(predictions: Predictions) -> Iterator[tuple[slice, FloatArray]]:
    """Yield the rows of (N, K) probabilities as float64 NumPy, a chunk at a time."""
    scores = predictions.scores
    for part in row_chunks(scores):
        chunk = softmax(scores[part]) if predictions.kind == "logits" else scores[part]
        yield part, to_numpy(chunk).astype(np.float64)


def honest_labels(predictions: Predictions, draws: int, seed: int) -> IntArray:
    """Return (D, N) labels drawn from the probabilities themselves.

    Where there are clusters, rows of one agree on whether the predicted label is drawn, and else on
    which other one, as far as outcomes do (`calibrant.metrics.resampling`).
    """
    rng = np.random.default_rng(seed)
    labels = np.empty((draws, predictions.n), dtype=np.int64)
    clusters = Clusters.of(predictions.clusters)
    right, predicted, which = None, np.empty(0, dtype=np.int64), np.empty((0, 0))
    if clusters is not None:
        top = score_top(predictions)
        rows = TopLabel.sort(top.confidence, top.correct, predictions.weights)
        honest = HonestDraws.like(rows, clusters, in_order=False)
        right, predicted = honest.outcomes(rng, top.confidence, draws), top.predicted
        which = honest.uniforms(rng, predictions.n, draws)
    for part, probs in prob_chunks(predictions):
        rows, classes = len(probs), int(probs.shape[1])
        if right is not None:
            probs[np.arange(rows), predicted[part]] = 0.0
        cumulative = np.cumsum(probs, axis=1)
        cumulative /= np.maximum(cumulative[:, -1:], SMALLEST_PROBABILITY)
        # Row i occupies [i, i + 1), so that one search serves all rows.
        offset = np.arange(rows)
        steps = (cumulative + offset[:, None]).ravel()
        drawn = rng.random((draws, rows)) if right is None else which[:, part]
        found = np.searchsorted(steps, drawn + offset, side="right")
        labels[:, part] = np.clip(found - offset * classes, 0, classes - 1)
        if right is not None:
            # Without another class that has a probability, there is none to be drawn.
            surely = right[:, part] | (cumulative[:, -1] == 0)
            labels[:, part] = np.where(surely, predicted[part], labels[:, part])
    return labels


def by_class(labels: IntArray, classes: int) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield, for each class in turn, which draw and which row of (D, N) labels are of it."""
    flat = labels.ravel()
    order = np.argsort(flat, kind="stable")
    ends = np.searchsorted(flat[order], np.arange(classes + 1))
    for start, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        yield np.divmod(order[start:end], labels.shape[1])


def deal_into_blocks(n: int, seed: int, clusters: IntArray | None = None) -> IntArray:
    """Return the (N,) block of each row: `BLOCKS` blocks at most, of sizes that differ by one.

    With clusters these are dealt, so that every block is made of whole ones.
    """
    if clusters is not None:
        codes, number = codes_of(clusters)
        return deal_into_blocks(number, seed)[codes]
    return np.random.default_rng(seed).permutation(n) % min(n, BLOCKS)


def deal_by_place(place: int, rows: int, seed: int) -> IntArray:
    """Return the block of each of so many rows, of which the first stands at `place`.

    It is the same whoever asks: rows of many files are dealt by a hash of their place among all.
    """
    numbers = np.arange(place, place + rows, dtype=np.uint64)
    return (mixed(numbers, seed) % np.uint64(BLOCKS)).astype(np.int64)


def draw_blocks(size: IntArray, resamples: int, seed: int) -> tuple[FloatArray, IntArray]:
    """Return (R, M') how often each block that holds rows is drawn, and which these are."""
    used = np.flatnonzero(size)
    return resampled_counts(len(used), resamples, seed), used


def resampled_counts(blocks: int, resamples: int, seed: int) -> FloatArray:
    """Return (R, M) how often each block is drawn."""
    rng = np.random.default_rng([seed, 1])
    return rng.multinomial(blocks, np.full(blocks, 1 / blocks), size=resamples).astype(np.float64)
