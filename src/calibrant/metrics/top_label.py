"""The data of every top-label metric: how confident each prediction was, and whether it was right.

All of these metrics are functions of one curve. Sort the N rows by confidence and let R(k) be the
sum of the residuals c - a over the k least confident rows: a bin's gap, a cell's mass, the KS error
are differences of R. `ResidualCurves` holds R for the data, or for many resamples of them at once,
so that a metric that is written for it has its value, its bootstrap and its floor from one piece of
code.

The arguments of a metric: scores of all classes, or (N,) scores of a kind that is named.

A vector of numbers in [0, 1] beside zeros and ones may be confidences with what was right, or
probabilities of the positive class with true labels. Which it is only the caller knows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, Self, get_args

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import (
    Array,
    BoolArray,
    FloatArray,
    IntArray,
    as_array,
    ascending,
    to_numpy,
)
from calibrant.core.checks import check_labels
from calibrant.core.errors import InputError, PredictionsError
from calibrant.core.weights import check_weights, mean, total
from calibrant.metrics.shrinkage import ShrunkGaps

# Even cells whose edges are breakpoints: those of ECE and those of smECE, which hold those of smCE.
GRIDS = (15, 256)
# Bins of equal mass whose cuts are breakpoints while every row counts once.
MASS_BINS = 15
# Rows between two breakpoints, more where there would be more breakpoints than this.
ROWS_BETWEEN, MOST_BREAKPOINTS = 32, 4096


@dataclass(frozen=True, eq=False)
class Breakpoints:
    """Positions in N sorted rows, each where a run of equal confidences begins.

    A resample of N rows is a number for each row, and running sums of them cost several passes over
    all N. ECE, smCE and smECE read them at the edges of their cells, which are the same for all
    resamples, and AdaECE where a resample has counted a share of its rows: within a stretch of some
    32 of them.

    Attributes:
        positions: (P + 1,) ascending, from 0 to N.
    """

    positions: IntArray

    @classmethod
    def of_rows(cls, confidence: FloatArray) -> Self:
        """Return the places that all usual metrics of (N,) ascending confidences read."""
        n = len(confidence)
        edges = [np.searchsorted(confidence, np.arange(1, b) / b, side="right") for b in GRIDS]
        index = np.arange(1, MASS_BINS + 1)
        cuts = index * (n // MASS_BINS) + np.minimum(index, n % MASS_BINS)
        # A cut within a run of equal confidences lies between the run's ends.
        end = np.searchsorted(confidence, confidence[np.maximum(cuts - 1, 0)], side="right")
        begin = np.searchsorted(confidence, confidence[np.maximum(cuts - 1, 0)], side="left")
        return cls(np.unique(np.concatenate([*edges, begin, end, [0, n]])))

    @property
    def stretches(self) -> int:
        """P, how many stretches there are between them."""
        return len(self.positions) - 1

    def places(self, positions: IntArray) -> IntArray:
        """Return which breakpoints (..., B) positions are.

        Raises:
            ValueError: one is none.
        """
        found = np.searchsorted(self.positions, positions)
        if not np.array_equal(self.positions[found], positions):
            raise ValueError("running sums are known at breakpoints only")
        return found


@dataclass(frozen=True, eq=False)
class DenseBreakpoints(Breakpoints):
    """Breakpoints so dense that every value a resample looks up lies near one.

    Attributes:
        single: (P,) whether a stretch is a single run; others have a few rows.
        width: the most rows of those.
    """

    single: BoolArray
    width: int

    @classmethod
    def among(cls, few: Breakpoints, starts: IntArray) -> Self:
        """Return more breakpoints.

        Args:
            few: what all rows together want.
            starts: (G + 1,) first row of every run of equal confidences, and N.
        """
        between = max(ROWS_BETWEEN, int(starts[-1]) // MOST_BREAKPOINTS)
        first = np.flatnonzero(np.diff(starts[:-1] // between, prepend=-1))
        long = np.flatnonzero(np.diff(starts) > between)
        positions = np.unique(np.concatenate([few.positions, starts[first], starts[long]]))
        single = np.diff(np.searchsorted(starts, positions)) == 1
        return cls(positions, single, int(np.diff(positions)[~single].max(initial=0)))


# Sums over N rows in whole units have at most so many bits: they are exact as floats.
UNIT_BITS = 51


@dataclass(frozen=True, eq=False)
class Crossing:
    """Positions on R curves, each a share of the way through a run of equal confidences.

    Attributes:
        below: (R or 1, B) row where the run begins.
        above: (R or 1, B) row where it ends.
        share: (R or 1, B) how much of it is crossed, in [0, 1].
    """

    below: IntArray
    above: IntArray
    share: FloatArray

    def of(self, sums: FloatArray) -> FloatArray:
        """Return (R, B) values of running sums, (R or 1, N + 1), at the positions."""
        low = np.take_along_axis(sums, self.below, axis=1)
        return low + self.share * (np.take_along_axis(sums, self.above, axis=1) - low)


def unit_of(rows: int) -> int:
    """Return how many units 1 has in sums over so many rows."""
    return 1 << (UNIT_BITS - rows.bit_length())


class InUnits(NamedTuple):
    """Rows in whole numbers of a small unit.

    A running sum of floats waits four cycles for each addition, one of whole numbers one; and it is
    the same in whatever order and on whatever processor. The unit is so small that rounding a row
    to it changes the sum over N rows by less than the last bit of its float.

    Attributes:
        confidence: (N,) c.
        correct: (N,) a.
        unit: how many of them are 1.
    """

    confidence: IntArray
    correct: IntArray
    unit: int

    @classmethod
    def of_rows(cls, confidence: FloatArray, correct: FloatArray) -> Self:
        """Return (N,) confidences and outcomes in whole numbers."""
        unit = unit_of(len(confidence))
        whole = np.rint(confidence * unit).astype(np.int64)
        return cls(whole, correct.astype(np.int64) * unit, unit)

    def resampled(self, counts: NDArray[Any]) -> FloatArray:
        """Return (R, N + 1) running sums of c - a, each row as often as (R, N) `counts` say."""
        sums = _places_for_sums(counts)
        np.multiply(counts, self.confidence - self.correct, out=sums[:, 1:])
        return _running(sums, 1 / self.unit)

    def with_labels(self, correct: NDArray[Any]) -> FloatArray:
        """Return (R, N + 1) running sums of c - a for other outcomes, (R, N) booleans."""
        sums = _places_for_sums(correct)
        np.multiply(correct, -self.unit, out=sums[:, 1:])
        sums[:, 1:] += self.confidence
        return _running(sums, 1 / self.unit)


def _places_for_sums(values: NDArray[Any]) -> IntArray:
    """Return (R, N + 1) whole numbers for running sums of (R, N) values; the first is 0."""
    sums = np.empty((values.shape[0], values.shape[1] + 1), dtype=np.int64)
    sums[:, 0] = 0
    return sums


def _running(values: IntArray, unit: float) -> FloatArray:
    """Return running sums of the values as floats, in the memory of the values."""
    np.cumsum(values, axis=1, out=values)
    return np.multiply(values, unit, out=values.view(np.float64))


def accumulate(values: NDArray[Any]) -> FloatArray:
    """Return (R, N + 1) running sums of (R, N) values, from 0."""
    if values.dtype.kind in "ui":
        whole = _places_for_sums(values)
        whole[:, 1:] = values
        return _running(whole, 1.0)
    sums = np.empty((values.shape[0], values.shape[1] + 1))
    sums[:, 0] = 0.0
    np.cumsum(values, axis=1, out=sums[:, 1:])
    return sums


@dataclass(frozen=True, eq=False)
class TopLabel:
    """N predictions sorted by confidence.

    Attributes:
        confidence: (N,) probabilities of the predicted labels, ascending, in [0, 1].
        correct: (N,) 1.0 where the predicted label is the true one, else 0.0, in the same order.
        order: (N,) position of each row in the caller's arrays.
        weight: (N,) how much each row counts, in the same order; None where all count alike.
    """

    confidence: FloatArray
    correct: FloatArray
    order: IntArray
    weight: FloatArray | None = None

    @classmethod
    def sort(
        cls,
        confidence: FloatArray,
        correct: NDArray[np.generic],
        weights: FloatArray | None = None,
    ) -> TopLabel:
        """Sort (N,) confidences with their (N,) correctness, and (N,) weights if there are any."""
        order = ascending(confidence)
        weight = None if weights is None else weights[order]
        # A renormalised float32 row can end a rounding error above 1.
        return cls(
            np.clip(confidence[order], 0.0, 1.0), correct[order].astype(np.float64), order, weight
        )

    @property
    def n(self) -> int:
        """Number of rows."""
        return len(self.confidence)

    @property
    def total(self) -> float:
        """How many rows the weights amount to: their sum, or N."""
        return total(self.n, self.weight)

    @property
    def mean_confidence(self) -> float:
        """Mean confidence, weighted."""
        return mean(self.confidence, self.weight)

    @property
    def accuracy(self) -> float:
        """Share of right predictions, weighted."""
        return mean(self.correct, self.weight)

    @cached_property
    def in_units(self) -> InUnits:
        """The confidences in whole numbers, for running sums that are quick and exact."""
        return InUnits.of_rows(self.confidence, self.correct)

    @cached_property
    def shrunk_gaps(self) -> ShrunkGaps:
        """What the gaps between confidence and accuracy are, most likely, along the confidences."""
        return ShrunkGaps.of_rows(self.confidence, self.correct, self.weight)

    def shrinkage(self, part: slice = slice(None)) -> FloatArray:
        """Return (n,) what to add to residuals of rows so that small gaps are drawn towards 0.

        See `ShrunkGaps`.
        """
        residual = self.shrunk_gaps.of(part) - (self.confidence[part] - self.correct[part])
        return residual if self.weight is None else residual * self.weight[part]

    @cached_property
    def null_shift(self) -> FloatArray:
        """(N + 1,) running sums of `shrinkage`, what to add to residual curves."""
        return accumulate(self.shrinkage()[None, :])[0]

    @cached_property
    def distinct(self) -> int:
        """Number of distinct confidences."""
        return 1 + int(np.count_nonzero(self.confidence[1:] != self.confidence[:-1]))

    @cached_property
    def tie_starts(self) -> IntArray:
        """(G + 1,) first row of every run of equal confidences, and N."""
        changes = np.flatnonzero(self.confidence[1:] != self.confidence[:-1])
        starts = np.zeros(len(changes) + 2, dtype=np.int64)
        np.add(changes, 1, out=starts[1:-1])
        starts[-1] = self.n
        return starts

    @cached_property
    def breakpoints(self) -> Breakpoints:
        """Where the usual metrics want running sums, as long as every row counts once."""
        return Breakpoints.of_rows(self.confidence)

    @cached_property
    def dense_breakpoints(self) -> DenseBreakpoints:
        """The same, made denser: every value that a resample looks up lies near one."""
        return DenseBreakpoints.among(self.breakpoints, self.tie_starts)

    def curves(self) -> ResidualCurves:
        """Return the residual curve of these rows as a batch of one."""
        if self.weight is not None:
            return ResidualCurves.weighted(self, self.weight[None, :])
        sums = np.zeros((1, self.n + 1))
        np.subtract(self.confidence, self.correct, out=sums[0, 1:])
        np.cumsum(sums[0, 1:], out=sums[0, 1:])  # in place: a million rows are 8 MB
        return ResidualCurves(self, sums, None)


@dataclass(frozen=True, eq=False)
class ResidualCurves:
    """R residual curves over the same sorted confidences.

    Attributes:
        rows: the rows they belong to.
        residual: (R, N + 1) sums of c - a over the first k rows, each row as often as resampled.
        weight: (R or 1, N + 1) how many rows they are, with weights and as often as resampled, or
            None if each row counts once.
    """

    rows: TopLabel
    residual: FloatArray
    weight: FloatArray | None

    @classmethod
    def weighted(cls, rows: TopLabel, weights: FloatArray) -> ResidualCurves:
        """Return the curves of rows that count as much as (R, N) `weights` say, in their order."""
        return cls(
            rows, accumulate(weights * (rows.confidence - rows.correct)), accumulate(weights)
        )

    def shrink_gaps(self) -> None:
        """Draw small gaps of resamples towards 0, in place: see `ShrunkGaps`."""
        np.add(self.residual, self.rows.null_shift, out=self.residual)
        self.__dict__.pop("correct", None)  # it was made of the curves as they were

    @classmethod
    def with_labels(cls, rows: TopLabel, correct: NDArray[np.generic]) -> ResidualCurves:
        """Return the curves for other outcomes: (R, N) `correct` in the order of `rows`."""
        if rows.weight is None:
            return cls(rows, rows.in_units.with_labels(correct), None)
        residual = rows.confidence - correct.astype(np.float64)
        return cls(rows, accumulate(residual * rows.weight), accumulate(rows.weight[None, :]))

    @property
    def n(self) -> int:
        """Number of rows that the first curve counts, to the nearest whole one."""
        return round(float(self.total[0]))

    @property
    def total(self) -> FloatArray:
        """(R or 1,) how many rows each curve counts: its weights' sum, or N."""
        return np.array([float(self.rows.n)]) if self.weight is None else self.weight[:, -1]

    @cached_property
    def weights(self) -> FloatArray:
        """(R or 1, N + 1) how many rows the first k are, each as often as resampled."""
        if self.weight is None:
            return np.arange(self.rows.n + 1, dtype=np.float64)[None, :]
        return self.weight

    @cached_property
    def confidence(self) -> FloatArray:
        """(R or 1, N + 1) sums of c over the first k rows."""
        return accumulate(np.diff(self.weights, axis=1) * self.rows.confidence)

    @cached_property
    def correct(self) -> FloatArray:
        """(R, N + 1) sums of a over the first k rows."""
        return self.confidence - self.residual

    def ties(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return (G,) distinct confidences, (R or 1, G) rows of each, and (R, G) right ones."""
        starts = self.rows.tie_starts
        count, correct = (np.diff(sums[:, starts], axis=1) for sums in (self.weights, self.correct))
        return self.rows.confidence[starts[:-1]], count, correct

    def cuts(self, edges: FloatArray) -> IntArray:
        """Return the row positions of the edges of bins (lo, hi]; the first holds 0 too."""
        cuts = np.searchsorted(self.rows.confidence, edges, side="right")
        cuts[0], cuts[-1] = 0, self.rows.n
        return cuts

    def between(self, cuts: IntArray) -> FloatArray:
        """Return (R, B) residual sums between the B + 1 row positions `cuts`."""
        return np.diff(self.residual[:, cuts], axis=1)

    def at_ranks(self, ranks: NDArray[Any]) -> FloatArray:
        """Return (R, B) values of R(k) at (B,) or (R, B) ranks in [0, total].

        Rows of equal confidence have no order, so a run of them is crossed in a straight line.
        """
        return self.crossing(ranks).of(self.residual)

    def crossing(self, ranks: NDArray[Any]) -> Crossing:
        """Return where each curve has counted as many rows as `ranks` in [0, total] say.

        Args:
            ranks: (B,) the same for all curves, or (R, B).
        """
        tied = self.rows.distinct < self.rows.n
        if self.weight is None and not tied:
            at = np.atleast_2d(ranks)
            return Crossing(at, at, np.zeros(at.shape))
        starts = self.rows.tie_starts
        weights = self.weights[:, starts] if tied else self.weights
        of_each = np.broadcast_to(ranks, (len(weights), ranks.shape[-1]))
        above = np.empty(of_each.shape, dtype=np.int64)
        for found, weight, wanted in zip(above, weights, of_each, strict=True):
            found[:] = np.searchsorted(weight, wanted)
        # The last rank may exceed the last sum by a rounding error.
        above = np.minimum(above, weights.shape[1] - 1)
        below = np.maximum(above - 1, 0)
        low = np.take_along_axis(weights, below, axis=1)
        width = np.take_along_axis(weights, above, axis=1) - low
        share = np.divide(of_each - low, width, out=np.zeros_like(low), where=width > 0)
        share = np.minimum(share, 1.0)
        return Crossing(starts[below], starts[above], share)


PairKind = Literal["confidence", "prob"]
"""What (N,) scores are: confidences in predicted labels, or probabilities of the positive class."""


def top_label(
    scores: Array,
    labels: Array,
    kind: PairKind | None = None,
    *,
    top: bool = False,
    sample_weight: Array | None = None,
) -> TopLabel:
    """Return a metric's arguments as sorted rows of what was said and what came true.

    Args:
        scores: (N, K) probabilities; or (N,) of the `kind` that is named.
        labels: (N,) true classes of (N, K) probabilities. Of ``"confidence"`` whether each
            prediction was right, of ``"prob"`` whether each row is of the positive class (bool, or
            0 and 1).
        kind: what (N,) scores are; None of (N, K).
        top: take the more probable of both classes for what ``"prob"`` predicts.
        sample_weight: (N,) how much each row counts; None where all count alike.

    Raises:
        PredictionsError: other shapes, values outside [0, 1], an empty set, (N,) scores of no named
            kind, or weights that are negative, not finite or all 0.
    """
    said, true = confidence_and_correct(scores, labels, kind, top=top)
    weight = checked_weight(sample_weight, len(said))
    return TopLabel.sort(said, true, weight)


def checked_weight(sample_weight: Array | None, rows: int) -> FloatArray | None:
    """Return (N,) weights of so many rows, checked; None where all count alike."""
    if sample_weight is None:
        return None
    return check_weights(sample_weight, rows, "sample_weight", "sample_weight")


def refuse_fractions(sample_weight: Array | None) -> None:
    """Refuse weights that don't count rows, for what counts rows."""
    if sample_weight is None:
        return
    values = to_numpy(as_array(sample_weight))
    odd = values != np.round(values)
    if odd.any():
        row = int(odd.argmax())
        raise PredictionsError(
            "sample_weight: this counts rows, so weights must be whole numbers, but row "
            f"{row} holds {values[row]}"
        )


def confidence_and_correct(
    scores: Array, labels: Array, kind: PairKind | None = None, *, top: bool = False
) -> tuple[FloatArray, NDArray[np.bool_ | np.int64]]:
    """Return the checked (N,) confidences and correctness of a metric's arguments, unsorted.

    See `top_label`.
    """
    values = as_array(scores)
    check_kind(len(values.shape), kind)
    if len(values.shape) == 2:
        from calibrant.predictions.predictions import Predictions
        from calibrant.predictions.scoring import score_top

        rows = score_top(Predictions.from_probs(values, labels))
        return rows.confidence, rows.correct
    said = to_numpy(values).astype(np.float64)
    if said.ndim != 1 or len(said) == 0:
        raise PredictionsError(
            "a metric needs (N, K) probabilities with (N,) labels, or (N,) confidences with (N,) "
            f"correctness, and N >= 1; got shape {said.shape}"
        )
    what, truth = ("confidence", "correct") if kind == "confidence" else ("prob", "labels")
    if not ((said >= 0) & (said <= 1 + 1e-6)).all():
        row = int(((said < 0) | ~(said <= 1 + 1e-6)).argmax())
        raise PredictionsError(f"{what}: row {row} holds {said[row]}, not in [0, 1]")
    hits = to_numpy(as_array(labels))
    if hits.dtype != np.bool_:
        hits = check_labels(hits, len(said), 2, what, key=truth)
    elif hits.shape != said.shape:
        raise PredictionsError(
            f"'{truth}' has shape {hits.shape}, but the scores ('{what}') {said.shape}"
        )
    if kind == "prob" and top:
        positive = said > 0.5
        return np.where(positive, said, 1 - said), hits.astype(np.bool_) == positive
    return said, hits


def check_kind(dimensions: int, kind: str | None) -> None:
    """Refuse (N,) scores that might be either of two things, and a kind where none is needed."""
    if kind is not None and kind not in get_args(PairKind):
        raise InputError(f"kind must be 'confidence' or 'prob', not {kind!r}")
    if dimensions == 2 and kind is not None:
        raise PredictionsError(
            f"kind='{kind}' is for scores of shape (N,); a column for each class needs no kind"
        )
    if dimensions == 1 and kind is None:
        raise PredictionsError(
            "scores of shape (N,) may be confidences, with whether each prediction was right "
            "(kind='confidence'), or probabilities of the positive class, with labels 0 and 1 "
            "(kind='prob'): say which; scores of all classes have shape (N, K)"
        )
