"""Metrics of very many rows from their sums, each with its interval and its floor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from calibrant.core.errors import InputError
from calibrant.core.text import wrap
from calibrant.evaluation.bootstrap import Replicates
from calibrant.evaluation.rare_outcomes import ENOUGH, Gap
from calibrant.evaluation.results import Evaluation, result_of
from calibrant.evaluation.uncertainty import DEFAULT_LEVEL, MOST_RESAMPLES, check_drawing
from calibrant.metrics.full_rows import Measured
from calibrant.metrics.metric_types import (
    MeanMetric,
    Metric,
    RowsMetric,
    values_of_curve,
)
from calibrant.metrics.registry import metrics_named
from calibrant.metrics.resampling import Clusters
from calibrant.metrics.top_label import TopLabel
from calibrant.predictions.scoring import RowScores
from calibrant.scale.carrying import usable
from calibrant.scale.drawing import honest, of_blocks, resampled
from calibrant.scale.map_reduce import left_out, left_out_text
from calibrant.scale.mean_gaps import gap_of, mean_confidence, residual_of
from calibrant.scale.row_sums import RowSums
from calibrant.scale.sums import ShardSums
from calibrant.scale.whole_rows import WholeRowSums

NO_SCORES = RowScores(
    np.empty(0), np.empty(0, np.int64), np.empty(0, np.bool_), np.empty(0), np.empty(0)
)
# Rows that stand for all where a picture of their confidences is enough.
REPRESENTATIVES = 10_000
KINDS = {
    "cells": "Intervals: resamples drawn from counts of rows in fine cells of confidence.",
    "clusters": "Intervals: resamples of whole clusters",
    "rare": f"Fewer than {ENOUGH} rows are wrong, or right: unlike those of one file, these "
    "intervals don't reach as far as errors that can't be excluded.",
    "floors": "Floors: as if outcomes within a cluster were independent.",
}


@dataclass(frozen=True, eq=False)
class ShardEvaluation(Evaluation):
    """What was found of many files; as `Evaluation`, of which it has no scored rows.

    Attributes:
        sums: what it was found from.
        shards: number of files that were read.
        broken: files that were left out, with the reason.
        intervals: how resamples were drawn, in a sentence.
        blocks: of clusters, or of clusters that were put together; empty where rows stand alone.
    """

    sums: RowSums | None = None
    shards: int = 0
    broken: dict[str, str] = field(default_factory=dict[str, str])
    intervals: str = KINDS["cells"]
    blocks: Sequence[RowSums] = ()

    @property
    def n(self) -> int:
        """Number of rows."""
        return self._sums.n

    @property
    def _sums(self) -> RowSums:
        assert self.sums is not None
        return self.sums

    @property
    def clipped_nll_rows(self) -> int:
        """Rows whose true class has a probability of nearly 0, which NLL counts as 1.2e-38."""
        return self._sums.clipped if self.kind in ("probs", "prob") else 0

    @property
    def mean_confidence(self) -> float:
        """Mean confidence."""
        return mean_confidence(self._sums)

    @property
    def accuracy(self) -> float:
        """Share of right rows."""
        return self._sums.accuracy

    @property
    def weighted(self) -> bool:
        """Whether rows have weights."""
        return self._sums.weight is not None

    @property
    def effective_rows(self) -> float:
        """How many independent rows of equal weight would know the mean gap as well."""
        return min(float(self.n), 1 / residual_of(self._sums, self.blocks).share)

    @property
    def gap(self) -> Gap:
        """Mean confidence less accuracy, and the ends of its interval."""
        return gap_of(self._sums, self.level, self.blocks)

    @property
    def mean_probability(self) -> float | None:
        """Mean probability of the positive class; None unless it is binary."""
        return None if self.positive is None else mean_confidence(self._sums.of_positive())

    @property
    def positive_share(self) -> float | None:
        """Share of rows of the positive class; None unless it is binary."""
        return None if self.positive is None else self._sums.of_positive().accuracy

    @property
    def positive_gap(self) -> Gap | None:
        """Mean probability of the positive class less its share; None unless it is binary."""
        return (
            None
            if self.positive is None
            else gap_of(
                self._sums.of_positive(), self.level, [block.of_positive() for block in self.blocks]
            )
        )

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON takes it; fractions, not percent."""
        more = {"shards": self.shards, "intervals": self.intervals}
        more |= {"shards_left_out": left_out(self.broken)}
        return super().as_dict() | more

    def __str__(self) -> str:
        return f"{super().__str__()}\n\n{wrap(self.intervals)}{left_out_text(self.broken)}"


def evaluate_sums(
    sums: ShardSums,
    *,
    metrics: Sequence[str] | str | None = None,
    resamples: int | None = None,
    level: float = DEFAULT_LEVEL,
    seed: int = 0,
    source: str = "shards",
) -> ShardEvaluation:
    """Return every metric that sums carry, with its interval and its floor.

    Neither hangs on how rows were dealt to shards, nor on who summed which of them: sums are exact,
    and all draws are from the sums of all rows. What resampling cells instead of rows changes is
    below what one seed and another do.

    Args:
        sums: of all rows.
        metrics: names of metrics, or ``"all"``; the seven of `CORE_METRICS` for None, and of binary
            predictions also those of the positive class.
        resamples: bootstrap resamples, and simulated honest data sets; 1 000 for None.
        level: nominal coverage of the intervals.
        seed: the same seed gives the same intervals.
        source: what the result calls the rows.

    Raises:
        InputError: no shard could be read, or an argument is out of range.

    Examples:
        >>> import numpy as np
        >>> import calibrant as cb
        >>> np.savez("part-0.npz", probs=[[0.8, 0.2]] * 100, labels=[0] * 60 + [1] * 40)
        >>> sums = cb.summarise_shard(cb.Shards("part-0.npz").shards[0])
        >>> print(cb.evaluate_sums(sums).headline())
        Overconfident by 20.0 points (95 % interval 10.9 to 29.8): mean confidence 80.0 %, ...
    """
    resamples = MOST_RESAMPLES if resamples is None else resamples
    check_drawing(resamples, level, seed)
    if sums.rows is None:
        reasons = "; ".join(sorted(sums.broken.values()))
        raise InputError(f"{source}: no file could be read: {reasons}")
    if sums.rows.n == 0:
        raise InputError(f"{source}: 'weight' must be above 0 for at least one row")
    return evaluated(sums, sums.rows, metrics, resamples, level, seed, source)


def evaluated(
    sums: ShardSums,
    rows: RowSums,
    metrics: Sequence[str] | str | None,
    resamples: int,
    level: float,
    seed: int,
    source: str,
) -> ShardEvaluation:
    """Return the metrics of some of the rows, or of all; see `evaluate_sums`."""
    wanted, skipped = usable(metrics_named(metrics, binary=sums.binary), sums, rows)
    whole = [metric for metric in wanted if isinstance(metric, RowsMetric)]
    others = [metric for metric in wanted if not isinstance(metric, RowsMetric)]
    kind = KINDS["cells"]
    if len(sums.blocks) == 1:
        raise InputError(
            f"{source}: all rows belong to one cluster, and what varies between clusters can't be "
            "told from one; leave the clusters out, or give at least 2"
        )
    if sums.blocks:
        put = f"put together into {len(sums.blocks)} by the hashes of their names"
        number = put if sums.folded else f"{len(sums.blocks)} in all"
        kind = f"{KINDS['clusters']}, {number}. {KINDS['floors']}"
    if min(rows.right, rows.n - rows.right) < ENOUGH:
        kind = f"{kind} {KINDS['rare']}"
    blocks = [sums.blocks[key] for key in sorted(sums.blocks)]
    top = [metric for metric in others if not metric.of_positive]
    found = _measured(top, rows, blocks, resamples, seed)
    if rows.positive is not None:
        said = [metric for metric in others if metric.of_positive]
        turned = [block.of_positive() for block in blocks]
        found |= _measured(said, rows.of_positive(), turned, resamples, seed)
    if len(sums.blocks) > 1:
        # A resample of G blocks varies less than it should, and few don't know by how much.
        clusters = Clusters(np.empty(0, np.int64), len(sums.blocks))
        found = {name: one.scattered(clusters.stretch(level)) for name, one in found.items()}
    for metric in whole:
        assert isinstance(sums.whole, WholeRowSums)
        found[metric.name] = sums.whole.measured(metric.name, resamples, seed)
    results = {m.name: result_of(m, found[m.name], level, {}) for m in wanted}
    return ShardEvaluation(
        source,
        sums.kind,
        sums.n_classes,
        results,
        skipped,
        NO_SCORES,
        representatives(rows),
        level,
        positive=None if rows.positive is None else representatives(rows.of_positive()),
        sums=rows,
        shards=sums.shards,
        broken=sums.broken,
        intervals=kind,
        blocks=blocks,
    )


def _measured(
    metrics: Sequence[Metric],
    rows: RowSums,
    blocks: Sequence[RowSums],
    resamples: int,
    seed: int,
) -> dict[str, Measured]:
    """Return metrics of curves and means, with resamples of rows, or of blocks if there are any."""
    drawn: Replicates
    if blocks:
        drawn = of_blocks(blocks, rows, metrics, resamples, seed)
    else:
        drawn = resampled(rows, metrics, resamples, seed)
    floors = honest(rows, metrics, resamples, seed)
    values = values_of_curve(metrics, rows.cells.cells().curve())
    for metric in metrics:
        if isinstance(metric, MeanMetric):
            known = metric.name in rows.totals
            values[metric.name] = rows.mean(metric.name) if known else rows.accuracy
    return {
        name: Measured(value, drawn[name], floors.get(name), name in floors)
        for name, value in values.items()
    }


def representatives(rows: RowSums) -> TopLabel:
    """Return a few rows whose confidences are spread as those of all rows are."""
    cells = rows.cells.cells()
    n = min(rows.n, REPRESENTATIVES)
    ends = np.cumsum(cells.count.sum(axis=0))
    at = np.searchsorted(ends, (np.arange(n) + 0.5) / n * float(ends[-1]), side="right")
    index = np.minimum(at, len(ends) - 1)
    return TopLabel(cells.position[index], cells.rows.correct[index], np.arange(n))
