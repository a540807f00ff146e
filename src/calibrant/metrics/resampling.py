"""How rows are drawn again: each alone, or by whole clusters; and calibrated outcomes of such rows.

**Resamples.** Rows are drawn with replacement, all with the same chance, and carry their weights. A
row with a weight is then one observation, which is right for weights that make up for how rows were
sampled, and on the safe side for weights that count rows observed apart (`Predictions.repeated`
makes these rows again). Clusters are drawn whole, so that rows of one vary together.

**Calibrated outcomes.** Under perfect calibration a row is right with probability c, whatever it is
clustered with; but rows of a cluster may be right or wrong together. How much so is read off the
data: with r_i the residual of row i against a logistic recalibration of c, the sum over clusters
of (sum r_i)^2 - sum r_i^2 is what dependence adds to the variance of the clusters' sums. Outcomes
are then drawn as a_i = [sqrt(rho) z_cluster + sqrt(1 - rho) z_i < Phi^-1(c_i)] with normal z (a
Gaussian copula), with the rho at which the model expects as much. Every row keeps its chance c_i,
so what is drawn is perfectly calibrated, and only the dependence is estimated.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import BoolArray, FloatArray, IntArray
from calibrant.core.weights import codes_of
from calibrant.metrics.binned import logit
from calibrant.metrics.cox import fit_of_curve
from calibrant.metrics.top_label import ResidualCurves, TopLabel, accumulate

# The largest latent correlation; beyond it rows of a cluster are all but copies of one another.
MOST_CORRELATION = 0.9999
# The dependence of more rows than this is read off some of their clusters.
ROWS_FOR_CORRELATION = 50_000
NODES, HALVINGS = 32, 20

# No row is drawn more than 255 times: of 256 rows or fewer none can be, and of more rows there is
# less than one chance in 10^500.
COUNT = np.uint8
Counts = NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Clusters:
    """N rows in G clusters.

    Attributes:
        codes: (N,) cluster of each row, from 0 to G - 1.
        number: G.
    """

    codes: IntArray
    number: int

    @classmethod
    def of(cls, clusters: IntArray | None) -> Clusters | None:
        """Return clusters numbered without gaps; None where every row stands alone."""
        return None if clusters is None else cls(*codes_of(clusters))


def cluster_doubt(number: int, level: float) -> float:
    """Return the quantile of Student's t with G - 1 degrees of freedom over the normal one.

    Few clusters don't know well how much clusters vary.
    """
    from scipy.special import ndtri, stdtrit

    return float(stdtrit(number - 1, (1 + level) / 2) / ndtri((1 + level) / 2))


def cluster_stretch(number: int, level: float) -> float:
    """Return by how much more resamples of few clusters must scatter.

    A resample of G clusters has (G - 1) / G of the true variance; `cluster_doubt` is the rest.
    """
    return cluster_doubt(number, level) * (number / (number - 1)) ** 0.5


def draw_rows(
    rng: np.random.Generator, rows: int, size: int, clusters: Clusters | None = None
) -> Counts:
    """Return (size, N) how often each row is drawn in so many resamples."""
    counts = draw_columns(rng, rows if clusters is None else clusters.number, size)
    return counts.T if clusters is None else counts.take(clusters.codes, axis=0).T


def draw_columns(rng: np.random.Generator, number: int, size: int) -> Counts:
    """Return (G, size) how often each of G is in each resample, as `rng.integers(G, size=G)` says.

    The numbers of one row lie side by side: sums over rows then serve all resamples at a time, in
    whatever order the rows come.
    """
    counts = np.zeros((number, size), dtype=COUNT)
    wide = np.int64 if number * size >= 1 << 31 else np.int32
    index = rng.integers(number, size=(size, number), dtype=wide)
    index *= size
    index += np.arange(size, dtype=wide)[:, None]
    np.add.at(counts.reshape(-1), index.reshape(-1), COUNT(1))
    return counts


def resampled(rows: TopLabel, counts: NDArray[Any]) -> ResidualCurves:
    """Return the curves of bootstrap resamples, each row with its weight.

    Args:
        rows: the original rows.
        counts: (R, N) how often each row was drawn, in the order of `rows`, whole numbers.
    """
    if rows.weight is None:
        return PlainResamples(rows, counts)
    return ResidualCurves.weighted(rows, counts * rows.weight)


class PlainResamples(ResidualCurves):
    """Curves of rows without weights, which count them only where somebody asks how many.

    Args:
        rows: the original rows.
        counts: (R, N) how often each was drawn, whole numbers.
    """

    _counts: NDArray[Any]

    def __init__(self, rows: TopLabel, counts: NDArray[Any]) -> None:
        residual = rows.in_units.resampled(counts)
        for name, value in (("rows", rows), ("residual", residual), ("_counts", counts)):
            object.__setattr__(self, name, value)

    @property
    def total(self) -> FloatArray:
        """(R,) how many rows each resample has."""
        return self._counts.sum(axis=1, dtype=np.float64)

    @cached_property
    def weight(self) -> FloatArray | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """(R, N + 1) how many rows the first k are, each as often as resampled."""
        return accumulate(self._counts)


@dataclass(frozen=True, eq=False)
class HonestDraws:
    """Draws outcomes of rows that are perfectly calibrated, and dependent within clusters.

    Attributes:
        clusters: of the rows, or None.
        correlation: rho, of the normal numbers behind the outcomes of two rows of a cluster.
    """

    clusters: Clusters | None
    correlation: float

    @classmethod
    def like(
        cls, rows: TopLabel, clusters: Clusters | None, *, in_order: bool = True
    ) -> HonestDraws:
        """Return draws that depend on one another as the outcomes of N sorted rows do.

        Args:
            rows: N sorted rows.
            clusters: their clusters, in the caller's order.
            in_order: whether to draw for the sorted rows; else for the caller's.
        """
        if clusters is None:
            return cls(None, 0.0)
        ordered = Clusters(clusters.codes[rows.order], clusters.number)
        return cls(ordered if in_order else clusters, correlation_within(rows, ordered))

    def outcomes(self, rng: np.random.Generator, confidence: FloatArray, size: int) -> BoolArray:
        """Return (size, N) whether each row is right, with its confidence for the chance."""
        if self.clusters is None or self.correlation == 0:
            return rng.random((size, len(confidence))) < confidence
        from scipy.special import ndtri

        return self._normal(rng, len(confidence), size) < ndtri(confidence)

    def uniforms(self, rng: np.random.Generator, rows: int, size: int) -> FloatArray:
        """Return (size, N) uniform numbers as dependent as the outcomes are."""
        if self.clusters is None or self.correlation == 0:
            return rng.random((size, rows))
        from scipy.special import ndtr

        return np.asarray(ndtr(self._normal(rng, rows, size)), dtype=np.float64)

    def _normal(self, rng: np.random.Generator, rows: int, size: int) -> FloatArray:
        assert self.clusters is not None
        shared = rng.standard_normal((size, self.clusters.number)) * self.correlation**0.5
        own = rng.standard_normal((size, rows))
        own *= (1 - self.correlation) ** 0.5
        own += shared[:, self.clusters.codes]
        return own


def correlation_within(rows: TopLabel, clusters: Clusters) -> float:
    """Return the latent correlation of outcomes within clusters; see the module's text.

    0 where rows of a cluster are no more alike than rows of two, or no cluster has two rows.

    Args:
        rows: N sorted rows, with their outcomes.
        clusters: of the rows, in their order.
    """
    from scipy.special import ndtr, ndtri

    sizes = np.bincount(clusters.codes)
    if clusters.number < 3 or sizes.max() < 2:
        return 0.0
    slope, intercept = fit_of_curve(rows.curves())
    codes, correct, confidence = clusters.codes, rows.correct, rows.confidence
    weights = np.ones(rows.n) if rows.weight is None else rows.weight
    if rows.n > ROWS_FOR_CORRELATION:
        order = np.random.default_rng(0).permutation(clusters.number)
        few = int(np.searchsorted(np.cumsum(sizes[order]), ROWS_FOR_CORRELATION))
        used = np.isin(codes, order[: max(few, 3)])
        codes, correct, confidence = codes_of(codes[used])[0], correct[used], confidence[used]
        weights = weights[used]
    chance = 1 / (1 + np.exp(-np.clip(intercept + slope * logit(confidence), -30, 30)))
    number = int(codes.max()) + 1

    def excess(residual: FloatArray, lost: float = 0.0) -> float:
        weighed = residual * weights
        sums = np.bincount(codes, weighed, number)
        return float(sums @ sums) * (1 + lost) - float(weighed @ weighed)

    # The two numbers of the recalibration take up some of what clusters have in common.
    found = excess(correct - chance, 2 / (number - 2))
    threshold = ndtri(chance)
    nodes = ndtri((np.arange(NODES) + 0.5) / NODES)

    def expected(correlation: float) -> float:
        scale = (1 - correlation) ** 0.5
        shift = correlation**0.5 * nodes
        drawn = (np.asarray(ndtr((threshold - z) / scale), dtype=np.float64) for z in shift)
        return float(np.mean([excess(each - chance) for each in drawn]))

    if found <= 0:
        return 0.0
    low, high = 0.0, MOST_CORRELATION
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if expected(middle) > found else (middle, high)
    return (low + high) / 2
