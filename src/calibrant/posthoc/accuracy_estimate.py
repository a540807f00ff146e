"""The accuracy to expect of rows without labels, from their calibrated confidences.

- ``cbpe``, the mean calibrated confidence: right if a row of some confidence is as often right as
  it was before, whichever confidences there are now (Guo et al. 2017 in passing; NannyML's CBPE).
- ``atc``, the share of rows above the confidence t above which, before, were as many rows as were
  right (Garg et al., "Leveraging unlabeled data to predict out-of-distribution performance", ICLR
  2022). It is about ranks: a map that rises with the confidence changes nothing.

Both take for granted that what a confidence means hasn't changed, and nothing in rows without
labels can show it. Where both agree that doesn't prove it.

Intervals are for the accuracy of these very rows: the rows of the fit are resampled and the
calibrator is fitted to them anew, which counts what it is unsure of, and to each estimate is added
the chance of outcomes, given their confidences. Rows of a cluster are right and wrong together: how
much so, rho, is measured on the clusters before,

    rho = sum_{pairs in a cluster} e_i e_j / sum_{pairs in a cluster} s_i s_j,

with errors e = a - c and their spreads s = sqrt(c (1 - c)), and taken for the new clusters as well.

Calibrators as they would be if their rows had been drawn again: what a fit is unsure of.

What is computed from a calibrator depends on the rows of its fit. These are resampled, clusters as
wholes, and the method is fitted to each resample anew; how much the result moves is the
calibrator's own share of its error.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrant.core.arrays import BoolArray, FloatArray, IntArray, to_numpy
from calibrant.core.errors import PredictionsError, heard_warnings
from calibrant.core.progress import Progress, Watcher
from calibrant.core.result import Result, Table
from calibrant.core.text import counted
from calibrant.core.weights import codes_of, mean
from calibrant.evaluation.formatting import interval_of, percent
from calibrant.evaluation.uncertainty import DEFAULT_LEVEL, check_drawing
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.fitted_rows import share_among, were_fitted
from calibrant.posthoc.prior_shift import PriorShift, shifted
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.scoring import said_of_top, score_top

# Resamples by default: each takes as long as a fit.
RESAMPLES = 100


def refitted(
    calibrator: Calibrator, rows: Predictions, resamples: int, seed: int, watch: Watcher | None
) -> Iterator[tuple[Calibrator, IntArray]]:
    """Yield, so many times, a calibrator and the resampled rows that it was fitted to.

    A calibrator that wasn't fitted to these rows is yielded as it is: what it is unsure of can't be
    told from other rows.
    """
    again, units = fitted_to(calibrator, rows), units_of(rows)
    for number in range(resamples):
        if watch is not None:
            watch(Progress(number, resamples, 0, 0, 0.0, f"resample {number + 1}"))
        rng = np.random.default_rng([seed, number])
        index = drawn(rng, units)
        if again:
            with heard_warnings():  # what a resample lacks all rows may have
                fresh = _fitted_again(calibrator, rows.take(index))
            yield fresh, index
        else:
            yield calibrator, index


def _fitted_again(calibrator: Calibrator, rows: Predictions) -> Calibrator:
    """Return the same method, fitted to other rows; with the same shares of classes behind it."""
    if isinstance(calibrator, PriorShift):
        return shifted(_fitted_again(calibrator.base_, rows), calibrator.log_ratio_)
    return type(calibrator)(**calibrator.get_params()).fit_predictions(rows)


def fitted_to(calibrator: Calibrator, rows: Predictions) -> bool:
    """Return whether a calibrator was fitted to these rows, as far as can be told."""
    share = share_among(calibrator.fitted_to_, rows)
    return share is not None and were_fitted(share, rows)


def not_fitted_note(calibrator: Calibrator, rows: Predictions) -> str:
    """Return the caveat on intervals of a calibrator that has not been fitted to these rows."""
    return (
        f"{calibrator.method} was apparently not fitted to {rows.source}, so the intervals "
        "leave out the uncertainty of its fit."
    )


def units_of(rows: Predictions) -> IntArray:
    """Return the (N,) number of what each row is drawn with: its cluster, or itself."""
    if rows.clusters is None:
        return np.arange(rows.n, dtype=np.int64)
    return codes_of(rows.clusters)[0]


def drawn(rng: np.random.Generator, units: IntArray) -> IntArray:
    """Return the rows of a resample of whole units."""
    number = int(units.max()) + 1
    times = np.bincount(rng.integers(number, size=number), minlength=number)[units]
    return np.repeat(np.arange(len(units)), times)


def class_probabilities(calibrator: Calibrator, rows: Predictions) -> FloatArray:
    """Return (N, K) calibrated probabilities of all classes.

    Raises:
        PredictionsError: rows with one number each.
    """
    after = calibrator.apply_predictions(rows)
    if after.top_only:
        raise PredictionsError(
            f"{rows.source}: holds the confidence of the predicted class only, and this needs a "
            "probability for every class"
        )
    return to_numpy(after.probs).astype(np.float64)


def mean_with_covariance(
    values: FloatArray, units: IntArray, weights: FloatArray | None
) -> tuple[FloatArray, FloatArray]:
    """Return the (D,) mean of (N, D) values and its (D, D) covariance over independent units."""
    weight = np.ones(len(values)) if weights is None else weights
    total = float(weight.sum())
    mean = weight @ values / total
    number = int(units.max()) + 1
    moves = weight[:, None] * (values - mean)
    if number < len(values):
        summed = [np.bincount(units, column, number) for column in moves.T]
        moves = np.stack(summed, axis=1)
    return mean, moves.T @ moves / total**2 * (number / max(number - 1, 1))


def chance_of_mean(difference: FloatArray, covariance: FloatArray, units: int) -> float:
    """Return the p-value of "the mean is 0" of (D,) numbers with a covariance (Hotelling 1931)."""
    from scipy.stats import f

    values, vectors = np.linalg.eigh(covariance)
    kept = values > 1e-10 * max(float(values.max(initial=0.0)), 1e-300)
    rank = int(kept.sum())
    if rank == 0 or units - 1 <= rank:
        return 1.0
    along = vectors.T[kept] @ difference
    square = float((along**2 / values[kept]).sum())
    free = units - 1
    return float(f.sf(square * (free - rank + 1) / (rank * free), rank, free - rank + 1))


def chance(p_value: float) -> str:
    """Return a p-value as sentences have it, as in "p = 0.031" or "p < 0.0001"."""
    return f"p = {p_value:.2g}" if p_value >= 1e-4 else "p < 0.0001"


WAYS = ("cbpe", "atc")


@dataclass(frozen=True, eq=False, repr=False)
class ExpectedAccuracy(Result):
    """The expected accuracy of rows without labels; prints as a table.

    Attributes:
        source: the rows, n of them; before_source: the rows with labels, n_before.
        values: the accuracy by each method, ``"cbpe"`` and ``"atc"``, with the ends of its
            interval.
        accuracy_before: of the rows with labels.
        level: coverage of the intervals.
        notes: what a reader should know besides.

    Examples:
        >>> import calibrant as cb
        >>> val, test = cb.load_sample("validation"), cb.load_sample("test")
        >>> scaling = cb.TemperatureScaling().fit_predictions(val)
        >>> found = cb.posthoc.expected_accuracy(scaling, test, val, resamples=20)
        >>> value, low, high = found.values["cbpe"]
        >>> print(low < (test.logits.argmax(1) == test.labels).mean() < high)
        True
    """

    source: str
    before_source: str
    n: int
    n_before: int
    values: dict[str, tuple[float, float, float]]
    accuracy_before: float
    level: float
    notes: tuple[str, ...] = ()

    def headline(self) -> str:
        """Return the estimates of both methods."""
        said = [
            f"{percent(value)} % ({percent(low)} to {percent(high)}) by {way.upper()}"
            for way, (value, low, high) in self.values.items()
        ]
        return (
            f"The expected accuracy on {counted(self.n, 'row')} is {' and '.join(said)}; on the "
            f"rows before it was {percent(self.accuracy_before)} %."
        )

    def promise(self) -> str:
        """Return the assumptions of the estimate."""
        return (
            "This holds if rows of a given confidence are right as often as before. It fails if "
            "the rows have become harder and the confidence doesn't show it, as with damaged ones; "
            "only labels can reveal that."
        )

    def as_table(self) -> Table:
        """Return a line for each way."""
        lines = [[way.upper(), *map(percent, ends)] for way, ends in self.values.items()]
        notes = (
            f"In percent, with the {interval_of(self.level)} of the accuracy of these rows. CBPE: "
            "mean calibrated confidence. ATC: share of rows above a threshold of confidence, set "
            "so that the same share of the rows before equals their accuracy."
        )
        return Table(["way", "accuracy", "low", "high"], lines, notes=notes)

    def records(self) -> list[dict[str, Any]]:
        """Return a row for each way."""
        names = ("accuracy", "low", "high")
        return [
            {"way": way, **dict(zip(names, ends, strict=True))} for way, ends in self.values.items()
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON takes it."""
        plain = ("source", "before_source", "n", "n_before", "accuracy_before", "level")
        return {
            **{name: getattr(self, name) for name in plain},
            "values": self.records(),
            "promise": self.promise(),
            "notes": list(self.notes),
        }

    def below(self) -> tuple[str, ...]:
        """Return the assumptions, and the notes."""
        return self.promise(), *self.notes


# Parameters: the calibrator, both sets of rows, and the draws.
def expected_accuracy(
    calibrator: Calibrator,
    rows: Predictions,
    before: Predictions,
    *,
    resamples: int = RESAMPLES,
    level: float = DEFAULT_LEVEL,
    seed: int = 0,
    watch: Watcher | None = None,
) -> ExpectedAccuracy:
    """Estimate the accuracy of rows without labels, with an interval for these rows' own accuracy.

    If only the shares of the classes have changed, give the calibrator of `estimate_prior`; the
    intervals then leave out the uncertainty of the shares.

    Args:
        calibrator: a fitted calibrator.
        rows: the new rows; their labels aren't used. Clusters are used if both sets have them.
        before: the rows that the calibrator was fitted to, with labels. With other rows the
            intervals leave out the uncertainty of the fit, and a note says so.
        resamples: of the rows before; each takes as long as a fit.
        level: coverage of the intervals.
        seed: for the resamples and for outcomes.
        watch: called with a `Progress` before each resample.

    Raises:
        InputError: an argument is out of range.
        PredictionsError: `before` has no labels, or the calibrator can't take the rows.

    Examples:
        >>> import calibrant as cb
        >>> val, test = cb.load_sample("validation"), cb.load_sample("test")
        >>> scaling = cb.TemperatureScaling().fit_predictions(val)
        >>> hard = test.take(test.margins < 3)
        >>> found = cb.posthoc.expected_accuracy(scaling, hard, val, resamples=20)
        >>> round(found.values["cbpe"][0], 2)
        0.57
    """
    check_drawing(resamples, level, seed)
    _ = before.labels
    rows, before = rows.counted, before.counted
    confidence, correct = _top(calibrator, before)
    said = said_of_top(calibrator.apply_predictions(rows))[0]
    points = _estimates(said, rows.weights, confidence, correct, before.weights)
    drawn: dict[str, list[float]] = {way: [] for way in WAYS}
    rng = np.random.default_rng([seed, 1])
    weight = np.ones(rows.n) if rows.weights is None else rows.weights
    alike = _together(confidence, correct, before)
    for fitted, index in refitted(calibrator, before, resamples, seed, watch):
        own, c, a = said, confidence[index], correct[index]
        if fitted is not calibrator:
            c, a = _top(fitted, before.take(index))
            own = said_of_top(fitted.apply_predictions(rows))[0]
        weights = None if before.weights is None else before.weights[index]
        noise = rng.standard_normal() * _spread(own, weight, rows, alike) / weight.sum()
        for way, value in _estimates(own, rows.weights, c, a, weights).items():
            drawn[way].append(float(np.clip(value + noise, 0.0, 1.0)))
    values: dict[str, tuple[float, float, float]] = {}
    for way, value in points.items():
        low, high = np.quantile(drawn[way], [(1 - level) / 2, (1 + level) / 2])
        values[way] = (value, min(float(low), value), max(float(high), value))
    notes = list[str]()
    if not fitted_to(calibrator, before):
        notes.append(not_fitted_note(calibrator, before))
    if rows.clusters is not None and before.clusters is None:
        notes.append(
            f"Outcomes within a cluster count as independent: {before.source} has no clusters that "
            "would show how alike they are. The intervals may be too narrow."
        )
    return ExpectedAccuracy(
        rows.source,
        before.source,
        rows.n,
        before.n,
        values,
        mean(correct.astype(np.float64), before.weights),
        level,
        tuple(notes),
    )


def _top(calibrator: Calibrator, rows: Predictions) -> tuple[FloatArray, BoolArray]:
    """Return (N,) calibrated confidences, and which rows are right."""
    top = score_top(calibrator.apply_predictions(rows))
    return top.confidence, top.correct


def _together(confidence: FloatArray, correct: BoolArray, rows: Predictions) -> float:
    """Return how much rows of a cluster are right and wrong together: 0 is not at all."""
    if rows.clusters is None:
        return 0.0
    units, weight = units_of(rows), np.ones(rows.n) if rows.weights is None else rows.weights
    spread = weight * np.sqrt(confidence * (1 - confidence))
    pairs = _of_pairs(spread, units)
    found = _of_pairs(weight * (correct - confidence), units)
    return min(max(found / pairs, 0.0), 1.0) if pairs > 0 else 0.0


def _of_pairs(values: FloatArray, units: IntArray) -> float:
    """Return the sum of products over all pairs of rows of a unit."""
    return float((np.bincount(units, values) ** 2).sum() - values @ values)


def _spread(said: FloatArray, weight: FloatArray, rows: Predictions, alike: float) -> float:
    """Return the standard deviation of how many rows are right, given their confidences."""
    each = weight * np.sqrt(said * (1 - said))
    variance = float(each @ each)
    if rows.clusters is not None and alike > 0:
        variance += alike * _of_pairs(each, units_of(rows))
    return float(np.sqrt(variance))


def _estimates(
    said: FloatArray,
    weights: FloatArray | None,
    confidence: FloatArray,
    correct: BoolArray,
    before: FloatArray | None,
) -> dict[str, float]:
    """Return the accuracy of rows by each way.

    Args:
        said: (N,) calibrated confidences of rows without labels; weights: (N,) of these.
        confidence, correct: (M,) of rows with labels; before: (M,) their weights.
    """
    order = np.argsort(confidence, kind="stable")
    weight = np.ones(len(order)) if before is None else before[order]
    below = np.cumsum(weight)
    wrong = float(weight @ ~correct[order])
    # Rows are above t as soon as those below weigh as much as those that are wrong.
    place = int(np.searchsorted(below, wrong * (1 + 1e-12), side="right"))
    threshold = confidence[order][place] if place < len(order) else np.inf
    above = (said >= threshold).astype(np.float64)
    return {"cbpe": mean(said, weights), "atc": mean(above, weights)}
