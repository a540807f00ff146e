"""Logit clipping: no logit may stand out from its row by more than a constant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from calibrant.core.arguments import argument
from calibrant.core.arrays import Array, FloatArray, IntArray, centred_copy, row_chunks
from calibrant.core.errors import NotIdentifiedWarning
from calibrant.core.fit_report import FitReport
from calibrant.metrics.binned import binned_gap
from calibrant.posthoc.applying import Learnt
from calibrant.posthoc.array_ops import as_type, centred, softmax, still_masked
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.facts import Facts
from calibrant.posthoc.fitting.cross_validation import difference_of_losses, fold_numbers
from calibrant.posthoc.state import learnt
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import summarize
from calibrant.predictions.temperature import fit_temperature, warn_of

# The search never goes below this quantile of the logits, nor this fraction of the largest.
LOWEST_QUANTILE, LOWEST_FRACTION = 0.8, 0.01
# Of the contest between clipping and not.
FOLDS = 5
# A gain smaller than this is rounding.
ROUNDING = 1e-12


@dataclass(eq=False)
class LogitClipping(Calibrator):
    """softmax(clip(z, -C, C) / T) of centred logits z; two parameters.

    Confidence is bounded by 1 / (1 + (K - 1) exp(-2 C / T)), and rows without a large logit are
    changed by T alone. So it helps a network that is overconfident only in its most confident rows.
    Several logits above C become equal: then the order of the classes is lost and the first of them
    is predicted, so accuracy may fall. Each row's mean is taken off first, since clipping depends
    on the origin of the logits.

    C is searched on a geometric grid from the largest absolute logit, which changes nothing, down
    to the 80 % quantile of all logits. Among the values that keep more than `accuracy_kept` of the
    original accuracy, the one with the lowest criterion is taken. A row with tied classes counts as
    right by the share of its label among them, so the order of the classes has no part in it.

    By likelihood, T is fitted again for every C. Nothing is clipped unless clipping gains on
    temperature scaling in five-fold cross-validation by more than a standard error of the paired
    difference. By ECE it is the published search, in which T is 1.

    Held-out NLL (standard error), and accuracy in points, minus that of temperature scaling, five
    draws of the rows of a ResNet-50 (CIFAR-10) and a WideResNet-16-4 (CIFAR-100); "ece" with the
    published ``accuracy_kept=0.95``:

        =========  =====  ====================  ====================
        data       rows   nll                   ece
        =========  =====  ====================  ====================
        CIFAR-10   200    +.0000 (.0000),  .00  -.0083 (.0032), -.28
        CIFAR-10   1 000  -.0025 (.0016), -.22  -.0084 (.0010), -.35
        CIFAR-10   5 000  -.0072 (.0019), -.43  -.0089 (.0012), -.37
        CIFAR-100  200    +.0000 (.0000),  .00  +.0239 (.0135), -2.1
        CIFAR-100  1 000  -.0014 (.0014), -.04  +.0167 (.0024), -1.7
        CIFAR-100  5 000  -.0057 (.0008), -.27  +.0112 (.0020), -1.5
        =========  =====  ====================  ====================

    Args:
        criterion: ``"nll"`` or ``"ece"``.
        n_bins: equal-width bins of the ECE.
        candidates: values on the grid.
        accuracy_kept: fraction of the original accuracy that must be exceeded.

    Attributes:
        clip_: C, in the caller's units; 0 if nothing is clipped. beta_: 1 / T.

    References:
        As in the benchmark of Sample Margin-Aware Recalibration of Temperature (2025): by ECE,
        accuracy kept to 95 %, C going up in steps of 0.01. T and likelihood are this package's.

    Examples:
        >>> import calibrant as cb
        >>> val = cb.load_sample("validation")
        >>> cb.posthoc.LogitClipping().fit_predictions(val).clip_  # no gain, so nothing is clipped
        0.0
        >>> cb.posthoc.LogitClipping(criterion="ece").fit_predictions(val).clip_ > 0
        True
    """

    method: ClassVar[str] = "logit-clipping"
    facts: ClassVar[Facts | None] = Facts(
        "logit clipping",
        "a clip of the logits",
        "tens of passes over N x K",
        "rows whose logits stay within bounds: it is temperature scaling there",
    )
    keeps_prediction: ClassVar[bool] = False

    criterion: Literal["nll", "ece"] = argument("nll", choices=("nll", "ece"))
    n_bins: int = argument(15, at_least=1)
    candidates: int = argument(40, at_least=2)
    accuracy_kept: float = argument(0.99, at_least=0, below=1)

    clip_: float = learnt(at_least=0)
    beta_: float = learnt(above=0)

    @property
    def n_parameters(self) -> int:
        """C, and T by likelihood."""
        return 1 if self.criterion == "ece" else 2

    def _fit(self, predictions: Predictions) -> FitReport:
        logits = centred_copy(predictions.scores)
        self.clip_, self.beta_ = 0.0, 1.0
        if self.criterion == "nll":
            return self._fit_by_likelihood(logits, predictions.labels)
        if not logits.any():
            message = "the logits are constant, so clipping them changes nothing"
            notes = warn_of(NotIdentifiedWarning(message))
            return FitReport(predictions.n, self.criterion, notes=notes)
        best, original = np.inf, 0.0
        for step, clip in enumerate(self._grid(logits)):
            confidence, correct = clipped_rows(logits, predictions.labels, clip)
            accuracy = float(correct.mean())
            if step == 0:
                original = accuracy
            elif accuracy <= self.accuracy_kept * original:
                continue
            value = binned_gap(confidence, correct, self.n_bins)
            if value < best - ROUNDING:
                best, self.clip_ = value, clip
        return FitReport(predictions.n, self.criterion, best, self.candidates)

    def _fit_by_likelihood(self, logits: FloatArray, labels: IntArray) -> FitReport:
        rows = summarize(logits, labels, curve="dense")
        single = fit_temperature(rows)
        self.beta_, report = single.beta, single.report(rows.n)
        if single.warning is not None:
            return report
        clips, fits, losses = [0.0], [single], [rows.losses(single.beta)]
        fold = fold_numbers(rows, min(FOLDS, rows.n), seed=0)
        original = float(rows.correct.mean())
        for clip in self._grid(logits)[1:]:
            _, correct = clipped_rows(logits, labels, clip)
            if correct.mean() <= self.accuracy_kept * original:
                continue
            rows = summarize(np.clip(logits, -clip, clip), labels, curve="dense")
            fit = fit_temperature(rows)
            if fit.warning is None:
                clips.append(clip)
                fits.append(fit)
                losses.append(rows.losses(fit.beta))
        if not _clearly_gains(np.array(losses), fold):
            note = "clipping gains no likelihood beyond noise, so nothing is clipped"
            return report.noting(note)
        best = min(range(len(fits)), key=lambda i: fits[i].nll)
        self.clip_, self.beta_ = clips[best], fits[best].beta
        return FitReport(rows.n, "nll", fits[best].nll, self.candidates, notes=report.notes)

    def _grid(self, logits: FloatArray) -> list[float]:
        highest = float(np.abs(logits).max())
        lowest = max(float(np.quantile(logits, LOWEST_QUANTILE)), LOWEST_FRACTION * highest)
        return np.geomspace(highest, lowest, self.candidates).tolist()

    def transform(
        self, xp: Any, logits: Array, features: Array | None, learnt: Learnt, *, masks: bool = True
    ) -> Array:
        """Return softmax(beta clip(z, -C, C)) of centred z; C = 0 is no bound."""
        values, clip = centred(xp, logits, masks), learnt["clip_"]
        bound = as_type(xp, xp.where(clip > 0, clip, xp.ones_like(clip) * xp.inf), logits)
        scores = xp.minimum(xp.maximum(values, -bound), bound) * as_type(
            xp, learnt["beta_"], logits
        )
        return softmax(xp, still_masked(xp, logits, scores, masks))


def _clearly_gains(losses: FloatArray, fold: IntArray) -> bool:
    """Return whether the best of (C, N) losses is below the first on rows that didn't choose it.

    By more than the standard error of the paired difference. Each fold's rows take the losses of
    the candidate that is best on the other rows.
    """
    folds = np.unique(fold).tolist()
    if len(folds) < 2:
        return False
    held_out = np.empty(losses.shape[1])
    for part in folds:
        own = fold == part
        held_out[own] = losses[int(losses[:, ~own].mean(axis=1).argmin()), own]
    gain = difference_of_losses(losses[0], held_out, len(folds))
    return gain.value > gain.error


def clipped_rows(
    logits: FloatArray, labels: IntArray, clip: float
) -> tuple[FloatArray, FloatArray]:
    """Return (N,) confidence, and share of the label among the top classes, once clipped."""
    rows = len(labels)
    confidence, correct = np.empty(rows), np.empty(rows)
    for part in row_chunks(logits):
        below = np.clip(logits[part], -clip, clip)
        below -= below.max(axis=1, keepdims=True)
        of_label = below[np.arange(len(below)), labels[part]]
        correct[part] = (of_label == 0) / (below == 0).sum(axis=1)
        confidence[part] = 1 / np.exp(below).sum(axis=1)
    return confidence, correct
