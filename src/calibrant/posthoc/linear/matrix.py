"""Matrix scaling and Dirichlet calibration: every class's score may move every other's.

Off-diagonal and intercept regularisation (ODIR): penalised fits of softmax((I + D) x + b).

The penalties are the paper's normalised ones, added to the mean negative log-likelihood,

    lambda / (K (K - 1)) sum_{i != j} d_ij^2  +  mu / K sum_j b_j^2,

means over entries, so one strength says the same of ten classes and of a hundred. The diagonal is
free but for a pull as strong as one row, without which separable rows would have no optimum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import numpy as np

from calibrant.core import numpy_namespace as xnp
from calibrant.core.arguments import argument
from calibrant.core.arrays import Array, BoolArray, FloatArray, IntArray, to_numpy
from calibrant.core.errors import BoundaryWarning, NotApplicableError
from calibrant.core.fit_report import FitReport
from calibrant.core.weights import mean as average
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
    GAP_TO_COMPARE,
    LinearMap,
    PenalisedMap,
    refuse_many_classes,
)
from calibrant.posthoc.linear.likelihood import INPUTS, InputChoice, Inputs, LinearLikelihood
from calibrant.posthoc.linear.optimum import LinearFit, fit_linear
from calibrant.posthoc.state import learnt
from calibrant.predictions.predictions import Predictions

# How far above their minima fits of a search among penalties may end, in nats a row.
PATH_TOLERANCE = 3e-5

# How often the spread of its inputs the largest may be: curvatures differ by the square.
MOST_DIGITS = 1e4
ALL_ALIKE = "took one temperature: the rows differ too little to fit a matrix"
# Pulls on one entry of D that cross-validation tries, in units of one row's likelihood: whole
# decades first, and then those next to the best of them. From the strongest on the loss may rise
# before it falls (Dirichlet calibration of a hundred classes), so they aren't tried one by one.
PULLS = tuple(10 ** (half / 2) for half in (12, 8, 7, 6, 5, 4, 3, 2, 1, 0))
# A choice among pulls and inputs needs no more rows held out than these; a fold more costs as long
# as any. Half of them took a pull on two networks of ten that cost .002 to .003 in NLL.
ENOUGH_HELD_OUT = 2000
# Before a contest, which says better what a matrix is worth, one of so many parts of the rows says
# whether to try one; and all of them what its inputs are, if that doesn't take too many products.
THIRDS, MOST_PRODUCTS_OF_INPUTS = 3, 5_000_000
NO_EVIDENCE = "the rows show no lasting confusion of classes"


class Regularisation(Protocol):
    """How hard each parameter is pulled to 0."""

    def penalties(self, rows: float, classes: int) -> FloatArray:
        """Return the (K^2 + K,) penalties of D, in rows, and of b."""
        ...


class Pull(NamedTuple):
    """How hard entries off the diagonal are pulled, in units of one row's likelihood.

    The K entries on it, and those of b, are pulled K - 1 times less each: all of them together as
    hard as the K (K - 1) others.
    """

    pull: float

    def penalties(self, rows: float, classes: int) -> FloatArray:
        """Return the (K^2 + K,) penalties of D, in rows, and of b."""
        of_class = self.pull / max(classes - 1, 1) / rows
        matrix = np.full((classes, classes), self.pull / rows)
        np.fill_diagonal(matrix, of_class)
        return np.concatenate([matrix.ravel(), np.full(classes, of_class)])


class Strengths(NamedTuple):
    """The two strengths of the regularisation, lambda and mu."""

    off_diagonal: float
    bias: float

    def penalties(self, rows: float, classes: int) -> FloatArray:
        """Return the (K^2 + K,) penalties of D, in rows, and of b."""
        matrix = np.full((classes, classes), self.off_diagonal / (classes * (classes - 1)))
        np.fill_diagonal(matrix, 1 / rows)
        return np.concatenate([matrix.ravel(), np.full(classes, self.bias / classes)])


Chosen = TypeVar("Chosen", bound=Regularisation)
# The (K^2 + K,) penalties of D, in rows, and of b, for a number of rows and one of classes.
Penalties = Callable[[float, int], FloatArray]


class _Path:
    """Fits of several folds to others of their rows, each begun where the one before it ended."""

    def __init__(self, rows: LinearLikelihood, fold: IntArray, max_iterations: int) -> None:
        self._rows, self._fold, self._most = rows, fold, max_iterations
        self._parts: dict[int, tuple[LinearLikelihood, LinearLikelihood]] = {}
        self.fits: dict[int, LinearFit] = {}

    def losses(self, penalties: Penalties, folds: Sequence[int]) -> FloatArray:
        """Return the (N,) losses that rows of `folds` have while held out, elsewhere infinite."""
        found = np.full(len(self._fold), np.inf)
        for part in folds:
            if part not in self._parts:
                away = self._fold == part
                self._parts[part] = self._rows.take(~away), self._rows.take(away)
            seen, unseen = self._parts[part]
            self.fits[part] = fit_linear(
                seen,
                penalties(seen.total, int(seen.logits.shape[1])),
                self._most,
                start=self.fits.get(part),
                tolerance=PATH_TOLERANCE,
            )
            own = self.fits[part]
            found[self._fold == part] = unseen.losses(own.change, own.bias)
        return found


def cross_validate(
    rows: LinearLikelihood,
    fold: IntArray,
    path: Sequence[Chosen],
    max_iterations: int,
) -> tuple[Chosen, LinearFit | None, FloatArray]:
    """Return the strengths with the lowest held-out NLL, and a start for their fit to all rows.

    The last are the (N,) losses that rows had with these strengths while they were held out,
    infinite where there is one fold only. Strengths are chosen by the first folds that hold
    `ENOUGH_HELD_OUT` rows together.

    Args:
        rows: the likelihood of all rows.
        fold: (N,) the fold of each; where there is one fold only, the first strengths are taken.
        path: from the strongest to the weakest. The first, and of every second one the middle
            three, are tried, then downhill from the best of these, then its other neighbours.
        max_iterations: bound on the steps of each fit.
    """
    folds = np.unique(fold).tolist()
    if len(folds) < 2:
        return path[0], None, np.full(len(fold), np.inf)
    chosen_by = _some_folds(fold, ENOUGH_HELD_OUT)
    fits, known = _Path(rows, fold, max_iterations), np.isin(fold, chosen_by)
    weights = None if rows.weights is None else rows.weights[known]
    tried: dict[int, tuple[FloatArray, LinearFit]] = {}

    def mean_at(place: int) -> float:
        losses = fits.losses(path[place].penalties, chosen_by)
        tried[place] = losses, _middle([fits.fits[part] for part in chosen_by])
        return average(losses[known], weights)

    coarse = [0, *range(1, len(path), 2)]
    middle = len(coarse) // 2
    places = {0, *coarse[middle - 1 : middle + 2]}
    means, best = dict[int, float](), 0
    while places:
        means |= {place: mean_at(place) for place in sorted(places)}
        best = min(means, key=lambda place: means[place])
        at = coarse.index(best)
        places = {*coarse[max(at - 1, 0) : at + 2]} - {*means}
    for place in {*range(max(best - 1, 0), min(best + 2, len(path)))} - {*means}:
        means[place] = mean_at(place)
    best = min(means, key=lambda place: means[place])
    losses, start = tried[best]
    others = [part for part in folds if part not in chosen_by]
    losses = np.where(known, losses, fits.losses(path[best].penalties, others))
    return path[best], start, losses


class _HeldOut:
    """Fits with one of `PULLS` each to some rows, and what others say of them."""

    def __init__(self, rows: LinearLikelihood, unseen: BoolArray, most: int) -> None:
        self._seen, self._unseen, self._most = rows.take(~unseen), rows.take(unseen), most
        self._classes = int(rows.logits.shape[1])
        zero = np.zeros((self._classes, self._classes)), np.zeros(self._classes)
        self._single = self._unseen.losses(*zero)
        self._found: dict[int, tuple[FloatArray, LinearFit]] = {}

    def gains(self, place: int) -> FloatArray:
        """Return by how much the NLL of each of the others is lower than by one temperature."""
        if place not in self._found:
            near = min(self._found, key=lambda other: abs(other - place), default=None)
            fit = fit_linear(
                self._seen,
                Pull(PULLS[place]).penalties(self._seen.total, self._classes),
                self._most,
                start=None if near is None else self._found[near][1],
                tolerance=GAP_TO_COMPARE,
            )
            losses = self._unseen.losses(fit.change, fit.bias)
            self._found[place] = self._single - losses, fit
        return self._found[place][0]

    def _gain(self, place: int) -> float:
        return average(self.gains(place), self._unseen.weights)

    def downhill(self, place: int) -> int:
        """Return the place of the largest gain among its neighbours, from one on."""
        for side in (-1, 1):  # stronger pulls first, which take less
            # The strongest of all leaves one temperature.
            while 0 < place + side < len(PULLS) and self._gain(place + side) > self._gain(place):
                place += side
        return place


def _middle(fits: Sequence[LinearFit]) -> LinearFit:
    """Return one of several fits with the mean of their maps."""
    change = np.mean([fit.change for fit in fits], axis=0)
    return fits[0]._replace(change=change, bias=np.mean([fit.bias for fit in fits], axis=0))


def likelier_inputs(
    predictions: Predictions,
    penalties: Penalties,
    max_iterations: int,
) -> Inputs:
    """Return the inputs of a matrix with the lower NLL on held-out rows, "centred" if they tie.

    Args:
        predictions: logits and labels; as many of five folds are held out as hold
            `ENOUGH_HELD_OUT` rows.
        penalties: of D and b, given a number of rows and of classes.
        max_iterations: bound on the steps of each fit.
    """
    if isinstance(predictions.temperature.warning, BoundaryWarning) or predictions.n < 2:
        return "centred"
    fold = folds_of(predictions)
    chosen_by = _some_folds(fold, ENOUGH_HELD_OUT)
    known = np.isin(fold, chosen_by)
    weights = None if predictions.weights is None else predictions.weights[known]
    means = dict[Inputs, float]()
    for inputs in ("centred", "log-probabilities"):
        rows = LinearLikelihood.of(predictions, inputs, square=True)
        losses = _Path(rows, fold, max_iterations).losses(penalties, chosen_by)
        means[inputs] = average(losses[known], weights)
    return min(means, key=lambda inputs: means[inputs])


def _some_folds(fold: IntArray, enough: int) -> list[int]:
    """Return the first folds that hold so many rows together, or all."""
    folds, counts = np.unique(fold, return_counts=True)
    return folds[: int(np.searchsorted(np.cumsum(counts), enough)) + 1].tolist()


def chosen_strengths(
    rows: LinearLikelihood,
    predictions: Predictions,
    path: Sequence[Chosen],
    max_iterations: int,
) -> tuple[Chosen, LinearFit | None, bool]:
    """Return what cross-validation chooses of `path`, and where to begin the fit to all rows.

    The last says whether it saw a clear gain on temperature scaling; see `cross_validate`.
    """
    fold = folds_of(predictions)
    strengths, start, losses = cross_validate(rows, fold, path, max_iterations)
    classes = int(rows.logits.shape[1])
    single = rows.losses(np.zeros((classes, classes)), np.zeros(classes))
    folds = int(fold.max()) + 1
    gains = folds > 1 and clearly_lower(losses, single, folds, Worth.of(predictions))
    return strengths, start, gains


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

    def settled(self, predictions: Predictions) -> RidgeMatrixScaling:
        """Return it with a pull, and the inputs, that suit these rows.

        The pull is the one of the lowest NLL on a third of the rows, downhill from that of the
        highest evidence; the inputs are those of the lower NLL there, or with few classes on all
        three thirds.

        Raises:
            NotApplicableError: no pull clearly gains on one temperature there.
        """
        if self.ridge > 0:
            return self
        classes = predictions.n_classes or 0
        refuse_many_classes(self.method, classes, self.most_classes, often=True)
        if isinstance(predictions.temperature.warning, BoundaryWarning):
            raise NotApplicableError(NO_EVIDENCE)
        fold, place = folds_of(predictions, THIRDS), 0
        parts = range(1 if predictions.n * classes**2 > MOST_PRODUCTS_OF_INPUTS else THIRDS)
        every = {each: LinearLikelihood.of(predictions, each, square=True) for each in INPUTS}
        evidence = {inputs: rows.evidence(PULLS) for inputs, rows in every.items()}
        held_out = np.concatenate([np.flatnonzero(fold == part) for part in parts])
        weights = None if predictions.weights is None else predictions.weights[held_out]
        found: dict[str, FloatArray] = {}
        for inputs in sorted(INPUTS, key=lambda each: -max(evidence[each])):
            rows = every[inputs]
            tried = [_HeldOut(rows, fold == part, self.max_iterations) for part in parts]
            if place == 0:  # the same suits the other inputs
                best = int(np.argmax(evidence[inputs]))
                if best == 0:  # that leaves one temperature
                    break
                # The evidence takes fits for surer than they are, and weak pulls take long.
                place = tried[0].downhill(max(best - 1, 1))
            found[inputs] = np.concatenate([each.gains(place) for each in tried])
        inputs = max(found, key=lambda each: average(found[each], weights), default="centred")
        gains = found.get(inputs, np.zeros(len(held_out)))
        worth = Worth.of(predictions.take(held_out))
        if not clearly_lower(-gains, np.zeros_like(gains), THIRDS, worth):
            raise NotApplicableError(NO_EVIDENCE)
        chosen: Inputs = "centred" if inputs == "centred" else "log-probabilities"
        return replace(self, ridge=PULLS[place], inputs=chosen)

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
