"""Resamples and honest data sets drawn from sums: their cost doesn't grow with the rows.

A resample of N rows draws, for each cell and outcome, how many of its rows it holds: one draw from
a multinomial distribution, the very one that drawing rows would have. So nothing is approximated
but where in its cell a row lies. Honest outcomes are binomial in each cell. Rows with weights
carry them: those of a cell are drawn apart by the power of two of their weight, and what lies
between is drawn from a normal law with the variance that it has
(`calibrant.scale.weighted_counts`).
Errors that add up gaps scatter around gaps drawn towards 0, as those of single rows do.

What is drawn depends on the sums and the seed, and on nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from calibrant.evaluation.bootstrap import Replicates, values_of_resamples
from calibrant.metrics.metric_types import CurveMetric, MeanMetric, Metric, values_of_curves
from calibrant.scale.row_sums import RowSums

# Resamples are worked on in batches of about this many cells in all.
BATCH_CELLS = 1 << 18


def resampled(sums: RowSums, metrics: Sequence[Metric], resamples: int, seed: int) -> Replicates:
    """Return the (R,) values of every metric on R bootstrap resamples of the rows."""
    cells = sums.cells.cells()
    curves = [metric for metric in metrics if isinstance(metric, CurveMetric)]
    found: Replicates = {}
    if curves:
        rng = np.random.default_rng([seed, 10])
        width = len(cells.position)

        def batch(size: int) -> Replicates:
            drawn = cells.outcome.resampled(rng, size)
            of_each = cells.resampled(drawn[:, :width], drawn[:, width:])
            return values_of_resamples(curves, of_each)

        found = _in_batches(batch, resamples, width)
    for metric in metrics:
        if not isinstance(metric, MeanMetric):
            continue
        rng = np.random.default_rng([seed, 11])
        if metric.name in sums.losses:
            kinds, middles = sums.losses[metric.name].kinds()
            whole = kinds.in_cells(kinds.rows * kinds.weight)
            drawn = kinds.resampled(rng, resamples)
            # The cells' middles say how far a resample lies from the whole, not where that is.
            apart = drawn @ middles / drawn.sum(axis=1) - whole @ middles / whole.sum()
            found[metric.name] = sums.mean(metric.name) + apart
        elif sums.weight is None:
            found[metric.name] = rng.binomial(sums.n, sums.right / sums.n, size=resamples) / sums.n
        else:
            drawn = cells.outcome.resampled(rng, resamples).reshape(resamples, 2, -1).sum(axis=2)
            found[metric.name] = drawn[:, 1] / drawn.sum(axis=1)
    return found


def honest(sums: RowSums, metrics: Sequence[Metric], draws: int, seed: int) -> Replicates:
    """Return the (R,) values of every metric that has a floor, under perfect calibration."""
    floored = [metric for metric in metrics if isinstance(metric, CurveMetric) and metric.has_floor]
    if not floored:
        return {}
    cells, rng = sums.cells.cells(), np.random.default_rng([seed, 12])
    chance = np.clip(cells.confidence.sum(axis=0) / cells.count.sum(axis=0), 0.0, 1.0)

    def batch(size: int) -> Replicates:
        right = cells.either.right(rng, chance, size)
        return values_of_curves(floored, cells.with_hits(right))

    return _in_batches(batch, draws, len(chance))


def of_blocks(
    blocks: Sequence[RowSums],
    whole: RowSums,
    metrics: Sequence[Metric],
    resamples: int,
    seed: int,
) -> Replicates:
    """Return the (R,) values of every metric on resamples of whole blocks of rows.

    Resamples of blocks differ in size; their rows are weighted so that all count as many.
    """
    rng = np.random.default_rng([seed, 13])
    every = sum((block.cells for block in blocks[1:]), blocks[0].cells)
    cells = every.cells()
    n, width = cells.total, len(cells.position)
    wrong, right = np.zeros((len(blocks), width)), np.zeros((len(blocks), width))
    for i, block in enumerate(blocks):
        of_block = block.cells.unscaled.cells()
        at = np.searchsorted(every.numbers, block.cells.numbers)
        wrong[i, at], right[i, at] = of_block.count
    scale = n / (wrong.sum() + right.sum())
    wrong, right = wrong * scale, right * scale
    size = wrong.sum(axis=1) + right.sum(axis=1)
    losses = {
        name: np.array([block.mean(name) for block in blocks]) * size for name in whole.totals
    }
    losses["accuracy"] = right.sum(axis=1)
    curves = [metric for metric in metrics if isinstance(metric, CurveMetric)]
    means = [metric for metric in metrics if isinstance(metric, MeanMetric)]

    def batch(draws: int) -> Replicates:
        even = np.full(len(blocks), 1 / len(blocks))
        counts = rng.multinomial(len(blocks), even, size=draws).astype(np.float64)
        counts *= (n / (counts @ size))[:, None]
        found = {metric.name: counts @ losses[metric.name] / n for metric in means}
        if curves:
            found |= values_of_resamples(curves, cells.resampled(counts @ wrong, counts @ right))
        return found

    found = _in_batches(batch, resamples, width)
    # On coarser cells than the value: what lies between the two isn't noise.
    coarse = values_of_curves(curves, cells.curve())
    fine = values_of_curves(curves, whole.cells.cells().curve())
    return {
        name: values + (fine[name] - coarse[name] if name in fine else 0.0)
        for name, values in found.items()
    }


def _in_batches(batch: Callable[[int], Replicates], resamples: int, width: int) -> Replicates:
    size = max(1, min(resamples, BATCH_CELLS // width))
    sizes = [min(size, resamples - start) for start in range(0, resamples, size)]
    parts = [batch(some) for some in sizes]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
