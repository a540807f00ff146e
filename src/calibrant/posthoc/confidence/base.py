"""What maps of the confidence alone have in common.

They say how sure the prediction is, not which one to make. `predict_confidence` returns just that;
`predict_proba` rebuilds whole rows around it without ever changing the predicted label.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from calibrant.core.arrays import Array, FloatArray, IntArray, like, namespace
from calibrant.core.checks import refuse_infinite
from calibrant.core.masks import masked_classes
from calibrant.posthoc.base import Calibrator, FitReport
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import map_rows, softmax_chunk
from calibrant.predictions.scoring import score_top, top_confidence

# The other classes stay below the predicted one by this share of it, well above float32 rounding.
SEPARATION = 1e-6


@dataclass(eq=False)
class ConfidenceMap(Calibrator):
    """Family: c' = map(c), with c the largest probability of softmax(z).

    Pooling rows can end in a bin with no error, or with errors only. A probability of exactly 1 or
    0 would make the likelihood of a later exception infinite. So all values are mixed with 1 / K at
    weight 1 / (N + 1) (`mixed_with_uniform`), after those that rest on the few rows of a bin have
    been drawn towards the others (see `shrinkage`). The mean confidence stays the accuracy that
    way, up to one row in N + 1.
    """

    keeps_prediction: ClassVar[bool] = True
    fits_masked: ClassVar[bool] = True

    @abstractmethod
    def map_confidence(self, confidence: FloatArray) -> FloatArray:
        """Return the (N,) recalibrated confidences."""

    @abstractmethod
    def _fit_map(self, confidence: FloatArray, correct: FloatArray) -> FitReport:
        """Learn the map from confidences in ascending order and their 0/1 correctness."""

    def _fit(self, predictions: Predictions) -> FitReport:
        scores = score_top(predictions)
        order = np.argsort(scores.confidence, kind="stable")
        return self._fit_map(scores.confidence[order], scores.correct[order].astype(np.float64))

    def _apply(self, logits: Array, features: Array | None) -> Array:
        def rebuild(chunk: Array, part: slice) -> Array:
            probs = softmax_chunk(chunk - namespace(chunk).max(chunk, axis=1, keepdims=True), part)
            label, confidence = top_confidence(chunk)
            return rebuild_rows(
                probs, label, self.map_confidence(confidence), masked_classes(chunk)
            )

        return map_rows(logits, rebuild)

    def predict_confidence(
        self, logits: Array, features: Array | None = None
    ) -> tuple[IntArray, FloatArray]:
        """Return the (N,) predicted labels and the (N,) recalibrated confidences as they are.

        Unlike those of `predict_proba`, they may lie below 1 / K.
        """
        label, confidence = self._raw_confidence(logits)
        return label, self.map_confidence(confidence)

    def _raw_confidence(self, logits: Array) -> tuple[IntArray, FloatArray]:
        """Return the predicted labels and the confidences before the map."""
        checked = self._checked(logits)
        unknown = np.zeros(checked.shape[0], dtype=np.int64)
        with np.errstate(invalid="ignore"):
            scores = score_top(Predictions("logits", checked, unknown))
        refuse_infinite(np.isfinite(scores.confidence))
        return scores.predicted, scores.confidence


def rebuild_rows(
    probs: Array, label: IntArray, confidence: FloatArray, masked: Array | None = None
) -> Array:
    """Return rows that give each `label` its new `confidence` and keep it the largest entry.

    The other classes share the rest in their old proportions. Where one of them would overtake,
    they are mixed with their common mean just as far as needed. A class of probability 0 gets its
    share only where the confidence is so low that the label can't be on top otherwise, and a masked
    class never. Below one over the number of unmasked classes the label can't be on top at all, so
    such a confidence is raised to just above.

    Args:
        probs: (n, K) probabilities, of any array kind.
        label: (n,) the label to keep on top.
        confidence: (n,) its new probability.
        masked: (n, K) where a class must keep probability 0, or None.
    """
    xp = namespace(probs)
    columns = like(np.arange(int(probs.shape[1])), probs)
    chosen = columns[None, :] == like(label, probs)[:, None]
    allowed = ~chosen if masked is None else ~(chosen | masked)
    free = xp.sum(xp.astype(allowed, probs.dtype), axis=1, keepdims=True)
    others = xp.where(chosen, xp.zeros_like(probs), probs)
    mass = xp.sum(others, axis=1, keepdims=True)
    target = like(np.minimum(confidence, 1.0)[:, None], probs, probs.dtype)
    target = xp.clip(xp.maximum(target, (1 + 2 * SEPARATION) / (1 + free)), None, 1.0)
    rest = 1 - target
    positive = xp.sum(xp.astype(others > 0, probs.dtype), axis=1, keepdims=True)
    crowded = target * (positive + 1) < 1 + 2 * SEPARATION
    sharing = allowed & ((others > 0) | crowded)
    count = xp.where(crowded, free, positive)
    mean = xp.where(sharing, rest / xp.where(count > 0, count, 1.0), xp.zeros_like(probs))
    others = xp.where(mass > 0, rest * (others / xp.where(mass > 0, mass, 1.0)), mean)
    highest, cap = xp.max(others, axis=1, keepdims=True), target * (1 - SEPARATION)
    excess, room = highest - cap, highest - xp.max(mean, axis=1, keepdims=True)
    share = xp.clip(excess / xp.where(excess > 0, room, 1.0), 0.0, 1.0)
    # The minimum takes off what float32 rounds up.
    others = xp.minimum(others + share * (mean - others), cap)
    return xp.where(chosen, target, others)


def mixed_with_uniform(value: FloatArray, rows: int, classes: int) -> FloatArray:
    """Return values mixed with 1 / K at weight 1 / (rows + 1).

    Args:
        value: values of a map.
        rows: number of rows that they rest on.
        classes: number of classes K.
    """
    return value + (1 / classes - value) / (rows + 1)
