"""Off-diagonal and intercept regularisation (ODIR): penalised fits of softmax((I + D) x + b).

The penalties are the paper's normalised ones, added to the mean negative log-likelihood,

    lambda / (K (K - 1)) sum_{i != j} d_ij^2  +  mu / K sum_j b_j^2,

means over entries, so one strength says the same of ten classes and of a hundred. The diagonal is
free but for a pull as strong as one row, without which separable rows would have no optimum.

Strengths are chosen by cross-validation. Folds are dealt out by each row's loss before the fit, so
they are alike, and depend neither on the order of the rows nor on that of the classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from calibrant.arrays import FloatArray, IntArray, row_chunks

SMALL_GRADIENT = 1e-5
# Ends of a search among penalties needn't be known as well as the final fit.
PATH_TOLERANCE, TOLERANCE = 1e-4, 1e-6
FOLDS = 5
# Pulls on one entry of D that cross-validation tries, in units of one row's likelihood.
PULLS = tuple(10 ** (half / 2) for half in (12, 8, 7, 6, 5, 4, 3, 2, 1, 0))
# Held-out loss that rises this often in a row has passed its minimum.
MOST_RISES = 2


@dataclass(frozen=True, eq=False)
class Block:
    """Some rows: `inputs` (n, K) float64, `labels` (n,)."""

    inputs: FloatArray
    labels: IntArray


class Strengths(NamedTuple):
    """The two strengths of the regularisation, lambda and mu."""

    off_diagonal: float
    bias: float


class MatrixFit(NamedTuple):
    """Outcome of `fit_matrix`: D in rows, then b; the objective; how the optimiser ended."""

    vector: FloatArray
    value: float
    iterations: int
    converged: bool

    def parts(self, classes: int) -> tuple[FloatArray, FloatArray]:
        """Return (K, K) D and (K,) b."""
        size = classes * classes
        return self.vector[:size].reshape(classes, classes), self.vector[size:]


def likelihood(
    block: Block, change: FloatArray, bias: FloatArray
) -> tuple[float, FloatArray, FloatArray]:
    """Return the summed NLL of softmax((I + change) x + bias), and its gradients by both."""
    value, by_change, by_bias = 0.0, np.zeros(change.shape), np.zeros(len(bias))
    for part in row_chunks(block.inputs):
        inputs, labels = block.inputs[part], block.labels[part]
        scores = inputs @ change.T
        scores += inputs
        scores += bias
        scores -= scores.max(axis=1, keepdims=True)
        rows = np.arange(len(scores))
        value -= float(scores[rows, labels].sum())
        weights = np.exp(scores, out=scores)
        total = weights.sum(axis=1, keepdims=True)
        value += float(np.log(total).sum())
        weights /= total
        weights[rows, labels] -= 1.0
        by_bias += weights.sum(axis=0)
        by_change += weights.T @ inputs
    return value, by_change, by_bias


def fit_matrix(
    blocks: Sequence[Block],
    strengths: Strengths,
    start: FloatArray,
    *,
    max_iterations: int,
    tolerance: float = TOLERANCE,
) -> MatrixFit:
    """Minimise the penalised mean NLL, a strictly convex function, by L-BFGS.

    Args:
        blocks: the rows, in parts.
        strengths: lambda and mu.
        start: (K^2 + K,) D in rows, then b.
        max_iterations: bound on steps.
        tolerance: largest entry of the gradient to stop at.
    """
    from scipy.optimize import minimize

    classes = blocks[0].inputs.shape[1]
    size, rows = classes * classes, sum(len(block.labels) for block in blocks)
    penalties = np.full((classes, classes), strengths.off_diagonal / (classes * (classes - 1)))
    np.fill_diagonal(penalties, 1 / rows)
    penalties = np.concatenate([penalties.ravel(), np.full(classes, strengths.bias / classes)])
    # Steps as long as the curvature allows: pulls and inputs span many orders of magnitude.
    scale = 1 / np.sqrt(2 * penalties + curvatures(blocks))

    def loss(steps: FloatArray) -> tuple[float, FloatArray]:
        vector = steps * scale
        change, bias = vector[:size].reshape(classes, classes), vector[size:]
        value, gradient = 0.0, np.zeros(len(vector))
        for block in blocks:
            part, by_change, by_bias = likelihood(block, change, bias)
            value += part
            gradient[:size] += by_change.ravel()
            gradient[size:] += by_bias
        pull = penalties * vector
        return value / rows + float(pull @ vector), (gradient / rows + 2 * pull) * scale

    found: Any = minimize(
        loss,
        start / scale,
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": max_iterations, "gtol": tolerance, "ftol": 1e-6 * tolerance},
    )
    converged = bool(found.success) or float(np.abs(found.jac).max()) < SMALL_GRADIENT
    return MatrixFit(found.x * scale, float(found.fun), int(found.nit), converged)


def curvatures(blocks: Sequence[Block]) -> FloatArray:
    """Return the (K^2 + K,) second derivatives of the mean NLL at D = 0, b = 0."""
    classes = blocks[0].inputs.shape[1]
    by_change, by_bias = np.zeros((classes, classes)), np.zeros(classes)
    rows = 0
    for block in blocks:
        for part in row_chunks(block.inputs):
            inputs = block.inputs[part]
            weights = np.exp(inputs - inputs.max(axis=1, keepdims=True))
            weights /= weights.sum(axis=1, keepdims=True)
            weights *= 1 - weights
            by_change += weights.T @ (inputs * inputs)
            by_bias += weights.sum(axis=0)
            rows += len(inputs)
    return np.concatenate([by_change.ravel(), by_bias]) / rows


def deal_folds(rows: Block) -> list[Block]:
    """Return the rows in five folds (fewer if they are), dealt out by their loss under softmax."""
    scores = rows.inputs - rows.inputs.max(axis=1, keepdims=True)
    loss = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(scores)), rows.labels]
    order = np.argsort(loss, kind="stable")
    count = min(FOLDS, len(order))
    hands = [order[fold::count] for fold in range(count)]
    return [Block(rows.inputs[hand], rows.labels[hand]) for hand in hands]


def cross_validate(
    folds: Sequence[Block], path: Sequence[Strengths], max_iterations: int
) -> tuple[Strengths, FloatArray]:
    """Return the strengths with the lowest held-out NLL, and a start for their fit to all rows.

    Args:
        folds: as `deal_folds` returns them; of a single row the first strengths are taken.
        path: from the strongest to the weakest. Each fit starts where the one before it ended, and
            the path is left once the loss has risen twice running.
        max_iterations: bound on the steps of each fit.
    """
    classes = folds[0].inputs.shape[1]
    starts = [np.zeros(classes * classes + classes) for _ in folds]
    best, chosen, start, rises, last = np.inf, path[0], starts[0], 0, np.inf
    for strengths in path if len(folds) > 1 else ():
        held_out = 0.0
        for i, fold in enumerate(folds):
            others = [*folds[:i], *folds[i + 1 :]]
            fit = fit_matrix(
                others,
                strengths,
                starts[i],
                max_iterations=max_iterations,
                tolerance=PATH_TOLERANCE,
            )
            starts[i] = fit.vector
            held_out += likelihood(fold, *fit.parts(classes))[0]
        rises = rises + 1 if held_out > last else 0
        last = held_out
        if held_out < best:
            best, chosen, start = held_out, strengths, np.mean(starts, axis=0)
        if rises == MOST_RISES:
            break
    return chosen, start
