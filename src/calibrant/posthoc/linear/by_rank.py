"""A slope and an offset for each rank of a row, held so that no two classes change places."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrant.core import numpy_namespace as xnp
from calibrant.core.arguments import argument
from calibrant.core.arrays import Array, FloatArray, IntArray, pick, row_chunks, to_numpy
from calibrant.core.fit_report import FitReport
from calibrant.core.weights import mean, total
from calibrant.posthoc.applying import Learnt
from calibrant.posthoc.array_ops import (
    as_type,
    largest_few,
    softmax_of_own,
    still_masked,
    zero_where_masked,
)
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.facts import Facts
from calibrant.posthoc.fitting.minimizing import newton_within
from calibrant.posthoc.state import learnt
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import DENSE_CLASSES, RowSummary


@dataclass(eq=False)
class RankScaling(Calibrator):
    """softmax(a_r (z - o) + b_r), r the rank of a class in its row, a and b falling with the rank.

    Every row's classes keep their order: o is the row's R-th largest logit, so that larger slopes
    of higher ranks can only draw classes apart, and all a_r are at least 0. Ranks beyond the R-th
    share its slope, and b_R is 0. One temperature is the case of equal slopes and no offsets, in
    units of which the objective is measured,

        mean NLL + ridge / N * sum_r ((a_r T - 1)^2 + b_r^2),  T by likelihood.

    It is convex, and so are the limits: the optimum is the only one. The paper takes the logits
    with whatever origin they have, and then a larger slope of a higher rank moves a class *down*
    where its logit is negative; it has no ridge. Equal logits share the lower rank.

    Args:
        ranks: R; all classes if they, or those that a row leaves unmasked, are fewer.
        ridge: strength of the pull towards temperature scaling, in units of one row's likelihood.
        max_iterations: bound on Newton steps.

    Attributes:
        beta_: 1 / T. steps_: (R,) what a_r T grows by from rank r + 1 to r, of the R-th a_R T.
        lifts_: (R - 1,) what b_r grows by.

    References:
        Zhang, Batista, Kanhere: Instance-Wise Monotonic Calibration by Constrained Transformation.
        UAI 2025 (its MCCT).

    Examples:
        >>> import calibrant as cb
        >>> rows = cb.load_sample("validation")
        >>> ranked = cb.posthoc.RankScaling().fit_predictions(rows)
        >>> probs = ranked.predict_proba(rows.logits)
        >>> bool((probs.argmax(1) == rows.logits.argmax(1)).all()), ranked.n_parameters
        (True, 19)
    """

    method: ClassVar[str] = "mcct"
    facts: ClassVar[Facts | None] = Facts(
        "rank-wise scaling",
        "a linear map for each rank",
        "tens of passes over N x R numbers",
        "errors of single classes, whatever their rank; confidence that is off at some margins",
    )
    keeps_prediction: ClassVar[bool] = True
    fits_masked: ClassVar[bool] = True
    weighs: ClassVar[bool] = True

    ranks: int = argument(10, at_least=2)
    ridge: float = argument(1.0, above=0)
    max_iterations: int = argument(1000, at_least=1)

    beta_: float = learnt(above=0)
    steps_: FloatArray = learnt("r+1", at_least=0)
    lifts_: FloatArray = learnt("r", at_least=0)

    @property
    def n_parameters(self) -> int:
        """2 R - 1."""
        return len(self.steps_) + len(self.lifts_)

    def _fit(self, predictions: Predictions) -> FitReport:
        base, rows = predictions.temperature, predictions.summary
        if rows.n_classes > DENSE_CLASSES:
            rows = rows.tabulated(base.beta)
        ranks = min(self.ranks, int(rows.unmasked.max()))
        ranked = Ranked.of(predictions, rows, base.beta, ranks)
        place = np.zeros(2 * ranks - 1)
        place[ranks - 1] = 1.0
        last = self.comparison_ and self.comparison_.last_of(RankScaling)
        if last and len(last.steps_) == ranks:
            place = np.concatenate([last.steps_, last.lifts_])
        low, high = np.zeros(len(place)), np.full(len(place), np.inf)
        low[ranks - 1], high[ranks - 1] = (end / base.beta for end in rows.curve.span)
        pull = self.ridge / total(rows.n, rows.weights)

        def at(place: FloatArray) -> tuple[float, FloatArray, FloatArray]:
            slopes, offsets = _of_ranks(place, ranks)
            value, gradient, bend = ranked.nll(slopes, offsets)
            away = np.concatenate([slopes - 1, offsets])
            gradient = (gradient + 2 * pull * away) @ grown
            bend = grown.T @ (bend + 2 * pull * np.eye(2 * ranks)) @ grown
            return value + pull * float(away @ away), gradient, bend

        grown = _growth(ranks)
        found = newton_within(at, np.clip(place, low, high), low, high, self.max_iterations)
        self.beta_ = base.beta
        self.steps_, self.lifts_ = found.place[:ranks], found.place[ranks:]
        notes = base.report(rows.n).notes
        return FitReport(
            rows.n, "penalised nll", found.value, found.steps, found.converged, notes
        ).warned(self.method)

    def map_arrays(self) -> dict[str, NDArray[Any]]:
        """Return steps in the caller's units, and lifts."""
        return {"steps": self.beta_ * self.steps_, "lifts": self.lifts_}

    def transform(
        self, xp: Any, logits: Array, features: Array | None, learnt: Learnt, *, masks: bool = True
    ) -> Array:
        """Return softmax(a_r (z - o) + b_r)."""
        steps, lifts = (as_type(xp, learnt[name], logits) for name in ("steps", "lifts"))
        ranks = int(steps.shape[0])
        values = largest_few(xp, logits, ranks)
        origin = _last_known(xp, values, masks)
        above = zero_where_masked(xp, logits, logits - origin, masks)
        # Each term rises with the logit, so that no rounding lets one class overtake another.
        scores = above * steps[ranks - 1]
        zeros = xp.zeros_like(scores)
        for rank in range(ranks - 1):
            reached = logits > values[:, rank + 1 : rank + 2]
            scores = scores + xp.where(reached, above * steps[rank] + lifts[rank], zeros)
        return softmax_of_own(xp, still_masked(xp, logits, scores, masks))


def _last_known(xp: Any, values: Array, masks: bool) -> Array:
    """Return (n, 1) the last of (n, R) falling values, of those that aren't masked."""
    if not masks:
        return values[:, -1:]
    known = xp.where(values > -xp.inf, values, values[:, :1])
    return xp.min(known, axis=1, keepdims=True)


def _growth(ranks: int) -> FloatArray:
    """Return the (2 R, 2 R - 1) derivatives of slopes and offsets by what they grow by."""
    above = np.triu(np.ones((ranks, ranks)))
    found = np.zeros((2 * ranks, 2 * ranks - 1))
    found[:ranks, :ranks], found[ranks:, ranks:] = above, above[:, :-1]
    return found


def _of_ranks(vector: FloatArray, ranks: int) -> tuple[FloatArray, FloatArray]:
    """Return (R,) slopes and offsets of what they grow by from each rank to the next higher."""
    both = _growth(ranks) @ vector
    return both[:ranks], both[ranks:]


class Ranked(NamedTuple):
    """Rows as the likelihood of slopes and offsets sees them; o is the R-th largest logit.

    Attributes:
        rows: their summary, which knows what all classes together weigh at one slope.
        beta: 1 / T, in units of which gaps are measured.
        gaps: (N, R) of the R largest logits, in falling order, above o; 0 where masked.
        rank: (N, R) the rank of each, from 0, tied ones sharing the lowest; known: (N, R) 0 where
            masked, else 1.
        own_gap: (N,) that of the true label, below 0 beyond the R-th; own_rank: (N,) its rank.
    """

    rows: RowSummary
    beta: float
    gaps: FloatArray
    rank: IntArray
    known: FloatArray
    own_gap: FloatArray
    own_rank: IntArray

    @classmethod
    def of(cls, predictions: Predictions, rows: RowSummary, beta: float, ranks: int) -> Ranked:
        """Return the rows, whose logits are of any array kind."""
        values = np.empty((rows.n, ranks))
        own = np.empty(rows.n)
        for part in row_chunks(predictions.scores):
            chunk = to_numpy(predictions.scores[part]).astype(np.float64)
            values[part] = largest_few(xnp, chunk, ranks)
            own[part] = pick(chunk, rows.labels[part])
        origin = _last_known(xnp, values, masks=True)
        last = np.full(values.shape, ranks - 1)
        last[:, :-1] = np.where(values[:, 1:] < values[:, :-1], np.arange(ranks - 1), ranks - 1)
        known = (values > -np.inf).astype(np.float64)
        gaps = beta * (np.where(known > 0, values, origin) - origin)
        return cls(
            rows,
            beta,
            gaps,
            np.minimum.accumulate(last[:, ::-1], axis=1)[:, ::-1],
            known,
            beta * (own - origin[:, 0]),
            (values[:, 1:] >= own[:, None]).sum(axis=1),
        )

    def nll(self, slopes: FloatArray, offsets: FloatArray) -> tuple[float, FloatArray, FloatArray]:
        """Return the mean NLL of (R,) slopes and offsets, its (2 R,) gradient and its curvature."""
        rows, ranks = self.rows, len(slopes)
        scores = slopes[self.rank] * self.gaps + offsets[self.rank]
        most = scores[:, :1]
        shares = np.exp(scores - most) * self.known
        beyond = self._beyond(float(slopes[-1]), most[:, 0])
        whole = shares.sum(axis=1) + beyond[0]
        own = slopes[self.own_rank] * self.own_gap + offsets[self.own_rank]
        value = mean(np.log(whole) + most[:, 0] - own, rows.weights)
        shares /= whole[:, None]
        # Moments of a rank's gaps in each row: tied classes share one, and the last has the others.
        place = (self.rank + ranks * np.arange(rows.n)[:, None]).ravel()
        moments = np.empty((3, rows.n, ranks))
        for power, rest in enumerate(beyond):
            found = np.bincount(place, (shares * self.gaps**power).ravel(), rows.n * ranks)
            moments[power] = found.reshape(rows.n, ranks)
            moments[power, :, -1] += rest / whole
        counted = np.ones(rows.n) if rows.weights is None else rows.weights
        first = np.concatenate([moments[1], moments[0]], axis=1)
        gradient = counted @ first
        gradient[:ranks] -= np.bincount(self.own_rank, counted * self.own_gap, ranks)
        gradient[ranks:] -= np.bincount(self.own_rank, counted, ranks)
        squares, crossed, alone = (np.diag(counted @ moments[power]) for power in (2, 1, 0))
        bend = np.block([[squares, crossed], [crossed, alone]])
        bent = first * np.sqrt(counted)[:, None]
        every = total(rows.n, rows.weights)
        return value, gradient / every, (bend - bent.T @ bent) / every

    def _beyond(self, slope: float, most: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return what classes beyond the R-th weigh at this slope, and that times gaps and squares.

        All (N,), over exp(`most`): the confidence curve, of all classes, less the R largest.
        """
        if self.gaps.shape[1] >= self.rows.unmasked.max():
            none = np.zeros(self.rows.n)
            return none, none, none
        point, first = self.rows.curve.evaluate(self.beta * slope), self.gaps[:, :1]
        below = self.gaps - first
        every, top = np.exp(point.value), np.exp(slope * below) * self.known
        weight = np.maximum(every - top.sum(axis=1), 0.0)
        spread = self.beta * point.slope * every - (top * below).sum(axis=1)
        square = self.beta**2 * (point.curvature + point.slope**2) * every
        square = np.maximum(square - (top * below**2).sum(axis=1), 0.0)
        most_gap = first[:, 0]
        scale = np.exp(slope * most_gap - most)
        moved = np.minimum(spread + weight * most_gap, 0.0)
        squares = np.maximum(square + most_gap * (2 * spread + weight * most_gap), 0.0)
        return weight * scale, moved * scale, squares * scale
