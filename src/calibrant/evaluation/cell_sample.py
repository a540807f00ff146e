"""A sample of any number of rows in fine cells: a shard leaves one behind, and those of all merge.

All of it is whole numbers, so that neither the order nor the number of shards matters, nor who
summed which of them. And all draws are from the cells of all rows and the seed.

A resample of N rows draws, for each cell and outcome, how many of its rows it holds: one draw from
a multinomial distribution, the very one that drawing rows would have. So nothing is approximated
but where in its cell a row lies, and the cost doesn't grow with the rows. Calibrated outcomes are
binomial in each cell. Rows with weights carry them: those of a cell are drawn apart by the power of
two of their weight, and what lies between is drawn from a normal law with the variance that it has.
Errors that add up gaps scatter around gaps drawn towards 0, as those of single rows do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import Any, Literal, Self

import numpy as np

from calibrant.core.arrays import IntArray
from calibrant.core.errors import InputError
from calibrant.evaluation.bootstrap import Replicates, values_of_resamples
from calibrant.evaluation.cells import FINE, Cells, CellSums, Grid, NumberCells
from calibrant.evaluation.sample import RowSample, Sample
from calibrant.evaluation.uncertainty import MeanResidual
from calibrant.metrics.metric_types import (
    CurveMetric,
    Facts,
    MeanMetric,
    Measured,
    Metric,
    RowsMetric,
    RowsSums,
    values_of_curves,
)
from calibrant.metrics.registry import metrics_named
from calibrant.metrics.top_label import ResidualCurves, TopLabel
from calibrant.predictions.predictions import SMALLEST_PROBABILITY
from calibrant.predictions.scoring import RowScores
from calibrant.scale.shards import BINARY

# Clusters that are kept apart. Of more, those whose names' hashes agree are resampled together.
MOST_BLOCKS = 512
# Resamples are worked on in batches of about this many cells in all.
BATCH_CELLS = 1 << 18

By = Literal["predicted", "label", "margin", "confidence", "column"]


@dataclass(frozen=True)
class Plan:
    """What to sum; workers take it as it is.

    Attributes:
        metrics: names of the metrics that are wanted.
        by: what groups rows; None for one set.
        column: the column that groups them, or that names their clusters.
        cuts: where groups by margin or confidence begin, but for the first.
        clustered: whether `column` names clusters.
        seed: for the blocks that rows are dealt into.
    """

    metrics: tuple[str, ...]
    by: By | None = None
    column: str | None = None
    cuts: tuple[float, ...] = ()
    clustered: bool = False
    seed: int = 0

    def means(self, *, binary: bool, classes: bool) -> list[MeanMetric]:
        """Return the means over rows that can be had."""
        return [
            metric
            for metric in metrics_named(self.metrics)
            if isinstance(metric, MeanMetric)
            and (classes or not metric.needs_classes)
            and (binary or not metric.of_positive)
        ]

    def whole_rows(self, classes: int | None) -> list[type[RowsSums]]:
        """Return what metrics of whole probability vectors want summed."""
        if self.clustered or self.by is not None or classes is None:
            return []
        wanted = [m for m in metrics_named(self.metrics) if isinstance(m, RowsMetric)]
        few = [m for m in wanted if m.most_classes is None or classes <= m.most_classes]
        return list(dict.fromkeys(m.sums for m in few if m.sums is not None))


@dataclass(frozen=True, eq=False)
class CellSample(Sample):
    """Rows in cells. Two of them merge exactly; rows of weight 0 aren't among them.

    Attributes:
        plan: what was summed.
        kind: what the scores are.
        n_classes: number of classes K, None for the top-label form.
        cells: rows by confidence and outcome.
        numbers: by metric its numbers of the rows.
        clipped_rows: rows whose true class has a probability of nearly 0.
        positive: of binary predictions, rows by the probability of the positive class and by
            whether they are of it; None of others.
        whole: sums for metrics of whole probability vectors, by what they are.
        groups: the rows of each group, by name.
        blocks: the rows of each cluster, or of clusters that were put together.
        folded: whether clusters were put together.
        shards: how many shards these are.
        broken: shards that were left out, with the reason.
        source: where the rows came from.
        label_names: None; files hold no many labels.
    """

    plan: Plan
    kind: str
    n_classes: int | None
    cells: CellSums
    numbers: dict[str, NumberCells] = field(default_factory=dict[str, NumberCells])
    clipped_rows: int = 0
    positive: CellSums | None = None
    whole: dict[type[RowsSums], RowsSums] = field(default_factory=dict[type[RowsSums], RowsSums])
    groups: dict[str, CellSample] = field(default_factory=dict[str, Any])
    blocks: dict[int, CellSample] = field(default_factory=dict[int, Any])
    folded: bool = False
    shards: int = 0
    broken: dict[str, str] = field(default_factory=dict[str, str])
    source: str = "cells"
    label_names: tuple[str, ...] | None = None

    @classmethod
    def none(cls, plan: Plan, kind: str, n_classes: int | None, *, weighted: bool = False) -> Self:
        """Return a sample of no rows."""
        return cls(plan, kind, n_classes, CellSums.none(weighted=weighted))

    def of_scores(self, scores: RowScores, grid: Grid = FINE) -> CellSample:
        """Return at most 2^26 other rows, scored, in such cells."""
        weights = scores.weights
        if weights is not None and not weights.all():
            scores = some_scores(scores, np.flatnonzero(weights))
            weights = scores.weights
        binary = self.kind in BINARY
        seen = {False: scores} | ({True: scores.of_positive()} if binary else {})
        cells = [CellSums.of(e.confidence, e.correct, grid, weights) for e in seen.values()]
        means = self.plan.means(binary=binary, classes=self.n_classes is not None)
        return replace(
            self,
            cells=cells[0],
            numbers={
                m.name: NumberCells.of(m.per_row(seen[m.of_positive]), weights) for m in means
            },
            clipped_rows=int(np.sum(scores.nll >= -np.log(SMALLEST_PROBABILITY) * (1 - 1e-12))),
            positive=cells[1] if binary else None,
        )

    def __add__(self, other: CellSample) -> CellSample:
        """Return the rows of both; see `merge`."""
        both = (self, other)
        classes = {one.n_classes for one in both if one.n_classes is not None}
        alike = self.plan == other.plan and self.binary == other.binary
        if not alike or len(classes) > 1 or self.weighted != other.weighted:
            raise InputError(
                "samples can be merged only if they have the same metrics, classes and settings"
            )
        known = all(one.n_classes is not None for one in both)
        folded = self.folded or other.folded
        blocks = [_folded(one.blocks) if folded else one.blocks for one in both]
        united = _united(*blocks)
        if len(united) > MOST_BLOCKS:
            united, folded = _folded(united), True
        numbers = _united(self.numbers, other.numbers)
        positive = [one.positive for one in both if one.positive is not None]
        return replace(
            self,
            kind=min(one.kind for one in both) if known else self._kind_with(other),
            n_classes=max(classes) if known else None,
            cells=self.cells + other.cells,
            numbers={k: v for k, v in numbers.items() if k in self.numbers and k in other.numbers}
            if self.n and other.n
            else numbers,
            clipped_rows=self.clipped_rows + other.clipped_rows,
            positive=reduce(CellSums.__add__, positive) if positive else None,
            whole=_united(self.whole, other.whole),
            groups=_united(self.groups, other.groups),
            blocks=united,
            folded=folded,
            shards=self.shards + other.shards,
            broken=self.broken | other.broken,
        )

    def _kind_with(self, other: CellSample) -> str:
        """Return the kind of rows of which some have one number only."""
        scores = {one.kind == "score" for one in (self, other)}
        if len(scores) > 1:
            raise InputError("samples can be merged only if all hold probabilities, or none")
        return self.kind if scores == {True} else "toplabel"

    @property
    def facts(self) -> Facts:
        """What decides which metrics can be computed."""
        return Facts(
            self.cells.n,
            self.kind in BINARY,
            self.n_classes is not None,
            self.cells.weighted,
            self.cells.counts,
            bool(self.blocks),
            self.kind == "score",
        )

    @property
    def clusters(self) -> int | None:
        """Number of clusters that are resampled as wholes; None where every row stands alone."""
        return len(self.blocks) or None

    @property
    def correlation(self) -> float:
        """0: calibrated outcomes of rows in cells are drawn as if they were independent."""
        return 0.0

    @property
    def clipped(self) -> int:
        """Rows whose true class has a probability of nearly 0."""
        return self.clipped_rows

    @property
    def _in_order(self) -> list[CellSample]:
        return [self.blocks[key] for key in sorted(self.blocks)]

    @cached_property
    def _cells(self) -> Cells:
        return self.cells.cells()

    @property
    def rows(self) -> TopLabel:
        """Two rows for each cell, weighted: those that are wrong, and those that are right."""
        return self._rows

    @cached_property
    def _rows(self) -> TopLabel:
        cells = self._cells
        used = cells.count > 0
        correct, weight = np.nonzero(used)[0].astype(np.float64), cells.count[used]
        confidence = np.clip(cells.confidence[used] / weight, 0.0, 1.0)
        order = np.argsort(confidence, kind="stable")
        return TopLabel(confidence[order], correct[order], order, weight[order])

    @property
    def mean_confidence(self) -> float:
        """Mean confidence, weighted."""
        return float(self._cells.confidence.sum()) / self._cells.total

    @property
    def accuracy(self) -> float:
        """Share of right rows, weighted."""
        return float(self._cells.count[1].sum()) / self._cells.total

    @property
    def mean_residual(self) -> MeanResidual:
        """The mean of c - a, and how sure it is."""
        cells, blocks = self._cells, None
        if len(self.blocks) > 1:
            own = [block.cells.unscaled.cells() for block in self._in_order]
            blocks = np.array([[float((c.residual * c.count).sum()), c.total] for c in own]).T
        parts = (cells.residual, cells.count, cells.squares)
        return MeanResidual.of_cells(*(part.ravel() for part in parts), blocks=blocks)

    @property
    def outcome_variance(self) -> float:
        """Mean of c (1 - c)."""
        mean = self._cells.position
        return float(self._cells.count.sum(axis=0) @ (mean * (1 - mean))) / self._cells.total

    def refusal(self, metric: Metric) -> str | None:
        """Return why a metric can't be computed of these rows, as a clause, or None."""
        if not isinstance(metric, RowsMetric):
            reason = metric.refusal(self.facts)
            known = isinstance(metric, CurveMetric) or metric.name in self.numbers
            return reason if reason or known else "the sums weren't made for it"
        reason = metric.refusal(self.facts._replace(weighted=False, counts=True, clustered=False))
        if reason is not None or (metric.sums in self.whole and not self.cells.weighted):
            return reason
        if metric.sums is None:
            return metric.not_summed
        if self.cells.weighted:
            return "its sums aren't kept for rows with weights; measure a sample as one file"
        if metric.most_classes is not None and (self.n_classes or 0) > metric.most_classes:
            return f"its sums would be too large for more than {metric.most_classes} classes"
        if self.plan.by is not None:
            return "its sums aren't kept for each group"
        if self.plan.clustered:
            return "its sums aren't kept for each cluster"
        return "the sums weren't made for it"

    def of_positive(self) -> Self:
        """Return the same rows of a binary problem, seen from the positive class."""
        assert self.positive is not None
        blocks = {key: block.of_positive() for key, block in self.blocks.items()}
        return replace(self, cells=self.positive, positive=None, blocks=blocks)

    def curve(self) -> ResidualCurves:
        """Return the residual curve, a batch of one."""
        return self._cells.curve()

    def mean(self, metric: MeanMetric) -> float:
        """Return the mean of a metric's number of each row."""
        return self.numbers[metric.name].mean

    def resample(self, metrics: Sequence[Metric], resamples: int, seed: int) -> Replicates:
        """Return the (R,) values of means and functions of the curve on R resamples."""
        if self.blocks:
            return self._of_blocks(metrics, resamples, seed)
        cells = self._cells
        curves = [metric for metric in metrics if isinstance(metric, CurveMetric)]
        found: Replicates = {}
        if curves:
            rng, width = np.random.default_rng([seed, 10]), len(cells.position)

            def batch(size: int) -> Replicates:
                return values_of_resamples(curves, cells.drawn(rng, size))

            found = _in_batches(batch, resamples, width)
        for metric in metrics:
            if isinstance(metric, MeanMetric):
                rng = np.random.default_rng([seed, 11])
                found[metric.name] = self.numbers[metric.name].resampled(rng, resamples)
        return found

    def honest(self, metrics: Sequence[Metric], draws: int, seed: int) -> Replicates:
        """Return the (D,) values under perfect calibration of those metrics that have a floor."""
        floored = [m for m in metrics if isinstance(m, CurveMetric) and m.has_floor]
        if not floored:
            return {}
        cells, rng = self._cells, np.random.default_rng([seed, 12])

        def batch(size: int) -> Replicates:
            return values_of_curves(floored, cells.honest(rng, size))

        return _in_batches(batch, draws, len(cells.position))

    def whole_rows(
        self, metrics: Sequence[RowsMetric], resamples: int, seed: int
    ) -> dict[str, Measured]:
        """Return metrics of whole probability vectors, with their replicates."""
        wanted = [(m.name, self.whole[m.sums]) for m in metrics if m.sums is not None]
        return {name: sums.measured(name, resamples, seed) for name, sums in wanted}

    def _of_blocks(self, metrics: Sequence[Metric], resamples: int, seed: int) -> Replicates:
        """Return the values on resamples of whole blocks of rows.

        Resamples of blocks differ in size; their rows are weighted so that all count as many.
        """
        rng, blocks = np.random.default_rng([seed, 13]), self._in_order
        every = reduce(CellSums.__add__, [block.cells for block in blocks])
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
        curves = [metric for metric in metrics if isinstance(metric, CurveMetric)]
        sums = {
            m.name: np.array([block.mean(m) for block in blocks]) * size
            for m in metrics
            if isinstance(m, MeanMetric)
        }

        def batch(draws: int) -> Replicates:
            even = np.full(len(blocks), 1 / len(blocks))
            counts = rng.multinomial(len(blocks), even, size=draws).astype(np.float64)
            counts *= (n / (counts @ size))[:, None]
            found = {name: counts @ each / n for name, each in sums.items()}
            if curves:
                of_each = cells.resampled(counts @ wrong, counts @ right)
                found |= values_of_resamples(curves, of_each)
            return found

        found = _in_batches(batch, resamples, width)
        # On coarser cells than the value: what lies between the two isn't noise.
        coarse = values_of_curves(curves, cells.curve())
        fine = values_of_curves(curves, self.curve())
        return {
            name: values + (fine[name] - coarse[name] if name in fine else 0.0)
            for name, values in found.items()
        }


def _in_batches(batch: Callable[[int], Replicates], resamples: int, width: int) -> Replicates:
    size = max(1, min(resamples, BATCH_CELLS // width))
    sizes = [min(size, resamples - start) for start in range(0, resamples, size)]
    parts = [batch(some) for some in sizes]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _united(first: dict[Any, Any], second: dict[Any, Any]) -> dict[Any, Any]:
    united = dict(first)
    for key, sums in second.items():
        united[key] = united[key] + sums if key in united else sums
    return united


def _folded(blocks: dict[int, CellSample]) -> dict[int, CellSample]:
    folded: dict[int, CellSample] = {}
    for key, sums in blocks.items():
        folded = _united(folded, {key % MOST_BLOCKS: sums})
    return folded


def merge(first: Sample, second: Sample) -> CellSample:
    """Return the rows of both samples in cells; their order doesn't matter.

    Raises:
        InputError: the samples have different metrics, classes or settings.

    Examples:
        >>> import numpy as np
        >>> import calibrant as cb
        >>> for i in range(2):
        ...     np.savez(f"half-{i}.npz", probs=[[0.75, 0.25]] * 4, labels=[0, 0, 0, 1])
        >>> samples = [cb.scale.sample_of(shard) for shard in cb.Shards("half-*.npz")]
        >>> both = cb.scale.merge(*samples)
        >>> both.n, both.shards
        (8, 2)
    """
    return in_cells(first) + in_cells(second)


def in_cells(sample: Sample) -> CellSample:
    """Return the sample as counts in cells, whose size in memory doesn't grow with the rows.

    Raises:
        InputError: the rows are in clusters, or the sample is that of a result.

    Examples:
        >>> import calibrant as cb
        >>> cells = cb.scale.in_cells(cb.scale.sample_of(cb.load_sample("test")))
        >>> cells.n, cells.clusters
        (10000, None)
    """
    if isinstance(sample, CellSample):
        return sample
    assert isinstance(sample, RowSample)
    if sample.groups is not None:
        raise InputError(
            f"{sample.source}: rows in clusters can be merged only by the names "
            "of their clusters; give Shards"
        )
    if sample.predictions is None:
        raise InputError(
            f"{sample.source}: a result doesn't keep its rows, so they can't be "
            "merged; make the sample from the predictions"
        )
    plan, weighted = plan_of(None), sample.weights is not None
    empty = CellSample.none(plan, sample.kind, sample.n_classes, weighted=weighted)
    found = empty.of_scores(replace(sample.scores, weights=sample.weights))
    found = replace(found, source=sample.source)
    if weighted:
        return found
    wanted = plan.whole_rows(sample.n_classes)
    return replace(
        found, whole={sums: sums.of(sample.predictions, 0, plan.seed) for sums in wanted}
    )


def plan_of(metrics: Sequence[str] | str | None, **fields: Any) -> Plan:
    """Return what the metrics of these names want summed; None for all that sums carry."""
    named = metrics_named("all" if metrics is None else metrics, binary=True)
    return Plan(tuple(metric.name for metric in named), **fields)


def some_scores(scores: RowScores, rows: IntArray) -> RowScores:
    """Return some of the scored rows."""
    return RowScores(**{name: v[rows] for name, v in vars(scores).items() if v is not None})
