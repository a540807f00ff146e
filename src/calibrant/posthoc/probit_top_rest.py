"""Probit scaling for the tails, top-rest scaling for the margin."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from calibrant.arrays import Array, as_array, like, namespace
from calibrant.posthoc.arguments import argument
from calibrant.posthoc.base import Calibrator, FitReport
from calibrant.posthoc.probit import ProbitScaling
from calibrant.posthoc.top_rest import TopRestScaling, log_probabilities
from calibrant.predictions import Predictions


@dataclass(eq=False)
class ProbitTopRestScaling(Calibrator):
    """Probit scaling, whose outcome is recalibrated by top-rest scaling.

    Top-rest scaling takes the spread over the classes below the top from temperature scaling, whose
    tails are those of Gumbel noise; here it takes it from normal noise. The logits of the second
    step are the log-probabilities of the first. One number can't overfit the rows that it is fitted
    to by more than a trifle, so both steps see the same rows, as in top-rest scaling itself. The
    predicted class is kept.

    Args:
        knots, penalty: of top-rest scaling.

    Attributes:
        probit_: the fitted probit scaling; top_rest_: the fitted top-rest scaling behind it.
    """

    method: ClassVar[str] = "probit-top-rest"
    keeps_prediction: ClassVar[bool] = True
    fits_masked: ClassVar[bool] = True
    part_names: ClassVar[tuple[str, ...]] = ("probit_", "top_rest_")

    knots: int = argument(16, at_least=1)
    penalty: float = argument(0.0, at_least=0)

    probit_: ProbitScaling = field(init=False, repr=False)
    top_rest_: TopRestScaling = field(init=False, repr=False)

    @property
    def n_parameters(self) -> int:
        """Those of both steps."""
        return self.probit_.n_parameters + self.top_rest_.n_parameters

    def _fit(self, predictions: Predictions) -> FitReport:
        logits, labels = predictions.scores, predictions.labels
        self.probit_ = ProbitScaling().fit(logits, labels)
        scores = self._scores(logits)
        self.top_rest_ = TopRestScaling(knots=self.knots, penalty=self.penalty).fit(scores, labels)
        return self.top_rest_.fit_report_.behind(self.probit_.fit_report_)

    def _apply(self, logits: Array, features: Array | None) -> Array:
        return self.top_rest_.predict_proba(self._scores(logits))

    def _scores(self, logits: Array) -> Array:
        """Return the (N, K) logits of the second step.

        The top class is lifted by a rounding error, so that none overtakes it that is level with it
        after the first step.
        """
        scores = log_probabilities(self.probit_, logits)
        xp = namespace(scores)
        columns = like(np.arange(int(scores.shape[1])), scores)
        chosen = columns[None, :] == xp.argmax(as_array(logits), axis=1)[:, None]
        top = xp.max(scores, axis=1, keepdims=True)
        lifted = top + 2 * xp.finfo(scores.dtype).eps * (1 + xp.abs(top))
        return xp.where(chosen, lifted, scores)
