"""Map and merge: each shard leaves sums behind, and sums of shards make those of all rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import reduce
from hashlib import blake2b
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import IntArray
from calibrant.core.errors import CalibrantError, InputError
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.scoring import RowScores, score_rows
from calibrant.scale.cells import COARSE, FINE
from calibrant.scale.row_sums import RowSums, by_member, joined_scores
from calibrant.scale.shards import BINARY, Batch, Shard
from calibrant.scale.whole_rows import WholeRowSums

# Scored rows are collected up to so many before they are summed.
ROWS_SUMMED = 1 << 18
# Clusters that are kept apart. Of more, those whose names' hashes agree are resampled together.
MOST_BLOCKS = 512
MOST_GROUPS = 5000

By = Literal["predicted", "label", "margin", "confidence", "column"]


@dataclass(frozen=True)
class Plan:
    """What to sum; workers take it as it is.

    Attributes:
        whole_rows: metrics of whole probability vectors that sums of their own carry.
        by: what groups rows; None for one set.
        column: the column that groups them, or that names their clusters.
        cuts: where groups by margin or confidence begin, but for the first.
        clustered: whether `column` names clusters.
        seed: of the blocks that rows are dealt into.
    """

    whole_rows: tuple[str, ...] = ()
    by: By | None = None
    column: str | None = None
    cuts: tuple[float, ...] = ()
    clustered: bool = False
    seed: int = 0


@dataclass(frozen=True, eq=False)
class ShardSums:
    """What shards leave behind; those of several, merged, are those of all their rows.

    All of it is whole numbers, so that neither the order nor the number of shards matters.

    Attributes:
        plan: what was summed.
        kind: what the scores are; n_classes: number of classes K, None for the top-label form.
        rows: sums over all rows; None if no shard could be read.
        groups: sums over the rows of each group, by name.
        blocks: sums over the rows of each cluster, or of clusters that were put together.
        folded: whether clusters were put together.
        whole: sums for metrics of whole probability vectors.
        shards: how many shards these are.
        broken: shards that were left out, with the reason.
    """

    plan: Plan
    kind: str
    n_classes: int | None
    rows: RowSums | None
    groups: dict[str, RowSums] = field(default_factory=dict[str, RowSums])
    blocks: dict[int, RowSums] = field(default_factory=dict[int, RowSums])
    folded: bool = False
    whole: WholeRowSums | None = None
    shards: int = 1
    broken: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def binary(self) -> bool:
        """Whether the rows are about one event."""
        return self.kind in BINARY

    def __add__(self, other: ShardSums) -> ShardSums:
        """Return the sums of both, see `merge`."""
        return merge(self, other)


def merge(first: ShardSums, second: ShardSums) -> ShardSums:
    """Return the sums of the rows of both; it doesn't matter which comes first.

    Raises:
        InputError: they are sums of other things.

    Examples:
        >>> import numpy as np
        >>> import calibrant as cb
        >>> for i in range(2):
        ...     np.savez(f"half-{i}.npz", probs=[[0.75, 0.25]] * 4, labels=[0, 0, 0, 1])
        >>> sums = [cb.summarise_shard(shard) for shard in cb.Shards("half-*.npz")]
        >>> both = cb.merge(*sums)
        >>> both.rows.n, both.shards
        (8, 2)
    """
    if (first.plan, first.kind, first.n_classes) != (second.plan, second.kind, second.n_classes):
        raise InputError("sums can be merged only if they are of the same things")
    both = replace(
        first,
        rows=_added(first.rows, second.rows),
        groups=_united(first.groups, second.groups),
        whole=_added(first.whole, second.whole),
        shards=first.shards + second.shards,
        broken=first.broken | second.broken,
    )
    if not first.blocks and not second.blocks:
        return both
    folded = first.folded or second.folded
    parts = [_folded(one.blocks) if folded else one.blocks for one in (first, second)]
    blocks = _united(*parts)
    if len(blocks) > MOST_BLOCKS:
        blocks, folded = _folded(blocks), True
    return replace(both, blocks=blocks, folded=folded)


def _added(first: Any, second: Any) -> Any:
    return second if first is None else first if second is None else first + second


def _united(first: dict[Any, RowSums], second: dict[Any, RowSums]) -> dict[Any, RowSums]:
    united = dict(first)
    for key, sums in second.items():
        united[key] = united[key] + sums if key in united else sums
    return united


def _folded(blocks: dict[int, RowSums]) -> dict[int, RowSums]:
    folded: dict[int, RowSums] = {}
    for key, sums in blocks.items():
        place = key % MOST_BLOCKS
        folded[place] = folded[place] + sums if place in folded else sums
    return folded


def summarise_shard(
    shard: Shard, plan: Plan | None = None, *, skip_broken: bool = False
) -> ShardSums:
    """Return the sums of one shard, in bounded memory: the map of map and reduce.

    Args:
        shard: one of `Shards`.
        plan: what to sum; None for what most metrics need.
        skip_broken: leave out a shard that can't be read, and say so in the result.

    Raises:
        PredictionsError: a row can't be used, named by file and number.

    Examples:
        >>> import functools
        >>> import numpy as np
        >>> import calibrant as cb
        >>> for i in range(3):
        ...     np.savez(f"part-{i}.npz", probs=[[0.8, 0.2]] * 10, labels=[0] * 8 + [1] * 2)
        >>> sums = functools.reduce(cb.merge, map(cb.summarise_shard, cb.Shards("part-*.npz")))
        >>> cb.evaluate_sums(sums, metrics=["accuracy"])["accuracy"].value
        0.8
    """
    plan = Plan() if plan is None else plan
    empty = ShardSums(plan, shard.kind, shard.n_classes, None)
    try:
        return reduce(merge, _parts(shard, plan, replace(empty, shards=0)), empty)
    except CalibrantError as error:
        if not skip_broken:
            raise
        return replace(empty, shards=0, broken={shard.where: str(error)})


def _parts(shard: Shard, plan: Plan, empty: ShardSums) -> Iterator[ShardSums]:
    """Yield the sums of stretches of rows."""
    scored: list[RowScores] = []
    beside: list[NDArray[Any]] = []
    held = 0
    for batch in shard.batches(plan.column):
        whole = None
        if plan.whole_rows:
            whole = WholeRowSums.of(batch.predictions, batch.place, plan.whole_rows, plan.seed)
            yield replace(empty, whole=whole)
        scored.append(score_rows(batch.predictions))
        beside.append(_member_values(batch, scored[-1], plan))
        held += len(batch.predictions)
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


def _summed(scored: list[RowScores], beside: list[NDArray[Any]], empty: ShardSums) -> ShardSums:
    plan = empty.plan
    scores = joined_scores(scored)
    sums = replace(empty, rows=RowSums.of(scores, FINE, binary=empty.binary))
    if plan.by is None and not plan.clustered:
        return sums
    names, member = np.unique(np.concatenate(beside), return_inverse=True)
    member = member.astype(np.int64)
    if not plan.clustered:
        if len(names) > MOST_GROUPS:
            raise InputError(
                f"more than {MOST_GROUPS} groups of rows are too many to be measured together"
            )
        texts: list[str] = [str(name) for name in names.tolist()]
        groups = {texts[i]: part for i, part in _coarse(scores, member, empty) if part.n}
        return replace(sums, groups=groups)
    hashes = np.array([cluster_hash(name) for name in names.tolist()], dtype=np.int64)
    folded = len(hashes) > MOST_BLOCKS
    if folded:
        hashes = hashes % MOST_BLOCKS
    return replace(
        sums,
        blocks={i: part for i, part in _coarse(scores, hashes[member], empty) if part.n},
        folded=folded,
    )


def _coarse(scores: RowScores, member: IntArray, empty: ShardSums) -> Iterator[tuple[int, RowSums]]:
    return by_member(scores, member, COARSE, binary=empty.binary)


def cluster_hash(name: Any) -> int:
    """Return a whole number that stands for a cluster, the same wherever its name is met.

    In files of text a number is text, so 17 and "17" name the same cluster.
    """
    text = str(int(name)) if isinstance(name, float) and name.is_integer() else str(name)
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def merged(parts: Iterable[ShardSums]) -> ShardSums:
    """Return the sums of all parts; raises `InputError` where there are none."""
    found = iter(parts)
    first = next(found, None)
    if first is None:
        raise InputError("there are no sums to merge")
    return reduce(merge, found, first)
