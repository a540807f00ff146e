"""The likelier tails, and top-rest scaling for the margin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from calibrant.core.arguments import argument
from calibrant.core.arrays import Array, IntArray, like, pick, to_numpy
from calibrant.posthoc.base import Calibrator, FitReport
from calibrant.posthoc.chains.chain import learnt_by
from calibrant.posthoc.confidence.top_rest import TopRestScaling
from calibrant.posthoc.fitting.cross_validation import seen_through
from calibrant.posthoc.noise.probit import ProbitScaling
from calibrant.posthoc.pieces import scores_behind
from calibrant.posthoc.temperature.single import TemperatureScaling
from calibrant.predictions.predictions import Predictions


@dataclass(eq=False)
class ProbitTopRestScaling(Calibrator):
    """Probit or temperature scaling, whose outcome is recalibrated by top-rest scaling.

    Top-rest scaling takes the spread over the classes below the top from temperature scaling, whose
    tails are those of Gumbel noise. Normal noise describes some networks much better and some
    worse, and the calibration rows say which: both have one number, and normal noise is taken if it
    is likelier by more than a standard error. It is what a single surprise costs more under, so few
    rows don't choose it. The first step's log-probabilities are the logits of the second. One
    number can't overfit by more than a trifle, so both steps see the same rows, as in top-rest
    scaling itself. The predicted class is kept. `docs/beyond-smart.md` has what it is worth.

    Args:
        tails: ``"likelier"`` ones, or ``"normal"`` whatever the rows say.
        knots, penalty: of top-rest scaling.

    Attributes:
        first_: the fitted probit or temperature scaling; top_rest_: the fitted top-rest scaling
            behind it.
    """

    method: ClassVar[str] = "probit-top-rest"
    keeps_prediction: ClassVar[bool] = True
    fits_masked: ClassVar[bool] = True
    part_names: ClassVar[tuple[str, ...]] = ("first_", "top_rest_")

    tails: Literal["likelier", "normal"] = argument("likelier", choices=("likelier", "normal"))
    knots: int = argument(16, at_least=1)
    penalty: float = argument(0.0, at_least=0)

    first_: Calibrator = field(init=False, repr=False)
    top_rest_: TopRestScaling = field(init=False, repr=False)

    @property
    def n_parameters(self) -> int:
        """Those of both steps."""
        return self.first_.n_parameters + self.top_rest_.n_parameters

    def _fit(self, predictions: Predictions) -> FitReport:
        logits, labels = predictions.scores, predictions.labels
        self.first_ = ProbitScaling().fit(logits, labels)
        scores = seen_through(self.first_.predict_proba(logits), logits, keeps=True)
        if self.tails == "likelier":
            scaled = TemperatureScaling().fit(logits, labels)
            scaled_scores = seen_through(scaled.predict_proba(logits), logits, keeps=True)
            if not _clearly_likelier(scores, scaled_scores, labels):
                self.first_, scores = scaled, scaled_scores
        second = TopRestScaling(knots=self.knots, penalty=self.penalty)
        self.top_rest_ = second.fit(scores, labels)
        return self.top_rest_.fit_report_.behind(self.first_.fit_report_)

    def transform(
        self,
        xp: Any,
        logits: Array,
        features: Array | None,
        learnt: Mapping[str, Array],
        *,
        masks: bool = True,
    ) -> Array:
        """Return what the second step gives."""
        first, second = (learnt_by(name, learnt) for name in self.part_names)
        probs = self.first_.transform(xp, logits, None, first, masks=masks)
        scores = scores_behind(xp, probs, logits, masks=masks, keeps=True)
        return self.top_rest_.transform(xp, scores, None, second, masks=masks)


def _clearly_likelier(scores: Array, others: Array, labels: IntArray) -> bool:
    """Return whether the mean log loss of `scores` is lower by more than its standard error."""
    own, other = (-to_numpy(pick(given, like(labels, given))) for given in (scores, others))
    gain = (other - own).astype(np.float64)
    return bool(gain.mean() > gain.std(ddof=1) / np.sqrt(len(gain))) if len(gain) > 1 else False
