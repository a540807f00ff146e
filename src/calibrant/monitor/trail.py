"""Running sums remembered at a few rows: near ones close together, those of long ago far apart.

A stream of any length leaves a trail of bounded size: among the rows of age d those remembered are
about d / keep apart, and their number grows by `keep` / 2 whenever the stream doubles. The sums of
a stretch are the difference of two of the running sums, so that to forget one between merges two
neighbouring stretches.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from calibrant.core.arrays import FloatArray, IntArray

# Of a row that is never forgotten.
FOR_EVER = 62


@dataclass
class Trail:
    """Running sums of a stream at some of its rows.

    Attributes:
        base: rows between two that are remembered at first.
        keep: how many stretches of one length are remembered, about.
        count: (m,) how many rows the sums are of, ascending.
        row: (m,) the 0-based row of the whole stream that comes next; other than `count` where a
            part of the stream, such as a group, has sums of its own.
        level: (m,) a row is remembered up to the age of ``keep * base * 2**level``.
        sums: (m, w) the running sums.
    """

    base: int
    keep: int
    count: IntArray
    row: IntArray
    level: IntArray
    sums: FloatArray = field(repr=False)

    @classmethod
    def start(cls, width: int, base: int, keep: int) -> Trail:
        """Return a trail that remembers nothing but the beginning."""
        zero = np.zeros(1, dtype=np.int64)
        return cls(base, keep, zero, zero.copy(), zero + FOR_EVER, np.zeros((1, width)))

    def due(self, before: int, after: int) -> IntArray:
        """Return the counts in (before, after] that are to be remembered."""
        first = before // self.base + 1
        return np.arange(first, after // self.base + 1) * self.base

    def extend(self, count: IntArray, row: IntArray, sums: FloatArray) -> None:
        """Remember the (k, w) sums at the (k,) counts of `due`, and forget what is old."""
        if not len(count):
            return
        steps = count // self.base
        # How often 2 divides the step.
        level = np.round(np.log2(steps & -steps)).astype(np.int64)
        self._keep(count, row, level, sums)

    def mark(self, count: int, row: int, sums: FloatArray) -> None:
        """Remember one row for ever."""
        one = np.array([count], dtype=np.int64)
        self._keep(one, np.array([row], dtype=np.int64), one * 0 + FOR_EVER, sums[None, :])

    def _keep(self, count: IntArray, row: IntArray, level: IntArray, sums: FloatArray) -> None:
        counts = np.concatenate([self.count, count])
        levels = np.concatenate([self.level, level])
        young = counts[-1] - counts <= np.ldexp(float(self.keep * self.base), levels)
        self.count, self.level = counts[young], levels[young]
        self.row = np.concatenate([self.row, row])[young]
        self.sums = np.concatenate([self.sums, sums])[young]
