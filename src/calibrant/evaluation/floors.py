"""Floors of metrics that read curves at landmarks only, without drawing a single row."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from calibrant.core.arrays import IntArray
from calibrant.core.threads import one_blas_thread, worker_count
from calibrant.evaluation.draws import Replicates, joined
from calibrant.metrics.honest_numbers import Pieces, honest_curves, numbers_right
from calibrant.metrics.shapes import Metric, values_of_curves
from calibrant.metrics.top_label import TopLabel

# Pieces whose distributions, and data sets whose metrics, are computed at once.
PIECES_TOGETHER, SETS_TOGETHER = 256, 100


def floor_at_landmarks(
    rows: TopLabel, metrics: Sequence[Metric], resamples: int, seed: int
) -> Replicates:
    """Return the (R,) values of metrics that want to know how many rows of a stretch are right."""
    pieces = Pieces.of(rows.landmarks)
    parts = [slice(i, i + PIECES_TOGETHER) for i in range(0, len(pieces.stretch), PIECES_TOGETHER)]
    generators = np.random.default_rng([seed, 4]).spawn(len(parts))
    right = np.zeros((rows.landmarks.stretches, resamples))

    def draw(part: slice, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
        return numbers_right(rng, rows.confidence, pieces, part, resamples)

    def batch(start: int) -> Replicates:
        return values_of_curves(
            metrics, honest_curves(rows, right[:, start : start + SETS_TOGETHER])
        )

    with one_blas_thread(), ThreadPoolExecutor(worker_count()) as pool:
        for stretch, found in pool.map(draw, parts, generators):
            right[stretch] += found
        return joined(list(pool.map(batch, range(0, resamples, SETS_TOGETHER))))
