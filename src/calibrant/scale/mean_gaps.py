"""Mean confidence less accuracy of rows known by their sums, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from calibrant.evaluation.rare_outcomes import Gap, MeanResidual
from calibrant.metrics.resampling import Clusters
from calibrant.scale.row_sums import RowSums


def mean_confidence(sums: RowSums) -> float:
    """Return the mean confidence of the rows."""
    cells = sums.cells.cells()
    return float(cells.confidence.sum()) / cells.total


def residual_of(sums: RowSums, blocks: Sequence[RowSums]) -> MeanResidual:
    """Return how sure the mean of c - a is, of rows in blocks if there are any."""
    cells = sums.cells.cells()
    mean = float((cells.residual * cells.count).sum()) / cells.total
    apart = (cells.residual - mean) ** 2
    variance = float((cells.squares * apart).sum()) / cells.total**2
    if len(blocks) < 2:
        return MeanResidual(mean, variance, sums.share)
    own = [block.cells.unscaled.cells() for block in blocks]
    gaps = np.array([float((c.residual * c.count).sum()) - mean * c.total for c in own])
    total = sum(c.total for c in own)
    variance = len(own) / (len(own) - 1) * float(gaps @ gaps) / total**2
    of_row = float((cells.count * apart).sum()) / cells.total
    share = max(sums.share, variance / of_row) if of_row > 0 else sums.share
    return MeanResidual(mean, variance, share)


def gap_of(sums: RowSums, level: float, blocks: Sequence[RowSums] = ()) -> Gap:
    """Return mean confidence less accuracy of the rows, and the ends of its interval (`Gap.of`)."""
    law = residual_of(sums, blocks)
    n = 1 / law.share
    if len(blocks) > 1:
        n /= Clusters(np.empty(0, np.int64), len(blocks)).doubt(level) ** 2
    return Gap.of_moments(law.mean, law.variance / law.share, sums.accuracy, n, level)
