"""The optimum of a linear map's penalised likelihood.

The objective,

    mean NLL + sum of penalty * parameter^2

is convex. Its curvature differs by orders of magnitude between common and rare classes, and a
weight and the bias of its class pull together. L-BFGS sees it through variables in which the
curvature at the start is 1, by 2 x 2 blocks for a diagonal and parameter by parameter for a matrix.
At 10 000 x 100 that took 15 steps instead of 33 for vector scaling, 7 instead of 30 for SMS.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from calibrant.core.arrays import FloatArray
from calibrant.core.errors import ConvergenceWarning, warn_caller
from calibrant.posthoc.base import FitReport
from calibrant.posthoc.fitting.minimizing import minimize
from calibrant.posthoc.linear.likelihood import LinearLikelihood

# Where the objective counts as flat: the largest slope in its own curvature's units.
SMALL_SLOPE = 1e-6
# The relative change of the objective that counts as none, as a share of that slope.
FLAT = 1e-8
# The same in the units of the parameters, for a line search that ends in rounding noise.
SMALL_GRADIENT = 1e-5


class LinearFit(NamedTuple):
    """Outcome of `fit_linear`: the map, its penalised objective and how it was found."""

    change: FloatArray
    bias: FloatArray
    value: float
    iterations: int
    converged: bool
    message: str

    def report(self, method: str, rows: int, notes: tuple[str, ...]) -> FitReport:
        """Return the fit report of so many calibration rows, after a warning if it fell short."""
        if not self.converged:
            message = f"method '{method}' stopped after {self.iterations} steps: {self.message}"
            warn_caller(ConvergenceWarning(message))
        return FitReport(rows, "penalised nll", self.value, self.iterations, self.converged, notes)


def fit_linear(
    rows: LinearLikelihood,
    penalties: FloatArray,
    max_iterations: int,
    *,
    start: LinearFit | None = None,
    tolerance: float = SMALL_SLOPE,
) -> LinearFit:
    """Minimise the penalised mean NLL.

    Args:
        rows: the likelihood.
        penalties: one for every parameter: those of C first, in rows, then those of b.
        max_iterations: bound on L-BFGS steps.
        start: a fit to begin at instead of C = 0 and b = 0.
        tolerance: the largest slope, in its own curvature's units, that counts as flat.
    """

    n, classes = rows.total, int(rows.logits.shape[1])
    size = len(penalties) - classes
    shape = (classes, classes) if rows.square else (classes,)
    zero = np.zeros(shape), np.zeros(classes)
    scaled = _Scaling.of(rows.curvature(*zero), n, penalties)
    change, bias = zero if start is None else (start.change, start.bias)

    def loss(vector: FloatArray) -> tuple[float, FloatArray]:
        parameters = scaled.parameters(vector)
        change, bias = parameters[:size].reshape(shape), parameters[size:]
        value, by_change, by_bias = rows.nll(change, bias)
        pull = penalties * parameters
        gradient = np.concatenate([by_change.ravel(), by_bias]) / n + 2 * pull
        return value / n + float(pull @ parameters), scaled.gradient(gradient)

    found = minimize(
        loss,
        scaled.variables(np.concatenate([change.ravel(), bias])),
        maxiter=max_iterations,
        gtol=tolerance,
        ftol=FLAT * tolerance,
        maxcor=15,
    )
    steepest = float(np.abs(scaled.in_parameters(found.jac)).max())
    parameters = scaled.parameters(found.x)
    return LinearFit(
        parameters[:size].reshape(shape),
        parameters[size:],
        float(found.fun),
        int(found.nit),
        bool(found.success) or steepest < SMALL_GRADIENT,
        str(found.message),
    )


@dataclass(frozen=True, eq=False)
class _Scaling:
    """Variables u in which the curvature at the start is 1: parameters = R u, R by class.

    With the curvature [[a, m], [m, d]] of a weight and the bias of its class, R is the inverse of
    the transposed Cholesky factor. A matrix has m = 0.

    Attributes:
        first: 1 / sqrt(a) of the entries of C; second: (K,) of b; mixed: (K,) what b adds to C.
    """

    first: FloatArray
    second: FloatArray
    mixed: FloatArray

    @classmethod
    def of(cls, curvature: tuple[FloatArray, ...], n: float, penalties: FloatArray) -> _Scaling:
        by_change, by_bias, both = (part.ravel() / n for part in curvature)
        size = len(by_change)
        # A class that no row gives any weight, without a penalty, has no curvature at all.
        least = np.finfo(float).eps * max(float(by_bias.max()), 1e-300)
        first = by_change + 2 * penalties[:size] + least
        second = by_bias + 2 * penalties[size:] + least
        if size > len(second):
            return cls(first**-0.5, second**-0.5, np.zeros(len(second)))
        left = np.maximum(second - both**2 / first, least) ** -0.5
        return cls(first**-0.5, left, -both / first * left)

    def parameters(self, vector: FloatArray) -> FloatArray:
        size = len(self.first)
        change, bias = self.first * vector[:size], self.second * vector[size:]
        if size == len(bias):
            change += self.mixed * vector[size:]
        return np.concatenate([change, bias])

    def variables(self, parameters: FloatArray) -> FloatArray:
        """Undo `parameters`."""
        size = len(self.first)
        change, second = parameters[:size], parameters[size:] / self.second
        if size == len(second):
            change = change - self.mixed * second
        return np.concatenate([change / self.first, second])

    def gradient(self, by_parameters: FloatArray) -> FloatArray:
        size = len(self.first)
        by_change, by_bias = by_parameters[:size], by_parameters[size:]
        second = self.second * by_bias
        if size == len(by_bias):
            second += self.mixed * by_change
        return np.concatenate([self.first * by_change, second])

    def in_parameters(self, gradient: FloatArray) -> FloatArray:
        """Undo `gradient`."""
        size = len(self.first)
        by_change, second = gradient[:size] / self.first, gradient[size:]
        if size == len(second):
            second = second - self.mixed * by_change
        return np.concatenate([by_change, second / self.second])
