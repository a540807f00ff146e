"""Logistic regression of an event on a few functions of its log odds, by maximum likelihood."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from calibrant.core.arrays import FloatArray, sigmoid
from calibrant.core.errors import BoundaryWarning, warn_caller
from calibrant.core.fit_report import FitReport

# Holds all coefficients to 0 with the weight of a millionth of a row: it changes no fit that
# exists, and keeps finite those that have no optimum, so that they can be told from others.
RIDGE = 1e-6
# A fit has no optimum of its own if e times the ridge would move the log odds of a row this far.
MOST_MOVED = 1e-2
# A column that is smaller throughout says nothing, such as the log of probabilities of almost 1;
# nor does what is left of one, as a share of it, when the others are taken off.
SMALLEST_SCALE, SMALLEST_SHARE = 1e-9, 1e-9
MAX_STEPS, HALVINGS = 100, 50
TOLERANCE = 1e-12

Notes = tuple[str, ...]


class EventFit(NamedTuple):
    """Outcome of `fit_event`.

    Attributes:
        weights: (d,) coefficients of the columns.
        loss: mean log loss of the outcomes, in nats.
        steps: Newton's.
        converged: whether they ended.
        bounded: whether the likelihood has an optimum.
    """

    weights: FloatArray
    loss: float
    steps: int
    converged: bool
    bounded: bool


def fit_event(
    columns: FloatArray,
    outcome: FloatArray,
    weight: FloatArray | None = None,
    *,
    smoothed: bool = False,
) -> EventFit:
    """Minimise the log loss of sigmoid(X w) on 0/1 outcomes by Newton's method with halved steps.

    Args:
        columns: (N, d) X.
        outcome: (N,) 1.0 where the event happened, else 0.0.
        weight: (N,) how much each row counts, or None for once.
        smoothed: put Platt's targets (see `smoothed_targets`) in place of the outcomes.
    """
    count = np.ones(len(outcome)) if weight is None else weight
    target = smoothed_targets(outcome, count) if smoothed else outcome
    basis = _orthogonal(columns, count)
    design = columns @ basis
    w, steps, converged = np.zeros(design.shape[1]), 0, False

    def objective(at: FloatArray) -> float:
        linear = design @ at
        loss = count @ (np.logaddexp(0.0, linear) - target * linear)
        return float(loss) + RIDGE / 2 * float(at @ at)

    value = objective(w)
    while True:
        p = sigmoid(design @ w)
        gradient = design.T @ (count * (p - target)) + RIDGE * w
        hessian = (design.T * (count * p * (1 - p))) @ design + RIDGE * np.eye(len(w))
        if converged or steps == MAX_STEPS:
            break
        step = np.linalg.solve(hessian, gradient)
        size, before = 1.0, value
        for _ in range(HALVINGS):
            value = objective(w - size * step)
            # A step that gains nothing in floating point is as good as one that gains.
            if value <= before + 1e-13 * abs(before):
                break
            size /= 2
        w, steps = w - size * step, steps + 1
        moved = np.abs(design @ step).max(initial=0.0)
        converged = bool(moved < TOLERANCE * (1 + np.abs(w).max(initial=0.0)))
        converged = converged or float(gradient @ step) < 1e-15 * (1 + abs(value))
    moved = design @ np.linalg.solve(hessian, RIDGE * w)
    linear = design @ w
    loss = np.average(np.logaddexp(0.0, linear) - outcome * linear, weights=count)
    bounded = float(np.abs(moved).max(initial=0.0)) < MOST_MOVED
    return EventFit(basis @ w, float(loss), steps, converged, bounded)


def _orthogonal(columns: FloatArray, count: FloatArray) -> FloatArray:
    """Return (d, r) such that the r <= d columns of X times it are orthogonal, of mean square 1.

    Functions of log odds that hardly vary are almost multiples of one another; how much the rows
    know of each can only be told apart from the others.
    """
    scale = np.sqrt(np.average(columns**2, axis=0, weights=count))
    scale = np.maximum(scale, SMALLEST_SCALE)
    rows = np.sqrt(count / count.sum())[:, None] * (columns / scale)
    _, size, directions = np.linalg.svd(rows, full_matrices=False)
    kept = size > SMALLEST_SHARE * max(float(size[0]), SMALLEST_SHARE)
    return directions[kept].T / size[kept] / scale[:, None]


def fit_or_smoothed(fit: Callable[[bool], EventFit], method: str) -> tuple[EventFit, Notes]:
    """Return the fit of greatest likelihood, or that to Platt's targets where there is none.

    That comes with a warning, which is also returned as the note of a fit report.

    Args:
        fit: returns a fit; takes whether it shall be to smoothed targets.
        method: what the warning calls it.
    """
    found = fit(False)
    if found.bounded:
        return found, ()
    message = (
        f"the rows tell the outcomes apart without an error, so nothing limits how sure '{method}' "
        "gets; it was fitted to Platt's targets (N + 1) / (N + 2) and 1 / (N + 2) instead"
    )
    warn_caller(BoundaryWarning(message))
    return fit(True), (f"BoundaryWarning: {message}",)


def smoothed_targets(outcome: FloatArray, weight: FloatArray) -> FloatArray:
    """Return (N,) Platt's targets: (N1 + 1) / (N1 + 2) for events, 1 / (N0 + 2) for the others.

    As if one row more of either kind were doubtful, N1 and N0 being how many there are.
    """
    events = float(weight @ outcome)
    others = float(weight.sum()) - events
    return np.where(outcome > 0, (events + 1) / (events + 2), 1 / (others + 2))


def report_of(found: EventFit, rows: int, notes: Notes = ()) -> FitReport:
    """Return the fit report of so many calibration rows."""
    return FitReport(rows, "log loss", found.loss, found.steps, found.converged, notes)
