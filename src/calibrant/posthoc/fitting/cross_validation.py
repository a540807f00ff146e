"""Cross-validation within the calibration rows, and how sure one is of a difference found by it."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np

from calibrant.core import numpy_namespace as xnp
from calibrant.core.arrays import Array, FloatArray, IntArray, like, pick, to_numpy
from calibrant.core.errors import InputError, NotApplicableError, heard_warnings
from calibrant.core.progress import Watcher, steps
from calibrant.core.weights import codes_of, mean, times, total
from calibrant.posthoc.array_ops import scores_behind
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.state import Comparison
from calibrant.posthoc.temperature.scaling import SummaryTemperature, TemperatureScaling
from calibrant.predictions.predictions import SMALLEST_PROBABILITY, Predictions
from calibrant.predictions.rows import DENSE_CLASSES, RowSummary
from calibrant.predictions.scoring import score_rows

Score = Literal["nll", "brier"]


def fold_numbers(
    rows: RowSummary,
    folds: int,
    seed: int,
    *,
    clusters: IntArray | None = None,
    blind: bool | None = None,
) -> IntArray:
    """Return the (N,) fold of each row, drawn so that all folds are alike.

    Rows are sorted into right and wrong ones and by their margin, and of every `folds` neighbours
    each goes to another fold at random: few errors carry most of what a calibrator learns. The fold
    depends on what a row holds and not on its place, nor on the names of the classes or the origin
    of the logits.

    Blind folds are sorted by margin alone. Folds with equal shares of errors at every margin tell
    of each other what is to be predicted, and held-out losses are then too low, most of all those
    of maps with many steps, which learn the share of errors around each confidence. Of two classes,
    where that is all there is to learn, such folds made `auto` take Venn-Abers, whose NLL they saw
    .0015 to .003 too low. Of more classes `auto` chose better by folds that aren't blind (by .001
    to .004 with 1 000 rows of two networks): their errors are few.

    With (N,) `clusters` these are dealt whole, sorted by how many of their rows are wrong, unless
    blind, and by their size; into no more folds than there are clusters.

    Args:
        rows: N rows.
        folds: how many.
        seed: for the draw.
        clusters: see above.
        blind: None for blind ones of two classes.

    Raises:
        NotApplicableError: all rows belong to one cluster.
    """
    blind = rows.n_classes == 2 if blind is None else blind
    if clusters is not None:
        return _folds_of_clusters(rows, folds, seed, clusters, blind=blind)
    digest = _digest(rows)
    # Names of classes part only rows that are alike in all else, such as two mirrored ones.
    order = np.lexsort((rows.labels, *digest, rows.correct))
    rng = np.random.default_rng(seed)
    if blind:  # among equal margins chance decides, not labels
        order = rng.permutation(order)
        order = order[np.argsort(digest[-1][order], kind="stable")]
    return _dealt(order, folds, rng)


# Parts that rows are held out in, unless there is a reason for fewer.
FOLDS = 5


def folds_of(
    predictions: Predictions, folds: int = FOLDS, seed: int = 0, *, blind: bool | None = None
) -> IntArray:
    """Return the (N,) `fold_numbers` of predictions, of which no cluster is parted."""
    folds, clusters = min(folds, predictions.n), predictions.clusters
    return fold_numbers(predictions.summary, folds, seed, clusters=clusters, blind=blind)


# Gaps of logits are told apart by this share of the largest: more than what rounding errors make
# of them where a constant is added, less than what rows differ by.
RESOLUTION = 2.0**-30


def _digest(rows: RowSummary) -> tuple[FloatArray, ...]:
    """Return what tells rows apart whatever their classes are called: gaps, coarser than rounding.

    The last is the margin, by which rows are sorted first.
    """
    gaps = rows.mean_gap, rows.label_gap, rows.margin
    _, octave = np.frexp(max(float(gap.max(initial=0.0)) for gap in gaps))
    grain = np.ldexp(RESOLUTION, octave)
    # Logits often lie on a grid of decimals, whose middles a grain in thirds doesn't meet.
    mean, label, margin = (np.floor(gap / grain + 1 / 3) for gap in gaps)
    return mean, label, margin


def _folds_of_clusters(
    rows: RowSummary, folds: int, seed: int, clusters: IntArray, *, blind: bool
) -> IntArray:
    codes, number = codes_of(clusters)
    if number < 2:
        raise NotApplicableError(
            "cross-validation holds clusters out whole, and all rows belong to one cluster"
        )
    sizes = np.bincount(codes)
    first = np.bincount(codes, rows.margin) / sizes if blind else np.bincount(codes, ~rows.correct)
    order = np.lexsort((sizes, first))
    # The last block may be cut, and must not leave a fold empty: the first is whole.
    return _dealt(order, min(folds, number), np.random.default_rng(seed))[codes]


def _dealt(order: IntArray, folds: int, rng: np.random.Generator) -> IntArray:
    """Return the fold of each, of every `folds` neighbours in an order each another one."""
    blocks = -(-len(order) // folds)
    shuffled = rng.permuted(np.tile(np.arange(folds), (blocks, 1)), axis=1)
    fold = np.empty(len(order), dtype=np.int64)
    fold[order] = shuffled.ravel()[: len(order)]
    return fold


def held_out(
    calibrator: Calibrator, rows: Predictions, fold: IntArray, watch: Watcher | None = None
) -> Predictions:
    """Return rows, each as a calibrator says that was fitted to those of the other folds.

    Args:
        calibrator: is copied, and isn't fitted itself.
        rows: with labels.
        fold: (N,) fold of each row, from 0.
        watch: called with a `Progress` as each fold begins.
    """
    scores, kind, number = None, rows.kind, int(fold.max()) + 1
    begin = steps(watch, number)
    for part in range(number):
        begin(f"fold {part + 1} of {number}")
        unseen, fitted = np.flatnonzero(fold == part), copy(calibrator)
        with heard_warnings():  # what a fold lacks the whole set may have
            fitted.fit_predictions(rows.take(fold != part))
        after = fitted.apply_predictions(rows.take(unseen))
        found = to_numpy(after.scores)
        if scores is None:
            scores = np.empty((rows.n, *found.shape[1:]), dtype=found.dtype)
        scores[unseen], kind = found, after.kind
    return replace(rows, kind=kind, scores=scores, head=None, reference=None)


def held_out_losses(calibrator: Calibrator, rows: Predictions, fold: IntArray) -> FloatArray:
    """Return the (N,) log losses of rows after a fit to those of the other folds (`held_out`)."""
    return score_rows(held_out(calibrator, rows, fold)).nll


class Worth(NamedTuple):
    """How much rows count, and which of them aren't independent.

    Attributes:
        weights: (N,), or None where all count alike.
        clusters: (N,) cluster of each row, or None where every row stands alone.
    """

    weights: FloatArray | None = None
    clusters: IntArray | None = None

    @classmethod
    def of(cls, predictions: Predictions) -> Worth:
        """Return what rows are worth."""
        return cls(predictions.weights, predictions.clusters)

    def variance(self, values: FloatArray) -> float:
        """Return the variance of the weighted mean of (N,) values, 0 for a single row."""
        away = times(values - mean(values, self.weights), self.weights)
        sums = away if self.clusters is None else np.bincount(codes_of(self.clusters)[0], away)
        few = len(sums) / max(len(sums) - 1, 1)
        return few * float(sums @ sums) / total(len(values), self.weights) ** 2

    def doubt(self, values: FloatArray) -> float:
        """Return how many rows are worth one that stands alone, by the variance of their values."""
        alone = Worth(self.weights).variance(values)
        return max(self.variance(values) / alone, 1.0) if alone > 0 else 1.0


ALIKE = Worth()


class Trial(NamedTuple):
    """How a calibrator did on rows that it was not fitted to.

    Attributes:
        losses: (N,) loss of each row, averaged over the repeats.
        parameters: number of fitted parameters in the last fold.
        keeps_prediction: whether it keeps the predicted class.
        scores: for each repeat the (N, K) log-probabilities that each row was given, if asked for.
        worth: how much each row counts, and which belong together.
        fits: to the other rows of each fold.
    """

    losses: FloatArray
    parameters: int
    keeps_prediction: bool
    scores: tuple[FloatArray, ...] = ()
    worth: Worth = ALIKE
    fits: tuple[Calibrator, ...] = ()

    @property
    def mean(self) -> float:
        """Mean loss, weighted."""
        return mean(self.losses, self.worth.weights)


# Of more logits than this, rows parted for a step behind others aren't kept for other such steps.
MOST_KEPT = 2_000_000
Parts = list[tuple[Predictions, Predictions]]


class CrossValidation:
    """Folds that serve several calibrators, so that their losses can be compared row by row.

    Args:
        predictions: logits and labels.
        folds: parts of each repeat, at least 2.
        repeats: how often the rows are divided anew.
        score: the loss of a row: ``"nll"`` or ``"brier"``.
        seed: for the folds.
    """

    def __init__(
        self, predictions: Predictions, folds: int, repeats: int, score: Score, seed: int = 0
    ) -> None:
        self.predictions, self.folds, self.score = predictions, folds, score
        rows = predictions.summary
        seeds = np.random.SeedSequence(seed).generate_state(repeats)
        clusters = predictions.clusters
        self.assignments = [fold_numbers(rows, folds, int(s), clusters=clusters) for s in seeds]
        if clusters is not None:
            self.folds = min(folds, len(np.unique(clusters)))
        if rows.n_classes > DENSE_CLASSES:
            # One table of the confidence curves serves every fit to rows of every fold.
            rows = rows.tabulated(predictions.temperature.beta)
        self._rows = rows
        self._parts: dict[tuple[int, int], tuple[Trial | None, Parts]] = {}

    def trial(
        self, calibrator: Calibrator, before: Trial | None = None, *, keep_scores: bool = False
    ) -> Trial:
        """Return how an unfitted `calibrator` does; it is left fitted to the last fold's rows.

        Args:
            calibrator: alone, or the last step of a chain.
            before: the trial of the steps before it, with `scores`. What those say of rows that
                they haven't seen is what the calibrator learns from and is tried on, so the folds
                of a step serve all steps behind it.
            keep_scores: whether a step shall come behind this one.

        Raises:
            NotApplicableError: the method refuses the rows of a fold.
        """
        given = self.predictions.only_logits()
        losses, scores = np.zeros(given.n), list[FloatArray]()
        keeps = calibrator.keeps_prediction and (before is None or before.keeps_prediction)
        comparison = calibrator.comparison_ or Comparison()
        with heard_warnings():  # what a fold lacks the whole set may have
            for repeat, fold in enumerate(self.assignments):
                if before is not None:
                    given = given.only_logits(before.scores[repeat])
                if keep_scores:
                    scores.append(np.empty((given.n, self._rows.n_classes)))
                parts = self._parted(given, before, repeat)
                for part, (seen, held_out) in enumerate(parts):
                    unseen = np.flatnonzero(fold == part)
                    rows = self._rows.take(fold != part)
                    if not (before is None and _fit_summary(calibrator, rows)):
                        fit_to_compare(calibrator, seen, comparison)
                    probs = calibrator.predict_proba(held_out.scores, kind="logits")
                    losses[unseen] += self.losses(probs, held_out)
                    if keep_scores:
                        scores[-1][unseen] = seen_through(probs, held_out.scores, keeps)
        parameters = calibrator.n_parameters + (0 if before is None else before.parameters)
        losses /= len(self.assignments)
        fits = tuple(comparison.fits)
        return Trial(losses, parameters, keeps, tuple(scores), Worth.of(given), fits)

    def _parted(self, given: Predictions, before: Trial | None, repeat: int) -> Parts:
        """Return of each fold the other rows and its own; few are kept, with what fits share."""
        key, fold = (id(before), repeat), self.assignments[repeat]
        if key in self._parts:
            return self._parts[key][1]
        parts = [(given.take(fold != p), given.take(fold == p)) for p in range(self.folds)]
        if before is None or np.prod(given.scores.shape) <= MOST_KEPT:
            self._parts[key] = before, parts  # as long as a trial is kept, no other has its id
        return parts

    def losses(self, probs: Array, held_out: Predictions) -> FloatArray:
        """Return the (N,) losses of the rows under (N, K) probabilities."""
        if self.score == "brier":
            return score_rows(Predictions.from_probs(probs, held_out.labels)).brier
        of_label = to_numpy(pick(probs, like(held_out.labels, probs))).astype(np.float64)
        return -np.log(np.maximum(of_label, SMALLEST_PROBABILITY))


def fit_to_compare(
    calibrator: Calibrator, predictions: Predictions, comparison: Comparison
) -> Calibrator:
    """Fit as closely as a comparison on other rows needs, or if that is over as others do.

    The calibrator, which is returned, may begin where those before it in the comparison ended.
    """
    calibrator.comparison_ = comparison
    try:
        calibrator.fit_predictions(predictions)
    finally:
        calibrator.comparison_ = None
    comparison.fits.append(copy(calibrator))
    return calibrator


def seen_through(probs: Array, logits: Array, keeps: bool) -> FloatArray:
    """Return the logits of the step behind one that made `probs` of `logits`, as float64 NumPy.

    See `calibrant.posthoc.array_ops.scores_behind`.
    """
    after, before = (to_numpy(array).astype(np.float64) for array in (probs, logits))
    return scores_behind(xnp, after, before, masks=True, keeps=keeps)


def _fit_summary(calibrator: Calibrator, rows: RowSummary) -> bool:
    """Fit on a summary, and return whether the method can do with what that holds."""
    if not isinstance(calibrator, SummaryTemperature):
        return False
    try:
        calibrator.fit_rows(rows)
    except InputError:
        return False
    return True


class Difference(NamedTuple):
    """A mean difference of losses and its standard error."""

    value: float
    error: float


def shared_rows_factor(folds: int) -> float:
    """Return what the variance of a mean difference is to be multiplied by: 1 + V / (V - 1)."""
    return 1 + folds / (folds - 1)


def difference_of_losses(
    first: FloatArray, second: FloatArray, folds: int, worth: Worth = ALIKE
) -> Difference:
    """Return the mean of (N,) losses `first` - `second` of the same rows, and its standard error.

    Rows differ in difficulty far more than methods differ on a row, so the error is that of the
    row-by-row differences d. All rows of a fold share a fit and all fits share rows, which makes
    sd(d) / sqrt(N) too small; it is raised by sqrt(1 + V / (V - 1)) for V folds, the correction
    of Nadeau and Bengio (Inference for the Generalization Error, Machine Learning 52, 2003): 1.5
    for V = 5. Repeats are averaged in d before and are no further evidence.

    Args:
        first: (N,) losses, averaged over repeats; second: likewise.
        folds: V, at least 2.
        worth: how much rows count; clusters are the units of the variance where there are any.
    """
    differences = first - second
    error = (worth.variance(differences) * shared_rows_factor(folds)) ** 0.5
    return Difference(mean(differences, worth.weights), error)


NO_CLEAR_GAIN = "took one temperature: cross-validation shows no clear gain over it"


def gains_on_temperature(unguarded: Calibrator, predictions: Predictions) -> bool:
    """Return whether a method clearly gains on temperature scaling in five folds.

    Args:
        unguarded: isn't fitted itself.
        predictions: logits and labels.
    """
    folds = min(FOLDS, predictions.n)
    if folds < 2:
        return False
    fold = folds_of(predictions)
    single = held_out_losses(TemperatureScaling(), predictions, fold)
    own = held_out_losses(unguarded, predictions, fold)
    return clearly_lower(own, single, folds, Worth.of(predictions))


def clearly_lower(own: FloatArray, single: FloatArray, folds: int, worth: Worth) -> bool:
    """Return whether (N,) losses lie below others by a standard error of the difference.

    They have to do so even without the row that gains most: where few rows are wrong, one of them
    can make a gain that no other row bears out.

    More than one error would cost more than it saves: of 75 draws of 1 000 rows of the sample,
    where there is nothing to gain, chance takes `vector` through in two, 1.1 errors each (.0001 in
    NLL on average), and what `pts` gains on 1 000 rows of CIFAR-100, .018, is seen by .6 to 1.7.
    """
    gain = difference_of_losses(single, own, folds, worth)
    largest = float(times(single - own, worth.weights).max()) / total(len(own), worth.weights)
    return gain.value - largest > gain.error
