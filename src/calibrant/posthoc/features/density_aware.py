"""Density-aware calibration: the farther from what is known, the higher the temperature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from calibrant.core.arguments import argument
from calibrant.core.arrays import Array, FloatArray, to_numpy
from calibrant.core.errors import ConvergenceWarning, InputError, warn_caller
from calibrant.core.fit_report import FitReport
from calibrant.posthoc.applying import Learnt, apply_map
from calibrant.posthoc.array_ops import as_type, below_top, softmax_of_gaps, sums
from calibrant.posthoc.facts import FEATURES, Facts
from calibrant.posthoc.features.base import NeighbourCalibrator, choose_references
from calibrant.posthoc.fitting.minimizing import minimize
from calibrant.posthoc.state import learnt
from calibrant.posthoc.temperature.smart.fitting import (
    Tempered,
    brier,
    negative_log_likelihood,
)
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import RowSummary
from calibrant.predictions.temperature import fit_temperature

# The temperature of no row falls below this share of the single one.
LOWEST_SHARE = 0.05
# Rows that the pull towards one temperature is worth.
PULL = 1.0
STEPS = 200


@dataclass(eq=False)
class DensityAwareCalibration(NeighbourCalibrator):
    """softmax(z / T), T = max(floor, w_0 + sum_l w_l s_l) rising with distances s_l of features.

    Each w_l is 0 or more, and s_l is the distance to the k-th nearest reference row in layer l.
    Keeps the predicted class. The floor is a twentieth of the single temperature. A parameter for
    each layer and one.

    Layers are columns of `features`, side by side, each scaled to length 1 on its own. The paper
    takes the last layer of each block, and training rows for reference (`reference` of `fit`).

    s_l is the distance, not its square, to the k-th neighbour. In the paper's code, one path takes
    the nearest neighbour whatever k is, another the (k + 1)-th, both with squared distances.

    The objective is not convex, so the fit starts from temperature scaling and from temperatures in
    proportion to each distance, and the best outcome is taken; on the calibration rows it is never
    worse than temperature scaling. A penalty with the weight of one row draws the map towards the
    single temperature, which matters where a few rows would call for certainty.

    Args:
        neighbours: k. The paper takes 50 for CIFAR-10, 200 for CIFAR-100, and 10 for ImageNet with
            1 % of its training rows.
        reference_rows: how many reference rows to keep at most.
        layers: widths of the layers, such as "64,128" or [64, 128]; empty for one layer.
        loss: "nll", or "mse", the Brier score, with which the paper's experiments are made.

    Attributes:
        weights_: (L,) w_l; offset_: w_0; floor_: see above.

    References:
        Tomani, Waseda, Shen, Cremers: Beyond In-Domain Scenarios: Robust Density-Aware Calibration.
        ICML 2023.

    Examples:
        >>> import calibrant as cb
        >>> val = cb.load_sample("validation")
        >>> dac = cb.posthoc.DensityAwareCalibration(reference_rows=1_000).fit_predictions(val)
        >>> dac.weights_.round(3), round(dac.offset_, 1)  # distance tells nothing here
        (array([0.]), 1.6)
    """

    method: ClassVar[str] = "dac"
    facts: ClassVar[Facts | None] = Facts(
        "density-aware calibration",
        FEATURES,
        "the nearest neighbours of N rows among the reference, N x M x D",
        "rows like the calibration rows: its gain is under shift",
    )
    keeps_prediction: ClassVar[bool] = True

    layers: str | Sequence[int] = ""
    loss: Literal["nll", "mse"] = argument("nll", choices=("nll", "mse"))

    weights_: FloatArray = learnt("L")
    offset_: float = learnt()
    floor_: float = learnt(above=0)

    @property
    def n_parameters(self) -> int:
        """A weight for each layer, and the offset."""
        return len(self.weights_) + 1

    def _layers(self) -> list[slice]:
        return layer_columns(self.layers, self.width_)

    def _fit(self, predictions: Predictions) -> FitReport:
        self._features_of(predictions)
        references = choose_references(predictions, self.reference_rows)
        self._remember(references)
        rows = self._summary_of(predictions)
        single = fit_temperature(rows)
        self.floor_ = LOWEST_SHARE / single.beta
        layers = len(self._layers())
        if single.warning is not None:
            # Nothing says what the temperature is, let alone how it rises.
            self.weights_, self.offset_ = np.zeros(layers), 1 / single.beta
            report = single.report(rows.n)
            return replace(report, notes=report.notes + references.notes)
        distances = self._distances(predictions.features, references.own)
        scores = np.stack([nearest[:, -1] for nearest in distances], axis=1)
        found = fit_weights(rows, scores, 1 / single.beta, self.floor_, self.loss)
        self.offset_, self.weights_ = float(found.x[0]), found.x[1:]
        if not found.success:
            message = f"density-aware calibration stopped after {found.nit} steps: {found.message}"
            warn_caller(ConvergenceWarning(message))
        notes = references.notes
        if not self.weights_.any():
            notes += ("distances don't predict the temperature, so it is the same for all rows",)
        objective, value = f"penalised {self.loss}", float(found.fun)
        return FitReport(rows.n, objective, value, int(found.nit), bool(found.success), notes)

    def temperatures(self, features: Array) -> FloatArray:
        """Return the (N,) temperatures of rows with these (N, D) features."""
        rows = to_numpy(features)
        blank = np.zeros((len(rows), self.n_classes_))

        def of(xp: Any, _: Array, rows: Array, learnt: Learnt, masks: bool) -> Array:
            return self._temperatures(xp, rows, learnt)

        return apply_map(of, blank, rows, self.map_arrays(), self.widest())

    def _temperatures(self, xp: Any, features: Array, learnt: Learnt) -> Array:
        layers = layer_columns(self.layers, int(features.shape[1]))
        kth = [self.distances_of(xp, features, learnt, columns)[:, -1] for columns in layers]
        rise = sums(xp, xp.stack(kth, axis=1) * learnt["weights_"][None, :])
        return xp.maximum(learnt["offset_"] + rise, learnt["floor_"])

    def transform(
        self, xp: Any, logits: Array, features: Array | None, learnt: Learnt, *, masks: bool = True
    ) -> Array:
        """Return softmax(z / T)."""
        beta = as_type(xp, 1 / self._temperatures(xp, features, learnt), logits)
        return softmax_of_gaps(xp, below_top(xp, logits) * beta[:, None])


def layer_columns(widths: str | Sequence[int], width: int) -> list[slice]:
    """Return the columns of each layer from widths, such as "64,128" or [64, 128].

    Without widths, all columns are one layer.

    Raises:
        InputError: not whole numbers above zero, or they don't add up to `width`.
    """
    if not widths:
        return [slice(0, width)]
    parts = widths.split(",") if isinstance(widths, str) else widths
    try:
        sizes = [int(size) for size in parts]
    except (ValueError, TypeError):
        sizes = [0]
    if min(sizes, default=0) < 1 or sum(sizes) != width:
        raise InputError(
            f"layers must be widths such as '64,128' that add up to the {width} features, "
            f"not {widths!r}"
        )
    ends = np.cumsum(sizes).tolist()
    return [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def fit_weights(
    rows: RowSummary, scores: FloatArray, single: float, floor: float, loss: str
) -> Any:
    """Return SciPy's result for (w_0, w_1, ...) at the lowest penalised loss that was found.

    Args:
        rows: the calibration rows.
        scores: (N, L) distances.
        single: the temperature of temperature scaling.
        floor: lowest temperature.
        loss: "nll" or "mse".
    """

    # Weights as shares of the single temperature: everything is of order one, whatever the units.
    unit = np.where(scores.mean(axis=0) > 0, scores.mean(axis=0), 1.0)
    columns = np.concatenate([np.ones((rows.n, 1)), scores / unit], axis=1) * single
    of_beta = {"nll": negative_log_likelihood, "mse": brier}[loss]

    def objective(shares: FloatArray) -> tuple[float, FloatArray]:
        raw = columns @ shares
        beta = 1 / np.maximum(raw, floor)
        value, by_beta = of_beta(Tempered(rows, beta))
        by_temperature = np.where(raw > floor, -by_beta * beta**2, 0.0)
        away = shares - starts[0]
        pull = PULL / rows.n * away
        return value + float(pull @ away), columns.T @ by_temperature + 2 * pull

    starts = np.eye(columns.shape[1])  # the first is temperature scaling
    bounds = [(None, None)] + [(0.0, None)] * (columns.shape[1] - 1)
    ends: list[Any] = [
        minimize(
            objective,
            start,
            bounds=bounds,
            maxiter=STEPS,
            ftol=1e-12,
            gtol=1e-8,
        )
        for start in starts
    ]
    best = min(ends, key=lambda end: end.fun)
    best.x = best.x * single / np.append(1.0, unit)
    return best
