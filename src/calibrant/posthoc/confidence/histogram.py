"""Histogram binning of the top label, or of every class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, get_args

import numpy as np

from calibrant.core.arguments import argument
from calibrant.core.arrays import FloatArray, IntArray
from calibrant.core.weights import mean, times
from calibrant.metrics.bins import Strategy, bin_edges, equal_mass_cuts, mass_cuts
from calibrant.posthoc.base import FitReport
from calibrant.posthoc.confidence.shapes import Steps
from calibrant.posthoc.confidence.shrinkage import ShrunkMap, shrunk
from calibrant.posthoc.learnt import learnt


@dataclass(eq=False)
class HistogramBinning(ShrunkMap):
    """The confidence is replaced by the accuracy of its bin.

    A bin of few rows is drawn towards the others: h right ones of n rows give (h + s m) / (n + s),
    with s = prior_strength and m the accuracy on all rows (where bins differ in size, m is shifted
    a little so that the mean confidence stays the accuracy). Then all bins are mixed with 1 / K at
    weight 1 / (N + 1).

    Args:
        n_bins: number of bins; fewer are used where rows or distinct confidences are fewer.
        strategy: ``"quantile"`` puts as many rows in each bin, cut midway between neighbours;
            ``"uniform"`` takes (b / B, (b + 1) / B]. An empty bin keeps its middle.
        form: ``"top-label"`` maps the confidence of the predicted class and keeps it;
            ``"one-vs-rest"`` maps the probability of every class, see `MapOfEitherForm`. There
            equal-mass bins lose accuracy as classes grow: the few rows of a class share one bin.
        prior_strength: s, in rows a bin. 0 is the map as published, which says 1 where a bin holds
            no error; a later error there has an infinite log loss. In the one-vs-rest form s is a
            quarter of it, because bins differ more there: most hold almost only rows of the class
            or almost none. There m is about the share of rows that are of the class.

    Attributes:
        edges_: (B + 1,) edges of the bins (lo, hi]; values_: (B,) the map on them.

    References:
        Zadrozny & Elkan, ICML 2001.

    Examples:
        >>> import calibrant as cb
        >>> import numpy as np
        >>> logits = np.log([[0.9, 0.1]] * 999)  # says 90 %
        >>> binning = cb.HistogramBinning().fit(logits, [0] * 666 + [1] * 333)
        >>> binning.predict_confidence(logits[:1])[1].round(2)  # 2 of 3 were right
        array([0.67])
    """

    method: ClassVar[str] = "histogram"
    weighs: ClassVar[bool] = True

    n_bins: int = argument(15, at_least=1)
    strategy: Strategy = argument("quantile", choices=get_args(Strategy))

    edges_: FloatArray = learnt("e")
    values_: FloatArray = learnt("v", at_least=0, at_most=1)

    @property
    def levels(self) -> int:
        """Number of bins."""
        return len(self.values_)

    def _fit_map(
        self, confidence: FloatArray, correct: FloatArray, weights: FloatArray | None = None
    ) -> FitReport:
        self.edges_ = (
            bin_edges(self.n_bins)
            if self.strategy == "uniform"
            else equal_mass_edges(confidence, self.n_bins, weights)
        )
        index = self._bin_of(confidence)
        count = np.bincount(index, weights, len(self.edges_) - 1)
        hits = np.bincount(index, times(correct, weights), len(count))
        middle = (self.edges_[:-1] + self.edges_[1:]) / 2
        value = np.where(count > 0, hits / np.where(count > 0, count, 1), middle)
        self.values_ = shrunk(value, count, self.prior_strength, self.n_classes_)
        loss = mean((self.values_[index] - correct) ** 2, weights)
        return FitReport(len(confidence), "closed form", loss)

    def _bin_of(self, confidence: FloatArray) -> IntArray:
        return np.searchsorted(self.edges_[1:-1], confidence, side="left").astype(np.int64)

    def shape(self) -> Steps:
        """Return the values of the bins."""
        return Steps(self.edges_[1:-1], self.values_)


def equal_mass_edges(
    confidence: FloatArray, n_bins: int, weights: FloatArray | None = None
) -> FloatArray:
    """Return edges from 0 to 1 that cut sorted confidences into equally filled bins.

    Cuts lie midway between neighbours; one that would part equal confidences is dropped, and so is
    one through a row whose weight lies on both sides.
    """
    if weights is None:
        cuts = equal_mass_cuts(len(confidence), min(n_bins, len(confidence)))[1:-1]
        below, above = confidence[cuts - 1], confidence[cuts]
    else:
        reached = np.cumsum(weights)
        every = reached[-1:]
        cuts = mass_cuts(every, min(n_bins, max(int(every[0]), 1)))[1:-1]
        last = len(confidence) - 1
        below = confidence[np.minimum(np.searchsorted(reached, cuts, side="left"), last)]
        above = confidence[np.minimum(np.searchsorted(reached, cuts, side="right"), last)]
    inner = ((below + above) / 2)[below < above]
    return np.concatenate([[0.0], np.unique(inner), [1.0]])
