"""The penalised optimum of a linear map's likelihood.

The objective,

    mean NLL + sum of penalty * parameter^2

is convex. Its curvature differs by orders of magnitude between common and rare classes.

A weight and a bias for each class are found by L-BFGS, which sees them through variables in which
the curvature at the start is 1, by 2 x 2 blocks: a weight and the bias of its class pull together.
At 10 000 x 100 that took 15 steps instead of 33 for vector scaling.

A whole matrix is found by Newton's method. Each step solves for its direction by conjugate
gradients, so the curvature of K^2 x K^2 numbers is never written down, only multiplied with. They
are preconditioned by a Kronecker product of a K x K matrix of classes and one of inputs, whose
inverse takes two products of K x K matrices. At 5 000 x 100 that takes 20 to 50 products with the
curvature where L-BFGS takes hundreds of gradients.

Because each penalty is a lower bound of the curvature, the gradient g bounds how far the objective
lies above its minimum: by at most the sum of g^2 / (4 penalty). That certificate ends the fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from calibrant.core.arrays import FloatArray
from calibrant.core.errors import ConvergenceWarning, warn_caller
from calibrant.core.fit_report import FitReport
from calibrant.posthoc.fitting.minimizing import minimize
from calibrant.posthoc.linear.likelihood import LinearLikelihood, MatrixBend

# Where the objective counts as flat: the largest slope in its own curvature's units.
SMALL_SLOPE = 1e-6
# The relative change of the objective that counts as none, as a share of that slope.
FLAT = 1e-8
# The same in the units of the parameters, for a line search that ends in rounding noise.
SMALL_GRADIENT = 1e-5

# How far above its minimum the objective of a matrix may end, in nats a row.
SMALL_GAP = 1e-9


class Start(NamedTuple):
    """Where a fit begins: C and b."""

    change: FloatArray
    bias: FloatArray


class LinearFit(NamedTuple):
    """Outcome of `fit_linear`: the map, its penalised objective and how it was found.

    `gap` bounds how far the objective lies above its minimum; infinite where a penalty is 0.
    """

    change: FloatArray
    bias: FloatArray
    value: float
    iterations: int
    converged: bool
    message: str
    gap: float = np.inf

    def report(self, method: str, rows: int, notes: tuple[str, ...]) -> FitReport:
        """Return the fit report of so many calibration rows, after a warning if it fell short."""
        if not self.converged:
            message = f"method '{method}' stopped after {self.iterations} steps: {self.message}"
            if np.isfinite(self.gap):
                message += f"; more of them would lower its loss by at most {self.gap:.1g} nats"
            warn_caller(ConvergenceWarning(message))
        return FitReport(rows, "penalised nll", self.value, self.iterations, self.converged, notes)


def fit_linear(
    rows: LinearLikelihood,
    penalties: FloatArray,
    max_iterations: int,
    *,
    start: LinearFit | Start | None = None,
    near_enough: tuple[float, float] = (SMALL_GAP, 0.0),
) -> LinearFit:
    """Minimise the penalised mean NLL.

    Args:
        rows: the likelihood.
        penalties: one for every parameter: those of C first, in rows, then those of b. Those of a
            matrix are above 0.
        max_iterations: bound on steps, of L-BFGS for a diagonal and of Newton for a matrix.
        start: a fit to begin at instead of C = 0 and b = 0.
        near_enough: how far above its minimum, in nats, the objective of a matrix may end, and by
            what share further of what it has gained on C = 0 and b = 0; then it takes at least one
            step from `start`. That of a diagonal ends where its slopes are small.
    """
    classes = int(rows.logits.shape[1])
    if rows.square:
        return _fit_matrix(rows, penalties, max_iterations, start, near_enough)
    zero = np.zeros(classes), np.zeros(classes)
    n, scaled = rows.total, _Scaling.of(rows.curvature(*zero), rows.total, penalties)
    change, bias = zero if start is None else (start.change, start.bias)

    def loss(vector: FloatArray) -> tuple[float, FloatArray]:
        parameters = scaled.parameters(vector)
        change, bias = parameters[:classes], parameters[classes:]
        value, by_change, by_bias = rows.nll(change, bias)
        pull = penalties * parameters
        gradient = np.concatenate([by_change, by_bias]) / n + 2 * pull
        return value / n + float(pull @ parameters), scaled.gradient(gradient)

    found = minimize(
        loss,
        scaled.variables(np.concatenate([change, bias])),
        maxiter=max_iterations,
        gtol=SMALL_SLOPE,
        ftol=FLAT * SMALL_SLOPE,
        maxcor=15,
    )
    slopes = scaled.in_parameters(found.jac)
    parameters = scaled.parameters(found.x)
    return LinearFit(
        parameters[:classes],
        parameters[classes:],
        float(found.fun),
        int(found.nit),
        bool(found.success) or float(np.abs(slopes).max()) < SMALL_GRADIENT,
        str(found.message),
        _gap(slopes, penalties),
    )


def _gap(gradient: FloatArray, penalties: FloatArray) -> float:
    """Return the most that an objective with these penalties lies above its minimum."""
    if not (penalties > 0).all():
        return np.inf
    return float((gradient * gradient / (4 * penalties)).sum())


@dataclass(frozen=True, eq=False)
class _Scaling:
    """Variables u in which the curvature at the start is 1: parameters = R u, R by class.

    With the curvature [[a, m], [m, d]] of a weight and the bias of its class, R is the inverse of
    the transposed Cholesky factor.

    Attributes:
        first: (K,) 1 / sqrt(a) of the weights; second: (K,) of b; mixed: (K,) what b adds to them.
    """

    first: FloatArray
    second: FloatArray
    mixed: FloatArray

    @classmethod
    def of(cls, curvature: tuple[FloatArray, ...], n: float, penalties: FloatArray) -> _Scaling:
        by_change, by_bias, both = (part / n for part in curvature)
        classes = len(by_bias)
        # A class that no row gives any weight, without a penalty, has no curvature at all.
        least = np.finfo(float).eps * max(float(by_bias.max()), 1e-300)
        first = by_change + 2 * penalties[:classes] + least
        second = by_bias + 2 * penalties[classes:] + least
        left = np.maximum(second - both**2 / first, least) ** -0.5
        return cls(first**-0.5, left, -both / first * left)

    def parameters(self, vector: FloatArray) -> FloatArray:
        own, of_bias = np.split(vector, 2)
        return np.concatenate([self.first * own + self.mixed * of_bias, self.second * of_bias])

    def variables(self, parameters: FloatArray) -> FloatArray:
        """Undo `parameters`."""
        change, bias = np.split(parameters, 2)
        second = bias / self.second
        return np.concatenate([(change - self.mixed * second) / self.first, second])

    def gradient(self, by_parameters: FloatArray) -> FloatArray:
        by_change, by_bias = np.split(by_parameters, 2)
        second = self.second * by_bias + self.mixed * by_change
        return np.concatenate([self.first * by_change, second])

    def in_parameters(self, gradient: FloatArray) -> FloatArray:
        """Undo `gradient`."""
        own, of_bias = np.split(gradient, 2)
        by_change = own / self.first
        return np.concatenate([by_change, (of_bias - self.mixed * by_change) / self.second])


# Newton steps are solved for until the residual has shrunk to this share of where it began, or less
# where the decrement is small, but to no less than this share of the tolerance; and a step ends
# after so many products with the curvature.
LOOSEST_SOLUTION, ENOUGH, MOST_PRODUCTS = 0.3, 0.1, 300
# The decrease that a step has to bring, as a share of what its slope promises.
SUFFICIENT = 1e-4


def _fit_matrix(
    rows: LinearLikelihood,
    penalties: FloatArray,
    max_iterations: int,
    start: LinearFit | Start | None,
    near_enough: tuple[float, float],
) -> LinearFit:
    n, classes = rows.total, int(rows.logits.shape[1])
    change, bias = (penalties[: classes**2].reshape(classes, classes), penalties[classes**2 :])
    pull = np.column_stack([change, bias])
    place = np.zeros_like(pull)
    if start is not None:
        place = np.column_stack([start.change, start.bias])
    probs = np.empty(rows.logits.shape, dtype=np.float32)

    def at(place: FloatArray) -> tuple[float, FloatArray]:
        value, by_change, by_bias = rows.nll(place[:, :-1], place[:, -1], probs)
        gradient = np.column_stack([by_change, by_bias]) / n + 2 * pull * place
        return value / n + float((pull * place * place).sum()), gradient

    value, gradient = at(place)
    steps, message = 0, "too few steps"
    (least, share), single = near_enough, value
    # What it begins at may know rows that are to be held out, or be another pull's.
    has_to_step = bool(share) and start is not None
    if has_to_step:
        single = rows.nll(np.zeros((classes, classes)), np.zeros(classes))[0] / n
    while True:
        tolerance = least + share * max(single - value, 0.0)
        if steps == max_iterations or (_gap(gradient, pull) <= tolerance and not has_to_step):
            break
        steps, has_to_step = steps + 1, False
        step = _newton_step(rows.bend(probs), pull, gradient, tolerance)
        slope, size = float((gradient * step).sum()), 1.0
        while size > 1e-8:
            found = at(place + size * step)
            if found[0] <= value + SUFFICIENT * size * slope:
                break
            size /= 2
        else:
            message = "rounding errors"
            break
        place = place + size * step
        value, gradient = found
    gap = _gap(gradient, pull)
    small = gap <= tolerance or float(np.abs(gradient).max()) < SMALL_GRADIENT
    return LinearFit(place[:, :-1], place[:, -1], value, steps, small, message, gap)


def _newton_step(
    bend: MatrixBend, pull: FloatArray, gradient: FloatArray, tolerance: float
) -> FloatArray:
    """Return what solves (H + 2 pull) step = -gradient, nearly, by conjugate gradients.

    What is left of the decrement is no smaller than `tolerance` asks.
    """
    precondition = _kronecker_inverse(bend, pull)
    step, residual = np.zeros_like(gradient), -gradient
    direction = towards = precondition(residual)
    first = left = float((residual * towards).sum())
    loosest = LOOSEST_SOLUTION**2
    aim = first * max(min(loosest, first), min(loosest, ENOUGH * tolerance / first))
    for _ in range(MOST_PRODUCTS):
        product = bend.times(direction) + 2 * pull * direction
        share = left / float((direction * product).sum())
        step = step + share * direction
        residual = residual - share * product
        towards = precondition(residual)
        before, left = left, float((residual * towards).sum())
        if left <= aim:
            break
        direction = towards + left / before * direction
    return step


def _kronecker_inverse(bend: MatrixBend, pull: FloatArray) -> Callable[[FloatArray], FloatArray]:
    """Return a map of (K, K + 1) gradients that nearly undoes the curvature and the pull.

    The pull on most entries, the median, stands for all. Where that on the diagonal is weaker, the
    diagonal is solved for as well, by its own curvature.
    """
    (of_class, by_class), (of_input, by_input) = (np.linalg.eigh(f) for f in bend.factors())
    curvature = np.maximum(of_class, 0)[:, None] * np.maximum(of_input, 0)
    usual = float(np.median(pull))
    inverse = 1 / (curvature + 2 * usual)
    own, index = np.diagonal(pull), np.arange(len(pull))
    alone = None
    if own.max() < usual:
        alone = np.linalg.inv(bend.diagonal() + 2 * np.diag(own))

    def apply(gradient: FloatArray) -> FloatArray:
        found = by_class @ (inverse * (by_class.T @ gradient @ by_input)) @ by_input.T
        if alone is not None:
            found[index, index] += alone @ gradient[index, index]
        return found

    return apply
