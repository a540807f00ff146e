"""Off-diagonal and intercept regularisation (ODIR): penalised fits of softmax((I + D) x + b).

The penalties are the paper's normalised ones, added to the mean negative log-likelihood,

    lambda / (K (K - 1)) sum_{i != j} d_ij^2  +  mu / K sum_j b_j^2,

means over entries, so one strength says the same of ten classes and of a hundred. The diagonal is
free but for a pull as strong as one row, without which separable rows would have no optimum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from calibrant.core.arrays import FloatArray, IntArray
from calibrant.core.weights import mean as average
from calibrant.posthoc.linear.likelihood import LinearLikelihood
from calibrant.posthoc.linear.optimum import LinearFit, fit_linear

# Ends of a search among penalties needn't be known as well as the final fit.
PATH_TOLERANCE = 1e-4
# Pulls on one entry of D that cross-validation tries, in units of one row's likelihood.
PULLS = tuple(10 ** (half / 2) for half in (12, 8, 7, 6, 5, 4, 3, 2, 1, 0))
# Held-out loss that rises this often in a row has passed its minimum.
MOST_RISES = 2


class Strengths(NamedTuple):
    """The two strengths of the regularisation, lambda and mu."""

    off_diagonal: float
    bias: float

    def penalties(self, rows: float, classes: int) -> FloatArray:
        """Return the (K^2 + K,) penalties of D, in rows, and of b."""
        matrix = np.full((classes, classes), self.off_diagonal / (classes * (classes - 1)))
        np.fill_diagonal(matrix, 1 / rows)
        return np.concatenate([matrix.ravel(), np.full(classes, self.bias / classes)])


def cross_validate(
    rows: LinearLikelihood, fold: IntArray, path: Sequence[Strengths], max_iterations: int
) -> tuple[Strengths, LinearFit | None, FloatArray]:
    """Return the strengths with the lowest held-out NLL, and a start for their fit to all rows.

    The last are the (N,) losses that rows had with these strengths while they were held out,
    infinite where there is one fold only.

    Args:
        rows: the likelihood of all rows.
        fold: (N,) the fold of each; where there is one fold only, the first strengths are taken.
        path: from the strongest to the weakest. Each fit starts where the one before it ended, and
            the path is left once the loss has risen twice running.
        max_iterations: bound on the steps of each fit.
    """
    folds = np.unique(fold).tolist()
    fits: dict[int, LinearFit] = {}
    chosen, start, rises, last, lowest = path[0], None, 0, np.inf, np.inf
    best = np.full(len(fold), np.inf)
    for strengths in path if len(folds) > 1 else ():
        held_out = np.empty(len(fold))
        for part in folds:
            seen = rows.take(fold != part)
            fits[part] = fit_linear(
                seen,
                strengths.penalties(seen.total, int(seen.logits.shape[1])),
                max_iterations,
                start=fits.get(part),
                tolerance=PATH_TOLERANCE,
            )
            unseen = rows.take(fold == part)
            held_out[fold == part] = unseen.losses(fits[part].change, fits[part].bias)
        mean = average(held_out, rows.weights)
        rises = rises + 1 if mean > last else 0
        last = mean
        if mean < lowest:
            lowest, best, chosen, start = mean, held_out, strengths, _middle(list(fits.values()))
        if rises == MOST_RISES:
            break
    return chosen, start, best


def _middle(fits: Sequence[LinearFit]) -> LinearFit:
    """Return one of several fits with the mean of their maps."""
    change = np.mean([fit.change for fit in fits], axis=0)
    return fits[0]._replace(change=change, bias=np.mean([fit.bias for fit in fits], axis=0))
