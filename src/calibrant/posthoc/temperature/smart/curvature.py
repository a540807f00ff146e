"""How the objectives of SMART bend: what its optimiser steps by.

Each is seen as a sum of squares with held weights, whose curvature is never negative: that of a row
by itself, and that of the sums that rows make together. All is by log beta.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from calibrant.core.arrays import FloatArray
from calibrant.core.weights import times
from calibrant.posthoc.temperature.smart.objectives import ObjectiveName, SoftBins
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
        bins, delta: see `calibrant.posthoc.temperature.smart.objectives.SoftBinnedCalibration`.
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
