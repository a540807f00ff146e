"""Binned calibration errors: ECE and its equal-mass form AdaECE.

Bin sums add up: the sums of shards, added, are the sums of the whole. The mean of the ECEs of
shards or minibatches is not the ECE.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from calibrant.arrays import Array, FloatArray, IntArray
from calibrant.errors import InputError
from calibrant.metrics.top_label import ResidualCurves, TopLabel, top_label

DEFAULT_BINS = 15


def bin_edges(bins: int) -> FloatArray:
    """Return the B + 1 edges of equal-width bins, each the float64 nearest to b / B."""
    if bins < 1:
        raise InputError(f"bins must be at least 1, not {bins}")
    return np.arange(bins + 1) / bins


@dataclass(frozen=True, eq=False)
class BinSums:
    """Sufficient statistics of a reliability diagram with B equal-width bins (lo, hi].

    Attributes:
        count: (B,) rows in the bin.
        confidence: (B,) sum of their confidences.
        correct: (B,) how many of them are right.
    """

    count: FloatArray
    confidence: FloatArray
    correct: FloatArray

    @classmethod
    def of(cls, rows: TopLabel, bins: int = DEFAULT_BINS) -> BinSums:
        """Sum rows into bins. A confidence of 0 counts in the first bin."""
        index = np.searchsorted(bin_edges(bins)[1:-1], rows.confidence, side="left")
        return cls(
            np.bincount(index, minlength=bins).astype(np.float64),
            np.bincount(index, rows.confidence, bins),
            np.bincount(index, rows.correct, bins),
        )

    def __add__(self, other: BinSums) -> BinSums:
        """Return the sums of both sets of rows together."""
        if len(self.count) != len(other.count):
            raise InputError(
                f"can't add sums over {len(self.count)} bins to sums over {len(other.count)}"
            )
        return BinSums(
            self.count + other.count,
            self.confidence + other.confidence,
            self.correct + other.correct,
        )

    @property
    def mean_confidence(self) -> FloatArray:
        """(B,) mean confidence of each bin, NaN where it is empty."""
        return self._mean(self.confidence)

    @property
    def accuracy(self) -> FloatArray:
        """(B,) share of right predictions in each bin, NaN where it is empty."""
        return self._mean(self.correct)

    def _mean(self, total: FloatArray) -> FloatArray:
        empty = np.full_like(total, np.nan)
        return np.divide(total, self.count, out=empty, where=self.count > 0)

    def expected_calibration_error(self) -> float:
        """Return sum_b |sum of c - a| / N."""
        return float(np.abs(self.confidence - self.correct).sum() / self.count.sum())


def expected_calibration_error(
    scores: Array, labels: Array, bins: int = DEFAULT_BINS
) -> float:
    """Return the ECE, sum_b (n_b / N) |mean confidence - accuracy|, a fraction.

    Convention: top label, `bins` equal-width bins (lo, hi] with 0 in the first, L1 norm, edges and
    confidences compared in float64. The value is biased upwards: a perfectly calibrated model
    shows about sqrt(2 / pi) sum_b sqrt(V_b) / N, V_b = sum of c (1 - c) in bin b.

    Args:
        scores: (N, K) probabilities, or (N,) confidences.
        labels: (N,) true classes, or (N,) correctness.
        bins: number of bins.

    References:
        Naeini, Cooper, Hauskrecht, AAAI 2015. Guo, Pleiss, Sun, Weinberger, ICML 2017.
    """
    return float(ece_of_curves(top_label(scores, labels).curves(), bins)[0])


def ece_of_curves(curves: ResidualCurves, bins: int = DEFAULT_BINS) -> FloatArray:
    """Return the (R,) ECEs of residual curves."""
    return np.abs(curves.between_edges(bin_edges(bins))).sum(axis=1) / curves.rows.n


def equal_mass_cuts(n: int, bins: int) -> IntArray:
    """Return the B + 1 ranks that cut n rows into bins whose sizes differ by at most one.

    The larger bins come first, as in `numpy.array_split`.
    """
    if bins < 1:
        raise InputError(f"bins must be at least 1, not {bins}")
    size, larger = divmod(n, bins)
    index = np.arange(bins + 1)
    return index * size + np.minimum(index, larger)


def adaptive_calibration_error(
    scores: Array,
    labels: Array,
    bins: int = DEFAULT_BINS,
    edges: Literal["ranks", "focal"] = "ranks",
) -> float:
    """Return AdaECE, the ECE over bins that hold equally many rows, a fraction.

    Convention: top label, bins by rank whose sizes differ by at most one, L1 norm. Rows of equal
    confidence have no order: a cut through them takes its share of their mean residual, so the
    value doesn't depend on the order of the rows. ``edges="focal"`` repeats the widely copied code
    of the focal-loss calibration paper: edges interpolated between sorted confidences and bins
    (lo, hi], which leaves out the least confident row and all that tie with it.

    Args:
        scores: (N, K) probabilities, or (N,) confidences.
        labels: (N,) true classes, or (N,) correctness.
        bins: number of bins.
        edges: see above.

    References:
        Nguyen & O'Connor, EMNLP 2015. Mukhoti et al., NeurIPS 2020.
    """
    rows = top_label(scores, labels)
    if edges == "focal":
        return _focal_adaptive_calibration_error(rows, bins)
    return float(adaece_of_curves(rows.curves(), bins)[0])


def adaece_of_curves(curves: ResidualCurves, bins: int = DEFAULT_BINS) -> FloatArray:
    """Return the (R,) AdaECEs of residual curves."""
    at_cuts = curves.at_ranks(equal_mass_cuts(curves.rows.n, bins))
    return np.abs(np.diff(at_cuts, axis=1)).sum(axis=1) / curves.rows.n


def _focal_adaptive_calibration_error(rows: TopLabel, bins: int) -> float:
    ranks = np.linspace(0, rows.n, bins + 1)
    edges = np.interp(ranks, np.arange(rows.n), rows.confidence)
    cuts = np.searchsorted(rows.confidence, edges, side="right")
    return float(np.abs(rows.curves().between(cuts)).sum() / rows.n)
