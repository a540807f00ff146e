"""Rows that come in clusters, such as documents: one bet a cluster, however its rows depend.

Payments of rows multiply to a supermartingale only if each row's probability is right *given all
rows before*. Rows of one document aren't like that: one hard page is wrong in every line. But
whatever they do among themselves, a sum of their payments with weights that were settled before has
the expectation that it should have given the clusters before. So a cluster is one unit of the bet,
with the factor

    F_j = 1 + s_j / M sum_{i <= M} (L_ij - 1),   s_j = min(sqrt(M), 0.95 / (1 - l_j)),

over its first M rows, where l_j is the lowest payment of alternative j, over all confidences and
both outcomes. Every bet on a cluster that stays valid under any dependence is such a sum. The stake
s_j is no more than keeps F_j positive. Above 1 it wins back some of what the mean gives away, since
a mean over M rows varies less than one row; sqrt(M) is what M / (1 + (M - 1) r) comes near to for
correlations r around .2. Clusters of one row are rows: M = 1, s_j = 1.

**How large a bet is.** M may depend on the clusters that were counted before, and not on the
cluster's own number of rows: a session that ends at its first wrong answer has one wrong row among
few, so that the mean over its rows lies below its confidences though every row is calibrated. M is
sum m^2 / sum m of the sizes m before (the size of the cluster in which a row lies, on average), or
twice their mean if that is less; before one is known, 1, or `UNKNOWN` where several are open. Rows
behind the first M are not bet on, and rows that a cluster lacks pay 1. Groups, and rows that a
promise is about, have sizes of their own.

**When a cluster is counted.** Its rows are kept together as sums until it is closed: when more
clusters than `most_open` are unfinished, the one whose last row is the oldest. So clusters are
closed in the order of their last rows, which no outcome changes. Rows that come later of a closed
cluster depend on what was counted, so that nothing is bet on them; reports show them.

**Groups.** A group's factor is that of the cluster's rows in the group. Which group a row belongs
to may depend on earlier rows of its cluster, if the row is calibrated given its group: as every
bet, a group's is one on each row given the clusters before, that there is such a row, its
confidence and its group. Of a group that rows enter because they were wrong no row is calibrated.
For the change test, r_j of a group begins anew behind the cluster with the group's share of its
rows (`calibrant.monitor.sequential_tests`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from calibrant.core.arrays import FloatArray, IntArray
from calibrant.core.errors import InputError
from calibrant.metrics.binned import LOGIT_CLIP
from calibrant.monitor.delayed_labels import hash_of_name
from calibrant.monitor.latest import forget
from calibrant.monitor.sequential_tests import COUNT, LARGEST_LOGIT, Bets, OfGroup, payments

# Parts of a cluster besides those of each group, which have the group's index.
ALL, PROMISE = -1, -2
# How many rows of a cluster are bet on where none was counted yet.
UNKNOWN = 8
# How close to zero a factor may come, as a share of the way from 1.
MOST_OF_THE_WAY = 0.95
# Log odds at which the lowest payment is looked for.
LOG_ODDS = np.linspace(-LARGEST_LOGIT, LARGEST_LOGIT, 20_001)


@lru_cache(maxsize=8)
def largest_stakes(tolerance: float) -> FloatArray:
    """Return the (J,) stakes up to which every factor stays positive, whatever is said."""
    said = np.clip(1 / (1 + np.exp(-LOG_ODDS)), LOGIT_CLIP, 1 - LOGIT_CLIP)
    lowest = np.minimum(
        *(payments(said, np.full(len(said), y), tolerance).min(axis=0) for y in (True, False))
    )
    return np.maximum(MOST_OF_THE_WAY / np.maximum(1 - lowest, 1e-9), 1.0)


def factors(total: FloatArray, rows: IntArray | int, largest: FloatArray) -> FloatArray:
    """Return the (..., J) factors F of clusters.

    Args:
        total: (..., J) sums of the payments of M rows.
        rows: M, of all or (..., 1) of each.
        largest: (J,) stakes that leave every factor positive.
    """
    mean = total / rows
    stake = np.minimum(largest, np.sqrt(rows))
    return mean + (stake - 1) * (mean - 1)


@dataclass
class Part:
    """Rows of an unfinished cluster that are bet on together.

    Attributes:
        most: M; rows: how many of the first M there are; payments: (J,) sum of theirs.
    """

    most: int
    rows: int = 0
    payments: FloatArray = field(default_factory=lambda: np.zeros(COUNT))

    def add(self, paid: FloatArray) -> None:
        """Add the (n, J) payments of more rows."""
        some = paid[: self.most - self.rows]
        # Row after row, so that it doesn't matter how many come at once.
        whole = np.vstack([self.payments, some]) if self.rows else some
        self.payments = np.add.reduce(whole, axis=0)
        self.rows += len(some)


def factors_of(parts: Sequence[Part], largest: FloatArray) -> FloatArray:
    """Return the (m, J) factors of parts; `largest` are the stakes that leave them positive."""
    paid, sizes = [part.payments for part in parts], [(part.most, part.rows) for part in parts]
    most, rows = np.array(sizes, dtype=np.int64).reshape(-1, 2, 1).swapaxes(0, 1)
    return factors(np.array(paid).reshape(-1, COUNT) + (most - rows), most, largest)


@dataclass
class Unfinished:
    """A cluster that isn't closed: sums over its rows.

    Attributes:
        last: number of its last row in the stream.
        moments: (3,) number of its rows, sum of their residuals, and of their squares.
        parts: what is bet on: `ALL` rows, those that a `PROMISE` is about, those of each group.
        counts: how many rows each part has, also behind the first M.
    """

    last: int = 0
    moments: FloatArray = field(default_factory=lambda: np.zeros(3))
    parts: dict[int, Part] = field(default_factory=dict[int, Part])
    counts: Counter[int] = field(default_factory=Counter[int])


@dataclass
class Dependence:
    """How much rows of a cluster depend on one another, from sums over closed clusters.

    Attributes:
        clusters: how many there are.
        sums: (6,) over clusters of m rows with the residual sum S: of m, S, squared residuals, S S,
            m S and m m.
    """

    clusters: int = 0
    sums: FloatArray = field(default_factory=lambda: np.zeros(6))

    def add(self, moments: FloatArray) -> None:
        """Add a cluster of these `Unfinished.moments`."""
        m, s, squares = moments
        self.clusters += 1
        self.sums = self.sums + np.array([m, s, squares, s * s, m * s, m * m])

    def __add__(self, other: Dependence) -> Dependence:
        """Return the sums of both."""
        return Dependence(self.clusters + other.clusters, self.sums + other.sums)

    @property
    def variances(self) -> tuple[float, float]:
        """Of clusters' residual sums, added up; and of the rows, added up."""
        n, total, squares, of_sums, mixed, sizes = self.sums.tolist()
        mean = total / n if n else 0.0
        return of_sums - 2 * mean * mixed + mean**2 * sizes, squares - n * mean**2

    @property
    def correlation(self) -> float | None:
        """Of the residuals of two rows of a cluster; None where no cluster has two."""
        together, apart = self.variances
        pairs = (self.sums[5] - self.sums[0]) / max(self.sums[0], 1.0)
        return float((together - apart) / (apart * pairs)) if pairs > 0 < apart else None

    @property
    def effect(self) -> float:
        """How many rows of clusters say as much as one that stands alone, at least 1."""
        together, apart = self.variances
        return max(together / apart, 1.0) if apart > 0 else 1.0


@dataclass
class Clusters:
    """The clusters of a stream: those that are unfinished, and which were closed.

    Attributes:
        most_open: how many may be unfinished at once.
        most_known: how many closed ones are remembered.
        unfinished: by name, in the order of their last rows.
        closed: hashes of the names of closed ones, the oldest first.
        late: rows left out of the bets because their cluster was closed; beyond: because it has
            more of them than a bet.
        dependence: of closed ones.
        sizes: (3,) of each part: closed clusters that have rows of it, their rows, and the squares
            of their rows, each added up.
    """

    most_open: int
    most_known: int
    unfinished: dict[str, Unfinished] = field(default_factory=dict[str, Unfinished])
    closed: dict[int, None] = field(default_factory=dict[int, None])
    late: int = 0
    beyond: int = 0
    dependence: Dependence = field(default_factory=Dependence)
    sizes: dict[int, FloatArray] = field(default_factory=dict[int, FloatArray])

    def add(
        self, names: Sequence[str], residual: FloatArray, first: int, bets: Mapping[int, OfGroup]
    ) -> list[Unfinished]:
        """Take n rows, and return the clusters that they close.

        Args:
            names: (n,) of the rows' clusters.
            residual: (n,) confidence minus correctness.
            first: number of the first row in the stream.
            bets: of each part: which of the rows, ascending, their payments, and shares.
        """
        closed: list[Unfinished] = []
        starts = [i for i in range(len(names)) if i == 0 or names[i] != names[i - 1]]
        # Where the rows of each of these clusters begin, and end, among those of each part.
        ends = [*starts, len(names)]
        cuts = {part: np.searchsorted(at, ends).tolist() for part, (at, _, _) in bets.items()}
        for k, (start, stop) in enumerate(pairwise(ends)):
            name, n = names[start], stop - start
            cluster = self.unfinished.pop(name, None)
            if cluster is None:
                if hash_of_name(name) in self.closed:
                    self.late += n
                    continue
                cluster = Unfinished()
                closed += self.close(self.most_open - 1)
            self.unfinished[name] = cluster
            cluster.last, left = first + stop - 1, residual[start:stop]
            cluster.moments = cluster.moments + np.array([n, left.sum(), left @ left])
            for part, (_, paid, _) in bets.items():
                low, high = cuts[part][k : k + 2]
                if low < high:
                    own = cluster.parts.get(part) or Part(self._most(part))
                    own.add(paid[low:high])
                    cluster.parts[part] = own
                    cluster.counts[part] += high - low
        return closed

    def close(self, most: int = 0) -> list[Unfinished]:
        """Close clusters until `most` are unfinished, and return them in their order."""
        closed: list[Unfinished] = []
        while len(self.unfinished) > most:
            name = next(iter(self.unfinished))
            cluster = self.unfinished.pop(name)
            self.closed[hash_of_name(name)] = None
            self.dependence.add(cluster.moments)
            self.beyond += cluster.counts[ALL] - cluster.parts[ALL].rows
            for part, rows in cluster.counts.items():
                size = np.array([1, rows, rows**2])
                self.sizes[part] = self.sizes.get(part, np.zeros(3)) + size
            closed.append(cluster)
        forget(self.closed, self.most_known)
        return closed

    def _most(self, part: int) -> int:
        """Return M for a cluster that begins."""
        known = self.sizes.get(part, self.sizes.get(ALL))
        if known is None:
            return 1 if self.most_open == 1 else UNKNOWN
        number, rows, squares = known.tolist()
        return math.ceil(min(squares / rows, 2 * rows / number))

    def moved(self, last: int, place: Mapping[int, int]) -> Clusters:
        """Return the same where unfinished clusters end in this row, and groups have these places.

        What is put together has evidence up to that row, and they are counted after it.
        """

        def put(parts: Mapping[int, Any]) -> dict[int, Any]:
            return {place.get(part, part): own for part, own in parts.items()}

        moved = {
            name: replace(one, last=last, parts=put(one.parts), counts=Counter(put(one.counts)))
            for name, one in self.unfinished.items()
        }
        return replace(self, unfinished=moved, sizes=put(self.sizes))

    def merge(self, others: Iterable[Clusters]) -> Clusters:
        """Return the clusters of all, which must share none.

        Raises:
            InputError: rows of a cluster came to two of them.
        """
        merged = Clusters(self.most_open, self.most_known)
        for one in (self, *others):
            hashes = {*one.closed, *map(hash_of_name, one.unfinished)}
            known = {*merged.closed, *map(hash_of_name, merged.unfinished)}
            if hashes & known:
                raise InputError(
                    "two of the monitors have rows of the same cluster, and their tests can't "
                    "be merged; send all rows of a cluster to one replica"
                )
            merged.unfinished |= one.unfinished
            merged.closed |= one.closed
            merged.late += one.late
            merged.beyond += one.beyond
            merged.dependence += one.dependence
            for part, size in one.sizes.items():
                merged.sizes[part] = merged.sizes.get(part, np.zeros(3)) + size
        forget(merged.closed, merged.most_known)
        return merged


def bets_of_clusters(closed: Sequence[Unfinished], tolerance: float) -> Bets:
    """Return the bets on closed clusters, in their order."""
    largest = largest_stakes(tolerance)
    of_groups: dict[int, tuple[list[int], list[Part], list[float]]] = {}
    for i, cluster in enumerate(closed):
        own = {part: count for part, count in cluster.counts.items() if part >= 0}
        total = sum(own.values())
        for group, count in own.items():
            at, parts, share = of_groups.setdefault(group, ([], [], []))
            at.append(i)
            parts.append(cluster.parts[group])
            share.append(count / total)
    groups = {
        group: (np.array(at), factors_of(parts, largest), np.array(share))
        for group, (at, parts, share) in sorted(of_groups.items())
    }
    whole = factors_of([cluster.parts[ALL] for cluster in closed], largest)
    return Bets(whole, np.array([cluster.last for cluster in closed]), groups)
