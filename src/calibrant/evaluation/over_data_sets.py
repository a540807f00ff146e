"""Statistics over data sets: ranks, Friedman's test, the critical difference, paired tests.

Demsar's advice (JMLR 2006): data sets are the sample, so a method has one value on each.
"""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np

from calibrant.core.arrays import FloatArray


def ranks_within(costs: FloatArray) -> FloatArray:
    """Return (data sets, methods) ranks of costs within data sets, 1 for the lowest.

    Ties share their mean rank.

    Examples:
        >>> import numpy as np
        >>> from calibrant.evaluation.over_data_sets import ranks_within
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
