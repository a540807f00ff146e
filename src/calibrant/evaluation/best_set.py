"""Which of several calibrators may be the best: multiple comparisons with the best.

"A ties with B" over all pairs answers more questions than anybody has, and pays for each. A reader
wants to know which methods can be left out. A method is left out if some other is better by more
than noise, taken over all the others at once, would show if it were the best itself.

How much noise shows is read off resamples. Of a mean over rows, such as the NLL, it needn't be:
the means of several calibrators are jointly normal, with the covariance of what single rows give.
So who may be the best in NLL depends on the rows alone, and not on which resamples were drawn.

Statistics over data sets: ranks, Friedman's test, the critical difference, paired tests.

Demsar's advice (JMLR 2006): data sets are the sample, so a method has one value on each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import FloatArray
from calibrant.evaluation.sample import RowSample
from calibrant.evaluation.uncertainty import DEFAULT_LEVEL, ROUNDING, difference_of
from calibrant.metrics.resampling import cluster_stretch


def ranks_within(costs: FloatArray) -> FloatArray:
    """Return (data sets, methods) ranks of costs within data sets, 1 for the lowest.

    Ties share their mean rank.

    Examples:
        >>> import numpy as np
        >>> from calibrant.evaluation.best_set import ranks_within
        >>> ranks_within(np.array([[0.1, 0.3, 0.1]]))
        array([[1.5, 3. , 1.5]])
    """
    below = (costs[:, :, None] > costs[:, None, :]).sum(axis=2)
    same = (costs[:, :, None] == costs[:, None, :]).sum(axis=2)
    return below + (same + 1) / 2


def critical_difference(n_methods: int, n_datasets: int, level: float) -> float | None:
    """Return how far apart two mean ranks must be to differ (Nemenyi's test); None for one method.

    Args:
        n_methods: k.
        n_datasets: n.
        level: one minus the probability of any false difference.

    Returns:
        q sqrt(k (k + 1) / (6 n)), with q the quantile of the studentised range over the root of 2.
    """
    if n_methods < 2:
        return None
    from scipy.stats import studentized_range

    quantile = float(studentized_range.ppf(level, n_methods, np.inf)) / math.sqrt(2)
    return quantile * math.sqrt(n_methods * (n_methods + 1) / (6 * n_datasets))


def friedman_p(ranks: FloatArray) -> float | None:
    """Return the p-value of Friedman's test that all methods rank alike, as Iman and Davenport's F.

    No order of k methods on n data sets is less likely by chance than 1 / k!^(n - 1), that of all n
    in the same order, so p is at least that: F of two data sets that agree is infinite.

    Args:
        ranks: (data sets, methods) ranks within data sets.

    Returns:
        None with one data set or one method.
    """
    n, k = ranks.shape
    if k < 2 or n < 2:
        return None
    from scipy.special import fdtrc

    # With ties, as tied ranks have less variance.
    centred = ranks - (k + 1) / 2
    spread = float((centred**2).sum())
    between = float((centred.sum(axis=0) ** 2).sum()) / n
    if spread == 0:
        return 1.0
    chi = n * (k - 1) * between / spread
    least = math.exp(-(n - 1) * math.lgamma(k + 1))
    if n * (k - 1) - chi <= 1e-12:
        return least  # the same order on every data set
    f = (n - 1) * chi / (n * (k - 1) - chi)
    return max(least, float(cast(Any, fdtrc)(k - 1, (k - 1) * (n - 1), f)))


def t_interval(values: FloatArray, level: float) -> tuple[float | None, float | None]:
    """Return the ends of the t interval of the mean of (n,) values; None for a single one."""
    if len(values) < 2:
        return None, None
    from scipy.special import stdtrit

    half = float(stdtrit(len(values) - 1, (1 + level) / 2))
    half *= float(values.std(ddof=1)) / math.sqrt(len(values))
    return float(values.mean()) - half, float(values.mean()) + half


def signed_rank_p(values: FloatArray) -> float | None:
    """Return the two-sided p-value of Wilcoxon's signed-rank test of (n,) differences.

    Exact for few differences without ties; None for a single one.
    """
    if len(values) < 2:
        return None
    if not values.any():
        return 1.0
    from scipy.stats import wilcoxon

    return float(wilcoxon(values, zero_method="zsplit").pvalue)


# Normal draws behind a quantile of means, and their seed. The chance of a draw beyond the 95 %
# quantile is then known to .001, and the same numbers serve whatever is compared.
NORMAL_DRAWS, NORMAL_SEED = 50_000, 0
# So many numbers of rows times calibrators are held at a time, 32 MB.
NUMBERS_AT_ONCE = 1 << 22


def may_be_best(
    costs: FloatArray,
    replicates: FloatArray,
    level: float,
    reach: Callable[[int, FloatArray], FloatArray] | None = None,
) -> NDArray[np.bool_]:
    """Return which of M calibrators may have the lowest expected cost.

    With d_ij the difference of the costs of i and j, s_ij its standard deviation over resamples and
    d*_ij the resampled difference minus its mean, i may be the best if

        d_ij <= s_ij q_i for all j, q_i the `level` quantile of max_j d*_ij / s_ij.

    For the truly best i no d_ij is above 0 but by noise, so the set holds it with probability
    `level`, in the limit of many rows: Gupta's subset selection, Hsu's constrained intervals. No
    correction for the number of pairs is needed, since only the best one matters.

    Args:
        costs: (M,) values on the rows themselves, lower for better.
        replicates: (M, R) their values on R resamples, the same resamples for all.
        level: probability that the set holds the best one.
        reach: makes of i and (M,) s_ij q_i how far the noise of its differences reaches, where
            there is more of it than resamples show; None for just that.

    Returns:
        (M,) booleans; at least the one of lowest cost is true.

    References:
        Gupta, Technometrics 1965. Hsu, Annals of Statistics 1981.

    Examples:
        >>> import numpy as np
        >>> from calibrant.evaluation.best_set import may_be_best
        >>> noise = np.random.default_rng(0).normal(size=(3, 500))
        >>> may_be_best(np.array([0.0, 1.0, 9.0]), noise, 0.95)
        array([ True,  True, False])
    """
    rounding = ROUNDING * max(1.0, float(np.abs(costs).max()))
    found = np.zeros(len(costs), dtype=np.bool_)
    for i in range(len(costs)):
        drawn = difference_of(replicates[i], replicates)
        drawn -= drawn.mean(axis=1, keepdims=True)
        spread = drawn.std(axis=1)
        # What differs by the same amount on every resample has no noise to be measured in.
        some = spread > rounding / 1000
        noisy = (drawn[some] / spread[some, None]).max(axis=0, initial=0.0)
        limit = float(np.quantile(noisy, level)) * spread
        if reach is not None:
            limit = reach(i, limit)
        found[i] = not (costs[i] - costs > np.maximum(limit, rounding)).any()
    return found


def may_have_best_mean(
    costs: FloatArray, covariance: FloatArray, level: float
) -> NDArray[np.bool_]:
    """Return which of M calibrators may have the lowest expected cost, a mean over rows.

    The rule of `may_be_best`, with jointly normal d*_ij of the covariance given. Nothing is drawn
    for those whose largest d_ij / s_ij lies below the quantile of a single normal number, or above
    Bonferroni's bound for M - 1 of them.

    Args:
        costs: (M,) means over the rows, lower for better.
        covariance: (M, M) of these means; whatever all calibrators have in common may be left out.
        level: probability that the set holds the best one.

    Returns:
        (M,) booleans; at least the one of lowest cost is true.

    Examples:
        >>> import numpy as np
        >>> from calibrant.evaluation.best_set import may_have_best_mean
        >>> may_have_best_mean(np.array([0.0, 1.0, 9.0]), np.eye(3), 0.95)
        array([ True,  True, False])
    """
    from scipy.special import ndtri

    others = len(costs) - 1
    if others < 1:
        return np.ones(len(costs), dtype=np.bool_)
    variance = np.diag(covariance)
    spread = np.sqrt(np.maximum(variance[:, None] + variance - 2 * covariance, 0.0))
    some = spread > ROUNDING * np.sqrt(variance.max())
    difference = costs[:, None] - costs
    worst = np.max(np.divide(difference, spread, out=np.zeros_like(spread), where=some), axis=1)
    one, all_others = float(ndtri(level)), float(ndtri(1 - (1 - level) / others))
    found = worst <= one
    unsure = np.flatnonzero((worst > one) & (worst <= all_others))
    if len(unsure):
        # The symmetric root is the one that hardly moves if the covariance hardly does.
        values, vectors = np.linalg.eigh(covariance)
        root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
        noise = root @ np.random.default_rng(NORMAL_SEED).standard_normal(
            (len(costs), NORMAL_DRAWS)
        )
        for i in unsure.tolist():
            drawn = (noise[i] - noise[some[i]]) / spread[i, some[i], None]
            found[i] = worst[i] <= float(np.quantile(drawn.max(axis=0, initial=0.0), level))
    # By less than rounding on every row: no noise can have made that.
    same = (difference > ROUNDING * np.abs(costs).max()) & ~some
    return found & ~same.any(axis=1)


def covariance_of_means(
    rows: Sequence[FloatArray], sample: RowSample, level: float = DEFAULT_LEVEL
) -> FloatArray:
    """Return (M, M) the covariance of a mean metric of M calibrators, less what all have in common.

    It is the one that resamples have in the limit of many: row i, or cluster i, adds w_i (x_i -
    mean) / sum w to the mean, and the covariance is the sum of the products of that. Few clusters
    know less (`cluster_stretch`). x_i of the first calibrator is taken off that of all, which
    changes no difference and keeps the digits of small ones.

    Args:
        rows: (N,) numbers that the metric averages, of each calibrator.
        sample: these rows as any of the calibrators scores them: their weights and clusters.
        level: nominal coverage of what is made of it.
    """
    n, weights = len(rows[0]), sample.scores.weights
    share = np.full(n, 1 / n) if weights is None else weights / weights.sum()
    means = np.array([float(share @ (x - rows[0])) for x in rows])
    clusters = sample.groups
    if clusters is not None:
        added = [share * (x - rows[0] - m) for x, m in zip(rows, means.tolist(), strict=True)]
        summed = np.stack([np.bincount(clusters.codes, a, clusters.number) for a in added])
        together = summed @ summed.T * cluster_stretch(clusters.number, level) ** 2
        return np.asarray(together, dtype=np.float64)
    found = np.zeros((len(rows), len(rows)))
    size = max(1, NUMBERS_AT_ONCE // len(rows))
    for start in range(0, n, size):
        part = slice(start, start + size)
        added = np.stack([x[part] - rows[0][part] for x in rows]) - means[:, None]
        added *= share[part]
        found += added @ added.T
    return found
