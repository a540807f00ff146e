"""Maps of one probability through its log odds: of the second of two classes, or of the top label.

With two classes there is one event, "it is class 1", and x = z_1 - z_0 are its log odds. Which
class is called 1 makes no difference to a map that is fitted by likelihood. With more classes the
event is "the predicted class is the true one", and x = log(c / (1 - c)) with the confidence c; the
other classes share what is left in their old proportions, and the predicted class is kept.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from calibrant.core import numpy_namespace as xnp
from calibrant.core.arguments import argument
from calibrant.core.arrays import Array, FloatArray, to_numpy
from calibrant.core.errors import BoundaryWarning
from calibrant.core.fit_report import FitReport
from calibrant.core.weights import mean
from calibrant.posthoc.applying import Learnt, apply_map
from calibrant.posthoc.array_ops import as_type, parted, sigmoid, softplus
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.confidence.base import rebuilt
from calibrant.posthoc.facts import ODDS, PASSES_OF_ONE, Facts
from calibrant.posthoc.fitting.cross_validation import folds_of
from calibrant.posthoc.fitting.minimizing import least_log_loss
from calibrant.posthoc.state import by_instance, learnt
from calibrant.predictions.predictions import SMALLEST_PROBABILITY, Predictions
from calibrant.predictions.temperature import warn_of

# Probabilities nearer to 0 or 1 than NLL can see count as that.
MOST_LOG_ODDS = -float(np.log(SMALLEST_PROBABILITY))


def _keeps_prediction(fitted: EventMap) -> bool:
    return fitted.form_ == "toplabel" or vars(fitted).get("n_classes_", 2) > 2


@dataclass(eq=False)
class EventMap(Calibrator):
    """Family: p' = sigmoid(g(x)), x the log odds of p."""

    keeps_prediction: ClassVar[bool] = by_instance(False, _keeps_prediction)
    fits_masked: ClassVar[bool] = True
    fits_top_label: ClassVar[bool] = True
    fits_scores: ClassVar[bool] = True
    weighs: ClassVar[bool] = True

    @abstractmethod
    def mapped_log_odds(self, xp: Any, log_odds: Array, learnt: Learnt) -> Array:
        """Return the (n,) log odds of p' of (n,) log odds of p, in float64; see `transform`."""

    def mapped_rows(
        self, xp: Any, log_odds: Array, features: Array | None, learnt: Learnt
    ) -> Array:
        """Return the same of rows whose features may be known; maps of one number ignore them."""
        return self.mapped_log_odds(xp, log_odds, learnt)

    def transform(
        self, xp: Any, logits: Array, features: Array | None, learnt: Learnt, *, masks: bool = True
    ) -> Array:
        """Return [1 - p', p'] of two classes, or rows rebuilt around the top label's p'."""
        log_odds = _event_log_odds(xp, logits, None, learnt, masks=masks)
        after = self.mapped_rows(xp, log_odds, features, learnt)
        if int(logits.shape[1]) > 2:
            return rebuilt(xp, logits, parted(xp, logits), sigmoid(xp, after), masks)
        probs = xp.stack([sigmoid(xp, -after), sigmoid(xp, after)], axis=1)
        if masks:
            free = xp.astype(logits > -xp.inf, xp.float64)
            alone = xp.sum(free, axis=1, keepdims=True) < 2
            probs = xp.where(alone, free, probs)
        return as_type(xp, probs, logits)


@dataclass(eq=False)
class LogOddsMap(EventMap):
    """Family: p' = sigmoid(w . b(x)), x the log odds of p, b a few functions of them.

    Attributes:
        weights_: (p,) coefficients w.
    """

    weights_: FloatArray = learnt("p")

    @abstractmethod
    def basis(self, xp: Any, log_odds: Array) -> list[Array]:
        """Return the p functions of (n,) log odds, each (n,), in float64."""

    @property
    def n_parameters(self) -> int:
        """Number of coefficients."""
        return len(self.weights_)

    def _fit(self, predictions: Predictions) -> FitReport:
        log_odds = event_log_odds(predictions.scores)
        columns = np.stack(self.basis(xnp, log_odds), axis=1)
        return self._fit_columns(columns, event_outcomes(predictions), predictions.weights)

    def _fit_columns(
        self, columns: FloatArray, outcome: FloatArray, weight: FloatArray | None
    ) -> FitReport:
        """Learn `weights_` from (N, p) columns, (N,) 0/1 outcomes and (N,) row weights."""
        found, notes = fit_or_smoothed(
            lambda smoothed: fit_event(columns, outcome, weight, smoothed=smoothed), self.method
        )
        self.weights_ = found.weights
        return report_of(found, len(outcome), notes)

    def mapped_log_odds(self, xp: Any, log_odds: Array, learnt: Learnt) -> Array:
        """Return w . b(x)."""
        weights = learnt["weights_"]
        total = xp.zeros_like(log_odds)
        for place, column in enumerate(self.basis(xp, log_odds)):
            total = total + weights[place] * column
        return total


def event_log_odds(logits: Array) -> FloatArray:
    """Return the (N,) log odds of the event that maps of this family are about, as NumPy."""
    return to_numpy(apply_map(_event_log_odds, logits, None, {}))


def event_outcomes(predictions: Predictions) -> FloatArray:
    """Return (N,) 1.0 where that event happened, else 0.0."""
    labels, logits = predictions.labels, predictions.scores
    if int(logits.shape[1]) == 2:
        return labels.astype(np.float64)
    predicted = to_numpy(apply_map(_predicted, logits, None, {}))
    return (predicted == labels).astype(np.float64)


def _event_log_odds(
    xp: Any, logits: Array, features: None, learnt: Learnt, *, masks: bool
) -> Array:
    if int(logits.shape[1]) == 2:
        wide = xp.astype(logits, xp.float64)
        log_odds = wide[:, 1] - wide[:, 0]
    else:
        rest = parted(xp, logits).rest
        log_odds = -xp.log(xp.clip(rest, SMALLEST_PROBABILITY, None))
    return xp.clip(log_odds, -MOST_LOG_ODDS, MOST_LOG_ODDS)


def _predicted(xp: Any, logits: Array, features: None, learnt: Learnt, *, masks: bool) -> Array:
    return xp.argmax(logits, axis=1)


# Holds all coefficients to 0 with the weight of a millionth of a row: it changes no fit that
# exists, and keeps finite those that have no optimum, so that they can be told from others.
RIDGE = 1e-6
# A fit has no optimum of its own if e times the ridge would move the log odds of a row this far.
MOST_MOVED = 1e-2
# A column that is smaller throughout says nothing, such as the log of probabilities of almost 1;
# nor does what is left of one, as a share of it, when the others are taken off.
SMALLEST_SCALE, SMALLEST_SHARE = 1e-9, 1e-9

Notes = tuple[str, ...]


class EventFit(NamedTuple):
    """Outcome of `fit_event`.

    Attributes:
        weights: (d,) coefficients of the columns.
        loss: mean log loss of the outcomes, in nats.
        steps: Newton's.
        converged: whether they ended.
        bounded: whether the likelihood has an optimum.
    """

    weights: FloatArray
    loss: float
    steps: int
    converged: bool
    bounded: bool


def fit_event(
    columns: FloatArray,
    outcome: FloatArray,
    weight: FloatArray | None = None,
    *,
    smoothed: bool = False,
) -> EventFit:
    """Minimise the log loss of sigmoid(X w) on 0/1 outcomes by Newton's method with halved steps.

    Args:
        columns: (N, d) X.
        outcome: (N,) 1.0 where the event happened, else 0.0.
        weight: (N,) how much each row counts, or None for once.
        smoothed: put Platt's targets (see `smoothed_targets`) in place of the outcomes.
    """
    count = np.ones(len(outcome)) if weight is None else weight
    target = smoothed_targets(outcome, count) if smoothed else outcome
    basis = _orthogonal(columns, count)
    design = columns @ basis
    nothing = np.zeros(design.shape[1])
    found, hessian = least_log_loss(design, target, count, nothing + RIDGE, nothing)
    w = found.place
    moved = design @ np.linalg.solve(hessian, RIDGE * w)
    linear = design @ w
    loss = np.average(np.logaddexp(0.0, linear) - outcome * linear, weights=count)
    bounded = float(np.abs(moved).max(initial=0.0)) < MOST_MOVED
    return EventFit(basis @ w, float(loss), found.steps, found.converged, bounded)


def _orthogonal(columns: FloatArray, count: FloatArray) -> FloatArray:
    """Return (d, r) such that the r <= d columns of X times it are orthogonal, of mean square 1.

    Functions of log odds that hardly vary are almost multiples of one another; how much the rows
    know of each can only be told apart from the others.
    """
    scale = np.sqrt(np.average(columns**2, axis=0, weights=count))
    scale = np.maximum(scale, SMALLEST_SCALE)
    rows = np.sqrt(count / count.sum())[:, None] * (columns / scale)
    _, size, directions = np.linalg.svd(rows, full_matrices=False)
    kept = size > SMALLEST_SHARE * max(float(size[0]), SMALLEST_SHARE)
    return directions[kept].T / size[kept] / scale[:, None]


def fit_or_smoothed(fit: Callable[[bool], EventFit], method: str) -> tuple[EventFit, Notes]:
    """Return the fit of greatest likelihood, or that to Platt's targets where there is none.

    That comes with a warning, which is also returned as the note of a fit report.

    Args:
        fit: returns a fit; takes whether it shall be to smoothed targets.
        method: what the warning calls it.
    """
    found = fit(False)
    if found.bounded:
        return found, ()
    message = (
        "the scores separate the outcomes without an error, so the likelihood has no maximum for "
        f"'{method}' gets; it was fitted to Platt's targets (N + 1) / (N + 2) and 1 / (N + 2) "
        "instead"
    )
    return fit(True), warn_of(BoundaryWarning(message))


def smoothed_targets(outcome: FloatArray, weight: FloatArray) -> FloatArray:
    """Return (N,) Platt's targets: (N1 + 1) / (N1 + 2) for events, 1 / (N0 + 2) for the others.

    As if one row more of either kind were doubtful, N1 and N0 being how many there are.
    """
    events = float(weight @ outcome)
    others = float(weight.sum()) - events
    return np.where(outcome > 0, (events + 1) / (events + 2), 1 / (others + 2))


def report_of(found: EventFit, rows: int, notes: Notes = ()) -> FitReport:
    """Return the fit report of so many calibration rows."""
    return FitReport(rows, "log loss", found.loss, found.steps, found.converged, notes)


Inputs = Literal["likelier", "log-odds", "probability"]
# Parts that are held out to tell which is likelier.
INPUT_FOLDS = 5


@dataclass(eq=False)
class PlattScaling(LogOddsMap):
    """p' = sigmoid(a x + b), x the log odds of p, fitted to Platt's smoothed targets.

    Of N1 events and N0 others, an event counts as (N1 + 1) / (N1 + 2) and another as 1 / (N0 + 2):
    then an optimum exists even if a threshold separates them. Two parameters. With two classes p is
    the probability of class 1, and the predicted class may change; with more it is the confidence,
    and the predicted class is kept.

    Args:
        inputs: what x is: ``"log-odds"``; or ``"probability"``, p itself, as code for a
            classifier's scores does if it is given probabilities. A sigmoid of p can't be the
            identity, and is never below sigmoid(b). It suits the votes of a forest, which are
            underconfident in the middle. ``"likelier"``: log odds, unless probabilities give
            held-out rows more likelihood.

    Attributes:
        weights_: (2,) a and b; where probabilities were chosen (3,) 0, a and b.

    References:
        Platt, Advances in Large Margin Classifiers, 1999.

    Examples:
        >>> import calibrant as cb
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> honest = rng.normal(size=20_000)  # log odds
        >>> labels = rng.random(20_000) < 1 / (1 + np.exp(-honest))
        >>> rows = cb.Predictions.from_binary(2 * honest + 1, labels, kind="logit")
        >>> cb.posthoc.PlattScaling().fit_predictions(rows).weights_.round(1)  # undoes it
        array([ 0.5, -0.5])
    """

    method: ClassVar[str] = "platt"
    facts: ClassVar[Facts | None] = Facts(
        "Platt scaling",
        ODDS,
        PASSES_OF_ONE,
        "confidences that are wrong in the middle and right at both ends",
    )

    inputs: Inputs = argument("likelier", choices=("likelier", "log-odds", "probability"))

    @property
    def n_parameters(self) -> int:
        """Two."""
        return 2

    @property
    def cross_validates(self) -> bool:
        """Whether x is chosen by cross-validation."""
        return self.inputs == "likelier"

    def basis(self, xp: Any, log_odds: Array) -> list[Array]:
        """Return x and 1; or log odds, probabilities and 1."""
        inputs = {"log-odds": log_odds, "probability": sigmoid(xp, log_odds)}
        chosen = [inputs[self.inputs]] if self.inputs in inputs else [*inputs.values()]
        return [*chosen, xp.ones_like(log_odds)]

    def mapped_log_odds(self, xp: Any, log_odds: Array, learnt: Learnt) -> Array:
        """Return the (n,) log odds of p' of (n,) log odds of p; see `transform`."""
        if self.inputs == "likelier" and int(learnt["weights_"].shape[0]) == 2:
            return learnt["weights_"][0] * log_odds + learnt["weights_"][1]
        return super().mapped_log_odds(xp, log_odds, learnt)

    def _fit(self, predictions: Predictions) -> FitReport:
        if self.inputs != "likelier":
            return super()._fit(predictions)
        log_odds, outcome = event_log_odds(predictions.scores), event_outcomes(predictions)
        logs, probs, one = self.basis(xnp, log_odds)
        of_logs, of_probs = np.stack([logs, one], axis=1), np.stack([probs, one], axis=1)
        chosen, likelier = of_logs, False
        if _is_likelier(of_probs, of_logs, outcome, predictions):
            chosen, likelier = of_probs, True
        report = self._fit_columns(chosen, outcome, predictions.weights)
        if likelier:
            self.weights_ = np.concatenate([[0.0], self.weights_])
            return report.noting(LIKELIER)
        return report

    def _fit_columns(
        self, columns: FloatArray, outcome: FloatArray, weight: FloatArray | None
    ) -> FitReport:
        found = fit_event(columns, outcome, weight, smoothed=True)
        self.weights_ = found.weights
        return report_of(found, len(outcome))


LIKELIER = "uses probabilities in place of log odds, because held-out rows favour them"


def _is_likelier(
    first: FloatArray, second: FloatArray, outcome: FloatArray, predictions: Predictions
) -> bool:
    """Return whether held-out rows speak for the first (N, 2) columns."""
    folds = min(INPUT_FOLDS, predictions.n)
    clusters, weights = predictions.clusters, predictions.weights
    if folds < 2 or (clusters is not None and len(np.unique(clusters)) < 2):
        return False
    fold = folds_of(predictions, folds, blind=True)
    losses = np.empty((2, predictions.n))
    for part in np.unique(fold):
        away = fold == part
        seen = None if weights is None else weights[~away]
        for place, columns in enumerate((first, second)):
            w = fit_event(columns[~away], outcome[~away], seen, smoothed=True).weights
            linear = columns[away] @ w
            losses[place, away] = np.logaddexp(0.0, linear) - outcome[away] * linear
    return mean(losses[0], weights) < mean(losses[1], weights)


@dataclass(eq=False)
class AffineScaling(LogOddsMap):
    """p' = sigmoid(a x + b), x the log odds of p, by maximum likelihood.

    Platt scaling without smoothed targets, and beta calibration of the form "am". With few rows the
    targets of `PlattScaling` are safer; with many the two agree. If a threshold separates events
    from others there is no optimum; Platt's targets are then used, with a `BoundaryWarning`.

    Attributes:
        weights_: (2,) a and b.

    References:
        Cox, Biometrika 1958.

    Examples:
        >>> import calibrant as cb
        >>> rows = cb.Predictions.from_binary([0.9] * 4 + [0.1] * 4, [1, 1, 1, 0, 1, 0, 0, 0])
        >>> after = cb.posthoc.AffineScaling().fit_predictions(rows).apply_predictions(rows)
        >>> after.positive_probs[[0, -1]].round(3)  # three of four, and one of four
        array([0.75, 0.25])
    """

    method: ClassVar[str] = "affine"
    facts: ClassVar[Facts | None] = Facts(
        "affine scaling",
        ODDS,
        PASSES_OF_ONE,
        "as platt, whose smoothed targets do better with few rows",
    )

    def basis(self, xp: Any, log_odds: Array) -> list[Array]:
        """Return x and 1."""
        return [log_odds, xp.ones_like(log_odds)]


@dataclass(eq=False)
class QuadraticScaling(LogOddsMap):
    """p' = sigmoid(a x^2 + b x + c), x the log odds of p, by maximum likelihood.

    Three parameters, so the curve can also bend. It isn't monotone: beyond -b / (2 a) it turns
    around, so far outside the calibration rows it may give the opposite of the truth.

    Attributes:
        weights_: (3,) a, b and c.

    References:
        Berta, Holzmueller, Jordan, Bach: Structured Matrix Scaling. arXiv 2511.03685, 2025.

    Examples:
        >>> import calibrant as cb
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> x = rng.normal(size=20_000)
        >>> labels = rng.random(20_000) < 1 / (1 + np.exp(-(x + 0.5 * x**2)))
        >>> rows = cb.Predictions.from_binary(x, labels, kind="logit")
        >>> round(float(cb.posthoc.QuadraticScaling().fit_predictions(rows).weights_[0]), 1)
        0.5
    """

    method: ClassVar[str] = "quadratic"
    facts: ClassVar[Facts | None] = Facts(
        "quadratic scaling",
        ODDS,
        PASSES_OF_ONE,
        "rows far outside those it was fitted to: it turns around there",
    )

    def basis(self, xp: Any, log_odds: Array) -> list[Array]:
        """Return x^2, x and 1."""
        return [log_odds * log_odds, log_odds, xp.ones_like(log_odds)]


BetaForm = Literal["abm", "am", "ab"]


@dataclass(eq=False)
class BetaCalibration(LogOddsMap):
    """logit p' = a log p - b log(1 - p) + c, a and b of at least 0, by maximum likelihood.

    The map that is right where the scores of either outcome follow a beta distribution. Unlike
    Platt scaling it has the identity for a = b = 1, and S-shaped and inverse S-shaped maps around
    it. A coefficient that would be negative is 0, and the others are fitted again, so the map never
    falls.

    Args:
        form: ``"abm"``, three parameters; ``"am"`` with a = b, which is `AffineScaling`;
            ``"ab"`` with p' = 1/2 at p = 1/2.

    Attributes:
        weights_: (3,) a, b and c.

    References:
        Kull, Silva Filho, Flach: Beta calibration. AISTATS 2017.

    Examples:
        >>> import calibrant as cb
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> labels = rng.random(40_000) < 0.5
        >>> scores = np.where(labels, rng.beta(3, 1, 40_000), rng.beta(1, 2, 40_000))
        >>> rows = cb.Predictions.from_binary(scores, labels)
        >>> a, b, _ = cb.posthoc.BetaCalibration().fit_predictions(rows).weights_
        >>> round(float(a)), round(float(b))  # 3 - 1 and 2 - 1
        (2, 1)
    """

    method: ClassVar[str] = "beta"
    facts: ClassVar[Facts | None] = Facts(
        "beta calibration",
        ODDS,
        PASSES_OF_ONE,
        "errors that change sign along the scale: it has three parameters",
    )

    form: BetaForm = argument("abm", choices=("abm", "am", "ab"))

    @property
    def n_parameters(self) -> int:
        """Three, or two in the shorter forms."""
        return len(self.form)

    @property
    def midpoint_(self) -> float:
        """The p at which p' is 1/2; NaN where there is none, or more than one."""
        from scipy.optimize import brentq

        a, b, c = self.weights_.tolist()
        ends = -50.0, 50.0

        def log_odds(x: float) -> float:
            return -a * float(np.logaddexp(0, -x)) + b * float(np.logaddexp(0, x)) + c

        if not log_odds(ends[0]) < 0 < log_odds(ends[1]):
            return float("nan")
        return float(1 / (1 + np.exp(-brentq(log_odds, *ends))))

    def basis(self, xp: Any, log_odds: Array) -> list[Array]:
        """Return log p, -log(1 - p) and 1."""
        return [-softplus(xp, -log_odds), softplus(xp, log_odds), xp.ones_like(log_odds)]

    def _fit_columns(
        self, columns: FloatArray, outcome: FloatArray, weight: FloatArray | None
    ) -> FitReport:
        first, *limited = self._parameters()

        def fit(smoothed: bool) -> EventFit:
            def of(spread: FloatArray) -> EventFit:
                found = fit_event(columns @ spread, outcome, weight, smoothed=smoothed)
                return found._replace(weights=spread @ found.weights)

            free = of(first)
            if _rises(free):
                return free
            # The likelihood is concave, so its best place within limits lies on one of them.
            return min(filter(_rises, map(of, limited)), key=lambda found: found.loss)

        found, notes = fit_or_smoothed(fit, self.method)
        self.weights_ = found.weights
        return report_of(found, len(outcome), notes)

    def _parameters(self) -> list[FloatArray]:
        """Return what a, b and c are made of, (3, d) for d free parameters.

        First without limits, then with a or b at 0, and last with both.
        """
        a, b, c = np.eye(3)
        if self.form == "am":
            ways = [[a + b, c], [c]]
        elif self.form == "abm":
            ways = [[a, b, c], [a, c], [b, c], [c]]
        else:  # log p and log(1 - p) are both log(1 / 2) in the middle
            a, b = a + np.log(2.0) * c, b - np.log(2.0) * c
            ways = [[a, b], [a], [b], [0 * c]]
        return [np.stack(way, axis=1) for way in ways]


def _rises(found: EventFit) -> bool:
    return bool((found.weights[:2] >= 0).all())
