"""Maps of one probability through its log odds: of the second of two classes, or of the top label.

With two classes there is one event, "it is class 1", and x = z_1 - z_0 are its log odds. Which
class is called 1 makes no difference to a map that is fitted by likelihood. With more classes the
event is "the predicted class is the true one", and x = log(c / (1 - c)) with the confidence c; the
other classes share what is left in their old proportions, and the predicted class is kept.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import array_api_compat.numpy as xnp
import numpy as np

from calibrant.core.arrays import Array, FloatArray, to_numpy
from calibrant.posthoc.applying import apply_map
from calibrant.posthoc.base import Calibrator, FitReport
from calibrant.posthoc.confidence.base import rebuilt
from calibrant.posthoc.learnt import learnt
from calibrant.posthoc.log_odds.fitting import fit_event, fit_or_smoothed, report_of
from calibrant.posthoc.pieces import as_type, parted, sigmoid
from calibrant.predictions.predictions import SMALLEST_PROBABILITY, Predictions

# Probabilities nearer to 0 or 1 than NLL can see count as that.
MOST_LOG_ODDS = -float(np.log(SMALLEST_PROBABILITY))


class _KeepsBeyondTwoClasses:
    """False of a class; true of what was fitted to more than two classes."""

    def __get__(self, instance: LogOddsMap | None, owner: type) -> bool:
        if instance is None:
            return False
        return instance.form_ == "toplabel" or vars(instance).get("n_classes_", 2) > 2


@dataclass(eq=False)
class LogOddsMap(Calibrator):
    """Family: p' = sigmoid(w . b(x)), x the log odds of p, b a few functions of them.

    Attributes:
        weights_: (p,) coefficients w.
    """

    keeps_prediction: ClassVar[bool] = cast(bool, _KeepsBeyondTwoClasses())
    fits_masked: ClassVar[bool] = True
    fits_top_label: ClassVar[bool] = True
    weighs: ClassVar[bool] = True

    weights_: FloatArray = learnt("p")

    @abstractmethod
    def basis(self, xp: Any, log_odds: Array) -> list[Array]:
        """Return the p functions of (n,) log odds, each (n,), in float64."""

    @property
    def n_parameters(self) -> int:
        """Number of coefficients."""
        return len(self.weights_)

    def _fit(self, predictions: Predictions) -> FitReport:
        log_odds = event_log_odds(predictions.scores)
        columns = np.stack(self.basis(xnp, log_odds), axis=1)
        return self._fit_columns(columns, event_outcomes(predictions), predictions.weights)

    def _fit_columns(
        self, columns: FloatArray, outcome: FloatArray, weight: FloatArray | None
    ) -> FitReport:
        """Learn `weights_` from (N, p) columns, (N,) 0/1 outcomes and (N,) row weights."""
        found, notes = fit_or_smoothed(
            lambda smoothed: fit_event(columns, outcome, weight, smoothed=smoothed), self.method
        )
        self.weights_ = found.weights
        return report_of(found, len(outcome), notes)

    def mapped_log_odds(self, xp: Any, log_odds: Array, learnt: Mapping[str, Array]) -> Array:
        """Return the (n,) log odds of p' of (n,) log odds of p; see `transform`."""
        weights = learnt["weights_"]
        total = xp.zeros_like(log_odds)
        for place, column in enumerate(self.basis(xp, log_odds)):
            total = total + weights[place] * column
        return total

    def transform(
        self,
        xp: Any,
        logits: Array,
        features: Array | None,
        learnt: Mapping[str, Array],
        *,
        masks: bool = True,
    ) -> Array:
        """Return [1 - p', p'] of two classes, or rows rebuilt around the top label's p'."""
        log_odds = _event_log_odds(xp, logits, None, learnt, masks=masks)
        after = self.mapped_log_odds(xp, log_odds, learnt)
        if int(logits.shape[1]) > 2:
            return rebuilt(xp, logits, parted(xp, logits), sigmoid(xp, after), masks)
        probs = xp.stack([sigmoid(xp, -after), sigmoid(xp, after)], axis=1)
        if masks:
            free = xp.astype(logits > -xp.inf, xp.float64)
            alone = xp.sum(free, axis=1, keepdims=True) < 2
            probs = xp.where(alone, free, probs)
        return as_type(xp, probs, logits)


def event_log_odds(logits: Array) -> FloatArray:
    """Return the (N,) log odds of the event that maps of this family are about, as NumPy."""
    return to_numpy(apply_map(_event_log_odds, logits, None, {}))


def event_outcomes(predictions: Predictions) -> FloatArray:
    """Return (N,) 1.0 where that event happened, else 0.0."""
    labels, logits = predictions.labels, predictions.scores
    if int(logits.shape[1]) == 2:
        return labels.astype(np.float64)
    predicted = to_numpy(apply_map(_predicted, logits, None, {}))
    return (predicted == labels).astype(np.float64)


def _event_log_odds(
    xp: Any, logits: Array, features: None, learnt: Mapping[str, Array], *, masks: bool
) -> Array:
    if int(logits.shape[1]) == 2:
        wide = xp.astype(logits, xp.float64)
        log_odds = wide[:, 1] - wide[:, 0]
    else:
        rest = parted(xp, logits).rest
        log_odds = -xp.log(xp.clip(rest, SMALLEST_PROBABILITY, None))
    return xp.clip(log_odds, -MOST_LOG_ODDS, MOST_LOG_ODDS)


def _predicted(
    xp: Any, logits: Array, features: None, learnt: Mapping[str, Array], *, masks: bool
) -> Array:
    return xp.argmax(logits, axis=1)
