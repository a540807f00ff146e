"""Spline recalibration of the top label."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from calibrant.core.arguments import argument
from calibrant.core.arrays import FloatArray
from calibrant.core.fit_report import FitReport
from calibrant.posthoc.confidence.base import ConfidenceMap, Lines, mixed_with_uniform
from calibrant.posthoc.facts import CONFIDENCE, SORT, Facts
from calibrant.posthoc.state import learnt

# Points of the table that new confidences are looked up in; between them the map is a line.
TABLE_SIZE = 1024
# Fewer rows a knot leave the spline to follow single rows.
ROWS_A_KNOT = 5


@dataclass(eq=False)
class SplineCalibration(ConfidenceMap):
    """The confidence plus the slope of a smooth curve through the running sum of the errors.

    With confidences s_1 <= ... <= s_N and outcomes a_i, H_i = sum_{j <= i} (a_j - s_j) / N
    over t_i = (i - 1) / (N - 1) has slope E[a - s] at every quantile t. A natural cubic spline G
    with equally spaced knots is fitted to it by least squares, and the map takes s_i to
    s_i + G'(t_i), clipped to [0, 1]. Between calibration rows it is linear, beyond them constant.

    Equal confidences share their mean outcome and get one value, the mean of theirs. The map only
    has to be smooth, so it may fall. It is least reliable at both ends, where a natural spline is
    straight: if nearly all rows are confident, the few others share a piece of the spline with many
    confident ones. Values are mixed with 1 / K at weight 1 / (N + 1).

    Args:
        knots: number of knots; fewer are used where a knot would have less than 5 rows.

    Attributes:
        knots_: (P,) confidences of a table, ascending; values_: (P,) the map there.
        ordinates_: (Q,) the spline's values at its knots.

    References:
        Gupta, Rahimi, Ajanthan, Mensink, Sminchisescu, Hartley: Calibration of Neural Networks
        using Splines. ICLR 2021.

    Examples:
        >>> import calibrant as cb
        >>> val, test = cb.load_sample("validation"), cb.load_sample("test")
        >>> probs = cb.posthoc.SplineCalibration().fit_predictions(val).predict_proba(test.logits)
        >>> before = cb.metrics.expected_calibration_error(test.probs, test.labels)
        >>> round(before, 2), cb.metrics.expected_calibration_error(probs, test.labels) < before / 3
        (0.06, True)
    """

    method: ClassVar[str] = "spline"
    facts: ClassVar[Facts | None] = Facts(
        "spline calibration",
        CONFIDENCE,
        SORT,
        "sharp bends, and few rows: its slope is wiggly near both ends",
    )

    knots: int = argument(6, at_least=2)

    knots_: FloatArray = learnt("n")
    values_: FloatArray = learnt("n", at_least=0, at_most=1)
    ordinates_: FloatArray = learnt("m")

    @property
    def n_parameters(self) -> int:
        """Number of knots of the spline."""
        return len(self.ordinates_)

    def _fit_map(
        self, confidence: FloatArray, correct: FloatArray, weights: FloatArray | None = None
    ) -> FitReport:
        from scipy.interpolate import CubicSpline

        n = len(confidence)
        points, index, count = np.unique(confidence, return_inverse=True, return_counts=True)
        outcome = (np.bincount(index, correct) / count)[index]
        running = np.cumsum(outcome - confidence) / n
        quantile = np.linspace(0, 1, n)
        if n == 1:  # a line from nothing to the only row's error
            quantile, running = np.array([0.0, 1.0]), np.array([0.0, running[0]])
        number = min(self.knots, max(2, n // ROWS_A_KNOT))
        at = np.linspace(0, 1, number)
        # Column k is the natural spline that is 1 at knot k and 0 at the others.
        basis: Any = CubicSpline(at, np.eye(number), bc_type="natural")
        design: FloatArray = np.asarray(basis(quantile))
        found = np.linalg.lstsq(design, running, rcond=None)[0]
        self.ordinates_ = np.asarray(found, dtype=np.float64)
        slope: FloatArray = np.asarray(basis(quantile, 1) @ self.ordinates_)[:n]
        raw = np.clip(points + np.bincount(index, slope) / count, 0, 1)
        value = mixed_with_uniform(raw, n, self.n_classes_)
        kept = np.unique(np.linspace(0, len(points) - 1, min(len(points), TABLE_SIZE)).round())
        self.knots_ = points[kept.astype(np.int64)]
        self.values_ = value[kept.astype(np.int64)]
        loss = float(np.mean((value[index] - correct) ** 2))
        return FitReport(n, "squared error of the running sum", loss)

    def shape(self) -> Lines:
        """Return the values at the knots."""
        return Lines(self.knots_, self.values_)
