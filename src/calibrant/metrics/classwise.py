"""Calibration of every class's probability: classwise ECE and its equal-mass form.

The top label is forgotten: for each class k, all N rows are binned by p_k, and the gap of a bin is
between its mean p_k and its share of rows of that class. With many classes nearly all rows fall
into the first bin of nearly every class, which is what `threshold` is for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, Self, get_args

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arguments import within
from calibrant.core.arrays import Array, FloatArray, IntArray, to_numpy
from calibrant.core.weights import total
from calibrant.metrics.binned import (
    DEFAULT_BINS,
    BinSums,
    EdgeConvention,
    Strategy,
    bin_edges,
    bin_index,
    mass_cuts,
)
from calibrant.metrics.full_rows import (
    BLOCKS,
    HONEST_DRAWS,
    by_class,
    deal_by_place,
    deal_into_blocks,
    draw_blocks,
    honest_labels,
    prob_chunks,
    resampled_counts,
)
from calibrant.metrics.metric_types import AddedFields, Measured, RowsMetric
from calibrant.metrics.top_label import TopLabel
from calibrant.predictions.predictions import Predictions

Reduction = Literal["mean", "sum"]
# Resampled sums are worked on in batches of about this many numbers: 32 MB.
BATCH_NUMBERS = 1 << 22
# Numbers of `ClasswiseSums` are rounded to multiples of this, of which sums over 2^28 rows are
# exact. Beyond so many classes the sums of all blocks would take longer to send than rows to read.
UNIT = 2.0**-32
MOST_CLASSES_SUMMED = 1000


def classwise_expected_calibration_error(
    probs: Array,
    labels: Array,
    n_bins: int = DEFAULT_BINS,
    *,
    threshold: float | None = None,
    convention: EdgeConvention = "right-closed",
    reduction: Reduction = "mean",
) -> float:
    """Return the classwise ECE, the mean over classes of sum_b (n_kb / n_k) |gap_kb|, a fraction.

    Convention: K is the width of `probs`, absent classes count; equal-width bins (lo, hi] with 0 in
    the first; n_k = N. With `threshold`, class k counts only the rows where p_k exceeds it, and n_k
    is their number (a class without any counts as 0).

    Other conventions, by name: those of `expected_calibration_error` (the code of Kull et al. is
    ``n_bins=14, convention="torchmetrics"``, though it is called 15 bins there). And
    ``reduction="sum"`` doesn't divide by K, as some copies forget to.

    Args:
        probs: (N, K) probabilities.
        labels: (N,) true classes.
        n_bins: number of bins.
        threshold: see above; 1e-3 and 1 / K are usual.
        convention: see above.
        reduction: see above.

    Raises:
        PredictionsError: unusable arrays.
        InputError: fewer than one bin, or an unknown option.

    References:
        Kull et al.: Beyond temperature scaling. NeurIPS 2019 (classwise ECE). Nixon et al., CVPR
        workshops 2019 (static calibration error).

    Examples:
        >>> import calibrant as cb
        >>> probs, labels = [[0.8, 0.2], [0.8, 0.2]], [0, 1]
        >>> value = cb.metrics.classwise_expected_calibration_error(probs, labels)
        >>> round(value, 3)  # .8 and .2, where half are of either class
        0.3
        >>> from calibrant.metrics import classwise_expected_calibration_error
        >>> round(classwise_expected_calibration_error(probs, labels, reduction="sum"), 3)
        0.6
    """
    sums = _bin_sums(probs, labels, n_bins, threshold, convention)
    gap: FloatArray = np.abs(sums.residual).sum(axis=-1)
    errors = np.divide(gap, sums.total, out=np.zeros(gap.shape), where=sums.total > 0)
    return _reduced(errors, reduction)


def _bin_sums(
    probs: Array, labels: Array, n_bins: int, threshold: float | None, convention: EdgeConvention
) -> BinSums:
    """Return the (K, B) bin sums of every class."""
    predictions = Predictions.from_probs(probs, labels)
    within("convention", convention, choices=get_args(EdgeConvention))
    width = n_bins + 1 if convention == "torchmetrics" else n_bins
    bounds, classes = bin_edges(n_bins)[1:width], int(predictions.scores.shape[1])
    side = "left" if convention == "right-closed" else "right"
    count, said, hits = (np.zeros(classes * width) for _ in range(3))
    for part, chunk in prob_chunks(predictions):
        index = np.searchsorted(bounds, chunk, side=side)
        truth = np.arange(len(chunk)), predictions.labels[part]
        used = np.ones(chunk.shape, dtype=bool) if threshold is None else chunk > threshold
        index += np.arange(classes) * width
        count += np.bincount(index[used], minlength=len(count))
        said += np.bincount(index[used], chunk[used], len(count))
        hits += np.bincount(index[truth][used[truth]], minlength=len(count))
    shape = (classes, width)
    return BinSums(count.reshape(shape), said.reshape(shape), hits.reshape(shape))


def _reduced(errors: FloatArray, reduction: Reduction) -> float:
    within("reduction", reduction, choices=get_args(Reduction))
    return float(errors.mean() if reduction == "mean" else errors.sum())


def classwise_adaptive_calibration_error(
    probs: Array,
    labels: Array,
    n_bins: int = DEFAULT_BINS,
    *,
    threshold: float | None = None,
    reduction: Reduction = "mean",
) -> float:
    """Return the classwise ECE over bins of equal mass, a fraction.

    Without `threshold` this is the adaptive calibration error (ACE) of Nixon et al., with it their
    TACE (they take 1e-3). Convention: as `classwise_expected_calibration_error`, with the bins of
    each class as in `adaptive_calibration_error`: by rank, ties shared out.

    Args:
        probs: (N, K) probabilities.
        labels: (N,) true classes.
        n_bins: number of bins.
        threshold: count only rows where p_k exceeds it.
        reduction: ``"mean"`` over the K classes, or ``"sum"``.

    Raises:
        PredictionsError: unusable arrays.
        InputError: fewer than one bin, or an unknown option.

    References:
        Nixon, Dusenberry, Jerfel, Zhang, Tran: Measuring calibration in deep learning. CVPR
        workshops 2019.

    Examples:
        >>> import calibrant as cb
        >>> probs = [[0.9, 0.1], [0.6, 0.4]]
        >>> # |.75 - .5|
        >>> round(cb.metrics.classwise_adaptive_calibration_error(probs, [0, 1], 1), 3)
        0.25
        >>> # (.1 + .6) / 2
        >>> round(cb.metrics.classwise_adaptive_calibration_error(probs, [0, 1], 2), 3)
        0.35
    """
    predictions = Predictions.from_probs(probs, labels)
    errors = np.zeros(int(predictions.scores.shape[1]))
    for k in range(len(errors)):
        column = to_numpy(predictions.scores[:, k]).astype(np.float64)
        hits = predictions.labels == k
        if threshold is not None:
            column, hits = column[column > threshold], hits[column > threshold]
        if len(column):
            curves = TopLabel.sort(column, hits).curves()
            at_cuts = curves.at_ranks(mass_cuts(curves.total, n_bins))
            errors[k] = np.abs(np.diff(at_cuts)).sum() / curves.total[0]
    return _reduced(errors, reduction)


class _Cuts(NamedTuple):
    """Where one class's bins begin and end, as positions among few intervals of sorted rows.

    A bin begins `share` of the way from the start of interval `below` to that of `above`.
    """

    interval: IntArray
    below: IntArray
    above: IntArray
    share: FloatArray

    def bin_totals(
        self, group: IntArray, rows: IntArray, values: FloatArray | None, groups: int
    ) -> FloatArray:
        """Return (groups, B) sums of `values` (1 each if None) of `rows` by group and bin."""
        width = int(self.above[-1]) + 1
        index = group * width + self.interval[rows]
        sums = np.bincount(index, values, groups * width).reshape(groups, width)
        before = np.cumsum(sums, axis=1) - sums
        low, high = before[:, self.below], before[:, self.above]
        return np.diff(low + self.share * (high - low), axis=1)


def _cuts_of(
    column: FloatArray, n_bins: int, strategy: Strategy, weights: FloatArray | None = None
) -> _Cuts:
    rows = TopLabel.sort(column, np.zeros(len(column)), weights)
    curves = rows.curves()
    if strategy == "quantile":
        crossing = curves.crossing(mass_cuts(curves.total, n_bins))
        below, above, share = crossing.below[0], crossing.above[0], crossing.share[0]
    else:
        below = above = curves.cuts(bin_edges(n_bins))
        share = np.zeros(len(below))
    breaks = np.unique(np.concatenate([below, above]))
    interval = np.empty(rows.n, dtype=np.int64)
    interval[rows.order] = np.searchsorted(breaks, np.arange(rows.n), side="right") - 1
    return _Cuts(interval, np.searchsorted(breaks, below), np.searchsorted(breaks, above), share)


def measure_classwise(
    predictions: Predictions, resamples: int, seed: int, *, strategy: Strategy = "uniform"
) -> Measured:
    """Return the classwise ECE with block-bootstrap replicates and values on calibrated labels.

    Bins of equal mass stay those of all rows in the resamples. Costs one sort a class.
    """
    probs = to_numpy(predictions.probs)
    n, classes = len(probs), int(probs.shape[1])
    weights = predictions.weights
    block = deal_into_blocks(n, seed, predictions.clusters)
    blocks = int(block.max()) + 1
    draws = min(resamples, HONEST_DRAWS)
    drawn = by_class(honest_labels(predictions, draws, seed), classes)
    residual = np.empty((blocks, classes, DEFAULT_BINS))
    honest = np.zeros(draws)
    everyone = np.arange(n)
    none = np.zeros(n, dtype=np.int64)
    for k, (draw, row) in enumerate(drawn):
        column = probs[:, k].astype(np.float64)
        cuts = _cuts_of(column, DEFAULT_BINS, strategy, weights)
        said, drawn_mass = column, None
        gap = column - (predictions.labels == k)
        if weights is not None:
            said, drawn_mass, gap = column * weights, weights[row], gap * weights
        residual[:, k] = cuts.bin_totals(block, everyone, gap, blocks)
        expected = cuts.bin_totals(none, everyone, said, 1)
        honest += np.abs(expected - cuts.bin_totals(draw, row, drawn_mass, draws)).sum(axis=1)
    flat = residual.reshape(blocks, -1)
    everything = total(n, weights)
    value = np.abs(flat.sum(axis=0)).sum() / (everything * classes)
    counts = resampled_counts(blocks, resamples, seed)
    size = counts @ np.bincount(block, weights).astype(np.float64)
    step = max(1, BATCH_NUMBERS // flat.shape[1])
    replicates = np.concatenate(
        [
            np.abs(counts[start : start + step] @ flat).sum(axis=1)
            for start in range(0, resamples, step)
        ]
    )
    return Measured(
        float(value), replicates / (size * classes), honest / (everything * classes), True
    )


def measure_classwise_by_mass(predictions: Predictions, resamples: int, seed: int) -> Measured:
    """Return the same over bins of equal mass."""
    return measure_classwise(predictions, resamples, seed, strategy="quantile")


@dataclass(frozen=True, eq=False)
class ClasswiseSums(AddedFields):
    """What many files leave behind for the classwise ECE: whole numbers that add up.

    Attributes:
        size: (M,) rows of each block.
        binned: (2, K, B) for each class and bin of its probability: rows, and the sum of p_k.
        gap: (M, K, B) for each block: sum of p_k - 1[y = k].
    """

    size: IntArray
    binned: NDArray[np.int64]
    gap: NDArray[np.int64]

    @classmethod
    def of(cls, predictions: Predictions, place: int, seed: int) -> Self:
        """Sum rows, of which the first stands at `place` among all of them."""
        block = deal_by_place(place, predictions.n, seed)
        classes, bins = predictions.n_classes or 0, DEFAULT_BINS
        size, edges = classes * bins, bin_edges(bins)
        gap, binned = np.zeros(BLOCKS * size), np.zeros((2, size))
        for part, probs in prob_chunks(predictions):
            index = bin_index(probs, edges) + np.arange(classes) * bins
            whole = np.rint(np.clip(probs, 0.0, 1.0) / UNIT)
            binned[0] += np.bincount(index.ravel(), minlength=size)
            binned[1] += np.bincount(index.ravel(), whole.ravel(), size)
            rows, labels = np.arange(len(probs)), predictions.labels[part]
            whole[rows, labels] -= 1 / UNIT
            where = index + block[part, None] * size
            gap += np.bincount(where.ravel(), whole.ravel(), BLOCKS * size)
        return cls(
            np.bincount(block, minlength=BLOCKS),
            binned.astype(np.int64).reshape(2, classes, bins),
            gap.astype(np.int64).reshape(BLOCKS, classes, bins),
        )

    def measured(self, name: str, resamples: int, seed: int) -> Measured:
        """Return the classwise ECE, its block-bootstrap replicates, and values on drawn labels."""
        n, classes = int(self.size.sum()), self.gap.shape[1]
        gap = self.gap.reshape(len(self.size), -1) * UNIT
        value = float(np.abs(self.gap.sum(axis=0)).sum()) * UNIT / (n * classes)
        counts, used = draw_blocks(self.size, resamples, seed)
        drawn = np.abs(counts @ gap[used]).sum(axis=1) / (counts @ self.size[used]) / classes
        rows, total = self.binned[0].ravel(), self.binned[1].ravel() * UNIT
        some = rows > 0
        rng = np.random.default_rng([seed, 14])
        mean = np.clip(total[some] / rows[some], 0.0, 1.0)
        size = (min(resamples, HONEST_DRAWS), int(some.sum()))
        hits = rng.binomial(rows[some], mean, size=size)
        honest = np.abs(total[some] - hits).sum(axis=1) / (n * classes)
        return Measured(value, drawn, honest, True)


CLASSWISE_ECE = RowsMetric(
    name="classwise_ece",
    title="classwise ECE",
    definition="mean over K classes, 15 equal-width bins (lo, hi] of p_k over all rows, L1",
    function=classwise_expected_calibration_error,
    effort="K sorts of N numbers",
    fails="many classes: most probabilities of a class are nearly 0, and right",
    needs_classes=True,
    measure=measure_classwise,
    sums=ClasswiseSums,
    most_classes=MOST_CLASSES_SUMMED,
)
CLASSWISE_ADAECE = RowsMetric(
    name="classwise_adaece",
    title="classwise AdaECE",
    definition="mean over K classes, 15 equal-mass bins of p_k, L1 (Nixon's ACE)",
    function=classwise_adaptive_calibration_error,
    effort="K sorts of N numbers",
    fails="many classes: most probabilities of a class are nearly 0, and right",
    needs_classes=True,
    measure=measure_classwise_by_mass,
    not_summed="it sorts the rows by the probability of each class, so it can't be "
    "computed from sums over files; measure a sample as one file",
)
