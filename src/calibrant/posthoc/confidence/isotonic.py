"""Isotonic regression of the top label, or of every class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from calibrant.core.arrays import FloatArray
from calibrant.core.weights import mean, times
from calibrant.posthoc.base import FitReport
from calibrant.posthoc.confidence.shapes import Lines
from calibrant.posthoc.confidence.shrinkage import ShrunkMap, shrunk_steps
from calibrant.posthoc.learnt import learnt


@dataclass(eq=False)
class IsotonicRegression(ShrunkMap):
    """The non-decreasing map of the confidence that fits the correctness best in squares.

    A step function by pool-adjacent-violators, constant beyond the rows it was fitted on and
    interpolated between blocks. Nonparametric: it needs hundreds of rows. Blocks are drawn towards
    their common centre as the bins of `HistogramBinning` are, and pooled again where that puts them
    out of order; the mean confidence stays the accuracy.

    Args:
        form: ``"top-label"`` maps the confidence of the predicted class and keeps it;
            ``"one-vs-rest"`` maps the probability of every class, see `MapOfEitherForm`.
        prior_strength: weight of that centre, in rows a block, and a quarter of it in the
            one-vs-rest form. 0 is the map as published, which says 0 and 1.

    Attributes:
        knots_: (B,) confidences at the ends of the blocks, ascending; values_: (B,) the map there.

    References:
        Zadrozny & Elkan, KDD 2002.

    Examples:
        >>> import calibrant as cb
        >>> import numpy as np
        >>> logits = np.log([[0.6, 0.4]] * 500 + [[0.9, 0.1]] * 500)
        >>> labels = [0] * 400 + [1] * 100 + [0] * 300 + [1] * 200  # 80 % right, then 60 %
        >>> isotonic = cb.IsotonicRegression().fit(logits, labels)
        >>> isotonic.predict_confidence(logits[[0, -1]])[1].round(2)  # can't fall: the mean
        array([0.7, 0.7])
    """

    method: ClassVar[str] = "isotonic"
    weighs: ClassVar[bool] = True

    knots_: FloatArray = learnt("v")
    values_: FloatArray = learnt("v", at_least=0, at_most=1)

    @property
    def levels(self) -> int:
        """Number of distinct levels."""
        return len(np.unique(self.values_))

    def _fit_map(
        self, confidence: FloatArray, correct: FloatArray, weights: FloatArray | None = None
    ) -> FitReport:
        from scipy.optimize import isotonic_regression

        knots, index, count = np.unique(confidence, return_inverse=True, return_counts=True)
        if weights is not None:
            count = np.bincount(index, weights)
        share = np.bincount(index, times(correct, weights)) / count
        fit = isotonic_regression(share, weights=count)
        first, last = np.asarray(fit.blocks[:-1]), np.asarray(fit.blocks[1:]) - 1
        mass = np.add.reduceat(count, first)
        level = shrunk_steps(np.asarray(fit.x)[first], mass, self.prior_strength, self.n_classes_)
        block = np.repeat(np.arange(len(first)), last - first + 1)
        ends = np.unique(np.concatenate([first, last]))
        self.knots_, self.values_ = knots[ends], level[block[ends]]
        loss = mean((level[block][index] - correct) ** 2, weights)
        return FitReport(len(confidence), "squared error", loss)

    def shape(self) -> Lines:
        """Return the values at the knots."""
        return Lines(self.knots_, self.values_)
