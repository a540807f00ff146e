"""Logistic regression that starts from an offset and leaves it only as far as evidence asks.

Model: P(a = 1) = sigmoid(offset + X w), with w ~ N(0, (l_1 S_1 + l_2 S_2)^-1) a priori. The two
penalties split the coefficients into orthogonal parts: how rough the correction is, and the rest.
How strong each is, is read off the rows by the marginal likelihood in Laplace's approximation,
and where they leave that open, the answers are averaged.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from calibrant.core.arrays import BoolArray, FloatArray, IntArray, sigmoid
from calibrant.core.weights import quantiles, times, total

DEGREE = 3
MAX_STEPS, TOLERANCE = 50, 1e-9
# Of a mean of fits: where a step of the best one should gain no more nats of all rows together, it
# is taken without a look at the rows; or no more than the second, where the mean is only to be
# compared with other maps. Of fewer rows than these it must be smaller, by the square of their
# number: the curvature differs more along a step there, and a look costs little. Of fits that weigh
# less it may be larger, as they weigh less. Beside means of fits that were each brought to their
# optimum, confidences differ by 3e-5 in mean, and by 4e-4 at most in comparisons (four networks
# with 200 and 3 333 rows).
NEAR_ENOUGH, NEAR_ENOUGH_TO_COMPARE, ROWS_FOR_IT = 0.03, 1.0, 3_000
# What weighs so much beside the best fit to some rows is tried on others of a comparison.
LIKELY = 0.05
# Penalties in units of one row's likelihood.
PENALTY_GRID = 10.0 ** np.arange(-2.0, 6.0)
# A fit whose evidence is so many nats below the best weighs nothing.
EVIDENCE_REACH = 6.0
MOST_LOOKS = 200


def spline_knots(values: FloatArray, inner: int, weights: FloatArray | None = None) -> FloatArray:
    """Return the knots of a cubic spline over `values`: fourfold ends, `inner` quantiles between.

    Quantiles that coincide count once; if all values are equal, the spline spans one unit.
    `weights`, (N,), say how much each value counts.
    """
    low, high = float(values.min()), float(values.max())
    if not high > low:
        high = low + 1.0
    shares = np.arange(1, inner + 1) / (inner + 1)
    found = np.unique(quantiles(values, shares, weights))
    # A knot next to an end would make a basis function that no row supports.
    room = 1e-6 * (high - low)
    middle = found[(found > low + room) & (found < high - room)]
    return np.concatenate([np.full(DEGREE + 1, low), middle, np.full(DEGREE + 1, high)])


def spline_basis(values: FloatArray, knots: FloatArray) -> FloatArray:
    """Return the (N, len(knots) - 4) cubic B-splines, constant beyond the outer knots.

    Cox's and de Boor's recursion, for the four that aren't 0 in each row's span.
    """
    x = np.clip(values, knots[0], knots[-1])
    last = len(knots) - DEGREE - 2  # the last span that is not empty, closed on the right
    span = np.clip(np.searchsorted(knots, x, side="right") - 1, DEGREE, last)
    below, above = (
        [np.abs(x - knots[span + side * j + (side > 0)]) for j in range(DEGREE)] for side in (-1, 1)
    )
    own = [np.ones_like(x)]
    for degree in range(1, DEGREE + 1):
        shares = [own[j] / (above[j] + below[degree - 1 - j]) for j in range(degree)]
        zero = np.zeros_like(x)
        own = [
            (above[j] * shares[j] if j < degree else zero)
            + (below[degree - j] * shares[j - 1] if j > 0 else zero)
            for j in range(degree + 1)
        ]
    basis = np.zeros((len(x), len(knots) - DEGREE - 1))
    for j, column in enumerate(own):
        basis[np.arange(len(x)), span - DEGREE + j] = column
    return basis


class SplinePieces(NamedTuple):
    """A spline with its coefficients as cubics, which is how a map reads it.

    Attributes:
        breaks: (S - 1,) where one piece ends and the next begins.
        starts: (S,) left ends of the pieces; last: () the right end of the last.
        cubics: (S, 4) coefficients of 1, u, u^2, u^3 in u = x - start.
    """

    breaks: FloatArray
    starts: FloatArray
    last: FloatArray
    cubics: FloatArray


def spline_pieces(knots: FloatArray, weights: FloatArray) -> SplinePieces:
    """Return `spline_basis(x, knots) @ weights` as cubics, in arrays that can't be written to."""
    return _pieces_of(knots.tobytes(), weights.tobytes())


@lru_cache(maxsize=64)
def _pieces_of(knots_bytes: bytes, weights_bytes: bytes) -> SplinePieces:
    # A map asks for its pieces at every call, and may be given a row a call.
    knots, weights = (np.frombuffer(held) for held in (knots_bytes, weights_bytes))
    ends = np.unique(knots)
    if len(ends) == 1:  # all values were the same
        level = spline_basis(ends, knots) @ weights
        cubics = np.concatenate([level, np.zeros(3)])[None, :]
        pieces = SplinePieces(np.empty(0), ends, np.array(ends[-1]), cubics)
    else:
        width = np.diff(ends)
        # Four points strictly within each piece tell its cubic.
        inside = np.array([0.125, 0.375, 0.625, 0.875])
        at = ends[:-1, None] + width[:, None] * inside
        values: FloatArray = (spline_basis(at.ravel(), knots) @ weights).reshape(at.shape)
        solved: Any = np.linalg.solve(np.vander(inside, increasing=True), values.T)
        cubics: FloatArray = solved.T / width[:, None] ** np.arange(4)
        pieces = SplinePieces(ends[1:-1], ends[:-1], np.array(ends[-1]), cubics)
    for array in pieces:
        array.flags.writeable = False
    return pieces


class SplineErrors(NamedTuple):
    """What a covariance of slope and coefficients says, as polynomials in u; see `SplinePieces`.

    Attributes:
        crossed: (S, 7) covariance of slope and spline; of degree 3.
        spread: (S, 7) variance of the spline; of degree 6.
    """

    crossed: FloatArray
    spread: FloatArray


def spline_errors(knots: FloatArray, covariance: FloatArray) -> SplineErrors:
    """Return the second moments of the spline for a (B + 1, B + 1) covariance, slope first."""
    count = len(covariance) - 1
    basis = np.stack([spline_pieces(knots, one).cubics for one in np.eye(count)])
    crossed = np.einsum("j,jsa->sa", covariance[0, 1:], basis)
    squares = np.einsum("jsa,jk,ksb->sab", basis, covariance[1:, 1:], basis)
    spread = np.zeros((len(crossed), 2 * DEGREE + 1))
    for a in range(DEGREE + 1):
        spread[:, a : a + DEGREE + 1] += squares[:, a]
    return SplineErrors(np.pad(crossed, ((0, 0), (0, DEGREE))), spread)


class Penalty(NamedTuple):
    """l_1 S_1 + l_2 S_2 with orthogonal S_1, S_2 that together have full rank."""

    rough: FloatArray
    plain: FloatArray

    @classmethod
    def second_differences(cls, size: int) -> Penalty:
        """Return the penalty of one slope, unsmoothed, followed by `size` spline coefficients.

        S_1 is that of second differences of the coefficients; S_2 is 1 on what they don't see, a
        straight line in the coefficients, and on the slope.
        """
        differences = np.diff(np.eye(size), 2, axis=0)
        rough = np.zeros((size + 1, size + 1))
        rough[1:, 1:] = differences.T @ differences
        line = np.linalg.qr(np.stack([np.ones(size), np.arange(size)], axis=1))[0]
        plain = np.zeros_like(rough)
        plain[0, 0] = 1.0
        plain[1:, 1:] = line @ line.T
        return cls(rough, plain)

    def at(self, strengths: tuple[float, float]) -> FloatArray:
        """Return the prior precision at (l_1, l_2)."""
        return strengths[0] * self.rough + strengths[1] * self.plain


class _Place(NamedTuple):
    """Coefficients, and what the rows say there: the log loss with its two derivatives."""

    weights: FloatArray
    loss: float
    gradient: FloatArray
    hessian: FloatArray


class LogisticFit(NamedTuple):
    """Optimum of the penalised log loss, its Laplace posterior and evidence.

    Of a mean of fits `strengths` are those of the highest evidence, and `likely` all that weigh
    something beside them.
    """

    weights: FloatArray
    covariance: FloatArray
    loss: float
    log_evidence: float
    steps: int
    converged: bool
    strengths: tuple[float, float]
    likely: tuple[tuple[float, float], ...] = ()


class _Rows(NamedTuple):
    """What `fit_logistic` is given of the rows."""

    columns: FloatArray
    offset: FloatArray
    correct: FloatArray
    weights: FloatArray | None = None

    def losses(self, eta: FloatArray) -> float:
        """Return the summed log loss at (N,) log odds."""
        sign = 1.0 - 2.0 * self.correct
        return float(times(np.logaddexp(0.0, sign * eta), self.weights).sum())

    def at(self, weights: FloatArray) -> _Place:
        """Return the rows' log loss, gradient and curvature at these coefficients."""
        eta: FloatArray = self.offset + self.columns @ weights
        probability = sigmoid(eta)
        gradient = self.columns.T @ times(probability - self.correct, self.weights)
        bend = times(probability * (1 - probability), self.weights)
        # The product of a matrix with itself takes half the time of one of two matrices.
        bent = self.columns * np.sqrt(bend)[:, None]
        return _Place(weights, self.losses(eta), gradient, bent.T @ bent)

    def lower(self, start: _Place, direction: FloatArray, precision: FloatArray) -> _Place | None:
        """Return where a step in a direction lowers the penalised loss enough, halved until then.

        None where no step does, for rounding.
        """
        pull = precision @ start.weights
        value = start.loss + 0.5 * float(start.weights @ pull)
        foreseen = -float((start.gradient + pull) @ direction)
        size = 1.0
        while size > 1e-8:
            trial: FloatArray = start.weights + size * direction
            loss = self.losses(self.offset + self.columns @ trial)
            if loss + 0.5 * float(trial @ precision @ trial) <= value - 1e-4 * size * foreseen:
                return self.at(trial)
            size /= 2
        return None


# Parameters: rows and weights of a regression, its penalty and how strong it is.
def fit_logistic(
    columns: FloatArray,
    offset: FloatArray,
    correct: FloatArray,
    penalty: Penalty,
    strengths: tuple[float, float],
    weights_of_rows: FloatArray | None = None,
) -> LogisticFit:
    """Minimise sum_i log loss + w' (l_1 S_1 + l_2 S_2) w / 2 by Newton with step halving.

    Args:
        columns: (N, d) X.
        offset: (N,) log odds at w = 0.
        correct: (N,) zeros and ones.
        penalty: S_1 and S_2.
        strengths: l_1 and l_2, positive.
        weights_of_rows: (N,) how much each row counts; None where all count alike.
    """
    rows, precision = _Rows(columns, offset, correct, weights_of_rows), penalty.at(strengths)
    place, steps, converged = rows.at(np.zeros(int(columns.shape[1]))), 0, False
    while True:
        weights, pull = place.weights, precision @ place.weights
        value = place.loss + 0.5 * float(weights @ pull)
        gradient, hessian = place.gradient + pull, place.hessian + precision
        if steps == MAX_STEPS:
            break
        direction: FloatArray = np.linalg.solve(hessian, -gradient).astype(np.float64)
        decrement = float(-gradient @ direction)
        if decrement < TOLERANCE:
            converged = True
            weights, value = weights + direction, value - decrement / 2
            break
        lower = rows.lower(place, direction, precision)
        if lower is None:
            converged = decrement < 1e-6
            break
        place, steps = lower, steps + 1
    log_evidence = -value + 0.5 * (
        float(np.linalg.slogdet(precision)[1]) - float(np.linalg.slogdet(hessian)[1])
    )
    covariance = np.linalg.inv(hessian).astype(np.float64)
    loss = value - 0.5 * float(weights @ precision @ weights)
    return LogisticFit(weights, covariance, loss, log_evidence, steps, converged, strengths)


class Near(NamedTuple):
    """How a fit that is only to be compared with others begins, where one to other rows ended.

    Attributes:
        weights: (d,) coefficients, or None for 0.
        strengths: those to be averaged, or all that weigh something.
    """

    weights: FloatArray | None = None
    strengths: tuple[tuple[float, float], ...] = ()


# Parameters: rows and weights of a regression, its penalty, how strong it is, where to begin.
def fit_penalised(
    columns: FloatArray,
    offset: FloatArray,
    correct: FloatArray,
    penalty: Penalty,
    strength: float,
    weights_of_rows: FloatArray | None = None,
    near: Near | None = None,
) -> LogisticFit:
    """Return the fit at one strength of both penalties, or of strength 0 `fit_by_evidence`."""
    rows = columns, offset, correct, penalty
    if strength > 0:
        return fit_logistic(*rows, (strength, strength), weights_of_rows)
    return fit_by_evidence(*rows, weights_of_rows, near)


# Parameters: rows and weights of a regression, its penalty, where to begin.
def fit_by_evidence(
    columns: FloatArray,
    offset: FloatArray,
    correct: FloatArray,
    penalty: Penalty,
    weights_of_rows: FloatArray | None = None,
    near: Near | None = None,
) -> LogisticFit:
    """Return the mean of the fits of all penalties on the grid, weighted by their evidence.

    A single best penalty is noise where rows are few, and errors that take it for granted are too
    small. Strengths are those of the fit with the highest evidence; the covariance is that of the
    mixture.

    The grid is explored from its middle to the neighbours of all fits that weigh something. What
    the rows say at one place, loss, gradient and curvature, tells all fits near it by one Newton
    step each. So the rows are looked at where a fit ends that isn't near enough yet, the one of the
    highest evidence first.
    """
    rows, steps = _Rows(columns, offset, correct, weights_of_rows), 0
    share = min(total(len(offset), weights_of_rows) / ROWS_FOR_IT, 1.0)
    near_enough = share**2 * (NEAR_ENOUGH if near is None else NEAR_ENOUGH_TO_COMPARE)
    begin = None if near is None else near.weights
    place = rows.at(np.zeros(int(columns.shape[1])) if begin is None else begin)
    fits = _Fits(penalty, place, () if near is None else near.strengths, near_enough)
    while (worst := fits.farthest()) is not None and steps < MOST_LOOKS:
        start = fits.starts[int(fits.start_of[worst])]
        lower = rows.lower(start, fits.weights[worst] - start.weights, fits.precisions[worst])
        if lower is None:
            break
        fits.look_from(lower)
        steps += 1
    weights, covariance = fits.mean()
    loss = rows.losses(offset + columns @ weights)
    best = int(np.argmax(fits.log_evidence))
    return LogisticFit(
        weights,
        covariance,
        loss,
        float(fits.log_evidence[best]),
        steps,
        fits.farthest() is None,
        fits.strengths[best],
        fits.likely(),
    )


class _Fits:
    """Fits of the penalties on the grid, each a Newton step from one of the places looked at.

    Attributes:
        strengths: of G fits; precisions: (G, d, d).
        weights: (G, d); gain: (G,) twice what the step to them should gain, infinite of those that
            aren't explored.
        log_evidence: (G,).
        starts: places; start_of: (G,) which of them the step is from.
    """

    def __init__(
        self,
        penalty: Penalty,
        place: _Place,
        only: tuple[tuple[float, float], ...],
        near_enough: float,
    ) -> None:
        grid = PENALTY_GRID.tolist()
        self.strengths = only or tuple((rough, plain) for rough in grid for plain in grid)
        self.precisions = np.stack([penalty.at(strengths) for strengths in self.strengths])
        self._prior = np.linalg.slogdet(self.precisions)[1]
        self._near_enough, count = near_enough, len(self.strengths)
        self.weights, self.gain = np.zeros((count, len(place.weights))), np.full(count, np.inf)
        self.log_evidence: FloatArray = np.full(count, -np.inf)
        self.starts: list[_Place] = [place]
        self.start_of: IntArray = np.zeros(count, dtype=np.int64)
        middle = (len(grid) + 1) * (len(grid) // 2)
        self._step_from(0, np.arange(count) if only else np.array([middle]))

    def look_from(self, place: _Place) -> None:
        """Take the steps that aren't short enough from a place, where they are shorter from it."""
        self.starts.append(place)
        hope = self._behind() - np.minimum(self.gain, EVIDENCE_REACH)
        wanted = np.isfinite(self.gain) & ~self._near() & (hope < EVIDENCE_REACH)
        self._step_from(len(self.starts) - 1, np.flatnonzero(wanted))

    def _step_from(self, start: int, some: IntArray) -> None:
        place, precisions = self.starts[start], self.precisions[some]
        pull = precisions @ place.weights
        gradient, hessian = place.gradient + pull, place.hessian + precisions
        step = -np.linalg.solve(hessian, gradient[..., None])[..., 0]
        gain = -(gradient * step).sum(axis=1)
        loss = place.loss + pull @ place.weights / 2 - gain / 2
        evidence = (self._prior[some] - np.linalg.slogdet(hessian)[1]) / 2 - loss
        shorter = gain < self.gain[some]
        found = some[shorter]
        self.weights[found], self.gain[found] = place.weights + step[shorter], gain[shorter]
        self.log_evidence[found], self.start_of[found] = evidence[shorter], start

    def farthest(self) -> int | None:
        """Return the one of the highest evidence that isn't near enough, and matters; or None."""
        while True:
            behind = self._behind()
            matters = behind - np.minimum(self.gain, EVIDENCE_REACH) / 2 < EVIDENCE_REACH
            far = np.flatnonzero(matters & ~self._near())
            if len(far) > 0:
                return int(far[np.argmin(behind[far])])
            if np.isfinite(self.gain).all() or not self._explore(behind < EVIDENCE_REACH):
                return None

    def _explore(self, within: BoolArray) -> bool:
        """Take the steps to the neighbours of those `within` reach, and return if there are any."""
        side = len(PENALTY_GRID)
        parent = np.full((side + 2, side + 2), -1)
        parent[1:-1, 1:-1] = np.where(within, self.start_of, -1).reshape(side, side)
        near = np.stack([parent[:-2, 1:-1], parent[2:, 1:-1], parent[1:-1, :-2], parent[1:-1, 2:]])
        starts = np.where(np.isfinite(self.gain), -1, near.max(axis=0).ravel())
        for start in np.unique(starts[starts >= 0]).tolist():
            self._step_from(start, np.flatnonzero(starts == start))
        return bool((starts >= 0).any())

    def mean(self) -> tuple[FloatArray, FloatArray]:
        """Return the mean of the fits by their evidence, and the covariance of their mixture."""
        some = np.flatnonzero(self._near())
        shares = np.exp(-self._behind()[some])
        shares /= shares.sum()
        starts: list[int] = self.start_of[some].tolist()
        hessians = np.stack([self.starts[start].hessian for start in starts])
        own = np.linalg.inv(hessians + self.precisions[some])
        weights: FloatArray = shares @ self.weights[some]
        away = (self.weights[some] - weights) * np.sqrt(shares)[:, None]
        return weights, np.tensordot(shares, own, 1) + away.T @ away

    def likely(self) -> tuple[tuple[float, float], ...]:
        """Return the strengths that weigh something beside the best."""
        some = np.flatnonzero(self._near() & (self._behind() < -np.log(LIKELY)))
        return tuple(self.strengths[each] for each in some.tolist())

    def _behind(self) -> FloatArray:
        return self.log_evidence.max() - self.log_evidence

    def _near(self) -> BoolArray:
        # Where a fit weighs less, so does how far it is off.
        return self.gain <= self._near_enough * np.exp(np.minimum(self._behind(), 50.0))
