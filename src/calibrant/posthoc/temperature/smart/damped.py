"""SMART's optimiser: few, large steps by curvature, each no larger than it can be trusted.

Each objective is seen as a sum of squares with held weights, whose curvature is never negative:
that of a row by itself, and that of the sums that rows make together. All is by log beta.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, cast

import numpy as np

from calibrant.core.arrays import FloatArray, for_each
from calibrant.core.threads import one_blas_thread
from calibrant.core.weights import times, total
from calibrant.posthoc.temperature.smart.fitting import (
    NetworkFit,
    ObjectiveName,
    Penalised,
    SoftBins,
    TemperatureNetwork,
    temperatures_of,
)
from calibrant.predictions.curves import CurvePoint
from calibrant.predictions.rows import RowSummary

# Where a binned gap is smaller, the penalty's bend counts as one of this size.
SMALLEST_GAP = 1e-4


class Bend(NamedTuple):
    """What some of the rows contribute.

    Attributes:
        by_row: (n,) N times what each row bends by itself; where rows have weights, before these.
        columns: (n, B) slopes of each of B sums over the rows.
        sums: (2, B) what the weights of those sums are computed from; those of parts add up.
    """

    by_row: FloatArray
    columns: FloatArray
    sums: FloatArray


class Curvature(Protocol):
    """diag(by_row) / N + columns diag(weights) columns'."""

    def __call__(self, rows: RowSummary, beta: FloatArray, point: CurvePoint) -> Bend:
        """Return the contribution of n rows."""
        ...

    def weights(self, sums: FloatArray, rows: float) -> FloatArray:
        """Return the (B,) weights, given (2, B) sums over all N = `rows` rows."""
        ...


@dataclass(frozen=True)
class OfRows:
    """The curvature of an objective that is a mean over rows.

    Attributes:
        function: from rows, beta and curves to (n,) second derivatives.
    """

    function: Callable[[RowSummary, FloatArray, CurvePoint], FloatArray]

    def __call__(self, rows: RowSummary, beta: FloatArray, point: CurvePoint) -> Bend:
        """Return what each row bends by itself; no sum over rows bends."""
        return Bend(self.function(rows, beta, point), np.empty((rows.n, 0)), np.empty((2, 0)))

    def weights(self, sums: FloatArray, rows: float) -> FloatArray:
        """Return no weights: there are no sums."""
        return np.empty(0)


def of_likelihood(rows: RowSummary, beta: FloatArray, point: CurvePoint) -> FloatArray:
    """Return (n,) beta^2 f'', which is all of it where the gradient vanishes."""
    return beta * beta * point.curvature


def of_brier(rows: RowSummary, beta: FloatArray, point: CurvePoint) -> FloatArray:
    """Return (n,) 2 sum_k (dp_k / d log beta)^2, with dp_k / d beta = p_k (d_k - f')."""
    double = rows.curve.evaluate(2 * beta)
    squares = np.exp(double.value - 2 * point.value)
    spread = double.curvature + (double.slope - point.slope) ** 2
    return 2 * beta * beta * squares * spread


@dataclass(frozen=True)
class OfSoftBins:
    """Curvature of the soft-binned ECE: of sum_b (s_b R_b)^2 / (2 s_b phi_b) / N with phi_b held.

    The parabola with curvature 1 / phi_b lies above phi and touches it where it stands.

    Attributes:
        bins, delta: see `calibrant.posthoc.temperature.smart.fitting.SoftBinnedCalibration`.
    """

    bins: SoftBins
    delta: float

    def __call__(self, rows: RowSummary, beta: FloatArray, point: CurvePoint) -> Bend:
        """Return what n rows add to the sums of each bin, and the slopes of these sums."""
        confidence = np.exp(-point.value)
        residual = confidence - rows.correct
        weights, centre_of_row, _ = self.bins.memberships(confidence)
        weights = times(weights, rows.weights)
        sums = np.stack([weights.sum(axis=0), residual @ weights])
        # d(w_ib (c_i - a_i)) / dc_i, then dc_i / d log beta
        columns = self.bins.centres - centre_of_row[:, None]
        columns *= (residual / self.bins.width**2)[:, None]
        columns += 1
        columns *= weights
        columns *= (-confidence * point.slope * beta)[:, None]
        return Bend(np.zeros(rows.n), columns, sums)

    def weights(self, sums: FloatArray, rows: float) -> FloatArray:
        """Return the (B,) weights 1 / (N s_b phi_b) of the bins."""
        mass = np.maximum(sums[0], np.finfo(float).tiny)
        penalty = np.maximum(np.hypot(sums[1] / mass, self.delta), SMALLEST_GAP)
        return 1 / (rows * mass * penalty)


def make_curvature(name: ObjectiveName, *, bins: SoftBins, delta: float) -> Curvature:
    """Return what bends like the objective that goes by `name`.

    Equation 6, which has no minimum worth the name, gets the likelihood's as a scale for its steps.
    """
    if name in ("charbonnier", "soft-ece"):
        return OfSoftBins(bins, delta if name == "charbonnier" else 0.0)
    if name == "brier":
        return OfRows(of_brier)
    if name == "mse":
        return OfRows(lambda rows, beta, point: of_brier(rows, beta, point) / rows.n_classes)
    return OfRows(of_likelihood)


# The share of each weight's own curvature that is added to it at the start. Weights that hardly
# bend the objective count as bending it by this share of the one that bends it most.
FIRST_DAMPING, LEAST_CURVATURE = 1e-2, 1e-3
# With less, what is solved could be singular to the last digits.
SMALLEST_DAMPING = 1e-5
# A step that should gain less, of an objective between 0 and a few, isn't worth a pass.
SMALLEST_GAIN = 1e-10
# Beyond, not even a short step along the gradient would gain: the end.
LARGEST_DAMPING = 1e8


def fit_damped(
    network: TemperatureNetwork,
    inputs: FloatArray,
    loss: Penalised,
    curvature: Curvature,
    max_iterations: int,
) -> NetworkFit[TemperatureNetwork]:
    """Minimise `loss` by the method of Levenberg and Marquardt.

    A step solves (H + damping D) step = -gradient, with H the curvature of the objective if the
    logarithm of each temperature were linear in the weights, and D its diagonal. It is taken if the
    objective falls; otherwise the damping is raised. How well H foresaw the gain moves the damping
    smoothly (Madsen, Nielsen, Tingleff: Methods for Non-linear Least Squares Problems, 2004,
    section 3.2). A few steps do what takes L-BFGS dozens, and they don't blow up what differs in
    the last digits at the start: L-BFGS learns its curvature from differences of gradients, and
    tripled a difference with every step here.

    Args:
        network: the start; inputs: (N, d) of it.
        loss: the whole objective; curvature: that of its first term.
        max_iterations: steps at most.
    """
    from scipy import linalg

    temperatures = temperatures_of(network, inputs)
    value, by_temperature = loss(temperatures)
    damping, raised, taken = FIRST_DAMPING, 2.0, 0
    with one_blas_thread():
        while taken < max_iterations:
            gradient, hessian = derivatives(network, inputs, loss, curvature, by_temperature)
            own = np.diag(hessian) + LEAST_CURVATURE * hessian.max()
            while True:
                held = hessian + np.diag(damping * own)
                step = cast(FloatArray, -linalg.solve(held, gradient, assume_a="pos"))
                # What the objective would fall by if H were the truth.
                foreseen = float(0.5 * step @ (damping * own * step - gradient))
                if foreseen < SMALLEST_GAIN or damping > LARGEST_DAMPING:
                    return NetworkFit(network, value, taken, True)
                candidate = network.with_flat(network.flat() + step)
                temperatures = temperatures_of(candidate, inputs)
                candidate_value, by_temperature = loss(temperatures)
                if candidate_value < value:
                    break
                damping, raised = damping * raised, 2 * raised
            gained = (value - candidate_value) / foreseen
            damping *= max(1 / 3, 1 - (2 * gained - 1) ** 3)
            damping = max(damping, SMALLEST_DAMPING)
            network, value, raised, taken = candidate, candidate_value, 2.0, taken + 1
    return NetworkFit(network, value, taken, True)


def derivatives(
    network: TemperatureNetwork,
    inputs: FloatArray,
    loss: Penalised,
    curvature: Curvature,
    by_temperature: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Return the (P,) gradient of `loss` by the weights and its (P, P) curvature, as above.

    Args:
        network, inputs, loss, curvature: see `fit_damped`.
        by_temperature: (N,) gradient of `loss` by the temperatures of `network`.
    """
    parts, size = loss.parts, network.size
    count = total(loss.rows.n, loss.rows.weights)
    gradients, hessians = np.empty((len(parts), size)), np.empty((len(parts), size, size))
    pooled, sums = [np.empty(0)] * len(parts), [np.empty(0)] * len(parts)

    def work(index: int) -> None:
        place, rows = parts[index]
        temperatures, tape = network.forward(inputs[place])
        slopes = network.slopes(tape)
        gradients[index] = (slopes.rows @ (by_temperature[place] * slopes.factor)) @ slopes.mixing
        # By the logarithm of the temperature, which is that of beta but for the sign.
        factor = slopes.factor * loss.is_free(temperatures) / temperatures
        beta = loss.beta_of(temperatures)
        point = rows.curve.evaluate(beta)
        by_row, columns, sums[index] = curvature(rows, beta, point)
        by_row = by_row + loss.likelihood_weight * of_likelihood(rows, beta, point)
        by_row += 2 * loss.shrinkage / count
        by_row = times(by_row, rows.weights)
        hessian = (slopes.rows * (by_row * factor * factor / count)) @ slopes.rows.T
        hessians[index] = slopes.mixing.T @ hessian @ slopes.mixing
        pooled[index] = slopes.mixing.T @ (slopes.rows @ (columns * factor[:, None]))

    for_each(range(len(parts)), work)
    together = sum(pooled[1:], pooled[0])
    weights = curvature.weights(sum(sums[1:], sums[0]), count)
    return gradients.sum(axis=0), hessians.sum(axis=0) + (together * weights) @ together.T
