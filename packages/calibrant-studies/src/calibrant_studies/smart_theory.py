"""The theory of the SMART paper (sections 3.2 to 3.4, appendices A.1 to A.3) as functions.

Pure, vectorised, float64 NumPy; nothing here takes part in a fit. Notation: t = z / T are scaled
logits, q = softmax(t), M = argmax t, p = q_M the confidence, m = z_(1) - z_(2) the margin, a the
0/1 correctness, <t>_q = sum_k q_k t_k. Arguments that recur:

- logits (N, K) and temperatures T > 0, one number or (N,), in the same unit;
- confidence (N,) p in [0, 1]; correct (N,) a, booleans or 0/1;
- in_slice (N,) booleans or 0/1, true for the rows of the slice A;
- sharpness L = lambda > 0 of the kernel exp(-L t^2), 1 / (2 sigma^2) for a bandwidth sigma;
- delta >= 0, Charbonnier's smoothing width, in units of confidence.

Results are fractions if nothing else is said. Bad shapes or values raise `InputError`.

What Theorem 3.1, smCE <= H + 2B, gives in practice: it is true, and too loose to tell anything of
calibration. At L = 200 the kernel term 2B alone is 0.0798. Measured with L = 200, delta = 1e-3 on
10 000 CIFAR-10 test rows of a ResNet-50: smCE 0.0434, bound 0.165 (H = 0.085); temperature scaling
lowers smCE to 0.0133 and raises H to 0.093. On 20 000 rows calibrated by construction, p uniform in
[1/2, 1]: smCE 0.0033, bound 0.413. The reason: smCE <= E|a - p|, and |a - p| <= H + B in every row
(so one B is enough), but for a calibrated classifier E|a - p| = 2 E[p (1 - p)], far from 0.

H (Eq. 6) isn't a proper score either: with delta = 0 its expectation falls all the way to p = 1 if
P(a = 1) > 1/2, to p = 0 if less. At P(a = 1) = 0.6 it is 0.480 for the honest p = 0.6, 0.408 for
p = 1. The authors' code trains another objective: it averages a - p within a soft bin first.

Source: SMART (Sample Margin-Aware Recalibration of Temperature); equation numbers are the paper's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from calibrant.core.arrays import CHUNK_ELEMENTS_CPU, FloatArray, IntArray, pick
from calibrant.core.checks import check_labels, check_scores
from calibrant.core.errors import InputError

# Softmax may round the confidence of a uniform row this far (relatively) below 1/K.
UNIFORM_SLACK = 1e-12

Probe = Callable[[FloatArray], FloatArray]


@dataclass(frozen=True, slots=True)
class SmceBound:
    """The two terms of Theorem 3.1: `objective` H and `radius` B, both fractions."""

    objective: float
    radius: float

    @property
    def bound(self) -> float:
        """H + 2B, the paper's upper bound on smCE; void where it exceeds 1."""
        return self.objective + 2 * self.radius


def feasible_temperatures(
    margin: ArrayLike, confidence: ArrayLike, n_classes: int
) -> tuple[FloatArray, FloatArray]:
    """Bound the T at which K logits with margin m >= 0 have confidence p in [1/K, 1).

    With S = 1/p - 1: low = m / -log(S / (K-1)), high = m / -log S if p > 1/2, else infinity. `low`
    is reached when all other classes tie with the runner-up, `high` is approached when all others
    vanish; for K = 2 both are the one solution. For p > 1/2 the width in T is proportional to m
    (the paper says that it shrinks); it is the width in 1/T, log(K-1) / m, that shrinks.

    Edges: with m = 0, p <= 1/2 bounds nothing, (0, inf), and p > 1/2 is out of reach; p = 1/K is
    reached at any T if m = 0, else at none. Where no T will do, both ends are NaN. Returns
    (low, high) of the broadcast shape of `margin` and `confidence`, in the logits' unit.
    Source: section 3.2 and App. A.1, Eqs. 8 to 14.
    """
    if n_classes < 2 or int(n_classes) != n_classes:
        raise InputError(f"'n_classes' must be a whole number of at least 2, not {n_classes}")
    m = _real(margin, "margin", 0)
    p = _real(confidence, "confidence", (1 - UNIFORM_SLACK) / n_classes, np.nextafter(1, 0))
    try:
        m, p = np.broadcast_arrays(m, p)
    except ValueError as error:
        raise InputError(f"shapes of 'margin' and 'confidence' don't broadcast: {error}") from error
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        # -log(S / (k-1)) = log(1 + (k p - 1) / (1 - p)) for k = K and k = 2: no cancellation.
        low = m / np.log1p(np.maximum(n_classes * p - 1, 0) / (1 - p))
        high = np.where(p > 0.5, m / np.log1p(np.maximum(2 * p - 1, 0) / (1 - p)), np.inf)
    tie = m == 0
    none = np.where(tie, p > 0.5, p <= 1 / n_classes)
    low, high = np.where(tie, 0.0, low), np.where(tie, np.inf, high)
    return np.where(none, np.nan, low), np.where(none, np.nan, high)


def kernel_radius_at(confidence: ArrayLike, sharpness: float) -> FloatArray:
    """Return int_0^1 |p-u| K(p,u) du, the mean distance from p within its soft bin, any shape.

    (2 - exp(-L p^2) - exp(-L (1-p)^2)) / (sqrt(pi L) (erf(sqrt(L) p) + erf(sqrt(L) (1-p)))), for u
    uniform in [0, 1]. Source: App. A.2, Eqs. 15 and 16.
    """
    p, rate = _real(confidence, "confidence", 0, 1), float(_positive(sharpness, "sharpness"))
    tails = -np.expm1(-rate * p**2) - np.expm1(-rate * (1 - p) ** 2)
    return tails / (2 * rate * _kernel_mass(p, rate))


def kernel_radius(sharpness: float) -> float:
    """Return B = sup_p int_0^1 |p-u| K(p,u) du = (1 - exp(-L)) / (sqrt(pi L) erf(sqrt(L))).

    The supremum is at both ends, p = 0 and p = 1. Proof: f(x) = 1 - exp(-x^2) over erf(x) grows
    for x > 0, since f'/erf' = sqrt(pi) x does. With a = sqrt(L) p and b = sqrt(L) (1-p), at most
    c = sqrt(L), therefore f(a) + f(b) <= (erf(a) + erf(b)) f(c) / erf(c). B falls from 1/2 at
    L -> 0, as 1 / sqrt(pi L) when L is large. Source: Theorem 3.1 with uniform rho.
    """
    return float(kernel_radius_at(0.0, sharpness))


def kernel_radius_bound(sharpness: float) -> float:
    """Return the paper's bound on B: min(1, 2 / (sqrt(pi L) erf(sqrt(L)))), with kappa = 1.

    The formula follows from its proof: 1 / L over sqrt(pi) / (2 sqrt(L)) erf(sqrt(L)). It is loose
    by 2 / (1 - exp(-L)) where the cap at 1 doesn't bind: the numerator covers all reals, the
    denominator only the half of them that p = 0 leaves. Source: App. A.2, Eq. 17.
    """
    root = math.sqrt(float(_positive(sharpness, "sharpness")))
    return min(1.0, 2 / (math.sqrt(math.pi) * root * math.erf(root)))


def charbonnier_calibration(
    confidence: ArrayLike, correct: ArrayLike, sharpness: float = 200.0, delta: float = 1e-3
) -> float:
    """Return H = (1/N) sum_i int_0^1 K(p_i,u) sqrt((a_i - u)^2 + delta^2) du, Eq. 6 to the letter.

    Summed as two parts: the mean of v = |a - u| under a truncated normal, in closed form, plus the
    integral of delta^2 / (sqrt(v^2 + delta^2) + v), which is never negative, by Gauss-Legendre
    panels at most 1 / sqrt(L) wide that double from v = 0, where the integrand bends within delta.
    Relative error 1e-13; time O(N (sqrt(L) - log delta)). Source: Eqs. 6 and 15 with uniform rho.
    """
    p, rate = _vector(confidence, "confidence"), float(_positive(sharpness, "sharpness"))
    wrong = _vector(correct, "correct", len(p), binary=True) == 0
    width = float(_positive(delta, "delta")) if delta else 0.0
    # u -> 1 - u turns a right row at p into a wrong one at 1 - p; from here on v = u.
    p = np.where(wrong, p, 1 - p)
    mass = _kernel_mass(p, rate)
    total = p + (np.expm1(-rate * p**2) - np.expm1(-rate * (1 - p) ** 2)) / (2 * rate * mass)
    if width > 1e-16:  # the second part is below `width`
        nodes, weights = _panels(rate, width)
        weights *= width * (width / (np.hypot(nodes, width) + nodes))
        step = max(1, CHUNK_ELEMENTS_CPU // len(nodes))
        for start in range(0, len(p), step):
            rows = slice(start, start + step)
            total[rows] += np.exp(-rate * (p[rows, None] - nodes) ** 2) @ weights / mass[rows]
    return float(total.mean())


def smce_bound(
    confidence: ArrayLike, correct: ArrayLike, sharpness: float = 200.0, delta: float = 1e-3
) -> SmceBound:
    """Evaluate both terms of smCE <= H + 2B (Theorem 3.1, Eqs. 7 and 16), with the exact B."""
    objective = charbonnier_calibration(confidence, correct, sharpness, delta)
    return SmceBound(objective, kernel_radius(sharpness))


def nll_slice_derivative(
    logits: ArrayLike, labels: ArrayLike, temperatures: ArrayLike, in_slice: ArrayLike
) -> float:
    """Return dNLL/ds at s = 1, in nats, when slice A is sharpened: T/s on A, T elsewhere.

    dNLL/ds = E[1_A (<t>_q - t_Y)], Eq. 25. Eq. 3 of the main text has the opposite sign and is
    wrong. `labels` are the (N,) true classes Y, 0 to K-1. Source: Lemma 1.
    """
    rows = _scaled_rows(logits, temperatures)
    inside = _vector(in_slice, "in_slice", len(rows.top), binary=True)
    gap: FloatArray = pick(rows.gaps, check_labels(labels, *rows.gaps.shape, source="labels"))
    return float(np.mean(inside * (gap - rows.advantage)))


def calibration_slice_derivative(
    logits: ArrayLike,
    correct_probability: ArrayLike,
    temperatures: ArrayLike,
    in_slice: ArrayLike,
    probe: Probe,
    probe_slope: Probe,
) -> float:
    """Return dC/ds at s = 1 of C = E[(a - p) psi(p)] when slice A is sharpened, T/s on A.

    dC/ds = E[1_A p (t_M - <t>_q) (psi'(p) (r - p) - psi(p))]; `correct_probability` is the (N,)
    r = P(Y = M | x) in [0, 1], or a itself; `probe` is psi and `probe_slope` psi', both called on
    the (N,) confidences. Source: Lemma 1, Eqs. 4 and 26.
    """
    rows = _scaled_rows(logits, temperatures)
    inside = _vector(in_slice, "in_slice", len(rows.top), binary=True)
    r = _vector(correct_probability, "correct_probability", len(rows.top))
    p = rows.confidence
    return float(np.mean(inside * p * rows.advantage * (probe_slope(p) * (r - p) - probe(p))))


def margin_advantage_bound(
    logits: ArrayLike, temperatures: ArrayLike
) -> tuple[FloatArray, FloatArray]:
    """Return both sides of t_M - <t>_q >= (1 - p) m / T as (N,) arrays (left, right).

    They are equal where all other classes tie with the runner-up, so always for K = 2. Source:
    Lemma 2, Eq. 27.
    """
    rows = _scaled_rows(logits, temperatures)
    return rows.advantage, rows.doubt * rows.runner_up


def nll_slice_bound(
    logits: ArrayLike, class_probabilities: ArrayLike, temperatures: ArrayLike
) -> FloatArray:
    """Return the (N,) bounds (p - r) g + (1 - r) D on E[<t>_q - t_Y | x], in nats.

    g = m / T is the runner-up gap, D = t_(2) - t_(K) the spread below it, `class_probabilities`
    the (N, K) eta_k = P(Y = k | x), rows of which sum to 1, and r = eta_M. Equality for K = 2.
    E[1_A bound] bounds the expected `nll_slice_derivative`; Eq. 30 is that with (1 - r) D replaced
    by a constant no smaller. Proposition A.2 (NLL falls, smCE rises) builds on this and is wrong:
    a counterexample, in which both fall, is among the tests. Source: App. A.3, Eqs. 28 to 30.
    """
    rows = _scaled_rows(logits, temperatures)
    eta = _real(class_probabilities, "class_probabilities")
    check_scores(eta, "probs", "class_probabilities")
    if eta.shape != rows.gaps.shape:
        raise InputError(f"'class_probabilities' must be {rows.gaps.shape}, not {eta.shape}")
    r = pick(eta, rows.top)
    spread = rows.gaps.max(axis=1) - rows.runner_up
    return (rows.confidence - r) * rows.runner_up + (1 - r) * spread


class _ScaledRows(NamedTuple):
    top: IntArray  # (N,) M
    gaps: FloatArray  # (N, K) t_M - t_k
    runner_up: FloatArray  # (N,) t_M - t_(2)
    confidence: FloatArray  # (N,) p
    doubt: FloatArray  # (N,) 1 - p, without cancellation
    advantage: FloatArray  # (N,) t_M - <t>_q


def _scaled_rows(logits: ArrayLike, temperatures: ArrayLike) -> _ScaledRows:
    z = _real(logits, "logits")
    check_scores(z, "logits", "logits")
    heat = _positive(temperatures, "temperatures", (len(z),))
    top = z.argmax(axis=1)
    with np.errstate(over="ignore"):
        gaps = _real((z.max(axis=1)[:, None] - z) / heat[..., None], "logits / temperatures")
    below = gaps.copy()
    np.put_along_axis(below, top[:, None], np.inf, axis=1)
    weights = np.exp(-below)
    rest = weights.sum(axis=1)
    advantage = (weights * gaps).sum(axis=1) / (1 + rest)
    return _ScaledRows(top, gaps, below.min(axis=1), 1 / (1 + rest), rest / (1 + rest), advantage)


def _kernel_mass(p: FloatArray, rate: float) -> FloatArray:
    """Return int_0^1 exp(-rate (p - u)^2) du."""
    erf = np.vectorize(math.erf, otypes=[np.float64])  # quick enough, and spares SciPy's import
    root = math.sqrt(rate)
    halves: FloatArray = erf(root * p) + erf(root * (1 - p))
    return math.sqrt(math.pi) / (2 * root) * halves


def _panels(rate: float, width: float) -> tuple[FloatArray, FloatArray]:
    """Return Gauss-Legendre nodes and weights on [0, 1], graded towards 0 from `width` up."""
    step = min(1.0, 1 / np.sqrt(rate))
    doubling = width * 2.0 ** np.arange(max(0, np.ceil(np.log2(step / width)) + 1))
    even = np.linspace(0, 1, int(np.ceil(1 / step)) + 1)
    edges = np.unique(np.concatenate([even, doubling[doubling < 1]]))
    x, w = np.polynomial.legendre.leggauss(16)  # exact in float64 for a kernel this wide
    half = np.diff(edges)[:, None] / 2
    return ((edges[:-1, None] + half) + half * x).ravel(), (half * w).ravel()


def _real(values: ArrayLike, name: str, low: float = -np.inf, high: float = np.inf) -> FloatArray:
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"'{name}' must hold numbers: {error}") from error
    bad = ~((array >= low) & (array <= high) & np.isfinite(array))
    if bad.any():
        value = array[bad].flat[0]
        raise InputError(f"'{name}' must be finite and within [{low}, {high}], but holds {value}")
    return array


def _positive(values: ArrayLike, name: str, *shapes: tuple[int, ...]) -> FloatArray:
    array = _real(values, name)
    if array.shape not in ((), *shapes) or not (array > 0).all():
        allowed = " or of shape ".join(["one number", *map(str, shapes)])
        raise InputError(f"'{name}' must be positive, {allowed}; it is {np.array2string(array)}")
    return array


def _vector(values: ArrayLike, name: str, rows: int = 0, binary: bool = False) -> FloatArray:
    array = _real(values, name, 0, 1)
    if array.ndim != 1 or len(array) == 0 or rows not in (0, len(array)):
        raise InputError(f"'{name}' must have shape ({rows or 'N'},), not {array.shape}")
    if binary and not np.isin(array, (0, 1)).all():
        raise InputError(f"'{name}' must hold only 0 and 1, or booleans")
    return array
