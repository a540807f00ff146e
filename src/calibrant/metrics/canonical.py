"""Calibration of the whole probability vector: kernel calibration error and Dirichlet estimate.

A model is canonically calibrated if, among rows that were given the vector p, the classes occur as
p says. Both estimators compare rows in pairs, O(n^2 K), so they deal larger sets into blocks.
"""

from __future__ import annotations

import numpy as np

from calibrant.core.arguments import within
from calibrant.core.arrays import Array, FloatArray, IntArray, to_numpy
from calibrant.core.errors import InputError
from calibrant.metrics.full_rows import HONEST_DRAWS, by_class, honest_labels, resampled_counts
from calibrant.metrics.metric_types import Measured, RowsMetric
from calibrant.predictions.predictions import Predictions

BLOCK_ROWS = 1000
# The registered metric looks at no more rows than this.
MOST_ROWS = 10_000


def skce(
    probs: Array,
    labels: Array,
    bandwidth: float | None = None,
    *,
    block_rows: int = BLOCK_ROWS,
    seed: int = 0,
) -> float:
    """Return the unbiased SKCE, the mean over pairs i < j of h_ij; 0 is ideal, it may be negative.

    h_ij = <onehot(y_i) - p_i, onehot(y_j) - p_j> exp(-|p_i - p_j| / bandwidth), Euclidean. More
    than `block_rows` rows are dealt at random into blocks of at most that many, and pairs are
    taken within blocks: still unbiased and every row counts, in O(N block_rows K).

    Args:
        probs: (N, K) probabilities, N >= 2.
        labels: (N,) true classes.
        bandwidth: of the kernel; the median distance of pairs (of the first block) if None.
        block_rows: see above.
        seed: deals the rows.

    Raises:
        PredictionsError: unusable arrays.
        InputError: one row only, or a bandwidth that isn't positive.

    References:
        Widmann, Lindsten, Zachariah: Calibration tests in multi-class classification. NeurIPS 2019.

    Examples:
        >>> import calibrant as cb
        >>> sure, torn = [[1.0, 0.0], [1.0, 0.0]], [[0.5, 0.5], [0.5, 0.5]]
        >>> cb.metrics.skce(sure, [1, 1], bandwidth=1)  # wrong, and alike
        2.0
        >>> cb.metrics.skce(torn, [0, 1], bandwidth=1)  # off to both sides
        -0.5
    """
    predictions = Predictions.from_probs(probs, labels)
    total, pairs, width = 0.0, 0, bandwidth
    for block in _blocks(predictions.n, block_rows, seed):
        values, truth = _block(predictions, block)
        distance = _distances(values)
        width = _checked(width, distance)
        kernel = _kernel(distance, width)
        # <e_i, e_j> summed with weights: no K x K matrix, and one product of the chunk.
        values[np.arange(len(truth)), truth] -= 1.0
        total += float(((kernel @ values) * values).sum())
        pairs += len(truth) * (len(truth) - 1)
    return total / pairs


def _blocks(n: int, size: int, seed: int) -> list[IntArray]:
    if n < 2 or size < 2:
        raise InputError(f"pairs of rows need at least 2 rows and blocks of 2, not {min(n, size)}")
    # All rows of a set that fits keep their order; sizes differ by one.
    if n <= size:
        return [np.arange(n)]
    order = np.random.default_rng(seed).permutation(n)
    # Blocks of one row have no pairs.
    return [np.sort(part) for part in np.array_split(order, min(-(-n // size), n // 2))]


def _block(predictions: Predictions, index: IntArray) -> tuple[FloatArray, IntArray]:
    part = predictions.take(index)
    return to_numpy(part.probs).astype(np.float64), part.labels


def _distances(values: FloatArray) -> FloatArray:
    """Return (n, n) Euclidean distances."""
    square = np.einsum("ij,ij->i", values, values)
    squared = square[:, None] + square[None, :] - 2 * (values @ values.T)
    return np.sqrt(np.maximum(squared, 0.0))


def _checked(bandwidth: float | None, distance: FloatArray) -> float:
    if bandwidth is None:
        apart = distance[np.triu_indices(len(distance), 1)]
        # All rows alike: any kernel is constant then.
        return float(np.median(apart)) or float(apart.mean()) or 1.0
    return within("bandwidth", bandwidth, above=0)


def _kernel(distance: FloatArray, bandwidth: float) -> FloatArray:
    """Return the (n, n) kernel without its diagonal: a row makes no pair with itself."""
    kernel = np.exp(distance / -bandwidth)
    np.fill_diagonal(kernel, 0.0)
    return kernel


def measure_skce(predictions: Predictions, resamples: int, seed: int) -> Measured:
    """Return the SKCE of at most 10 000 rows with bootstrap replicates and calibrated values."""
    n = predictions.n
    if n > MOST_ROWS:
        chosen = np.random.default_rng([seed, 2]).permutation(n)[:MOST_ROWS]
        predictions = predictions.take(np.sort(chosen))
    draws = min(resamples, HONEST_DRAWS)
    replicates, honest = np.zeros(resamples), np.zeros(draws)
    total, pairs, width = 0.0, 0, None
    for b, block in enumerate(_blocks(predictions.n, BLOCK_ROWS, seed)):
        part = predictions.take(block)
        values, truth = to_numpy(part.probs).astype(np.float64), part.labels
        distance = _distances(values)
        width = _checked(width, distance)
        kernel = _kernel(distance, width)
        mixed = kernel @ values
        level = float((mixed * values).sum())
        rows = np.arange(len(truth))
        drawn = honest_labels(part, draws, seed + b)
        crossed = mixed[rows, drawn].sum(axis=1)
        honest += _same_label_sums(kernel, drawn, values.shape[1]) - 2 * crossed + level
        values[rows, truth] -= 1.0
        h = kernel * (values @ values.T)
        total += float(h.sum())
        counts = resampled_counts(len(truth), resamples, seed + b)
        # A row drawn twice makes no pair with itself; n / (n - 1) makes up for those pairs.
        fewer = len(truth) / (len(truth) - 1)
        replicates += fewer * ((counts @ h) * counts).sum(axis=1)
        pairs += len(truth) * (len(truth) - 1)
    return Measured(total / pairs, replicates / pairs, honest / pairs, biased=False)


def _same_label_sums(kernel: FloatArray, labels: IntArray, classes: int) -> FloatArray:
    """Return (D,) sums of the kernel over pairs of equal label, for (D, n) labels.

    Class by class, among the rows that any draw gave that class: with many classes these are few.
    """
    draws = len(labels)
    total = np.zeros(draws)
    for draw, row in by_class(labels, classes):
        used, column = np.unique(row, return_inverse=True)
        member = np.zeros((draws, len(used)))
        member[draw, column] = 1.0
        total += ((member @ kernel[np.ix_(used, used)]) * member).sum(axis=1)
    return total


BANDWIDTHS = (*np.logspace(-5, -1, 15).tolist(), *np.linspace(0.2, 1.0, 5).tolist())


def canonical_calibration_error(
    probs: Array,
    labels: Array,
    bandwidth: float | None = None,
    norm: int = 2,
    *,
    block_rows: int = BLOCK_ROWS,
    seed: int = 0,
) -> float:
    """Return the mean of sum_k |E[y_k | p_i] - p_ik|^norm, with a Dirichlet kernel estimate of E.

    The class frequencies near p_i are averages over the other rows j with weights Dirichlet(p_i;
    p_j / h + 1). Conventions: leave-one-out, no root taken, biased upwards. K = 2 counts both
    classes. Of the 20 bandwidths h that the paper's code tries (1e-5 to 1), None takes the one that
    gives the rows of the first block the highest likelihood, each row predicted from the others.
    More than `block_rows` rows are dealt into blocks as in `skce`; that
    costs neighbours, so the value depends on the block size a little.

    Args:
        probs: (N, K) probabilities, N >= 2; those below 1e-10 are raised to it.
        labels: (N,) true classes.
        bandwidth: see above.
        norm: p, at least 1.
        block_rows: see above.
        seed: deals the rows.

    Raises:
        PredictionsError: unusable arrays.
        InputError: one row only, a bandwidth that isn't positive, or norm below 1.

    References:
        Popordanoska, Sayer, Blaschko: A consistent and differentiable Lp canonical calibration
        error estimator. NeurIPS 2022.

    Examples:
        >>> import calibrant as cb
        >>> for temperature in (1.0, 3.0):  # honest, and far too sure
        ...     rows = cb.synthetic.tempered(500, 3, temperature).predictions
        ...     print(f"{cb.metrics.canonical_calibration_error(rows.probs, rows.labels):.2f}")
        0.04
        0.08
    """
    within("norm", norm, at_least=1)
    if bandwidth is not None:
        within("bandwidth", bandwidth, above=0)
    predictions = Predictions.from_probs(probs, labels)
    total, width = 0.0, bandwidth
    for block in _blocks(predictions.n, block_rows, seed):
        values, truth = _block(predictions, block)
        values = np.maximum(values, 1e-10)
        values /= values.sum(axis=1, keepdims=True)
        if width is None:
            width = _likeliest_bandwidth(values)
        logs = _log_kernel(values, width)
        weights = np.exp(logs - logs.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        onehot = np.zeros(values.shape)
        onehot[np.arange(len(truth)), truth] = 1.0
        total += float((np.abs(weights @ onehot - values) ** norm).sum())
    return total / predictions.n


def _log_kernel(values: FloatArray, bandwidth: float) -> FloatArray:
    """Return (n, n) log densities of row i under the kernel of row j, -inf on the diagonal."""
    from scipy.special import gammaln

    alpha = values / bandwidth
    of_entries: FloatArray = gammaln(alpha + 1)
    sums: FloatArray = np.sum(alpha + 1, axis=1)
    of_sums: FloatArray = gammaln(sums)
    scale = of_sums - of_entries.sum(axis=1)
    logs: FloatArray = np.log(values) @ alpha.T + scale
    np.fill_diagonal(logs, -np.inf)
    return logs


def _likeliest_bandwidth(values: FloatArray) -> float:
    return max(BANDWIDTHS, key=lambda bandwidth: _likelihood(values, bandwidth))


def _likelihood(values: FloatArray, bandwidth: float) -> float:
    logs = _log_kernel(values, bandwidth)
    top = logs.max(axis=1)
    return float((top + np.log(np.exp(logs - top[:, None]).sum(axis=1))).sum())


SKCE = RowsMetric(
    name="skce",
    title="SKCE",
    definition="unbiased squared kernel error of whole rows, exp(-|p - q| / median)",
    function=skce,
    effort="N^2 x K numbers, in blocks",
    fails="it may be negative, and is slow for many rows",
    weighs="none",
    takes_clusters=False,
    fewest_rows=2,
    percent=False,
    needs_classes=True,
    measure=measure_skce,
    not_summed="it compares pairs of rows, so it can't be computed from sums over files; measure "
    "a sample as one file",
)
