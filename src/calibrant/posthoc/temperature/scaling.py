"""One temperature for all rows, one for each row, and one for each predicted class.

References:
    Sample Margin-Aware Recalibration of Temperature (2025), Figure 15.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from calibrant.core.arguments import argument, check_arguments
from calibrant.core.arrays import Array, FloatArray, like, namespace, to_numpy
from calibrant.core.errors import InputError
from calibrant.core.fit_report import FitReport
from calibrant.core.weights import check_weights, mean, normalised, times
from calibrant.posthoc.applying import Learnt, apply_map
from calibrant.posthoc.array_ops import as_type, below_top, softmax, softmax_of_gaps
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.facts import ONE, PASSES, ROW, Facts
from calibrant.posthoc.state import learnt
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import DENSE_CLASSES, RowSummary
from calibrant.predictions.temperature import fit_temperature

if TYPE_CHECKING:
    from calibrant.posthoc.shards import ShardWork


@dataclass(eq=False)
class Uncalibrated(Calibrator):
    """The network's own softmax, the control of every comparison: softmax(z).

    References:
        Bridle, in Neurocomputing (Springer, NATO ASI Series) 1990, for the softmax.

    Examples:
        >>> import numpy as np
        >>> import calibrant as cb
        >>> none = cb.posthoc.Uncalibrated().fit([[2.0, 0.0], [0.0, 1.0]], [0, 1])
        >>> none.predict_proba(np.log([[3.0, 1.0]])).round(2)  # whatever it was fitted to
        array([[0.75, 0.25]])
    """

    raises_zeros: ClassVar[bool] = False  # the network's own
    method: ClassVar[str] = "none"
    facts: ClassVar[Facts | None] = Facts(
        "uncalibrated",
        "the control",
        "nothing is fitted",
        "wherever the network is miscalibrated: it changes nothing",
    )
    weighs: ClassVar[bool] = True
    keeps_prediction: ClassVar[bool] = True
    fits_masked: ClassVar[bool] = True
    fits_top_label: ClassVar[bool] = True

    @property
    def n_parameters(self) -> int:
        """Zero."""
        return 0

    def _fit(self, predictions: Predictions) -> FitReport:
        return FitReport(predictions.n, "none")

    def transform(
        self, xp: Any, logits: Array, features: Array | None, learnt: Learnt, *, masks: bool = True
    ) -> Array:
        """Return softmax(z)."""
        return softmax(xp, logits)


@dataclass(eq=False)
class RowTemperature(Calibrator):
    """Family: softmax(beta_i z_i), with an inverse temperature that may differ by row.

    Keeps the order of the classes within every row, so also the predicted class.
    """

    keeps_prediction: ClassVar[bool] = True
    fits_masked: ClassVar[bool] = True

    @abstractmethod
    def betas(self, xp: Any, logits: Array, learnt: Learnt, masks: bool) -> Array:
        """Return the (n,) or () inverse temperatures of (n, K) logits; see `transform`."""

    def temperatures(self, logits: Array) -> FloatArray:
        """Return the (N,) temperatures that `predict_proba` uses."""
        return 1.0 / self.inverse_temperatures(logits)

    def inverse_temperatures(self, logits: Array) -> FloatArray:
        """Return the (N,) inverse temperatures that `predict_proba` uses."""

        def betas(xp: Any, rows: Array, _: None, learnt: Learnt, masks: bool) -> Array:
            one = xp.ones(
                int(rows.shape[0]), dtype=xp.float64, device=getattr(rows, "device", None)
            )
            return one * self.betas(xp, rows, learnt, masks)

        return to_numpy(apply_map(betas, self._checked(logits), None, self.map_arrays()))

    def transform(
        self, xp: Any, logits: Array, features: Array | None, learnt: Learnt, *, masks: bool = True
    ) -> Array:
        """Return softmax(beta_i z_i)."""
        beta = as_type(xp, self.betas(xp, logits, learnt, masks), logits)
        column = beta if len(beta.shape) == 0 else beta[:, None]
        gaps = below_top(xp, logits)
        gaps *= column
        return softmax_of_gaps(xp, gaps)


@dataclass(eq=False)
class SummaryTemperature(RowTemperature):
    """Row temperature that reads no more of the logits than a row summary holds."""

    @abstractmethod
    def _fit_rows(self, rows: RowSummary) -> FitReport:
        """Learn from a row summary."""

    def fit_rows(self, rows: RowSummary) -> Self:
        """Fit on a row summary, such as shards summarised apart and joined, and return self.

        Raises:
            InputError: an argument of the constructor is out of range, or the summary lacks what
                the method reads.
        """
        check_arguments(self)
        report = self._fit_rows(self._counted(rows))
        self.n_classes_, self.form_, self.kind_ = rows.n_classes, "rows", "logits"
        self.fit_report_ = report
        return self

    def _counted(self, rows: RowSummary) -> RowSummary:
        """Return the rows that count, as `Predictions.counted` does."""
        if rows.weights is None:
            return rows
        if not self.weighs:
            raise InputError(f"method '{self.method}' can't be fitted to a summary with weights")
        weights = check_weights(rows.weights, rows.n, "row summary")
        rows = rows.take(weights > 0)
        return replace(rows, weights=normalised(weights[weights > 0]))

    def _fit(self, predictions: Predictions) -> FitReport:
        return self._fit_rows(predictions.summary)


@dataclass(eq=False)
class TemperatureScaling(SummaryTemperature):
    """One temperature for all rows: softmax(z / T), T by maximum likelihood.

    Keeps the predicted class of every row. One parameter. The objective is convex in beta = 1 / T,
    which is what is solved for; T never turns negative and never needs a learning rate.

    Attributes:
        beta_: the fitted inverse temperature; `temperature_` is its inverse.

    References:
        Guo, Pleiss, Sun, Weinberger: On Calibration of Modern Neural Networks. ICML 2017.

    Examples:
        >>> import calibrant as cb
        >>> truth = cb.synthetic.tempered(10_000, 10, temperature=2.0)  # honest logits, doubled
        >>> scaling = cb.TemperatureScaling().fit_predictions(truth.predictions)
        >>> round(scaling.temperature_, 1)
        2.0
    """

    method: ClassVar[str] = "temperature"
    facts: ClassVar[Facts | None] = Facts(
        "temperature scaling",
        ONE,
        PASSES,
        "confidences too high in some rows and too low in others: one number moves all the same "
        "way",
    )
    fits_top_label: ClassVar[bool] = True
    weighs: ClassVar[bool] = True

    beta_: float = learnt(above=0)

    @property
    def temperature_(self) -> float:
        """The fitted temperature T."""
        return 1.0 / self.beta_

    @property
    def n_parameters(self) -> int:
        """One."""
        return 1

    def _fit_rows(self, rows: RowSummary) -> FitReport:
        """Learn from a row summary."""
        fit = fit_temperature(rows)
        self.beta_ = fit.beta
        return fit.report(rows.n)

    def _fit_sums(self, work: ShardWork) -> FitReport | None:
        from calibrant.posthoc.temperature.summed import fit_temperature_to

        if not work.scores_of_classes:
            return None
        fit, _ = fit_temperature_to(work)
        self.beta_, self.n_classes_ = fit.beta, work.shards.n_classes or 0
        return fit.report(work.rows)

    def betas(self, xp: Any, logits: Array, learnt: Learnt, masks: bool) -> Array:
        """Return the one inverse temperature."""
        return learnt["beta_"]


# No class's temperature leaves the single one by more than this factor.
LARGEST_RATIO = 8.0
STEPS, SMALLEST_STEP = 60, 1e-8


@dataclass(eq=False)
class PredictedClassTemperature(SummaryTemperature):
    """softmax(beta_M z), where M is the predicted class: K temperatures, drawn to the single one.

    With beta_0 of temperature scaling and r_k = beta_k / beta_0, each class minimises

        sum over rows predicted as k of NLL(beta_0 r_k) + shrinkage / 2 * (r_k - 1)^2,

    a convex function of one number, by safeguarded Newton for all classes at once; r_k stays within
    a factor of 8. A class that was never predicted keeps beta_0, one that was seldom predicted
    stays near it. Unlike a temperature for each logit it keeps the order of the classes within
    every row and doesn't depend on the origin of the logits. It helps if classes differ in how
    overconfident they are, and corrects nothing else. Where the single temperature isn't
    identified, all classes take it as it is.

    Args:
        shrinkage: see above; 100 is right if the r_k differ from 1 by about a tenth. On the
            validation rows of the sample (10 classes), fitted to a random part and tested on the
            rest, mean NLL minus that of the single temperature, in 1e-4, over 10 draws:

            =============  ====  ====  ====  ====  ====
            shrinkage         3    10    30   100   300
            500 rows        +20    +0   -11   -12    -7
            2 500 rows      -26   -28   -30   -30   -23
            =============  ====  ====  ====  ====  ====

    Attributes:
        beta_: the single inverse temperature beta_0.
        class_betas_: (K,) inverse temperatures beta_k.

    References:
        The variant by predicted class of Frenkel & Goldberger: Network Calibration by Class-based
        Temperature Scaling. EUSIPCO 2021. Likelihood and shrinkage are this package's.

    Examples:
        >>> import calibrant as cb
        >>> val = cb.load_sample("validation")
        >>> scaling = cb.posthoc.PredictedClassTemperature().fit_predictions(val)
        >>> temperatures = 1 / scaling.class_betas_
        >>> int(temperatures.argmax()), temperatures.round(1)
        (5, array([1.5, 1.4, 1.5, 1.7, 1.4, 1.9, 1.6, 1.6, 1.5, 1.4]))
    """

    method: ClassVar[str] = "predicted-class"
    facts: ClassVar[Facts | None] = Facts(
        "predicted-class temperature",
        ROW,
        PASSES,
        "classes with few rows: they are drawn to the one temperature, and gain little",
    )
    weighs: ClassVar[bool] = True

    shrinkage: float = argument(100.0, above=0)

    beta_: float = learnt(above=0)
    class_betas_: FloatArray = learnt("K", above=0)

    @property
    def n_parameters(self) -> int:
        """One for each class."""
        return len(self.class_betas_)

    def _fit_rows(self, rows: RowSummary) -> FitReport:
        """Learn from a row summary."""
        start = fit_temperature(rows)
        self.beta_ = start.beta
        if start.warning is not None:
            self.class_betas_ = np.full(rows.n_classes, self.beta_)
            return start.report(rows.n)
        if rows.n_classes > DENSE_CLASSES:
            rows = rows.tabulated(self.beta_)
        ratios, steps = fit_ratios(rows, self.beta_, self.shrinkage)
        self.class_betas_ = self.beta_ * ratios
        betas = self.class_betas_[rows.predicted]
        nll = mean(rows.losses(betas), rows.weights)
        return FitReport(rows.n, "nll and shrinkage", nll, steps, steps < STEPS)

    def betas(self, xp: Any, logits: Array, learnt: Learnt, masks: bool) -> Array:
        """Return the inverse temperature of each row's predicted class."""
        return xp.take(learnt["class_betas_"], xp.argmax(logits, axis=1), axis=0)


def fit_ratios(rows: RowSummary, beta: float, shrinkage: float) -> tuple[FloatArray, int]:
    """Return the (K,) best ratios to `beta` by predicted class, and the number of passes."""
    classes, predicted = rows.n_classes, rows.predicted
    ratio = np.ones(classes)
    span = rows.curve.span
    low = np.full(classes, max(1 / LARGEST_RATIO, min(1.0, span[0] / beta)))
    high = np.full(classes, min(LARGEST_RATIO, max(1.0, span[1] / beta)))
    for step in range(1, STEPS + 1):
        point = rows.curve.evaluate(beta * ratio[predicted])
        slopes, bends = beta * (point.slope + rows.label_gap), beta * beta * point.curvature
        slope = np.bincount(predicted, times(slopes, rows.weights), classes)
        curvature = np.bincount(predicted, times(bends, rows.weights), classes)
        gradient = slope + shrinkage * (ratio - 1)
        low, high = np.where(gradient < 0, ratio, low), np.where(gradient < 0, high, ratio)
        proposal = ratio - gradient / (np.maximum(curvature, 0.0) + shrinkage)
        inside = (low <= proposal) & (proposal <= high)
        proposal = np.where(inside, proposal, (low + high) / 2)
        if np.abs(proposal - ratio).max() < SMALLEST_STEP:
            return proposal, step
        ratio = proposal
    return ratio, STEPS


TEMPERATURE_POINTS = 160
# A curve with this many monotone pieces or fewer counts as a function of the margin.
MONOTONE_PIECES = 6
# Rows that tell whether it is one; of more, as many evenly spaced by rank.
MOST_ROWS = 4000


@dataclass(frozen=True, eq=False)
class MarginTemperature:
    """Temperatures of some rows against their margin; arrays (P,), by rising margin.

    Attributes:
        margin: gaps between the two largest logits.
        temperature: what the row's logits are divided by.
        is_function: whether the temperature follows from the margin, and may be drawn as a line.
    """

    margin: FloatArray
    temperature: FloatArray
    is_function: bool


def margin_temperature(
    calibrator: RowTemperature,
    logits: Array,
    margin: FloatArray,
    points: int = TEMPERATURE_POINTS,
) -> MarginTemperature:
    """Return the temperatures that a fitted method gives to (N, K) logits.

    Of the N rows about `points` are kept, half of them evenly spaced by rank and half evenly spaced
    by margin, so that neither the crowded nor the sparse end is lost.

    Args:
        calibrator: fitted.
        logits: (N, K).
        margin: (N,) from `Predictions.margins`.
        points: see above.
    """
    order = np.argsort(margin, kind="stable")
    ranked = margin[order]
    by_rank = np.linspace(0, len(ranked) - 1, max(2, points // 2)).astype(np.int64)
    targets = np.linspace(float(ranked[0]), float(ranked[-1]), max(2, points // 2))
    by_margin = np.clip(np.searchsorted(ranked, targets), 0, len(ranked) - 1)
    kept = np.unique(np.concatenate([by_rank, by_margin]))
    some = np.linspace(0, len(ranked) - 1, min(len(ranked), MOST_ROWS)).astype(np.int64)
    asked = np.union1d(kept, some)
    temperature = calibrator.temperatures(
        namespace(logits).take(logits, like(order[asked], logits), axis=0)
    )
    # A function of the margin moves up and down a few times over all rows; noise does at each.
    travelled, span = np.abs(np.diff(temperature)).sum(), np.ptp(temperature)
    is_function = travelled <= MONOTONE_PIECES * span + 1e-9 * temperature.max()
    own = temperature[np.searchsorted(asked, kept)]
    return MarginTemperature(ranked[kept], own, bool(is_function))
