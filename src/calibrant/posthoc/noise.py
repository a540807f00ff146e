"""Maps by noise on the logits: how often a row keeps its class when noise is added to them.

The share of votes of each class under normal noise is an integral, not a draw.

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

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Literal, cast

import numpy as np
from numpy.typing import NDArray

from calibrant.core import numpy_namespace as xnp
from calibrant.core.arguments import argument
from calibrant.core.arrays import Array, FloatArray, IntArray, for_row_chunks, to_numpy
from calibrant.core.fit_report import FitReport
from calibrant.core.weights import mean, total
from calibrant.metrics.binned import binned_gap
from calibrant.posthoc.applying import Learnt
from calibrant.posthoc.array_ops import largest, sums, uniform
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.facts import NOISE, Facts
from calibrant.posthoc.state import learnt
from calibrant.predictions.predictions import Predictions

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


# Gumbel noise of scale T votes as softmax(z / T) does; this is its standard deviation over T.
GUMBEL_DEVIATION = float(np.pi / np.sqrt(6))
# The noise of greatest likelihood is searched within this factor of Gumbel's.
SPAN = 8.0
# Where noises are only to be compared with other maps, what differs from the best by so much of its
# logarithm is a parabola; or, near a fit to many of the rows, by so much.
WIDE, NARROW = 0.3, 0.1
# Numbers that are in use at once and should stay in the cache: powers for each class, and the
# integrand of a row.
WIDTH_PER_CLASS, LEAST_WIDTH = 4, 100


@dataclass(eq=False)
class ProbitScaling(Calibrator):
    """The share of votes of each class if normal noise is added to the logits; one parameter.

    p_k is the probability that z_k + eps xi_k is the largest score of its row, with xi independent
    and standard normal. With Gumbel noise it would be softmax(z / T), so this is temperature
    scaling with lighter tails: classes far below the top get much less, and a row with many classes
    near the top has a lower confidence. The order of the classes within every row is kept.

    eps is that of the greatest likelihood. The result is mixed with the uniform distribution over
    the classes that are not masked, at weight 1 / (N + 1), since shares underflow to 0. Where the
    single temperature isn't identified, the noise that is most like it is taken as it is.

    Networks trained for hundreds of epochs (a ResNet-50 on CIFAR-10, a WideResNet on CIFAR-100)
    are better described by normal noise, networks trained for few or by focal loss by Gumbel's:
    docs/appendix/beyond-smart.md has the table. The integrals are computed to 1e-8 by polynomials
    (`calibrant.posthoc.noise`), in float64 whatever the logits are.

    Attributes:
        noise_: eps, in the caller's units; uniform_: weight of the uniform distribution.

    References:
        The multinomial probit of discrete choice: Train, Discrete Choice Methods with Simulation,
        2009, chapter 5.

    Examples:
        >>> import calibrant as cb
        >>> val, test = cb.load_sample("validation"), cb.load_sample("test")
        >>> for method in (cb.TemperatureScaling(), cb.posthoc.ProbitScaling()):
        ...     probs = method.fit_predictions(val).predict_proba(test.logits)
        ...     print(f"{cb.metrics.negative_log_likelihood(probs, test.labels):.4f}")
        0.4685
        0.4673
    """

    method: ClassVar[str] = "probit"
    facts: ClassVar[Facts | None] = Facts(
        "probit scaling",
        NOISE,
        "tens of passes over N x K, each an integral",
        "networks whose softmax tails are right: temperature fits them better",
    )
    weighs: ClassVar[bool] = True
    keeps_prediction: ClassVar[bool] = True
    fits_masked: ClassVar[bool] = True
    # One number is as well known from so many rows as it needs to be; None: take all.
    most_rows: ClassVar[int | None] = 2_000

    noise_: float = learnt(above=0)
    uniform_: float = learnt(at_least=0, at_most=1)

    @property
    def n_parameters(self) -> int:
        """One."""
        return 1

    def _fit(self, predictions: Predictions) -> FitReport:
        weights = predictions.weights
        base = predictions.temperature
        report = base.report(predictions.n)
        self.noise_ = GUMBEL_DEVIATION / base.beta
        self.uniform_ = 1 / (total(predictions.n, weights) + 1)
        if base.warning is not None:
            return report
        every = 1 if self.most_rows is None else -(-predictions.n // self.most_rows)
        if every == 1:
            return self._search(predictions, report)
        thinned = self._search(predictions.take(np.arange(0, predictions.n, every)), report)
        if self.comparison_ is not None:
            return thinned
        logits = to_numpy(predictions.scores).astype(np.float64)
        return replace(thinned, value=self._nll(logits, predictions, self.noise_))

    def _search(self, rows: Predictions, report: FitReport) -> FitReport:
        """Set `noise_`, given the one most like temperature scaling's."""
        from scipy import optimize

        logits = to_numpy(rows.scores).astype(np.float64)
        centre, reach = float(np.log(self.noise_)), float(np.log(SPAN))

        def nll(log_noise: float) -> float:
            return self._nll(logits, rows, float(np.exp(log_noise)))

        if self.comparison_ is not None:
            last = self.comparison_.last_of(ProbitScaling)
            start = centre if last is None else float(np.log(last.noise_))
            found = _vertex(nll, start, WIDE if last is None else NARROW)
            if found is not None:
                self.noise_ = float(np.exp(found))
                return report
        best: Any = cast(Any, optimize).minimize_scalar(
            nll,
            bounds=(centre - reach, centre + reach),
            method="bounded",
            options={"xatol": 1e-3},
        )
        self.noise_ = float(np.exp(best.x))
        return FitReport(
            report.n, "nll", float(best.fun), int(best.nfev), bool(best.success), report.notes
        )

    def _nll(self, logits: FloatArray, rows: Predictions, noise: float) -> float:
        return mean(-np.log(self._share_of(logits, rows.labels, noise)), rows.weights)

    def _share_of(self, logits: FloatArray, classes: IntArray, noise: float) -> FloatArray:
        """Return the (N,) mixed probability of one class of each row."""
        shares, tables = np.empty(len(classes)), vote_tables(step_for(logits.shape[1]))

        def work(part: slice) -> None:
            votes = vote_share(xnp, logits[part], classes[part], noise, tables)
            known = np.isfinite(logits[part]).sum(axis=1)
            shares[part] = (1 - self.uniform_) * votes + self.uniform_ / known

        for_row_chunks(logits, work, self.widest())
        return shares

    def map_arrays(self) -> dict[str, NDArray[Any]]:
        """Return what was learnt, and the constants of the integral."""
        return super().map_arrays() | vote_tables(step_for(self.n_classes_))

    def widest(self) -> int:
        """Return the powers of all classes, or else the nodes of the integral."""
        return max(WIDTH_PER_CLASS * self.n_classes_, LEAST_WIDTH)

    def transform(
        self, xp: Any, logits: Array, features: Array | None, learnt: Learnt, *, masks: bool = True
    ) -> Array:
        """Return the shares of votes, mixed with the uniform distribution."""
        weight = learnt["uniform_"]
        shares = vote_shares(xp, logits, learnt["noise_"], learnt)
        mixed = (1 - weight) * shares + weight * uniform(xp, logits, masks)
        return xp.astype(mixed, logits.dtype, copy=False)


def _vertex(function: Callable[[float], float], start: float, reach: float) -> float | None:
    """Return the minimum of the parabola through `start` and `reach` to both sides, if near them.

    A wide parabola is followed by a narrow one.
    """
    low, middle, high = (function(start + side * reach) for side in (-1, 0, 1))
    bend = low + high - 2 * middle
    if bend <= 0 or abs(low - high) > 4 * bend:
        return None
    found = start + reach * (low - high) / (2 * bend)
    return found if reach <= NARROW else _vertex(function, found, NARROW)


# The search for the noise: first over SPAN to either side of Gumbel's, then ever closer.
COARSE_POINTS, FINE_POINTS, REFINEMENTS = 21, 9, 2
ROUNDING = 1e-12


@dataclass(eq=False)
class ConsistencyCalibration(ProbitScaling):
    """Probit scaling with the noise of the lowest ECE; one parameter.

    Authors draw a thousand perturbations of each row and count votes; here their limit is
    integrated, to rounding, so nothing is random, no class lacks votes because of too few draws,
    and the order of the classes within every row is kept.

    eps is searched on a geometric grid around the noise that is most like temperature scaling,
    with two refinements, on all rows. By ECE, as authors do, it fits the noise of the bins;
    ``"nll"`` is a proper score, and what `ProbitScaling` finds quicker.

    Args:
        criterion: ``"ece"`` or ``"nll"``.
        n_bins: equal-width bins of the ECE.

    Attributes:
        noise_: eps, in the caller's units; uniform_: weight of the uniform distribution.

    References:
        Tao et al.: Consistency Calibration: Improving Uncertainty Calibration via Consistency among
        Perturbed Neighbors. arXiv 2410.12295, 2024.

    Examples:
        >>> import calibrant as cb
        >>> val = cb.load_sample("validation")
        >>> searched = cb.posthoc.ConsistencyCalibration(criterion="nll").fit_predictions(val)
        >>> found = cb.posthoc.ProbitScaling().fit_predictions(val)
        >>> abs(searched.noise_ / found.noise_ - 1) < 0.05  # the same but for the grid
        True
    """

    method: ClassVar[str] = "consistency"
    facts: ClassVar[Facts | None] = Facts(
        "consistency calibration",
        NOISE,
        "minutes at 1 000 classes: an integral for each row and each noise tried",
        "noise in the ECE that it minimises; probit fits the same map by likelihood, and quickly",
    )
    weighs: ClassVar[bool] = False
    most_rows: ClassVar[int | None] = None

    criterion: Literal["ece", "nll"] = argument("ece", choices=("ece", "nll"))
    n_bins: int = argument(15, at_least=1)

    def _search(self, rows: Predictions, report: FitReport) -> FitReport:
        logits = to_numpy(rows.scores).astype(np.float64)
        best, tried = np.inf, 0
        grid = self.noise_ * SPAN ** np.linspace(-1, 1, COARSE_POINTS)
        reach = SPAN ** (2 / (COARSE_POINTS - 1))
        for _ in range(1 + REFINEMENTS):
            for noise in grid.tolist():
                value = self._criterion(logits, rows, noise)
                tried += 1
                if value < best - ROUNDING:
                    best, self.noise_ = value, noise
            grid = self.noise_ * reach ** np.linspace(-1, 1, FINE_POINTS)
            reach **= 2 / (FINE_POINTS - 1)
        return FitReport(report.n, self.criterion, best, tried, notes=report.notes)

    def _criterion(self, logits: FloatArray, rows: Predictions, noise: float) -> float:
        if self.criterion == "nll":
            return self._nll(logits, rows, noise)
        predicted = logits.argmax(axis=1)
        shares = self._share_of(logits, predicted, noise)
        return binned_gap(shares, predicted == rows.labels, self.n_bins)
