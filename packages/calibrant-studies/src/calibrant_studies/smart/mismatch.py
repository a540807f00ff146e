"""Section 3.3 of the SMART paper as an experiment: does likelihood gain where calibration loses?

All rows of a margin slice are sharpened, T to T / s, and NLL and smCE are measured at s and at 1.
On populations of known truth both are exact: the one of Proposition A.2, in whose proof the paper
sees a mismatch, shows none; one of many classes does. On real rows every slice has a bootstrap
interval, and counts as a mismatch only where both intervals exclude zero, on opposite sides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from calibrant.core.arrays import BoolArray, FloatArray
from calibrant.core.errors import InputError
from calibrant.metrics.smooth import max_lipschitz_correlation, smce_of_curves
from calibrant.metrics.top_label import ResidualCurves, TopLabel
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import RowSummary, softmax

SHARPENING = 1.05
POPULATIONS = ("proposition-a2", "many-classes")


class Change(NamedTuple):
    """A change with its 95 % interval; both ends are the value where truth is known."""

    value: float
    low: float
    high: float

    @property
    def sign(self) -> int:
        """-1 or 1 where the interval excludes zero, else 0."""
        return int(self.low > 0) - int(self.high < 0)


@dataclass(frozen=True)
class SliceMove:
    """What sharpening one slice did.

    Attributes:
        rows: share of all rows in the slice.
        margin: smallest and largest margin in it.
        nll: change of the mean NLL over all rows, in nats.
        smce: change of smCE over all rows, a fraction.
    """

    rows: float
    margin: tuple[float, float]
    nll: Change
    smce: Change

    @property
    def mismatch(self) -> bool:
        """Whether NLL fell and smCE rose, or the other way round, beyond noise."""
        return self.nll.sign * self.smce.sign < 0


def population(name: str) -> tuple[FloatArray, FloatArray]:
    """Return (N, K) logits and the (N, K) true probabilities of their labels.

    ``"proposition-a2"``: two classes, nine tenths of the rows said to be right 59 to 61 % of the
    time and right 90 %, one tenth said 79 to 81 % and right 70 %; condition 31 of the proposition
    holds. ``"many-classes"``: ten classes, the rows say 0.50, 0.30 and eight times 0.025, and the
    truth is 0.45, 0.55 and eight times 0.

    Raises:
        InputError: another name.
    """
    if name == "proposition-a2":
        said = np.r_[np.repeat(np.linspace(0.59, 0.61, 21), 9), np.linspace(0.79, 0.81, 21)]
        right = np.where(said < 0.7, 0.9, 0.7)
        logits = np.stack([np.log(said / (1 - said)), np.zeros(len(said))], axis=1)
        return logits, np.stack([right, 1 - right], axis=1)
    if name == "many-classes":
        said = np.r_[0.5, 0.3, np.full(8, 0.025)]
        return np.log(said)[None], np.r_[0.45, 0.55, np.zeros(8)][None]
    raise InputError(f"{name}: there are the populations {', '.join(POPULATIONS)}")


def known_move(name: str, sharpening: float = SHARPENING) -> SliceMove:
    """Return what sharpening all rows of a population of known truth does, exactly."""
    logits, truth = population(name)
    top = logits.argmax(axis=1)
    right = truth[np.arange(len(truth)), top]
    nll, smce = list[float](), list[float]()
    for beta in (1.0, sharpening):
        probs = np.asarray(softmax(logits, beta))
        nll.append(float(-(truth * np.log(probs)).sum(axis=1).mean()))
        confidence = probs[np.arange(len(probs)), top]
        said, group = np.unique(confidence, return_inverse=True)
        gaps = np.bincount(group, right - confidence) / len(confidence)
        smce.append(max_lipschitz_correlation(said, gaps))
    changes = [Change(*[after - before] * 3) for before, after in (nll, smce)]
    ordered = np.sort(logits, axis=1)
    margin = ordered[:, -1] - ordered[:, -2]
    return SliceMove(1.0, (float(margin.min()), float(margin.max())), *changes)


def slices_of(margin: FloatArray, count: int) -> list[BoolArray]:
    """Return masks of quantile slices of the margin, smallest first; ties stay together."""
    inner = np.quantile(margin, np.arange(1, count) / count)
    index = np.searchsorted(inner, margin, side="left")
    return [index == one for one in range(count) if (index == one).any()]


def measured_moves(
    test: Predictions,
    beta: FloatArray,
    *,
    slices: int = 5,
    resamples: int = 200,
    seed: int = 0,
    sharpening: float = SHARPENING,
) -> list[SliceMove]:
    """Return what sharpening each margin slice of real rows does, with bootstrap intervals.

    Args:
        test: logits and labels.
        beta: (N,) inverse temperatures to begin with.
        slices: quantile slices of the margin.
        resamples: of the rows, the same for every slice, before and after.
        seed: of the resamples.
        sharpening: s, what the temperatures of a slice are divided by.
    """
    rows = test.summary
    rng = np.random.default_rng(seed)
    weights = rng.multinomial(rows.n, np.full(rows.n, 1 / rows.n), size=resamples)
    weights = np.vstack([np.ones(rows.n), weights]).astype(np.float64)
    before = _measures(rows, beta, weights)
    found: list[SliceMove] = []
    for chosen in slices_of(rows.margin, slices):
        after = _measures(rows, np.where(chosen, beta * sharpening, beta), weights)
        nll, smce = after - before
        margin = rows.margin[chosen]
        found.append(
            SliceMove(
                float(chosen.mean()),
                (float(margin.min()), float(margin.max())),
                _with_interval(nll),
                _with_interval(smce),
            )
        )
    return found


def _measures(rows: RowSummary, beta: FloatArray, weights: FloatArray) -> FloatArray:
    """Return (2, R) NLL and smCE under each of (R, N) weights."""
    point = rows.curve.evaluate(beta)
    nll = weights @ (point.value + beta * rows.label_gap) / weights.sum(axis=1)
    confidence = np.exp(-point.value)
    order = np.argsort(confidence, kind="stable")
    top = TopLabel.sort(confidence[order], rows.correct[order])
    return np.stack([nll, smce_of_curves(ResidualCurves.weighted(top, weights[:, order]))])


def _with_interval(changes: FloatArray) -> Change:
    """Return the change on the rows themselves with the percentile interval of the resamples."""
    low, high = np.quantile(changes[1:], [0.025, 0.975])
    return Change(float(changes[0]), float(low), float(high))
