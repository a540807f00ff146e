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

from calibrant.core.arrays import FloatArray, sigmoid
from calibrant.core.weights import quantiles, times, total

DEGREE = 3
MAX_STEPS, TOLERANCE = 50, 1e-9
# Of a mean of fits: where the decrement is as small, the step is taken without a look at the rows.
# It leaves some 1e-3 nats of all rows together, and many of the fits differ by less. Of few rows,
# by which the curvature differs more along a step, it must be smaller: so much for each of them.
NEAR_ENOUGH, OF_EACH_ROW = 3e-2, 1e-5
# Penalties in units of one row's likelihood.
PENALTY_GRID = 10.0 ** np.arange(-2.0, 6.0)
# A fit whose evidence is so many nats below the best weighs nothing.
EVIDENCE_REACH = 6.0


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

    Cox's and de Boor's recursion, for all rows at once.
    """
    x = np.clip(values, knots[0], knots[-1])[:, None]
    last = len(knots) - DEGREE - 2  # the last span that is not empty, closed on the right
    span = np.clip(np.searchsorted(knots, x[:, 0], side="right") - 1, DEGREE, last)
    basis = (span[:, None] == np.arange(len(knots) - 1)).astype(np.float64)
    for degree in range(1, DEGREE + 1):
        count = len(knots) - 1 - degree
        width = knots[degree:-1] - knots[:count]
        rising = (x - knots[:count]) / np.where(width > 0, width, 1.0) * (width > 0)
        width = knots[degree + 1 :] - knots[1 : count + 1]
        falling = (knots[degree + 1 :] - x) / np.where(width > 0, width, 1.0) * (width > 0)
        basis = rising * basis[:, :-1] + falling * basis[:, 1:]
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

    `place` is where the optimum lies and what the rows say there, for a fit that begins at it.
    """

    weights: FloatArray
    covariance: FloatArray
    loss: float
    log_evidence: float
    steps: int
    converged: bool
    strengths: tuple[float, float]
    place: _Place


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

    def at(self, weights: FloatArray, eta: FloatArray, loss: float) -> _Place:
        """Return the rows' gradient and curvature in the coefficients, given log odds and loss."""
        probability = sigmoid(eta)
        gradient = self.columns.T @ times(probability - self.correct, self.weights)
        bend = times(probability * (1 - probability), self.weights)
        # The product of a matrix with itself takes half the time of one of two matrices.
        bent = self.columns * np.sqrt(bend)[:, None]
        return _Place(weights, loss, gradient, bent.T @ bent)


# Parameters: rows and weights of a regression, its penalty, where to begin and when to end.
def fit_logistic(
    columns: FloatArray,
    offset: FloatArray,
    correct: FloatArray,
    penalty: Penalty,
    strengths: tuple[float, float],
    start: _Place | None = None,
    weights_of_rows: FloatArray | None = None,
    tolerance: float = TOLERANCE,
) -> LogisticFit:
    """Minimise sum_i log loss + w' (l_1 S_1 + l_2 S_2) w / 2 by Newton with step halving.

    Args:
        columns: (N, d) X.
        offset: (N,) log odds at w = 0.
        correct: (N,) zeros and ones.
        penalty: S_1 and S_2.
        strengths: l_1 and l_2, positive.
        start: where a fit of these rows with other strengths ended; zero, if not given.
        weights_of_rows: (N,) how much each row counts; None where all count alike.
        tolerance: twice how far above its minimum, in nats, the objective is before the last step.
    """
    rows, precision = _Rows(columns, offset, correct, weights_of_rows), penalty.at(strengths)
    if start is None:
        nothing: FloatArray = np.zeros(int(columns.shape[1]))
        start = rows.at(nothing, offset, rows.losses(offset))
    place, steps, converged = start, 0, False
    while True:
        weights = place.weights
        pull = precision @ place.weights
        value = place.loss + 0.5 * float(place.weights @ pull)
        gradient, hessian = place.gradient + pull, place.hessian + precision
        if steps == MAX_STEPS:
            break
        direction: FloatArray = np.linalg.solve(hessian, -gradient).astype(np.float64)
        decrement, size = float(-gradient @ direction), 1.0
        if decrement < tolerance:
            converged = True
            weights, value = place.weights + direction, value - decrement / 2
            break
        steps += 1
        while size > 1e-8:
            trial: FloatArray = place.weights + size * direction
            eta = offset + columns @ trial
            loss = rows.losses(eta)
            if loss + 0.5 * float(trial @ precision @ trial) <= value - 1e-4 * size * decrement:
                break
            size /= 2
        else:
            converged = decrement < 1e-6  # rounding
            break
        place = rows.at(trial, eta, loss)
    log_evidence = -value + 0.5 * (
        float(np.linalg.slogdet(precision)[1]) - float(np.linalg.slogdet(hessian)[1])
    )
    covariance = np.linalg.inv(hessian).astype(np.float64)
    loss = value - 0.5 * float(weights @ precision @ weights)
    return LogisticFit(weights, covariance, loss, log_evidence, steps, converged, strengths, place)


# Parameters: rows and weights of a regression, its penalty and how strong it is.
def fit_penalised(
    columns: FloatArray,
    offset: FloatArray,
    correct: FloatArray,
    penalty: Penalty,
    strength: float,
    weights_of_rows: FloatArray | None = None,
) -> LogisticFit:
    """Return the fit at one strength of both penalties, or of strength 0 `fit_by_evidence`."""
    rows = columns, offset, correct, penalty
    if strength > 0:
        return fit_logistic(*rows, (strength, strength), weights_of_rows=weights_of_rows)
    return fit_by_evidence(*rows, weights_of_rows)


def fit_by_evidence(
    columns: FloatArray,
    offset: FloatArray,
    correct: FloatArray,
    penalty: Penalty,
    weights_of_rows: FloatArray | None = None,
) -> LogisticFit:
    """Return the mean of the fits of all penalties on the grid, weighted by their evidence.

    A single best penalty is noise where rows are few, and errors that take it for granted are too
    small. Strengths and steps are those of the fit with the highest evidence; the covariance is
    that of the mixture. Each fit's log loss is at most that at w = 0 and the loss is convex, so the
    mean's is as well.

    The grid is explored from its middle, always next to the best place not yet left, as long as
    that is not hopelessly worse than the best of all.
    """
    grid, seen, left = PENALTY_GRID, dict[tuple[int, int], LogisticFit](), set[tuple[int, int]]()
    place = len(grid) // 2, len(grid) // 2
    strengths = float(grid[place[0]]), float(grid[place[1]])
    rows = columns, offset, correct
    near_enough = min(NEAR_ENOUGH, OF_EACH_ROW * total(len(offset), weights_of_rows))
    others = None, weights_of_rows, near_enough
    best = seen[place] = fit_logistic(*rows, penalty, strengths, *others)
    while True:
        waiting = [p for p in seen if p not in left]
        if not waiting:
            break
        place = max(waiting, key=lambda p: seen[p].log_evidence)
        if seen[place].log_evidence < best.log_evidence - EVIDENCE_REACH:
            break
        left.add(place)
        for step in ((-1, 0), (1, 0), (0, -1), (0, 1)):
            near = place[0] + step[0], place[1] + step[1]
            if near in seen or min(near) < 0 or max(near) >= len(grid):
                continue
            strengths = float(grid[near[0]]), float(grid[near[1]])
            start = seen[place].place
            fit = fit_logistic(*rows, penalty, strengths, start, weights_of_rows, near_enough)
            seen[near] = fit
            best = max(best, fit, key=lambda f: f.log_evidence)
    return _mixture(list(seen.values()), best, *rows, weights_of_rows)


def _mixture(
    fits: list[LogisticFit],
    best: LogisticFit,
    columns: FloatArray,
    offset: FloatArray,
    correct: FloatArray,
    weights_of_rows: FloatArray | None,
) -> LogisticFit:
    shares = np.exp([fit.log_evidence - best.log_evidence for fit in fits])
    shares /= shares.sum()
    weights = np.sum([s * f.weights for s, f in zip(shares, fits, strict=True)], axis=0)
    covariance = np.zeros_like(best.covariance)
    for share, fit in zip(shares, fits, strict=True):
        away = fit.weights - weights
        covariance += share * (fit.covariance + np.outer(away, away))
    eta = offset + columns @ weights
    losses = np.logaddexp(0.0, (1.0 - 2.0 * correct) * eta)
    loss = float(times(losses, weights_of_rows).sum())
    converged = all(fit.converged for fit in fits)
    return best._replace(weights=weights, covariance=covariance, loss=loss, converged=converged)
