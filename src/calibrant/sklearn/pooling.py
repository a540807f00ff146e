"""The mean of what several classifiers say, made as sure as it deserves.

Each classifier says what is true of a row plus an error of its own, and the calibrator has learnt
to trust it only so far. A mean of m classifiers has less of these errors and deserves more trust,
so a plain mean of calibrated probabilities is underconfident. Let s be the share of one's own error
in how its log-probabilities vary about their mean over all rows. If the errors depend neither on
the truth nor on each other, one may be trusted to 1 - s, and a mean of m to
(1 - s) / (1 - s + s / m). So the logarithms of the mean probabilities move away from their mean
over all rows by the ratio of the two,

    1 / (1 - s + s / m).

Where they lie on the whole, which is how frequent the classes are, stays. To learn s takes two
classifiers on rows that neither was fitted to: half of their squared difference is one's own error.

References:
    Spearman's attenuation and prophecy formulas (Am. J. Psychology 1904; Br. J. Psychology 1910).
    That pooled honest forecasts have to be sharpened: Ranjan and Gneiting, J. R. Statist. Soc. B
    2010.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from calibrant.core.arrays import FloatArray

# Logarithms of less say little of a classifier, and would outweigh all others.
LEAST = 1e-12
# Two classifiers that agree on nothing don't make their mean certain.
LARGEST_SHARE = 0.95


@dataclass(frozen=True)
class Pool:
    """How to pool probabilities of several classifiers.

    Attributes:
        factor: how much further from `centre` the logarithms of their mean are moved, at least 1.
        centre: (K,) mean centred log-probabilities over all rows.
    """

    factor: float = 1.0
    centre: FloatArray | None = None

    @classmethod
    def learn(
        cls,
        first: FloatArray,
        second: FloatArray,
        classifiers: int,
        weights: FloatArray | None = None,
    ) -> Self:
        """Learn from two classifiers what a mean of several deserves.

        Args:
            first: (N, K) probabilities of one classifier.
            second: those of another one, of the same rows, which neither was fitted to.
            classifiers: how many the mean is of.
            weights: (N,) how much each row counts.
        """
        one, other = _centred_logs(first), _centred_logs(second)
        centre = np.average((one + other) / 2, axis=0, weights=weights)

        def mean(squares: FloatArray) -> float:
            return float(np.average(squares.mean(axis=1), weights=weights))

        error = mean((one - other) ** 2) / 2
        whole = mean((one - centre) ** 2 + (other - centre) ** 2) / 2
        share = min(error / whole, LARGEST_SHARE) if whole > 0 else 0.0
        return cls(1 / (1 - share + share / classifiers), centre)

    def mean(self, probs: Sequence[FloatArray]) -> FloatArray:
        """Return the (N, K) sharpened mean of (N, K) probabilities."""
        plain = np.mean(probs, axis=0)
        if self.centre is None or self.factor == 1:
            return plain
        with np.errstate(divide="ignore"):
            logs = np.log(plain)
        # Centred or not, softmax of it is the same; a probability of 0 stays one.
        moved = logs * self.factor - (self.factor - 1) * self.centre
        powers = np.exp(moved - moved.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)


def _centred_logs(probs: FloatArray) -> FloatArray:
    logs = np.log(np.maximum(probs, LEAST))
    return logs - logs.mean(axis=1, keepdims=True)
