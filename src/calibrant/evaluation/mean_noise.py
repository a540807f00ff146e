"""How the means of several calibrators vary together, from what single rows give."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from calibrant.core.arrays import FloatArray
from calibrant.evaluation.results import Evaluation
from calibrant.metrics.metric_types import MeanMetric

# So many numbers of rows times calibrators are held at a time, 32 MB.
NUMBERS_AT_ONCE = 1 << 22


def covariance_of_means(evaluations: Sequence[Evaluation], metric: MeanMetric) -> FloatArray:
    """Return (M, M) the covariance of a mean metric of M calibrators, less what all have in common.

    It is the one that resamples have in the limit of many: row i, or cluster i, adds w_i (x_i -
    mean) / sum w to the mean, and the covariance is the sum of the products of that. Few clusters
    know less (`Clusters.stretch`). x_i of the first calibrator is taken off that of all, which
    changes no difference and keeps the digits of small ones.

    Args:
        evaluations: of the same rows, in the same order, with the scores of each.
        metric: a mean over rows.
    """
    first = evaluations[0]
    scored = [e.scores.of_positive() if metric.of_positive else e.scores for e in evaluations]
    rows = [metric.per_row(scores) for scores in scored]
    weights = scored[0].weights
    share = np.full(first.n, 1 / first.n) if weights is None else weights / weights.sum()
    means = np.array([float(share @ (x - rows[0])) for x in rows])
    clusters = first.honest.clusters
    if clusters is not None:
        codes = np.empty(first.n, dtype=np.intp)
        codes[first.top.order] = clusters.codes
        added = [share * (x - rows[0] - m) for x, m in zip(rows, means.tolist(), strict=True)]
        summed = np.stack([np.bincount(codes, a, clusters.number) for a in added])
        together = summed @ summed.T * clusters.stretch(first.level) ** 2
        return np.asarray(together, dtype=np.float64)
    found = np.zeros((len(rows), len(rows)))
    size = max(1, NUMBERS_AT_ONCE // len(rows))
    for start in range(0, first.n, size):
        part = slice(start, start + size)
        added = np.stack([x[part] - rows[0][part] for x in rows]) - means[:, None]
        added *= share[part]
        found += added @ added.T
    return found
