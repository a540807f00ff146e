"""The share of votes of each class if normal noise is added to the logits: integrals, not draws.

With gaps g_k = (max z - z_k) / noise, the share is

    p_k = int phi(t + g_k) / Phi(t + g_k) exp(S(t)) dt,    S(t) = sum_j log Phi(t + g_j),

by the trapezoid rule over some dozens of t. Both log Phi(t + g) and log p(g) are smooth in g over
the few deviations that matter, so polynomials read them: the first by coefficients that are known
beforehand for each t, the second by coefficients that each row has for itself, from its p at a few
nodes. What is left to do for each class is to raise powers and to sum them: nothing but arithmetic
and small matrix products, so that every engine runs and differentiates it. With ten classes it
takes a fifth of the time of the normal distribution at every t and class.

A polynomial is a sum of x^i y^j with x from -1 to 1 and y = T_6(x), Chebyshev's of degree 6, for
i < 6: every degree occurs once, and the coefficients stay small, which those of x alone wouldn't.
The sums of x^i y^j over the classes are then products of two short stacks of powers.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, cast

import array_api_compat.numpy as xnp
import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import Array, FloatArray
from calibrant.posthoc.pieces import largest, sums

# Noise is integrated from here to there, in standard deviations above the largest logit. A largest
# score below the first has a probability of 4e-11, one above the second of 1e-13 a class.
LOWEST_NODE, HIGHEST_NODE = -6.6, 7.4
# Of the trapezoid rule: the more classes, the narrower is the distribution of the largest score.
COARSE_STEP, FINE_STEP, MOST_CLASSES_COARSE = 0.35, 0.14, 25
# A class further below the top has a share under 2e-11, and changes the others' by less.
REACH = 9.5
# Powers of x and of y that log Phi takes, and powers of y that log p does with the same of x.
INNER, OUTER, OUTER_OF_SHARES = 6, 6, 4


def step_for(classes: int) -> float:
    """Return the step of the trapezoid rule that K classes need."""
    return COARSE_STEP if classes <= MOST_CLASSES_COARSE else FINE_STEP


@lru_cache(maxsize=4)
def vote_tables(step: float) -> dict[str, NDArray[Any]]:
    """Return the constant arrays that `vote_shares` reads, by name, for a step of t; T values of t.

    "crowd" (36, T): coefficients of log Phi(t + g); "density" (T, 24): phi / Phi, with the weight
    of t, at the nodes of g; "reading" (24, 24): from log p at the nodes to its coefficients.
    """
    count = round((HIGHEST_NODE - LOWEST_NODE) / step) + 1
    t = LOWEST_NODE + step * np.arange(count)
    x, powers = _nodes(OUTER)
    crowd = np.linalg.inv(powers) @ _log_normal(t + (x[:, None] + 1) * (REACH / 2))
    # All powers are 1 at the reach: there, and for masked classes, the polynomial is to be 0.
    crowd[0] -= crowd.sum(axis=0)
    x, powers = _nodes(OUTER_OF_SHARES)
    height = t[:, None] + (x + 1) * (REACH / 2)
    weight = step / np.sqrt(2 * np.pi)
    density = weight * np.exp(-0.5 * height * height - _log_normal(height))
    return {"crowd": crowd, "density": density, "reading": np.linalg.inv(powers).T}


def _log_normal(heights: FloatArray) -> FloatArray:
    """Return the logarithm of the normal distribution function."""
    # Imported when needed: `import calibrant` should cost nothing.
    from scipy import special

    return cast(Any, special).log_ndtr(heights)


def _nodes(outer: int) -> tuple[FloatArray, FloatArray]:
    """Return the (M,) nodes of Chebyshev for M = 6 `outer` powers, and the (M, M) powers there."""
    count = INNER * outer
    x = np.cos(np.pi * (np.arange(count) + 0.5) / count)
    inner, steep = _powers(xnp, x, INNER), _powers(xnp, _steep(x), outer)
    return x, np.stack([y * x for y in steep for x in inner], axis=1)


def _steep(x: Array) -> Array:
    """Return y = T_6(x)."""
    square = x * x
    return ((32 * square - 48) * square + 18) * square - 1


def _powers(xp: Any, base: Array, count: int) -> list[Array]:
    """Return base^0, base^1, ... of elements."""
    powers = [xp.ones_like(base), base]
    while len(powers) < count:
        powers.append(powers[-1] * base)
    return powers


def _gaps(xp: Any, logits: Array, noise: Array | float) -> Array:
    """Return (n, K) float64 gaps to the top, in standard deviations."""
    rows = xp.astype(logits, xp.float64, copy=False)
    return (largest(xp, rows) - rows) / noise


def _position(xp: Any, gaps: Array) -> tuple[Array, Array]:
    """Return gaps cut off at the reach, and where in it they lie, from -1 to 1."""
    near = xp.minimum(gaps, xp.full_like(gaps, REACH))
    return near, near * (2 / REACH) - 1


def _curve(xp: Any, x: Array, tables: Mapping[str, Array]) -> Array:
    """Return the (n, 24) coefficients of each row's log p, given (n, K) positions."""
    inner = xp.permute_dims(xp.stack(_powers(xp, x, INNER)), (1, 2, 0))
    outer = xp.permute_dims(xp.stack(_powers(xp, _steep(x), OUTER)), (1, 0, 2))
    moments = xp.reshape(outer @ inner, (-1, OUTER * INNER))
    nodes = xp.exp(moments @ tables["crowd"]) @ tables["density"]
    return xp.log(nodes) @ tables["reading"]


def _read(curve: Array, x: Array) -> Array:
    """Return log p at (n, ...) positions, by Horner's rule.

    Element by element, so that tied classes stay tied: a matrix product promises no such thing.
    """
    y, total = _steep(x), None
    for j in reversed(range(OUTER_OF_SHARES)):
        part = curve[:, INNER * (j + 1) - 1, None]
        for i in reversed(range(INNER - 1)):
            part = part * x + curve[:, INNER * j + i, None]
        total = part if total is None else total * y + part
    return total


def vote_shares(xp: Any, logits: Array, noise: Array | float, tables: Mapping[str, Array]) -> Array:
    """Return (n, K) float64 probabilities that each logit is the largest after noise is added.

    They are exact to 1e-8 with up to a thousand classes, and to 2e-8 with ten thousand. Beyond
    `REACH` they fall on, but by the slope that they have there.

    Args:
        xp: array namespace.
        logits: (n, K); minus infinity never wins.
        noise: standard deviation.
        tables: what `vote_tables` returns, as arrays of this kind.
    """
    gaps = _gaps(xp, logits, noise)
    near, x = _position(xp, gaps)
    logarithms = _read(_curve(xp, x, tables), x) + (near - gaps) * (REACH / 2)
    shares = xp.exp(logarithms)
    shares = shares / sums(xp, shares)[:, None]
    # Rounding must not let a class overtake that is all but tied.
    return xp.where(gaps > 0, shares, largest(xp, shares))


def vote_share(
    xp: Any, logits: Array, classes: Array, noise: Array | float, tables: Mapping[str, Array]
) -> Array:
    """Return the (n,) probabilities that one class of each row wins; see `vote_shares`.

    Args:
        xp, logits, noise, tables: as there.
        classes: (n,) the class of each row.
    """
    gaps = _gaps(xp, logits, noise)
    own = xp.take_along_axis(gaps, classes[:, None], axis=1)
    curve = _curve(xp, _position(xp, gaps)[1], tables)
    near, x = _position(xp, own)
    return xp.exp(_read(curve, x) + (near - own) * (REACH / 2))[:, 0]
