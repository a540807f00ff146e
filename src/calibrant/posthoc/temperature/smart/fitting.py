"""What a row-wise temperature can be fitted to: the objectives of SMART's Table 3, with gradients.

Every objective maps rows at (N,) inverse temperatures beta (`Tempered`) to a number and its (N,)
gradient by beta. Notation of `predictions.rows`: f the confidence
curve, g the label gap, u the mean gap, c = exp(-f) the confidence, a = 1 if the predicted label is
right.

Two objectives carry the paper's name. Its Eq. 6 sums a penalty of a_i - u_b over rows, which is
about E|a - c|: not a proper score, since a row with P(a = 1) > 1/2 gains by c -> 1. Trained on it,
SMART ends far worse than it began. The code of the paper's authors averages a - c in soft bins
*before* the penalty, and that works. Here ``"charbonnier"`` is the one that works and
``"charbonnier-eq6"`` the literal one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Generic, Literal, NamedTuple, Protocol, Self, TypeVar, get_args

import numpy as np

from calibrant.core.arrays import Array, BoolArray, FloatArray, for_each
from calibrant.core.weights import mean, times, total
from calibrant.posthoc.applying import Learnt
from calibrant.posthoc.fitting.minimizing import minimize
from calibrant.predictions.rows import CurvePoint, RowSummary

ObjectiveName = Literal[
    "charbonnier", "soft-ece", "nll", "label-smoothing", "brier", "mse", "charbonnier-eq6"
]
ValueAndGradient = tuple[float, FloatArray]


@dataclass(eq=False)
class Tempered:
    """Rows at an inverse temperature each, and what value, gradient and curvature all read of them.

    Attributes:
        rows: the rows; beta: (n,) their inverse temperatures.
    """

    rows: RowSummary
    beta: FloatArray

    @cached_property
    def point(self) -> CurvePoint:
        """The confidence curves at beta."""
        return self.rows.curve.evaluate(self.beta)

    @cached_property
    def double(self) -> CurvePoint:
        """The confidence curves at 2 beta, of which sums of squared probabilities are made."""
        return self.rows.curve.evaluate(2 * self.beta)

    @cached_property
    def confidence(self) -> FloatArray:
        """(n,) probabilities of the predicted labels."""
        return np.exp(-self.point.value)

    @cached_property
    def residual(self) -> FloatArray:
        """(n,) confidence minus correctness."""
        return self.confidence - self.rows.correct

    def memberships(self, bins: SoftBins) -> Memberships:
        """Return how much each row belongs to which bin."""
        found: Memberships | None = self.__dict__.get("_memberships")
        if found is None or found.bins is not bins:
            found = self.__dict__["_memberships"] = bins.memberships(self.confidence)
        return found

    def bin_sums(self, bins: SoftBins) -> FloatArray:
        """Return (2, B) masses and sums of residuals of all bins; those of parts add up."""
        weights = times(self.memberships(bins).weights, self.rows.weights)
        return np.stack([weights.sum(axis=0), self.residual @ weights])

    def forget(self) -> None:
        """Drop all that was computed, which takes more memory than the rows of few classes."""
        for name in ("point", "double", "confidence", "residual", "_memberships"):
            self.__dict__.pop(name, None)


Objective = Callable[[Tempered], ValueAndGradient]


def negative_log_likelihood(at: Tempered) -> ValueAndGradient:
    """Mean of f + beta g."""
    rows, beta, point = at.rows, at.beta, at.point
    value = mean(point.value + beta * rows.label_gap, rows.weights)
    return value, _shared(point.slope + rows.label_gap, rows)


def label_smoothing(alpha: float) -> Objective:
    """Cross-entropy to (1 - alpha) onehot + alpha / K: f + beta ((1 - alpha) g + alpha u)."""

    def objective(at: Tempered) -> ValueAndGradient:
        rows, beta, point = at.rows, at.beta, at.point
        gap = (1 - alpha) * rows.label_gap + alpha * rows.mean_gap
        return mean(point.value + beta * gap, rows.weights), _shared(point.slope + gap, rows)

    return objective


def brier(at: Tempered) -> ValueAndGradient:
    """Mean of sum_k (p_k - onehot_k)^2 = exp(f(2 beta) - 2 f(beta)) - 2 p_y + 1."""
    rows, beta, point, double = at.rows, at.beta, at.point, at.double
    squares = np.exp(double.value - 2 * point.value)
    of_label = np.exp(-beta * rows.label_gap - point.value)
    value = mean(squares - 2 * of_label + 1, rows.weights)
    slope = 2 * squares * (double.slope - point.slope)
    slope += 2 * of_label * (rows.label_gap + point.slope)
    return value, _shared(slope, rows)


def _shared(slopes: FloatArray, rows: RowSummary) -> FloatArray:
    """Return the gradient of a mean over rows, given the slopes of each."""
    return times(slopes, rows.weights) / total(rows.n, rows.weights)


def mean_squared_error(at: Tempered) -> ValueAndGradient:
    """Brier score divided by K, the mean over rows and classes."""
    value, gradient = brier(at)
    return value / at.rows.n_classes, gradient / at.rows.n_classes


# Of kernels so narrow, by twice their variance, ratios of memberships overflow.
NARROWEST = 2e-3


@dataclass(frozen=True)
class SoftBins:
    """Gaussian memberships of confidences in B equal-width bins, summing to 1 for each row.

    Attributes:
        n_bins: B.
        width: standard deviation of the kernel (the paper's lambda is 1 / (2 width^2)).
    """

    n_bins: int = 15
    width: float = 0.05

    @cached_property
    def centres(self) -> FloatArray:
        """(B,) middles of the bins."""
        return (np.arange(self.n_bins) + 0.5) / self.n_bins

    def memberships(self, confidence: FloatArray) -> Memberships:
        """Return the memberships of (N,) confidences."""
        # Bins come first in memory: NumPy is slow at reducing a short last axis.
        scale, middle = 2 * self.width**2, 0.5
        if scale < NARROWEST:
            weights = confidence - self.centres[:, None]
            weights *= weights
            weights -= weights.min(axis=0)
            weights *= -1 / scale
            np.exp(weights, out=weights)
        else:
            # exp(-(c - u)^2 / s) is in proportion to exp(2 (c - 1/2) (u - 1/2) / s), whose ratio of
            # bin to bin is the same for all, times exp(-(u - 1/2)^2 / s), which rows share.
            away, weights = confidence - middle, np.empty((self.n_bins, len(confidence)))
            ratio = np.exp(away * (2 / (scale * self.n_bins)))
            np.exp(away * (2 * (self.centres[0] - middle) / scale), out=weights[0])
            for lower, upper in pairwise(weights):
                np.multiply(lower, ratio, out=upper)
            weights *= np.exp(-((self.centres - middle) ** 2) / scale)[:, None]
        weights /= weights.sum(axis=0)
        return Memberships(weights.T, self.centres @ weights, self)


class Memberships(NamedTuple):
    """Memberships w of confidences c in soft bins, and what their slope by c needs.

    dw_ib/dc_i = w_ib (u_b - m_i) / width^2 with the bins' centres u. The (N, B) slopes themselves
    aren't kept: they would take as much memory again, and only their products are wanted.

    Attributes:
        weights: (N, B) w; mean: (N,) m_i = sum_b w_ib u_b; bins: the bins.
    """

    weights: FloatArray
    mean: FloatArray
    bins: SoftBins

    def times(self, values: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return (m, N) sum_b w_ib v_b, and sum_b dw_ib/dc_i v_b, for (m, B) values v."""
        both = np.concatenate([values, values * self.bins.centres]) @ self.weights.T
        mass, moment = both[: len(values)], both[len(values) :]
        return mass, (moment - self.mean * mass) / self.bins.width**2


@dataclass(frozen=True)
class SoftBinnedCalibration:
    """Soft-binned ECE, sum_b (s_b / N) (phi(R_b) - phi(0)), with phi(r) = sqrt(r^2 + delta^2).

    R_b = sum_i w_ib (c_i - a_i) / s_b is the mean residual of soft bin b and s_b = sum_i w_ib its
    mass. delta = 0 gives the absolute value (Karandikar et al. 2021), delta = 1e-3 SMART's
    Charbonnier penalty. No mean of numbers of single rows: a part of the rows needs to know the
    bins' sums over all of them.

    Attributes:
        bins: the soft bins.
        delta: see above.
        known: (2, B) masses s_b and sums s_b R_b over all rows where the rows given are a part of
            them; None where they are all.
    """

    bins: SoftBins
    delta: float
    known: FloatArray | None = None

    def __call__(self, at: Tempered) -> ValueAndGradient:
        """Return the value over all rows, and the (n,) gradient as if these were all of them."""
        rows, delta = at.rows, self.delta
        mass, sums = at.bin_sums(self.bins) if self.known is None else self.known
        middle = sums / np.maximum(mass, np.finfo(float).tiny)
        penalty = np.hypot(middle, delta)
        with np.errstate(invalid="ignore", divide="ignore"):
            penalty_slope = np.where(penalty > 0, middle / penalty, 0.0)
        every = total(rows.n, rows.weights) if self.known is None else float(mass.sum())
        value = float(mass @ (penalty - delta)) / every
        # d/dc of s_b (phi(R_b) - phi(0)), using s_b R_b = sum w (c - a)
        held = np.stack([penalty_slope, penalty - delta - penalty_slope * middle])
        (mixed, _), (residual_slope, slope) = at.memberships(self.bins).times(held)
        by_confidence = mixed + slope + at.residual * residual_slope
        return value, _shared(-by_confidence * at.confidence * at.point.slope, rows)


def charbonnier_eq6(bins: SoftBins, delta: float) -> Objective:
    """The paper's Eq. 6 to the letter: mean_i sum_b w_ib phi(a_i - u_b). Damages calibration."""

    def objective(at: Tempered) -> ValueAndGradient:
        rows = at.rows
        # A row is right or wrong, so its penalties are one of two vectors.
        penalties: FloatArray = np.hypot(np.stack([bins.centres, 1 - bins.centres]), delta)
        masses, slopes = at.memberships(bins).times(penalties)
        outcomes = rows.correct.astype(np.int64), np.arange(rows.n)
        value, by_confidence = mean(masses[outcomes], rows.weights), slopes[outcomes]
        return value, _shared(-by_confidence * at.confidence * at.point.slope, rows)

    return objective


def objective_names() -> tuple[ObjectiveName, ...]:
    """Return the names that `make_objective` knows."""
    return get_args(ObjectiveName)


def make_objective(
    name: ObjectiveName, *, bins: SoftBins, delta: float, smoothing: float
) -> Objective:
    """Return the objective that goes by `name`."""
    makers: dict[ObjectiveName, Callable[[], Objective]] = {
        "charbonnier": lambda: SoftBinnedCalibration(bins, delta),
        "soft-ece": lambda: SoftBinnedCalibration(bins, 0.0),
        "nll": lambda: negative_log_likelihood,
        "label-smoothing": lambda: label_smoothing(smoothing),
        "brier": lambda: brier,
        "mse": lambda: mean_squared_error,
        "charbonnier-eq6": lambda: charbonnier_eq6(bins, delta),
    }
    return makers[name]()


# No row's temperature leaves the fitted single one by more than this factor: a table's upper end.
LARGEST_RELATIVE_TEMPERATURE = 32.0


class Scale(NamedTuple):
    """Where the inputs of a network lie; arrays (d,).

    Attributes:
        mean, deviation: what they are standardised by.
        low, high: the range of standardised ones, which others are clamped to.
    """

    mean: FloatArray
    deviation: FloatArray
    low: FloatArray
    high: FloatArray


def standardised(
    values: FloatArray, weights: FloatArray | None = None, least: float = 0.0
) -> tuple[FloatArray, Scale]:
    """Return (N, d) values standardised, and their scale.

    A deviation (of the population) that isn't above `least` is only rounding, and counts as 1.
    """
    mean = np.average(values, axis=0, weights=weights)
    away = (values - mean) ** 2
    deviation = np.sqrt(np.average(away, axis=0, weights=weights))
    deviation = np.where(deviation > least, deviation, 1.0)
    inputs = values - mean
    inputs /= deviation
    return inputs, Scale(mean, deviation, inputs.min(axis=0), inputs.max(axis=0))


def on_scale(xp: Any, values: Array, learnt: Learnt) -> Array:
    """Return (n, d) values on a learnt `Scale`."""
    inputs = (values - learnt["mean_"]) / learnt["deviation_"]
    return xp.minimum(xp.maximum(inputs, learnt["low_"]), learnt["high_"])


def betas_of(xp: Any, relative: Array, reference: Array | float) -> Array:
    """Return the (n,) inverse temperatures of (n,) temperatures relative to 1 / `reference`."""
    return reference / xp.minimum(relative, xp.full_like(relative, LARGEST_RELATIVE_TEMPERATURE))


# Rows that are worked on together, so that memberships and hidden units stay in the cache.
PART_ROWS = 1 << 12
# Up to so many rows, what was computed of them is kept from value to gradient to curvature: of more
# it would take many times the memory of the rows. Of fewer, threads take longer than the work.
KEPT_ROWS = 1 << 16


def parts_of(rows: int) -> list[slice]:
    """Return the parts that rows are worked on in."""
    return [slice(start, start + PART_ROWS) for start in range(0, rows, PART_ROWS)]


@dataclass(frozen=True)
class Penalised:
    """The whole training objective as a function of relative temperatures T / T0."""

    rows: RowSummary
    reference: float
    objective: Objective
    likelihood_weight: float
    shrinkage: float

    @cached_property
    def parts(self) -> list[tuple[slice, RowSummary]]:
        """The rows in parts, which copy nothing."""
        places = parts_of(self.rows.n)
        if len(places) == 1:
            return [(slice(None), self.rows)]
        return [(place, self.rows.take(place)) for place in places]

    def at(self, temperatures: FloatArray) -> list[Tempered]:
        """Return the parts of the rows at their (N,) temperatures."""
        return [Tempered(rows, self.beta_of(temperatures[place])) for place, rows in self.parts]

    def __call__(
        self, temperatures: FloatArray, tempered: Sequence[Tempered] | None = None
    ) -> tuple[float, FloatArray]:
        """Return the value and its (N,) gradient by temperature.

        Args:
            temperatures: (N,) relative ones.
            tempered: what `at` gives for them, where more is wanted of it afterwards.
        """
        parts, every = self.parts, total(self.rows.n, self.rows.weights)
        tempered = self.at(temperatures) if tempered is None else tempered
        gradient, values = np.empty(self.rows.n), np.empty(len(parts))
        objective, few = self.objective, self.rows.n <= KEPT_ROWS
        if isinstance(objective, SoftBinnedCalibration) and len(parts) > 1:
            bins = objective.bins
            sums = np.empty((len(parts), 2, bins.n_bins))

            def gather(index: int) -> None:
                sums[index] = tempered[index].bin_sums(bins)
                if not few:
                    tempered[index].forget()

            for_each(range(len(parts)), gather, threaded=not few)
            objective = replace(objective, known=sums.sum(axis=0))
        pull = self.shrinkage / every

        def work(index: int) -> None:
            (place, rows), at = parts[index], tempered[index]
            nll, nll_by_beta = 0.0, 0.0
            if self.likelihood_weight > 0:
                nll, nll_by_beta = negative_log_likelihood(at)
            value, by_beta = objective(at)
            if not few:
                at.forget()
            value += self.likelihood_weight * nll
            by_beta = by_beta + self.likelihood_weight * nll_by_beta
            bounded = np.minimum(temperatures[place], LARGEST_RELATIVE_TEMPERATURE)
            log = np.log(bounded)
            value += pull * mean(log * log, rows.weights)
            own = total(rows.n, rows.weights)
            slope = (2 * pull / own * times(log, rows.weights) - by_beta * at.beta) / bounded
            slope = np.where(self.is_free(temperatures[place]), slope, 0.0)
            values[index], gradient[place] = own / every * value, own / every * slope

        for_each(range(len(parts)), work, threaded=not few)
        return float(values.sum()), gradient

    def beta_of(self, temperatures: FloatArray) -> FloatArray:
        """Return the (n,) inverse temperatures of relative ones."""
        return self.reference / np.minimum(temperatures, LARGEST_RELATIVE_TEMPERATURE)

    def is_free(self, temperatures: FloatArray) -> BoolArray:
        """Return (n,) whether a relative temperature may still rise."""
        return temperatures < LARGEST_RELATIVE_TEMPERATURE


class Network(Protocol):
    """Maps (N, d) inputs to (N,) temperatures."""

    def flat(self) -> FloatArray:
        """Return all parameters as one vector."""
        ...

    def with_flat(self, vector: FloatArray) -> Self:
        """Return a network of this shape with the parameters of `vector`."""
        ...

    def forward(self, inputs: FloatArray) -> tuple[FloatArray, Any]:
        """Return (N,) temperatures, and what `backward` needs of how they came about."""
        ...

    def backward(self, tape: Any, by_temperature: FloatArray) -> FloatArray:
        """Return the gradient of a loss by `flat()`, given its (N,) gradient by temperature."""
        ...


AnyNetwork = TypeVar("AnyNetwork", bound=Network)


class NetworkFit(NamedTuple, Generic[AnyNetwork]):
    """Outcome of `fit_network`."""

    network: AnyNetwork
    value: float
    iterations: int
    converged: bool


def forward(network: Network, inputs: Sequence[Any], rows: int) -> tuple[FloatArray, list[Any]]:
    """Return the (N,) temperatures of N = `rows` rows in parts, and the tapes if they are few."""
    temperatures, places = np.empty(rows), parts_of(rows)
    tapes: list[Any] = [None] * len(places)

    def work(index: int) -> None:
        temperatures[places[index]], tape = network.forward(inputs[index])
        if rows <= KEPT_ROWS:
            tapes[index] = tape

    for_each(range(len(places)), work, threaded=rows > KEPT_ROWS)
    return temperatures, tapes


def fit_network(
    network: AnyNetwork,
    inputs: FloatArray,
    loss: Penalised,
    max_iterations: int,
    decay: FloatArray | float = 0.0,
) -> NetworkFit[AnyNetwork]:
    """Minimise `loss` plus the sum of `decay` times each parameter's square, by L-BFGS.

    Returns:
        The best state that was seen.
    """

    best = np.inf, network.flat()
    places = parts_of(len(inputs))
    parts = [inputs[place] for place in places]

    def value_and_gradient(vector: FloatArray) -> tuple[float, FloatArray]:
        nonlocal best
        candidate = network.with_flat(vector)
        temperatures, tapes = forward(candidate, parts, len(inputs))
        value, by_temperature = loss(temperatures)
        pull = decay * vector
        value += float(pull @ vector)
        if value < best[0]:
            best = value, vector.copy()
        gradients = np.empty((len(parts), len(vector)))

        def backward(index: int) -> None:
            # Of many rows, going forward once more takes less than the memory of all tapes would.
            tape = tapes[index] or candidate.forward(parts[index])[1]
            gradients[index] = candidate.backward(tape, by_temperature[places[index]])

        for_each(range(len(parts)), backward, threaded=len(inputs) > KEPT_ROWS)
        return value, gradients.sum(axis=0) + 2 * pull

    found = minimize(
        value_and_gradient,
        network.flat(),
        maxiter=max_iterations,
        gtol=1e-7,
        ftol=1e-10,
        maxcor=20,
    )
    value, vector = best
    # Ending at the planned number of steps is no failure; ending earlier for another reason is.
    ended_well = bool(found.success) or found.nit >= max_iterations
    return NetworkFit(network.with_flat(vector), value, int(found.nit), ended_well)
