"""Sums for metrics of whole probability vectors: classwise ECE, and the NLL split by a temperature.

Their resamples are of blocks: rows are dealt into 200 of them by a hash of their place among all
rows, and blocks are resampled, as for such metrics of one file (`calibrant.metrics.full_rows`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import FloatArray, IntArray
from calibrant.core.exact import mixed
from calibrant.metrics.bins import DEFAULT_BINS, bin_edges, bin_index
from calibrant.metrics.full_rows import (
    BLOCKS,
    HONEST_DRAWS,
    Measured,
    prob_chunks,
    resampled_counts,
)
from calibrant.metrics.refit import AS_GIVEN, GRID, lowest_of
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.quintic import quintic
from calibrant.predictions.rows import summarize

# Numbers are rounded to multiples of these, of which sums over 2^28 rows are still exact.
UNIT, LOSS_UNIT = 2.0**-32, 2.0**-24
# Beyond so many classes the sums of all blocks would take longer to send than rows to read.
MOST_CLASSES = 1000
CARRIED = ("classwise_ece", "nll_calibration", "nll_refinement")
NEWTON_STEPS = 60


def block_of(place: int, rows: int, seed: int) -> IntArray:
    """Return the block of each of so many rows, of which the first stands at `place`."""
    numbers = np.arange(place, place + rows, dtype=np.uint64)
    return (mixed(numbers, seed) % np.uint64(BLOCKS)).astype(np.int64)


@dataclass(frozen=True, eq=False)
class WholeRowSums:
    """Whole numbers that add up over shards.

    Attributes:
        size: (M,) rows of each block.
        binned: (2, K, B) for each class and bin of its probability: rows, and the sum of p_k.
        gap: (M, K, B) for each block: sum of p_k - 1[y = k].
        loss: (M, G) for each block: sum of the loss at inverse temperatures `GRID`.
        curve: (3, G) sums over all rows of the loss and two derivatives by the logarithm of the
            inverse temperature.
        honest: (3,) sums over all rows of the mean gap of an honest label, of its variance, and of
            the gap of the true label.
    """

    size: IntArray
    binned: NDArray[np.int64] | None = None
    gap: NDArray[np.int64] | None = None
    loss: NDArray[np.int64] | None = None
    curve: NDArray[np.int64] | None = None
    honest: NDArray[np.int64] | None = None

    @classmethod
    def of(
        cls, predictions: Predictions, place: int, metrics: Sequence[str], seed: int
    ) -> WholeRowSums:
        """Sum the rows of a batch, of which the first stands at `place` among all rows."""
        block = block_of(place, predictions.n, seed)
        found: dict[str, Any] = {"size": np.bincount(block, minlength=BLOCKS)}
        if "classwise_ece" in metrics:
            found |= _classwise(predictions, block)
        if {"nll_calibration", "nll_refinement"} & set(metrics):
            found |= _refit(predictions, block)
        return cls(**found)

    def __add__(self, other: WholeRowSums) -> WholeRowSums:
        """Return the sums of both sets of rows together."""
        added: dict[str, Any] = {
            name: None if value is None else value + getattr(other, name)
            for name, value in vars(self).items()
        }
        return WholeRowSums(**added)

    def measured(self, name: str, resamples: int, seed: int) -> Measured:
        """Return a metric with its replicates, and with honest values if it has a floor."""
        if name == "classwise_ece":
            return self._classwise_ece(resamples, seed)
        return self._split(name, resamples, seed)

    def _classwise_ece(self, resamples: int, seed: int) -> Measured:
        assert self.gap is not None
        assert self.binned is not None
        n, classes = int(self.size.sum()), self.gap.shape[1]
        gap = self.gap.reshape(len(self.size), -1) * UNIT
        value = float(np.abs(self.gap.sum(axis=0)).sum()) * UNIT / (n * classes)
        counts, used = self._drawn_blocks(resamples, seed)
        drawn = np.abs(counts @ gap[used]).sum(axis=1) / (counts @ self.size[used]) / classes
        rows, total = self.binned[0].ravel(), self.binned[1].ravel() * UNIT
        some = rows > 0
        rng = np.random.default_rng([seed, 14])
        draws = min(resamples, HONEST_DRAWS)
        mean = np.clip(total[some] / rows[some], 0.0, 1.0)
        hits = rng.binomial(rows[some], mean, size=(draws, int(some.sum())))
        honest = np.abs(total[some] - hits).sum(axis=1) / (n * classes)
        return Measured(value, drawn, honest, True)

    def _split(self, name: str, resamples: int, seed: int) -> Measured:
        assert self.loss is not None
        assert self.curve is not None
        assert self.honest is not None
        n = int(self.size.sum())
        curve = self.curve * LOSS_UNIT / n
        given, best = float(curve[0, AS_GIVEN]), _lowest(curve)
        counts, used = self._drawn_blocks(resamples, seed)
        losses = counts @ (self.loss[used] * LOSS_UNIT) / (counts @ self.size[used])[:, None]
        if name == "nll_refinement":
            return Measured(min(best, given), lowest_of(losses), None, False)
        # Honest labels change only the mean gap of their logit, a mean over very many rows.
        mean, variance, gap = (self.honest * LOSS_UNIT / n).tolist()
        rng = np.random.default_rng([seed, 15])
        drawn = mean + np.sqrt(variance / n) * rng.normal(size=min(resamples, HONEST_DRAWS))
        honest = curve[0] + (drawn - gap)[:, None] * GRID
        parts = [loss[:, AS_GIVEN] - lowest_of(loss) for loss in (losses, honest)]
        return Measured(max(given - best, 0.0), parts[0], parts[1], True)

    def _drawn_blocks(self, resamples: int, seed: int) -> tuple[FloatArray, IntArray]:
        """Return (R, M') how often each block that holds rows is drawn, and which these are."""
        used = np.flatnonzero(self.size)
        return resampled_counts(len(used), resamples, seed), used


def _classwise(predictions: Predictions, block: IntArray) -> dict[str, Any]:
    classes, bins = predictions.n_classes or 0, DEFAULT_BINS
    size, edges = classes * bins, bin_edges(bins)
    gap, binned = np.zeros(BLOCKS * size), np.zeros((2, size))
    for part, probs in prob_chunks(predictions):
        index = bin_index(probs, edges) + np.arange(classes) * bins
        whole = np.rint(np.clip(probs, 0.0, 1.0) / UNIT)
        binned[0] += np.bincount(index.ravel(), minlength=size)
        binned[1] += np.bincount(index.ravel(), whole.ravel(), size)
        rows, labels = np.arange(len(probs)), predictions.labels[part]
        whole[rows, labels] -= 1 / UNIT
        place = index + block[part, None] * size
        gap += np.bincount(place.ravel(), whole.ravel(), BLOCKS * size)
    return {
        "gap": gap.astype(np.int64).reshape(BLOCKS, classes, bins),
        "binned": binned.astype(np.int64).reshape(2, classes, bins),
    }


def _refit(predictions: Predictions, block: IntArray) -> dict[str, Any]:
    rows = summarize(predictions.logits, predictions.labels)
    loss, curve = np.zeros((BLOCKS, len(GRID))), np.zeros((3, len(GRID)), dtype=np.int64)
    honest = np.zeros(3, dtype=np.int64)
    for i, beta in enumerate(GRID.tolist()):
        point = rows.curve.evaluate(beta)
        value, slope = point.value + beta * rows.label_gap, point.slope + rows.label_gap
        first = beta * slope
        second = beta * beta * point.curvature + first
        whole = [np.rint(each / LOSS_UNIT).astype(np.int64) for each in (value, first, second)]
        loss[:, i] = np.bincount(block, whole[0].astype(np.float64), BLOCKS)
        curve[:, i] = [int(each.sum()) for each in whole]
        if i == AS_GIVEN:
            parts = (-point.slope, point.curvature, rows.label_gap)
            honest[:] = [int(np.rint(each / LOSS_UNIT).sum()) for each in parts]
    return {"loss": loss.astype(np.int64), "curve": curve, "honest": honest}


def _lowest(curve: FloatArray) -> float:
    """Return the least of the loss between the inverse temperatures of `GRID`, or at their ends."""
    at = int(np.argmin(curve[0]))
    step = float(np.log(GRID[1] / GRID[0]))
    low = at if curve[1, at] < 0 else at - 1
    if not 0 <= low < len(GRID) - 1:
        return float(curve[0, at])
    scale = np.array([1.0, step, step * step])
    ends = (curve[:, low : low + 2].T * scale)[None]
    left, right = 0.0, 1.0
    for _ in range(NEWTON_STEPS):
        middle = (left + right) / 2
        slope = float(quintic(ends, np.array([middle]))[1][0])
        left, right = (left, middle) if slope > 0 else (middle, right)
    return float(quintic(ends, np.array([(left + right) / 2]))[0][0])
