"""The temperature of greatest likelihood, the optimum of a convex function of one number."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from calibrant.core.errors import (
    BoundaryWarning,
    CalibrationWarning,
    InputError,
    NotIdentifiedWarning,
    warn_caller,
)
from calibrant.core.fit_report import FitReport
from calibrant.core.weights import mean, total
from calibrant.predictions.rows import RowSummary

# Near the root, the error of a Newton step is a constant times the square of the one before. The
# lengths of two steps in a row give that constant, and with it the length of the next step. The
# search ends when that is foreseen to be below `FORESEEN_TOLERANCE`, judged only where the earlier
# step was shorter than `CLOSE`; or when a step was as short as the tolerances below it.
FORESEEN_TOLERANCE, CLOSE = 1e-7, 0.1
NEWTON_TOLERANCE, BISECTION_TOLERANCE = 1e-5, 1e-10
MAX_STEPS = 100
# Rows on which to find a first value; from there all rows need two or three passes.
FIRST_ROWS = 1000
# First search for beta, in units of one over the mean gap between the largest and the mean logit.
FIRST_SEARCH = 1e-3, 1e3
# Classes masked with -1e9, or a few enormous rows, make that mean say nothing about the others;
# then the search is widened upwards by this factor, at most so many times.
WIDENING, MOST_WIDENINGS = 1e3, 15
# Twice the gain in log-likelihood over chance that a temperature needs to be told from noise: the
# 95 % quantile of chi-squared with one degree of freedom.
SIGNIFICANT_GAIN = 3.84


class TemperatureFit(NamedTuple):
    """Outcome of `fit_temperature`.

    Attributes:
        beta: the inverse temperature.
        nll: mean negative log-likelihood of the rows with it, in nats.
        iterations: how often all rows were looked at.
        warning: what a user should know of it, not issued yet; None as a rule.
    """

    beta: float
    nll: float
    iterations: int
    warning: CalibrationWarning | None

    @property
    def temperature(self) -> float:
        """T, by which logits are divided."""
        return 1.0 / self.beta

    @property
    def notes(self) -> tuple[str, ...]:
        """The warning as a fit report has it."""
        return notes_of(self.warning)

    def report(self, rows: int) -> FitReport:
        """Return the fit report of so many calibration rows, after issuing the warning, if any."""
        notes = warn_of(self.warning)
        return FitReport(rows, "nll", self.nll, self.iterations, self.iterations < MAX_STEPS, notes)


def warn_of(warning: CalibrationWarning | None) -> tuple[str, ...]:
    """Issue a warning, if there is one, and return the notes of a fit report on it."""
    if warning is not None:
        warn_caller(warning)
    return notes_of(warning)


def notes_of(warning: CalibrationWarning | None) -> tuple[str, ...]:
    """Return the notes of a fit report on a warning, if there is one."""
    return () if warning is None else (f"{type(warning).__name__}: {warning}",)


def fit_temperature(rows: RowSummary) -> TemperatureFit:
    """Minimise mean f(beta) + beta g, a convex function of beta, by safeguarded Newton on log beta.

    Two data sets have no finite optimum. If every row is right, likelihood only asks for more
    confidence; then beta stops where the expected number of errors is that of the Jeffreys estimate
    for zero errors in N rows, N / (2 (N + 1)). If the logits are no better than chance, it asks for
    none; then beta stops at a thousandth of the logits' scale. Both come with a warning, and so
    does a finite optimum whose likelihood is not significantly better than that of chance.

    Raises:
        InputError: the rows are tabulated around another beta, and their table doesn't reach the
            optimum.
    """
    every = total(rows.n, rows.weights)
    scale = mean(rows.mean_gap, rows.weights)
    if scale == 0.0:
        warning = NotIdentifiedWarning("the logits are constant, so any temperature fits; took T=1")
        return TemperatureFit(1.0, mean(np.log(rows.unmasked), rows.weights), 0, warning)
    lowest, highest = np.clip([bound / scale for bound in FIRST_SEARCH], *rows.curve.span).tolist()

    def finish(beta: float, steps: int, warning: CalibrationWarning | None) -> TemperatureFit:
        return TemperatureFit(beta, mean(rows.losses(beta), rows.weights), steps, warning)

    if mean(rows.label_gap, rows.weights) >= scale:  # the slope at beta = 0 already points down
        return finish(
            lowest,
            0,
            NotIdentifiedWarning(
                "the logits don't predict the labels better than chance; the temperature "
                f"stopped at its upper bound T={1 / lowest:.3g}"
            ),
        )
    if not rows.label_gap.any():
        beta, steps = _beta_of_expected_errors(rows, lowest, highest)
        return finish(
            beta,
            steps,
            BoundaryWarning(
                f"all {rows.n} calibration rows are classified correctly, so nothing limits the "
                f"confidence; stopped at T={1 / beta:.3g}, where half an error in {rows.n + 1} "
                "rows is expected"
            ),
        )
    start = 0.0
    if rows.n >= 4 * FIRST_ROWS:
        some = rows.take(slice(None, None, rows.n // FIRST_ROWS))
        start, _ = _find_beta(_likelihood_slope(some), lowest, highest, rows)
        start = float(np.log(start))
    beta, steps = _find_beta(_likelihood_slope(rows), lowest, highest, rows, start)
    if not rows.curve.span[0] * (1 + 1e-6) < beta < rows.curve.span[1] * (1 - 1e-6):
        raise InputError(
            f"the rows are tabulated for T from {1 / rows.curve.span[1]:.3g} to "
            f"{1 / rows.curve.span[0]:.3g}, and the best T lies beyond; summarize them with "
            "`reference` near its inverse"
        )
    found = finish(beta, steps, None)
    chance = mean(np.log(rows.unmasked), rows.weights)
    if 2 * every * (chance - found.nll) < SIGNIFICANT_GAIN:
        return found._replace(
            warning=NotIdentifiedWarning(
                f"with {rows.n} rows the logits can't be distinguished from chance; "
                f"T={1 / beta:.3g} is mostly noise"
            )
        )
    return found


def _likelihood_slope(rows: RowSummary) -> Callable[[float], tuple[float, float]]:
    """Return the function from log beta to the first two derivatives of the mean NLL by it."""

    def slope(log_beta: float) -> tuple[float, float]:
        beta = float(np.exp(log_beta))
        point = rows.curve.evaluate(beta)
        first = beta * mean(point.slope + rows.label_gap, rows.weights)
        return first, beta * beta * mean(point.curvature, rows.weights) + first

    return slope


def _find_beta(
    function: Callable[[float], tuple[float, float]],
    lowest: float,
    highest: float,
    rows: RowSummary,
    start: float = 0.0,
) -> tuple[float, int]:
    """Return the root of a function of log beta, and how often it was evaluated.

    The search begins at log beta = `start` between `lowest` and `highest`. Where it ends at
    `highest`, the bound is moved up as long as that helps.
    """
    log_beta, steps = start, 0
    for _ in range(MOST_WIDENINGS):
        log_beta, more = find_root(
            function, float(np.log(lowest)), float(np.log(highest)), log_beta
        )
        steps += more
        at_bound = log_beta > np.log(highest) - NEWTON_TOLERANCE
        if not at_bound or function(log_beta)[1] == 0 or highest >= rows.curve.span[1]:
            break
        highest = min(highest * WIDENING, rows.curve.span[1])
    return float(np.exp(log_beta)), steps


def _beta_of_expected_errors(rows: RowSummary, lowest: float, highest: float) -> tuple[float, int]:
    """Return the beta at which the mean of 1 - c is 1 / (2 (N + 1)), or the bound before it."""
    wanted = 0.5 / (total(rows.n, rows.weights) + 1)

    def excess(log_beta: float) -> tuple[float, float]:
        beta = float(np.exp(log_beta))
        point = rows.curve.evaluate(beta)
        confidence = np.exp(-point.value)
        return wanted - mean(1 - confidence, rows.weights), beta * mean(
            -confidence * point.slope, rows.weights
        )

    return _find_beta(excess, lowest, highest, rows)


def find_root(
    function: Callable[[float], tuple[float, float]], low: float, high: float, start: float
) -> tuple[float, int]:
    """Return the root of an increasing `function` on [low, high] and the number of evaluations.

    `function` returns its value and derivative. Newton's step is taken where it stays inside the
    bracket, the middle of the bracket otherwise, so it always converges; without a sign change it
    ends at the bound where the root would lie beyond.
    """
    point, before = min(max(start, low), high), 0.0
    for step in range(1, MAX_STEPS + 1):
        value, derivative = function(point)
        low, high = (low, point) if value > 0 else (point, high)
        proposal = point - value / derivative if derivative > 0 else np.inf
        newton = low <= proposal <= high
        if not newton:
            proposal = (low + high) / 2
        size = abs(proposal - point)
        foreseen = size * (size / before) ** 2 if newton and 0 < before < CLOSE else np.inf
        if size < (NEWTON_TOLERANCE if newton else BISECTION_TOLERANCE):
            return proposal, step
        if foreseen < FORESEEN_TOLERANCE:
            return proposal, step
        point, before = proposal, size if newton else 0.0
    return point, MAX_STEPS
