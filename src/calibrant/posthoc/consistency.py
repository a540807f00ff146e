"""Consistency calibration: how often a row keeps its class when its logits are shaken."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, cast

import numpy as np
from numpy.typing import NDArray

from calibrant.arrays import Array, FloatArray, IntArray, for_row_chunks, like, pick, to_numpy
from calibrant.checks import refuse_infinite
from calibrant.masks import uniform
from calibrant.posthoc.arguments import argument
from calibrant.posthoc.base import Calibrator, FitReport
from calibrant.posthoc.binned_gap import binned_gap
from calibrant.posthoc.temperature import fit_temperature
from calibrant.predictions import Predictions
from calibrant.rows import map_rows, summarize

# Noise is integrated from here to there, in standard deviations above the largest logit; a largest
# score below the first has a probability under 1e-9, one above the second has 1e-16 a class.
LOWEST_NODE, HIGHEST_NODE = -6.0, 8.5
# The trapezoid rule is exact to rounding at the fine step; the coarse one serves the search.
FINE_STEP, COARSE_STEP = 0.25, 0.5
# Gumbel noise of scale T votes as softmax(z / T) does; this is its standard deviation over T.
GUMBEL_DEVIATION = float(np.pi / np.sqrt(6))
# The search for the noise: first over this factor to either side of Gumbel's, then ever closer.
SPAN, COARSE_POINTS, FINE_POINTS, REFINEMENTS = 8.0, 21, 9, 2
ROUNDING = 1e-12


@dataclass(eq=False)
class ConsistencyCalibration(Calibrator):
    """The share of votes of each class if Gaussian noise is added to the logits; one parameter.

    p_k is the probability that z_k + eps xi_k is the largest score of its row, with xi independent
    and standard normal. With Gumbel noise it would be softmax(z / T), so this is temperature
    scaling with lighter tails: it gives a class far below the top much less. Authors draw a
    thousand perturbations; here their limit is integrated,

        p_k = int phi(t + g_k) prod_{j != k} Phi(t + g_j) dt,    g_k = (max z - z_k) / eps,

    to rounding, so nothing is random, no class has no vote for want of draws, and the order of the
    classes within every row is kept. The result is mixed with the uniform distribution over the
    classes that are not masked, at weight 1 / (N + 1), since shares still underflow to 0.

    eps is searched on a geometric grid around the noise that is most like temperature scaling,
    with two refinements. By ECE, as authors do, it fits the noise of the bins; ``"nll"`` is a
    proper score. Where the single temperature isn't identified, that noise is taken as it is.
    Rows are integrated in NumPy, at 59 evaluations of the normal distribution for each logit.

    Args:
        criterion: ``"ece"`` or ``"nll"``.
        bins: equal-width bins of the ECE.

    Attributes:
        noise_: eps, in the caller's units; uniform_: weight of the uniform distribution.

    References:
        Tao et al.: Consistency Calibration: Improving Uncertainty Calibration via Consistency among
        Perturbed Neighbors. arXiv 2410.12295, 2024.
    """

    method: ClassVar[str] = "consistency"
    keeps_prediction: ClassVar[bool] = True
    fits_masked: ClassVar[bool] = True

    criterion: Literal["ece", "nll"] = argument("ece", choices=("ece", "nll"))
    bins: int = argument(15, at_least=1)

    noise_: float = field(init=False, repr=False)
    uniform_: float = field(init=False, repr=False)

    @property
    def n_parameters(self) -> int:
        """One."""
        return 1

    def _fit(self, predictions: Predictions) -> FitReport:
        base = fit_temperature(summarize(predictions.scores, predictions.labels, curve="dense"))
        report = base.report(predictions.n)
        centre = GUMBEL_DEVIATION / base.beta
        self.noise_, self.uniform_ = centre, 1 / (predictions.n + 1)
        if base.warning is not None:
            return report
        logits = to_numpy(predictions.scores).astype(np.float64)
        best, tried = np.inf, 0
        grid = centre * SPAN ** np.linspace(-1, 1, COARSE_POINTS)
        reach = SPAN ** (2 / (COARSE_POINTS - 1))
        for _ in range(1 + REFINEMENTS):
            for noise in grid.tolist():
                value = self._criterion(logits, predictions.labels, noise)
                tried += 1
                if value < best - ROUNDING:
                    best, self.noise_ = value, noise
            grid = self.noise_ * reach ** np.linspace(-1, 1, FINE_POINTS)
            reach **= 2 / (FINE_POINTS - 1)
        return FitReport(predictions.n, self.criterion, best, tried, notes=report.notes)

    def _criterion(self, logits: FloatArray, labels: IntArray, noise: float) -> float:
        judged = labels if self.criterion == "nll" else logits.argmax(axis=1)
        shares = np.empty(len(labels))

        def work(part: slice) -> None:
            votes = vote_share(logits[part], judged[part], noise, COARSE_STEP)
            known = np.isfinite(logits[part]).sum(axis=1)
            shares[part] = (1 - self.uniform_) * votes + self.uniform_ / known

        for_row_chunks(logits, work)
        if self.criterion == "nll":
            return float(-np.log(shares).mean())
        return binned_gap(shares, judged == labels, self.bins)

    def _mixed(self, shares: FloatArray, logits: FloatArray) -> FloatArray:
        return (1 - self.uniform_) * shares + self.uniform_ * uniform(logits)

    def _apply(self, logits: Array, features: Array | None) -> Array:
        def vote(chunk: Array, part: slice) -> Array:
            rows = to_numpy(chunk).astype(np.float64)
            refuse_infinite(np.isfinite(rows.max(axis=1)), part.start)
            shares = self._mixed(vote_shares(rows, self.noise_, FINE_STEP), rows)
            return like(shares, chunk, chunk.dtype)

        return map_rows(logits, vote)


def vote_share(
    logits: FloatArray, classes: IntArray, noise: float, step: float
) -> NDArray[np.float64]:
    """Return the (N,) probabilities that one class of each row wins; see `vote_shares`.

    Args:
        logits: (N, K) float64; classes: (N,) the class of each row.
        noise: standard deviation.
        step: of the trapezoid rule, in standard deviations.
    """
    from scipy.special import ndtr

    top = logits.max(axis=1, keepdims=True)
    gaps = (top - logits) / noise
    own = pick(gaps, classes)
    share, reach = np.zeros(len(gaps)), np.empty_like(gaps)
    for node in np.arange(LOWEST_NODE, HIGHEST_NODE + step / 2, step):
        np.add(gaps, node, out=reach)
        below: FloatArray = cast(Any, ndtr)(reach, out=reach).prod(axis=1)  # it ships no types
        height = own + node
        share += np.exp(-0.5 * height * height) / cast(Any, ndtr)(height) * below
    return share * (step / np.sqrt(2 * np.pi))


def vote_shares(logits: FloatArray, noise: float, step: float) -> FloatArray:
    """Return (N, K) probabilities that each logit is the largest after normal noise is added.

    Args:
        logits: (N, K) float64; minus infinity never wins.
        noise: standard deviation.
        step: of the trapezoid rule, in standard deviations.
    """
    from scipy.special import ndtr

    top = logits.max(axis=1, keepdims=True)
    gaps = (top - logits) / noise
    shares = np.zeros(gaps.shape)
    for node in np.arange(LOWEST_NODE, HIGHEST_NODE + step / 2, step):
        reach = gaps + node
        below: FloatArray = cast(Any, ndtr)(reach)  # it ships no types
        shares += np.exp(-0.5 * reach * reach) / below * below.prod(axis=1, keepdims=True)
    shares /= shares.sum(axis=1, keepdims=True)
    # Rounding must not let a class overtake that is all but tied.
    largest: FloatArray = shares.max(axis=1, keepdims=True)
    return np.asarray(np.where(logits == top, largest, shares), dtype=np.float64)
