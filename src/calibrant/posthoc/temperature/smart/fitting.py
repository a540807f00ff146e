"""How a network that gives each row a temperature is fitted: SMART's, and that of PTS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

import numpy as np

from calibrant.core.arrays import FloatArray
from calibrant.posthoc.fitting.minimizing import minimize
from calibrant.posthoc.temperature.smart.objectives import Objective, negative_log_likelihood
from calibrant.predictions.rows import RowSummary

# No row's temperature leaves the fitted single one by more than this factor: a table's upper end.
LARGEST_RELATIVE_TEMPERATURE = 32.0


@dataclass(frozen=True)
class Penalised:
    """The whole training objective as a function of relative temperatures T / T0."""

    rows: RowSummary
    reference: float
    objective: Objective
    likelihood_weight: float
    shrinkage: float

    def __call__(self, temperatures: FloatArray) -> tuple[float, FloatArray]:
        """Return the value and its (N,) gradient by temperature."""
        free = temperatures < LARGEST_RELATIVE_TEMPERATURE
        bounded = np.minimum(temperatures, LARGEST_RELATIVE_TEMPERATURE)
        beta = self.reference / bounded
        point = self.rows.curve.evaluate(beta)
        value, by_beta = self.objective(self.rows, beta, point)
        if self.likelihood_weight > 0:
            nll, nll_by_beta = negative_log_likelihood(self.rows, beta, point)
            value += self.likelihood_weight * nll
            by_beta = by_beta + self.likelihood_weight * nll_by_beta
        log = np.log(bounded)
        pull = self.shrinkage / self.rows.n
        value += pull * float(np.mean(log * log))
        gradient = (2 * pull / self.rows.n * log - by_beta * beta) / bounded
        return value, np.where(free, gradient, 0.0)


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

    def value_and_gradient(vector: FloatArray) -> tuple[float, FloatArray]:
        nonlocal best
        candidate = network.with_flat(vector)
        temperatures, tape = candidate.forward(inputs)
        value, by_temperature = loss(temperatures)
        pull = decay * vector
        value += float(pull @ vector)
        if value < best[0]:
            best = value, vector.copy()
        return value, candidate.backward(tape, by_temperature) + 2 * pull

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
