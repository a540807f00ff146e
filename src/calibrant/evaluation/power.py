"""How many rows one needs: the sample size at which a given ECE would stand out from noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from calibrant.core.arrays import Array, FloatArray
from calibrant.core.checks import check_confidence
from calibrant.core.errors import InputError
from calibrant.core.result import FewNumbers, Table
from calibrant.core.weights import mean as mean_of
from calibrant.evaluation.sample import Sample
from calibrant.evaluation.sample_sources import sample_of
from calibrant.metrics.binned import DEFAULT_BINS, bin_edges, bin_index
from calibrant.predictions.predictions import Predictions
from calibrant.scale.shards import Shards

# Data sets that are simulated for each number of rows: power is known to half a point.
SIMULATIONS = 10_000
FEWEST_ROWS, MOST_ROWS = 25, 1 << 20
# Numbers of rows that are tried lie this factor apart.
STEP = 1.2
# Halvings of the range in which the smallest visible error lies.
HALVINGS = 14


@dataclass(frozen=True, repr=False)
class SampleSize(FewNumbers):
    """The answer of `rows_needed`.

    Attributes:
        rows: about how many rows are needed, or None if more than about a million.
        ece: the calibration error that is to be seen.
        power: the chance of seeing it with that many rows.
        significance: the chance of a false alarm on perfectly calibrated confidences.

    Examples:
        >>> import calibrant as cb
        >>> import numpy as np
        >>> answer = cb.rows_needed(np.full(100, 0.9), ece=0.05)
        >>> 300 < answer.rows < 500, answer.power, answer.significance
        (True, 0.8, 0.05)
    """

    rows: int | None
    ece: float
    power: float
    significance: float

    def headline(self) -> str:
        """Return the answer as a sentence."""
        many = f"more than {MOST_ROWS}" if self.rows is None else f"about {self.rows}"
        return (
            f"You need {many} rows like these to tell an ECE of {100 * self.ece:.3g} % from noise "
            f"in {100 * self.power:.0f} % of cases."
        )

    def as_table(self) -> Table:
        """Return the answer beside what was asked."""
        many = f"> {MOST_ROWS}" if self.rows is None else f"{self.rows}"
        asked = f"{100 * self.ece:.3g}", f"{100 * self.power:.0f}", f"{100 * self.significance:.3g}"
        return Table(["rows", "ECE %", "seen in %", "false alarms %"], [[many, *asked]])

    def __str__(self) -> str:
        return self.headline()


# Parameters: what is to be seen, how surely, and of which rows.
def rows_needed(
    rows: Predictions | Shards | Sample | Array,
    ece: float,
    *,
    power: float = 0.8,
    significance: float = 0.05,
    seed: int = 0,
    weights: FloatArray | None = None,
    design_effect: float | None = None,
) -> SampleSize:
    """Return how many rows it takes to distinguish an error of `ece` from perfect calibration.

    The model is assumed to be overconfident by the same amount everywhere, as far as probabilities
    allow: P(right | c) = max(c - shift, 0), with `shift` such that the mean gap is `ece`. Its
    confidences are drawn from the given ones. For a number of rows, the ECE of 10 000 calibrated
    data sets gives the threshold of the test and that of 10 000 miscalibrated ones its power. This
    is done for numbers of rows a factor of 1.2 apart. A rising curve through their powers gives the
    number of rows that reaches the wanted power, to about 2 % whatever the seed.

    The answer holds for confidences like the given ones. An overconfident model has many
    confidences near 1, where noise is small, so it needs fewer rows. To plan the check of a
    recalibrated model, pass the recalibrated confidences.

    Args:
        rows: (N,) confidences typical of the model; or such predictions, files or a sample of them.
        ece: calibration error to see, a fraction above 0 and below the mean confidence.
        power: chance to see it.
        significance: chance of a false alarm.
        seed: for the simulation.
        weights: (N,) how much each of the confidences counts.
        design_effect: how many rows with weights, or in clusters, are worth one independent row;
            the answer for independent rows is multiplied by it. None takes it from the predictions
            (n / effective_rows), or 1 for bare confidences.

    Raises:
        InputError: an argument out of range.

    Examples:
        >>> import calibrant as cb
        >>> import numpy as np
        >>> coarse, fine = (cb.rows_needed(np.full(100, 0.9), ece=ece).rows for ece in (0.05, 0.01))
        >>> fine > 20 * coarse  # a fifth of the error takes far more than five times the rows
        True
    """
    confidence: Array
    if isinstance(rows, Predictions | Shards | Sample):
        if weights is not None:
            raise InputError("predictions have their own weights; leave out weights")
        sample = sample_of(rows, metrics=["ece"])
        sample.refuse_ranks("rows_needed")
        confidence, weights = sample.rows.confidence, sample.rows.weight
        if design_effect is None:
            design_effect = sample.n / sample.effective_rows
    else:
        confidence = rows
    design_effect = 1.0 if design_effect is None else design_effect
    if not 1 <= design_effect < math.inf:
        raise InputError(f"design_effect must be at least 1, not {design_effect:g}")
    confidence = check_confidence(confidence, "rows_needed")
    mean = mean_of(confidence, weights)
    if not 0 < ece < mean:
        raise InputError(
            f"ece, a fraction, must lie between 0 and the mean confidence {mean:.3g}, not {ece:g}"
        )
    for name, value in (("power", power), ("significance", significance)):
        if not 0 < value < 1:
            raise InputError(f"{name} must lie between 0 and 1, not {value}")
    honest, dishonest = (
        _BinLaw.of(confidence, s, weights) for s in (0.0, _shift_for_gap(confidence, ece, weights))
    )

    def seen(number: int) -> float:
        threshold = _threshold(honest, number, significance, seed)
        return float(np.mean(dishonest.simulated_ece(number, seed) > threshold))

    high = FEWEST_ROWS
    while seen(high) < power:
        high *= 2
        if high > MOST_ROWS:
            return SampleSize(None, ece, power, significance)
    low = max(FEWEST_ROWS, high // 4)
    steps = math.ceil(math.log(2 * high / low) / math.log(STEP))
    tried = np.unique(np.geomspace(low, 2 * high, steps + 1).round()).astype(np.int64)
    from scipy.optimize import isotonic_regression

    rising = np.asarray(isotonic_regression([seen(n) for n in tried.tolist()]).x)
    above = int(np.argmax(rising >= power))
    if above == 0:
        return SampleSize(math.ceil(int(tried[0]) * design_effect), ece, power, significance)
    pair = slice(above - 1, above + 1)
    needed = math.exp(np.interp(power, rising[pair], np.log(tried[pair])))
    return SampleSize(round(needed * design_effect), ece, power, significance)


def smallest_visible_error(
    confidence: FloatArray,
    rows: int,
    *,
    power: float = 0.8,
    significance: float = 0.05,
    seed: int = 0,
    weights: FloatArray | None = None,
) -> float | None:
    """Return the smallest ECE that so many rows would tell from a calibrated model's.

    The other way round from `rows_needed`, under the same assumptions.

    Args:
        confidence: (N,) confidences typical of the model.
        rows: number of independent rows.
        power: chance to see it. significance: chance of a false alarm. seed: of the simulation.
        weights: (N,) how much each of the confidences counts.

    Returns:
        None if not even a model that is never right would be told.
    """
    threshold = _threshold(_BinLaw.of(confidence, 0.0, weights), rows, significance, seed)

    def seen(ece: float) -> bool:
        law = _BinLaw.of(confidence, _shift_for_gap(confidence, ece, weights), weights)
        return float(np.mean(law.simulated_ece(rows, seed) > threshold)) >= power

    low, high = 0.0, mean_of(confidence, weights)
    if not seen(high):
        return None
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if seen(middle) else (middle, high)
    return high


def _threshold(honest: _BinLaw, rows: int, significance: float, seed: int) -> float:
    drawn = honest.simulated_ece(rows, seed, first=True)
    return float(np.quantile(drawn, 1 - significance))


@dataclass(frozen=True)
class _BinLaw:
    """What happens in each of the B bins of an ECE: enough to simulate it without the rows.

    Attributes:
        share: (B,) chance that a row falls into the bin.
        accuracy: (B,) chance that it is right there.
        mean: (2, B) mean confidence of its wrong and of its right rows.
        variance: (2, B) variance of the same.
    """

    share: FloatArray
    accuracy: FloatArray
    mean: FloatArray
    variance: FloatArray

    @classmethod
    def of(cls, confidence: FloatArray, shift: float, weights: FloatArray | None = None) -> _BinLaw:
        """Return the law of rows that are right with probability max(c - shift, 0)."""
        index = bin_index(confidence, bin_edges(DEFAULT_BINS))
        right = np.clip(confidence - shift, 0.0, 1.0)
        weight = np.stack([1 - right, right])
        if weights is not None:
            weight *= weights

        def sums(values: FloatArray) -> FloatArray:
            return np.stack([np.bincount(index, v, DEFAULT_BINS) for v in values], dtype=np.float64)

        mass = sums(weight)
        known = np.maximum(mass, np.finfo(np.float64).tiny)
        mean = sums(weight * confidence) / known
        variance = np.maximum(sums(weight * confidence**2) / known - mean**2, 0.0)
        total = mass.sum(axis=0)
        accuracy = mass[1] / np.maximum(total, np.finfo(np.float64).tiny)
        return cls(total / total.sum(), np.clip(accuracy, 0.0, 1.0), mean, variance)

    def simulated_ece(self, rows: int, seed: int, *, first: bool = False) -> FloatArray:
        """Return the (R,) ECEs of simulated data sets; `first` draws others from the same seed.

        Rows fall into bins and are right or wrong as they would; the sum of their confidences is
        taken as normal, whose scatter within a bin is small beside that of the outcomes.
        """
        rng = np.random.default_rng([seed, int(first)])
        count = rng.multinomial(rows, self.share, size=SIMULATIONS)
        right = rng.binomial(count, self.accuracy)
        normal = rng.standard_normal(count.shape)
        wrong = count - right
        total = wrong * self.mean[0] + right * self.mean[1]
        total += normal * np.sqrt(wrong * self.variance[0] + right * self.variance[1])
        return np.abs(total - right).sum(axis=1) / rows


def _shift_for_gap(confidence: FloatArray, gap: float, weights: FloatArray | None = None) -> float:
    """Return the shift s at which the mean of min(c, s), the gap that it makes, is `gap`."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        more = mean_of(np.minimum(confidence, middle), weights) > gap
        low, high = (low, middle) if more else (middle, high)
    return high
