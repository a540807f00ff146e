"""A temperature for each class's own logit, by likelihood or by greedy search for a low ECE."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from calibrant.core.arguments import argument
from calibrant.core.arrays import Array, FloatArray, to_numpy
from calibrant.core.errors import ConvergenceWarning, NotIdentifiedWarning, warn_caller
from calibrant.core.masks import centred_copy
from calibrant.posthoc.base import FitReport
from calibrant.posthoc.fitting.minimizing import minimize
from calibrant.posthoc.linear.base import LinearMap
from calibrant.posthoc.linear.column_search import ColumnSearch
from calibrant.posthoc.linear.inputs import INPUTS, Inputs, linear_inputs
from calibrant.posthoc.linear.likelihood import SMALL_GRADIENT, LinearLikelihood
from calibrant.posthoc.pieces import as_type, centred
from calibrant.posthoc.temperature.single import TemperatureFit, fit_temperature
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import summarize

# A change of ECE, or of a count of rows, smaller than this is rounding.
ROUNDING = 1e-12


@dataclass(eq=False)
class _ClassTemperatures(LinearMap):
    """Family: softmax(x_k / T_k), x being log-probabilities or centred logits."""

    temperatures_: FloatArray = field(init=False, repr=False)

    @property
    def n_parameters(self) -> int:
        """K."""
        return self.classes_

    def _start(self, predictions: Predictions) -> TemperatureFit:
        base = fit_temperature(summarize(predictions.scores, predictions.labels, curve="dense"))
        self.temperatures_ = np.full(self.classes_, 1 / base.beta)
        return base

    def linear_map(self) -> tuple[FloatArray, FloatArray]:
        """See `LinearMap.linear_map`."""
        return 1 / self.temperatures_, np.zeros(self.classes_)


@dataclass(eq=False)
class ClassTemperatureScaling(_ClassTemperatures):
    """softmax(z_k / T_k) with T_k found class by class, each lowering the ECE; K temperatures.

    All start at the single temperature T of greatest likelihood. Then, class by class from the one
    with most probability to the one with least, T_k takes the value out of T times a geometric grid
    with which the ECE of all calibration rows is lowest, if that is lower than before and accuracy
    stays within `accuracy_loss` of what it was at the start. Sweeps over the classes go on until
    one changes nothing. A class that is no row's label keeps T.

    The map depends on the origin of the logits: dividing only z_k moves it against the others. Here
    each row's mean is taken off first. Hence a class below the mean gains by a larger T_k. The
    predicted class may change. ECE is a step function of binned rows and no proper score, and K
    temperatures searched for it fit its noise: judge it on other rows, and prefer 'cts-gradient' or
    'predicted-class' where rows are few. Where the single temperature isn't identified, all classes
    take it as it is.

    The search keeps of every row what doesn't depend on class k, so a candidate costs N, not N K.

    Args:
        bins: equal-width bins of the ECE.
        span: the grid goes from T / span to T * span.
        candidates: values on the grid.
        sweeps: bound on sweeps over the classes.
        accuracy_loss: accuracy, as a fraction of rows, that may be lost from the start; 1 for any.

    Attributes:
        temperatures_: (K,) T_k.

    References:
        Frenkel & Goldberger: Network Calibration by Class-based Temperature Scaling. EUSIPCO 2021.
        There the grid is 0.1 to 10 whatever T is, and T itself the one of lowest ECE.
    """

    method: ClassVar[str] = "cts"

    bins: int = argument(15, at_least=1)
    span: float = argument(4.0, above=1)
    candidates: int = argument(45, at_least=2)
    sweeps: int = argument(5, at_least=1)
    accuracy_loss: float = argument(0.0, at_least=0, at_most=1)

    def inputs_of(self, xp: Any, logits: Array, learnt: Mapping[str, Array], masks: bool) -> Array:
        """Return centred logits."""
        return centred(xp, logits, masks)

    def _fit(self, predictions: Predictions) -> FitReport:
        base = self._start(predictions)
        report = base.report(predictions.n)
        if base.warning is not None:
            return report
        search = ColumnSearch(
            centred_copy(predictions.scores), predictions.labels, 1 / self.temperatures_, self.bins
        )
        ratios = self.span ** np.linspace(-1.0, 1.0, self.candidates)
        present = np.flatnonzero(np.bincount(predictions.labels, minlength=self.classes_))
        shares = search.shares()[present]
        order = present[np.argsort(-shares, kind="stable")]
        best, accuracy = search.error()
        lowest = accuracy - self.accuracy_loss - ROUNDING
        sweep, changed = 0, True
        while changed and sweep < self.sweeps:
            sweep, changed = sweep + 1, False
            for k in order:
                betas = base.beta / ratios
                errors, accuracies = search.try_class(k, betas)
                errors[accuracies < lowest] = np.inf
                chosen = int(errors.argmin())
                if errors[chosen] < best - ROUNDING:
                    best, changed = float(errors[chosen]), True
                    search.take(k, float(betas[chosen]))
        self.temperatures_ = 1 / search.betas
        # Ending at the planned number of sweeps is no failure.
        return FitReport(predictions.n, "ece", best, sweep, notes=report.notes)


@dataclass(eq=False)
class GradientClassTemperatureScaling(_ClassTemperatures):
    """softmax(x_k / T_k) with T_k > 0 by penalised likelihood; K temperatures.

    With T_k = T exp(u_k) and T the single temperature of greatest likelihood, it minimises

        mean NLL + shrinkage * K / N |u|^2

    over u from 0 by L-BFGS with the analytic gradient; K counts the classes that some row can be.
    x are the log-probabilities at T, in units of the logits, since the map depends on the origin of
    the logits: dividing only z_k moves it against the others. With centred logits it sees class by
    class how sure the network is of its answer, and with few rows learns too much of it. It is
    vector scaling without a bias whose weights stay positive. The predicted class may change. Where
    the logits can't be told from chance, all classes take the single temperature as it is.

    Held-out NLL minus that of the single temperature, five draws of the rows of a ResNet-50
    (CIFAR-10) and a WideResNet-16-4 (CIFAR-100), with standard errors:

        =============  =========  ==================  ==================
        x              rows       CIFAR-10            CIFAR-100
        =============  =========  ==================  ==================
        log p          200        +.0018 (.0009)      -.0004 (.0002)
        log p          1 000      -.0011 (.0004)      -.0018 (.0004)
        log p          5 000      -.0036 (.0001)      -.0054 (.0002)
        centred        200        +.0036 (.0024)      +.0016 (.0012)
        centred        1 000      -.0003 (.0017)      -.0024 (.0010)
        centred        5 000      -.0032 (.0002)      -.0101 (.0006)
        =============  =========  ==================  ==================

    Args:
        shrinkage: pull towards the single temperature, for each class in units of one row's
            likelihood.
        max_iterations: bound on L-BFGS steps.
        inputs: what x are: ``"log-probabilities"`` or ``"centred"`` logits.

    Attributes:
        temperatures_: (K,) T_k; beta_: 1 / T.

    References:
        Frenkel & Goldberger: Network Calibration by Class-based Temperature Scaling. EUSIPCO 2021,
        with likelihood for ECE; shrinkage is this package's.
    """

    method: ClassVar[str] = "cts-gradient"
    fits_masked: ClassVar[bool] = True

    shrinkage: float = argument(1.0, above=0)
    max_iterations: int = argument(500, at_least=1)
    inputs: Inputs = argument("log-probabilities", choices=INPUTS)

    beta_: float = field(init=False, repr=False)

    def inputs_of(self, xp: Any, logits: Array, learnt: Mapping[str, Array], masks: bool) -> Array:
        """Return log-probabilities or centred logits, as `inputs` says."""
        beta = as_type(xp, learnt["beta"], logits)
        return linear_inputs(xp, logits, self.inputs, beta, masks)

    def _fit(self, predictions: Predictions) -> FitReport:
        base = self._start(predictions)
        self.beta_ = base.beta
        report = base.report(predictions.n)
        if isinstance(base.warning, NotIdentifiedWarning):
            # Log-probabilities of rows that say nothing would act as a bias.
            return report
        rows, bias = predictions.n, np.zeros(self.classes_)
        scores = to_numpy(predictions.scores)
        possible = int((scores > -np.inf).any(axis=0).sum())
        likelihood = LinearLikelihood(
            scores, predictions.labels, base.beta, square=False, inputs=self.inputs
        )

        def loss(logs: FloatArray) -> tuple[float, FloatArray]:
            ratios = np.exp(-logs)
            value, by_ratio, _ = likelihood.nll(ratios - 1, bias)
            pull = self.shrinkage * possible / rows
            gradient = 2 * pull * logs - by_ratio * ratios / rows
            return value / rows + pull * float(logs @ logs), gradient

        found = minimize(
            loss,
            np.zeros(self.classes_),
            maxiter=self.max_iterations,
            gtol=1e-7,
            ftol=1e-13,
        )
        converged = bool(found.success) or float(np.abs(found.jac).max()) < SMALL_GRADIENT
        if not converged:
            message = f"class temperatures stopped after {found.nit} steps: {found.message}"
            warn_caller(ConvergenceWarning(message))
        self.temperatures_ = np.exp(found.x) / base.beta
        return FitReport(
            rows, "penalised nll", float(found.fun), int(found.nit), converged, report.notes
        )
