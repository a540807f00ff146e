from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

import calibrant as cb


@dataclass(eq=False)
class ShrinkTowardsUniform(cb.Calibrator):
    """Mixes with the uniform distribution until the mean confidence is the accuracy."""

    method: ClassVar[str] = "shrink-uniform"
    keeps_prediction: ClassVar[bool] = True
    n_parameters = 1

    weight_: float = field(init=False, repr=False)

    def _fit(self, predictions: cb.Predictions) -> cb.posthoc.FitReport:
        probs = np.asarray(cb.predictions.softmax(predictions.scores))
        confidence, accuracy = probs.max(1), np.mean(probs.argmax(1) == predictions.labels)
        room = max(confidence.mean() - 1 / self.n_classes_, 1e-12)
        self.weight_ = float(np.clip((confidence.mean() - accuracy) / room, 0, 0.999))
        return cb.posthoc.FitReport(predictions.n, "closed form")

    def transform(self, xp, logits, features, learnt, *, masks=True):
        weight = xp.astype(learnt["weight_"], logits.dtype)
        scores = xp.exp(logits - xp.max(logits, axis=1, keepdims=True))
        probs = scores / xp.sum(scores, axis=1, keepdims=True)
        return (1 - weight) * probs + weight / logits.shape[1]
