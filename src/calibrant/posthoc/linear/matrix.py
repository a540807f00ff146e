"""Matrix scaling and Dirichlet calibration: every class's score may move every other's.

Off-diagonal and intercept regularisation (ODIR): penalised fits of softmax((I + D) x + b).

The penalties are the paper's normalised ones, added to the mean negative log-likelihood,

    lambda / (K (K - 1)) sum_{i != j} d_ij^2  +  mu / K sum_j b_j^2,

means over entries, so one strength says the same of ten classes and of a hundred. The diagonal is
free but for a pull as strong as one row, without which separable rows would have no optimum.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from calibrant.core import numpy_namespace as xnp
from calibrant.core.arguments import argument
from calibrant.core.arrays import Array, FloatArray, IntArray, to_numpy
from calibrant.core.errors import BoundaryWarning, NotApplicableError
from calibrant.core.fit_report import FitReport
from calibrant.posthoc.applying import Learnt
from calibrant.posthoc.array_ops import centred, largest, still_masked, sums
from calibrant.posthoc.facts import LINEAR, Facts
from calibrant.posthoc.fitting.cross_validation import (
    NO_CLEAR_GAIN,
    Worth,
    clearly_lower,
    folds_of,
)
from calibrant.posthoc.linear.base import (
    LinearMap,
    PenalisedMap,
    refuse_many_classes,
)
from calibrant.posthoc.linear.likelihood import INPUTS, InputChoice, Inputs, LinearLikelihood
from calibrant.posthoc.linear.optimum import LinearFit, fit_linear
from calibrant.posthoc.linear.pulls import (
    MOST_PRODUCTS_OF_INPUTS,
    NO_EVIDENCE,
    PULLS,
    THIRDS,
    HeldOut,
    Pull,
    Strengths,
    chosen_strengths,
)
from calibrant.posthoc.state import Comparison, learnt
from calibrant.predictions.predictions import Predictions

# How often the spread of its inputs the largest may be: curvatures differ by the square.
MOST_DIGITS = 1e4
ALL_ALIKE = "took one temperature: the rows differ too little to fit a matrix"


@dataclass(eq=False)
class _RegularisedMatrix(LinearMap):
    """Family: W = (I + D) / T, fitted with ODIR."""

    weighs: ClassVar[bool] = True

    penalty: float = argument(0.0, at_least=0)
    bias_penalty: float = argument(0.0, at_least=0)
    most_classes: int = argument(200, at_least=2)
    max_iterations: int = argument(1000, at_least=1)
    guard: bool = argument(True)

    weight_: FloatArray = learnt("K", "K")
    bias_: FloatArray = learnt("K")
    penalties_: FloatArray = learnt(2, at_least=0)

    @property
    def cross_validates(self) -> bool:
        """Whether lambda is chosen by rows held out."""
        return self.penalty <= 0

    @property
    def n_parameters(self) -> int:
        """K^2 + K, or one where temperature scaling was taken."""
        fitted = bool(self.penalties_.any())
        return self.n_classes_**2 + self.n_classes_ if fitted else 1

    def linear_map(self) -> tuple[FloatArray, FloatArray]:
        """Return the full (K, K) W and b."""
        return self.weight_, self.bias_

    def _fit(self, predictions: Predictions) -> FitReport:
        classes, n = self.n_classes_, predictions.n
        refuse_many_classes(self.method, classes, self.most_classes, often=True)
        base = predictions.temperature
        report = base.report(n)
        self.weight_, self.bias_ = base.beta * np.eye(classes), np.zeros(classes)
        self.penalties_ = np.zeros(2)
        if isinstance(base.warning, BoundaryWarning):
            # Rows without an error ask a map for certainty, and the temperature has said how much.
            return report
        inputs = self.inputs_of(
            xnp, to_numpy(predictions.scores).astype(np.float64), {}, masks=False
        )
        if np.abs(inputs).max() > MOST_DIGITS * inputs.std():
            return report.noting(ALL_ALIKE)
        rows = LinearLikelihood(
            inputs,
            predictions.labels,
            base.beta,
            square=True,
            inputs="given",
            weights=predictions.weights,
        )
        strengths, start, gains = self._chosen_strengths(rows, predictions)
        if self.guard and not gains:
            return report.noting(NO_CLEAR_GAIN)
        penalties = strengths.penalties(rows.total, classes)
        found = fit_linear(rows, penalties, self.max_iterations, start=start)
        self.weight_ = base.beta * (np.eye(classes) + found.change)
        self.bias_, self.penalties_ = found.bias, np.array(strengths)
        return found.report(self.method, n, report.notes)

    def _chosen_strengths(
        self, rows: LinearLikelihood, predictions: Predictions
    ) -> tuple[Strengths, LinearFit | None, bool]:
        """Return those of the arguments or of cross-validation, and where to begin the fit.

        The last says whether cross-validation saw a clear gain on temperature scaling.
        """
        if self.penalty > 0:
            return self._strengths(self.penalty), None, True
        off_diagonal = self.n_classes_ * (self.n_classes_ - 1) / rows.total
        path = [self._strengths(pull * off_diagonal) for pull in PULLS]
        return chosen_strengths(rows, predictions, path, self.max_iterations)

    def _strengths(self, off_diagonal: float) -> Strengths:
        # Unless told, an entry of b is pulled as hard as one off the diagonal.
        return Strengths(off_diagonal, self.bias_penalty or off_diagonal / (self.n_classes_ - 1))


@dataclass(eq=False)
class MatrixScaling(_RegularisedMatrix):
    """softmax(W z + b) of centred logits z, with the off-diagonal and b regularised (ODIR).

    With W = (I + D) / T, T the temperature of greatest likelihood, it minimises

        mean NLL + lambda / (K (K - 1)) sum_{i != j} d_ij^2 + mu / K sum_j b_j^2,

    a convex function; K^2 + K parameters. The predicted class may change. Each row's mean is taken
    off first, since the map would otherwise depend on the logits' arbitrary origin. The diagonal is
    free but for a pull of 1 / N, which keeps the fit finite on separable rows. Measuring D in units
    of T makes the result independent of the logits' scale. If no row is wrong, temperature scaling
    is taken.

    Where classes are confused in a lasting pattern and rows are many it gains likelihood and
    accuracy; a few hundred rows are better spent on fewer parameters ('svs', 'top-rest').

    Args:
        penalty: lambda. 0 chooses it by cross-validated likelihood from ten values, by as many of
            five folds as hold 2 000 rows. Their pull on an entry, N lambda / (K (K - 1)), is 1e6,
            which is as good as infinite, or goes from 1e4 down to 1 by half decades. The map is
            then fitted to all rows once more: one linear map, where the paper averages the
            probabilities of five.
        bias_penalty: mu. 0 takes lambda / (K - 1), the same pull on every parameter.
        most_classes: refuse to fit more classes, where a fit takes minutes.
        max_iterations: bound on Newton steps of each fit.
        guard: where lambda is chosen, take temperature scaling unless the map gains on it by more
            than a standard error of the paired difference, in the same cross-validation. False is
            the map as published.

    Attributes:
        weight_: (K, K) W in the caller's units; bias_: (K,) b; penalties_: (2,) lambda and mu, or 0
            where nothing was fitted beyond T.

    References:
        Guo et al.: On Calibration of Modern Neural Networks. ICML 2017. Regularisation: Kull et
        al.: Beyond Temperature Scaling. NeurIPS 2019.

    Examples:
        >>> import calibrant as cb
        >>> matrix = cb.posthoc.MatrixScaling().fit_predictions(cb.load_sample("validation"))
        >>> matrix.n_parameters, matrix.penalties_.round(3)  # chosen: lambda, and lambda / (K - 1)
        (110, array([5.692, 0.632]))
    """

    method: ClassVar[str] = "matrix"
    facts: ClassVar[Facts | None] = Facts(
        "matrix scaling",
        LINEAR,
        "N x K x K numbers a step, several fits to choose the ridge",
        "few rows for K^2 numbers: it overfits; refuses very many classes",
    )

    def inputs_of(self, xp: Any, logits: Array, learnt: Learnt, masks: bool) -> Array:
        """Return centred logits."""
        return centred(xp, logits, masks)


@dataclass(eq=False)
class DirichletCalibration(_RegularisedMatrix):
    """softmax(W ln p + b) of probabilities p, with the off-diagonal and b regularised (ODIR).

    It is the right map if the probabilities of each class's rows follow a Dirichlet distribution;
    with two classes, beta calibration. It differs from `MatrixScaling` in what W sees: ln p is the
    centred logits less log sum exp, so a row's certainty can shift every class. Objective,
    penalties, their choice and arguments are those of `MatrixScaling`; K^2 + K parameters. The
    predicted class may change.

    ln p comes from the logits and is not clipped, so no probability is too small for it. A masked
    class enters as the mean ln p of the others and stays masked.

    Args:
        penalty: lambda, or 0 to choose it by cross-validation.
        bias_penalty: mu, or 0 for lambda / (K - 1).
        most_classes: refuse to fit more classes, where a fit takes minutes.
        max_iterations: bound on Newton steps of each fit.
        guard: where lambda is chosen, take temperature scaling unless the map gains on it by more
            than a standard error of the paired difference, in the same cross-validation. False is
            the map as published.

    Attributes:
        weight_: (K, K) W; bias_: (K,) b; penalties_: (2,) lambda and mu, or 0 where nothing was
            fitted beyond T.

    References:
        Kull et al.: Beyond Temperature Scaling: Obtaining Well-Calibrated Multi-Class Probabilities
        with Dirichlet Calibration. NeurIPS 2019.

    Examples:
        >>> import calibrant as cb
        >>> import numpy as np
        >>> logits = np.log([[0.9, 0.1]] * 1_000 + [[0.2, 0.8]] * 1_000)
        >>> labels = [0] * 700 + [1] * 300 + [1] * 900 + [0] * 100  # 70 % right, then 90 %
        >>> dirichlet = cb.posthoc.DirichletCalibration(penalty=0.01).fit(logits, labels)
        >>> dirichlet.predict_proba(logits[[0, -1]]).round(2)  # one down, one up: no T does
        array([[0.7, 0.3],
               [0.1, 0.9]])
    """

    method: ClassVar[str] = "dirichlet"
    facts: ClassVar[Facts | None] = Facts(
        "Dirichlet calibration",
        LINEAR,
        "N x K x K numbers a step, several fits to choose the ridge",
        "few rows for K^2 numbers: it overfits; refuses very many classes",
    )

    def inputs_of(self, xp: Any, logits: Array, learnt: Learnt, masks: bool) -> Array:
        """Return ln p; for a masked class the mean of the others."""
        values = centred(xp, logits, masks)
        known = still_masked(xp, logits, values, masks)
        most = largest(xp, known)
        total = sums(xp, xp.exp(known - most))[:, None]
        return values - (most + xp.log(total))


@dataclass(eq=False)
class RidgeMatrixScaling(PenalisedMap):
    """softmax((I + D) z / T + b) of centred logits z, by likelihood with one chosen ridge.

    T is the temperature of greatest likelihood, so the ridge is on the distance to temperature
    scaling. With v the diagonal of D and M the rest,

        mean NLL + ridge / N (|M|^2 + (|v|^2 + |b|^2) / (K - 1)),

    strictly convex; K^2 + K + 1 parameters. The predicted class may change. These are the penalties
    of `StructuredMatrixScaling`, in proportion; their strength is chosen by rows held out, where
    that method's is fixed, for a hundred classes so high that it is `svs`. `MatrixScaling` leaves
    the diagonal free, which costs where rows are few for so many classes.

    Args:
        ridge: the pull on each entry off the diagonal, in units of one row's likelihood. 0 chooses
            it by cross-validated likelihood among 1e6, which is as good as infinite, and 1e4 down
            to 1 by half decades.
        max_iterations: bound on Newton steps of each fit.
        inputs: what z are: ``"centred"`` logits over T, or ``"log-probabilities"``.
        guard: where the pull is chosen, take temperature scaling unless the map gains on it by more
            than a standard error of the paired difference, in the same cross-validation.
        most_classes: refuse to fit a matrix for more classes, where a fit takes minutes.

    Attributes:
        beta_: 1 / T; change_: (K, K) D; bias_: (K,) b; ridge_: the pull, or 0 where nothing was
            fitted beyond T.

    References:
        Ridge regression's form of matrix scaling (Guo et al.: On Calibration of Modern Neural
        Networks. ICML 2017); the choice of the pull is Calibrant's own.

    Examples:
        >>> import calibrant as cb
        >>> import numpy as np
        >>> honest = cb.synthetic.tempered(5_000, 3, temperature=1.0).predictions
        >>> confused = honest.logits @ np.asarray([[1.0, 0.5, 0], [0, 1, 0], [0, 0, 1]])
        >>> fitted = cb.make_calibrator("ridge").fit(confused, honest.labels)
        >>> fitted.ridge_ < 100, fitted.n_parameters
        (True, 13)
    """

    method: ClassVar[str] = "ridge"
    facts: ClassVar[Facts | None] = Facts(
        "ridge matrix scaling",
        LINEAR,
        "N x K x K numbers a step, several fits to choose the ridge",
        "few rows for K^2 numbers, where it is temperature scaling; refuses very many classes",
    )

    begins_at_others: ClassVar[bool] = True

    ridge: float = argument(0.0, at_least=0)
    inputs: InputChoice = argument("centred", choices=INPUTS)
    guard: bool = argument(True)
    most_classes: int = argument(200, at_least=2)

    change_: FloatArray = learnt("K", "K")
    ridge_: float = learnt(at_least=0)

    @property
    def cross_validates(self) -> bool:
        """Whether the pull is chosen by rows held out."""
        return self.ridge <= 0

    @property
    def n_parameters(self) -> int:
        """K^2 + K + 1, or one where temperature scaling was taken."""
        return self.n_classes_**2 + self.n_classes_ + 1 if self.ridge_ else 1

    def settled(self, predictions: Predictions, fold: IntArray | None = None) -> RidgeMatrixScaling:
        """Return it with a pull, and the inputs, that suit these rows.

        The pull is the one of the lowest NLL on a third of the rows, downhill from that of the
        highest evidence; the inputs are those of the lower NLL there. With few classes all three
        thirds say both, and each of the inputs has its own pull. If these are the folds of the
        comparison to come, its first fit is done.

        Raises:
            NotApplicableError: none has more evidence than one temperature, or it doesn't clearly
                gain on it there; or where one third says so, it clearly loses.
        """
        if self.ridge > 0:
            return self
        classes = predictions.n_classes or 0
        refuse_many_classes(self.method, classes, self.most_classes, often=True)
        if isinstance(predictions.temperature.warning, BoundaryWarning):
            raise NotApplicableError(NO_EVIDENCE)
        begins = fold is not None and int(fold.max()) == THIRDS - 1
        if fold is None or not begins:
            fold = folds_of(predictions, THIRDS)
        few = predictions.n * classes**2 <= MOST_PRODUCTS_OF_INPUTS
        parts = [fold == part for part in range(THIRDS if few else 1)]
        every = {each: LinearLikelihood.of(predictions, each, square=True) for each in INPUTS}
        evidence = {inputs: rows.evidence(PULLS) for inputs, rows in every.items()}
        place, found = 0, dict[Inputs, tuple[int, HeldOut]]()
        for inputs in sorted(INPUTS, key=lambda each: -max(evidence[each])):
            # The evidence takes fits for surer than they are, and weak pulls take long.
            begin = place or max(int(np.argmax(evidence[inputs])) - 1, 1)
            if not place and max(evidence[inputs][1:]) <= evidence[inputs][0]:
                raise NotApplicableError(NO_EVIDENCE)
            tried = HeldOut(every[inputs], parts, self.max_iterations)
            if few or not place:  # the same suits the other inputs
                place = tried.downhill(begin)
            found[inputs] = place, tried
        inputs = max(found, key=lambda each: found[each][1].mean_gain(found[each][0]))
        place, tried = found[inputs]
        gains, rows = tried.gains(place), np.concatenate([np.flatnonzero(part) for part in parts])
        none, worth = np.zeros_like(gains), Worth.of(predictions.take(rows))
        # A third alone knows too little of many parameters to say more than that they lose.
        better, worse = (-gains, none), (none, -gains)
        if clearly_lower(*(better if few else worse), THIRDS, worth) != few:
            raise NotApplicableError(NO_EVIDENCE)
        settled, fit = replace(self, ridge=PULLS[place], inputs=inputs), tried.first_fit(place)
        if begins:
            first = copy(settled)
            first.change_, first.bias_ = fit.change, fit.bias
            settled.comparison_ = Comparison(start=first)
        return settled

    def _fit(self, predictions: Predictions) -> FitReport:
        classes = self.n_classes_
        refuse_many_classes(self.method, classes, self.most_classes, often=not self.ridge)
        self.ridge_, gains = self.ridge, True
        if isinstance(predictions.temperature.warning, BoundaryWarning):
            # Rows without an error ask a map for certainty, and the temperature has said how much.
            gains = False
        elif not self.ridge:
            path = [Pull(pull) for pull in PULLS]
            rows = LinearLikelihood.of(predictions, self.x_is, square=True)
            (self.ridge_,), _, gains = chosen_strengths(
                rows, predictions, path, self.max_iterations
            )
        if gains or not self.guard:
            return super()._fit(predictions)
        self.ridge_ = 0.0
        return self._took_temperature(predictions, (classes, classes)).noting(NO_CLEAR_GAIN)

    def _penalties(self, rows: float, classes: int) -> FloatArray:
        return Pull(self.ridge_).penalties(rows, classes)
