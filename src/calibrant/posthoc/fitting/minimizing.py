"""The optimiser of the fits that have no solver of their own, and an order of rows for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np

from calibrant.core.arrays import FloatArray, IntArray, sigmoid, to_numpy
from calibrant.core.threads import one_blas_thread
from calibrant.predictions.predictions import Predictions

# Rows that agree in so many of their largest logits are as good as equal.
LOGITS_COMPARED = 10


def minimize(
    value_and_gradient: Callable[[FloatArray], tuple[float, FloatArray]],
    start: FloatArray,
    *,
    bounds: Any = None,
    **options: float,
) -> Any:
    """Return SciPy's result of L-BFGS-B, its BLAS kept to one thread.

    Args:
        value_and_gradient: of (d,) parameters, a number and (d,).
        start: (d,).
        bounds: (low, high) of each parameter, None for an open end.
        options: of SciPy's L-BFGS-B, such as maxiter, gtol, ftol, maxcor.
    """
    # Imported when needed: `import calibrant` should cost nothing.
    from scipy import optimize

    with one_blas_thread():
        return cast(Any, optimize).minimize(
            value_and_gradient,
            start,
            jac=True,
            method="L-BFGS-B",
            bounds=bounds,
            options=options,
        )


# Where the decrement promises so little more, in the units of the objective, a fit ends; and the
# decrease that a step has to bring, as a share of what its slope promises.
SMALL_DECREMENT, SUFFICIENT = 1e-9, 1e-4
# Of a logistic regression: the bound on steps, how often one is halved, and where it ends.
MAX_STEPS, HALVINGS, TOLERANCE = 100, 50, 1e-12


class Minimum(NamedTuple):
    """Outcome of Newton's method: where, how low, after how many steps, and whether it is flat."""

    place: FloatArray
    value: float
    steps: int
    converged: bool


def least_log_loss(
    design: FloatArray, target: FloatArray, count: FloatArray, ridge: FloatArray, start: FloatArray
) -> tuple[Minimum, FloatArray]:
    """Minimise the log loss of sigmoid(X w) on targets in [0, 1] by Newton's method, halving steps.

    Args:
        design: (N, p) X; target: (N,) targets; count: (N,) how often each row counts.
        ridge: (p,) pulls on w, half of each times the square of the distance to the start.
        start: (p,) w to begin with.

    Returns:
        The minimum of the sum, and its (p, p) curvature there.
    """

    def objective(at: FloatArray) -> float:
        linear, away = design @ at, at - start
        loss = count @ (np.logaddexp(0.0, linear) - target * linear)
        return float(loss) + float(ridge @ (away * away)) / 2

    w, steps, converged, value = start, 0, False, objective(start)
    while True:
        p: FloatArray = sigmoid(design @ w)
        gradient = design.T @ (count * (p - target)) + ridge * (w - start)
        hessian = (design.T * (count * p * (1 - p))) @ design + np.diag(ridge)
        if converged or steps == MAX_STEPS:
            return Minimum(w, value, steps, converged), hessian
        step = np.linalg.solve(hessian, gradient).astype(np.float64)
        size, before = 1.0, value
        for _ in range(HALVINGS):
            value = objective(w - size * step)
            # A step that gains nothing in floating point is as good as one that gains.
            if value <= before + 1e-13 * abs(before):
                break
            size /= 2
        w, steps = w - size * step, steps + 1
        moved = np.abs(design @ step).max(initial=0.0)
        converged = bool(moved < TOLERANCE * (1 + np.abs(w).max(initial=0.0)))
        converged = converged or float(gradient @ step) < 1e-15 * (1 + abs(value))


def newton_within(
    at: Callable[[FloatArray], tuple[float, FloatArray, FloatArray]],
    start: FloatArray,
    low: FloatArray,
    high: FloatArray,
    most_steps: int,
) -> Minimum:
    """Minimise a strictly convex function of few parameters within limits, by Newton's method.

    Each step minimises the quadratic model within the lower limits, which is a least-squares
    problem with parameters of at least 0, and is halved until it brings enough. The last, which
    promises next to nothing, is taken as it is: what it brings is lost in rounding errors.

    Args:
        at: of (d,) parameters, a number, its (d,) gradient and its (d, d) curvature.
        start: (d,) within the limits; low: (d,) limits; high: (d,) limits, infinite for none.
        most_steps: bound on the steps.
    """
    from scipy.optimize import nnls

    place = start
    value, gradient, bend = at(place)
    for steps in range(most_steps):
        root = np.linalg.cholesky(bend)
        aim = root.T @ (place - low) - np.linalg.solve(root, gradient)
        there: FloatArray = np.asarray(cast(Any, nnls)(root.T, aim)[0])
        step = np.minimum(there + low, high) - place
        slope, size = float(gradient @ step), 1.0
        if slope > -SMALL_DECREMENT:
            return Minimum(place + step, value, steps, True)
        found = at(place + step)
        while found[0] > value + SUFFICIENT * size * slope and size > 1e-8:
            size /= 2
            found = at(place + size * step)
        if size <= 1e-8:
            return Minimum(place, value, steps, False)
        place, (value, gradient, bend) = place + size * step, found
    return Minimum(place, value, most_steps, False)


def in_own_order(predictions: Predictions) -> tuple[FloatArray, IntArray, IntArray]:
    """Return rows and classes in an order that doesn't depend on the one in which they came.

    A sum is rounded according to the order of its terms, and processors differ in that, too. Where
    a fit sums over rows, rows in an order of their own give the same sums, bit for bit, however
    they were shuffled. The classes of each row stand in falling order of their logits.

    Args:
        predictions: with unmasked classes; the logits' origin doesn't matter to the order.

    Returns:
        (N, K) float64 logits, (N,) labels as columns of them, and the (N,) rows of `predictions`
        that they are.
    """
    logits = to_numpy(predictions.scores).astype(np.float64)
    of_label = logits[np.arange(len(logits)), predictions.labels]
    ranked = -np.sort(-logits, axis=1)
    ranks = (ranked > of_label[:, None]).sum(axis=1)
    compared = ranked[:, :LOGITS_COMPARED] - ranked.mean(axis=1, keepdims=True)
    order = np.lexsort([ranks, *compared.T])
    return ranked[order], ranks[order], order
