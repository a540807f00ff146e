"""Calibration over stretches of the stream: sums of a few cells, with intervals and floor.

A window keeps of its rows only how many fell into each cell of confidence, how many of them were
right, and the sum of their confidences. Cells are the fifteen equal bins of the ECE, cut further
where confidences crowd near 0 and 1. So windows add up, and a stream has as many as its trail
remembers: the latest ones short, those of long ago long.

Running sums remembered at a few rows: near ones close together, those of long ago far apart.

A stream of any length leaves a trail of bounded size: among the rows of age d those remembered are
about d / keep apart, and their number grows by `keep` / 2 whenever the stream doubles. The sums of
a stretch are the difference of two of the running sums, so that to forget one between merges two
neighbouring stretches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np

from calibrant.core.arrays import BoolArray, FloatArray, IntArray
from calibrant.core.errors import PredictionsError
from calibrant.evaluation.bootstrap import Replicates, values_of_resamples
from calibrant.evaluation.cells import Cells
from calibrant.evaluation.uncertainty import ENOUGH, FLOOR_QUANTILE, Gap, MeanResidual, interval
from calibrant.metrics.binned import DEFAULT_BINS, bin_edges, bin_index
from calibrant.metrics.metric_types import values_of_curves
from calibrant.metrics.registry import metrics_named
from calibrant.metrics.top_label import ResidualCurves

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


_NEAR_ONE = (0.95, 0.97, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995, 0.9999)
# A cell (lo, hi] lies within one of the fifteen bins; 0 is in the first.
EDGES = np.unique(np.concatenate([bin_edges(DEFAULT_BINS), _NEAR_ONE, 1 - np.array(_NEAR_ONE)]))
CELLS = len(EDGES) - 1
# What is summed in each cell: rows, confidences, right ones.
WIDTH = 3 * CELLS
_ECE = metrics_named(["ece"])
# The latest windows are `window` rows long, this many of them; then twice as long, and so on.
KEPT = 16
# Confidences are summed in steps of this: so up to half a billion of them add up without rounding,
# in whatever order and parts they come, and a mean is off by 3e-8 at most.
STEP = 2.0**-24
RESAMPLES = 400


@dataclass(frozen=True)
class Window:
    """How well calibrated the confidences of a stretch of rows were; fractions.

    Attributes:
        first: 0-based number of the first row; rows: how many there are.
        confidence: mean confidence; accuracy: share of right rows.
        gap: confidence minus accuracy, with the ends of its score interval.
        gap_low: lower end; gap_high: upper end.
        ece: expected calibration error of 15 equal bins, with the ends of its bootstrap interval.
        ece_low: lower end; ece_high: upper end.
        floor: what calibrated confidences would show of it on average.
        floor_95: and what they would stay below in 95 % of cases.
    """

    first: int
    rows: int
    confidence: float
    accuracy: float
    gap: float
    gap_low: float
    gap_high: float
    ece: float
    ece_low: float
    ece_high: float
    floor: float
    floor_95: float

    @classmethod
    def of_sums(
        cls, first: int, sums: FloatArray, level: float = 0.95, effect: float = 1.0
    ) -> Window:
        """Return the window whose first row is `first`, from its (3 C,) sums.

        Intervals and floor are those of `calibrant.evaluate`, of cells in place of rows. Random
        numbers are seeded by `first`, so that a window always shows the same.

        Args:
            first: see above.
            sums: see above.
            level: nominal coverage of the intervals.
            effect: how many rows say as much as one that depends on no other: noise has a variance
                that many times as large.
        """
        cells = Cells.of_sums(EDGES, sums.reshape(3, CELLS), effect)
        (wrong, right), n = cells.count.sum(axis=1).tolist(), cells.total
        parts = (cells.residual, cells.count, cells.squares)
        law = MeanResidual.of_cells(*(part.ravel() for part in parts))
        gap = Gap.of_law(law, right / n, level)
        rng = np.random.default_rng(first)
        (ece,) = _ece(values_of_curves, cells.curve()).tolist()
        drawn = _ece(values_of_resamples, cells.drawn(rng, RESAMPLES))
        honest = _ece(values_of_curves, cells.honest(rng, RESAMPLES))
        low, high = interval(ece, drawn, level, biased=True)
        if min(wrong, right) < ENOUGH:
            # Resamples know too little of so few; the ECE is never below the gap.
            high = max(high, -gap.low, gap.high)
        return cls(
            first=first,
            rows=round(n),
            confidence=float(cells.confidence.sum()) / n,
            accuracy=right / n,
            gap=gap.value,
            gap_low=gap.low,
            gap_high=gap.high,
            ece=ece,
            ece_low=low,
            ece_high=high,
            floor=float(honest.mean()),
            floor_95=float(np.quantile(honest, FLOOR_QUANTILE)),
        )

    @property
    def at_floor(self) -> bool:
        """Whether the ECE is no more than noise would give."""
        return self.ece <= self.floor_95

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as JSON takes them."""
        return asdict(self)


def _ece(values: Callable[..., Replicates], curves: ResidualCurves) -> FloatArray:
    return values(_ECE, curves)["ece"]


def cell_sums(confidence: FloatArray, correct: BoolArray, part: IntArray | int = 0) -> FloatArray:
    """Return the (P, 3 C) sums of n rows, those of each of P parts by themselves.

    Args:
        confidence: (n,) in [0, 1].
        correct: (n,) whether each row is right.
        part: (n,) the part that each row belongs to, ascending from 0; 0 for all.
    """
    cell = bin_index(confidence, EDGES)
    parts = 1 if isinstance(part, int) else int(part[-1]) + 1
    index = cell if isinstance(part, int) else cell + CELLS * part
    sums = [
        np.bincount(index, weights, parts * CELLS).reshape(parts, CELLS)
        for weights in (None, np.rint(confidence / STEP) * STEP, correct)
    ]
    return np.concatenate(sums, axis=1, dtype=np.float64)


@dataclass
class Windows:
    """The running sums of a stream's cells, remembered where windows begin and end.

    Attributes:
        rows: how many rows were summed.
        sums: (3 C,) of all of them.
        trail: the sums as they were.
    """

    rows: int
    sums: FloatArray
    trail: Trail

    @classmethod
    def start(cls, window: int) -> Windows:
        """Return the windows of a stream that hasn't begun, the shortest `window` rows long."""
        return cls(0, np.zeros(WIDTH), Trail.start(WIDTH, window, KEPT))

    def add(self, confidence: FloatArray, correct: BoolArray) -> None:
        """Sum n more rows."""
        before, after, base = self.rows, self.rows + len(confidence), self.trail.base
        part = np.arange(before, after) // base - before // base
        path = self.sums + np.cumsum(cell_sums(confidence, correct, part), axis=0)
        due = self.trail.due(before, after)
        self.trail.extend(due, due, path[: len(due)])
        self.rows, self.sums = after, path[-1]

    def stretches(self) -> list[tuple[int, FloatArray]]:
        """Return first row and sums of each window, the last of which may still be growing."""
        rows, sums = self.trail.row, self.trail.sums
        if rows[-1] < self.rows:
            rows, sums = np.append(rows, self.rows), np.vstack([sums, self.sums])
        return list(zip(rows[:-1].tolist(), np.diff(sums, axis=0), strict=True))


HOUR = 3600
# Two weeks; what is older is forgotten.
HOURS_KEPT = 14 * 24
# Years that a time may lie in, as hours since 1970: to 9999.
MOST_HOURS = 70_000_000
# A number above this counts milliseconds.
MILLISECONDS = 1e11


@dataclass
class Hours:
    """Sums of cells by hour of the clock.

    Attributes:
        sums: (3 C,) of each hour, by its number since 1970.
    """

    sums: dict[int, FloatArray] = field(default_factory=dict[int, FloatArray])

    def add(self, hour: IntArray, confidence: FloatArray, correct: BoolArray) -> None:
        """Sum (n,) rows of these hours; of all hours the latest `HOURS_KEPT` stay."""
        present: list[int] = np.unique(hour).tolist()
        for each in present:
            at = hour == each
            before = self.sums.get(each, np.zeros(WIDTH))
            self.sums[each] = before + cell_sums(confidence[at], correct[at])[0]
        self._forget()

    def _forget(self) -> None:
        for old in sorted(self.sums)[:-HOURS_KEPT]:
            del self.sums[old]

    def windows(self, effect: float) -> list[tuple[str, Window]]:
        """Return each hour's beginning and calibration; see `Window.of_sums` for `effect`."""
        return [
            (named(hour), Window.of_sums(hour, self.sums[hour], effect=effect))
            for hour in sorted(self.sums)
        ]

    def merge(self, others: Sequence[Hours]) -> Hours:
        """Return the sums of all."""
        merged = Hours(dict(self.sums))
        for other in others:
            for hour, sums in other.sums.items():
                merged.sums[hour] = merged.sums.get(hour, np.zeros(WIDTH)) + sums
        merged._forget()
        return merged


def named(hour: int) -> str:
    """Return the beginning of an hour since 1970, in words."""
    return datetime.fromtimestamp(hour * HOUR, UTC).strftime("%Y-%m-%d %H:00")


def hour_of(time: Any, where: str) -> int:
    """Return the hour since 1970 of a time.

    Args:
        time: seconds or milliseconds since 1970, a `datetime`, or text of ISO 8601; without a time
            zone it is UTC.
        where: begins the error message.

    Raises:
        PredictionsError: it is no such time.
    """
    try:
        if isinstance(time, str):
            time = time.strip()
            try:
                time = float(time)
            except ValueError:
                time = datetime.fromisoformat(time)
        if isinstance(time, datetime):
            time = (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
        seconds = float(time) / (1000 if float(time) > MILLISECONDS else 1)
        if not isinstance(time, bool) and 0 <= seconds < MOST_HOURS * HOUR:
            return int(seconds // HOUR)
    except (ValueError, TypeError, OverflowError):
        pass
    raise PredictionsError(
        f"{where}: a time must be seconds since 1970 or like 2026-11-23T16:20:00, not {time!r:.60}"
    )
