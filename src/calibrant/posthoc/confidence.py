"""Maps of the confidence alone: isotonic regression and histogram binning of the top label.

They say how sure the prediction is, not which one to make. `predict_confidence` returns just that;
`predict_proba` rebuilds whole rows around it without ever changing the predicted label.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from calibrant.arrays import Array, FloatArray, IntArray, like, namespace
from calibrant.errors import InputError, PredictionsError
from calibrant.metrics.binned import bin_edges, equal_mass_cuts
from calibrant.posthoc.base import Calibrator, FitReport
from calibrant.predictions import Predictions
from calibrant.rows import map_rows, softmax_chunk
from calibrant.scoring import score_rows, top_confidence

# The other classes stay below the predicted one by this share of it, well above float32 rounding.
SEPARATION = 1e-6


@dataclass(eq=False)
class ConfidenceMap(Calibrator):
    """Family: c' = map(c), with c the largest probability of softmax(z).

    Pooling rows can end in a bin with no error, or with errors only. A probability of exactly 1 or
    0 would make the likelihood of a later exception infinite, so every value is mixed with 1 / K at
    weight 1 / (n + 1), n being the rows it rests on.
    """

    keeps_prediction: ClassVar[bool] = True

    @abstractmethod
    def map_confidence(self, confidence: FloatArray) -> FloatArray:
        """Return the (N,) recalibrated confidences."""

    @abstractmethod
    def _fit_map(self, confidence: FloatArray, correct: FloatArray) -> FitReport:
        """Learn the map from confidences in ascending order and their 0/1 correctness."""

    def _fit(self, predictions: Predictions) -> FitReport:
        scores = score_rows(predictions)
        order = np.argsort(scores.confidence, kind="stable")
        return self._fit_map(scores.confidence[order], scores.correct[order].astype(np.float64))

    def _apply(self, logits: Array, features: Array | None) -> Array:
        def rebuild(chunk: Array, part: slice) -> Array:
            probs = softmax_chunk(chunk - namespace(chunk).max(chunk, axis=1, keepdims=True), part)
            label, confidence = top_confidence(chunk)
            return rebuild_rows(probs, label, self.map_confidence(confidence))

        return map_rows(logits, rebuild)

    def predict_confidence(
        self, logits: Array, features: Array | None = None
    ) -> tuple[IntArray, FloatArray]:
        """Return the (N,) predicted labels and the (N,) recalibrated confidences as they are.

        Unlike those of `predict_proba`, they may lie below 1 / K.
        """
        checked = self._checked(logits)
        unknown = np.zeros(checked.shape[0], dtype=np.int64)
        with np.errstate(invalid="ignore"):
            scores = score_rows(Predictions("logits", checked, unknown))
        usable = np.isfinite(scores.confidence)
        if not usable.all():
            raise PredictionsError(f"logits: row {int(usable.argmin())} holds NaN or infinity")
        return scores.predicted, self.map_confidence(scores.confidence)


def rebuild_rows(probs: Array, label: IntArray, confidence: FloatArray) -> Array:
    """Return rows that give each `label` its new `confidence` and keep it the largest entry.

    The other classes share the rest in their old proportions. Where one of them would overtake,
    they are mixed with their common mean just as far as needed. A class of probability 0, such as a
    masked one, gets its share only where the confidence is so low that the label can't be on top
    otherwise. Below 1 / K it can't at all: such a confidence is raised to just above.

    Args:
        probs: (n, K) probabilities, of any array kind.
        label: (n,) the label to keep on top.
        confidence: (n,) its new probability.
    """
    xp = namespace(probs)
    classes = int(probs.shape[1])
    columns = like(np.arange(classes), probs)
    chosen = columns[None, :] == like(label, probs)[:, None]
    others = xp.where(chosen, xp.zeros_like(probs), probs)
    mass = xp.sum(others, axis=1, keepdims=True)
    target = like(
        np.clip(confidence, (1 + 2 * SEPARATION) / classes, 1.0)[:, None], probs, probs.dtype
    )
    rest = 1 - target
    positive = xp.sum(xp.astype(others > 0, probs.dtype), axis=1, keepdims=True)
    crowded = target * (positive + 1) < 1 + 2 * SEPARATION
    sharing = ~chosen & ((others > 0) | crowded)
    count = xp.where(crowded, float(classes - 1), positive)
    mean = xp.where(sharing, rest / xp.where(count > 0, count, 1.0), xp.zeros_like(probs))
    others = xp.where(mass > 0, rest * (others / xp.where(mass > 0, mass, 1.0)), mean)
    highest, cap = xp.max(others, axis=1, keepdims=True), target * (1 - SEPARATION)
    excess, room = highest - cap, highest - xp.max(mean, axis=1, keepdims=True)
    share = xp.clip(excess / xp.where(excess > 0, room, 1.0), 0.0, 1.0)
    # The minimum takes off what float32 rounds up.
    others = xp.minimum(others + share * (mean - others), cap)
    return xp.where(chosen, target, others)


@dataclass(eq=False)
class IsotonicRegression(ConfidenceMap):
    """The non-decreasing map of the confidence that fits the correctness best in squares.

    A step function by pool-adjacent-violators, constant beyond the rows it was fitted on and
    interpolated between blocks. Nonparametric: it needs hundreds of rows.

    Attributes:
        knots_: (B,) confidences at the ends of the blocks, ascending; values_: (B,) the map there.

    References:
        Zadrozny & Elkan, KDD 2002.
    """

    method: ClassVar[str] = "isotonic"

    knots_: FloatArray = field(init=False, repr=False)
    values_: FloatArray = field(init=False, repr=False)

    @property
    def n_parameters(self) -> int:
        """Number of distinct levels."""
        return len(np.unique(self.values_))

    def _fit_map(self, confidence: FloatArray, correct: FloatArray) -> FitReport:
        from scipy.optimize import isotonic_regression

        knots, index, count = np.unique(confidence, return_inverse=True, return_counts=True)
        mean = np.bincount(index, correct) / count
        fit = isotonic_regression(mean, weights=count)
        block = np.repeat(np.arange(len(fit.blocks) - 1), np.diff(fit.blocks))
        mass = np.bincount(block, count)[block]
        smoothed = _mixed_with_uniform(np.asarray(fit.x), mass, self.classes_)
        # Mixing may tilt neighbouring blocks of very different size; pool again.
        smoothed = np.asarray(isotonic_regression(smoothed, weights=count).x)
        ends = np.unique(np.concatenate([fit.blocks[:-1], np.asarray(fit.blocks[1:]) - 1]))
        self.knots_, self.values_ = knots[ends], smoothed[ends]
        loss = float(np.mean((smoothed[index] - correct) ** 2))
        return FitReport(len(confidence), "squared error", loss)

    def map_confidence(self, confidence: FloatArray) -> FloatArray:
        """See `ConfidenceMap.map_confidence`."""
        return np.interp(confidence, self.knots_, self.values_)


@dataclass(eq=False)
class HistogramBinning(ConfidenceMap):
    """The confidence is replaced by the accuracy of its bin.

    Args:
        bins: number of bins; fewer are used where rows or distinct confidences are fewer.
        binning: ``"equal-mass"`` puts as many rows in each bin, cut midway between neighbours;
            ``"equal-width"`` takes (b / B, (b + 1) / B]. An empty bin keeps its middle.

    Attributes:
        edges_: (B + 1,) edges of the bins (lo, hi]; values_: (B,) the map on them.

    References:
        Zadrozny & Elkan, ICML 2001.
    """

    method: ClassVar[str] = "histogram"

    bins: int = 15
    binning: Literal["equal-mass", "equal-width"] = "equal-mass"

    edges_: FloatArray = field(init=False, repr=False)
    values_: FloatArray = field(init=False, repr=False)

    @property
    def n_parameters(self) -> int:
        """Number of bins."""
        return len(self.values_)

    def _check_arguments(self) -> None:
        if self.bins < 1:
            raise InputError(f"bins must be at least 1, not {self.bins}")
        if self.binning not in ("equal-mass", "equal-width"):
            raise InputError(f"binning must be 'equal-mass' or 'equal-width', not {self.binning!r}")

    def _fit_map(self, confidence: FloatArray, correct: FloatArray) -> FitReport:
        self.edges_ = (
            bin_edges(self.bins)
            if self.binning == "equal-width"
            else equal_mass_edges(confidence, self.bins)
        )
        index = self._bin_of(confidence)
        count = np.bincount(index, minlength=len(self.edges_) - 1)
        hits = np.bincount(index, correct, len(count))
        middle = (self.edges_[:-1] + self.edges_[1:]) / 2
        value = np.where(count > 0, hits / np.maximum(count, 1), middle)
        self.values_ = _mixed_with_uniform(value, count, self.classes_)
        loss = float(np.mean((self.values_[index] - correct) ** 2))
        return FitReport(len(confidence), "closed form", loss)

    def _bin_of(self, confidence: FloatArray) -> IntArray:
        return np.searchsorted(self.edges_[1:-1], confidence, side="left").astype(np.int64)

    def map_confidence(self, confidence: FloatArray) -> FloatArray:
        """See `ConfidenceMap.map_confidence`."""
        return self.values_[self._bin_of(confidence)]


def equal_mass_edges(confidence: FloatArray, bins: int) -> FloatArray:
    """Return edges from 0 to 1 that cut sorted confidences into equally filled bins.

    Cuts lie midway between neighbours; one that would part equal confidences is dropped.
    """
    cuts = equal_mass_cuts(len(confidence), min(bins, len(confidence)))[1:-1]
    below, above = confidence[cuts - 1], confidence[cuts]
    inner = ((below + above) / 2)[below < above]
    return np.concatenate([[0.0], np.unique(inner), [1.0]])


def _mixed_with_uniform(value: FloatArray, rows: NDArray[Any], classes: int) -> FloatArray:
    weight = 1 / (rows + 1.0)
    return np.where(rows > 0, (1 - weight) * value + weight / classes, value)
