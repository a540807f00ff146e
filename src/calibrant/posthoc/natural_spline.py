"""A natural cubic spline of the log odds, as smooth as the rows say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arguments import argument
from calibrant.core.arrays import Array, FloatArray
from calibrant.core.fit_report import FitReport
from calibrant.core.weights import quantiles, total
from calibrant.posthoc.applying import Learnt
from calibrant.posthoc.array_ops import cubics
from calibrant.posthoc.facts import ODDS, Facts
from calibrant.posthoc.fitting.smooth_logistic import (
    Near,
    Penalty,
    SplinePieces,
    fit_by_evidence,
)
from calibrant.posthoc.log_odds import (
    EventMap,
    event_log_odds,
    event_outcomes,
    fit_event,
    fit_or_smoothed,
    report_of,
)
from calibrant.posthoc.state import learnt
from calibrant.predictions.predictions import Predictions

# Knots nearer to one another than this share of the range would make the spline's pieces cancel.
ROOM = 1e-6


@dataclass(eq=False)
class NaturalSpline(EventMap):
    """p' = sigmoid(s(x)), x the log odds of p and s a smooth natural cubic spline, by likelihood.

    s bends at quantiles of x and is a straight line beyond the first and the last. It starts as
    `AffineScaling`, a line, and leaves it as far as a penalty on the integral of s''(x)^2 allows;
    fits are averaged over penalties by their marginal likelihood (Laplace), so there is nothing to
    tune and no seed, where the paper cross-validates. So with few rows, or if the error of the log
    odds is linear, it is affine scaling. With two classes p is the probability of class 1, with
    more the confidence, and then the predicted class is kept. s may fall, because it only has to be
    smooth.

    Args:
        knots: number of quantiles of x at which the spline bends, the ends included.

    Attributes:
        knots_: (S + 1,) those quantiles, ascending; cubics_: (S, 4) of each piece the coefficients
            of 1, u, u^2 and u^3, u from its left end on.

    References:
        Lucena: Spline-Based Probability Calibration. arXiv 1809.07751, 2018. There the spline is
        one of p itself.

    Examples:
        >>> import calibrant as cb
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> x = rng.normal(scale=2, size=20_000)
        >>> labels = rng.random(20_000) < 1 / (1 + np.exp(-np.where(x > 0, 2 * x, x / 2)))
        >>> rows = cb.Predictions.from_binary(x, labels, kind="logit")
        >>> after = cb.posthoc.NaturalSpline().fit_predictions(rows)
        >>> [float(np.log(p[1] / p[0]).round()) for p in after.predict_proba([[0, -4], [0, 2.0]])]
        [-2.0, 4.0]
    """

    method: ClassVar[str] = "natural-spline"
    facts: ClassVar[Facts | None] = Facts(
        "natural spline",
        ODDS,
        "tens of logistic regressions on N numbers",
        "errors that log odds don't show; between few rows it is a line, and it may fall",
    )

    knots: int = argument(12, at_least=2)

    knots_: FloatArray = learnt("s+1")
    cubics_: FloatArray = learnt("s", 4)

    @property
    def n_parameters(self) -> int:
        """Number of knots."""
        return len(self.knots_)

    def _fit(self, predictions: Predictions) -> FitReport:
        x, outcome = event_log_odds(predictions.scores), event_outcomes(predictions)
        weights = predictions.weights
        columns = np.stack([x, np.ones_like(x)], axis=1)
        line, notes = fit_or_smoothed(
            lambda smoothed: fit_event(columns, outcome, weights, smoothed=smoothed), self.method
        )
        self.knots_ = spread_knots(x, self.knots, weights)
        heights = np.stack([self.knots_, np.ones_like(self.knots_)], axis=1) @ line.weights
        if notes:  # nothing limits how sure it gets: the line's targets have the last word
            self._keep(heights)
            return report_of(line, predictions.n, notes)
        design = natural_basis(self.knots_, x)
        offset, penalty = columns @ line.weights, bending(self.knots_)
        comparison = self.comparison_
        near = comparison and Near(None, comparison.strengths)
        found = fit_by_evidence(design, offset, outcome, penalty, weights, near)
        if comparison:
            comparison.strengths = found.likely
        self._keep(heights + found.weights)
        loss = found.loss / total(predictions.n, weights)
        report = FitReport(predictions.n, "log loss", loss, found.steps, found.converged)
        return report.warned(self.method)

    def _keep(self, heights: FloatArray) -> None:
        pieces: Any = _natural(self.knots_, heights)
        self.cubics_ = np.ascontiguousarray(pieces.c[::-1].T)

    def map_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the pieces, and the slopes of the lines beyond them."""
        knots, width = self.knots_, self.knots_[-1] - self.knots_[-2]
        _, slope, square, cube = self.cubics_[-1]
        pieces = SplinePieces(knots[1:-1], knots[:-1], knots[-1:].reshape(()), self.cubics_)
        ends = {
            "low_slope": self.cubics_[0, 1],
            "high_slope": slope + width * (2 * square + 3 * width * cube),
        }
        return pieces._asdict() | {name: np.asarray(end) for name, end in ends.items()}

    def mapped_log_odds(self, xp: Any, log_odds: Array, learnt: Learnt) -> Array:
        """Return s(x)."""
        inside = cubics(xp, log_odds, *(learnt[name] for name in SplinePieces._fields))
        zero = xp.zeros_like(log_odds)
        below = xp.minimum(log_odds - learnt["starts"][0], zero)
        above = xp.maximum(log_odds - learnt["last"], zero)
        return inside + learnt["low_slope"] * below + learnt["high_slope"] * above


def spread_knots(x: FloatArray, number: int, weights: FloatArray | None) -> FloatArray:
    """Return `number` quantiles of (N,) x, both ends included; those that coincide count once."""
    low, high = float(x.min()), float(x.max())
    if not high > low:
        return np.array([low, low + 1.0])
    room = ROOM * (high - low)
    inner = quantiles(x, np.arange(1, number - 1) / (number - 1), weights)
    kept = [low]
    for each in inner.tolist():
        if kept[-1] + room < each < high - room:
            kept.append(each)
    return np.array([*kept, high])


def natural_basis(knots: FloatArray, x: FloatArray) -> FloatArray:
    """Return (N, q) splines at (N,) x: column k is 1 at knot k and 0 at the others."""
    basis: Any = _natural(knots, np.eye(len(knots)))
    return np.asarray(basis(x), dtype=np.float64)


def _natural(knots: FloatArray, heights: FloatArray) -> Any:
    from scipy.interpolate import CubicSpline

    return CubicSpline(knots, heights, bc_type="natural")


def bending(knots: FloatArray) -> Penalty:
    """Return the integral of s''^2 as a quadratic form of heights at q knots, and one of lines.

    x is measured so that knots lie 1 apart on average.
    """
    places = (knots - knots[0]) * ((len(knots) - 1) / (knots[-1] - knots[0]))
    width, inner = np.diff(places), len(places) - 2
    # Second derivatives m at the inner knots solve R m = Q' s, and s''^2 integrates to m' R m.
    differences = np.zeros((len(places), inner))
    joined = np.zeros((inner, inner))
    for k in range(inner):
        left, right = width[k], width[k + 1]
        differences[k : k + 3, k] = 1 / left, -1 / left - 1 / right, 1 / right
        joined[k, k] = (left + right) / 3
        if k + 1 < inner:
            joined[k, k + 1] = joined[k + 1, k] = right / 6
    rough = differences @ np.linalg.solve(joined, differences.T)
    line = np.linalg.qr(np.stack([np.ones_like(places), places], axis=1))[0]
    return Penalty((rough + rough.T) / 2, line @ line.T)
