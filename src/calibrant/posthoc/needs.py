"""What a method needs of rows besides logits and labels, and what rows lack of it.

How what isn't a logit becomes one: scores by their mean and unit, exact zeros by a floor.

A forest of a hundred trees says 0 where it means less than one in a hundred. The logarithm of 0 is
minus infinity, or what the smallest number makes of it, -87, and a temperature then makes up for
these few in all other rows. So a fit to probabilities with exact zeros first raises them to a floor
that it chooses by likelihood on rows held out; the calibrator keeps it and raises other rows' too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arguments import within
from calibrant.core.arrays import (
    Array,
    FloatArray,
    IntArray,
    as_array,
    column_names,
    is_frame,
    is_table,
    library_of,
    masked_classes,
    namespace,
    row_chunks,
    to_numpy,
    working_dtype,
)
from calibrant.core.checks import (
    AS_LOGITS,
    LIKE_PROBABILITIES,
    check_features,
    check_numbers,
    check_shape,
    look_like_probabilities,
)
from calibrant.core.errors import (
    InputError,
    NotApplicableError,
    NotIdentifiedWarning,
    PredictionsError,
    warn_caller,
)
from calibrant.core.weights import are_counts, mean
from calibrant.files.schema import ends_of
from calibrant.posthoc.state import Estimator, FittedForm, FittedKind
from calibrant.predictions.binary import (
    AS_LOG_ODDS,
    SMALLEST_PROBABILITY,
    BinaryKind,
    as_logits,
    two_columns,
)
from calibrant.predictions.implausible import FEW, units
from calibrant.predictions.names import ClassNames, listed, names_of_columns
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import RowSummary, summarize
from calibrant.predictions.temperature import fit_temperature

if TYPE_CHECKING:
    from calibrant.scale.shards import Shards


# Scores lie at most so many units from their mean, lest probabilities beyond 1 - 1e-16 are one.
FARTHEST = 20.0
# The highest floor that is tried, and how many from half of the least probability above 0 up to it.
# A lower one would gain at most that half in log-likelihood, and a single surprise costs far more.
HIGHEST_FLOOR, FLOORS = 0.1, 8
# More rows wouldn't choose another one.
FLOOR_ROWS, FLOOR_FOLDS = 20_000, 5
# Of many files so many rows show whether there are zeros.
FIRST_ROWS = 4096


def rows_of_event(estimator: Estimator, predictions: Predictions) -> Predictions:
    """Return logits: of rows of one number those of "the predicted label is right".

    Scores and zeros are put on the scale of log odds as `estimator` has learnt to (`placing_`).
    """
    if predictions.kind != "score":
        rows = predictions.as_correctness()
        (floor,) = estimator.placing_ or (SMALLEST_PROBABILITY,)
        return rows.as_logits(floor)
    scores = predictions.scores
    return predictions.as_correctness(
        as_logits(namespace(scores), scores, "score", estimator.placing_)
    )


def placing_of(estimator: Estimator, predictions: Predictions) -> tuple[float, ...] | None:
    """Return the numbers by which the rows of a fit become logits, `placing_`; None without any."""
    if predictions.kind == "score":
        return _place_of_scores(predictions)
    if predictions.kind == "logits" or not estimator.raises_zeros:
        return None
    return _floor_of(predictions.as_correctness())


def _place_of_scores(predictions: Predictions) -> tuple[float, float]:
    """Return the mean of scores and their unit, which puts them on the scale of log odds.

    That is their standard deviation, or more where some lie very far out. Where they don't rank
    right rows above wrong ones, it warns.
    """
    scores, weights = np.asarray(predictions.scores), predictions.weights
    middle = mean(scores, weights)
    spread = np.sqrt(mean((scores - middle) ** 2, weights))
    farthest = float(np.abs(scores - middle).max())
    right = predictions.predicted == predictions.labels
    count = np.ones(len(scores)) if weights is None else weights
    _, rank = np.unique(scores, return_inverse=True)
    if right.any() and not right.all():
        of_right, of_all = (float(np.average(rank, weights=count * r)) for r in (right, 1))
        if of_right < of_all:
            warn_caller(
                NotIdentifiedWarning(
                    f"{predictions.source}: rows with higher scores are right less often; if a "
                    "low number means a sure prediction, as with a loss, give its negative"
                )
            )
    unit = max(float(spread), farthest / FARTHEST)
    return float(middle), unit or 1.0


def note_of_zeros(estimator: Estimator) -> str | None:
    """Return the fit report's note on exact zeros, if the fit saw some."""
    if estimator.kind_ != "probs" or estimator.placing_ is None:
        return None
    (floor,) = estimator.placing_
    return (
        f"a probability of exactly 0 counts as {floor:.2g}: of the values tried, this gave the "
        "lowest NLL on held-out rows"
    )


def holds_zeros(rows: Predictions | Shards) -> bool:
    """Return whether rows, the first of many files, have probabilities of exactly 0."""
    if rows.kind != "probs":
        return False
    if not isinstance(rows, Predictions):
        from calibrant.scale.engines import Task
        from calibrant.scale.sampling import chosen_rows

        shard = next((each for each in rows if each.rows), None)
        if shard is None:
            return False
        try:
            rows = chosen_rows(Task(shard, np.arange(min(shard.rows, FIRST_ROWS))))
        except PredictionsError:  # whoever reads all of them says what is wrong
            return False
    return bool((to_numpy(rows.scores) == 0).any())


def half_of_least(probs: NDArray[Any]) -> float:
    """Return half of the least probability above 0, which is what an exact 0 stands for."""
    return max(float(probs.min(initial=1.0, where=probs > 0)) / 2, SMALLEST_PROBABILITY)


def _floor_of(rows: Predictions) -> tuple[float] | None:
    """Return what exact zeros of (N, K) probabilities are raised to; None where there are none.

    It is half of the least probability above 0 or a higher one, whichever gives rows held out from
    a temperature the most likelihood.
    """
    probs = to_numpy(rows.scores).astype(np.float64)
    if not (probs == 0).any():
        return None
    usual = half_of_least(probs)

    def summary(floor: float) -> RowSummary:
        return summarize(np.log(np.maximum(probs, floor)), labels, weights=weights)

    labels, weights = rows.labels, rows.weights
    first = summary(usual)
    # Rows and their folds are chosen no matter in which order they come.
    chosen = np.lexsort((first.label_gap, first.margin))[:: -(-rows.n // FLOOR_ROWS)]
    probs, labels = probs[chosen], labels[chosen]
    weights = None if weights is None else weights[chosen]
    fold = np.arange(len(chosen)) % FLOOR_FOLDS
    floors = np.geomspace(usual, max(usual, HIGHEST_FLOOR), FLOORS).tolist()
    means = [mean(_held_out(summary(floor), fold), weights) for floor in floors]
    return (floors[int(np.argmin(means))],)


def _held_out(rows: RowSummary, fold: IntArray) -> FloatArray:
    """Return the (N,) log losses of rows by a temperature that was fitted to the other folds."""
    losses = np.zeros(rows.n)
    for part in np.unique(fold) if rows.n >= FLOOR_FOLDS else ():
        seen, away = np.flatnonzero(fold != part), np.flatnonzero(fold == part)
        beta = fit_temperature(rows.take(seen)).beta
        losses[away] = rows.take(away).losses(beta)
    return losses


FORMS: dict[FittedForm, str] = {
    "rows": "a score for every class",
    "binary": "one score a row",
    "toplabel": "the confidence of the predicted label alone",
}
SCORES = "scores that are no probabilities"
# What a method may need besides logits and labels: what that is, and the keys that hold it.
NEEDS = {
    "features": ("features of shape (N, D)", "'features'"),
    "head": ("the last layer", "'head_weight' and 'head_bias'"),
}
ONLY_COUNTS = "method '{}' takes weights that count rows, whole numbers, only"
# A method that doesn't heed weights gets no more than so many repeats of a row, on average.
MOST_REPEATS = 100
# Rows of fewer distinct values, such as two classes' rounded scores, repeat by nature.
FEWEST_DISTINCT = 3


def rows_of(scores: Array, labels: Array, kind: FittedKind | None, **more: Any) -> Predictions:
    """Return what `fit` was given as predictions."""
    if scores is None:
        raise PredictionsError("fit needs logits of shape (N, K), got None")
    if labels is None:
        raise PredictionsError("fit needs the true labels of all rows, got None")
    own = check_kind(kind or "logits")
    if own == "score":
        kept = {name: more[name] for name in ("sample_weight", "clusters")}
        return Predictions.from_scores(scores, labels, **kept)
    if kind is not None and np.ndim(scores) == 1:
        one: BinaryKind = "prob" if own == "probs" else "logit"
        beside = {name: more.pop(name) for name in ("head", "reference")}
        return replace(Predictions.from_binary(scores, labels, kind=one, **more), **beside)
    make = Predictions.from_probs if own == "probs" else Predictions.from_logits
    return make(scores, labels, **more)


def rows_for(estimator: Estimator, predictions: Predictions) -> Predictions:
    """Return the rows that count, with weights only if the method heeds them.

    A method that doesn't is given rows as often as whole weights say, copies of one as
    a cluster.

    Raises:
        NotApplicableError: it doesn't, and weights are no whole numbers, or too large.
    """
    rows = predictions.counted
    if rows.weights is None or estimator.weighs:
        return rows
    if not are_counts(rows.weights):
        raise NotApplicableError(ONLY_COUNTS.format(estimator.method))
    if rows.weights.sum() > MOST_REPEATS * rows.n:
        raise NotApplicableError(
            f"method '{estimator.method}' takes no weights and would repeat {rows.n} rows "
            f"{rows.weights.sum():.0f} times in all; take a method that uses weights"
        )
    return rows.repeated_together()


def with_copies_together(rows: Predictions) -> tuple[Predictions, str | None]:
    """Return the rows with copies of one as a cluster, unless they have clusters, and a note."""
    if rows.clusters is not None:
        return rows, None
    copies, several = copies_of_rows(rows)
    if not several:
        return rows, None
    occur = "row occurs" if several == 1 else "rows occur"
    note = f"{several} {occur} more than once; copies of a row are held out together"
    return replace(rows, clusters=copies), note


def copies_of_rows(rows: Predictions) -> tuple[IntArray | None, int]:
    """Return the (N,) clusters that copies of a row make, and how many rows have copies.

    Copies are bitwise equal in float logits, and in features where there are any, whatever their
    labels. Clusters are numbered by margin, wrong rows first, so that those dealt one after the
    other are alike. They are None where no row has a copy, or all are copies of one.
    """
    summary = rows.summary
    # Copies agree in these, which are at hand; only rows that do are read.
    order = np.lexsort((summary.predicted, summary.top, summary.margin))
    keys = (summary.predicted[order], summary.top[order], summary.margin[order])
    equal = np.logical_and.reduce([key[1:] == key[:-1] for key in keys])
    alike = np.zeros(rows.n, dtype=bool)
    alike[order[1:][equal]] = alike[order[:-1][equal]] = True
    candidates = np.flatnonzero(alike)
    if not len(candidates):
        return None, 0
    some = rows.take(candidates)
    held = [some.scores] if some.features is None else [some.scores, some.features]
    arrays = [np.ascontiguousarray(to_numpy(array)) for array in held]
    if arrays[0].dtype.kind != "f":
        return None, 0
    ordered = [np.sort(array, axis=1) for array in arrays]
    counts = [1 + (array[:, 1:] != array[:, :-1]).sum(axis=1) for array in ordered]
    telling = np.maximum.reduce(counts) >= FEWEST_DISTINCT
    content = np.hstack([array.view(np.uint8) for array in arrays])[telling]
    whole = np.ascontiguousarray(content).view(f"V{content.shape[1]}").ravel()
    _, first, which, count = np.unique(
        whole, return_index=True, return_inverse=True, return_counts=True
    )
    several = int((count > 1).sum())
    own = np.arange(rows.n)
    own[candidates[telling]] = candidates[telling][first][which]
    if not several or (own == own[0]).all():
        return None, 0
    place, earliest = np.empty(rows.n, dtype=np.int64), np.full(rows.n, rows.n)
    place[np.lexsort((summary.margin, summary.correct))] = np.arange(rows.n)
    np.minimum.at(earliest, own, place)
    return earliest[own], several


def lacking(estimator: Estimator, predictions: Predictions, *, to_apply: bool) -> str | None:
    """Return what `predictions` lack of what `estimator` needs, as a clause; see `lacks`."""
    if predictions.kind == "score" and not (estimator.fits_scores and estimator.fits_top_label):
        return (
            f"{predictions.source} holds {SCORES}; platt, beta, isotonic, histogram and auto make "
            "probabilities of them"
        )
    if predictions.kind == "toplabel" and not estimator.fits_top_label:
        return (
            f"it needs a score for every class, and {predictions.source} has only the "
            "confidence of the predicted label"
        )
    held: dict[str, Any] = {"features": predictions.features, "head": predictions.head}
    for need in estimator.needs:
        if held[need] is None and (need == "features" or not to_apply):
            what, keys = NEEDS[need]
            return f"it needs {what}, and {predictions.source} has no {keys}"
    form = fitted_form(predictions)
    fitted = hasattr(estimator, "fit_report_")
    scores = [kind == "score" for kind in (estimator.kind_, predictions.kind)]
    if to_apply and fitted and scores[0] != scores[1]:
        forms = zip(scores, (estimator.form_, form), strict=True)
        was, holds = (SCORES if score else FORMS[one] for score, one in forms)
        return f"it was fitted to {was}, and {predictions.source} holds {holds}"
    if to_apply and fitted and form != estimator.form_ and "toplabel" in (form, estimator.form_):
        return (
            f"it was fitted to {FORMS[estimator.form_]}, and {predictions.source} holds "
            f"{FORMS[form]}"
        )
    if to_apply and fitted and form != "toplabel":
        names, called = predictions.class_names or (), estimator.class_names_ or ()
        other = other_classes(estimator, names, predictions.source)
        if other is not None and {*names} == {*called}:
            settled = "give the columns in the order of the fit (--scores NAME,NAME,...)"
            if form == "binary":
                settled = f"the positive class of the fit is '{[*called][-1]}' (--positive)"
            return f"{other}; {settled}"
        if other is not None:
            return other
    if to_apply and "features" in estimator.needs and fitted:
        found, width = int(held["features"].shape[1]), estimator.feature_width
        if width is not None and found != width:
            return f"it was fitted for {width} features, and {predictions.source} has {found}"
    return None


def other_classes(estimator: Estimator, names: ClassNames | None, source: str) -> str | None:
    """Return that rows have other classes than `estimator`, or another order, as a clause."""
    called = estimator.class_names_
    if not names or not called or names == called:
        return None
    return (
        f"it was fitted to the classes {listed(called)}, and {source} has {listed(names)}, in "
        "this order"
    )


def check_columns(estimator: Estimator, scores: Any) -> None:
    """Raise `PredictionsError` if columns are named after other classes than `estimator` has.

    What columns share before or after the name of a class, such as ``prob_``, is no part of it.
    Arrays have no names, so their columns are taken in the order of the fit.
    """
    called = estimator.class_names_
    if not called or not is_frame(scores):
        return
    columns = column_names(scores) if is_table(scores) else [getattr(scores, "name", None)]
    if estimator.form_ == "binary" and len(columns) == 1:
        if str(columns[0]) == called[0]:
            raise PredictionsError(
                f"'{columns[0]}' is the negative class, but this {type(estimator).__name__} takes "
                f"the {estimator.kind_} of '{called[1]}' where they are one column"
            )
        return
    words = [str(column) for column in columns]
    if len(words) != len(called) or ends_of(words) in (called, ends_of(called)):
        return
    names = names_of_columns(scores, "predict_proba")
    other = other_classes(estimator, None if names is None else ends_of(words), "the table")
    if other is None:
        return
    column = dict(zip(ends_of(words), columns, strict=True))
    if set(column) == set(called):
        taken = "table.select({})" if library_of(scores) == "pyarrow" else "frame[{}]"
        line = taken.format([column[name] for name in called])
    else:
        line = "an array of them, if its columns are these classes in this order"
    raise PredictionsError(f"method '{estimator.method}' can't be applied: {other}; give {line}")


def check_width(estimator: Estimator, rows: Predictions | Shards) -> None:
    """Raise `PredictionsError` if rows have scores of another number of classes."""
    if rows.n_classes not in (None, estimator.n_classes_):
        raise PredictionsError(
            f"{rows.source}: has {rows.n_classes} classes, but this calibrator was fitted for "
            f"{estimator.n_classes_} classes"
        )


def checked_features(estimator: Estimator, features: Array | None, rows: int) -> Array | None:
    """Return the features of so many rows, once they are those that `estimator` needs."""
    if "features" not in estimator.needs:
        return features
    width = estimator.feature_width
    shape = f"({rows}, {'D' if width is None else width})"
    if features is None:
        raise PredictionsError(
            f"this {type(estimator).__name__} needs features of shape {shape} beside the logits"
        )
    known = as_array(features)
    check_features(known, rows, "predict_proba")
    if width is not None and known.shape[1] != width:
        raise PredictionsError(
            f"this {type(estimator).__name__} was fitted for {width} features and needs 'features' "
            f"of shape {shape}, not {tuple(known.shape)}"
        )
    return known


def fitted_form(predictions: Predictions) -> FittedForm:
    """Return what a calibrator that is fitted to `predictions` is about."""
    if predictions.top_only:
        return "toplabel"
    return "binary" if predictions.binary else "rows"


def refuse_masks(estimator: Estimator, logits: Array) -> None:
    """Raise `NotApplicableError` if a class is masked in a row of (N, K) logits."""
    for part in row_chunks(logits):
        if masked_classes(logits[part]) is not None:
            raise NotApplicableError(
                f"method '{estimator.method}' can't be fitted on rows that mask classes with -inf"
            )


def check_kind(kind: FittedKind, fitted: FittedKind | None = None) -> FittedKind:
    """Return what scores are said to be.

    Raises:
        InputError: an unknown word, or scores where it was `fitted` to something else, or the other
            way round.
    """
    within("kind", kind, choices=get_args(FittedKind))
    if fitted is not None and (kind == "score") != (fitted == "score"):
        raise InputError(f"kind is '{kind}', but the calibrator was fitted to {fitted}")
    return kind


def check_classes(estimator: Estimator, scores: Array) -> Array:
    """Return scores that have a column for each class that `estimator` was fitted for."""
    width = estimator.n_classes_
    if len(scores.shape) != 2 or scores.shape[1] != width:
        names = estimator.class_names_
        called = f", {listed(names)}," if names else ""
        one = " or (N,)" if estimator.form_ != "rows" else ""
        raise PredictionsError(
            f"this {type(estimator).__name__} was fitted for {width} classes{called} and "
            f"needs {estimator.kind_} of shape (N, {width}){one}, not {tuple(scores.shape)}"
        )
    return scores


# What the one who calls is to say of scores that were taken for probabilities.
AS_KIND = 'if these are logits, say so: kind="logits"'


def read_scores(
    estimator: Estimator, scores: Array, features: Array | None, kind: FittedKind | None
) -> tuple[Array, Array | None, bool]:
    """Return (N, K) logits, features beside them, and whether it was a single row."""
    check_columns(estimator, scores)
    try:
        return _read_scores(estimator, scores, features, kind)
    except PredictionsError as error:
        if error.details not in (AS_LOGITS, AS_LOG_ODDS):
            raise
        raise PredictionsError(error.reason, AS_KIND) from None


def _no_logits(rows: Array) -> str | None:
    """Return what (N, K) logits are in truth: probabilities, also rounded ones, or percent."""
    # Mostly one number tells.
    if not rows.shape[0] or not 0 <= rows[0, 0] <= 100:
        return None
    if look_like_probabilities(rows):
        return LIKE_PROBABILITIES
    seen = None
    for part in (slice(FEW), slice(None)) if rows.shape[0] >= FEW else ():
        found = units(to_numpy(rows[part]).astype(np.float64, copy=False))
        seen = next((finding.sentence for finding in found if "are" in finding.fix), None)
        if seen is None:
            break
    return seen


def _read_scores(
    estimator: Estimator, scores: Array, features: Array | None, kind: FittedKind | None
) -> tuple[Array, Array | None, bool]:
    own, rows = check_kind(kind or estimator.kind_, estimator.kind_), as_array(scores)
    single = False
    if own == "score":
        rows = rows[:, 0] if tuple(rows.shape[1:]) == (1,) else rows
        check_shape(tuple(rows.shape), "score", "predict_proba")
        check_numbers(rows, "score", "predict_proba")
        rows = namespace(rows).astype(rows, working_dtype(rows), copy=False)
        logits = as_logits(namespace(rows), rows, "score", estimator.placing_)
        return logits, checked_features(estimator, features, int(rows.shape[0])), False
    if estimator.form_ != "rows" and (len(rows.shape) == 1 or tuple(rows.shape[1:]) == (1,)):
        rows = two_columns(rows, "prob" if own == "probs" else "logit", "predict_proba")
    elif len(rows.shape) == 1 and rows.shape[0] == estimator.n_classes_:
        single, rows = True, rows[None, :]
        features = None if features is None else as_array(features)[None, ...]
    check_classes(estimator, rows)
    if own == "probs":
        known = Predictions.from_probs(rows, None, source="predict_proba")
        rows = rows_of_event(estimator, known).scores
    elif kind is None and (seen := _no_logits(rows)):
        raise PredictionsError(
            f'predict_proba: {seen}; say what they are, kind="probs" or kind="logits"'
        )
    return rows, checked_features(estimator, features, int(rows.shape[0])), single
