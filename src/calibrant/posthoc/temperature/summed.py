"""One temperature for very many rows, from sums: exact, in one or two passes as a rule.

The mean of the rows' losses near a first guess is a sum of a fixed size, of the moments below. Its
minimum is found from the sums; where it lies too far from the guess for its digits to be sure, it
is the next guess. The first guess is the best temperature of the first rows, so that it depends on
the rows and their order alone, and so does the outcome: not on the shards.

With x_k = beta_0 (z_k - max z) and t = beta / beta_0 - 1, a row's confidence curve is

    f(beta) = log sum_k exp(x_k (1 + t)) = f(beta_0) + sum_j kappa_j t^j / j!

where kappa_j are the cumulants of x under softmax at beta_0. The mean of these over all rows gives
the mean loss near beta_0 to many digits, so that the best temperature of very many rows takes one
or two passes, and one exponential a logit in each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import (
    CHUNK_ELEMENTS_CPU,
    FloatArray,
    IntArray,
    namespace,
    row_sums,
    to_numpy,
    working_dtype,
)
from calibrant.core.errors import (
    BoundaryWarning,
    InputError,
    NotIdentifiedWarning,
    PredictionsError,
)
from calibrant.core.weights import are_counts, as_float, exact_sum, mean_of, rounded_sum
from calibrant.posthoc.shards import ShardWork
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import DOUBLE_PRECISION_CLASSES_AT_ONE
from calibrant.predictions.temperature import (
    FIRST_SEARCH,
    MAX_STEPS,
    SIGNIFICANT_GAIN,
    TemperatureFit,
    find_root,
    fit_temperature,
)
from calibrant.scale.engines import Task
from calibrant.scale.sampling import chosen_rows
from calibrant.scale.shards import Shard, Shards

# Cumulants that are kept.
ORDER = 6
# exp of what lies below is nothing, and its powers mustn't overflow.
LOWEST, LOWEST_DOUBLE = -100.0, -700.0
# Multiplied by this, the bits of a half are those of a float32 once they have been moved.
HALF_BITS, HALF_SHIFT = np.int32(0x0FFFE000 - (1 << 31)), 13
HALF_SCALE, HALF_INFINITY = np.float32(2.0**112), np.float32(65536.0)


class RowMoments(NamedTuple):
    """What a pass leaves of N rows of logits.

    Attributes:
        kappa: (ORDER + 1, N) log-sum and cumulants.
        label_gap: (N,) largest minus true label's logit.
        mean_gap: (N,) largest minus mean logit, of the classes left unmasked.
        log_classes: (N,) logarithm of how many these are.
    """

    kappa: FloatArray
    label_gap: FloatArray
    mean_gap: FloatArray
    log_classes: FloatArray


def row_moments(logits: NDArray[Any], labels: IntArray, beta: float) -> RowMoments:
    """Return the moments of (N, K) checked logits around an inverse temperature."""
    n, classes = logits.shape
    dtype = working_dtype(logits)
    if classes <= DOUBLE_PRECISION_CLASSES_AT_ONE:
        dtype = np.dtype(np.float64)
    found = RowMoments(np.empty((ORDER + 1, n)), *(np.empty(n) for _ in range(3)))
    step = max(1, CHUNK_ELEMENTS_CPU // classes)
    # Rooms that every chunk uses again: fresh memory costs more than the arithmetic.
    rooms = [np.empty((min(step, n), classes), dtype=dtype) for _ in range(3)]
    for start in range(0, n, step):
        part = slice(start, min(start + step, n))
        own = [room[: part.stop - part.start] for room in rooms]
        _of_chunk(logits[part], labels[part], beta, own, RowMoments(*(a[..., part] for a in found)))
    return found


def _of_chunk(
    chunk: NDArray[Any], labels: IntArray, beta: float, rooms: list[NDArray[Any]], out: RowMoments
) -> None:
    x, w, y = rooms
    widen(chunk, x)
    rows = np.arange(len(x))
    top = x.max(axis=1)
    out.label_gap[:] = top - x[rows, labels]
    mean = row_sums(x).astype(np.float64) / x.shape[1]
    out.log_classes[:] = np.log(x.shape[1])
    if not np.isfinite(mean).all():
        kept = x > -np.inf
        number = kept.sum(axis=1)
        mean = np.where(kept, x, 0).sum(axis=1, dtype=np.float64) / number
        out.log_classes[:] = np.log(number)
    out.mean_gap[:] = np.maximum(top - mean, 0.0)
    x -= top[:, None]
    x *= x.dtype.type(beta)
    np.maximum(x, LOWEST if x.dtype == np.float32 else LOWEST_DOUBLE, out=x)
    np.exp(x, out=w)
    total = row_sums(w).astype(np.float64)
    raw = np.empty((ORDER, len(x)))
    np.multiply(x, x, out=y)
    vecdot = namespace(x).vecdot  # NumPy has it from version 2 on
    raw[0], raw[1] = vecdot(w, x), vecdot(w, y)
    for j in range(2, ORDER, 2):
        w *= y
        raw[j], raw[j + 1] = vecdot(w, x), vecdot(w, y)
    raw /= total
    out.kappa[0] = np.log(total)
    out.kappa[1:] = cumulants(raw)


def widen(chunk: NDArray[Any], out: NDArray[Any]) -> None:
    """Write a chunk into a room of a wider type; halves by their bits, twice as quick."""
    if chunk.dtype != np.float16 or out.dtype != np.float32:
        out[...] = chunk
        return
    bits = out.view(np.int32)
    bits[...] = chunk.view(np.int16)
    bits <<= HALF_SHIFT
    bits &= HALF_BITS
    out *= HALF_SCALE
    if (
        float(out.min(initial=0.0)) <= -HALF_INFINITY
        or float(out.max(initial=0.0)) >= HALF_INFINITY
    ):
        out[...] = chunk


def cumulants(raw: FloatArray) -> FloatArray:
    """Return the first cumulants of (J, N) raw moments E[x], E[x^2], ..."""
    found = np.empty(raw.shape)
    for n in range(1, len(raw) + 1):
        found[n - 1] = raw[n - 1]
        choose = 1.0
        for m in range(1, n):
            # choose = (n - 1 over m - 1)
            found[n - 1] -= choose * found[m - 1] * raw[n - m - 1]
            choose *= (n - m) / m
    return found


# The first guess is from so many rows at most, and from no more numbers than this.
FIRST_ROWS, FIRST_NUMBERS = 16_384, 1 << 26
# Of the slope's terms, the last that is kept must be so small beside the first.
SMALLEST_TERM = 1e-8
# A step is no longer than this share of the guess; there the series are still of use.
LONGEST_STEP = 0.25
MOST_PASSES = 30


@dataclass(frozen=True)
class CurveSums:
    """Sums over rows around an inverse temperature; those of shards add up exactly.

    Attributes:
        beta: the inverse temperature.
        n: number of rows; wrong: how many of them have a larger logit than that of the true label.
            Those of weight 0 aren't counted.
        totals: exact sums of the moments, in their order, and of 1 - c; times the weights.
        weight: the exact sum of the weights; None where rows count alike.
        counts: whether weights, if there are any, are whole numbers, which count rows.
    """

    beta: float
    n: int
    wrong: int
    totals: tuple[int, ...]
    weight: int | None = None
    counts: bool = True

    def __add__(self, other: CurveSums) -> CurveSums:
        """Return the sums of both sets of rows together."""
        totals = tuple(a + b for a, b in zip(self.totals, other.totals, strict=True))
        weight = None if self.weight is None or other.weight is None else self.weight + other.weight
        n, wrong = self.n + other.n, self.wrong + other.wrong
        return CurveSums(self.beta, n, wrong, totals, weight, self.counts and other.counts)

    def _mean(self, total: int) -> float:
        return mean_of(total, self.n) if self.weight is None else total / self.weight

    @property
    def every(self) -> float:
        """How many rows there are: what they weigh where weights count rows."""
        if self.weight is None or not self.counts:
            return float(self.n)
        return as_float(self.weight)

    @property
    def kappa(self) -> FloatArray:
        """Mean log-sum and cumulants."""
        return np.array([self._mean(total) for total in self.totals[: ORDER + 1]])

    def mean(self, i: int) -> float:
        """Return the mean of what comes after the cumulants."""
        return self._mean(self.totals[ORDER + 1 + i])

    @property
    def label_gap(self) -> float:
        """Mean gap of the largest to the true label's logit."""
        return self.mean(0)

    @property
    def mean_gap(self) -> float:
        """Mean gap of the largest to the mean logit."""
        return self.mean(1)

    @property
    def log_classes(self) -> float:
        """Mean loss of a uniform distribution."""
        return self.mean(2)

    def loss(self, t: float) -> float:
        """Return the mean loss at beta (1 + t)."""
        powers = np.array([t**j / math.factorial(j) for j in range(ORDER + 1)])
        return float(self.kappa @ powers) + self.beta * (1 + t) * self.label_gap

    def slope(self, t: float) -> tuple[float, float]:
        """Return two derivatives of the mean loss by t."""
        kappa = self.kappa
        first = sum(kappa[j] * t ** (j - 1) / math.factorial(j - 1) for j in range(1, ORDER + 1))
        second = sum(kappa[j] * t ** (j - 2) / math.factorial(j - 2) for j in range(2, ORDER + 1))
        return float(first) + self.beta * self.label_gap, float(second)

    def last_term(self, t: float) -> float:
        """Return the last term of the slope over the first."""
        kappa = self.kappa
        return abs(kappa[-1] * t ** (ORDER - 1)) / math.factorial(ORDER - 1) / abs(kappa[1])


def sum_curves(shard: Shard, beta: float, *, checked: bool = False) -> CurveSums:
    """Return the sums of a shard's rows around an inverse temperature.

    Args:
        shard: what to sum.
        beta: the inverse temperature.
        checked: whether its rows were checked before.
    """
    nothing = 0 if shard.weighted else None
    found = CurveSums(beta, 0, 0, (0,) * (ORDER + 5), nothing)
    for batch in shard.batches(checked=checked):
        rows = batch.predictions
        moments = row_moments(to_numpy(rows.logits), rows.labels, beta)
        doubt = -np.expm1(-moments.kappa[0])
        every = (*moments.kappa, moments.label_gap, moments.mean_gap, moments.log_classes, doubt)
        gap, weights = moments.label_gap, rows.weights
        if weights is None:
            wrong, totals = int(np.count_nonzero(gap)), [rounded_sum(values) for values in every]
            found += CurveSums(beta, rows.n, wrong, tuple(totals))
            continue
        n, wrong = int(np.count_nonzero(weights)), int(np.count_nonzero(gap * weights))
        totals = tuple(exact_sum(values * weights) for values in every)
        found += CurveSums(beta, n, wrong, totals, exact_sum(weights), are_counts(weights))
    return found


def first_rows(shards: Shards, broken: dict[str, str] | None = None) -> Predictions:
    """Return the first rows of all, as many as a first guess takes; see `fit_temperature_to`."""
    wanted = max(1, min(FIRST_ROWS, FIRST_NUMBERS // (shards.n_classes or 1)))
    held: list[Predictions] = []
    for shard in shards:
        some = Task(shard, np.arange(min(shard.rows, wanted)))
        try:
            held.append(chosen_rows(some))
        except PredictionsError as error:
            if broken is None:
                raise
            broken[shard.where] = str(error)
            continue
        wanted -= len(some.about)
        if wanted == 0:
            break
    if not held:
        raise InputError(f"{shards.source}: no file could be read")
    rows = Predictions.concatenate([part.only_logits() for part in held])
    if rows.weights is not None and not rows.weights.any():
        return replace(rows, weights=None)  # it is no more than a guess
    return rows.counted


def fit_temperature_to(work: ShardWork) -> tuple[TemperatureFit, float]:
    """Return the temperature of greatest likelihood of all rows of all shards, and their number.

    The number is what rows weigh where weights count them. As `fit_temperature` where no finite
    temperature is best. `iterations` counts the passes over all rows.

    Raises:
        PredictionsError: a row that can't be used.
    """
    shards = work.shards
    passes = 0

    def sums_at(beta: float) -> CurveSums:
        nonlocal passes
        passes += 1
        function = partial(sum_curves, beta=beta, checked=passes > 1)
        return work.gathered(function, CurveSums.__add__)

    beta = fit_temperature(first_rows(shards, work.broken).summary).beta
    sums = sums_at(beta)
    if sums.weight == 0:
        raise InputError(f"{shards.source}: 'weight' must be above 0 for at least one row")
    scale = sums.mean_gap
    if scale == 0.0:
        warning = NotIdentifiedWarning("the logits are constant, so any temperature fits; took T=1")
        return TemperatureFit(1.0, sums.log_classes, 0, warning), sums.every
    lowest, highest = (bound / scale for bound in FIRST_SEARCH)
    if sums.label_gap >= scale:
        warning = NotIdentifiedWarning(
            "the logits don't predict the labels better than chance; the temperature stopped "
            f"at its upper bound T={1 / lowest:.3g}"
        )
        return TemperatureFit(lowest, sums_at(lowest).loss(0.0), passes, warning), sums.every
    if sums.wrong == 0:
        wanted = 0.5 / (sums.every + 1)

        def excess(log_beta: float) -> tuple[float, float]:
            # c = exp(-f), so the mean of 1 - c falls by about its own slope.
            at, near = (sums_at(math.exp(log_beta + h)).mean(3) for h in (0.0, 1e-4))
            return wanted - at, (at - near) / 1e-4

        log_beta, _ = find_root(excess, math.log(lowest), math.log(highest), math.log(beta))
        beta = math.exp(log_beta)
        warning = BoundaryWarning(
            f"all {sums.n} calibration rows are classified correctly, so nothing limits the "
            f"confidence; stopped at T={1 / beta:.3g}, where half an error in {sums.n + 1} "
            "rows is expected"
        )
        return TemperatureFit(beta, sums_at(beta).loss(0.0), passes, warning), sums.every
    t, _ = _minimum(sums)
    while sums.last_term(t) > SMALLEST_TERM and passes < min(MOST_PASSES, MAX_STEPS):
        sums = sums_at(sums.beta * (1 + t))
        t, _ = _minimum(sums)
    found = TemperatureFit(sums.beta * (1 + t), sums.loss(t), passes, None)
    if 2 * sums.every * (sums.log_classes - found.nll) < SIGNIFICANT_GAIN:
        warning = NotIdentifiedWarning(
            f"with {sums.n} rows the logits can't be distinguished from chance; "
            f"T={found.temperature:.3g} is mostly noise"
        )
        return found._replace(warning=warning), sums.every
    return found, sums.every


def _minimum(sums: CurveSums) -> tuple[float, int]:
    """Return the best relative step from the guess, no longer than the series are of use."""
    t, steps = find_root(sums.slope, -LONGEST_STEP, LONGEST_STEP, 0.0)
    if abs(t) < LONGEST_STEP:
        value, derivative = sums.slope(t)  # one step more costs nothing here
        t -= value / derivative
    return t, steps
