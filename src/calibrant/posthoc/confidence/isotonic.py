"""Isotonic regression of the top label, or of every class."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from calibrant.core.arrays import FloatArray
from calibrant.posthoc.base import FitReport
from calibrant.posthoc.confidence.base import mixed_with_uniform
from calibrant.posthoc.confidence.one_vs_rest import MapOfEitherForm


@dataclass(eq=False)
class IsotonicRegression(MapOfEitherForm):
    """The non-decreasing map of the confidence that fits the correctness best in squares.

    A step function by pool-adjacent-violators, constant beyond the rows it was fitted on and
    interpolated between blocks. Nonparametric: it needs hundreds of rows.

    Args:
        form: ``"top-label"`` maps the confidence of the predicted class and keeps it;
            ``"one-vs-rest"`` maps the probability of every class, see `MapOfEitherForm`.

    Attributes:
        knots_: (B,) confidences at the ends of the blocks, ascending; values_: (B,) the map there.

    References:
        Zadrozny & Elkan, KDD 2002.
    """

    method: ClassVar[str] = "isotonic"

    knots_: FloatArray = field(init=False, repr=False)
    values_: FloatArray = field(init=False, repr=False)

    @property
    def levels(self) -> int:
        """Number of distinct levels."""
        return len(np.unique(self.values_))

    def _fit_map(self, confidence: FloatArray, correct: FloatArray) -> FitReport:
        from scipy.optimize import isotonic_regression

        knots, index, count = np.unique(confidence, return_inverse=True, return_counts=True)
        mean = np.bincount(index, correct) / count
        fit = isotonic_regression(mean, weights=count)
        block = np.repeat(np.arange(len(fit.blocks) - 1), np.diff(fit.blocks))
        mass = np.bincount(block, count)[block]
        smoothed = mixed_with_uniform(np.asarray(fit.x), mass, self.classes_)
        # Mixing may tilt neighbouring blocks of very different size; pool again.
        smoothed = np.asarray(isotonic_regression(smoothed, weights=count).x)
        ends = np.unique(np.concatenate([fit.blocks[:-1], np.asarray(fit.blocks[1:]) - 1]))
        self.knots_, self.values_ = knots[ends], smoothed[ends]
        loss = float(np.mean((smoothed[index] - correct) ** 2))
        return FitReport(len(confidence), "squared error", loss)

    def map_confidence(self, confidence: FloatArray) -> FloatArray:
        """See `ConfidenceMap.map_confidence`."""
        return np.interp(confidence, self.knots_, self.values_)
