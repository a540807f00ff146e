"""SMART's Table 3: one temperature, PTS and SMART, each fitted to each of six objectives.

SMART takes its objective as an argument. Here the other two do as well, with the same functions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from calibrant.core.arguments import argument, unknown
from calibrant.core.arrays import FloatArray
from calibrant.core.errors import InputError
from calibrant.core.fit_report import FitReport
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.temperature.parameterised import LayeredNetwork, ParameterisedTemperature
from calibrant.posthoc.temperature.scaling import TemperatureScaling
from calibrant.posthoc.temperature.smart.calibrator import SMART
from calibrant.posthoc.temperature.smart.fitting import Penalised, fit_network
from calibrant.posthoc.temperature.smart.objectives import (
    Objective,
    ObjectiveName,
    SoftBins,
    make_objective,
    objective_names,
)
from calibrant.predictions.rows import RowSummary

# The share of the label that label smoothing gives away, which differs by method in the authors'
# code: rows of the paper's table can't be compared in this column.
PUBLISHED_SMOOTHING = {"temperature": 0.1, "pts": 0.01, "smart": 0.005}
# How far from the likelihood's temperature the search goes, in octaves, and in how many steps. A
# binned gap has several valleys, so a search downhill isn't enough.
OCTAVES, STEPS = 3.0, 121
# SMART as published: its objective alone, to the end.
AS_PUBLISHED: dict[str, Any] = {"likelihood_weight": 0.0, "shrinkage": 0.0, "max_iterations": 100}


def objective_named(name: str) -> ObjectiveName:
    """Return the name of an objective as one.

    Raises:
        UnknownMethodError: there is none of that name.
    """
    if name not in objective_names():
        raise unknown(objective_names(), name, "objective")
    return name


def make_with_objective(
    method: str,
    objective: ObjectiveName,
    *,
    seed: int = 0,
    n_bins: int = 15,
    width: float = 0.05,
    delta: float = 1e-3,
) -> Calibrator:
    """Return an unfitted calibrator that will minimise an objective of Table 3.

    Args:
        method: ``"temperature"``, ``"pts"`` or ``"smart"``.
        objective: a name that `SMART` takes.
        seed: of the networks.
        n_bins, width, delta: of the calibration objectives, as in `SMART`.

    Raises:
        InputError: another method.
    """
    smoothing = PUBLISHED_SMOOTHING.get(method)
    if smoothing is None:
        raise InputError(f"{method}: only {', '.join(PUBLISHED_SMOOTHING)} take an objective")
    settings: dict[str, Any] = {
        "n_bins": n_bins,
        "width": width,
        "delta": delta,
        "smoothing": smoothing,
    }
    if method == "smart":
        return SMART(objective=objective, seed=seed, **AS_PUBLISHED, **settings)
    if method == "pts":
        return TunedNetwork(objective=objective, seed=seed, guard=False, **settings)
    return TunedTemperature(objective=objective, **settings)


def _made(of: TunedTemperature | TunedNetwork) -> Objective:
    bins = SoftBins(of.n_bins, of.width)
    return make_objective(of.objective, bins=bins, delta=of.delta, smoothing=of.smoothing)


@dataclass(eq=False)
class TunedTemperature(TemperatureScaling):
    """One temperature of the lowest value of an objective, which need not be the likelihood.

    Attributes:
        beta_: the fitted inverse temperature.
    """

    objective: ObjectiveName = argument("nll", choices=objective_names())
    n_bins: int = argument(15, at_least=1)
    width: float = argument(0.05, above=0)
    delta: float = argument(1e-3, at_least=0)
    smoothing: float = argument(0.1, at_least=0, at_most=1)

    def _fit_rows(self, rows: RowSummary) -> FitReport:
        report = super()._fit_rows(rows)
        if self.objective == "nll":
            return report
        from scipy.optimize import minimize_scalar

        value = partial(_value_at, rows, self.beta_, _made(self))
        grid = np.linspace(-OCTAVES, OCTAVES, STEPS)
        best = int(np.argmin([value(octaves) for octaves in grid]))
        ends = grid[max(best - 1, 0)], grid[min(best + 1, STEPS - 1)]
        found = minimize_scalar(value, bounds=ends, method="bounded", options={"xatol": 1e-4})
        self.beta_ *= float(2.0**found.x)
        return replace(report, objective=self.objective, value=float(found.fun))


def _value_at(rows: RowSummary, reference: float, objective: Objective, octaves: float) -> float:
    beta = np.full(rows.n, reference * 2.0**octaves)
    return objective(rows, beta, rows.curve.evaluate(beta))[0]


@dataclass(eq=False)
class TunedNetwork(ParameterisedTemperature):
    """PTS of the lowest value of an objective, which need not be the squared error."""

    objective: ObjectiveName = argument("brier", choices=objective_names())
    n_bins: int = argument(15, at_least=1)
    width: float = argument(0.05, above=0)
    delta: float = argument(1e-3, at_least=0)
    smoothing: float = argument(0.01, at_least=0, at_most=1)

    def _fit_networks(
        self, rows: RowSummary, inputs: FloatArray, notes: tuple[str, ...]
    ) -> FitReport:
        loss = Penalised(rows, self.reference_, _made(self), 0.0, 0.0)
        rng = np.random.default_rng(self.seed)
        starts = [LayeredNetwork.start(inputs.shape[1], rng) for _ in range(self.restarts)]
        # MSE is the Brier score over K; so must be what holds it, or the two fits would differ.
        pull = self.weight_decay / (rows.n_classes if self.objective == "mse" else 1)
        decay = pull / rows.n * starts[0].kernels()
        best = min(
            (fit_network(start, inputs, loss, self.max_iterations, decay) for start in starts),
            key=lambda fit: fit.value,
        )
        self.network_ = best.network.weights
        return FitReport(rows.n, self.objective, best.value, best.iterations, best.converged, notes)
