"""Temperature scaling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from calibrant.core.arrays import Array
from calibrant.posthoc.base import FitReport
from calibrant.posthoc.learnt import learnt
from calibrant.posthoc.temperature.per_row import SummaryTemperature
from calibrant.predictions.rows import RowSummary
from calibrant.predictions.temperature import fit_temperature


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

    def betas(self, xp: Any, logits: Array, learnt: Mapping[str, Array], masks: bool) -> Array:
        """Return the one inverse temperature."""
        return learnt["beta_"]
