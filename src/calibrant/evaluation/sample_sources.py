"""From predictions, in memory or in files, to their sample: the map of one shard, all merged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial, reduce
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import Array, FloatArray, IntArray
from calibrant.core.errors import CalibrantError, InputError
from calibrant.core.progress import Watcher
from calibrant.evaluation.cell_sample import MOST_BLOCKS, CellSample, Plan, plan_of, some_scores
from calibrant.evaluation.cells import COARSE, added
from calibrant.evaluation.sample import RowSample, Sample
from calibrant.metrics.registry import metrics_named
from calibrant.predictions.plausibility import looked_at
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.scoring import RowScores, score_rows, score_top
from calibrant.scale.engines import Engine, gathered
from calibrant.scale.shards import Batch, Shard, Shards

# Scored rows are collected up to so many before they are summed.
ROWS_SUMMED = 1 << 18
MOST_GROUPS = 5000
# Cells of a margin or a confidence, to a factor of two; groups begin at their edges.
VALUES_TO_A_FACTOR_OF_TWO = 1024
SMALLEST_VALUE = 2.0**-60


# Parameters: those of `evaluate` that decide what is read, and who reads it.
def sample_of(
    predictions: Predictions | Shards | Shard | Sample | Array,
    labels: Array | None = None,
    *,
    sample_weight: Array | None = None,
    clusters: Array | str | None = None,
    metrics: Sequence[str] | str | None = "all",
    seed: int = 0,
    engine: Engine | None = None,
    skip_broken: bool = False,
    watch: Watcher | None = None,
) -> Sample:
    """Return what `evaluate` measures: rows in memory, or cells of any number of them.

    Samples of single shards, made on any machine, merge to the sample of all (`merge`), to the last
    bit.

    Args:
        predictions: what `evaluate` takes, or one shard of `Shards`.
        labels, sample_weight, clusters: see `evaluate`.
        metrics: the metrics that the cells of files should support.
        seed: for the random blocks of rows, for metrics of whole rows.
        engine, skip_broken, watch: see `evaluate`.

    Examples:
        >>> import functools
        >>> import numpy as np
        >>> import calibrant as cb
        >>> for i in range(3):
        ...     np.savez(f"part-{i}.npz", probs=[[0.8, 0.2]] * 10, labels=[0] * 8 + [1] * 2)
        >>> from calibrant.scale import sample_of
        >>> sample = functools.reduce(cb.scale.merge, map(sample_of, cb.Shards("part-*.npz")))
        >>> cb.evaluate(sample, metrics=["accuracy"])["accuracy"].value
        0.8
    """
    if isinstance(predictions, Shards | Shard):
        if labels is not None or sample_weight is not None:
            raise InputError("Shards read labels and weights from their files; leave them out")
        if clusters is not None and not isinstance(clusters, str):
            raise InputError("clusters of Shards are a column of the files; give its name")
        clusters = predictions.options.cluster if clusters is None else clusters
        options: dict[str, Any] = {"column": clusters, "clustered": clusters is not None}
        if isinstance(predictions, Shard):
            plan = plan_of(metrics, seed=seed, **options)
            return summarised(predictions, plan, skip_broken=skip_broken)
        if metrics is None:
            ranks = predictions.kind == "score"
            named = metrics_named(None, binary=predictions.binary, ranks=ranks)
            metrics = [metric.name for metric in named]
        plan, engine = plan_of(metrics, seed=seed, **options), engine or Engine()
        return summed(predictions, plan, engine, skip_broken=skip_broken, watch=watch)
    if isinstance(predictions, Sample):
        if (labels, sample_weight, clusters) != (None, None, None):
            raise InputError("a sample has its own labels, weights and clusters; leave them out")
        return predictions
    if isinstance(clusters, str):
        raise InputError("clusters of rows in memory are an (N,) column, not its name")
    return RowSample.of(checked(predictions, labels, sample_weight, clusters, "evaluate"))


def checked(
    predictions: Predictions | Array,
    labels: Array | None,
    sample_weight: Array | None,
    clusters: Array | None,
    asked: str,
) -> Predictions:
    """Return predictions as they are, or made of arrays; `asked` is the function that took them."""
    if isinstance(predictions, Predictions):
        if sample_weight is not None or clusters is not None:
            raise InputError(
                "give weights and clusters when you make the Predictions (sample_weight=, "
                "clusters=)"
            )
        return looked_at(predictions)
    if labels is None:
        raise InputError(f"{asked} needs labels beside an array of probabilities")
    rows = Predictions.from_probs(
        predictions, labels, sample_weight=sample_weight, clusters=clusters
    )
    return looked_at(rows)


def summarised(shard: Shard, plan: Plan, *, skip_broken: bool = False) -> CellSample:
    """Return the sample of one shard, in bounded memory: the map of map and reduce.

    Args:
        shard: one of `Shards`.
        plan: what to sum.
        skip_broken: leave out a shard that can't be read, and say so in the result.

    Raises:
        PredictionsError: a row can't be used, named by file and number.
    """
    empty = CellSample.none(plan, shard.kind, shard.n_classes, weighted=shard.weighted)
    try:
        return reduce(CellSample.__add__, _parts(shard, empty), replace(empty, shards=1))
    except CalibrantError as error:
        if not skip_broken:
            raise
        return replace(empty, broken={shard.where: str(error)})


def _parts(shard: Shard, empty: CellSample) -> Iterator[CellSample]:
    """Yield the samples of stretches of rows."""
    scored: list[RowScores] = []
    beside: list[NDArray[Any]] = []
    held, plan = 0, empty.plan
    wanted = [] if shard.weighted else plan.whole_rows(shard.n_classes)
    for batch in shard.batches(plan.column):
        rows, place = batch.predictions, batch.place
        if wanted:
            yield replace(empty, whole={sums: sums.of(rows, place, plan.seed) for sums in wanted})
        scored.append(score_rows(rows))
        beside.append(_member_values(batch, scored[-1], plan))
        held += len(rows)
        if held >= ROWS_SUMMED:
            yield _summed(scored, beside, empty)
            scored, beside, held = [], [], 0
    if held:
        yield _summed(scored, beside, empty)


def _member_values(batch: Batch, scores: RowScores, plan: Plan) -> NDArray[Any]:
    """Return what says to which group, or cluster, each row belongs."""
    if plan.clustered or plan.by == "column":
        assert batch.column is not None
        return check_column(batch.column, plan.column, batch.predictions)
    if plan.by == "margin":
        return np.searchsorted(plan.cuts, batch.predictions.margins, side="right")
    if plan.by == "confidence":
        return np.searchsorted(plan.cuts, scores.confidence, side="right")
    if plan.by == "label":
        return batch.predictions.labels
    return scores.predicted if plan.by == "predicted" else np.empty(0)


def check_column(column: NDArray[Any], name: str | None, predictions: Predictions) -> NDArray[Any]:
    """Return a column of one entry a row.

    Raises:
        InputError: another shape.
    """
    if column.shape != (predictions.n,):
        raise InputError(f"{predictions.source}: '{name}' must have shape (N,), not {column.shape}")
    return column


def _summed(scored: list[RowScores], beside: list[NDArray[Any]], empty: CellSample) -> CellSample:
    plan, scores = empty.plan, _joined(scored)
    if plan.by is None and not plan.clustered:
        return empty.of_scores(scores)
    names, member = np.unique(np.concatenate(beside), return_inverse=True)
    member = member.astype(np.int64)
    if plan.clustered:
        keys = np.array([cluster_hash(name) for name in names.tolist()], dtype=np.int64)
        folded = len(keys) > MOST_BLOCKS
        member = (keys % MOST_BLOCKS if folded else keys)[member]
        blocks = {i: part for i, part in _by_member(scores, member, empty) if part.n}
        return replace(empty.of_scores(scores), blocks=blocks, folded=folded)
    if len(names) > MOST_GROUPS:
        raise InputError(
            f"more than {MOST_GROUPS} groups of rows are too many to be measured together"
        )
    parts = _by_member(scores, member, empty)
    return replace(empty, groups={str(names[i]): part for i, part in parts if part.n})


def _by_member(
    scores: RowScores, member: IntArray, empty: CellSample
) -> Iterator[tuple[int, CellSample]]:
    """Yield each number in (n,) `member` with its rows, in coarse cells."""
    order = np.argsort(member, kind="stable")
    ordered = member[order]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    ends = np.append(starts[1:], len(order))
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        yield int(ordered[start]), empty.of_scores(some_scores(scores, order[start:end]), COARSE)


def _joined(parts: Sequence[RowScores]) -> RowScores:
    """Return the scored rows of all parts, in order."""
    known = [name for name, value in vars(parts[0]).items() if value is not None]
    return RowScores(**{name: np.concatenate([vars(p)[name] for p in parts]) for name in known})


def cluster_hash(name: Any) -> int:
    """Return a whole number that stands for a cluster, the same wherever its name is met.

    In files of text a number is text, so 17 and "17" name the same cluster.
    """
    text = str(int(name)) if isinstance(name, float) and name.is_integer() else str(name)
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def summed(
    shards: Shards,
    plan: Plan,
    engine: Engine,
    *,
    skip_broken: bool = False,
    watch: Watcher | None = None,
) -> CellSample:
    """Return the sample of all shards.

    Raises:
        InputError: no shard could be read.
    """
    function = partial(summarised, plan=plan, skip_broken=skip_broken)
    sample: CellSample = gathered(engine, function, shards.shards, CellSample.__add__, watch)
    if not sample.shards:
        raise InputError(f"{shards.source}: no file could be read: {min(sample.broken.values())}")
    return replace(sample, source=shards.source, broken=shards.broken | sample.broken)


Counts = tuple[IntArray, IntArray]


def quantile_cuts(
    shards: Shards, of: str, quantiles: int, engine: Engine, watch: Watcher | None
) -> tuple[tuple[float, ...], list[str]]:
    """Return where groups of about equal size begin, but for the first, and their names.

    Args:
        shards: the files, through which this takes one pass.
        of: ``"margin"`` or ``"confidence"``.
        quantiles: how many groups.
        engine: who does the work.
        watch: is told of it.
    """
    key, counted = gathered(engine, partial(_value_counts, of=of), shards.shards, _more, watch)
    number = counted[:, 0]
    exponent, cell = np.divmod(key, VALUES_TO_A_FACTOR_OF_TWO)
    low: FloatArray = np.ldexp(0.5 + cell / (2 * VALUES_TO_A_FACTOR_OF_TWO), exponent)
    low[low <= SMALLEST_VALUE] = 0.0
    before = np.cumsum(number) - number
    wanted = np.arange(1, quantiles) * int(number.sum()) / quantiles
    starts = np.unique(np.searchsorted(before, wanted))
    starts = starts[(starts > 0) & (starts < len(key))]
    firsts, lasts = np.append(0, starts), np.append(starts, len(key)) - 1
    names = [
        f"{i + 1}: {low[a]:.4g} to {low[b]:.4g}"
        for i, (a, b) in enumerate(zip(firsts.tolist(), lasts.tolist(), strict=True))
    ]
    return tuple(low[starts].tolist()), names


def _value_counts(shard: Shard, of: str) -> Counts:
    """Return in which fine cells the margins, or confidences, of a shard lie, and how many."""
    found = np.empty(0, np.int64), np.empty((0, 1), np.int64)
    for batch in shard.batches():
        rows = batch.predictions
        values = rows.margins if of == "margin" else score_top(rows).confidence
        mantissa, exponent = np.frexp(np.maximum(values, SMALLEST_VALUE))
        cell = ((2 * mantissa - 1) * VALUES_TO_A_FACTOR_OF_TWO).astype(np.int64)
        key, number = np.unique(
            exponent.astype(np.int64) * VALUES_TO_A_FACTOR_OF_TWO + cell, return_counts=True
        )
        found = _more(found, (key, number[:, None]))
    return found


def _more(first: Counts, second: Counts) -> Counts:
    return added((first[0], second[0]), (first[1], second[1]))
