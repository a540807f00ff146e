"""Consistency calibration: how often a row keeps its class when its logits are shaken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from calibrant.core.arguments import argument
from calibrant.core.arrays import FloatArray, to_numpy
from calibrant.posthoc.base import FitReport
from calibrant.posthoc.fitting.binned_gap import binned_gap
from calibrant.posthoc.noise.probit import SPAN, ProbitScaling
from calibrant.predictions.predictions import Predictions

# The search for the noise: first over SPAN to either side of Gumbel's, then ever closer.
COARSE_POINTS, FINE_POINTS, REFINEMENTS = 21, 9, 2
ROUNDING = 1e-12


@dataclass(eq=False)
class ConsistencyCalibration(ProbitScaling):
    """Probit scaling whose noise is that of the lowest ECE; one parameter.

    Authors draw a thousand perturbations of each row and count votes; here their limit is
    integrated, to rounding, so nothing is random, no class has no vote for want of draws, and the
    order of the classes within every row is kept.

    eps is searched on a geometric grid around the noise that is most like temperature scaling,
    with two refinements, on all rows. By ECE, as authors do, it fits the noise of the bins;
    ``"nll"`` is a proper score, and what `ProbitScaling` finds quicker.

    Args:
        criterion: ``"ece"`` or ``"nll"``.
        n_bins: equal-width bins of the ECE.

    Attributes:
        noise_: eps, in the caller's units; uniform_: weight of the uniform distribution.

    References:
        Tao et al.: Consistency Calibration: Improving Uncertainty Calibration via Consistency among
        Perturbed Neighbors. arXiv 2410.12295, 2024.

    Examples:
        >>> import calibrant as cb
        >>> val = cb.load_sample("validation")
        >>> searched = cb.ConsistencyCalibration(criterion="nll").fit_predictions(val)
        >>> found = cb.ProbitScaling().fit_predictions(val)
        >>> abs(searched.noise_ / found.noise_ - 1) < 0.05  # the same but for the grid
        True
    """

    method: ClassVar[str] = "consistency"
    weighs: ClassVar[bool] = False
    most_rows: ClassVar[int | None] = None

    criterion: Literal["ece", "nll"] = argument("ece", choices=("ece", "nll"))
    n_bins: int = argument(15, at_least=1)

    def _search(self, rows: Predictions, report: FitReport) -> FitReport:
        logits = to_numpy(rows.scores).astype(np.float64)
        best, tried = np.inf, 0
        grid = self.noise_ * SPAN ** np.linspace(-1, 1, COARSE_POINTS)
        reach = SPAN ** (2 / (COARSE_POINTS - 1))
        for _ in range(1 + REFINEMENTS):
            for noise in grid.tolist():
                value = self._criterion(logits, rows, noise)
                tried += 1
                if value < best - ROUNDING:
                    best, self.noise_ = value, noise
            grid = self.noise_ * reach ** np.linspace(-1, 1, FINE_POINTS)
            reach **= 2 / (FINE_POINTS - 1)
        return FitReport(report.n, self.criterion, best, tried, notes=report.notes)

    def _criterion(self, logits: FloatArray, rows: Predictions, noise: float) -> float:
        if self.criterion == "nll":
            return self._nll(logits, rows, noise)
        predicted = logits.argmax(axis=1)
        shares = self._share_of(logits, predicted, noise)
        return binned_gap(shares, predicted == rows.labels, self.n_bins)
