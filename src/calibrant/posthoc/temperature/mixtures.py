"""Mixtures of the row at two temperatures with the uniform distribution."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import numpy as np

from calibrant.core.arguments import argument
from calibrant.core.arrays import Array, FloatArray
from calibrant.core.fit_report import FitReport
from calibrant.core.weights import mean, total
from calibrant.posthoc.applying import Learnt
from calibrant.posthoc.array_ops import as_type, below_top, softmax_of_gaps, uniform
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.facts import ONE, PASSES, Facts
from calibrant.posthoc.state import learnt
from calibrant.predictions.predictions import SMALLEST_PROBABILITY, Predictions
from calibrant.predictions.rows import RowSummary

if TYPE_CHECKING:
    from calibrant.posthoc.shards import ShardWork


@dataclass(eq=False)
class Mixture(Calibrator):
    """Family: w1 softmax(z / T) + w2 softmax(z) + w3 / K, with w >= 0 that sum to 1.

    Keeps the predicted class: all three parts rank the classes alike. K counts the classes that a
    row leaves unmasked.
    """

    keeps_prediction: ClassVar[bool] = True
    fits_masked: ClassVar[bool] = True

    beta_: float = learnt(above=0)

    @property
    def temperature_(self) -> float:
        """The fitted temperature T of the first part."""
        return 1.0 / self.beta_

    @abstractmethod
    def mixture_weights(self, learnt: Learnt) -> tuple[Array, Array | None, Array]:
        """Return w1, w2 (None where there is no such part) and w3 from what is learnt."""

    def transform(
        self, xp: Any, logits: Array, features: Array | None, learnt: Learnt, *, masks: bool = True
    ) -> Array:
        """Return the mixture."""
        gaps = below_top(xp, logits)
        sharp, plain, even = self.mixture_weights(learnt)
        beta = as_type(xp, learnt["beta_"], logits)
        mixture = softmax_of_gaps(xp, gaps * beta) * as_type(xp, sharp, logits)
        if plain is not None:
            mixture = mixture + softmax_of_gaps(xp, gaps) * as_type(xp, plain, logits)
        return mixture + as_type(xp, even, logits) * uniform(xp, logits, masks)


@dataclass(eq=False)
class LaplaceTemperatureScaling(Mixture):
    """(1 - w) softmax(z / T) + w / K, with T of temperature scaling and w = 1 / (N + 1).

    Keeps the order of the classes in every row. No probability falls below w / K, so no row costs
    more than log(K (N + 1)): T alone may give almost 0 to an outcome that merely didn't occur among
    N rows. With thousands of rows and a sound T it changes next to nothing. One parameter is
    fitted.

    Attributes:
        beta_: the fitted inverse temperature; `temperature_` is its inverse.
        uniform_: w, the weight of the uniform distribution.

    References:
        Laplace's rule of succession. After temperature scaling it is the first step of structured
        scaling in Berta, Holzmueller, Jordan, Bach: arXiv 2511.03685, 2025, and ``ts-mix`` in the
        package probmetrics.

    Examples:
        >>> import calibrant as cb
        >>> import numpy as np
        >>> logits = np.log([[0.9, 0.1]] * 99)
        >>> scaling = cb.posthoc.LaplaceTemperatureScaling().fit(logits, [0] * 66 + [1] * 33)
        >>> scaling.uniform_  # 1 / (99 + 1)
        0.01
        >>> scaling.predict_proba([[1e6, 0.0]]).round(3)  # nothing is impossible
        array([[0.995, 0.005]])
    """

    method: ClassVar[str] = "temperature-laplace"
    facts: ClassVar[Facts | None] = Facts(
        "Laplace temperature scaling",
        ONE,
        PASSES,
        "as temperature; the part of the uniform distribution vanishes with many rows",
    )
    weighs: ClassVar[bool] = True

    uniform_: float = learnt(at_least=0, at_most=1)

    @property
    def n_parameters(self) -> int:
        """One."""
        return 1

    def _fit(self, predictions: Predictions) -> FitReport:
        fit = predictions.temperature
        every = total(predictions.n, predictions.weights)
        self.beta_, self.uniform_ = fit.beta, 1 / (every + 1)
        return fit.report(predictions.n)

    def _fit_sums(self, work: ShardWork) -> FitReport | None:
        from calibrant.posthoc.temperature.summed import fit_temperature_to

        if not work.scores_of_classes:
            return None
        fit, every = fit_temperature_to(work)
        self.beta_, self.uniform_ = fit.beta, 1 / (every + 1)
        self.n_classes_ = work.shards.n_classes or 0
        return fit.report(work.rows)

    def mixture_weights(self, learnt: Learnt) -> tuple[Array, Array | None, Array]:
        """Return 1 - w, nothing, and w."""
        return 1 - learnt["uniform_"], None, learnt["uniform_"]


# Bound on the steps to the weights, and the gain that a step must promise.
MIXTURE_STEPS, SMALLEST_GAIN = 100, 1e-15
# The squared error needn't be convex in T: where it is looked for, as factors of likelihood's T.
FACTORS = np.geomspace(1 / 16, 16, 33)


@dataclass(eq=False)
class EnsembleTemperatureScaling(Mixture):
    """A mixture w1 softmax(z / T) + w2 softmax(z) + w3 / K, with w >= 0 that sum to 1.

    Keeps the predicted class: all three parts rank the classes alike. K counts the classes that a
    row leaves unmasked. First T is found with w = (1, 0, 0), then w for that T. By likelihood both
    are convex problems, and the second holds the outcome of the first, so the likelihood of the
    calibration rows is never below that of temperature scaling. By squares w is a quadratic program
    on a 3 x 3 Gram matrix, solved exactly. Four parameters, three of them free.

    Held-out NLL minus that of temperature scaling, five draws of the rows of a ResNet-50 (CIFAR-10)
    and a WideResNet-16-4 (CIFAR-100), with standard errors:

        =========  =====  ==============  ==============  ==============
        data       rows   nll             mse             mixed
        =========  =====  ==============  ==============  ==============
        CIFAR-10   200    +.0002 (.0002)  -.0014 (.0040)  +.0023 (.0013)
        CIFAR-10   1 000  +.0000 (.0000)  +.0037 (.0015)  +.0032 (.0004)
        CIFAR-10   5 000  +.0000 (.0000)  +.0064 (.0012)  +.0038 (.0003)
        CIFAR-100  200    -.0012 (.0012)  +.0217 (.0061)  +.0259 (.0052)
        CIFAR-100  1 000  -.0003 (.0001)  +.0220 (.0032)  +.0241 (.0027)
        CIFAR-100  5 000  -.0002 (.0000)  +.0225 (.0014)  +.0229 (.0013)
        =========  =====  ==============  ==============  ==============

    Args:
        loss: what is minimised: ``"nll"`` for T and w; ``"mse"``, the squared error, for both, as
            in the authors' code; ``"mixed"``: T by likelihood, w by squared error.

    Attributes:
        beta_: inverse temperature of the first part.
        weights_: (3,) mixture weights.

    References:
        Zhang, Kailkhura, Han: Mix-n-Match, Ensemble and Compositional Methods for Uncertainty
        Calibration in Deep Learning. ICML 2020.

    Examples:
        >>> import calibrant as cb
        >>> val = cb.load_sample("validation")
        >>> ets = cb.posthoc.EnsembleTemperatureScaling().fit_predictions(val)
        >>> ets.weights_.round(2)
        array([1., 0., 0.])
    """

    method: ClassVar[str] = "ets"
    facts: ClassVar[Facts | None] = Facts(
        "ensemble temperature scaling",
        ONE,
        PASSES,
        "as temperature; published with squared errors (loss=mse), its likelihood is worse",
    )
    weighs: ClassVar[bool] = True

    loss: Literal["nll", "mse", "mixed"] = argument("nll", choices=("nll", "mse", "mixed"))

    weights_: FloatArray = learnt(3, at_least=0, at_most=1)

    @property
    def n_parameters(self) -> int:
        """Four: T and three weights."""
        return 4

    def _fit(self, predictions: Predictions) -> FitReport:
        rows, fit = predictions.summary, predictions.temperature
        self.beta_ = fit.beta
        if self.loss == "mse" and fit.warning is None:
            self.beta_ = _beta_by_squares(rows, fit.beta)
        of_label = _label_probabilities(rows, self.beta_)
        if self.loss == "nll":
            self.weights_ = _weights_by_likelihood(of_label, rows.weights)
        else:
            means = np.array([mean(part, rows.weights) for part in of_label.T])
            self.weights_ = _weights_by_squares(_gram_matrix(rows, self.beta_), means)
        return fit.report(rows.n)

    def mixture_weights(self, learnt: Learnt) -> tuple[Array, Array | None, Array]:
        """Return all three weights."""
        weights = learnt["weights_"]
        return weights[0], weights[1], weights[2]


def _beta_by_squares(rows: RowSummary, near: float) -> float:
    """Return the beta of least squared error, within a factor of 16 of `near`."""
    from scipy.optimize import brentq

    def loss(beta: float) -> float:
        one, two = (rows.curve.evaluate(b).value for b in (beta, 2 * beta))
        losses = np.exp(two - 2 * one) - 2 * np.exp(-beta * rows.label_gap - one)
        return mean(losses, rows.weights)

    def slope(beta: float) -> float:
        one, two = (rows.curve.evaluate(b) for b in (beta, 2 * beta))
        squares = 2 * np.exp(two.value - 2 * one.value) * (two.slope - one.slope)
        of_label = np.exp(-beta * rows.label_gap - one.value) * (rows.label_gap + one.slope)
        return mean(squares + 2 * of_label, rows.weights)

    betas = near / FACTORS
    best = int(np.argmin([loss(beta) for beta in betas]))
    low, high = betas[min(best + 1, len(betas) - 1)], betas[max(best - 1, 0)]
    if slope(low) >= 0 or slope(high) <= 0:  # at an end of the search
        return float(betas[best])
    return float(cast(Any, brentq)(slope, low, high, xtol=1e-13 * near, rtol=1e-13))


def _label_probabilities(rows: RowSummary, beta: float) -> FloatArray:
    """Return (N, 3) probabilities of the true label under each part of the mixture."""

    def at(b: float) -> FloatArray:
        return np.exp(-rows.losses(b))

    return np.stack([at(beta), at(1.0), 1 / rows.unmasked], axis=1)


def _gram_matrix(rows: RowSummary, beta: float) -> FloatArray:
    """Return the (3, 3) means over rows of the inner products of the three parts.

    sum_k p_k(a) p_k(b) = exp(f(a + b) - f(a) - f(b)), so the confidence curve has them all.
    """
    needed = sorted({beta, 1.0, 2 * beta, 2.0, 1 + beta})
    f = {b: rows.curve.evaluate(b).value for b in needed}

    def product(a: float, b: float) -> float:
        return mean(np.exp(f[a + b] - f[a] - f[b]), rows.weights)

    cross, even = product(1.0, beta), mean(1 / rows.unmasked, rows.weights)
    return np.array(
        [
            [product(beta, beta), cross, even],
            [cross, product(1.0, 1.0), even],
            [even, even, even],
        ]
    )


def _weights_by_squares(gram: FloatArray, of_label: FloatArray) -> FloatArray:
    """Minimise w' G w - 2 w' r over the simplex: the best of the optima on its seven faces."""
    best, weights = np.inf, np.array([1.0, 0.0, 0.0])
    for size in (1, 2, 3):
        for face in combinations(range(3), size):
            index = list(face)
            system = np.zeros((size + 1, size + 1))
            system[:size, :size] = gram[np.ix_(index, index)]
            system[:size, size] = system[size, :size] = 1.0
            solution = np.linalg.lstsq(system, np.append(of_label[index], 1.0), rcond=None)[0]
            candidate = np.zeros(3)
            candidate[index] = solution[:size]
            if candidate.min() < 0:
                continue
            loss = float(candidate @ gram @ candidate - 2 * candidate @ of_label)
            if loss < best - 1e-15:
                best, weights = loss, candidate
    return weights / weights.sum()


def _weights_by_likelihood(of_label: FloatArray, of_rows: FloatArray | None = None) -> FloatArray:
    """Maximise the mean of log(w . p) over the simplex, a concave problem, by Newton's method.

    Each step goes towards the optimum over the simplex of the quadratic at hand, and is halved
    until it gains; so weights become 0 exactly.
    """
    parts = np.maximum(of_label, SMALLEST_PROBABILITY)

    def loss(weights: FloatArray) -> float:
        return -mean(np.log(parts @ weights), of_rows)

    weights = np.array([1.0, 0.0, 0.0])
    for _ in range(MIXTURE_STEPS):
        ratios = parts / (parts @ weights)[:, None]
        if of_rows is None:
            downhill, curvature = ratios.mean(axis=0), ratios.T @ ratios / len(ratios)
        else:
            weighed = ratios * (of_rows / of_rows.sum())[:, None]
            downhill, curvature = weighed.sum(axis=0), weighed.T @ ratios
        step = _weights_by_squares(curvature, curvature @ weights + downhill) - weights
        gain = float(downhill @ step)
        if gain < SMALLEST_GAIN:
            break
        before, share = loss(weights), 1.0
        while share > SMALLEST_GAIN and loss(weights + share * step) > before - share * gain / 10:
            share /= 2
        weights = np.maximum(weights + share * step, 0.0)
    return weights / weights.sum()
