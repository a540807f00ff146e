"""Which of several calibrators may be the best: multiple comparisons with the best.

"A ties with B" over all pairs answers more questions than anybody has, and pays for each. A reader
wants to know which methods can be left out. A method is left out if some other is better by more
than noise, taken over all the others at once, would show if it were the best itself.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import FloatArray


def may_be_best(costs: FloatArray, replicates: FloatArray, level: float) -> NDArray[np.bool_]:
    """Return which of M calibrators may have the lowest expected cost.

    With d_ij the difference of the costs of i and j, s_ij its standard deviation over resamples and
    d*_ij the resampled difference less its mean, i may be the best if

        max_j d_ij / s_ij <= the `level` quantile of max_j d*_ij / s_ij.

    For the truly best i no d_ij is above 0 but by noise, so the set holds it with probability
    `level`, in the limit of many rows: Gupta's subset selection, Hsu's constrained intervals. No
    correction for the number of pairs is needed, since only the best one matters.

    Args:
        costs: (M,) values on the rows themselves, lower for better.
        replicates: (M, R) their values on R resamples, the same resamples for all.
        level: probability that the set holds the best one.

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
    noise = replicates - replicates.mean(axis=1, keepdims=True)
    rounding = 1e-12 * max(1.0, float(np.abs(costs).max()))
    found = np.zeros(len(costs), dtype=np.bool_)
    for i, cost in enumerate(costs.tolist()):
        difference, drawn = cost - costs, noise[i] - noise
        spread = drawn.std(axis=1)
        some = spread > rounding
        if (difference[~some] > 1000 * rounding).any():
            continue  # another is better by the same amount on every resample
        worst = float((difference[some] / spread[some]).max(initial=0.0))
        noisy = (drawn[some] / spread[some, None]).max(axis=0, initial=0.0)
        found[i] = worst <= float(np.quantile(noisy, level))
    return found
