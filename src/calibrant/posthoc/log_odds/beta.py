"""Beta calibration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from calibrant.core.arguments import argument
from calibrant.core.arrays import Array, FloatArray
from calibrant.posthoc.base import FitReport
from calibrant.posthoc.log_odds.base import LogOddsMap
from calibrant.posthoc.log_odds.fitting import EventFit, fit_event, fit_or_smoothed, report_of
from calibrant.posthoc.pieces import softplus

BetaForm = Literal["abm", "am", "ab"]


@dataclass(eq=False)
class BetaCalibration(LogOddsMap):
    """logit p' = a log p - b log(1 - p) + c, a and b of at least 0, by maximum likelihood.

    The map that is right where the scores of either outcome follow a beta distribution. Unlike
    Platt scaling it has the identity for a = b = 1, and S-shaped and inverse S-shaped maps around
    it. A coefficient that would be negative is 0, and the others are fitted anew, so the map never
    falls.

    Args:
        form: ``"abm"``, three parameters; ``"am"`` with a = b, which is `AffineScaling`;
            ``"ab"`` with p' = 1/2 at p = 1/2.

    Attributes:
        weights_: (3,) a, b and c.

    References:
        Kull, Silva Filho, Flach: Beta calibration. AISTATS 2017.

    Examples:
        >>> import calibrant as cb
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> labels = rng.random(40_000) < 0.5
        >>> scores = np.where(labels, rng.beta(3, 1, 40_000), rng.beta(1, 2, 40_000))
        >>> rows = cb.Predictions.from_binary(scores, labels)
        >>> a, b, _ = cb.BetaCalibration().fit_predictions(rows).weights_
        >>> round(float(a)), round(float(b))  # 3 - 1 and 2 - 1
        (2, 1)
    """

    method: ClassVar[str] = "beta"

    form: BetaForm = argument("abm", choices=("abm", "am", "ab"))

    @property
    def n_parameters(self) -> int:
        """Three, or two in the shorter forms."""
        return len(self.form)

    @property
    def midpoint_(self) -> float:
        """The p at which p' is 1/2; NaN where there is none, or more than one."""
        from scipy.optimize import brentq

        a, b, c = self.weights_.tolist()
        ends = -50.0, 50.0

        def log_odds(x: float) -> float:
            return -a * float(np.logaddexp(0, -x)) + b * float(np.logaddexp(0, x)) + c

        if not log_odds(ends[0]) < 0 < log_odds(ends[1]):
            return float("nan")
        return float(1 / (1 + np.exp(-brentq(log_odds, *ends))))

    def basis(self, xp: Any, log_odds: Array) -> list[Array]:
        """Return log p, -log(1 - p) and 1."""
        return [-softplus(xp, -log_odds), softplus(xp, log_odds), xp.ones_like(log_odds)]

    def _fit_columns(
        self, columns: FloatArray, outcome: FloatArray, weight: FloatArray | None
    ) -> FitReport:
        first, *limited = self._parameters()

        def fit(smoothed: bool) -> EventFit:
            def of(spread: FloatArray) -> EventFit:
                found = fit_event(columns @ spread, outcome, weight, smoothed=smoothed)
                return found._replace(weights=spread @ found.weights)

            free = of(first)
            if _rises(free):
                return free
            # The likelihood is concave, so its best place within limits lies on one of them.
            return min(filter(_rises, map(of, limited)), key=lambda found: found.loss)

        found, notes = fit_or_smoothed(fit, self.method)
        self.weights_ = found.weights
        return report_of(found, len(outcome), notes)

    def _parameters(self) -> list[FloatArray]:
        """Return what a, b and c are made of, (3, d) for d free parameters.

        First without limits, then with a or b at 0, and last with both.
        """
        a, b, c = np.eye(3)
        if self.form == "am":
            ways = [[a + b, c], [c]]
        elif self.form == "abm":
            ways = [[a, b, c], [a, c], [b, c], [c]]
        else:  # log p and log(1 - p) are both log(1 / 2) in the middle
            a, b = a + np.log(2.0) * c, b - np.log(2.0) * c
            ways = [[a, b], [a], [b], [0 * c]]
        return [np.stack(way, axis=1) for way in ways]


def _rises(found: EventFit) -> bool:
    return bool((found.weights[:2] >= 0).all())
