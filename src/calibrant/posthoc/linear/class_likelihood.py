"""Class temperatures by penalised likelihood, and how hard they are pulled to the single one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from calibrant.core.arrays import FloatArray, IntArray
from calibrant.core.errors import ConvergenceWarning, warn_caller
from calibrant.posthoc.fitting.cross_validation import difference_of_losses
from calibrant.posthoc.fitting.minimizing import minimize
from calibrant.posthoc.linear.likelihood import LinearLikelihood
from calibrant.posthoc.linear.optimum import SMALL_GRADIENT

# Ends of a search among strengths needn't be known as well as the final fit.
SEARCH_TOLERANCE, SEARCH_STEPS = 1e-4, 50
# Pulls on a class that cross-validation tries, in units of one row's likelihood for each class,
# from the strongest; it ends once the loss has risen this often running. Weaker ones gain next to
# nothing with 5 000 rows; with 200 rows, ten of them wrong, one was chosen by noise.
SHRINKAGES, MOST_RISES = (30.0, 10.0, 3.0, 1.0), 2


class ClassFit(NamedTuple):
    """Outcome of `fit_logs`: (K,) log(T_k / T), the objective and how it was found."""

    logs: FloatArray
    value: float
    iterations: int
    converged: bool


def fit_logs(
    rows: LinearLikelihood,
    shrinkage: float,
    max_iterations: int,
    *,
    start: FloatArray | None = None,
    tolerance: float = 1e-7,
) -> ClassFit:
    """Minimise mean NLL + shrinkage K / N |u|^2 over u = log(T_k / T) by L-BFGS from 0 or `start`.

    K counts the classes that some row can be. A fit that falls short at the default tolerance is
    warned of.
    """
    n, classes = rows.total, int(rows.logits.shape[1])
    pull, bias = shrinkage * rows.possible / n, np.zeros(classes)

    def loss(logs: FloatArray) -> tuple[float, FloatArray]:
        ratios = np.exp(-logs)
        value, by_ratio, _ = rows.nll(ratios - 1, bias)
        gradient = 2 * pull * logs - by_ratio * ratios / n
        return value / n + pull * float(logs @ logs), gradient

    found = minimize(
        loss,
        bias if start is None else start,
        maxiter=max_iterations,
        gtol=tolerance,
        ftol=1e-6 * tolerance,
    )
    converged = bool(found.success) or float(np.abs(found.jac).max()) < SMALL_GRADIENT
    return ClassFit(found.x, float(found.fun), int(found.nit), converged)


def warn_if_short(fit: ClassFit) -> None:
    """Warn of a fit that ended before it was flat."""
    if not fit.converged:
        message = f"class temperatures stopped after {fit.iterations} steps"
        warn_caller(ConvergenceWarning(message))


def chosen_shrinkage(rows: LinearLikelihood, fold: IntArray) -> float:
    """Return the shrinkage with the lowest held-out NLL, infinity unless it clearly gains.

    "Clearly" is by more than the standard error of its paired difference to the single temperature
    (`difference_of_losses`), so that noise alone seldom leaves the single temperature.

    Args:
        rows: the likelihood of all rows.
        fold: (N,) the fold of each.
    """
    n, classes = rows.logits.shape
    folds, none = np.unique(fold).tolist(), np.zeros(classes)
    if len(folds) < 2:
        return np.inf
    parts = [(rows.take(fold != part), rows.take(fold == part), fold == part) for part in folds]
    logs, losses, single = dict.fromkeys(folds, none), np.empty(n), rows.losses(none, none)
    best, chosen, last, rises = single, np.inf, np.inf, 0
    for shrinkage in SHRINKAGES:
        for part, (seen, unseen, where) in zip(folds, parts, strict=True):
            fit = fit_logs(
                seen, shrinkage, SEARCH_STEPS, start=logs[part], tolerance=SEARCH_TOLERANCE
            )
            logs[part] = fit.logs
            losses[where] = unseen.losses(np.exp(-fit.logs) - 1, none)
        mean = float(losses.mean())
        rises = rises + 1 if mean > last else 0
        last = mean
        if mean < best.mean():
            best, chosen = losses.copy(), shrinkage
        if rises == MOST_RISES:
            break
    gain = difference_of_losses(single, best, len(folds))
    return chosen if gain.value > gain.error else np.inf
