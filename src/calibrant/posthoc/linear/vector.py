"""A weight and a bias for each class: vector scaling, and structured scaling with few penalties."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arguments import argument
from calibrant.core.arrays import FloatArray, IntArray
from calibrant.core.fit_report import FitReport
from calibrant.posthoc.facts import LINEAR, Facts
from calibrant.posthoc.fitting.cross_validation import NO_CLEAR_GAIN, gains_on_temperature
from calibrant.posthoc.linear.base import PenalisedMap, refuse_many_classes
from calibrant.posthoc.linear.likelihood import INPUTS, InputChoice, Inputs
from calibrant.posthoc.linear.pulls import likelier_inputs
from calibrant.posthoc.state import learnt
from calibrant.predictions.predictions import Predictions


@dataclass(eq=False)
class VectorScaling(PenalisedMap):
    """softmax(w * x + b) with a weight and a bias for each class, by penalised likelihood.

    The predicted class may change. x are the log-probabilities of temperature scaling: with the
    logits z themselves the map would depend on their arbitrary origin. They are measured in units
    of the fitted temperature T, so that w = 1, b = 0 is temperature scaling. The fit starts there
    and is drawn towards it by a ridge, ``ridge / N * (|w - 1|^2 + |b|^2)``: with many classes and
    few rows the unpenalised maximum overfits. So does this one with a hundred classes and a
    thousand rows; `StructuredVectorScaling` is the same map with a ridge that grows with K. So it
    is taken only where cross-validation sees a gain. Convex; 2 K parameters.

    Args:
        ridge: strength of the pull towards temperature scaling, in units of one row's likelihood.
        max_iterations: bound on L-BFGS steps.
        inputs: what x are: ``"log-probabilities"``, or ``"centred"`` logits, their row mean off.
        guard: take temperature scaling unless the map gains on it by more than a standard error of
            the paired difference, in five-fold cross-validation. False is the map as published.

    Attributes:
        weight_: (K,) w, in the caller's units; bias_: (K,) b.
        beta_: 1 / T; change_: (K,) w - 1 in units of T.

    References:
        Guo et al.: On Calibration of Modern Neural Networks. ICML 2017. There x are the logits with
        whatever origin the network gives them.

    Examples:
        >>> import calibrant as cb
        >>> import numpy as np
        >>> honest = cb.synthetic.tempered(5_000, 3, temperature=1.0).predictions
        >>> biased = honest.logits + np.asarray([0.0, 0.0, 1.0])  # favours class 2
        >>> vector = cb.posthoc.VectorScaling().fit(biased, honest.labels)
        >>> print(f"{vector.bias_[2] - vector.bias_[0]:.0f}")
        -1
    """

    method: ClassVar[str] = "vector"
    facts: ClassVar[Facts | None] = Facts(
        "vector scaling",
        LINEAR,
        "tens of passes over N x K",
        "fewer rows than about ten a class; it changes predicted classes",
    )

    ridge: float = argument(1.0, at_least=0)
    guard: bool = argument(True)

    @property
    def cross_validates(self) -> bool:
        """Whether the guard compares it with temperature scaling on rows held out."""
        return self.guard

    @property
    def n_parameters(self) -> int:
        """2 K, or one where temperature scaling was taken."""
        fitted = self.change_.any() or self.bias_.any()
        return 2 * self.n_classes_ if fitted else 1

    def _fit(self, predictions: Predictions) -> FitReport:
        if self.guard:
            unguarded = replace(self, guard=False)
            if not gains_on_temperature(unguarded, predictions):
                return self._took_temperature(predictions, self.n_classes_).noting(NO_CLEAR_GAIN)
        return super()._fit(predictions)

    def _penalties(self, rows: float, classes: int) -> FloatArray:
        return np.full(2 * classes, self.ridge / rows)


@dataclass(eq=False)
class StructuredVectorScaling(PenalisedMap):
    """softmax((1 + v) * z' + b), with a ridge of K / N on v and on b; 2 K + 1 parameters.

    z' are the log-probabilities of temperature scaling, T by likelihood. The objective is

        mean NLL + ridge K / N (|v|^2 + |b|^2)

    strictly convex, so its optimum is unique; where rows are few for so many classes it stays next
    to temperature scaling, and nothing needs tuning. The predicted class may change. It corrects an
    error of a class in all rows, not in some of them: confidences that are wrong at small margins
    stay wrong.

    Args:
        ridge: factor of the penalty; 1 is the paper's.
        max_iterations: bound on L-BFGS steps.
        inputs: what z' are: ``"log-probabilities"``, as in the paper, or ``"centred"`` logits over
            T. On public networks with 100 classes, held-out NLL with log-probabilities was lower or
            the same with 1 000 rows or fewer (on one by .0105 at 1 000 rows, standard error .0025);
            with 5 000 rows it was lower on one and higher on another, by .004 both times.

    Attributes:
        beta_: 1 / T; change_: (K,) v; bias_: (K,) b.

    References:
        Berta, Holzmueller, Jordan, Bach: arXiv 2511.03685, 2025. There the first step also mixes
        the rows with the uniform distribution; here it does not.

    Examples:
        >>> import calibrant as cb
        >>> few = cb.synthetic.tempered(100, 5).predictions
        >>> from calibrant.posthoc import StructuredVectorScaling
        >>> for method in (cb.posthoc.VectorScaling(guard=False), StructuredVectorScaling()):
        ...     change = method.fit_predictions(few).change_
        ...     print(f"{abs(change).max():.2f}")  # with few rows the second holds back
        0.62
        0.28
    """

    method: ClassVar[str] = "svs"
    facts: ClassVar[Facts | None] = Facts(
        "structured vector scaling",
        LINEAR,
        "tens of passes over N x K",
        "where classes are alike it is temperature scaling",
    )

    @property
    def n_parameters(self) -> int:
        """2 K + 1."""
        return 2 * self.n_classes_ + 1

    def _penalties(self, rows: float, classes: int) -> FloatArray:
        return np.full(2 * classes, self.ridge * classes / rows)


@dataclass(eq=False)
class StructuredMatrixScaling(PenalisedMap):
    """softmax((I + diag(v) + M) z' + b), M without a diagonal, by penalised likelihood.

    z' are the log-probabilities of temperature scaling, T by likelihood, or the centred logits over
    T, whichever gives rows held out more likelihood. The objective is

        mean NLL + ridge / N (K |v|^2 + K |b|^2 + K (K - 1) |M|^2)

    strictly convex. Since M has K (K - 1) entries, each is pulled to zero that much harder, and for
    many classes the map is that of `StructuredVectorScaling`. K^2 + K + 1 parameters; a step costs
    N K^2. The predicted class may change. Where classes are not confused in a lasting pattern it
    adds nothing to the vector map.

    Args:
        ridge: factor of the penalty; 1 is the paper's.
        max_iterations: bound on L-BFGS steps.
        inputs: what z' are: ``"log-probabilities"``, as in the paper; ``"centred"`` logits over T;
            or ``"likelier"``, the one of the lower held-out NLL in as many of five folds as hold
            2 000 rows. On public networks of 100 classes with 5 000 rows log-probabilities were
            better by .002 and .029; with 200 rows they cost .005.
        most_classes: refuse to fit a matrix for more classes, where a fit takes minutes.

    Attributes:
        beta_: 1 / T; change_: (K, K) diag(v) + M; bias_: (K,) b; log_probabilities_: 1 where z' are
            log-probabilities, else 0.

    References:
        Berta, Holzmueller, Jordan, Bach: arXiv 2511.03685, 2025. There the first step also mixes
        the rows with the uniform distribution; here it does not.

    Examples:
        >>> import calibrant as cb
        >>> val = cb.load_sample("validation")
        >>> sms, svs = cb.posthoc.StructuredMatrixScaling(), cb.posthoc.StructuredVectorScaling()
        >>> [method.fit_predictions(val).n_parameters for method in (sms, svs)]  # 10 * 9 more
        [111, 21]
    """

    method: ClassVar[str] = "sms"
    facts: ClassVar[Facts | None] = Facts(
        "structured matrix scaling",
        LINEAR,
        "N x K x K numbers a step",
        "more than a few hundred classes, which it refuses; it changes predicted classes",
    )

    most_classes: int = argument(300, at_least=2)
    inputs: InputChoice = argument("likelier", choices=("likelier", *INPUTS))

    change_: FloatArray = learnt("K", "K")
    log_probabilities_: float = learnt(at_least=0, at_most=1)

    @property
    def cross_validates(self) -> bool:
        """Whether inputs are chosen by rows held out."""
        return self.inputs == "likelier"

    @property
    def n_parameters(self) -> int:
        """K^2 + K + 1."""
        return self.n_classes_**2 + self.n_classes_ + 1

    @property
    def x_is(self) -> Inputs:
        """What was chosen, or what `inputs` says."""
        if self.inputs == "likelier":
            return "log-probabilities" if self.log_probabilities_ else "centred"
        return "centred" if self.inputs == "centred" else "log-probabilities"

    def settled(
        self, predictions: Predictions, fold: IntArray | None = None
    ) -> StructuredMatrixScaling:
        """Return it with the inputs that it chooses by these rows."""
        if self.inputs != "likelier":
            return self
        refuse_many_classes(self.method, predictions.n_classes or 0, self.most_classes)
        return replace(self, inputs=self._likelier(predictions))

    def bare(self) -> Self:
        """Return a calibrator that has learnt nothing but what its map reads."""
        other = super().bare()
        other.inputs = self.x_is
        return other

    def _likelier(self, predictions: Predictions) -> Inputs:
        return likelier_inputs(predictions, self._penalties, self.max_iterations)

    def _fit(self, predictions: Predictions) -> FitReport:
        refuse_many_classes(self.method, self.n_classes_, self.most_classes)
        chosen = self._likelier(predictions) if self.inputs == "likelier" else self.inputs
        self.log_probabilities_ = float(chosen == "log-probabilities")
        return super()._fit(predictions)

    def _penalties(self, rows: float, classes: int) -> FloatArray:
        matrix = np.full((classes, classes), float(classes * (classes - 1)))
        np.fill_diagonal(matrix, classes)
        every = np.concatenate([matrix.ravel(), np.full(classes, float(classes))])
        return self.ridge / rows * every

    @classmethod
    def older_state(cls) -> dict[str, NDArray[Any]]:
        """Return what files don't hold that were written before inputs were chosen."""
        return {"log_probabilities_": np.asarray(0.0)}
