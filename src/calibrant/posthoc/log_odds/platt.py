"""Platt scaling, and the straight line and the parabola in log odds fitted by plain likelihood."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from calibrant.core.arguments import argument
from calibrant.core.arrays import Array, FloatArray
from calibrant.posthoc.base import FitReport
from calibrant.posthoc.log_odds.base import LogOddsMap
from calibrant.posthoc.log_odds.fitting import fit_event, report_of
from calibrant.posthoc.pieces import sigmoid

Inputs = Literal["log-odds", "probability"]


@dataclass(eq=False)
class PlattScaling(LogOddsMap):
    """p' = sigmoid(a x + b), x the log odds of p, fitted to Platt's smoothed targets.

    Of N1 events and N0 others, an event counts as (N1 + 1) / (N1 + 2) and another as 1 / (N0 + 2):
    then there is an optimum even where a threshold tells them apart. Two parameters. With two
    classes p is the probability of class 1, and the predicted class may change; with more it is the
    confidence, and the predicted class is kept.

    Args:
        inputs: what stands for x: ``"log-odds"``; or ``"probability"``, p itself, as it was long
            done by feeding probabilities to code that was written for a classifier's scores. A
            sigmoid of p can't be the identity, and never says less than sigmoid(b).

    Attributes:
        weights_: (2,) a and b.

    References:
        Platt, Advances in Large Margin Classifiers, 1999.

    Examples:
        >>> import calibrant as cb
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> honest = rng.normal(size=20_000)  # log odds
        >>> labels = rng.random(20_000) < 1 / (1 + np.exp(-honest))
        >>> rows = cb.Predictions.from_binary(2 * honest + 1, labels, kind="logit")
        >>> cb.PlattScaling().fit_predictions(rows).weights_.round(1)  # undoes it
        array([ 0.5, -0.5])
    """

    method: ClassVar[str] = "platt"

    inputs: Inputs = argument("log-odds", choices=("log-odds", "probability"))

    def basis(self, xp: Any, log_odds: Array) -> list[Array]:
        """Return x and 1."""
        x = log_odds if self.inputs == "log-odds" else sigmoid(xp, log_odds)
        return [x, xp.ones_like(x)]

    def _fit_columns(
        self, columns: FloatArray, outcome: FloatArray, weight: FloatArray | None
    ) -> FitReport:
        found = fit_event(columns, outcome, weight, smoothed=True)
        self.weights_ = found.weights
        return report_of(found, len(outcome))


@dataclass(eq=False)
class AffineScaling(LogOddsMap):
    """p' = sigmoid(a x + b), x the log odds of p, by maximum likelihood.

    Platt scaling without smoothed targets, and beta calibration of the form "am". With few rows the
    targets of `PlattScaling` are safer; with many the two agree. Where a threshold tells events
    from others there is no optimum, and Platt's targets are taken with a `BoundaryWarning`.

    Attributes:
        weights_: (2,) a and b.

    References:
        Cox, Biometrika 1958.

    Examples:
        >>> import calibrant as cb
        >>> rows = cb.Predictions.from_binary([0.9] * 4 + [0.1] * 4, [1, 1, 1, 0, 1, 0, 0, 0])
        >>> after = cb.AffineScaling().fit_predictions(rows).apply_predictions(rows)
        >>> after.positive_probs[[0, -1]].round(3)  # three of four, and one of four
        array([0.75, 0.25])
    """

    method: ClassVar[str] = "affine"

    def basis(self, xp: Any, log_odds: Array) -> list[Array]:
        """Return x and 1."""
        return [log_odds, xp.ones_like(log_odds)]


@dataclass(eq=False)
class QuadraticScaling(LogOddsMap):
    """p' = sigmoid(a x^2 + b x + c), x the log odds of p, by maximum likelihood.

    Three parameters: also an asymmetry that bends with x. Not monotone: beyond -b / (2 a) it turns
    around, which far outside the calibration rows may say the opposite of what it should.

    Attributes:
        weights_: (3,) a, b and c.

    References:
        Berta, Holzmueller, Jordan, Bach: Structured Matrix Scaling. arXiv 2511.03685, 2025.

    Examples:
        >>> import calibrant as cb
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> x = rng.normal(size=20_000)
        >>> labels = rng.random(20_000) < 1 / (1 + np.exp(-(x + 0.5 * x**2)))
        >>> rows = cb.Predictions.from_binary(x, labels, kind="logit")
        >>> round(float(cb.QuadraticScaling().fit_predictions(rows).weights_[0]), 1)
        0.5
    """

    method: ClassVar[str] = "quadratic"

    def basis(self, xp: Any, log_odds: Array) -> list[Array]:
        """Return x^2, x and 1."""
        return [log_odds * log_odds, log_odds, xp.ones_like(log_odds)]
