"""Chains that have a name of their own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np

from calibrant.core.arguments import argument
from calibrant.core.arrays import Array, FloatArray
from calibrant.core.fit_report import FitReport
from calibrant.core.weights import times
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.chain import Chain, chain_of
from calibrant.posthoc.confidence.top_rest import TopRestScaling
from calibrant.posthoc.facts import TOP_REST, Facts
from calibrant.posthoc.fitting.cross_validation import fold_numbers, held_out_losses, seen_through
from calibrant.posthoc.linear.vector import StructuredVectorScaling
from calibrant.posthoc.noise import ProbitScaling
from calibrant.posthoc.temperature.scaling import TemperatureScaling
from calibrant.predictions.predictions import Predictions

# Standard errors by which normal noise has to be better. Of 0, 0.25 and 0.5 the middle one lost
# least to the better choice, over six kinds of data with 50 to 5 000 rows each
# (the study `first-steps`).
CLEAR = 0.25


@dataclass(eq=False)
class ProbitTopRestScaling(Chain):
    """Probit or temperature scaling, whose outcome is recalibrated by top-rest scaling.

    Top-rest scaling takes the spread over the classes below the top from temperature scaling, whose
    tails are those of Gumbel noise. Normal noise describes some networks much better and some
    worse, and the calibration rows say which, by what it is worth in the end: top-rest scaling
    behind either is fitted to each half of the rows and judged on the other half, row by row.
    Normal noise is taken if its log loss there is lower by more than a quarter of the standard
    error of the difference, even without the row that speaks for it most. Where the two can't be
    told apart it matters little which is taken. But a single surprise costs more under normal
    noise, and few rows may not hold one; so one row doesn't decide.

    The first step's log-probabilities are the logits of the second. One number can't overfit by
    more than a trifle, so both steps see the same rows, as in top-rest scaling itself. The
    predicted class is kept. `docs/appendix/beyond-smart.md` has what it is worth.

    Args:
        tails: ``"likelier"`` ones, as above, or ``"normal"`` whatever the rows say.
        knots, penalty: of top-rest scaling.
        folds: parts in which the two are compared. What is fitted to one half and judged on the
            other takes no longer than a fit to all.
        seed: of the folds.

    Attributes:
        first_: the fitted probit or temperature scaling; top_rest_: the fitted top-rest scaling
            behind it.

    References:
        Calibrant's own; docs/appendix/beyond-smart.md measures it.

    Examples:
        >>> import calibrant as cb
        >>> val, test = cb.load_sample("validation"), cb.load_sample("test")
        >>> for method in (cb.TemperatureScaling(), cb.posthoc.ProbitTopRestScaling()):
        ...     probs = method.fit_predictions(val).predict_proba(test.logits)
        ...     print(f"{cb.metrics.negative_log_likelihood(probs, test.labels):.4f}")
        0.4685
        0.4669
    """

    method: ClassVar[str] = "probit-top-rest"
    facts: ClassVar[Facts | None] = Facts(
        "probit scaling, then top-rest scaling",
        TOP_REST,
        "two to three fits of top-rest, and one of probit",
        "as top-rest",
    )
    weighs: ClassVar[bool] = True
    keeps_prediction: ClassVar[bool] = True
    fits_masked: ClassVar[bool] = True
    kinds: ClassVar[tuple[type[Calibrator], ...]] = (ProbitScaling, TopRestScaling)
    part_names: ClassVar[tuple[str, ...]] = ("first_", "top_rest_")

    tails: Literal["likelier", "normal"] = argument("likelier", choices=("likelier", "normal"))
    knots: int = argument(16, at_least=1)
    penalty: float = argument(0.0, at_least=0)
    folds: int = argument(2, at_least=2)

    first_: Calibrator = field(init=False, repr=False)
    top_rest_: TopRestScaling = field(init=False, repr=False)

    def _fit(self, predictions: Predictions) -> FitReport:
        logits = predictions.scores
        rows = predictions.only_logits()
        self.first_ = ProbitScaling().fit_predictions(rows)
        scores = seen_through(self.first_.predict_proba(logits, kind="logits"), logits, keeps=True)
        if self.tails == "likelier":
            scaled = TemperatureScaling().fit_predictions(rows)
            scaled_scores = seen_through(
                scaled.predict_proba(logits, kind="logits"), logits, keeps=True
            )
            if not self._clearly_better(scores, scaled_scores, predictions):
                self.first_, scores = scaled, scaled_scores
        self.top_rest_ = self._second().fit_predictions(rows.only_logits(scores))
        return self.top_rest_.fit_report_.behind(self.first_.fit_report_)

    def _second(self) -> TopRestScaling:
        return TopRestScaling(knots=self.knots, penalty=self.penalty)

    def _clearly_better(self, scores: Array, others: Array, predictions: Predictions) -> bool:
        """Return whether the second step behind `scores` is better on rows that it hasn't seen."""
        if predictions.n < self.folds:
            return False
        fold = fold_numbers(
            predictions.summary, self.folds, self.seed, clusters=predictions.clusters
        )
        own, other = (
            held_out_losses(self._second(), predictions.only_logits(z), fold)
            for z in (scores, others)
        )
        return is_gain(times(other - own, predictions.weights))

    @classmethod
    def may_be(cls, place: int, method: str) -> bool:
        """Return whether a step can stand there: the first may be temperature scaling as well."""
        return super().may_be(place, method) or (place, method) == (0, TemperatureScaling.method)


def is_gain(gains: FloatArray) -> bool:
    """Return whether (N,) gains of rows are more than noise, even without the largest of them."""
    error = gains.std(ddof=1) / np.sqrt(len(gains))
    return bool((gains.sum() - gains.max()) / len(gains) > CLEAR * error)


StructuredVectorTopRestScaling = chain_of(
    StructuredVectorScaling,
    TopRestScaling,
    name="svs-top-rest",
    facts=Facts(
        "structured vector scaling, then top-rest scaling",
        TOP_REST,
        "svs once for each fold, then top-rest",
        "very few rows; it may change predicted classes",
    ),
)
