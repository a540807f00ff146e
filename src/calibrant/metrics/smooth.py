"""The smooth calibration error smCE: residuals against the worst 1-Lipschitz witness."""

from __future__ import annotations

import numpy as np

from calibrant.core.arrays import Array, FloatArray
from calibrant.metrics.metric_types import CurveMetric
from calibrant.metrics.top_label import PairKind, ResidualCurves, top_label

# Resamples are put on this many cells. That is off by at most mean|a - c| / (2 cells); on 10 000
# rows it was off by 2e-5 at most and by 1e-6 on average, far below their spread.
RESAMPLING_CELLS = 64
# Resamples that are worked on at once, so many that their numbers stay in the cache.
MOST_AT_ONCE = 128
# More distinct confidences than this are put on cells: off by at most mean|a - c| / 65 536, below
# 1e-5.
MOST_EXACT_ROWS, LARGE_CELLS = 50_000, 1 << 15


def smooth_calibration_error(
    scores: Array,
    labels: Array,
    *,
    kind: PairKind | None = None,
    sample_weight: Array | None = None,
) -> float:
    """Return smCE = max over w of (1/N) sum_i (a_i - c_i) w(c_i), a fraction.

    w runs over the 1-Lipschitz functions from [0, 1] to [-1, 1]. There are no bins to choose, and
    the value lies within a factor of two of the distance to the nearest calibrated predictor.
    Exact up to 50 000 distinct confidences, for which the dual of the linear program over the
    sorted confidences, a monotone path, is solved by halving; above that to 1e-5.

    The smooth ECE, smECE, is another number: `smooth_ece`.

    Args:
        scores: (N, K) probabilities, or (N,) confidences.
        labels: (N,) true classes, or (N,) correctness.
        kind: of (N,) scores, ``"confidence"``, or ``"prob"`` of the positive class, with labels 0
            and 1 in place of correctness.
        sample_weight: (N,) how much each row counts; by default all alike.

    References:
        Kakade & Foster, J. Comput. Syst. Sci. 2008. Blasiok, Gopalan, Hu, Nakkiran, STOC 2023.

    Examples:
        >>> import calibrant as cb
        >>> value = cb.metrics.smooth_calibration_error([0.499, 0.501], [0, 1], kind="confidence")
        >>> round(value, 3)  # an edge of a bin at .5 would make this an ECE of .5
        0.0
        >>> from calibrant.metrics import smooth_calibration_error
        >>> round(smooth_calibration_error([0.9] * 4, [1, 1, 1, 0], kind="confidence"), 3)
        0.15
    """
    rows = top_label(scores, labels, kind, sample_weight=sample_weight)
    return smce_of_curve(rows.curves())


def smce_of_curve(curve: ResidualCurves) -> float:
    """Return the smCE of one residual curve."""
    if curve.rows.distinct >= MOST_EXACT_ROWS:
        return float(smce_of_curves(curve, LARGE_CELLS)[0])
    starts = curve.rows.tie_starts
    residual = np.diff(curve.residual[0, starts]) / -curve.total[0]
    return max_lipschitz_correlation(curve.rows.confidence[starts[:-1]], residual)


def smce_of_curves(curves: ResidualCurves, cells: int = RESAMPLING_CELLS) -> FloatArray:
    """Return the (R,) smCEs of residual curves, with confidences moved to the middle of cells."""
    masses = curves.between_edges(np.arange(cells + 1) / cells) / -curves.total[:, None]
    if cells > RESAMPLING_CELLS:
        used = np.abs(masses).max(axis=0) > 0
        middles = ((np.arange(cells) + 0.5) / cells)[used]
        return np.array([max_lipschitz_correlation(middles, mass) for mass in masses[:, used]])
    parts = range(0, len(masses), MOST_AT_ONCE)
    return np.concatenate([_on_even_cells(masses[i : i + MOST_AT_ONCE].T) for i in parts])


def _on_even_cells(masses: FloatArray) -> FloatArray:
    """Return the (R,) maxima of `max_lipschitz_correlation` for (C, R) masses in C even cells.

    With a bound of 1 / C on the steps of w and less than C steps, w can't reach from -1 to 1. The
    dual is then a path: with F_i the sum of the first i masses, the maximum is
    |F_C| + (1 / C) min over monotone g from 0 to F_C of sum_{i < C} |F_i - g_i|. What of F lies
    beyond 0 or F_C counts whole. For the rest each level between two neighbouring values of F asks
    where g had best cross it: every F_i above it before that place, or below it behind, costs the
    distance of the two values. So whole numbers do, counts of the F_i on either side.
    """
    sums = np.cumsum(masses, axis=0)
    total = np.abs(sums[-1])
    path = sums[:-1] * np.where(sums[-1] < 0, -1.0, 1.0)
    inside = np.clip(path, 0.0, total)
    beyond = np.abs(path - inside).sum(axis=0)
    values = np.ascontiguousarray(inside.T)
    places = np.argsort(values, axis=1)
    numbers = np.arange(len(path), dtype=np.int8)
    # More behind the last one, as many as make a power of 2, lie above all levels.
    ranks = np.full((len(total), 1 << len(path).bit_length()), len(path), dtype=np.int8)
    np.put_along_axis(ranks, places, numbers[None, :], axis=1)
    above = np.ascontiguousarray(ranks.T)[:, None, :] > numbers[:-1, None]
    # How many more of some neighbours lie above each level than below, and the least that the
    # first few of them do; first of one, then of two, of four, ...
    more = above.view(np.int8)
    more *= 2
    more -= 1
    least = np.minimum(more, 0)
    while len(more) > 1:
        left, right = more[::2], more[1::2]
        least = np.minimum(least[::2], left + least[1::2])
        more = left + right
    values.sort(axis=1)
    crossed = (np.diff(values, axis=1).T * (least[0] + numbers[1:, None])).sum(axis=0)
    return total + (beyond + crossed) / len(masses)


def max_lipschitz_correlation(positions: FloatArray, masses: FloatArray) -> float:
    """Return max of sum_i r_i w_i over |w_i| <= 1 and |w_i - w_j| <= |v_i - v_j|.

    It is |F_n| + min over monotone g from 0 to F_n of sum_i (v_(i+1) - v_i) |F_i - g_i|, with F_i
    the sum of the first i masses (see `_on_even_cells`). Whether g is above or below a level is a
    question of its own: a monotone g crosses it at one place, the one before which the F_i above it
    and behind which those below it have the least steps between them. So the middle one of all
    values of F is asked first; then, on either side of the place, the middle one of those left.

    Args:
        positions: (n,) v, ascending and distinct, in [0, 1].
        masses: (n,) r.
    """
    sums = np.cumsum(masses)
    if len(sums) < 2:
        return abs(float(masses.sum()))
    steps, total = np.diff(positions), abs(float(sums[-1]))
    path = sums[:-1] if sums[-1] >= 0 else -sums[:-1]
    inside = np.clip(path, 0.0, total)
    n, order = len(path), np.argsort(inside)
    places, ranks = np.arange(n), np.empty(n, dtype=np.int64)
    ranks[order] = places
    # g_i is the value of rank `low` to `high`; neighbours that have both in common are a group.
    low, high = np.zeros(n, dtype=np.int64), np.full(n, n - 1)
    while (undecided := low < high).any():
        middle = (low + high) >> 1
        firsts = np.flatnonzero((np.diff(low, prepend=-1) != 0) | (np.diff(high, prepend=-1) != 0))
        sizes = np.diff(firsts, append=n)
        # What it costs to have g below the level up to a place, less what it costs above.
        cost = np.cumsum(np.where(undecided, np.where(ranks > middle, steps, -steps), 0.0))
        before = np.where(firsts > 0, cost[firsts - 1], 0.0)
        least = np.minimum.reduceat(cost, firsts)
        cheapest = np.flatnonzero(cost == np.repeat(least, sizes))
        behind = cheapest[np.searchsorted(cheapest, firsts)] + 1
        crossing = np.where(before <= least, firsts, behind)
        below = places < np.repeat(crossing, sizes)
        high = np.where(undecided & below, middle, high)
        low = np.where(undecided & ~below, middle + 1, low)
    return total + float(steps @ np.abs(path - inside[order[low]]))


SMCE = CurveMetric(
    name="smce",
    title="smCE",
    definition="top label, exact maximum over 1-Lipschitz witnesses",
    function=smooth_calibration_error,
    effort="a sweep over N confidences; 64 cells for resamples",
    fails="errors that change sign within a short stretch count little, by design",
    omnibus=True,
    of_curves=smce_of_curves,
    at_breakpoints=True,
    exact=smce_of_curve,
)
SMCE_POSITIVE = SMCE.for_positive(
    "probability of the positive class, maximum over 1-Lipschitz witnesses"
)
