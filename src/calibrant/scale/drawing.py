"""Resamples and honest data sets drawn from sums: their cost doesn't grow with the rows.

A resample of N rows draws, for each cell and outcome, how many of its rows it holds: one draw from
a multinomial distribution, the very one that drawing rows would have. So nothing is approximated
but where in its cell a row lies. Honest outcomes are binomial in each cell.

What is drawn depends on the sums and the seed, and on nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from calibrant.evaluation.uncertainty import Replicates
from calibrant.metrics.shapes import CurveMetric, MeanMetric, Metric, values_of_curves
from calibrant.scale.cells import Cells
from calibrant.scale.row_sums import RowSums

# Resamples are worked on in batches of about this many cells in all.
BATCH_CELLS = 1 << 18


def resampled(sums: RowSums, metrics: Sequence[Metric], resamples: int, seed: int) -> Replicates:
    """Return the (R,) values of every metric on R bootstrap resamples of the rows."""
    cells, n = sums.cells.cells(), sums.n
    curves = [metric for metric in metrics if isinstance(metric, CurveMetric)]
    found: Replicates = {}
    if curves:
        found = _of_curves(cells, curves, resamples, np.random.default_rng([seed, 10]))
    for metric in metrics:
        if not isinstance(metric, MeanMetric):
            continue
        rng = np.random.default_rng([seed, 11])
        if metric.name in sums.losses:
            losses = sums.losses[metric.name]
            counts = rng.multinomial(n, losses.count[:, 0] / n, size=resamples)
            middles = losses.middles
            # The cells' middles say how far a resample lies from the whole, not where that is.
            apart = (counts - losses.count[:, 0]) @ middles / n
            found[metric.name] = sums.mean(metric.name) + apart
        else:
            found[metric.name] = rng.binomial(n, sums.right / n, size=resamples) / n
    return found


def _of_curves(
    cells: Cells, metrics: Sequence[Metric], resamples: int, rng: np.random.Generator
) -> Replicates:
    width, n = len(cells.position), cells.n
    chance = cells.count.ravel() / n

    def batch(size: int) -> Replicates:
        drawn = rng.multinomial(n, chance, size=size).astype(np.float64)
        return values_of_curves(metrics, cells.resampled(drawn[:, :width], drawn[:, width:]))

    return _in_batches(batch, resamples, width)


def honest(sums: RowSums, metrics: Sequence[Metric], draws: int, seed: int) -> Replicates:
    """Return the (R,) values of every metric that has a floor, under perfect calibration."""
    floored = [metric for metric in metrics if isinstance(metric, CurveMetric) and metric.has_floor]
    if not floored:
        return {}
    cells, rng = sums.cells.cells(), np.random.default_rng([seed, 12])
    count = cells.count.sum(axis=0).astype(np.int64)
    chance = np.clip(cells.confidence.sum(axis=0) / count, 0.0, 1.0)

    def batch(size: int) -> Replicates:
        right = rng.binomial(count, chance, size=(size, len(count))).astype(np.float64)
        return values_of_curves(floored, cells.with_hits(right))

    return _in_batches(batch, draws, len(count))


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
    n, rng = whole.n, np.random.default_rng([seed, 13])
    cells = sum((block.cells for block in blocks[1:]), blocks[0].cells).cells()
    keys = sum((block.cells for block in blocks[1:]), blocks[0].cells).key
    of_block = np.zeros((len(blocks), len(keys)))
    for i, block in enumerate(blocks):
        of_block[i, np.searchsorted(keys, block.cells.key)] = block.cells.sums[:, 0]
    place = np.unique(keys // 2, return_inverse=True)[1]
    width = len(cells.position)
    wrong, right = np.zeros((len(blocks), width)), np.zeros((len(blocks), width))
    for outcome, into in ((0, wrong), (1, right)):
        into[:, place[keys % 2 == outcome]] = of_block[:, keys % 2 == outcome]
    size = np.array([block.n for block in blocks], dtype=np.float64)
    losses = {
        name: np.array([block.mean(name) * block.n for block in blocks]) for name in whole.totals
    }
    losses["accuracy"] = np.array([float(block.right) for block in blocks])
    curves = [metric for metric in metrics if isinstance(metric, CurveMetric)]
    means = [metric for metric in metrics if isinstance(metric, MeanMetric)]

    def batch(draws: int) -> Replicates:
        even = np.full(len(blocks), 1 / len(blocks))
        counts = rng.multinomial(len(blocks), even, size=draws).astype(np.float64)
        counts *= (n / (counts @ size))[:, None]
        found = {metric.name: counts @ losses[metric.name] / n for metric in means}
        if curves:
            found |= values_of_curves(curves, cells.resampled(counts @ wrong, counts @ right))
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
