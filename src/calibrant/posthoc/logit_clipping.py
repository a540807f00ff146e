"""Logit clipping: no logit may stand out from its row by more than a constant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from calibrant.arrays import Array, FloatArray, IntArray, namespace, row_chunks
from calibrant.errors import NotIdentifiedWarning, warn_caller
from calibrant.masks import centred, centred_copy, remasked
from calibrant.posthoc.arguments import argument
from calibrant.posthoc.base import Calibrator, FitReport
from calibrant.posthoc.binned_gap import binned_gap
from calibrant.posthoc.learnt import learnt
from calibrant.predictions import Predictions
from calibrant.rows import map_rows, softmax_chunk

# The search never goes below this quantile of the logits, nor this fraction of the largest.
LOWEST_QUANTILE, LOWEST_FRACTION = 0.8, 0.01
# A gain smaller than this is rounding.
ROUNDING = 1e-12


@dataclass(eq=False)
class LogitClipping(Calibrator):
    """softmax(clip(z, -C, C)) of centred logits z; one parameter.

    Confidence is bounded, by 1 / (1 + (K - 1) exp(-2 C)), and rows without a large logit stay as
    they are. So it helps a network whose only fault is that it is too sure when it is sure; others
    are better off with temperature scaling. Several logits above C become equal: then the order of
    the classes is lost and the first of them is predicted, so accuracy may fall. Each row's mean is
    taken off first, since clipping depends on the origin of the logits.

    C is searched on a geometric grid from the largest absolute logit, which changes nothing, down
    to the 80 % quantile of all logits. Out of those that keep more than `accuracy_kept` of the
    original accuracy the one with the lowest criterion is taken. A row with tied classes counts
    as right by the share of its label among them, so the order of the classes has no part in it.

    Args:
        criterion: ``"ece"`` or ``"nll"``; the latter is a proper score, and less noisy.
        bins: equal-width bins of the ECE.
        candidates: values on the grid.
        accuracy_kept: fraction of the original accuracy that must be exceeded.

    Attributes:
        clip_: C, in the caller's units.

    References:
        As in the benchmark of Sample Margin-Aware Recalibration of Temperature (2025), where C goes
        up in steps of 0.01.
    """

    method: ClassVar[str] = "logit-clipping"
    keeps_prediction: ClassVar[bool] = False

    criterion: Literal["ece", "nll"] = argument("ece", choices=("ece", "nll"))
    bins: int = argument(15, at_least=1)
    candidates: int = argument(100, at_least=2)
    accuracy_kept: float = argument(0.95, at_least=0, below=1)

    clip_: float = learnt(at_least=0)

    @property
    def n_parameters(self) -> int:
        """One."""
        return 1

    def _fit(self, predictions: Predictions) -> FitReport:
        logits = centred_copy(predictions.scores)
        highest = float(np.abs(logits).max())
        if highest == 0.0:
            message = "the logits are constant, so clipping them changes nothing"
            warn_caller(NotIdentifiedWarning(message))
            self.clip_ = 1.0
            note = f"NotIdentifiedWarning: {message}"
            return FitReport(predictions.n, self.criterion, notes=(note,))
        lowest = max(float(np.quantile(logits, LOWEST_QUANTILE)), LOWEST_FRACTION * highest)
        best, original = np.inf, 0.0
        for step, clip in enumerate(np.geomspace(highest, lowest, self.candidates).tolist()):
            confidence, correct, nll = clipped_rows(logits, predictions.labels, clip)
            accuracy = float(correct.mean())
            if step == 0:
                original, self.clip_ = accuracy, clip
            elif accuracy <= self.accuracy_kept * original:
                continue
            value = binned_gap(confidence, correct, self.bins)
            value = float(nll.mean()) if self.criterion == "nll" else value
            if value < best - ROUNDING:
                best, self.clip_ = value, clip
        return FitReport(predictions.n, self.criterion, best, self.candidates)

    def _apply(self, logits: Array, features: Array | None) -> Array:
        xp = namespace(logits)

        def clip(chunk: Array, part: slice) -> Array:
            values, masked = centred(chunk)
            scores = remasked(xp.clip(values, -self.clip_, self.clip_), masked)
            # Infinity must be found out here: clipped it would pass for a number.
            scores = xp.where(xp.isfinite(values), scores, xp.nan)
            return softmax_chunk(scores - xp.max(scores, axis=1, keepdims=True), part)

        return map_rows(logits, clip)


def clipped_rows(
    logits: FloatArray, labels: IntArray, clip: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return (N,) confidence, share of the label among the top classes, and NLL, once clipped."""
    rows = len(labels)
    confidence, correct, nll = np.empty(rows), np.empty(rows), np.empty(rows)
    for part in row_chunks(logits):
        below = np.clip(logits[part], -clip, clip)
        below -= below.max(axis=1, keepdims=True)
        of_label = below[np.arange(len(below)), labels[part]]
        correct[part] = (of_label == 0) / (below == 0).sum(axis=1)
        total = np.exp(below).sum(axis=1)
        confidence[part] = 1 / total
        nll[part] = np.log(total) - of_label
    return confidence, correct, nll
