"""A temperature for each class's own logit, by likelihood or by greedy search for a low ECE.

The search changes one column of the scores at a time, at a cost of N a candidate and not N K:
scaling class k leaves the other classes of a row as they are. Of those, the confidence needs only
the largest score, where it stands, and the sum of their exponentials relative to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from calibrant.core.arguments import argument
from calibrant.core.arrays import (
    BoolArray,
    FloatArray,
    IntArray,
    centred_copy,
    row_chunks,
)
from calibrant.core.errors import NotIdentifiedWarning
from calibrant.core.fit_report import FitReport
from calibrant.metrics.binned import binned_gaps
from calibrant.posthoc.facts import LINEAR, Facts
from calibrant.posthoc.fitting.cross_validation import difference_of_losses, folds_of
from calibrant.posthoc.fitting.minimizing import minimize
from calibrant.posthoc.linear.base import LinearMap
from calibrant.posthoc.linear.likelihood import (
    INPUTS,
    Inputs,
    LinearLikelihood,
)
from calibrant.posthoc.linear.optimum import SMALL_GRADIENT
from calibrant.posthoc.state import learnt
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.temperature import TemperatureFit

# Ends of a search among strengths needn't be known as well as the final fit.
SEARCH_TOLERANCE, SEARCH_STEPS = 1e-4, 50
# Pulls on a class that cross-validation tries, in units of one row's likelihood for each class,
# from the strongest; it ends once the loss has risen this often running. Weaker ones gain next to
# nothing with 5 000 rows; with 200 rows, ten of them wrong, one was chosen by noise.
SHRINKAGES, MOST_RISES = (30.0, 10.0, 3.0, 1.0), 2


class ClassFit(NamedTuple):
    """Outcome of `fit_logs`: (K,) log(T_k / T), the objective and how it was found."""

    logs: FloatArray
    value: float
    iterations: int
    converged: bool


def fit_logs(
    rows: LinearLikelihood,
    shrinkage: float,
    max_iterations: int,
    *,
    start: FloatArray | None = None,
    tolerance: float = 1e-7,
) -> ClassFit:
    """Minimise mean NLL + shrinkage K / N |u|^2 over u = log(T_k / T) by L-BFGS from 0 or `start`.

    K counts the classes that some row can be. A fit that falls short at the default tolerance is
    warned of.
    """
    n, classes = rows.total, int(rows.logits.shape[1])
    pull, bias = shrinkage * rows.possible / n, np.zeros(classes)

    def loss(logs: FloatArray) -> tuple[float, FloatArray]:
        ratios = np.exp(-logs)
        value, by_ratio, _ = rows.nll(ratios - 1, bias)
        gradient = 2 * pull * logs - by_ratio * ratios / n
        return value / n + pull * float(logs @ logs), gradient

    found = minimize(
        loss,
        bias if start is None else start,
        maxiter=max_iterations,
        gtol=tolerance,
        ftol=1e-6 * tolerance,
    )
    converged = bool(found.success) or float(np.abs(found.jac).max()) < SMALL_GRADIENT
    return ClassFit(found.x, float(found.fun), int(found.nit), converged)


def chosen_shrinkage(rows: LinearLikelihood, fold: IntArray) -> float:
    """Return the shrinkage with the lowest held-out NLL, infinity unless it clearly gains.

    "Clearly" is by more than the standard error of its paired difference to the single temperature
    (`difference_of_losses`), so that noise alone seldom leaves the single temperature.

    Args:
        rows: the likelihood of all rows.
        fold: (N,) the fold of each.
    """
    n, classes = rows.logits.shape
    folds, none = np.unique(fold).tolist(), np.zeros(classes)
    if len(folds) < 2:
        return np.inf
    parts = [(rows.take(fold != part), rows.take(fold == part), fold == part) for part in folds]
    logs, losses, single = dict.fromkeys(folds, none), np.empty(n), rows.losses(none, none)
    best, chosen, last, rises = single, np.inf, np.inf, 0
    for shrinkage in SHRINKAGES:
        for part, (seen, unseen, where) in zip(folds, parts, strict=True):
            fit = fit_logs(
                seen, shrinkage, SEARCH_STEPS, start=logs[part], tolerance=SEARCH_TOLERANCE
            )
            logs[part] = fit.logs
            losses[where] = unseen.losses(np.exp(-fit.logs) - 1, none)
        mean = float(losses.mean())
        rises = rises + 1 if mean > last else 0
        last = mean
        if mean < best.mean():
            best, chosen = losses.copy(), shrinkage
        if rises == MOST_RISES:
            break
    gain = difference_of_losses(single, best, len(folds))
    return chosen if gain.value > gain.error else np.inf


class ColumnSearch:
    """Scores beta_k z_k of (N, K) rows whose beta_k are changed one class at a time.

    Attributes:
        betas: (K,) as they are now.
    """

    def __init__(self, logits: FloatArray, labels: IntArray, beta: FloatArray, n_bins: int) -> None:
        """Take over finite float64 rows, which are scanned by column from now on."""
        self._columns = np.asfortranarray(logits)
        self._labels = labels
        self.betas = np.array(beta, dtype=np.float64)
        self._bins = n_bins
        rows = len(labels)
        self._first, self._second = np.empty(rows), np.empty(rows)
        self._first_at, self._second_at = (np.empty(rows, dtype=np.int64) for _ in range(2))
        self._total = np.empty(rows)
        every: IntArray = np.arange(rows)
        for part in row_chunks(logits):
            self._scan(every[part])

    def _scan(self, rows: IntArray) -> None:
        """Find the two largest scores of some rows, and the sum of exponentials below the first."""
        scores = self._columns[rows] * self.betas
        index = np.arange(len(rows))
        first = scores.argmax(axis=1)
        top = scores[index, first]
        self._first[rows], self._first_at[rows] = top, first
        self._total[rows] = np.exp(scores - top[:, None]).sum(axis=1)
        scores[index, first] = -np.inf
        second = scores.argmax(axis=1)
        self._second[rows], self._second_at[rows] = scores[index, second], second

    def shares(self) -> FloatArray:
        """Return the (K,) mean probabilities of the classes."""
        shares = np.empty(len(self.betas))
        for k, beta in enumerate(self.betas):
            column = self._columns[:, k] * beta
            shares[k] = np.mean(np.exp(column - self._first) / self._total)
        return shares

    def error(self) -> tuple[float, float]:
        """Return ECE and accuracy as things are now."""
        correct = np.asarray(self._first_at == self._labels, dtype=np.bool_).reshape(1, -1)
        errors, accuracies = self._measure(1 / self._total.reshape(1, -1), correct)
        return float(errors[0]), float(accuracies[0])

    def try_class(self, k: int, betas: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the ECE and the accuracy with each of `betas` for class `k`."""
        column = self._columns[:, k]
        largest, at, rest = self._others(k, column)
        # As argmax has it, the first of tied classes is the predicted one.
        before = k < at
        right_if_k: BoolArray = np.asarray(self._labels == k, dtype=np.bool_)
        right_if_other: BoolArray = np.asarray(at == self._labels, dtype=np.bool_)
        lead = betas[:, None] * column - largest
        wins = (lead > 0) | ((lead == 0) & before)
        small = np.exp(-np.abs(lead))
        correct = (wins & right_if_k) | (~wins & right_if_other)
        confidence = 1 / np.where(lead > 0, 1 + rest * small, rest + small)
        return self._measure(confidence, np.asarray(correct, dtype=np.bool_))

    def take(self, k: int, beta: float) -> None:
        """Set class `k`'s beta for good."""
        column = self._columns[:, k]
        old = column * self.betas[k]
        new = column * beta
        self.betas[k] = beta
        # Where class k is or comes among the two largest, everything is found afresh.
        rescan = (self._first_at == k) | (self._second_at == k) | (new >= self._second)
        kept = ~rescan
        first = self._first[kept]
        self._total[kept] += np.exp(new[kept] - first) - np.exp(old[kept] - first)
        rows = np.flatnonzero(rescan)
        for part in row_chunks(self._columns):
            if len(rows[part]):
                self._scan(rows[part])

    def _others(self, k: int, column: FloatArray) -> tuple[FloatArray, IntArray, FloatArray]:
        """Return the largest score but class k's, its class, and the sum of exponentials to it."""
        leads = self._first_at == k
        largest = np.where(leads, self._second, self._first)
        at = np.where(leads, self._second_at, self._first_at)
        below = column * self.betas[k] - self._first
        rest = self._total - np.exp(below)
        # What a leading class leaves of the sum may be lost to rounding.
        rows = np.flatnonzero(leads)
        for part in row_chunks(self._columns):
            some = rows[part]
            if len(some):
                scores = self._columns[some] * self.betas
                scores[:, k] = -np.inf
                rest[some] = np.exp(scores - largest[some, None]).sum(axis=1)
        return largest, at, rest

    def _measure(self, confidence: FloatArray, correct: BoolArray) -> tuple[FloatArray, FloatArray]:
        errors = binned_gaps(confidence, correct.astype(np.float64), self._bins)
        return errors, correct.mean(axis=1)


# A change of ECE, or of a count of rows, smaller than this is rounding.
ROUNDING = 1e-12
# Bound on the steps of the fit with the shrinkage that was chosen.
MOST_STEPS = 500


@dataclass(eq=False)
class _ClassTemperatures(LinearMap):
    """Family: softmax(x_k / T_k), x being log-probabilities or centred logits."""

    beta_: float = learnt(above=0)
    temperatures_: FloatArray = learnt("K", above=0)

    @property
    def n_parameters(self) -> int:
        """K, or one where all classes have the single temperature."""
        return self.n_classes_ if np.ptp(self.temperatures_) > 0 else 1

    def _start(self, predictions: Predictions) -> TemperatureFit:
        base = predictions.temperature
        self.beta_, self.temperatures_ = base.beta, np.full(self.n_classes_, 1 / base.beta)
        return base

    def _take(self, fit: ClassFit, report: FitReport) -> FitReport:
        self.temperatures_ = np.exp(fit.logs) / self.beta_
        return FitReport(
            report.n, "penalised nll", fit.value, fit.iterations, fit.converged, report.notes
        ).warned(self.method)

    def linear_map(self) -> tuple[FloatArray, FloatArray]:
        """Return (K,) 1 / T_k for W, and no bias."""
        return 1 / self.temperatures_, np.zeros(self.n_classes_)


@dataclass(eq=False)
class ClassTemperatureScaling(_ClassTemperatures):
    """softmax(x_k / T_k): a temperature for each class's own logit; K temperatures.

    By likelihood it is the map of `GradientClassTemperatureScaling`, whose shrinkage is chosen by
    five-fold cross-validation out of 30, 10, 3 and 1. Unless that gains on the single temperature
    by more than a standard error of the paired difference, the single one is taken for all classes.

    By ECE it is the published search. x are the centred logits, and all T_k start at the single
    temperature T of greatest likelihood. Then, class by class from the one with most probability to
    the one with least, T_k takes the value out of T times a geometric grid with which the ECE of
    all calibration rows is lowest, if that is lower than before and accuracy stays within
    `accuracy_loss` of what it was at the start. Sweeps over the classes go on until one changes
    nothing. A class that is no row's label keeps T. ECE is a step function of binned rows and no
    proper score, and K temperatures searched for it fit its noise. The search keeps of every row
    what doesn't depend on class k, so a candidate costs N, not N K.

    The predicted class may change. Where the single temperature isn't identified, or no row is
    wrong, all classes take it as it is.

    Held-out NLL minus that of the single temperature, ten draws (by ECE five) of the rows of a
    ResNet-50 (CIFAR-10) and a WideResNet-16-4 (CIFAR-100), with standard errors:

        =========  =====  ==============  ==============
        data       rows   nll             ece
        =========  =====  ==============  ==============
        CIFAR-10   200    +.0003 (.0003)  +.0367 (.0154)
        CIFAR-10   1 000  -.0007 (.0004)  +.0067 (.0019)
        CIFAR-10   5 000  -.0034 (.0001)  +.0096 (.0015)
        CIFAR-100  200    -.0001 (.0001)  +.1593 (.0202)
        CIFAR-100  1 000  -.0007 (.0003)  +.0563 (.0049)
        CIFAR-100  5 000  -.0054 (.0002)  +.0091 (.0015)
        =========  =====  ==============  ==============

    Args:
        criterion: ``"nll"`` or ``"ece"``. The others belong to the search for a low ECE:
        n_bins: equal-width bins of the ECE.
        span: the grid goes from T / span to T * span.
        candidates: values on the grid.
        sweeps: bound on sweeps over the classes.
        accuracy_loss: accuracy, as a fraction of rows, that may be lost from the start; 1 for any.

    Attributes:
        temperatures_: (K,) T_k; beta_: 1 / T. shrinkage_: that of cross-validation, or 0 where
            it took the single temperature, and by ECE.

    References:
        Frenkel & Goldberger: Network Calibration by Class-based Temperature Scaling. EUSIPCO 2021.
        There T_k is found by ECE, the grid is 0.1 to 10 whatever T is, and T itself the one of
        lowest ECE. Likelihood and shrinkage are this package's.

    Examples:
        >>> import calibrant as cb
        >>> rows = cb.synthetic.tempered(5_000, 3, temperature=2.0).predictions
        >>> cts = cb.posthoc.ClassTemperatureScaling().fit_predictions(rows)
        >>> cts.temperatures_.round(1), cts.shrinkage_  # classes don't differ, so they share one
        (array([2., 2., 2.]), 0.0)
    """

    method: ClassVar[str] = "cts"
    facts: ClassVar[Facts | None] = Facts(
        "class temperature scaling",
        LINEAR,
        "a few hundred passes over N x K",
        "few rows; the published search for a low ECE (criterion=ece) overfits and changes "
        "predicted classes",
    )

    criterion: Literal["nll", "ece"] = argument("nll", choices=("nll", "ece"))
    n_bins: int = argument(15, at_least=1)
    span: float = argument(4.0, above=1)
    candidates: int = argument(45, at_least=2)
    sweeps: int = argument(5, at_least=1)
    accuracy_loss: float = argument(0.0, at_least=0, at_most=1)

    shrinkage_: float = learnt(at_least=0)

    @property
    def cross_validates(self) -> bool:
        """Whether the shrinkage is chosen by rows held out."""
        return self.criterion != "ece"

    @property
    def x_is(self) -> Inputs:
        """Log-probabilities, or centred logits for the search by ECE."""
        return "centred" if self.criterion == "ece" else "log-probabilities"

    def _fit(self, predictions: Predictions) -> FitReport:
        base, self.shrinkage_ = self._start(predictions), 0.0
        report = base.report(predictions.n)
        if base.warning is not None:
            return report
        if self.criterion == "ece":
            return self._fit_by_ece(predictions, report)
        rows = LinearLikelihood.of(predictions, "log-probabilities", square=False)
        shrinkage = chosen_shrinkage(rows, folds_of(predictions))
        if np.isinf(shrinkage):
            return report.noting("cross-validation shows no clear gain of temperatures by class")
        self.shrinkage_ = shrinkage
        return self._take(fit_logs(rows, shrinkage, MOST_STEPS), report)

    def _fit_by_ece(self, predictions: Predictions, report: FitReport) -> FitReport:
        search = ColumnSearch(
            centred_copy(predictions.scores),
            predictions.labels,
            1 / self.temperatures_,
            self.n_bins,
        )
        ratios = self.span ** np.linspace(-1.0, 1.0, self.candidates)
        present = np.flatnonzero(np.bincount(predictions.labels, minlength=self.n_classes_))
        shares = search.shares()[present]
        order = present[np.argsort(-shares, kind="stable")]
        best, accuracy = search.error()
        lowest = accuracy - self.accuracy_loss - ROUNDING
        sweep, changed = 0, True
        while changed and sweep < self.sweeps:
            sweep, changed = sweep + 1, False
            for k in order:
                betas = self.beta_ / ratios
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

    over u from 0 by L-BFGS with the analytic gradient; K counts the classes that some row can be. x
    are the log-probabilities at T, in units of the logits. The origin of x matters, because
    dividing x_k alone moves it against the others. Centred logits tell the map, class by class, how
    sure the network is of its answer, and from few rows it learns too much of that. It is vector
    scaling without a bias whose weights stay positive. The predicted class may change. Where the
    logits can't be told from chance, all classes take the single temperature as it is.

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

    Examples:
        >>> import calibrant as cb
        >>> few = cb.synthetic.tempered(60, 3, temperature=1.0).predictions
        >>> for shrinkage in (0.01, 100.0):  # by itself, and drawn to the single temperature
        ...     cts = cb.posthoc.GradientClassTemperatureScaling(shrinkage).fit_predictions(few)
        ...     print(cts.temperatures_.round(2))
        [0.85 0.96 1.02]
        [0.94 0.95 0.95]
    """

    method: ClassVar[str] = "cts-gradient"
    facts: ClassVar[Facts | None] = Facts(
        "gradient class temperature scaling",
        LINEAR,
        "tens of passes over N x K",
        "many classes with few rows each; it changes predicted classes",
    )
    weighs: ClassVar[bool] = True
    fits_masked: ClassVar[bool] = True

    shrinkage: float = argument(1.0, above=0)
    max_iterations: int = argument(500, at_least=1)
    inputs: Inputs = argument("log-probabilities", choices=INPUTS)

    @property
    def x_is(self) -> Inputs:
        """What `inputs` says."""
        return self.inputs

    def _fit(self, predictions: Predictions) -> FitReport:
        base = self._start(predictions)
        report = base.report(predictions.n)
        if isinstance(base.warning, NotIdentifiedWarning):
            # Log-probabilities of rows that say nothing would act as a bias.
            return report
        rows = LinearLikelihood.of(predictions, self.inputs, square=False)
        return self._take(fit_logs(rows, self.shrinkage, self.max_iterations), report)
