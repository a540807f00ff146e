"""Temperature scaling (Guo, Pleiss, Sun, Weinberger: On Calibration of Modern Neural Networks, 2017)."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from calibrant.arrays import Array, FloatArray
from calibrant.errors import BoundaryWarning, CalibrationWarning, NotIdentifiedWarning
from calibrant.posthoc.base import FitReport, RowTemperature, learnt
from calibrant.rows import RowSummary

TOLERANCE = 1e-10
MAX_STEPS = 100
# Widest search for beta, in units of one over the mean gap between the largest and the mean logit.
WIDEST_SEARCH = 1e-3, 1e3


class TemperatureFit(NamedTuple):
    """Outcome of `fit_temperature`."""

    beta: float
    nll: float
    iterations: int
    warning: CalibrationWarning | None

    def report(self, rows: int) -> FitReport:
        """Return the fit report, after issuing the warning if there is one."""
        notes: tuple[str, ...] = ()
        if self.warning is not None:
            warnings.warn(self.warning, stacklevel=5)
            notes = (f"{type(self.warning).__name__}: {self.warning}",)
        return FitReport(rows, "nll", self.nll, self.iterations, self.iterations < MAX_STEPS, notes)


def fit_temperature(rows: RowSummary) -> TemperatureFit:
    """Minimise mean f(beta) + beta g, a convex function of beta, by safeguarded Newton on log beta.

    Two data sets have no finite optimum. If every row is right, likelihood only asks for more
    confidence; then beta stops where the expected number of errors is that of the Jeffreys estimate
    for zero errors in N rows, N / (2 (N + 1)). If the logits are no better than chance, it asks for
    none; then beta stops at a thousandth of the logits' scale. Both come with a warning.
    """
    scale = float(np.mean(rows.mean_gap))
    if scale == 0.0:
        warning = NotIdentifiedWarning("the logits are constant, so any temperature fits; took T=1")
        return TemperatureFit(1.0, float(np.log(rows.classes)), 0, warning)
    lowest, highest = (bound / scale for bound in WIDEST_SEARCH)

    def slope(log_beta: float) -> tuple[float, float]:
        beta = float(np.exp(log_beta))
        point = rows.curve.evaluate(beta)
        first = beta * float(np.mean(point.slope + rows.label_gap))
        return first, beta * beta * float(np.mean(point.curvature)) + first

    def finish(beta: float, steps: int, warning: CalibrationWarning | None) -> TemperatureFit:
        nll = float(np.mean(rows.curve.evaluate(beta).value + beta * rows.label_gap))
        return TemperatureFit(beta, nll, steps, warning)

    if float(np.mean(rows.label_gap)) >= scale:  # the slope at beta = 0 already points down
        return finish(lowest, 0, NotIdentifiedWarning(
            "the logits say no more about the labels than chance; the temperature stopped at its "
            f"upper bound T={1 / lowest:.3g}"
        ))
    if not rows.label_gap.any():
        beta, steps = _beta_of_expected_errors(rows, lowest, highest)
        return finish(beta, steps, BoundaryWarning(
            f"all {rows.n} calibration rows are classified correctly, so nothing limits the "
            f"confidence; stopped at T={1 / beta:.3g}, where half an error in {rows.n + 1} rows is "
            "expected"
        ))
    log_beta, steps = find_root(slope, float(np.log(lowest)), float(np.log(highest)))
    return finish(float(np.exp(log_beta)), steps, None)


def _beta_of_expected_errors(
    rows: RowSummary, lowest: float, highest: float
) -> tuple[float, int]:
    """Return the beta at which the mean of 1 - c is 1 / (2 (N + 1)), or the bound it lies beyond."""
    wanted = 0.5 / (rows.n + 1)

    def excess(log_beta: float) -> tuple[float, float]:
        beta = float(np.exp(log_beta))
        point = rows.curve.evaluate(beta)
        confidence = np.exp(-point.value)
        return wanted - float(np.mean(1 - confidence)), beta * float(
            np.mean(-confidence * point.slope)
        )

    log_beta, steps = find_root(excess, float(np.log(lowest)), float(np.log(highest)))
    return float(np.exp(log_beta)), steps


def find_root(
    function: Callable[[float], tuple[float, float]], low: float, high: float
) -> tuple[float, int]:
    """Return the root of an increasing `function` on [low, high] and the number of evaluations.

    `function` returns its value and derivative. Newton's step is taken where it stays inside the
    bracket, the middle of the bracket otherwise, so it always converges; without a sign change it
    ends at the bound where the root would lie beyond.
    """
    point = min(max(0.0, low), high)
    for step in range(1, MAX_STEPS + 1):
        value, derivative = function(point)
        low, high = (low, point) if value > 0 else (point, high)
        proposal = point - value / derivative if derivative > 0 else np.inf
        if not low < proposal < high:
            proposal = (low + high) / 2
        if abs(proposal - point) < TOLERANCE:
            return proposal, step
        point = proposal
    return point, MAX_STEPS


@dataclass(eq=False)
class TemperatureScaling(RowTemperature):
    """One temperature for all rows: softmax(z / T), T by maximum likelihood.

    Keeps the predicted class of every row. One parameter. The objective is convex in beta = 1 / T,
    which is what is solved for; T never turns negative and never needs a learning rate.

    Attributes:
        beta_: the fitted inverse temperature; `temperature_` is its inverse.

    References:
        Guo, Pleiss, Sun, Weinberger: On Calibration of Modern Neural Networks. ICML 2017.
    """

    method: ClassVar[str] = "temperature"

    beta_: float = learnt()

    @property
    def temperature_(self) -> float:
        """The fitted temperature T."""
        return 1.0 / self.beta_

    @property
    def n_parameters(self) -> int:
        """One."""
        return 1

    def fit_rows(self, rows: RowSummary) -> FitReport:
        """See `RowTemperature.fit_rows`."""
        fit = fit_temperature(rows)
        self.beta_ = fit.beta
        return fit.report(rows.n)

    def inverse_temperatures(self, logits: Array) -> FloatArray:
        """See `RowTemperature.inverse_temperatures`."""
        return np.full(logits.shape[0], self.beta_)
