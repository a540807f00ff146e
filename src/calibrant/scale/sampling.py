"""A uniform sample of rows, drawn by their places: the same however the rows are split into files.

Each place among all rows has 64 bits that look random and depend on nothing but the place and the
seed. The rows with the least of them are the sample: exactly so many, without replacement.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import IntArray
from calibrant.core.errors import CalibrationWarning, InputError, warn_caller
from calibrant.core.progress import Watcher
from calibrant.core.weights import mixed
from calibrant.predictions.predictions import Predictions
from calibrant.scale.engines import Engine, Task, through
from calibrant.scale.shards import Shards

# Places are gone through so many at a time.
PLACES_AT_ONCE = 1 << 22
# A first cut of the places keeps so many standard deviations more than wanted.
SPARE = 8.0
# Numbers of a sample at most, where nobody says how many rows: those of a wide vocabulary take
# gigabytes otherwise.
SAMPLE_NUMBERS = 1 << 26


def sampled_places(rows: int, wanted: int, seed: int) -> IntArray:
    """Return the places of a uniform sample of `wanted` among so many rows, ascending."""
    if wanted >= rows:
        return np.arange(rows)
    expected = wanted + SPARE * wanted**0.5 + SPARE**2
    limit = np.uint64(min(2.0**64 * min(expected / rows, 1.0), 2.0**64 - 2048))
    places: list[IntArray] = []
    hashes: list[NDArray[np.uint64]] = []
    for start in range(0, rows, PLACES_AT_ONCE):
        some = np.arange(start, min(start + PLACES_AT_ONCE, rows), dtype=np.uint64)
        bits = mixed(some, seed)
        kept = bits <= limit
        places.append(some[kept].astype(np.int64))
        hashes.append(bits[kept])
    place, bits = np.concatenate(places), np.concatenate(hashes)
    return np.sort(place[np.argsort(bits, kind="stable")[:wanted]])


def chosen_rows(part: Task[IntArray]) -> Predictions:
    """Return some rows of a shard, ascending, with what is known of them."""
    batches = part.shard.batches(features=True, chosen=part.about)
    return Predictions.concatenate([b.predictions for b in batches], source=part.shard.where)


def sample(
    shards: Shards,
    wanted: int,
    seed: int,
    engine: Engine,
    watch: Watcher | None = None,
    broken: dict[str, str] | None = None,
) -> Predictions:
    """Return a uniform sample of the rows of all shards.

    Args:
        shards: the files.
        wanted: rows of the sample.
        seed: for the sample.
        engine: who reads.
        watch: called with a `Progress` as shards are done.
        broken: takes up shards that can't be read, with the reason; None to end with them.

    Raises:
        PredictionsError: a row near one of them can't be used.
    """
    places = sampled_places(shards.rows, wanted, seed)
    starts = np.array([shard.first for shard in shards])
    ends = starts + [shard.rows for shard in shards]
    cuts = np.searchsorted(places, [starts, ends])
    work = [
        Task(shard, places[low:high] - shard.first)
        for shard, low, high in zip(shards, *cuts.tolist(), strict=True)
        if low < high
    ]
    found: dict[int, Predictions] = {}

    def take(i: int, rows: Predictions) -> None:
        found[i] = rows

    through(engine, chosen_rows, work, take, watch, broken)
    if not found:
        raise InputError(f"{shards.source}: no file could be read")
    return Predictions.concatenate([found[i] for i in sorted(found)], source=shards.source)


def affordable(shards: Shards, most: int) -> int:
    """Return `most` rows, or fewer of very wide ones."""
    return min(most, max(1, SAMPLE_NUMBERS // (shards.n_classes or 1)))


# Parameters: those of `evaluate` that decide who reads files, and how many rows they give.
def in_memory(
    rows: Predictions | Shards,
    most: int,
    seed: int,
    *,
    engine: Engine | None,
    skip_broken: bool,
    watch: Watcher | None,
) -> Predictions:
    """Return rows in memory as they are; of many files a uniform sample, `most` rows of it."""
    if not isinstance(rows, Shards):
        return rows
    rows.refuse_clusters()
    broken = dict(rows.broken) if skip_broken else None
    found = sample(rows, affordable(rows, most), seed, engine or Engine(), watch, broken)
    for name in sorted(broken or {}):
        warn_caller(CalibrationWarning(f"left out: {(broken or {})[name]}"))
    return replace(found, source=f"{found.n} of {rows.rows} rows of {rows.source}")
