"""How a network that gives each row a temperature is fitted: SMART's, and that of PTS."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

import numpy as np

from calibrant.core.arrays import BoolArray, FloatArray, for_each
from calibrant.core.weights import mean, times, total
from calibrant.posthoc.fitting.minimizing import minimize
from calibrant.posthoc.temperature.smart.objectives import (
    Objective,
    SoftBinnedCalibration,
    negative_log_likelihood,
)
from calibrant.predictions.curves import CurvePoint
from calibrant.predictions.rows import RowSummary

# No row's temperature leaves the fitted single one by more than this factor: a table's upper end.
LARGEST_RELATIVE_TEMPERATURE = 32.0


# Rows that are worked on together, so that memberships and hidden units stay in the cache: of all
# rows at once they would take many times the memory of the rows.
PART_ROWS = 1 << 13


def parts_of(rows: int) -> list[slice]:
    """Return the parts that rows are worked on in."""
    return [slice(start, start + PART_ROWS) for start in range(0, rows, PART_ROWS)]


@dataclass(frozen=True)
class Penalised:
    """The whole training objective as a function of relative temperatures T / T0."""

    rows: RowSummary
    reference: float
    objective: Objective
    likelihood_weight: float
    shrinkage: float

    @cached_property
    def parts(self) -> list[tuple[slice, RowSummary]]:
        """The rows in parts, which copy nothing."""
        places = parts_of(self.rows.n)
        if len(places) == 1:
            return [(slice(None), self.rows)]
        return [(place, self.rows.take(place)) for place in places]

    def __call__(self, temperatures: FloatArray) -> tuple[float, FloatArray]:
        """Return the value and its (N,) gradient by temperature."""
        parts, every = self.parts, total(self.rows.n, self.rows.weights)
        gradient, values = np.empty(self.rows.n), np.empty(len(parts))
        objective, points = self.objective, dict[int, CurvePoint]()
        if isinstance(objective, SoftBinnedCalibration) and len(parts) > 1:
            sums = np.empty((len(parts), 2, objective.bins.n_bins))

            def gather(index: int) -> None:
                place, rows = parts[index]
                point = self._point(rows, temperatures[place])
                points[index] = point._replace(curvature=np.empty(0))  # that nobody asks for
                sums[index] = self.objective.sums(rows, point)  # type: ignore[attr-defined]

            for_each(range(len(parts)), gather)
            objective = replace(objective, known=sums.sum(axis=0))

        def work(index: int) -> None:
            place, rows = parts[index]
            point = points.pop(index, None) or self._point(rows, temperatures[place])
            value, by_temperature = self._part(rows, temperatures[place], point, objective)
            share = total(rows.n, rows.weights) / every
            values[index], gradient[place] = share * value, share * by_temperature

        for_each(range(len(parts)), work)
        return float(values.sum()), gradient

    def _point(self, rows: RowSummary, temperatures: FloatArray) -> CurvePoint:
        return rows.curve.evaluate(self.beta_of(temperatures))

    def beta_of(self, temperatures: FloatArray) -> FloatArray:
        """Return the (n,) inverse temperatures of relative ones."""
        return self.reference / np.minimum(temperatures, LARGEST_RELATIVE_TEMPERATURE)

    def is_free(self, temperatures: FloatArray) -> BoolArray:
        """Return (n,) whether a relative temperature may still rise."""
        return temperatures < LARGEST_RELATIVE_TEMPERATURE

    def _part(
        self, rows: RowSummary, temperatures: FloatArray, point: CurvePoint, objective: Objective
    ) -> tuple[float, FloatArray]:
        """Return value and gradient as if these rows were all."""
        bounded = np.minimum(temperatures, LARGEST_RELATIVE_TEMPERATURE)
        beta = self.beta_of(temperatures)
        value, by_beta = objective(rows, beta, point)
        if self.likelihood_weight > 0:
            nll, nll_by_beta = negative_log_likelihood(rows, beta, point)
            value += self.likelihood_weight * nll
            by_beta = by_beta + self.likelihood_weight * nll_by_beta
        log = np.log(bounded)
        pull = self.shrinkage / total(self.rows.n, self.rows.weights)
        value += pull * mean(log * log, rows.weights)
        held = 2 * pull / total(rows.n, rows.weights) * times(log, rows.weights)
        gradient = (held - by_beta * beta) / bounded
        return value, np.where(self.is_free(temperatures), gradient, 0.0)


class Network(Protocol):
    """Maps (N, d) inputs to (N,) temperatures."""

    def flat(self) -> FloatArray:
        """Return all parameters as one vector."""
        ...

    def with_flat(self, vector: FloatArray) -> Self:
        """Return a network of this shape with the parameters of `vector`."""
        ...

    def forward(self, inputs: FloatArray) -> tuple[FloatArray, Any]:
        """Return (N,) temperatures, and what `backward` needs of how they came about."""
        ...

    def backward(self, tape: Any, by_temperature: FloatArray) -> FloatArray:
        """Return the gradient of a loss by `flat()`, given its (N,) gradient by temperature."""
        ...


AnyNetwork = TypeVar("AnyNetwork", bound=Network)


class NetworkFit(NamedTuple, Generic[AnyNetwork]):
    """Outcome of `fit_network`."""

    network: AnyNetwork
    value: float
    iterations: int
    converged: bool


def temperatures_of(network: Network, inputs: FloatArray) -> FloatArray:
    """Return the (N,) temperatures of (N, d) inputs, a part at a time."""
    temperatures = np.empty(len(inputs))

    def forward(part: slice) -> None:
        temperatures[part] = network.forward(inputs[part])[0]

    for_each(parts_of(len(inputs)), forward)
    return temperatures


def fit_network(
    network: AnyNetwork,
    inputs: FloatArray,
    loss: Penalised,
    max_iterations: int,
    decay: FloatArray | float = 0.0,
) -> NetworkFit[AnyNetwork]:
    """Minimise `loss` plus the sum of `decay` times each parameter's square, by L-BFGS.

    Returns:
        The best state that was seen.
    """

    best = np.inf, network.flat()
    parts = parts_of(len(inputs))

    def value_and_gradient(vector: FloatArray) -> tuple[float, FloatArray]:
        nonlocal best
        candidate = network.with_flat(vector)
        temperatures, tapes = np.empty(len(inputs)), dict[int, Any]()

        def forward(index: int) -> None:
            temperatures[parts[index]], tape = candidate.forward(inputs[parts[index]])
            if len(parts) == 1:
                tapes[index] = tape

        for_each(range(len(parts)), forward)
        value, by_temperature = loss(temperatures)
        pull = decay * vector
        value += float(pull @ vector)
        if value < best[0]:
            best = value, vector.copy()
        gradients = np.empty((len(parts), len(vector)))

        def backward(index: int) -> None:
            place = parts[index]
            # Going forward once more takes less than the memory of all tapes would.
            tape = tapes[index] if tapes else candidate.forward(inputs[place])[1]
            gradients[index] = candidate.backward(tape, by_temperature[place])

        for_each(range(len(parts)), backward)
        return value, gradients.sum(axis=0) + 2 * pull

    found = minimize(
        value_and_gradient,
        network.flat(),
        maxiter=max_iterations,
        gtol=1e-7,
        ftol=1e-10,
        maxcor=20,
    )
    value, vector = best
    # Ending at the planned number of steps is no failure; ending earlier for another reason is.
    ended_well = bool(found.success) or found.nit >= max_iterations
    return NetworkFit(network.with_flat(vector), value, int(found.nit), ended_well)
