"""How often each row is in each resample: drawn in batches, by a seed, on every core, and once.

Batches and their random numbers depend on the number of rows and on the seed alone, so that results
don't depend on the number of threads, and resamples of several calibrators on one test set are
paired.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any, Self, TypeVar

import numpy as np

from calibrant.core.arrays import FloatArray
from calibrant.core.threads import one_blas_thread, worker_count
from calibrant.metrics.resampling import Clusters, Counts, draw_columns

T = TypeVar("T")
AnyDraws = TypeVar("AnyDraws", bound="Draws")

# Resamples are drawn in batches of about this many rows in all, 2 MB an array.
BATCH_ROWS = 1 << 18
# Sums at landmarks are made of so many numbers of a resample's rows together, 1 MB.
ROWS_TOGETHER = 1 << 20
# Draws of more bytes than this are made anew for every evaluation.
MOST_KEPT = 1 << 26

Replicates = dict[str, FloatArray]


def batch_sizes(rows: int, resamples: int) -> list[int]:
    """Return how many resamples of so many rows each batch holds."""
    size = max(1, min(resamples, BATCH_ROWS // rows))
    return [min(size, resamples - start) for start in range(0, resamples, size)]


def in_batches(
    batch: Callable[[np.random.Generator, int], Replicates], rows: int, resamples: int, seed: int
) -> Replicates:
    """Return what `batch` makes of generators and numbers of resamples, on every core."""
    sizes = batch_sizes(rows, resamples)
    generators = [np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(len(sizes))]
    return shared(lambda given: batch(*given), zip(generators, sizes, strict=True))


def shared(batch: Callable[[T], Replicates], parts: Iterable[T]) -> Replicates:
    """Return what `batch` makes of the parts, one behind the other, on every core."""
    with one_blas_thread(), ThreadPoolExecutor(worker_count()) as pool:
        return joined(list(pool.map(batch, parts)))


def joined(parts: Sequence[Replicates]) -> Replicates:
    """Return the values of all parts, one behind the other."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


@dataclass(frozen=True, eq=False)
class Draws:
    """Resamples of N rows, or of G clusters of them.

    Attributes:
        number: G, or N.
        sizes: how many resamples each batch holds.
        seed: of the random numbers.
        kept: what `of` returns, where it serves several evaluations.
    """

    number: int
    sizes: list[int]
    seed: int
    kept: dict[range, Counts] = field(default_factory=dict[range, Counts])

    @classmethod
    def of_rows(
        cls, rows: int, resamples: int, seed: int, clusters: Clusters | None = None
    ) -> Self:
        """Return what draws so many resamples of so many rows; see `drawn_once`."""
        number = rows if clusters is None else clusters.number
        found, store = cls(number, batch_sizes(rows, resamples), seed), _store.get()
        return found if store is None else store.kept(found)

    def kept_if_small(self) -> Self:
        """Return the same with all of it drawn, unless it is too much to be kept."""
        if sum(self.sizes) * self.number > MOST_KEPT:
            return self
        batches = self.batches()
        with ThreadPoolExecutor(worker_count()) as pool:
            drawn = pool.map(self.of, batches)
            return replace(self, kept=dict(zip(batches, drawn, strict=True)))

    def batches(self) -> list[range]:
        """Return batches that are worked on together: some `ROWS_TOGETHER` numbers in all."""
        together, last = max(1, ROWS_TOGETHER // (self.number * self.sizes[0])), len(self.sizes)
        return [range(i, min(i + together, last)) for i in range(0, last, together)]

    def of(self, batches: range) -> Counts:
        """Return (G, R) how often each row was drawn in the resamples of batches."""
        if batches in self.kept:
            return self.kept[batches]
        each = (self._batch(i) for i in batches)
        return np.ascontiguousarray(np.concatenate(list(each), axis=1))

    def _batch(self, index: int) -> Counts:
        own = np.random.SeedSequence(self.seed, spawn_key=(index,))
        return draw_columns(np.random.default_rng(own), self.number, self.sizes[index])


class _Store:
    """Draws that were kept, by what decides of them."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._draws: dict[tuple[int, ...], Any] = {}

    def kept(self, draws: AnyDraws) -> AnyDraws:
        key = (draws.number, draws.seed, *draws.sizes)
        with self._lock:  # whoever comes second waits, and draws nothing
            if key not in self._draws:
                self._draws[key] = draws.kept_if_small()
            return self._draws[key]


_store: ContextVar[_Store | None] = ContextVar("store", default=None)


@contextmanager
def drawn_once() -> Generator[None]:
    """Let all evaluations inside share what is drawn by the same seed for as many rows.

    Threads that are started inside have to inherit the context.
    """
    token = _store.set(_store.get() or _Store())
    try:
        yield
    finally:
        _store.reset(token)
