"""Predictions whose truth is known, to test calibrators and metrics on.

Real data have labels, never probabilities, so a measured calibration error is always an estimate.
Here labels are drawn from probabilities that are kept: each row's calibrated distribution over the
classes, the temperature that undoes what was done to it, and with them the calibration error that
infinitely many labels would show.

The same arguments give the same rows.

Examples:
    >>> import calibrant as cb
    >>> fit, test = (cb.synthetic.tempered(10_000, 10, seed=seed) for seed in (1, 2))
    >>> scaling = cb.TemperatureScaling().fit_predictions(fit.predictions)
    >>> calibrated = scaling.predict_proba(test.predictions.logits)
    >>> [f"{test.true_calibration_error(said):.2f}" for said in (None, calibrated)]
    ['0.13', '0.00']
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrant.core.arrays import FloatArray, IntArray, pick, to_numpy
from calibrant.core.errors import InputError
from calibrant.metrics.binned import equal_mass_cuts
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import softmax

# The seed of what belongs to the classes, so that a set to fit on and one to test on share it.
SEED_OF_CLASSES = 0
NOISE = 1.2
CONFUSIONS, CONFUSION_STRENGTH = 8, 0.35
# Of the mean margin of a class over that of K equal logits, before noise.
MARGIN = 2.5
# Bins of equal mass for the error of confidences whose errors have both signs.
BINS_OF_TRUTH = 100

CalibrationCurve = Callable[[FloatArray], FloatArray]


@dataclass(frozen=True, eq=False)
class KnownTruth:
    """N rows as a classifier would report them, and what is true of them.

    Attributes:
        predictions: what the classifier says, with labels drawn from the truth.
        correct_probability: (N,) the probability that the reported predicted label is right.
        temperatures: (N,) what the reported logits must be divided by to be calibrated; None for
            the top-label form.
        curve: P(correct | c) as a function of the reported confidence c, where it is one.

    Examples:
        >>> import calibrant as cb
        >>> truth = cb.synthetic.tempered(1_000, 3, temperature=2.0)
        >>> truth.temperature, round(truth.true_calibration_error(), 2)
        (2.0, 0.07)
        >>> truth.true_calibration_error(truth.honest)
        0.0
    """

    predictions: Predictions
    correct_probability: FloatArray
    temperatures: FloatArray | None = None
    curve: CalibrationCurve | None = None

    @property
    def temperature(self) -> float:
        """The one temperature that makes all rows calibrated, or NaN if it takes more than one."""
        if self.temperatures is None or np.ptp(self.temperatures) > 0:
            return float("nan")
        return float(self.temperatures[0])

    @property
    def honest(self) -> FloatArray:
        """(N, K) the distributions that the labels were drawn from.

        Raises:
            InputError: the top-label form, which has no other classes.
        """
        if self.temperatures is None:
            raise InputError("the top-label form has no class but the predicted one")
        return softmax(self.predictions.scores, 1 / self.temperatures)

    def oracle_nll(self) -> float:
        """Return the mean of -log P(label | row) in nats on these labels.

        In expectation no predictions of the same rows score lower. For the top-label form it is the
        log loss of correctness.
        """
        if self.temperatures is None:
            right = self.predictions.predicted == self.predictions.labels
            chosen = np.where(right, self.correct_probability, 1 - self.correct_probability)
        else:
            chosen = pick(self.honest, self.predictions.labels)
        return float(-np.log(chosen).mean())

    def row_calibration_error(self, calibrated: Any = None) -> float:
        """Return the mean over rows of |c - P(correct | row)|, never below the other error.

        Args:
            calibrated: see `true_calibration_error`.

        Raises:
            InputError: see `true_calibration_error`.
        """
        confidence, right = self._pairs(calibrated)
        return float(np.abs(confidence - right).mean())

    def true_calibration_error(self, calibrated: Any = None) -> float:
        """Return E|c - P(correct | c)|, the ECE without bins and without noise of labels.

        P(correct | c) averages the known probabilities of rows that share c. Nothing has to be
        averaged where c is off to the same side in every row, or where P(correct | c) is known as a
        curve: then this is an exact mean over rows. Otherwise, rows are pooled in 100 bins of equal
        mass that never part equal c. With s the standard deviation of P(correct | row) among the n
        rows of a bin, that adds up to 0.8 s / sqrt(n) where the truth is 0.

        Args:
            calibrated: (N, K) probabilities for the same rows, or (N,) confidences in the same
                predicted labels; None for those reported.

        Raises:
            InputError: `calibrated` has another shape, or (N, K) was given for the top-label form.
        """
        confidence, right = self._pairs(calibrated)
        error = confidence - right
        known = self.curve is not None and calibrated is None
        if known or (error >= 0).all() or (error <= 0).all():
            return float(np.abs(error).mean())
        order = np.argsort(confidence, kind="stable")
        confidence, error = confidence[order], error[order]
        cuts = equal_mass_cuts(len(error), min(BINS_OF_TRUTH, len(error)))[1:-1]
        cuts = np.searchsorted(confidence, confidence[cuts])  # to the start of equal confidences
        starts = np.unique(np.concatenate([[0], cuts]))
        return float(np.abs(np.add.reduceat(error, starts)).sum() / len(error))

    def _pairs(self, calibrated: Any) -> tuple[FloatArray, FloatArray]:
        """Return (N,) confidences and the probability that each of them speaks of."""
        said = self.predictions
        if calibrated is None:
            calibrated = said.scores if said.kind == "toplabel" else said.probs
        values = to_numpy(calibrated).astype(np.float64)
        if values.shape == (said.n,):
            return values, self.correct_probability
        if values.shape != (said.n, said.n_classes):
            raise InputError(
                f"'calibrated' must have shape ({said.n}, {said.n_classes}) or ({said.n},), not "
                f"{values.shape}"
            )
        label = values.argmax(axis=1)
        return values.max(axis=1), pick(self.honest, label)


def tempered(n: int, n_classes: int, temperature: float = 2.0, seed: int = 0) -> KnownTruth:
    """Return rows of calibrated logits times one temperature, which is the truth.

    Above 1 all rows are overconfident, below 1 all are underconfident. Margins depend on the
    class, and eight directions in which classes resemble each other run through all rows.

    Args:
        n: N. n_classes: K. temperature: T > 0 of the reported logits z = T z*.
        seed: for the rows.

    Raises:
        InputError: no rows, fewer than two classes, or a temperature that isn't positive.

    Examples:
        >>> import calibrant as cb
        >>> for temperature in (1.0, 2.0):
        ...     truth = cb.synthetic.tempered(10_000, 10, temperature)
        ...     print(f"{truth.true_calibration_error():.2f}")
        0.00
        0.13
    """
    _check(n, n_classes, temperature=temperature)
    honest, labels = _honest_logits(n, n_classes, seed)
    return _reported(honest, labels, np.full(n, float(temperature)))


def margin_tempered(
    n: int, n_classes: int, near: float = 4.0, far: float = 1.0, seed: int = 0
) -> KnownTruth:
    """Return rows that are the more overconfident, the closer their two best classes are.

    The temperature falls from `near` at margin 0 to `far` at large ones, T = far + (near - far)
    exp(-m / 2) with m the margin of the calibrated logits. The reported margin T m rises with m, so
    a method that gives each margin its own temperature can put everything right, and one
    temperature can't.

    Args:
        n: N. n_classes: K. near, far: see above, 1 <= far <= near <= 8 far. seed: of the rows.

    Raises:
        InputError: no rows, fewer than two classes, or temperatures out of these limits.

    Examples:
        >>> import calibrant as cb
        >>> truth = cb.synthetic.margin_tempered(10_000, 10, near=4.0, far=1.0)
        >>> print(f"{truth.temperatures.min():.1f} to {truth.temperatures.max():.1f}")
        1.0 to 4.0
        >>> truth.temperature  # there is no single one
        nan
    """
    _check(n, n_classes, near=near, far=far)
    if not 1 <= far <= near <= 8 * far:  # beyond, the reported margin would fall somewhere
        raise InputError(f"1 <= far <= near <= 8 far must hold, but far={far} and near={near}")
    honest, labels = _honest_logits(n, n_classes, seed)
    second, first = np.partition(honest, -2, axis=1)[:, -2:].T
    temperatures = far + (near - far) * np.exp((second - first) / 2)
    return _reported(honest, labels, temperatures)


def top_label(
    n: int,
    curve: CalibrationCurve = np.square,
    n_classes: int = 10,
    low: float = 0.3,
    high: float = 1.0,
    seed: int = 0,
) -> KnownTruth:
    """Return top-label predictions whose accuracy is a chosen curve of the confidence.

    Args:
        n: N.
        curve: P(correct | c), from (N,) confidences to (N,) probabilities.
        n_classes: K; predicted labels, and the true ones of wrong rows, are equally likely.
        low, high: ends of the interval that confidences are uniform in.
        seed: for the rows.

    Raises:
        InputError: no rows, fewer than two classes, confidences outside [0, 1], or a curve that
            leaves [0, 1].

    Examples:
        >>> import calibrant as cb
        >>> truth = cb.synthetic.top_label(10_000, curve=lambda c: c / 2)  # right half as often
        >>> half = truth.predictions.scores.mean() / 2
        >>> abs(truth.true_calibration_error() - half) < 1e-9
        np.True_
    """
    _check(n, n_classes)
    if not 0 <= low <= high <= 1:
        raise InputError(f"0 <= low <= high <= 1 must hold, but low={low} and high={high}")
    rng = np.random.default_rng(seed)
    confidence = rng.uniform(low, high, n)
    right = np.asarray(curve(confidence), dtype=np.float64)
    if right.shape != (n,) or not ((right >= 0) & (right <= 1)).all():
        raise InputError("'curve' must return a probability in [0, 1] for each confidence")
    predicted = rng.integers(n_classes, size=n)
    other = (predicted + rng.integers(1, n_classes, size=n)) % n_classes
    labels = np.where(rng.random(n) < right, predicted, other)
    said = Predictions.from_confidence(confidence, predicted, labels, source="synthetic")
    return KnownTruth(said, right, curve=curve)


def _check(n: int, n_classes: int, **temperatures: float) -> None:
    if n < 1 or n_classes < 2:
        raise InputError(f"at least 1 row and 2 classes are needed, not {n} and {n_classes}")
    for name, value in temperatures.items():
        if not 0 < value < np.inf:
            raise InputError(f"{name} must be a positive number, not {value}")


def _honest_logits(n: int, n_classes: int, seed: int) -> tuple[FloatArray, IntArray]:
    """Return (N, K) logits z* and labels drawn from softmax(z*) by the Gumbel maximum."""
    of_classes = np.random.default_rng(SEED_OF_CLASSES)
    margin = np.log(n_classes) + MARGIN + of_classes.normal(size=n_classes)
    confusions = CONFUSION_STRENGTH * of_classes.normal(size=(CONFUSIONS, n_classes))
    rng = np.random.default_rng(seed)
    shown = rng.integers(n_classes, size=n)
    logits = NOISE * rng.normal(size=(n, n_classes))
    logits += rng.normal(size=(n, CONFUSIONS)) @ confusions
    logits[np.arange(n), shown] += margin[shown]
    gumbel = -np.log(-np.log(rng.uniform(size=logits.shape)))
    return logits, (logits + gumbel).argmax(axis=1)


def _reported(honest: FloatArray, labels: IntArray, temperatures: FloatArray) -> KnownTruth:
    said = Predictions.from_logits(honest * temperatures[:, None], labels, source="synthetic")
    return KnownTruth(said, softmax(honest).max(axis=1), temperatures)
