"""Group calibration: many ways to part the rows in two, a temperature for each part."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from calibrant.core.arguments import argument
from calibrant.core.arrays import Array, FloatArray, IntArray, like, namespace
from calibrant.posthoc.base import FitReport
from calibrant.posthoc.features.base import FeatureCalibrator, in_float64
from calibrant.posthoc.fitting.minimizing import minimize
from calibrant.posthoc.temperature.predicted_class import fit_ratios
from calibrant.posthoc.temperature.single import fit_temperature
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import RowSummary, map_rows, softmax_chunk

# While a partition is learnt, temperatures stay within this factor of the single one.
LARGEST_RATIO = 8.0


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

    Args:
        partitions: how many, U.
        groups: groups in each.
        penalty: see above.
        shrinkage: of each group's ratio r to the single temperature: shrinkage / 2 * (r - 1)^2, in
            units of one row's likelihood.
        seed: of the random starts.
        max_iterations: bound on the L-BFGS steps of each partition, 100 in the paper. A partition
            needn't be the best one, so where it stops the fit report has a note and no warning.

    Attributes:
        centre_, scale_: (D,) mean and standard deviation of the features.
        partitions_: (U, groups, D) W. betas_: (U, groups) inverse temperatures.

    References:
        Yang, Zhan, Gan: Beyond Probability Partitions: Calibrating Neural Networks with Semantic
        Aware Grouping. NeurIPS 2023.
    """

    method: ClassVar[str] = "group"
    keeps_prediction: ClassVar[bool] = True

    partitions: int = argument(20, at_least=1)
    groups: int = argument(2, at_least=2)
    penalty: float = argument(0.1, at_least=0)
    shrinkage: float = argument(10.0, above=0)
    seed: int = argument(0, at_least=0)
    max_iterations: int = argument(100, at_least=1)

    centre_: FloatArray = field(init=False, repr=False)
    scale_: FloatArray = field(init=False, repr=False)
    partitions_: FloatArray = field(init=False, repr=False)
    betas_: FloatArray = field(init=False, repr=False)

    @property
    def n_parameters(self) -> int:
        """U times groups times D + 2: weights, and a temperature in either stage."""
        return self.partitions_.size + 2 * self.betas_.size

    def _fit(self, predictions: Predictions) -> FitReport:
        features = self._standardise(self._features_of(predictions))
        rows = self._summary_of(predictions)
        single = fit_temperature(rows)
        shape = self.partitions, self.groups, features.shape[1]
        self.partitions_ = np.zeros(shape)
        self.betas_ = np.full(shape[:2], single.beta)
        if single.warning is not None or rows.n < 2:
            return single.report(rows.n)
        ends = self._learn(rows, features, single.beta)
        short = sum(not end.success for end in ends)
        notes: tuple[str, ...] = ()
        if short:
            notes = (f"{short} partitions stopped after {self.max_iterations} steps",)
        steps = sum(int(end.nit) for end in ends)
        return FitReport(rows.n, "nll", self._nll(rows, features), steps, not short, notes)

    def _standardise(self, features: FloatArray) -> FloatArray:
        """Learn mean and scale of the calibration rows' features, and return them standardised."""
        self.centre_ = features.mean(axis=0)
        spread = features.std(axis=0)
        # What is constant but for rounding says nothing, and must not be blown up.
        varies = spread > 1e-12 * np.abs(features).max(axis=0)
        self.scale_ = np.where(varies, spread, np.finfo(np.float64).max)
        return (features - self.centre_) / self.scale_

    def _learn(self, rows: RowSummary, features: FloatArray, beta: float) -> list[Any]:
        """Learn all partitions and their temperatures; return what SciPy said of the former."""
        halves = alternating_halves(rows, features)
        # A partition asks for the curves of its rows a hundred times; a table answers at once.
        tables = [rows.take(half).tabulated(beta) for half in halves]
        width, ends = features.shape[1], list[Any]()
        for u in range(self.partitions):
            learn, calibrate = halves[u % 2], halves[(u + 1) % 2]
            rng = np.random.default_rng([self.seed, u])
            start = rng.uniform(-1, 1, size=(self.groups, width)) / np.sqrt(width)
            end = fit_partition(
                tables[u % 2], features[learn], start, beta, self.penalty, self.max_iterations
            )
            self.partitions_[u] = end.x[self.groups :].reshape(self.groups, width)
            group = (features[calibrate] @ self.partitions_[u].T).argmax(axis=1)
            grouped = replace(rows.take(calibrate), predicted=group, classes=self.groups)
            self.betas_[u] = beta * fit_ratios(grouped, beta, self.shrinkage)[0]
            ends.append(end)
        return ends

    def _nll(self, rows: RowSummary, standardised: FloatArray) -> float:
        betas = self._betas_of(standardised)
        true = np.zeros(rows.n)
        for beta in betas.T:
            true += np.exp(-rows.curve.evaluate(beta).value - beta * rows.label_gap)
        return float(-np.mean(np.log(np.maximum(true / len(betas.T), np.finfo(float).tiny))))

    def _betas_of(self, standardised: FloatArray) -> FloatArray:
        """Return the (n, U) inverse temperatures of rows in each partition."""
        partitions, groups, width = self.partitions_.shape
        scores = standardised @ self.partitions_.reshape(-1, width).T
        group = scores.reshape(-1, partitions, groups).argmax(axis=2)
        return self.betas_[np.arange(partitions), group]

    def _apply(self, logits: Array, features: Array | None) -> Array:
        def average(chunk: Array, part: slice) -> Array:
            xp = namespace(chunk)
            standardised = (in_float64(features[part]) - self.centre_) / self.scale_  # type: ignore[index]
            betas = self._betas_of(standardised)
            gaps = chunk - xp.max(chunk, axis=1, keepdims=True)
            total = xp.zeros_like(gaps)
            for beta in betas.T:
                total += softmax_chunk(gaps * like(beta[:, None], chunk, chunk.dtype), part)
            return total / betas.shape[1]

        return map_rows(logits, average)


def alternating_halves(rows: RowSummary, features: FloatArray) -> tuple[IntArray, IntArray]:
    """Return the rows with even and with odd rank in margin: halves of the same confidences.

    Of equal margins other numbers decide, so that it doesn't matter in which order the rows come.
    """
    size = np.einsum("nd,nd->n", features, features)
    order = np.lexsort((size, rows.mean_gap, rows.label_gap, rows.margin))
    return order[::2], order[1::2]


def fit_partition(
    rows: RowSummary,
    features: FloatArray,
    start: FloatArray,
    beta: float,
    penalty: float,
    max_iterations: int,
) -> Any:
    """Return SciPy's result for (log(beta_g / beta), W) that maximise the mixture's likelihood."""

    groups = len(start)

    def objective(vector: FloatArray) -> tuple[float, FloatArray]:
        return mixture_loss(rows, features, vector, beta, groups, penalty)

    reach = float(np.log(LARGEST_RATIO))
    return minimize(
        objective,
        np.concatenate([np.zeros(groups), start.ravel()]),
        bounds=[(-reach, reach)] * groups + [(None, None)] * start.size,
        maxiter=max_iterations,
        ftol=1e-9,
        gtol=1e-6,
    )


def mixture_loss(
    rows: RowSummary,
    features: FloatArray,
    vector: FloatArray,
    beta: float,
    groups: int,
    penalty: float,
) -> tuple[float, FloatArray]:
    """Return the mean NLL of the mixture plus penalty * mean(W^2), and the gradient.

    With l_g = log softmax(beta_g z)_y and r = softmax(log pi + l), the responsibilities of the
    groups for a row, the NLL falls by r_g dl_g/dbeta_g, and by (r - pi) x' along W.
    """
    betas, weights = beta * np.exp(vector[:groups]), vector[groups:].reshape(groups, -1)
    scores = features @ weights.T
    scores -= scores.max(axis=1, keepdims=True)
    log_share = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    points = [rows.curve.evaluate(float(b)) for b in betas]
    of_label = np.stack([-p.value - b * rows.label_gap for p, b in zip(points, betas, strict=True)])
    by_beta = np.stack([-p.slope - rows.label_gap for p in points])
    joint = log_share + of_label.T
    top = joint.max(axis=1, keepdims=True)
    likelihood = top[:, 0] + np.log(np.exp(joint - top).sum(axis=1))
    charge = np.exp(joint - likelihood[:, None])
    n = rows.n
    by_log_beta = -(charge * by_beta.T).sum(axis=0) * betas / n
    by_weights = -(charge - np.exp(log_share)).T @ features / n
    by_weights += 2 * penalty / weights.size * weights
    value = -float(likelihood.mean()) + penalty * float(np.mean(weights**2))
    return value, np.concatenate([by_log_beta, by_weights.ravel()])
