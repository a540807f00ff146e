"""The expected calibration error, ECE, and its equal-mass form, AdaECE."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from calibrant.core.arrays import Array, FloatArray, IntArray
from calibrant.core.errors import InputError
from calibrant.core.weights import total
from calibrant.metrics.bins import (
    DEFAULT_BINS,
    BinSums,
    EdgeConvention,
    bin_edges,
    equal_mass_cuts,
    even_bin_index,
    mass_cuts,
    unknown_edges,
)
from calibrant.metrics.metric_types import BIASED, BINS_COST, CurveMetric
from calibrant.metrics.pairs import PairKind, checked_weight, confidence_and_correct, top_label
from calibrant.metrics.top_label import ResidualCurves, TopLabel

__all__ = [
    "DEFAULT_BINS",
    "BinSums",
    "adaece_of_curves",
    "adaptive_calibration_error",
    "bin_edges",
    "ece_of_curves",
    "equal_mass_cuts",
    "expected_calibration_error",
]


def expected_calibration_error(
    scores: Array,
    labels: Array,
    n_bins: int = DEFAULT_BINS,
    convention: EdgeConvention = "right-closed",
    *,
    kind: PairKind | None = None,
    sample_weight: Array | None = None,
) -> float:
    """Return the ECE, sum_b (n_b / N) |mean confidence - accuracy|, a fraction.

    Convention: top label, `n_bins` equal-width bins (lo, hi] with 0 in the first, L1 norm, edges
    and confidences compared in float64. The value is biased upwards: a perfectly calibrated model
    shows about sqrt(2 / pi) sum_b sqrt(V_b) / N, V_b = sum of c (1 - c) in bin b.

    ``convention="left-closed"`` has bins [lo, hi) of which the last is closed. That of
    ``"torchmetrics"`` is that library's code (1.9): bins [lo, hi) and one more for a confidence of
    exactly 1.

    Args:
        scores: (N, K) probabilities, or (N,) confidences.
        labels: (N,) true classes, or (N,) correctness.
        kind: of (N,) scores, ``"confidence"``, or ``"prob"`` of the positive class, with labels 0
            and 1 in place of correctness.
        sample_weight: (N,) how much each row counts; by default all alike.
        n_bins: number of bins.
        convention: see above.

    Raises:
        PredictionsError: unusable arrays.
        InputError: fewer than one bin, or an unknown `convention`.

    References:
        Naeini, Cooper, Hauskrecht, AAAI 2015. Guo, Pleiss, Sun, Weinberger, ICML 2017.

    Examples:
        >>> import calibrant as cb
        >>> ece = cb.metrics.expected_calibration_error([0.9] * 4, [1, 1, 1, 0], kind="confidence")
        >>> round(ece, 3)  # says 90 %, and 75 % are right
        0.15
    """
    confidence, correct = confidence_and_correct(scores, labels, kind)
    weight = checked_weight(sample_weight, len(confidence))
    if convention == "right-closed":  # sums over bins need no sorted rows
        index = even_bin_index(confidence, n_bins)
        residual = np.minimum(confidence, 1.0) - correct
        if weight is not None:
            residual *= weight
        sums = np.bincount(index, residual)
        return float(np.abs(sums).sum() / total(len(confidence), weight))
    rows = TopLabel.sort(confidence, correct, weight)
    cuts = _left_closed_cuts(rows, n_bins, convention)
    return float(np.abs(rows.curves().between(cuts)).sum() / rows.total)


def _left_closed_cuts(rows: TopLabel, n_bins: int, convention: str) -> IntArray:
    cuts = np.searchsorted(rows.confidence, bin_edges(n_bins), side="left")
    if convention == "left-closed":
        cuts[-1] = rows.n
        return cuts
    if convention == "torchmetrics":
        return np.append(cuts, rows.n)
    raise unknown_edges(convention)


def ece_of_curves(curves: ResidualCurves, n_bins: int = DEFAULT_BINS) -> FloatArray:
    """Return the (R,) ECEs of residual curves."""
    return np.abs(curves.between_edges(bin_edges(n_bins))).sum(axis=1) / curves.total


def adaptive_calibration_error(
    scores: Array,
    labels: Array,
    n_bins: int = DEFAULT_BINS,
    convention: Literal["ranks", "focal"] = "ranks",
    *,
    kind: PairKind | None = None,
    sample_weight: Array | None = None,
) -> float:
    """Return AdaECE, the ECE over bins that hold equally many rows, a fraction.

    Convention: top label, bins by rank whose sizes differ by at most one, L1 norm. Rows of equal
    confidence have no order: a cut through them takes its share of their mean residual, so the
    value doesn't depend on the order of the rows. ``convention="focal"`` repeats the widely copied
    code of the focal-loss calibration paper: edges interpolated between sorted confidences and bins
    (lo, hi], which leaves out the least confident row and all that tie with it.

    Two other numbers are called ACE: see `average_calibration_error` and
    `classwise_adaptive_calibration_error`.

    Args:
        scores: (N, K) probabilities, or (N,) confidences.
        labels: (N,) true classes, or (N,) correctness.
        kind: of (N,) scores, ``"confidence"``, or ``"prob"`` of the positive class, with labels 0
            and 1 in place of correctness.
        sample_weight: (N,) how much each row counts; by default all alike.
        n_bins: number of bins.
        convention: see above.

    Raises:
        PredictionsError: unusable arrays.
        InputError: fewer than one bin, or an unknown `convention`.

    References:
        Nguyen & O'Connor, EMNLP 2015. Mukhoti et al., NeurIPS 2020.

    Examples:
        >>> import calibrant as cb
        >>> c, a = [0.8, 0.8, 0.9, 0.9], [1, 1, 1, 0]
        >>> value = cb.metrics.adaptive_calibration_error(c, a, n_bins=2, kind="confidence")
        >>> round(value, 3)  # (|.8 - 1| + |.9 - .5|) / 2; bins of equal width hold none or all
        0.3
        >>> # |.85 - .75|
        >>> round(cb.metrics.expected_calibration_error(c, a, 2, kind="confidence"), 3)
        0.1
    """
    rows = top_label(scores, labels, kind, sample_weight=sample_weight)
    if convention == "focal":
        if rows.weight is not None:
            raise InputError("convention='focal' repeats code that knows no weights")
        return _focal_adaptive_calibration_error(rows, n_bins)
    if convention != "ranks":
        raise InputError(f"convention must be 'ranks' or 'focal', not '{convention}'")
    return float(adaece_of_curves(rows.curves(), n_bins)[0])


def adaece_of_curves(curves: ResidualCurves, n_bins: int = DEFAULT_BINS) -> FloatArray:
    """Return the (R,) AdaECEs of residual curves."""
    at_cuts = curves.at_ranks(mass_cuts(curves.total, n_bins))
    return np.abs(np.diff(at_cuts, axis=1)).sum(axis=1) / curves.total


def _focal_adaptive_calibration_error(rows: TopLabel, n_bins: int) -> float:
    ranks = np.linspace(0, rows.n, n_bins + 1)
    edges = np.interp(ranks, np.arange(rows.n), rows.confidence)
    cuts = np.searchsorted(rows.confidence, edges, side="right")
    return float(np.abs(rows.curves().between(cuts)).sum() / rows.n)


ECE = CurveMetric(
    name="ece",
    title="ECE",
    definition="top label, 15 equal-width bins (lo, hi], L1",
    function=expected_calibration_error,
    effort=BINS_COST,
    fails=f"{BIASED}; errors that cancel within a bin aren't seen, and it jumps at the bins' edges",
    omnibus=True,
    sums_gaps=True,
    of_curves=ece_of_curves,
    at_breakpoints=True,
)
ADAECE = CurveMetric(
    name="adaece",
    title="AdaECE",
    definition="top label, 15 equal-mass bins by rank, L1",
    function=adaptive_calibration_error,
    effort=BINS_COST,
    fails=f"{BIASED}; a wide bin where rows are few hides what happens there",
    omnibus=True,
    sums_gaps=True,
    of_curves=adaece_of_curves,
    at_breakpoints=True,
)
ECE_POSITIVE = replace(
    ECE,
    name="ece_positive",
    title="ECE, positive",
    definition="probability of the positive class, 15 equal-width bins (lo, hi], L1",
    of_positive=True,
    omnibus=False,
    sums_gaps=False,
)
ADAECE_POSITIVE = replace(
    ADAECE,
    name="adaece_positive",
    title="AdaECE, positive",
    definition="probability of the positive class, 15 equal-mass bins by rank, L1",
    of_positive=True,
    omnibus=False,
    sums_gaps=False,
)
