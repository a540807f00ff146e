"""Scaling maps fitted to "is the predicted class right?" instead of "which class is it?"."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arguments import argument
from calibrant.core.arrays import FloatArray, sigmoid, to_numpy
from calibrant.core.fit_report import FitReport
from calibrant.core.weights import times
from calibrant.posthoc.facts import LINEAR, Facts
from calibrant.posthoc.fitting.minimizing import minimize
from calibrant.posthoc.linear.base import PenalisedMap
from calibrant.posthoc.linear.likelihood import LinearLikelihood
from calibrant.posthoc.linear.optimum import LinearFit, fit_linear
from calibrant.posthoc.state import by_instance
from calibrant.predictions.predictions import Predictions

# Temperatures are sought within this factor of that of greatest likelihood, whose logarithm it is.
LOG_RANGE = 3.0
# As good as exact; the objective needn't be convex, so there is no certificate.
FLAT = 1e-14


@dataclass(eq=False)
class TopVersusAll(PenalisedMap):
    """softmax(w * x + b) fitted to the correctness of the predicted class alone (TvA).

    With a_i = 1 where row i's predicted class t is right, and q = softmax(w * x + b), it minimises

        mean_i -[a_i log q_it + (1 - a_i) log(1 - q_it)] + penalty:

    the likelihood of one event, whatever the other classes get. So confidences are fitted, and the
    probabilities of the other classes aren't; with two classes it is the likelihood of the row. x
    are the log-probabilities of temperature scaling, T by likelihood, and the fit starts there. One
    temperature keeps every prediction; with a weight for each class, t is the class predicted
    before the map, and the penalty is that of `StructuredVectorScaling`. Maps of the confidence
    alone, such as `PlattScaling` or `IsotonicRegression`, are fitted like this anyway.

    Args:
        ridge: factor of the penalty on w - 1 and b; one temperature has no penalty.
        max_iterations: bound on L-BFGS steps.
        inputs: what x are, ``"log-probabilities"`` or ``"centred"`` logits over T.
        scaling: ``"temperature"``, w a number and b = 0; or ``"vector"``, one of each for a class.

    Attributes:
        beta_: 1 / T of greatest likelihood; change_: (K,) w - 1 in units of it; bias_: (K,) b.

    References:
        Le Coz, Herbin, Adjed: Confidence Calibration of Classifiers with Many Classes. NeurIPS
        2024. There the predicted class is that after the map, and Adam takes 200 epochs.

    Examples:
        >>> import calibrant as cb
        >>> rows, losses = cb.load_sample("validation"), []
        >>> for method in (cb.TemperatureScaling(), cb.posthoc.TopVersusAll()):
        ...     probs = method.fit_predictions(rows).predict_proba(rows.logits)
        ...     losses.append(cb.metrics.top_label_nll(probs, rows.labels))
        >>> losses[1] < losses[0]
        True
    """

    method: ClassVar[str] = "tva"
    facts: ClassVar[Facts | None] = Facts(
        "top-versus-all scaling",
        LINEAR,
        "tens of passes over N x K",
        "where more than the top class's probability is used: the others are not fitted",
    )
    keeps_prediction: ClassVar[bool] = by_instance(True, lambda one: one.scaling == "temperature")

    scaling: Literal["temperature", "vector"] = argument(
        "temperature", choices=("temperature", "vector")
    )

    @property
    def n_parameters(self) -> int:
        """One, or 2 K + 1."""
        return 1 if self.scaling == "temperature" else 2 * self.n_classes_ + 1

    def _penalties(self, rows: float, classes: int) -> FloatArray:
        return np.full(2 * classes, self.ridge * classes / rows)

    def _fit(self, predictions: Predictions) -> FitReport:
        base, rows = predictions.temperature, predictions.summary
        report = self._took_temperature(predictions, self.n_classes_)
        if base.warning is not None or not 0 < rows.correct.sum() < rows.n:
            return report  # nothing would be certain, or everything: T has the last word
        likelihood = TopLikelihood(
            to_numpy(predictions.scores),
            rows.predicted,
            base.beta,
            square=False,
            inputs=self.x_is,
            weights=predictions.weights,
            correct=rows.correct.astype(np.float64),
        )
        found = one_temperature(likelihood, self.max_iterations)
        if self.scaling == "vector":
            penalties = self._penalties(likelihood.total, self.n_classes_)
            found = fit_linear(likelihood, penalties, self.max_iterations, start=found)
        self.change_, self.bias_ = found.change, found.bias
        of_fit = found._replace(gap=np.inf).report(self.method, rows.n, report.notes)
        return replace(of_fit, objective="top-label nll")


@dataclass(frozen=True, eq=False)
class TopLikelihood(LinearLikelihood):
    """The summed log loss of "the predicted class is right", as a function of a diagonal map.

    Attributes:
        labels: (N,) the predicted classes; correct: (N,) 1.0 where that is the true one, else 0.0.
    """

    correct: FloatArray = field(default_factory=lambda: np.empty(0))

    def nll(
        self, change: FloatArray, bias: FloatArray, probs: NDArray[np.float32] | None = None
    ) -> tuple[float, FloatArray, FloatArray]:
        """Return the sum, and its gradients by C and b."""

        def sums(rows: Any) -> tuple[FloatArray, ...]:
            scores = rows.inputs * (1 + change) + bias
            if rows.masked is not None:
                scores[rows.masked] = -np.inf
            index = np.arange(len(scores)), rows.labels
            own = scores[index]
            scores[index] = -np.inf
            most = scores.max(axis=1)
            others = np.exp(scores - most[:, None])
            whole = others.sum(axis=1)
            log_odds, correct = own - most - np.log(whole), self.correct[rows.part]
            losses = times(np.logaddexp(0.0, (1 - 2 * correct) * log_odds), rows.weights)
            slope = times(sigmoid(log_odds) - correct, rows.weights)
            # Log odds rise with the own score, and fall with the others by their shares.
            others *= -(slope / whole)[:, None]
            others[index] = slope
            by_bias = others.sum(axis=0)
            others *= rows.inputs
            return losses.sum(), others.sum(axis=0), by_bias

        value, by_change, by_bias = self._over_chunks(sums)
        return float(value), by_change, by_bias


def one_temperature(rows: TopLikelihood, max_iterations: int) -> LinearFit:
    """Return the fit of one temperature, from the best of a few to begin with."""
    classes = int(rows.logits.shape[1])
    bias = np.zeros(classes)

    def loss(vector: FloatArray) -> tuple[float, FloatArray]:
        factor = float(np.exp(vector[0]))
        value, by_change, _ = rows.nll(np.full(classes, factor - 1), bias)
        return value / rows.total, np.array([factor * by_change.sum() / rows.total])

    start = min(np.linspace(-LOG_RANGE, LOG_RANGE, 13), key=lambda log: loss(np.array([log]))[0])
    limits = [(-LOG_RANGE, LOG_RANGE)]
    found = minimize(
        loss, np.array([start]), bounds=limits, maxiter=max_iterations, ftol=FLAT, gtol=1e-9
    )
    change = np.full(classes, float(np.exp(found.x[0])) - 1)
    converged, message = bool(found.success), str(found.message)
    return LinearFit(change, bias, float(found.fun), int(found.nit), converged, message)
