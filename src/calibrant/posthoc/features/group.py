"""Group calibration: many ways to part the rows in two, a temperature for each part."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import Any, ClassVar, NamedTuple

import numpy as np

from calibrant.core import numpy_namespace as xnp
from calibrant.core.arguments import argument
from calibrant.core.arrays import Array, FloatArray, IntArray
from calibrant.core.fit_report import FitReport
from calibrant.core.threads import one_blas_thread
from calibrant.posthoc.applying import Learnt
from calibrant.posthoc.array_ops import as_type, below_top, softmax_of_gaps
from calibrant.posthoc.facts import FEATURES, Facts
from calibrant.posthoc.features.base import FeatureCalibrator
from calibrant.posthoc.fitting.minimizing import in_own_order
from calibrant.posthoc.state import learnt
from calibrant.posthoc.temperature.scaling import fit_ratios
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import RowSummary, summarize
from calibrant.predictions.temperature import fit_temperature

# While a partition is learnt, temperatures stay within this factor of the single one.
LARGEST_RATIO = 8.0
# ... and change by no more than this share in a step.
LONGEST_MOVE = 0.5


@dataclass(eq=False)
class GroupCalibration(FeatureCalibrator):
    """The mean over partitions u of softmax(z / T_(u, g)), g being the row's group in partition u.

    Keeps the predicted class. Each partition has two stages on disjoint halves of the calibration
    rows. On one half it is learnt by the likelihood of a mixture, from a random start:

        p = sum_g pi_g softmax(z / tau_g),   pi = softmax(W x),   NLL + penalty * mean(W^2),

    with x the standardised features. On the other half each row belongs to the group with the
    largest pi, and each group gets the temperature that fits it, drawn a little to the single one
    so that a small or empty group has one too. The halves are every second row in order of
    confidence. They change roles from partition to partition, so that every row serves for both
    stages, and never for both of the same partition.

    Standardising makes the result independent of the features' scale; tau starts at the single
    temperature instead of the paper's 1.5 for the same reason.

    A partition is learnt in a fixed number of small steps that never raise the objective (see
    `fit_partition`). The paper's L-BFGS takes fewer, but where it is stopped depends on the last
    bit of every sum: a change of the logits by 1e-12 of their size moved probabilities by .008.

    Args:
        partitions: how many, U.
        groups: groups in each.
        penalty: see above.
        shrinkage: of each group's ratio r to the single temperature: shrinkage / 2 * (r - 1)^2, in
            units of one row's likelihood.
        seed: for the random starts.
        max_iterations: steps of each partition, 100 of L-BFGS in the paper. A partition needn't be
            the best one: on the sample 30, 50, 100, 200 and 400 steps end at the same likelihood.

    Attributes:
        centre_, scale_: (D,) mean and standard deviation of the features.
        partitions_: (U, groups, D) W. betas_: (U, groups) inverse temperatures.

    References:
        Yang, Zhan, Gan: Beyond Probability Partitions: Calibrating Neural Networks with Semantic
        Aware Grouping. NeurIPS 2023.

    Examples:
        >>> import calibrant as cb
        >>> val, test = cb.load_sample("validation"), cb.load_sample("test")
        >>> from calibrant.posthoc import GroupCalibration
        >>> group = GroupCalibration(partitions=4).fit(val.logits, val.labels, val.features)
        >>> probs = group.predict_proba(test.logits, test.features)
        >>> from calibrant.metrics import negative_log_likelihood
        >>> [f"{negative_log_likelihood(said, test.labels):.2f}" for said in (test.probs, probs)]
        ['0.52', '0.47']
    """

    method: ClassVar[str] = "group"
    facts: ClassVar[Facts | None] = Facts(
        "group calibration",
        FEATURES,
        "tens of regressions on N x D",
        "features that don't predict correctness",
    )
    keeps_prediction: ClassVar[bool] = True

    partitions: int = argument(20, at_least=1)
    groups: int = argument(2, at_least=2)
    penalty: float = argument(0.1, at_least=0)
    shrinkage: float = argument(10.0, above=0)
    seed: int = argument(0, at_least=0)
    max_iterations: int = argument(50, at_least=1)

    centre_: FloatArray = learnt("D")
    scale_: FloatArray = learnt("D", above=0, at_most=inf)
    partitions_: FloatArray = learnt("p", "g", "D")
    betas_: FloatArray = learnt("p", "g", above=0)

    @property
    def n_parameters(self) -> int:
        """U times groups times D + 2: weights, and a temperature in either stage."""
        return self.partitions_.size + 2 * self.betas_.size

    def _fit(self, predictions: Predictions) -> FitReport:
        ranked, ranks, order = in_own_order(predictions)
        rows = summarize(ranked, ranks, curve="dense")
        features = self._standardise(self._features_of(predictions)[order])
        single = fit_temperature(rows)
        shape = self.partitions, self.groups, features.shape[1]
        self.partitions_ = np.zeros(shape)
        self.betas_ = np.full(shape[:2], single.beta)
        if single.warning is not None or rows.n < 2:
            return single.report(rows.n)
        with one_blas_thread():
            self._learn(rows, features, single.beta)
        steps = self.partitions * self.max_iterations
        return FitReport(rows.n, "nll", self._nll(rows, features), steps)

    def _standardise(self, features: FloatArray) -> FloatArray:
        """Learn mean and scale of the calibration rows' features, and return them standardised."""
        self.centre_ = features.mean(axis=0)
        spread = features.std(axis=0)
        # What is constant but for rounding says nothing, and must not be blown up.
        varies = spread > 1e-12 * np.abs(features).max(axis=0)
        self.scale_ = np.where(varies, spread, np.finfo(np.float64).max)
        return (features - self.centre_) / self.scale_

    def _learn(self, rows: RowSummary, features: FloatArray, beta: float) -> None:
        """Learn all partitions and their temperatures."""
        halves = alternating_halves(rows, features)
        # A partition asks for the curves of its rows at every step; a table answers at once.
        mixtures = [
            Mixture(rows.take(half).tabulated(beta), features[half], beta, self.penalty)
            for half in halves
        ]
        width = features.shape[1]
        metrics = [mixture.metric(self.groups) for mixture in mixtures]
        for u in range(self.partitions):
            calibrate = halves[(u + 1) % 2]
            rng = np.random.default_rng([self.seed, u])
            start = rng.uniform(-1, 1, size=(self.groups, width)) / np.sqrt(width)
            _, self.partitions_[u] = fit_partition(
                mixtures[u % 2], start, metrics[u % 2], self.max_iterations
            )
            group = (features[calibrate] @ self.partitions_[u].T).argmax(axis=1)
            grouped = replace(rows.take(calibrate), predicted=group, n_classes=self.groups)
            self.betas_[u] = beta * fit_ratios(grouped, beta, self.shrinkage)[0]

    def _nll(self, rows: RowSummary, standardised: FloatArray) -> float:
        betas = _betas_of(xnp, standardised, self.partitions_, self.betas_)
        true = np.zeros(rows.n)
        for beta in betas.T:
            true += np.exp(-rows.losses(beta))
        return float(-np.mean(np.log(np.maximum(true / len(betas.T), np.finfo(float).tiny))))

    def transform(
        self, xp: Any, logits: Array, features: Array | None, learnt: Learnt, *, masks: bool = True
    ) -> Array:
        """Return the mean over partitions of the softmax at the group's temperature."""
        wide = xp.astype(features, xp.float64)
        standardised = (wide - learnt["centre_"]) / learnt["scale_"]
        betas = _betas_of(xp, standardised, learnt["partitions_"], learnt["betas_"])
        betas, gaps = as_type(xp, betas, logits), below_top(xp, logits)
        partitions = int(betas.shape[1])
        total = xp.zeros_like(gaps)
        for u in range(partitions):
            total = total + softmax_of_gaps(xp, gaps * betas[:, u : u + 1])
        return total / partitions


def _betas_of(xp: Any, standardised: Array, weights: Array, betas: Array) -> Array:
    """Return the (n, U) inverse temperatures of rows in each of U partitions."""
    partitions, groups, width = (int(size) for size in weights.shape)
    scores = standardised @ xp.reshape(weights, (-1, width)).T
    group = xp.argmax(xp.reshape(scores, (-1, partitions, groups)), axis=2)
    place = group + groups * xp.arange(partitions, device=getattr(group, "device", None))[None, :]
    found = xp.take(xp.reshape(betas, (-1,)), xp.reshape(place, (-1,)), axis=0)
    return xp.reshape(found, (-1, partitions))


def alternating_halves(rows: RowSummary, features: FloatArray) -> tuple[IntArray, IntArray]:
    """Return the rows with even and with odd rank in margin: halves of the same confidences.

    Of equal margins other numbers decide, so that it doesn't matter in which order the rows come.
    """
    size = np.einsum("nd,nd->n", features, features)
    order = np.lexsort((size, rows.mean_gap, rows.label_gap, rows.margin))
    return order[::2], order[1::2]


class Point(NamedTuple):
    """What a mixture is at some ratios and weights.

    Attributes:
        value: the mean NLL plus penalty * mean(W^2).
        by_weights: (groups, D) its gradient by W.
        by_ratios: (groups,) its gradient by log(beta_g / beta), and curvatures: (groups,) of what
            each group is charged with, by the same.
    """

    value: float
    by_weights: FloatArray
    by_ratios: FloatArray
    curvatures: FloatArray


@dataclass(frozen=True, eq=False)
class Mixture:
    """The objective of a partition: the likelihood of a mixture of softmaxes, and a penalty on W.

    Attributes:
        rows: what the likelihood needs of the rows.
        features: (n, D), standardised.
        beta: the single inverse temperature.
        penalty: of the mean square of W.
    """

    rows: RowSummary
    features: FloatArray
    beta: float
    penalty: float

    def at(self, ratios: FloatArray, weights: FloatArray) -> Point:
        """Return value and slopes at (groups,) ratios beta_g / beta and (groups, D) weights.

        With l_g = log softmax(beta_g z)_y and r = softmax(log pi + l), the responsibilities of the
        groups for a row, the NLL falls by r_g dl_g/dbeta_g, and by (r - pi) x' along W.
        """
        rows, betas = self.rows, self.beta * ratios
        # Groups go first: NumPy takes far longer to sum many rows of two than two rows of many.
        scores = weights @ self.features.T
        scores -= scores.max(axis=0)
        share = np.exp(scores)
        total = share.sum(axis=0)
        share /= total
        points = [rows.curve.evaluate(float(b)) for b in betas]
        gap = rows.label_gap
        of_label = [-p.value - b * gap for p, b in zip(points, betas, strict=True)]
        joint = scores - np.log(total) + np.stack(of_label)
        top = joint.max(axis=0)
        likelihood = top + np.log(np.exp(joint - top).sum(axis=0))
        charge = np.exp(joint - likelihood)
        charged = list(zip(charge, points, strict=True))
        return Point(
            -float(likelihood.mean()) + self.penalty * float(np.mean(weights**2)),
            (share - charge) @ self.features / rows.n + 2 * self.penalty / weights.size * weights,
            np.array([c @ (p.slope + gap) for c, p in charged]) * betas / rows.n,
            np.array([c @ p.curvature for c, p in charged]) * betas**2 / rows.n,
        )

    def metric(self, groups: int) -> FloatArray:
        """Return the (D, D) inverse of what bounds the curvature by W from above.

        That of a softmax is at most (1 - 1/groups) / 2 of the features' second moments (Boehning:
        Multinomial Logistic Regression Algorithm, 1992), and that of a mixture is less.
        """
        moments = self.features.T @ self.features / self.rows.n
        width = len(moments)
        ridge = 2 * self.penalty / (groups * width)
        # Without a penalty, directions in which no row varies must not be divided by 0.
        ridge = max(ridge, 1e-9 * float(np.trace(moments)) / width, np.finfo(np.float64).tiny)
        bound = moments / 2 + ridge * np.eye(width)
        return np.asarray(np.linalg.inv(bound), dtype=np.float64)


def fit_partition(
    mixture: Mixture, start: FloatArray, metric: FloatArray, steps: int
) -> tuple[FloatArray, FloatArray]:
    """Return (groups,) ratios beta_g / beta and (groups, D) weights that make a mixture likelier.

    Each step minimises an upper bound of the objective that touches it where it stands: the
    groups' responsibilities are held, as in expectation maximisation, and the curvature by W is
    replaced by its bound. So the objective falls, no step length is searched for, and two starts
    close together stay close: rounding isn't blown up.
    """
    ratios, weights = np.ones(len(start)), start
    for _ in range(steps):
        point = mixture.at(ratios, weights)
        weights = weights - point.by_weights @ metric
        # Newton's step for the charged rows' temperature, a convex function.
        move = point.by_ratios / np.maximum(point.curvatures, np.finfo(np.float64).tiny)
        ratios = ratios * (1 - np.clip(move, -LONGEST_MOVE, LONGEST_MOVE))
        ratios = np.clip(ratios, 1 / LARGEST_RATIO, LARGEST_RATIO)
    return ratios, weights
