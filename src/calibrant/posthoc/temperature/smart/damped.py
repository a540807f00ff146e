"""SMART's optimiser: few, large steps by curvature, each no larger than it can be trusted.

Each objective is seen as a sum of squares with held weights, whose curvature is never negative:
that of a row by itself, and that of the sums that rows make together. All is by log beta.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, cast

import numpy as np

from calibrant.core.arrays import FloatArray, for_each
from calibrant.core.threads import one_blas_thread
from calibrant.core.weights import times, total
from calibrant.posthoc.temperature.smart.fitting import (
    KEPT_ROWS,
    NetworkFit,
    ObjectiveName,
    Penalised,
    SoftBins,
    Tempered,
    forward,
    parts_of,
)
from calibrant.posthoc.temperature.smart.network import (
    Ascending,
    Inputs,
    Stretches,
    Tape,
    TemperatureNetwork,
)

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

    def __call__(self, at: Tempered) -> Bend:
        """Return the contribution of n rows."""
        ...

    def weights(self, sums: FloatArray, rows: float) -> FloatArray:
        """Return the (B,) weights, given (2, B) sums over all N = `rows` rows."""
        ...


@dataclass(frozen=True)
class OfRows:
    """The curvature of an objective that is a mean over rows.

    Attributes:
        function: from rows to their (n,) second derivatives.
    """

    function: Callable[[Tempered], FloatArray]

    def __call__(self, at: Tempered) -> Bend:
        """Return what each row bends by itself; no sum over rows bends."""
        return Bend(self.function(at), np.empty((at.rows.n, 0)), np.empty((2, 0)))

    def weights(self, sums: FloatArray, rows: float) -> FloatArray:
        """Return no weights: there are no sums."""
        return np.empty(0)


def of_likelihood(at: Tempered) -> FloatArray:
    """Return (n,) beta^2 f'', which is all of it where the gradient vanishes."""
    return at.beta * at.beta * at.point.curvature


def of_brier(at: Tempered) -> FloatArray:
    """Return (n,) 2 sum_k (dp_k / d log beta)^2, with dp_k / d beta = p_k (d_k - f')."""
    beta, point, double = at.beta, at.point, at.double
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

    def __call__(self, at: Tempered) -> Bend:
        """Return what n rows add to the sums of each bin, and the slopes of these sums."""
        memberships = at.memberships(self.bins)
        weights = times(memberships.weights, at.rows.weights)
        # d(w_ib (c_i - a_i)) / dc_i, then dc_i / d log beta; bins come first in memory.
        columns = self.bins.centres[:, None] - memberships.mean
        columns *= at.residual / self.bins.width**2
        columns += 1
        columns *= weights.T
        columns *= -at.confidence * at.point.slope * at.beta
        return Bend(np.zeros(at.rows.n), columns.T, at.bin_sums(self.bins))

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
        return OfRows(lambda at: of_brier(at) / at.rows.n_classes)
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


class Position(NamedTuple):
    """A network, and what value, gradient and curvature of the loss are computed from there.

    Attributes:
        network: the weights.
        temperatures: (N,) of the rows; tapes: what its slopes need, of each part of few rows.
        tempered: the parts of the rows at these temperatures.
        value: of the loss; by_temperature: (N,) its gradient.
    """

    network: TemperatureNetwork
    temperatures: FloatArray
    tapes: list[Tape | Stretches | None]
    tempered: list[Tempered]
    value: float
    by_temperature: FloatArray

    @classmethod
    def of(cls, network: TemperatureNetwork, inputs: Sequence[Inputs], loss: Penalised) -> Position:
        """Return where a network puts the rows of `loss`, given what it reads of each part."""
        temperatures, tapes = forward(network, inputs, loss.rows.n)
        tempered = loss.at(temperatures)
        return cls(network, temperatures, tapes, tempered, *loss(temperatures, tempered))

    def without_rows(self) -> Position:
        """Return network and value alone."""
        nothing = np.empty(0)
        return self._replace(temperatures=nothing, tapes=[], tempered=[], by_temperature=nothing)


def in_parts(inputs: FloatArray) -> Sequence[Inputs]:
    """Return (N, d) inputs in parts, each sorted if there is one of a row."""
    parts = [inputs[place] for place in parts_of(len(inputs))]
    return [Ascending.of(part[:, 0]) for part in parts] if inputs.shape[1] == 1 else parts


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

    parts = in_parts(inputs)
    at = Position.of(network, parts, loss)
    damping, raised, taken = FIRST_DAMPING, 2.0, 0
    with one_blas_thread():
        while taken < max_iterations:
            gradient, hessian = derivatives(at, parts, loss, curvature)
            at = at.without_rows()  # those of two positions would take too much memory
            own = np.diag(hessian) + LEAST_CURVATURE * hessian.max()
            while True:
                held = hessian + np.diag(damping * own)
                step = cast(FloatArray, -linalg.solve(held, gradient, assume_a="pos"))
                # What the objective would fall by if H were the truth.
                foreseen = float(0.5 * step @ (damping * own * step - gradient))
                if foreseen < SMALLEST_GAIN or damping > LARGEST_DAMPING:
                    return NetworkFit(at.network, at.value, taken, True)
                moved = at.network.with_flat(at.network.flat() + step)
                candidate = Position.of(moved, parts, loss)
                if candidate.value < at.value:
                    break
                damping, raised = damping * raised, 2 * raised
            gained = (at.value - candidate.value) / foreseen
            damping *= max(1 / 3, 1 - (2 * gained - 1) ** 3)
            damping = max(damping, SMALLEST_DAMPING)
            at, raised, taken = candidate, 2.0, taken + 1
    return NetworkFit(at.network, at.value, taken, True)


def derivatives(
    at: Position, inputs: Sequence[Inputs], loss: Penalised, curvature: Curvature
) -> tuple[FloatArray, FloatArray]:
    """Return the (P,) gradient of `loss` by the weights and its (P, P) curvature, as above.

    Args:
        at: where; inputs: see `in_parts`; loss, curvature: see `fit_damped`.
    """
    network, parts, size = at.network, loss.parts, at.network.size
    count = total(loss.rows.n, loss.rows.weights)
    gradients, hessians = np.empty((len(parts), size)), np.empty((len(parts), size, size))
    pooled, sums = [np.empty(0)] * len(parts), [np.empty(0)] * len(parts)

    def work(index: int) -> None:
        place, rows = parts[index]
        temperatures, tempered = at.temperatures[place], at.tempered[index]
        slopes = (at.tapes[index] or network.forward(inputs[index])[1]).slopes(network)
        by_raw = at.by_temperature[place] * slopes.factor
        gradients[index] = slopes.sums(by_raw[:, None])[:, 0]
        # By the logarithm of the temperature, which is that of beta but for the sign.
        factor = slopes.factor * loss.is_free(temperatures) / temperatures
        by_row, columns, sums[index] = curvature(tempered)
        by_row = by_row + loss.likelihood_weight * of_likelihood(tempered)
        by_row += 2 * loss.shrinkage / count
        by_row = times(by_row, rows.weights)
        hessians[index] = slopes.squares(by_row / count * factor**2)
        pooled[index] = slopes.sums(columns * factor[:, None])
        if loss.rows.n > KEPT_ROWS:
            tempered.forget()

    for_each(range(len(parts)), work, threaded=loss.rows.n > KEPT_ROWS)
    together = sum(pooled[1:], pooled[0])
    weights = curvature.weights(sum(sums[1:], sums[0]), count)
    return gradients.sum(axis=0), hessians.sum(axis=0) + (together * weights) @ together.T
