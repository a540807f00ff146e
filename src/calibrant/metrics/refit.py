"""The NLL split by a temperature: what one more temperature would gain, and what would be left.

The loss at the best inverse temperature beta of the rows themselves is the *refinement* part, the
rest of the NLL the *calibration* part: miscalibration that one number mends. One parameter on N
rows fits little noise, about 1 / (2N) nats.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import (
    Array,
    FloatArray,
    IntArray,
    like,
    namespace,
    row_chunks,
    to_numpy,
    working_dtype,
)
from calibrant.core.result import FewNumbers, Table
from calibrant.core.weights import mean, total
from calibrant.metrics.full_rows import (
    BLOCKS,
    HONEST_DRAWS,
    deal_by_place,
    draw_blocks,
    honest_labels,
)
from calibrant.metrics.metric_types import AddedFields, Measured, Part, RowsMetric
from calibrant.metrics.resampling import Clusters, draw_rows
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import RowSummary, quintic, summarize

# Inverse temperatures from 1/16 to 16, six to the octave; 1 is among them.
OCTAVES, PER_OCTAVE = 4, 6
GRID = 2.0 ** (np.arange(-OCTAVES * PER_OCTAVE, OCTAVES * PER_OCTAVE + 1) / PER_OCTAVE)
AS_GIVEN = OCTAVES * PER_OCTAVE
BISECTIONS = 40
HALVINGS_BETWEEN = 60
BATCH_ROWS = 1 << 20
# Losses of `RefitSums` are rounded to multiples of this, of which sums over 2^28 rows are exact.
LOSS_UNIT = 2.0**-24


@dataclass(frozen=True, repr=False)
class RefinementSplit(FewNumbers):
    """nll = calibration + refinement, in nats.

    Attributes:
        nll: of the probabilities as given.
        calibration: what the best temperature gains, >= 0.
        refinement: the NLL at the best temperature.
        inverse_temperature: that temperature's inverse; 1 is ideal, below 1 is overconfident. This
            is the calibration slope of the whole probability vector.

    Examples:
        >>> import calibrant as cb
        >>> parts = cb.metrics.refinement_split([[0.9, 0.1]] * 4, [0, 0, 0, 1])
        >>> abs(parts.calibration + parts.refinement - parts.nll) < 1e-9
        True
    """

    nll: float
    calibration: float
    refinement: float
    inverse_temperature: float

    def headline(self) -> str:
        """Return what a temperature would gain, and what it can't gain, in a sentence."""
        return (
            f"Of an NLL of {self.nll:.4f}, {self.calibration:.4f} is calibration, which the "
            f"temperature {1 / self.inverse_temperature:.3f} would gain, and {self.refinement:.4f} "
            "refinement."
        )

    def as_table(self) -> Table:
        """Return the parts, in nats."""
        parts = self.nll, self.calibration, self.refinement, 1 / self.inverse_temperature
        return Table(
            ["NLL", "calibration", "refinement", "temperature"], [[f"{v:.4f}" for v in parts]]
        )


def refinement_split(probs: Array, labels: Array) -> RefinementSplit:
    """Split the NLL by refitting a temperature on the same rows.

    The temperature is kept within [1/16, 16]. For logits pass ``predictions`` made from them to
    `refinement_split_of`, which loses no digits to softmax.

    Args:
        probs: (N, K) probabilities.
        labels: (N,) true classes.

    Raises:
        PredictionsError: unusable arrays.

    References:
        Berta, Holzmueller, Jordan, Bach: Rethinking early stopping: refine, then calibrate. 2025.

    Examples:
        >>> import calibrant as cb
        >>> parts = cb.metrics.refinement_split([[0.9, 0.1]] * 4, [0, 0, 0, 1])
        >>> round(parts.inverse_temperature, 3)  # log odds are log 9 and should be log 3
        0.5
        >>> round(parts.refinement, 3)  # what 3 to 1 costs: 2 log 2 - .75 log 3
        0.562
    """
    return refinement_split_of(Predictions.from_probs(probs, labels))


def refinement_split_of(predictions: Predictions) -> RefinementSplit:
    """Return `refinement_split` of predictions of either kind that has full rows."""
    return _split(summarize(predictions.logits, predictions.labels, weights=predictions.weights))


def _split(summary: RowSummary) -> RefinementSplit:
    low, high = np.log(GRID[0]), np.log(GRID[-1])

    def slope(log_beta: float) -> float:
        slopes = summary.curve.evaluate(np.exp(log_beta)).slope + summary.label_gap
        return mean(slopes, summary.weights)

    # The loss is convex in beta, so its slope has one root or an end is best.
    if slope(low) >= 0:
        high = low
    elif slope(high) <= 0:
        low = high
    for _ in range(BISECTIONS if low < high else 0):
        middle = (low + high) / 2
        low, high = (low, middle) if slope(middle) > 0 else (middle, high)
    beta = float(np.exp((low + high) / 2))
    given, best = (mean(summary.losses(b), summary.weights) for b in (1.0, beta))
    best = min(best, given)
    return RefinementSplit(given, given - best, best, beta)


class MeasuredSplit:
    """Both parts of the NLL with what their uncertainty needs, each once asked for.

    Args:
        predictions: N rows of either kind that has full rows.
        resamples: how many bootstrap replicates.
        seed: for them, and for the calibrated labels.
    """

    def __init__(self, predictions: Predictions, resamples: int, seed: int) -> None:
        self._predictions, self._resamples, self._seed = predictions, resamples, seed
        self._summary = summarize(
            predictions.logits, predictions.labels, weights=predictions.weights
        )
        self._split = _split(self._summary)
        self._losses, self._partition = _resampled_losses(
            self._summary, resamples, seed, Clusters.of(predictions.clusters)
        )

    @cached_property
    def calibration(self) -> Measured:
        """The calibration part with bootstrap replicates and values on calibrated labels."""
        draws = min(self._resamples, HONEST_DRAWS)
        gaps = _honest_gaps(self._predictions, self._summary, draws, self._seed)
        honest = self._partition + gaps[:, None] * GRID
        calibration, drawn = (
            loss[:, AS_GIVEN] - lowest_of(loss) for loss in (self._losses, honest)
        )
        return Measured(self._split.calibration, calibration, drawn, biased=True)

    @cached_property
    def refinement(self) -> Measured:
        """The refinement part with bootstrap replicates."""
        return Measured(self._split.refinement, lowest_of(self._losses), None, biased=False)


measure_calibration: Part[Measured] = Part(MeasuredSplit, "calibration")
measure_refinement: Part[Measured] = Part(MeasuredSplit, "refinement")


def _resampled_losses(
    summary: RowSummary, resamples: int, seed: int, clusters: Clusters | None
) -> tuple[FloatArray, FloatArray]:
    """Return (R, G) mean losses of resamples over the grid, and (G,) means of f over all rows."""
    f = np.stack([summary.curve.evaluate(float(beta)).value for beta in GRID], axis=1)
    per_row = f + summary.label_gap[:, None] * GRID
    rng = np.random.default_rng([seed, 3])
    losses, n = np.empty((resamples, len(GRID))), summary.n
    step = max(1, BATCH_ROWS // n)
    for start in range(0, resamples, step):
        size = min(step, resamples - start)
        counts = draw_rows(rng, n, size, clusters)
        weighed = counts if summary.weights is None else counts * summary.weights
        losses[start : start + size] = weighed @ per_row / weighed.sum(axis=1, keepdims=True)
    return losses, np.average(f, axis=0, weights=summary.weights)


def _honest_gaps(
    predictions: Predictions, summary: RowSummary, draws: int, seed: int
) -> FloatArray:
    """Return (D,) mean gaps of the largest to the true logit, with labels drawn honestly."""
    labels = honest_labels(predictions, draws, seed)
    logits = predictions.logits
    xp, dtype = namespace(logits), working_dtype(logits)
    found = np.zeros(draws)
    for part in row_chunks(logits):
        chunk = xp.astype(logits[part], dtype)
        drawn = xp.take_along_axis(chunk, like(labels[:, part].T, logits), axis=1)
        gaps = summary.top[part, None] - to_numpy(drawn)
        if summary.weights is not None:
            gaps = gaps * summary.weights[part, None]
        found += gaps.sum(axis=0)
    return found / total(predictions.n, summary.weights)


def lowest_of(losses: FloatArray) -> FloatArray:
    """Return (R,) minima of (R, G) losses, by a parabola through the three lowest nodes."""
    at = np.clip(losses.argmin(axis=1), 1, len(GRID) - 2)
    rows = np.arange(len(losses))
    before, middle, after = (losses[rows, at + i] for i in (-1, 0, 1))
    bend = before - 2 * middle + after
    tilt = (after - before) / 2
    # Near enough to be interpolated: else the end of the grid is lowest.
    inside = (bend > 0) & (np.abs(tilt) <= bend)
    drop = np.divide(tilt**2, 2 * bend, out=np.zeros(len(at)), where=inside)
    return np.minimum(middle - drop, losses.min(axis=1))


@dataclass(frozen=True, eq=False)
class RefitSums(AddedFields):
    """What many files leave behind for both parts of the NLL: whole numbers that add up.

    Attributes:
        size: (M,) rows of each block.
        loss: (M, G) for each block: sum of the loss at inverse temperatures `GRID`.
        curve: (3, G) sums over all rows of the loss and two derivatives by the logarithm of the
            inverse temperature.
        honest: (3,) sums over all rows of the mean gap of an honest label, of its variance, and of
            the gap of the true label.
    """

    size: IntArray
    loss: NDArray[np.int64]
    curve: NDArray[np.int64]
    honest: NDArray[np.int64]

    @classmethod
    def of(cls, predictions: Predictions, place: int, seed: int) -> Self:
        """Sum rows, of which the first stands at `place` among all of them."""
        block = deal_by_place(place, predictions.n, seed)
        rows = summarize(predictions.logits, predictions.labels)
        loss, curve = np.zeros((BLOCKS, len(GRID))), np.zeros((3, len(GRID)), dtype=np.int64)
        honest = np.zeros(3, dtype=np.int64)
        for i, beta in enumerate(GRID.tolist()):
            point = rows.curve.evaluate(beta)
            value, slope = point.value + beta * rows.label_gap, point.slope + rows.label_gap
            first = beta * slope
            second = beta * beta * point.curvature + first
            whole = [np.rint(each / LOSS_UNIT).astype(np.int64) for each in (value, first, second)]
            loss[:, i] = np.bincount(block, whole[0].astype(np.float64), BLOCKS)
            curve[:, i] = [int(each.sum()) for each in whole]
            if i == AS_GIVEN:
                parts = (-point.slope, point.curvature, rows.label_gap)
                honest[:] = [int(np.rint(each / LOSS_UNIT).sum()) for each in parts]
        return cls(np.bincount(block, minlength=BLOCKS), loss.astype(np.int64), curve, honest)

    def measured(self, name: str, resamples: int, seed: int) -> Measured:
        """Return one of both parts with block-bootstrap replicates."""
        n = int(self.size.sum())
        curve = self.curve * LOSS_UNIT / n
        given, best = float(curve[0, AS_GIVEN]), _lowest_between(curve)
        counts, used = draw_blocks(self.size, resamples, seed)
        losses = counts @ (self.loss[used] * LOSS_UNIT) / (counts @ self.size[used])[:, None]
        if name == "nll_refinement":
            return Measured(min(best, given), lowest_of(losses), None, False)
        # Calibrated labels change only the mean gap of their logit, a mean over very many rows.
        mean, variance, gap = (self.honest * LOSS_UNIT / n).tolist()
        rng = np.random.default_rng([seed, 15])
        drawn = mean + np.sqrt(variance / n) * rng.normal(size=min(resamples, HONEST_DRAWS))
        honest = curve[0] + (drawn - gap)[:, None] * GRID
        parts = [loss[:, AS_GIVEN] - lowest_of(loss) for loss in (losses, honest)]
        return Measured(max(given - best, 0.0), parts[0], parts[1], True)


def _lowest_between(curve: FloatArray) -> float:
    """Return the least of the loss between the inverse temperatures of `GRID`, or at their ends."""
    at = int(np.argmin(curve[0]))
    step = float(np.log(GRID[1] / GRID[0]))
    low = at if curve[1, at] < 0 else at - 1
    if not 0 <= low < len(GRID) - 1:
        return float(curve[0, at])
    scale = np.array([1.0, step, step * step])
    ends = (curve[:, low : low + 2].T * scale)[None]
    left, right = 0.0, 1.0
    for _ in range(HALVINGS_BETWEEN):
        middle = (left + right) / 2
        slope = float(quintic(ends, np.array([middle]))[1][0])
        left, right = (left, middle) if slope > 0 else (middle, right)
    return float(quintic(ends, np.array([(left + right) / 2]))[0][0])


NLL_CALIBRATION = RowsMetric(
    name="nll_calibration",
    title="NLL, calibration",
    definition="how much the best temperature of these rows lowers the NLL, in nats",
    function=refinement_split,
    effort="a fit of one temperature",
    fails="it sees only what one temperature corrects",
    percent=False,
    needs_classes=True,
    measure=measure_calibration,
    sums=RefitSums,
)
NLL_REFINEMENT = RowsMetric(
    name="nll_refinement",
    title="NLL, refinement",
    definition="NLL at the best temperature of these rows, in nats",
    function=refinement_split,
    effort="a fit of one temperature",
    fails="it measures sharpness, not calibration",
    percent=False,
    needs_classes=True,
    measure=measure_refinement,
    sums=RefitSums,
)
