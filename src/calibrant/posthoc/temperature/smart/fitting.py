"""The temperature network of SMART and of PTS, and how it is fitted.

SMART's has one hidden layer, written out with its gradient:

    T(x) = softplus(w2 . relu(W1 x + b1) + b2) + floor

With one input and 16 hidden units it has 49 parameters and is piecewise linear before the softplus,
so the temperature is a smooth-ended broken line of the margin.

What a row-wise temperature can be fitted to: the objectives of SMART's Table 3, with gradients.

Every objective maps the row summary, (N,) inverse temperatures beta and the confidence curves at
them to a number and its (N,) gradient by beta. Notation of `predictions.curves`: f the confidence
curve, g the label gap, u the mean gap, c = exp(-f) the confidence, a = 1 if the predicted label is
right.

Two objectives carry the paper's name. Its Eq. 6 sums a penalty of a_i - u_b over rows, which is
about E|a - c|: not a proper score, since a row with P(a = 1) > 1/2 gains by c -> 1. Trained on it,
SMART ends far worse than it began. The code of the paper's authors averages a - c in soft bins
*before* the penalty, and that works. Here ``"charbonnier"`` is the one that works and
``"charbonnier-eq6"`` the literal one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, Literal, NamedTuple, Protocol, Self, TypeVar, get_args

import numpy as np

from calibrant.core.arrays import Array, BoolArray, FloatArray, IntArray, for_each
from calibrant.core.weights import mean, quantiles, times, total
from calibrant.posthoc.array_ops import softplus
from calibrant.posthoc.fitting.minimizing import minimize
from calibrant.predictions.curves import CurvePoint
from calibrant.predictions.rows import RowSummary

ObjectiveName = Literal[
    "charbonnier", "soft-ece", "nll", "label-smoothing", "brier", "mse", "charbonnier-eq6"
]
ValueAndGradient = tuple[float, FloatArray]
Objective = Callable[[RowSummary, FloatArray, CurvePoint], ValueAndGradient]


def negative_log_likelihood(
    rows: RowSummary, beta: FloatArray, point: CurvePoint
) -> ValueAndGradient:
    """Mean of f + beta g."""
    value = mean(point.value + beta * rows.label_gap, rows.weights)
    return value, _shared(point.slope + rows.label_gap, rows)


def label_smoothing(alpha: float) -> Objective:
    """Cross-entropy to (1 - alpha) onehot + alpha / K: f + beta ((1 - alpha) g + alpha u)."""

    def objective(rows: RowSummary, beta: FloatArray, point: CurvePoint) -> ValueAndGradient:
        gap = (1 - alpha) * rows.label_gap + alpha * rows.mean_gap
        return mean(point.value + beta * gap, rows.weights), _shared(point.slope + gap, rows)

    return objective


def brier(rows: RowSummary, beta: FloatArray, point: CurvePoint) -> ValueAndGradient:
    """Mean of sum_k (p_k - onehot_k)^2 = exp(f(2 beta) - 2 f(beta)) - 2 p_y + 1."""
    double = rows.curve.evaluate(2 * beta)
    squares = np.exp(double.value - 2 * point.value)
    of_label = np.exp(-beta * rows.label_gap - point.value)
    value = mean(squares - 2 * of_label + 1, rows.weights)
    slope = 2 * squares * (double.slope - point.slope)
    slope += 2 * of_label * (rows.label_gap + point.slope)
    return value, _shared(slope, rows)


def _shared(slopes: FloatArray, rows: RowSummary) -> FloatArray:
    """Return the gradient of a mean over rows, given the slopes of each."""
    return times(slopes, rows.weights) / total(rows.n, rows.weights)


def mean_squared_error(rows: RowSummary, beta: FloatArray, point: CurvePoint) -> ValueAndGradient:
    """Brier score divided by K, the mean over rows and classes."""
    value, gradient = brier(rows, beta, point)
    return value / rows.n_classes, gradient / rows.n_classes


@dataclass(frozen=True)
class SoftBins:
    """Gaussian memberships of confidences in B equal-width bins, summing to 1 for each row.

    Attributes:
        n_bins: B.
        width: standard deviation of the kernel (the paper's lambda is 1 / (2 width^2)).
    """

    n_bins: int = 15
    width: float = 0.05

    @property
    def centres(self) -> FloatArray:
        """(B,) middles of the bins."""
        return (np.arange(self.n_bins) + 0.5) / self.n_bins

    def memberships(self, confidence: FloatArray) -> Memberships:
        """Return the memberships of (N,) confidences."""
        # Bins come first in memory: NumPy is slow at reducing a short last axis.
        centres, scale = self.centres[:, None], 2 * self.width**2
        weights = confidence - centres
        weights *= weights
        weights -= weights.min(axis=0)
        weights *= -1 / scale
        np.exp(weights, out=weights)
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

    def slope_times(self, values: FloatArray) -> FloatArray:
        """Return (N,) sum_b dw_ib/dc_i v_b for (B,) values."""
        products = self.weights @ np.stack([self.bins.centres * values, values], axis=1)
        return (products[:, 0] - self.mean * products[:, 1]) / self.bins.width**2


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

    def sums(self, rows: RowSummary, point: CurvePoint) -> FloatArray:
        """Return what `known` wants of these rows; the sums of parts add up."""
        confidence = np.exp(-point.value)
        weights = times(self.bins.memberships(confidence).weights, rows.weights)
        return np.stack([weights.sum(axis=0), (confidence - rows.correct) @ weights])

    def __call__(self, rows: RowSummary, beta: FloatArray, point: CurvePoint) -> ValueAndGradient:
        """Return the value over all rows, and the (n,) gradient as if these were all of them."""
        confidence = np.exp(-point.value)
        residual = confidence - rows.correct
        memberships = self.bins.memberships(confidence)
        weights, delta = memberships.weights, self.delta
        if self.known is None:
            counted = times(weights, rows.weights)
            mass, sums = counted.sum(axis=0), residual @ counted
        else:
            mass, sums = self.known
        middle = sums / np.maximum(mass, np.finfo(float).tiny)
        penalty = np.hypot(middle, delta)
        with np.errstate(invalid="ignore", divide="ignore"):
            penalty_slope = np.where(penalty > 0, middle / penalty, 0.0)
        every = total(rows.n, rows.weights) if self.known is None else float(mass.sum())
        value = float(mass @ (penalty - delta)) / every
        # d/dc of s_b (phi(R_b) - phi(0)), using s_b R_b = sum w (c - a)
        by_confidence = weights @ penalty_slope + memberships.slope_times(
            penalty - delta - penalty_slope * middle
        )
        by_confidence += residual * memberships.slope_times(penalty_slope)
        return value, _shared(-by_confidence * confidence * point.slope, rows)


def soft_binned_calibration(bins: SoftBins, delta: float) -> Objective:
    """Return the soft-binned ECE as an objective; see `SoftBinnedCalibration`."""
    return SoftBinnedCalibration(bins, delta)


def charbonnier_eq6(bins: SoftBins, delta: float) -> Objective:
    """The paper's Eq. 6 to the letter: mean_i sum_b w_ib phi(a_i - u_b). Damages calibration."""

    def objective(rows: RowSummary, beta: FloatArray, point: CurvePoint) -> ValueAndGradient:
        confidence = np.exp(-point.value)
        memberships = bins.memberships(confidence)
        # A row is right or wrong, so its penalties are one of two vectors.
        right = np.hypot(1 - bins.centres, delta)
        wrong = np.hypot(bins.centres, delta)
        of_rows = memberships.weights @ np.stack([wrong, right], axis=1)
        value = mean(np.where(rows.correct, of_rows[:, 1], of_rows[:, 0]), rows.weights)
        by_confidence = np.where(
            rows.correct, memberships.slope_times(right), memberships.slope_times(wrong)
        )
        return value, _shared(-by_confidence * confidence * point.slope, rows)

    return objective


def objective_names() -> tuple[ObjectiveName, ...]:
    """Return the names that `make_objective` knows."""
    return get_args(ObjectiveName)


def make_objective(
    name: ObjectiveName, *, bins: SoftBins, delta: float, smoothing: float
) -> Objective:
    """Return the objective that goes by `name`."""
    makers: dict[ObjectiveName, Callable[[], Objective]] = {
        "charbonnier": lambda: soft_binned_calibration(bins, delta),
        "soft-ece": lambda: soft_binned_calibration(bins, 0.0),
        "nll": lambda: negative_log_likelihood,
        "label-smoothing": lambda: label_smoothing(smoothing),
        "brier": lambda: brier,
        "mse": lambda: mean_squared_error,
        "charbonnier-eq6": lambda: charbonnier_eq6(bins, delta),
    }
    return makers[name]()


HIDDEN_UNITS = 16
TEMPERATURE_FLOOR = 0.1


class Tape(NamedTuple):
    """What the backward pass needs of a forward pass."""

    inputs: FloatArray
    active: BoolArray
    softplus: FloatArray


class Slopes(NamedTuple):
    """The (N, P) derivatives of the temperatures by the weights, diag(factor) rows' mixing.

    Attributes:
        rows: (Q, N) numbers of each row, Q less than P; factor: (N,) by what all of a row's are
            multiplied.
        mixing: (Q, P) how the weights share them.
    """

    rows: FloatArray
    factor: FloatArray
    mixing: FloatArray


@dataclass(frozen=True)
class TemperatureNetwork:
    """Weights of the network.

    Attributes:
        w1: (H, d) first layer; b1: (H,) its bias.
        w2: (H,) second layer; b2: (1,) its bias.
    """

    w1: FloatArray
    b1: FloatArray
    w2: FloatArray
    b2: FloatArray

    @classmethod
    def constant(
        cls,
        temperature: float,
        inputs: FloatArray,
        seed: int,
        hidden: int = HIDDEN_UNITS,
        weights: FloatArray | None = None,
    ) -> TemperatureNetwork:
        """Return a network that says `temperature` everywhere, ready to learn.

        The second layer is zero, so the start is exactly temperature scaling. Every hidden unit
        bends at a data point drawn from `inputs`, half of them rising to each side, which leaves
        no unit dead. `weights`, (N,), say how much each row counts.
        """
        rng = np.random.default_rng(seed)
        width = inputs.shape[1]
        directions = rng.normal(size=(hidden, width))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        if width == 1:
            directions = np.where(np.arange(hidden) % 2 == 0, 1.0, -1.0)[:, None]
        shares = (np.arange(hidden) + rng.random(hidden)) / hidden
        if weights is None:
            bends = np.quantile(inputs, shares, axis=0)
        else:
            bends = np.stack([quantiles(column, shares, weights) for column in inputs.T], axis=1)
        bias = np.log(np.expm1(temperature - TEMPERATURE_FLOOR))
        return cls(
            directions, -(directions * bends).sum(axis=1), np.zeros(hidden), np.array([bias])
        )

    @property
    def size(self) -> int:
        """Number of parameters."""
        return self.w1.size + self.b1.size + self.w2.size + self.b2.size

    def flat(self) -> FloatArray:
        """Return all parameters as one vector."""
        return np.concatenate([self.w1.ravel(), self.b1, self.w2, self.b2])

    def with_flat(self, vector: FloatArray) -> TemperatureNetwork:
        """Return a network of this shape with the parameters of `vector`."""
        hidden, width = self.w1.shape
        w1, b1, w2, b2 = np.split(vector, np.cumsum([hidden * width, hidden, hidden]))
        return TemperatureNetwork(w1.reshape(hidden, width), b1, w2, b2)

    def forward(self, inputs: FloatArray) -> tuple[FloatArray, Tape]:
        """Return (N,) temperatures for (N, d) `inputs`, and the tape for `backward`."""
        hidden = inputs @ self.w1.T
        hidden += self.b1
        active = hidden > 0
        hidden *= active
        raw = hidden @ self.w2 + self.b2[0]
        # What logaddexp(raw, 0) is, without its scalar loop.
        softplus = np.maximum(raw, 0.0) + np.log1p(np.exp(-np.abs(raw)))
        return softplus + TEMPERATURE_FLOOR, Tape(inputs, active, softplus)

    def backward(self, tape: Tape, by_temperature: FloatArray) -> FloatArray:
        """Return the gradient of a loss by `flat()`, given its (N,) gradient by temperature."""
        by_raw = by_temperature * -np.expm1(-tape.softplus)
        active = tape.active.astype(np.float64)
        # Sums over the rows where a unit is active, of what it is active on and of the constant.
        of_inputs, of_one = active.T @ (by_raw[:, None] * tape.inputs), by_raw @ active
        by_w1, by_b1 = of_inputs * self.w2[:, None], of_one * self.w2
        by_w2 = (of_inputs * self.w1).sum(axis=1) + of_one * self.b1
        return np.concatenate([by_w1.ravel(), by_b1, by_w2, [by_raw.sum()]])

    def slopes(self, tape: Tape) -> Slopes:
        """Return the (N, P) derivatives of the temperatures by `flat()`, as a product.

        What a unit gives is w1 x + b1 where it is active. So the derivatives by all its weights are
        sums of two numbers of a row: whether it is active, and x if so.
        """
        hidden, width = self.w1.shape
        first = hidden * width
        rows = np.empty((first + hidden + 1, len(tape.inputs)))
        active = rows[first : first + hidden]
        active[:] = tape.active.T
        np.multiply(
            active[:, None, :],
            tape.inputs.T[None, :, :],
            out=rows[:first].reshape(hidden, width, -1),
        )
        rows[-1] = 1.0
        mixing = np.zeros((len(rows), self.size))
        units: IntArray = np.arange(hidden, dtype=np.int64)
        inputs: IntArray = np.arange(first, dtype=np.int64)
        mixing[inputs, inputs] = np.repeat(self.w2, width)
        mixing[first + units, first + units] = self.w2
        mixing[inputs, first + hidden + inputs // width] = self.w1.ravel()
        mixing[first + units, first + hidden + units] = self.b1
        mixing[-1, -1] = 1.0
        return Slopes(rows, -np.expm1(-tape.softplus), mixing)


def temperatures(xp: Any, inputs: Array, w1: Array, b1: Array, w2: Array, b2: Array) -> Array:
    """Return what `TemperatureNetwork.forward` gives, as a pure function of arrays."""
    hidden = inputs @ w1.T + b1
    raw = xp.maximum(hidden, xp.zeros_like(hidden)) @ w2 + b2
    return softplus(xp, raw) + TEMPERATURE_FLOOR


# No row's temperature leaves the fitted single one by more than this factor: a table's upper end.
LARGEST_RELATIVE_TEMPERATURE = 32.0


# Rows that are worked on together, so that memberships and hidden units stay in the cache: of all
# rows at once they would take many times the memory of the rows.
PART_ROWS = 1 << 12


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

    def __call__(self, temperatures: FloatArray) -> tuple[float, FloatArray]:
        """Return the value and its (N,) gradient by temperature."""
        parts, every = self.parts, total(self.rows.n, self.rows.weights)
        gradient, values = np.empty(self.rows.n), np.empty(len(parts))
        objective, points = self.objective, dict[int, CurvePoint]()
        if isinstance(objective, SoftBinnedCalibration) and len(parts) > 1:
            sums = np.empty((len(parts), 2, objective.bins.n_bins))

            def gather(index: int) -> None:
                place, rows = parts[index]
                point = rows.curve.evaluate(self.beta_of(temperatures[place]))
                points[index] = point._replace(curvature=np.empty(0))  # that nobody asks for
                sums[index] = self.objective.sums(rows, point)  # type: ignore[attr-defined]

            for_each(range(len(parts)), gather)
            objective = replace(objective, known=sums.sum(axis=0))

        def work(index: int) -> None:
            place, rows = parts[index]
            point = points.pop(index, None) or rows.curve.evaluate(
                self.beta_of(temperatures[place])
            )
            value, by_temperature = self._part(rows, temperatures[place], point, objective)
            share = total(rows.n, rows.weights) / every
            values[index], gradient[place] = share * value, share * by_temperature

        for_each(range(len(parts)), work)
        return float(values.sum()), gradient

    def beta_of(self, temperatures: FloatArray) -> FloatArray:
        """Return the (n,) inverse temperatures of relative ones."""
        return self.reference / np.minimum(temperatures, LARGEST_RELATIVE_TEMPERATURE)

    def is_free(self, temperatures: FloatArray) -> BoolArray:
        """Return (n,) whether a relative temperature may still rise."""
        return temperatures < LARGEST_RELATIVE_TEMPERATURE

    def _part(
        self, rows: RowSummary, temperatures: FloatArray, point: CurvePoint, objective: Objective
    ) -> tuple[float, FloatArray]:
        """Return value and gradient as if these rows were all."""
        bounded = np.minimum(temperatures, LARGEST_RELATIVE_TEMPERATURE)
        beta = self.beta_of(temperatures)
        value, by_beta = objective(rows, beta, point)
        if self.likelihood_weight > 0:
            nll, nll_by_beta = negative_log_likelihood(rows, beta, point)
            value += self.likelihood_weight * nll
            by_beta = by_beta + self.likelihood_weight * nll_by_beta
        log = np.log(bounded)
        pull = self.shrinkage / total(self.rows.n, self.rows.weights)
        value += pull * mean(log * log, rows.weights)
        held = 2 * pull / total(rows.n, rows.weights) * times(log, rows.weights)
        gradient = (held - by_beta * beta) / bounded
        return value, np.where(self.is_free(temperatures), gradient, 0.0)


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


def temperatures_of(network: Network, inputs: FloatArray) -> FloatArray:
    """Return the (N,) temperatures of (N, d) inputs, a part at a time."""
    temperatures = np.empty(len(inputs))

    def forward(part: slice) -> None:
        temperatures[part] = network.forward(inputs[part])[0]

    for_each(parts_of(len(inputs)), forward)
    return temperatures


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
    parts = parts_of(len(inputs))

    def value_and_gradient(vector: FloatArray) -> tuple[float, FloatArray]:
        nonlocal best
        candidate = network.with_flat(vector)
        temperatures, tapes = np.empty(len(inputs)), dict[int, Any]()

        def forward(index: int) -> None:
            temperatures[parts[index]], tape = candidate.forward(inputs[parts[index]])
            if len(parts) == 1:
                tapes[index] = tape

        for_each(range(len(parts)), forward)
        value, by_temperature = loss(temperatures)
        pull = decay * vector
        value += float(pull @ vector)
        if value < best[0]:
            best = value, vector.copy()
        gradients = np.empty((len(parts), len(vector)))

        def backward(index: int) -> None:
            place = parts[index]
            # Going forward once more takes less than the memory of all tapes would.
            tape = tapes[index] if tapes else candidate.forward(inputs[place])[1]
            gradients[index] = candidate.backward(tape, by_temperature[place])

        for_each(range(len(parts)), backward)
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
