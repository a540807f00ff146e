"""Scaling-binning of the top label."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from calibrant.core.arguments import argument
from calibrant.core.arrays import FloatArray, sigmoid
from calibrant.core.weights import mean
from calibrant.posthoc.base import FitReport
from calibrant.posthoc.confidence.base import ConfidenceMap, mixed_with_uniform
from calibrant.posthoc.confidence.histogram import equal_mass_edges
from calibrant.posthoc.confidence.shapes import Steps
from calibrant.posthoc.learnt import learnt

# Beyond these odds float32 confidences no longer say what the odds are.
NEAREST_TO_CERTAIN = 1e-6
# Holds the slope near 1 where the rows don't determine it, in units of one row at even odds.
RIDGE = 1e-3
STEPS, SMALLEST_STEP = 100, 1e-10


@dataclass(eq=False)
class ScalingBinning(ConfidenceMap):
    """Platt scaling, then each bin's mean of what it says rather than the bin's accuracy.

    First g(c) = sigmoid(slope * logit(c) + offset) is fitted to the correctness by likelihood, with
    c kept within 1e-6 of certainty and with Platt's targets (h + 1) / (h + 2) and 1 / (w + 2) for h
    right and w wrong rows, which keep the fit finite where all rows are right. Then rows are cut
    into equal-mass bins, and the map on a bin is the mean of g over its rows: less noisy than the
    mean outcome, and still a step function, so that its calibration error can be measured. Like g,
    it can't follow anything but a sigmoid in the log odds.

    These are steps one behind another, but not a `Chain`: a chain hands on whole rows of
    probabilities, and in those the label can't have less than the other classes, while g may well
    say .3 of two. The bins average g as it is, and without labels.

    Args:
        n_bins: number of bins; fewer are used where rows or distinct confidences are fewer.
        split: ``"none"`` uses all rows for all three steps, as the authors' code does;
            ``"thirds"`` a third for each, as the paper's theorem asks: every third row in the order
            of confidence. A bin without rows of its own then takes g at its middle.

    Attributes:
        slope_, offset_: of g. edges_: (B + 1,) edges of the bins (lo, hi]. values_: (B,) the map.

    References:
        Kumar, Liang, Ma: Verified Uncertainty Calibration. NeurIPS 2019.

    Examples:
        >>> import calibrant as cb
        >>> val, test = cb.load_sample("validation"), cb.load_sample("test")
        >>> scaling = cb.ScalingBinning(n_bins=5).fit_predictions(val)
        >>> len(set(scaling.predict_confidence(test.logits)[1]))  # a step for each bin
        5
    """

    method: ClassVar[str] = "scaling-binning"
    weighs: ClassVar[bool] = True

    n_bins: int = argument(15, at_least=1)
    split: Literal["none", "thirds"] = argument("none", choices=("none", "thirds"))

    slope_: float = learnt()
    offset_: float = learnt()
    edges_: FloatArray = learnt("b+1")
    values_: FloatArray = learnt("b", at_least=0, at_most=1)

    @property
    def n_parameters(self) -> int:
        """Number of bins and two of the sigmoid."""
        return len(self.values_) + 2

    def _fit_map(
        self, confidence: FloatArray, correct: FloatArray, weights: FloatArray | None = None
    ) -> FitReport:
        n = len(confidence)
        # Equal confidences are sorted by outcome: the thirds don't depend on the order of rows.
        order = np.lexsort((correct, confidence))
        confidence, correct = confidence[order], correct[order]
        weights = np.ones(n) if weights is None else weights[order]
        unweighted = bool((weights == 1).all())
        parted = self.split == "thirds" and n >= 3
        parts = [slice(i, None, 3) for i in range(3)] if parted else [slice(None)] * 3
        self.slope_, self.offset_, steps = fit_sigmoid(
            log_odds(confidence[parts[0]]), correct[parts[0]], weights[parts[0]]
        )
        second = None if unweighted else weights[parts[1]]
        self.edges_ = equal_mass_edges(confidence[parts[1]], self.n_bins, second)
        averaged, counted = confidence[parts[2]], weights[parts[2]]
        index = np.searchsorted(self.edges_[1:-1], averaged, side="left")
        count = np.bincount(index, counted, len(self.edges_) - 1)
        total = np.bincount(index, self.scale(averaged) * counted, len(count))
        middle = self.scale((self.edges_[:-1] + self.edges_[1:]) / 2)
        value = np.where(count > 0, total / np.where(count > 0, count, 1), middle)
        self.values_ = mixed_with_uniform(value, float(weights.sum()), self.n_classes_)
        loss = mean((self.map_confidence(confidence) - correct) ** 2, weights)
        return FitReport(n, "nll of the sigmoid", loss, steps, steps < STEPS)

    def scale(self, confidence: FloatArray) -> FloatArray:
        """Return g of (N,) confidences, what the bins average."""
        return sigmoid(self.slope_ * log_odds(confidence) + self.offset_)

    def shape(self) -> Steps:
        """Return the values of the bins."""
        return Steps(self.edges_[1:-1], self.values_)


def log_odds(confidence: FloatArray) -> FloatArray:
    """Return log(c / (1 - c)) of confidences kept within 1e-6 of certainty."""
    kept = np.clip(confidence, NEAREST_TO_CERTAIN, 1 - NEAREST_TO_CERTAIN)
    return np.log(kept) - np.log1p(-kept)


def fit_sigmoid(
    x: FloatArray, correct: FloatArray, weights: FloatArray
) -> tuple[float, float, int]:
    """Return slope, offset and steps of Platt's logistic regression by damped Newton steps."""
    hits, misses = float(weights @ correct), float(weights @ (1 - correct))
    target = np.where(correct > 0, (hits + 1) / (hits + 2), 1 / (misses + 2))
    design = np.stack([x, np.ones_like(x)], axis=1)
    ridge = RIDGE * np.array([1.0, 0.0])

    def loss(v: FloatArray) -> float:
        score = design @ v
        fit = np.sum(weights * (np.logaddexp(0.0, score) - target * score))
        return float(fit + ridge @ (v - 1) ** 2 / 2)

    vector: FloatArray = np.array([1.0, 0.0])
    for step in range(1, STEPS + 1):
        p = sigmoid(design @ vector)
        gradient = design.T @ (weights * (p - target)) + ridge * (vector - 1)
        hessian = (design * (weights * p * (1 - p))[:, None]).T @ design + np.diag(ridge)
        solution = np.linalg.solve(hessian + 1e-12 * np.eye(2), gradient)
        move: FloatArray = np.asarray(solution, dtype=np.float64)
        before, length = loss(vector), 1.0
        while loss(vector - length * move) > before and length > SMALLEST_STEP:
            length /= 2
        vector = vector - length * move
        if np.abs(length * move).max() < SMALLEST_STEP:
            return float(vector[0]), float(vector[1]), step
    return float(vector[0]), float(vector[1]), STEPS
