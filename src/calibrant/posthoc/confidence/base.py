"""What maps of the confidence alone have in common.

They say how sure the prediction is, not which one to make. `predict_confidence` returns just that;
`predict_proba` rebuilds whole rows around it without ever changing the predicted label.

A map once learnt is a step function or a broken line. Maps of several classes are laid side by
side, so that one look-up serves all of them: the probability p of class k is read at p + 2 k.
"""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from calibrant.core import numpy_namespace as xnp
from calibrant.core.arguments import check_arguments
from calibrant.core.arrays import Array, FloatArray, IntArray, ascending, to_numpy
from calibrant.core.errors import InputError, NotApplicableError
from calibrant.core.fit_report import FitReport
from calibrant.posthoc.applying import Learnt, apply_map
from calibrant.posthoc.array_ops import (
    TopAndOthers,
    as_type,
    largest,
    lines,
    parted,
    replaced,
    sigmoid,
    steps,
    sums,
    unmasked,
    within,
)
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.needs import ONLY_COUNTS
from calibrant.posthoc.state import FittedForm, by_instance
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.scoring import score_top

if TYPE_CHECKING:
    from calibrant.evaluation.cells import CellSums
    from calibrant.posthoc.shards import ShardWork
    from calibrant.scale.shards import Shard

# Rows of many files are counted in cells even in log odds from -27.6 to 27.6: each moves odds by
# less than a thousandth.
FITTED_CELLS = (1, 1 << 16)
# Rows that stand for all of them where a map of the confidence is fitted.
STAND_INS = 1 << 18
# Room for the probabilities of a class, 0 to 1, and a gap to those of the next.
APART = 2.0
# Beyond all probabilities of a class and before those of the next.
BEFORE, AFTER = -0.5, 1.5


class Steps(NamedTuple):
    """Constant between edges; a piece holds its upper edge.

    Attributes:
        edges: (B - 1,) inner edges in ascending order; values: (B,) of the pieces.
    """

    edges: FloatArray
    values: FloatArray

    @staticmethod
    def read(xp: Any, x: Array, learnt: Learnt) -> Array:
        """Return the (n,) values at (n,) places."""
        return steps(xp, x, learnt["edges"], learnt["values"])

    @classmethod
    def side_by_side(cls, maps: Sequence[Self]) -> Self:
        """Return all maps as one."""
        edges = [APART * k + np.append(one.edges, AFTER) for k, one in enumerate(maps)]
        values = [one.values for one in maps]
        return cls(np.concatenate(edges)[:-1], np.concatenate(values))


class Lines(NamedTuple):
    """Straight between knots and constant beyond them.

    Attributes:
        knots: (P,) in ascending order; values: (P,) at the knots.
    """

    knots: FloatArray
    values: FloatArray

    @staticmethod
    def read(xp: Any, x: Array, learnt: Learnt) -> Array:
        """Return the (n,) values at (n,) places."""
        return lines(xp, x, learnt["knots"], learnt["values"])

    @classmethod
    def side_by_side(cls, maps: Sequence[Self]) -> Self:
        """Return all maps as one."""
        knots = [APART * k + np.r_[BEFORE, one.knots, AFTER] for k, one in enumerate(maps)]
        values = [np.r_[one.values[0], one.values, one.values[-1]] for one in maps]
        return cls(np.concatenate(knots), np.concatenate(values))


# The other classes stay below the predicted one by this share of it, well above float32 rounding.
SEPARATION = 1e-6


# Among the numbers of a map, says that it is one of the second class's probability.
OF_CLASS_1 = "of_class_1"


@dataclass(eq=False)
class ConfidenceMap(Calibrator):
    """Family: c' = map(c), with c the largest probability of softmax(z).

    Fitted to binary predictions it is p' = map(p), with p the probability of the positive class.

    Pooling rows can end in a bin with no error, or with errors only. A probability of exactly 1 or
    0 would make the likelihood of a later exception infinite. So all values are mixed with 1 / K at
    weight 1 / (N + 1) (`mixed_with_uniform`), after those that rest on the few rows of a bin have
    been drawn towards the others (see `shrinkage`). The mean confidence stays the accuracy that
    way, up to one row in N + 1.
    """

    keeps_prediction: ClassVar[bool] = by_instance(True, lambda fitted: fitted.form_ != "binary")
    fits_masked: ClassVar[bool] = True
    fits_top_label: ClassVar[bool] = True
    fits_scores: ClassVar[bool] = True

    @abstractmethod
    def shape(self) -> Steps | Lines:
        """Return the map as it was learnt."""

    def map_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the numbers of the map's shape."""
        return self.shape()._asdict() | ({OF_CLASS_1: np.array(1.0)} if self.of_event else {})

    @property
    def of_event(self) -> bool:
        """Whether it maps the probability of one event, class 1 of two."""
        return self.form_ != "rows"

    def mapped(self, xp: Any, confidence: Array, learnt: Learnt) -> Array:
        """Return the (n,) recalibrated ones of (n,) float64 confidences; see `transform`."""
        return (Steps if "edges" in learnt else Lines).read(xp, confidence, learnt)

    def map_confidence(self, confidence: FloatArray) -> FloatArray:
        """Return the (N,) recalibrated confidences."""
        return self.mapped(xnp, confidence, self.map_arrays())

    @abstractmethod
    def _fit_map(
        self, confidence: FloatArray, correct: FloatArray, weights: FloatArray | None = None
    ) -> FitReport:
        """Learn the map from confidences in ascending order and their 0/1 correctness.

        Methods that heed weights are given those of the rows, in the same order.
        """

    def fit_confidences(
        self, confidence: FloatArray, correct: FloatArray, n_classes: int, form: FittedForm
    ) -> Self:
        """Fit the top-label form on confidences alone, such as sums over shards stand for.

        Args:
            confidence: (N,) ascending; correct: (N,) 1.0 for right rows, else 0.0.
            n_classes: number of classes K; form: what the confidences are of, as `form_` has it.

        Raises:
            InputError: an argument of the constructor is out of range.
        """
        check_arguments(self)
        self.n_classes_, self.form_ = n_classes, form
        self.fit_report_ = self._fit_map(confidence, correct)
        return self

    def _fit_sums(self, work: ShardWork) -> FitReport | None:
        shards = work.shards
        if shards.binary or not self.keeps_prediction:
            return None
        cells = work.gathered(count_cells, operator.add)
        if cells.n == 0:
            raise InputError(f"{shards.source}: 'weight' must be above 0 for at least one row")
        if not (cells.counts or self.weighs):
            raise NotApplicableError(ONLY_COUNTS.format(self.method))
        form: FittedForm = "toplabel" if shards.kind == "toplabel" else "rows"
        report = self.fit_confidences(*stand_ins(cells), shards.n_classes or 2, form).fit_report_
        note = f"fitted to counts of {cells.n} rows in {FITTED_CELLS[1]} cells of log odds"
        return replace(report, n=cells.n).noting(note)

    def _fit(self, predictions: Predictions) -> FitReport:
        if self.of_event:
            confidence, correct = _of_class_1(predictions.scores), predictions.labels == 1
        else:
            label, confidence = _raw_confidence(predictions.scores)
            correct = label == predictions.labels
        order = ascending(confidence)
        correct = correct.astype(np.float64)
        weights = None if predictions.weights is None else predictions.weights[order]
        return self._fit_map(confidence[order], correct[order], weights)

    def transform(
        self, xp: Any, logits: Array, features: Array | None, learnt: Learnt, *, masks: bool = True
    ) -> Array:
        """Return rows rebuilt around c', or [1 - p', p']."""
        if OF_CLASS_1 in learnt:
            before = class_1(xp, logits, None, {}, masks=masks)
            after = xp.clip(self.mapped(xp, before, learnt), 0.0, 1.0)
            return as_type(xp, xp.stack([1 - after, after], axis=1), logits)
        row = parted(xp, logits)
        sure = self.mapped(xp, row.confidence, learnt)
        return rebuilt(xp, logits, row, sure, masks)

    def _confidences(self, logits: Array, features: Array | None) -> tuple[IntArray, FloatArray]:
        """Return the (N,) predicted labels and the (N,) recalibrated confidences as they are.

        Unlike those of `predict_proba`, they may lie below 1 / K.
        """
        if self.of_event:
            return super()._confidences(logits, features)
        label, confidence = self.raw_confidence(logits)
        return label, self.map_confidence(confidence)

    def raw_confidence(self, logits: Array) -> tuple[IntArray, FloatArray]:
        """Return the (N,) predicted labels and the (N,) confidences before the map.

        Of a map of one event, the probability of that event, whatever is predicted.
        """
        if self.of_event:
            probability = _of_class_1(self._checked(logits))
            return (probability > 0.5).astype(np.int64), probability
        return _raw_confidence(self._checked(logits))


def _raw_confidence(logits: Array) -> tuple[IntArray, FloatArray]:
    """Return labels and confidences as `transform` sees them, to the last digit.

    Maps that jump or bend at calibration rows must find these where the fit saw them.
    """

    def of(xp: Any, rows: Array, _: None, learnt: Learnt, *, masks: bool) -> Array:
        row = parted(xp, rows)
        return xp.stack([xp.astype(row.index[:, 0], xp.float64), row.confidence], axis=1)

    found = to_numpy(apply_map(of, logits, None, {}))
    return found[:, 0].astype(np.int64), found[:, 1]


def _of_class_1(logits: Array) -> FloatArray:
    """Return the (N,) probabilities of class 1 of two as `transform` sees them."""
    return to_numpy(apply_map(class_1, logits, None, {}))


def class_1(xp: Any, logits: Array, features: None, learnt: Learnt, *, masks: bool) -> Array:
    """Return the (n,) float64 probabilities of class 1 of two; see `Calibrator.transform`."""
    wide = xp.astype(logits, xp.float64)
    return sigmoid(xp, wide[:, 1] - wide[:, 0])


def rebuilt(xp: Any, logits: Array, row: TopAndOthers, confidence: Array, masks: bool) -> Array:
    """Return (n, K) rows that give the top class its new confidence and keep it the largest entry.

    The other classes share the rest in their old proportions. Where one of them would overtake,
    they are mixed with their common mean just as far as needed. A class of probability 0 gets its
    share only where the confidence is so low that the label can't be on top otherwise, and a masked
    class never. Below one over the number of unmasked classes the label can't be on top at all, so
    such a confidence is raised to just above.

    Args:
        xp: array namespace.
        logits: (n, K) logits.
        row: `parted` of them, or of what has the same largest entries.
        confidence: (n,) the new probability of the top class.
        masks: whether a logit may be minus infinity.
    """
    positive = xp.astype(row.weights > 0, logits.dtype)
    some = sums(xp, positive)[:, None]
    allowed = unmasked(xp, logits) if masks else xp.ones_like(some)
    free = sums(xp, allowed)[:, None] - 1 if masks else allowed * (int(logits.shape[1]) - 1)
    target = xp.maximum(as_type(xp, confidence, logits)[:, None], (1 + 2 * SEPARATION) / (1 + free))
    target = within(xp, target, 0.0, 1.0)
    rest = 1 - target
    crowded = target * (some + 1) < 1 + 2 * SEPARATION
    sharing = xp.where(crowded, free, some)
    one = xp.ones_like(sharing)
    even = xp.where(sharing > 0, rest, 0 * one) / xp.where(sharing > 0, sharing, one)
    mass = as_type(xp, row.rest, logits)[:, None]
    known = mass > 0
    # Shares first: the rest over a mass that is hardly above 0 could overflow.
    share = row.weights / xp.where(known, mass, one)
    highest, cap = rest * largest(xp, share), target * (1 - SEPARATION)
    excess, room = highest - cap, highest - even
    part = within(xp, excess / xp.where(excess > 0, room, one), 0.0, 1.0)
    # Without anything to share by, all share alike.
    part = xp.where(known, part, one)
    evened = xp.maximum(positive, xp.astype(crowded, logits.dtype) * allowed) * (part * even)
    # The minimum takes off what float32 rounds up.
    return replaced(xp, xp.minimum(share * (rest * (1 - part)) + evened, cap), row.index, target)


def mixed_with_uniform(value: FloatArray, rows: float, classes: int) -> FloatArray:
    """Return values mixed with 1 / K at weight 1 / (rows + 1).

    Args:
        value: values of a map.
        rows: number of rows that they rest on.
        classes: number of classes K.
    """
    return value + (1 / classes - value) / (rows + 1)


def count_cells(shard: Shard) -> CellSums:
    """Return how many rows of a shard, right and wrong, lie in each cell of log odds."""
    from calibrant.evaluation.cells import CellSums

    found = CellSums.none(FITTED_CELLS, weighted=shard.weighted)
    for batch in shard.batches():
        rows = batch.predictions
        if rows.weights is not None:
            rows = rows.take(np.flatnonzero(rows.weights))
        if rows.n:
            top = score_top(rows)
            found += CellSums.of(top.confidence, top.correct, FITTED_CELLS, rows.weights)
    return found


def stand_ins(sums: CellSums, most: int = STAND_INS) -> tuple[FloatArray, FloatArray]:
    """Return rows that stand for all: as many, or `most` at equal steps through their ranks.

    With weights as many as all rows weigh, which then count alike.

    In its cell each row has a place of its own, and right rows are spread among wrong ones, so that
    running sums over the stand-ins are off from those over the rows by less than one of them.

    Returns:
        (M,) confidences, ascending, and (M,) 1.0 for right rows, else 0.0.
    """
    from calibrant.evaluation.cells import edges_of

    cells = sums.cells()
    count = cells.count.sum(axis=0)
    ends, hits = np.cumsum(count), np.cumsum(cells.count[1])
    n = float(ends[-1])
    m = min(round(n), most)
    ranks = np.arange(m + 1) * (n / m)
    reached = np.interp(ranks, np.append(0.0, ends), np.append(0.0, hits)) * (m / n)
    correct = np.diff(np.floor(reached + 1e-9))
    middle = (ranks[1:] + ranks[:-1]) / 2
    cell = np.minimum(np.searchsorted(ends, middle, side="right"), len(ends) - 1)
    within = (middle - (ends - count)[cell]) / count[cell] - 0.5
    position = cells.position[cell]
    edges = edges_of(sums.grid)
    above = edges[np.minimum(np.searchsorted(edges, position, side="left"), len(edges) - 1)]
    below = edges[np.maximum(np.searchsorted(edges, position, side="left") - 1, 0)]
    return position + 2 * within * np.minimum(position - below, above - position), correct
