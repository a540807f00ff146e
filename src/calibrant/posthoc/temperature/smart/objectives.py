"""What a row-wise temperature can be fitted to: the objectives of SMART's Table 3, with gradients.

Every objective maps the row summary, (N,) inverse temperatures beta and the confidence curves at
them to a number and its (N,) gradient by beta. Notation of `predictions.curves`: f the confidence
curve, g the label gap, u the mean gap, c = exp(-f) the confidence, a = 1 if the predicted label is
right.

Two objectives carry the paper's name. Its Eq. 6 sums a penalty of a_i - u_b over rows, which is
about E|a - c|: not a proper score, since a row with P(a = 1) > 1/2 gains by c -> 1. Trained on it,
SMART ends far worse than it began. The code of the paper's authors averages a - c in soft bins
*before* the penalty, and that works. Here ``"charbonnier"`` is the one that works and
``"charbonnier-eq6"`` the literal one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np

from calibrant.core.arrays import FloatArray
from calibrant.core.weights import mean, times, total
from calibrant.predictions.curves import CurvePoint
from calibrant.predictions.rows import RowSummary

ObjectiveName = Literal[
    "charbonnier", "soft-ece", "nll", "label-smoothing", "brier", "mse", "charbonnier-eq6"
]
ValueAndGradient = tuple[float, FloatArray]
Objective = Callable[[RowSummary, FloatArray, CurvePoint], ValueAndGradient]


def negative_log_likelihood(
    rows: RowSummary, beta: FloatArray, point: CurvePoint
) -> ValueAndGradient:
    """Mean of f + beta g."""
    value = mean(point.value + beta * rows.label_gap, rows.weights)
    return value, _shared(point.slope + rows.label_gap, rows)


def label_smoothing(alpha: float) -> Objective:
    """Cross-entropy to (1 - alpha) onehot + alpha / K: f + beta ((1 - alpha) g + alpha u)."""

    def objective(rows: RowSummary, beta: FloatArray, point: CurvePoint) -> ValueAndGradient:
        gap = (1 - alpha) * rows.label_gap + alpha * rows.mean_gap
        return mean(point.value + beta * gap, rows.weights), _shared(point.slope + gap, rows)

    return objective


def brier(rows: RowSummary, beta: FloatArray, point: CurvePoint) -> ValueAndGradient:
    """Mean of sum_k (p_k - onehot_k)^2 = exp(f(2 beta) - 2 f(beta)) - 2 p_y + 1."""
    double = rows.curve.evaluate(2 * beta)
    squares = np.exp(double.value - 2 * point.value)
    of_label = np.exp(-beta * rows.label_gap - point.value)
    value = mean(squares - 2 * of_label + 1, rows.weights)
    slope = 2 * squares * (double.slope - point.slope)
    slope += 2 * of_label * (rows.label_gap + point.slope)
    return value, _shared(slope, rows)


def _shared(slopes: FloatArray, rows: RowSummary) -> FloatArray:
    """Return the gradient of a mean over rows, given the slopes of each."""
    return times(slopes, rows.weights) / total(rows.n, rows.weights)


def mean_squared_error(rows: RowSummary, beta: FloatArray, point: CurvePoint) -> ValueAndGradient:
    """Brier score divided by K, the mean over rows and classes."""
    value, gradient = brier(rows, beta, point)
    return value / rows.n_classes, gradient / rows.n_classes


@dataclass(frozen=True)
class SoftBins:
    """Gaussian memberships of confidences in B equal-width bins, summing to 1 for each row.

    Attributes:
        n_bins: B.
        width: standard deviation of the kernel (the paper's lambda is 1 / (2 width^2)).
    """

    n_bins: int = 15
    width: float = 0.05

    @property
    def centres(self) -> FloatArray:
        """(B,) middles of the bins."""
        return (np.arange(self.n_bins) + 0.5) / self.n_bins

    def memberships(self, confidence: FloatArray) -> Memberships:
        """Return the memberships of (N,) confidences."""
        # Bins come first in memory: NumPy is slow at reducing a short last axis.
        centres, scale = self.centres[:, None], 2 * self.width**2
        weights = confidence - centres
        weights *= weights
        weights -= weights.min(axis=0)
        weights *= -1 / scale
        np.exp(weights, out=weights)
        weights /= weights.sum(axis=0)
        return Memberships(weights.T, self.centres @ weights, self)


class Memberships(NamedTuple):
    """Memberships w of confidences c in soft bins, and what their slope by c needs.

    dw_ib/dc_i = w_ib (u_b - m_i) / width^2 with the bins' centres u. The (N, B) slopes themselves
    aren't kept: they would take as much memory again, and only their products are wanted.

    Attributes:
        weights: (N, B) w; mean: (N,) m_i = sum_b w_ib u_b; bins: the bins.
    """

    weights: FloatArray
    mean: FloatArray
    bins: SoftBins

    def slope_times(self, values: FloatArray) -> FloatArray:
        """Return (N,) sum_b dw_ib/dc_i v_b for (B,) values."""
        products = self.weights @ np.stack([self.bins.centres * values, values], axis=1)
        return (products[:, 0] - self.mean * products[:, 1]) / self.bins.width**2


@dataclass(frozen=True)
class SoftBinnedCalibration:
    """Soft-binned ECE, sum_b (s_b / N) (phi(R_b) - phi(0)), with phi(r) = sqrt(r^2 + delta^2).

    R_b = sum_i w_ib (c_i - a_i) / s_b is the mean residual of soft bin b and s_b = sum_i w_ib its
    mass. delta = 0 gives the absolute value (Karandikar et al. 2021), delta = 1e-3 SMART's
    Charbonnier penalty. No mean of numbers of single rows: a part of the rows needs to know the
    bins' sums over all of them.

    Attributes:
        bins: the soft bins.
        delta: see above.
        known: (2, B) masses s_b and sums s_b R_b over all rows where the rows given are a part of
            them; None where they are all.
    """

    bins: SoftBins
    delta: float
    known: FloatArray | None = None

    def sums(self, rows: RowSummary, point: CurvePoint) -> FloatArray:
        """Return what `known` wants of these rows; the sums of parts add up."""
        confidence = np.exp(-point.value)
        weights = times(self.bins.memberships(confidence).weights, rows.weights)
        return np.stack([weights.sum(axis=0), (confidence - rows.correct) @ weights])

    def __call__(self, rows: RowSummary, beta: FloatArray, point: CurvePoint) -> ValueAndGradient:
        """Return the value over all rows, and the (n,) gradient as if these were all of them."""
        confidence = np.exp(-point.value)
        residual = confidence - rows.correct
        memberships = self.bins.memberships(confidence)
        weights, delta = memberships.weights, self.delta
        if self.known is None:
            counted = times(weights, rows.weights)
            mass, sums = counted.sum(axis=0), residual @ counted
        else:
            mass, sums = self.known
        middle = sums / np.maximum(mass, np.finfo(float).tiny)
        penalty = np.hypot(middle, delta)
        with np.errstate(invalid="ignore", divide="ignore"):
            penalty_slope = np.where(penalty > 0, middle / penalty, 0.0)
        every = total(rows.n, rows.weights) if self.known is None else float(mass.sum())
        value = float(mass @ (penalty - delta)) / every
        # d/dc of s_b (phi(R_b) - phi(0)), using s_b R_b = sum w (c - a)
        by_confidence = weights @ penalty_slope + memberships.slope_times(
            penalty - delta - penalty_slope * middle
        )
        by_confidence += residual * memberships.slope_times(penalty_slope)
        return value, _shared(-by_confidence * confidence * point.slope, rows)


def soft_binned_calibration(bins: SoftBins, delta: float) -> Objective:
    """Return the soft-binned ECE as an objective; see `SoftBinnedCalibration`."""
    return SoftBinnedCalibration(bins, delta)


def charbonnier_eq6(bins: SoftBins, delta: float) -> Objective:
    """The paper's Eq. 6 to the letter: mean_i sum_b w_ib phi(a_i - u_b). Damages calibration."""

    def objective(rows: RowSummary, beta: FloatArray, point: CurvePoint) -> ValueAndGradient:
        confidence = np.exp(-point.value)
        memberships = bins.memberships(confidence)
        # A row is right or wrong, so its penalties are one of two vectors.
        right = np.hypot(1 - bins.centres, delta)
        wrong = np.hypot(bins.centres, delta)
        of_rows = memberships.weights @ np.stack([wrong, right], axis=1)
        value = mean(np.where(rows.correct, of_rows[:, 1], of_rows[:, 0]), rows.weights)
        by_confidence = np.where(
            rows.correct, memberships.slope_times(right), memberships.slope_times(wrong)
        )
        return value, _shared(-by_confidence * confidence * point.slope, rows)

    return objective


def objective_names() -> tuple[ObjectiveName, ...]:
    """Return the names that `make_objective` knows."""
    return get_args(ObjectiveName)


def make_objective(
    name: ObjectiveName, *, bins: SoftBins, delta: float, smoothing: float
) -> Objective:
    """Return the objective that goes by `name`."""
    makers: dict[ObjectiveName, Callable[[], Objective]] = {
        "charbonnier": lambda: soft_binned_calibration(bins, delta),
        "soft-ece": lambda: soft_binned_calibration(bins, 0.0),
        "nll": lambda: negative_log_likelihood,
        "label-smoothing": lambda: label_smoothing(smoothing),
        "brier": lambda: brier,
        "mse": lambda: mean_squared_error,
        "charbonnier-eq6": lambda: charbonnier_eq6(bins, delta),
    }
    return makers[name]()
