"""Rows that come in clusters, such as documents: one bet a cluster, however its rows depend.

Payments of rows multiply to a supermartingale only if each row's probability is right *given all
rows before*. Rows of one document aren't like that: one hard page is wrong in every line. But
whatever they do among themselves, the mean of their payments has an expectation of at most 1 given
the clusters before, as each of the payments has. So a cluster of m rows is one unit of the bet,
with the factor

    F_j = 1 + s_j (mean_i L_ij - 1),   s_j = min(sqrt(m), 0.95 / (1 - l_j)),

where l_j is the lowest payment of alternative j, over all confidences and both outcomes. Every bet
on a cluster that stays valid under any dependence is such a sum of bets on its rows. The stake s_j
is no more than keeps F_j positive. Above 1 it wins back some of what the mean gives away, since a
mean over m rows varies less than one row; sqrt(m) is what m / (1 + (m - 1) r) comes near to for
correlations r around .2. A cluster of one row is a row: s_j = 1.

**When a cluster is counted.** Its rows are kept together as sums until it is closed: when more
clusters than `most_open` are unfinished, the one whose last row is the oldest. So clusters are
closed in the order of their last rows, which no outcome changes. Rows that come later of a closed
cluster depend on what was counted, so that nothing is bet on them; reports show them.

**Groups.** A group's factor is that of the cluster's rows in the group. For the change test, r_j of
a group begins anew with the group's share of the cluster, so that the groups' R grow by no more
than one a cluster together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from calibrant.core.arrays import FloatArray, IntArray
from calibrant.core.errors import InputError
from calibrant.metrics.binned import LOGIT_CLIP
from calibrant.monitor.delayed_labels import hash_of_name
from calibrant.monitor.sequential_tests import COUNT, LARGEST_LOGIT, Bets, payments

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


def factors(total: FloatArray, rows: int, tolerance: float) -> FloatArray:
    """Return the (J,) factors F of a cluster.

    Args:
        total: (J,) sum of the payments of its rows.
        rows: how many they are.
        tolerance: e.
    """
    mean = total / rows
    stake = np.minimum(largest_stakes(tolerance), math.sqrt(rows))
    return mean + (stake - 1) * (mean - 1)


@dataclass
class Unfinished:
    """A cluster that isn't closed: sums over its rows.

    Attributes:
        last: number of its last row in the stream.
        moments: (3,) number of its rows, sum of their residuals, and of their squares.
        promised: (2,) how many rows keep and break a promise that is watched.
        rows: how many rows it has in each group; payments: (J,) sum of theirs.
    """

    last: int = 0
    moments: FloatArray = field(default_factory=lambda: np.zeros(3))
    promised: FloatArray = field(default_factory=lambda: np.zeros(2))
    rows: dict[int, int] = field(default_factory=dict[int, int])
    payments: dict[int, FloatArray] = field(default_factory=dict[int, FloatArray])

    def add(self, paid: FloatArray, residual: FloatArray, member: IntArray, last: int) -> None:
        """Add (n,) rows, the last of which has the number `last`."""
        self.last = last
        self.moments = self.moments + np.array([len(paid), residual.sum(), residual @ residual])
        for group in dict.fromkeys(member.tolist()):
            of_group = paid[member == group]
            before = self.payments.get(group, np.zeros(COUNT))
            # Row after row, so that it doesn't matter how many come at once.
            self.payments[group] = np.add.reduce(np.vstack([before, of_group]), axis=0)
            self.rows[group] = self.rows.get(group, 0) + len(of_group)


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
        late: rows left out of the bets because their cluster was closed.
        dependence: of closed ones.
    """

    most_open: int
    most_known: int
    unfinished: dict[str, Unfinished] = field(default_factory=dict[str, Unfinished])
    closed: dict[int, None] = field(default_factory=dict[int, None])
    late: int = 0
    dependence: Dependence = field(default_factory=Dependence)

    # Parameters: what is known of each row, and where the rows stand.
    def add(
        self,
        names: Sequence[str],
        paid: FloatArray,
        residual: FloatArray,
        member: IntArray | None,
        first: int,
        promised: FloatArray | None = None,
    ) -> list[Unfinished]:
        """Take n rows, and return the clusters that they close.

        Args:
            names: (n,) of the rows' clusters.
            paid: (n, J) payments.
            residual: (n,) confidence less correctness.
            member: (n,) index of each row's group, or None.
            first: number of the first row in the stream.
            promised: (n, 2) whether each keeps a promise that is watched, and breaks it.
        """
        closed: list[Unfinished] = []
        groups = np.zeros(len(names), dtype=np.int64) if member is None else member
        starts = [i for i in range(len(names)) if i == 0 or names[i] != names[i - 1]]
        for start, stop in zip(starts, [*starts[1:], len(names)], strict=True):
            name, part = names[start], slice(start, stop)
            cluster = self.unfinished.pop(name, None)
            if cluster is None:
                if hash_of_name(name) in self.closed:
                    self.late += stop - start
                    continue
                cluster = Unfinished()
                closed += self.close(self.most_open - 1)
            self.unfinished[name] = cluster
            cluster.add(paid[part], residual[part], groups[part], first + stop - 1)
            if promised is not None:
                cluster.promised = cluster.promised + promised[part].sum(axis=0)
        return closed

    def close(self, most: int = 0) -> list[Unfinished]:
        """Close clusters until `most` are unfinished, and return them in their order."""
        closed: list[Unfinished] = []
        while len(self.unfinished) > most:
            name = next(iter(self.unfinished))
            cluster = self.unfinished.pop(name)
            self.closed[hash_of_name(name)] = None
            self.dependence.add(cluster.moments)
            closed.append(cluster)
        while len(self.closed) > self.most_known:
            del self.closed[next(iter(self.closed))]
        return closed

    def moved(self, by: int) -> Clusters:
        """Return the same where rows have numbers that much higher."""
        moved = {name: replace(one, last=one.last + by) for name, one in self.unfinished.items()}
        return replace(self, unfinished=moved)

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
                    "two of the monitors have rows of the same cluster, whose payments can't be "
                    "put together; send all rows of a cluster to one replica"
                )
            merged.unfinished |= one.unfinished
            merged.closed |= one.closed
            merged.late += one.late
            merged.dependence += one.dependence
        return merged


def bets_of_clusters(closed: Sequence[Unfinished], tolerance: float, grouped: bool) -> Bets:
    """Return the bets on closed clusters, in their order."""
    paid, row = np.empty((len(closed), COUNT)), np.empty(len(closed), dtype=np.int64)
    of_groups: dict[int, tuple[list[int], list[FloatArray], list[float]]] = {}
    for i, cluster in enumerate(closed):
        rows = sum(cluster.rows.values())
        row[i] = cluster.last
        paid[i] = factors(np.add.reduce([*cluster.payments.values()]), rows, tolerance)
        for group, count in cluster.rows.items() if grouped else ():
            at, own, share = of_groups.setdefault(group, ([], [], []))
            at.append(i)
            own.append(factors(cluster.payments[group], count, tolerance))
            share.append(count / rows)
    groups = {
        group: (np.array(at), np.array(own), np.array(share))
        for group, (at, own, share) in sorted(of_groups.items())
    }
    return Bets(paid, row, groups)
