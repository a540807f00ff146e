"""How hard a matrix is pulled to one temperature: chosen by what held-out rows say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from calibrant.core.arrays import BoolArray, FloatArray, IntArray
from calibrant.core.errors import BoundaryWarning
from calibrant.core.weights import mean as average
from calibrant.posthoc.fitting.cross_validation import Worth, clearly_lower, folds_of
from calibrant.posthoc.linear.base import GAP_TO_COMPARE, SHARE_TO_COMPARE
from calibrant.posthoc.linear.likelihood import Inputs, LinearLikelihood
from calibrant.posthoc.linear.optimum import LinearFit, fit_linear
from calibrant.predictions.predictions import Predictions

# How far above their minima fits of a search among penalties may end, in nats a row.
PATH_TOLERANCE = 3e-5

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
                near_enough=(PATH_TOLERANCE, 0.0),
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


class HeldOut:
    """Fits with one of `PULLS` each to other rows than some parts, and what these say of them.

    Args:
        rows: the likelihood of all rows.
        parts: each a mask of the rows that it holds.
        most: bound on the steps of each fit.
    """

    def __init__(self, rows: LinearLikelihood, parts: Sequence[BoolArray], most: int) -> None:
        self._parts = [(rows.take(~part), rows.take(part)) for part in parts]
        self._most, self._classes = most, int(rows.logits.shape[1])
        weights = rows.weights
        self._weights = None if weights is None else np.concatenate([weights[p] for p in parts])
        zero = np.zeros((self._classes, self._classes)), np.zeros(self._classes)
        self._single = [unseen.losses(*zero) for _, unseen in self._parts]
        self._fits: dict[int, list[LinearFit]] = {}
        self._gains: dict[int, FloatArray] = {}

    def gains(self, place: int) -> FloatArray:
        """Return by how much the NLL of each row of the parts is lower than by one temperature."""
        if place not in self._gains:
            near = min(self._fits, key=lambda other: abs(other - place), default=None)
            self._fits[place], gains = [], list[FloatArray]()
            for part, (seen, unseen) in enumerate(self._parts):
                fit = fit_linear(
                    seen,
                    Pull(PULLS[place]).penalties(seen.total, self._classes),
                    self._most,
                    start=None if near is None else self._fits[near][part],
                    near_enough=(GAP_TO_COMPARE, SHARE_TO_COMPARE),
                )
                self._fits[place].append(fit)
                gains.append(self._single[part] - unseen.losses(fit.change, fit.bias))
            self._gains[place] = np.concatenate(gains)
        return self._gains[place]

    def first_fit(self, place: int) -> LinearFit:
        """Return the fit to other rows than the first part, of which gains were asked."""
        return self._fits[place][0]

    def mean_gain(self, place: int) -> float:
        """Return the mean of `gains`, weighted."""
        return average(self.gains(place), self._weights)

    def downhill(self, place: int) -> int:
        """Return the place of the largest gain among its neighbours, from one on."""
        for side in (-1, 1):  # stronger pulls first, which take less
            # The strongest of all leaves one temperature.
            while 0 < place + side < len(PULLS) and self.mean_gain(place + side) > self.mean_gain(
                place
            ):
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
