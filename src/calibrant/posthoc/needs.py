"""What a method needs of rows besides logits and labels, and what rows lack of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from calibrant.core.arrays import Array, IntArray, as_array, masked_classes, row_chunks, to_numpy
from calibrant.core.checks import check_features
from calibrant.core.errors import InputError, NotApplicableError, PredictionsError
from calibrant.core.weights import are_counts
from calibrant.posthoc.state import Estimator, FittedForm, FittedKind
from calibrant.predictions.names import listed
from calibrant.predictions.predictions import Predictions

FORMS: dict[FittedForm, str] = {
    "rows": "a score for every class",
    "binary": "one score a row",
    "toplabel": "the confidence of the predicted label alone",
}
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
            f"method '{estimator.method}' would repeat {rows.n} rows {rows.weights.sum():.0f} "
            "times in all; take one that heeds weights"
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
    if to_apply and fitted and form != estimator.form_ and "toplabel" in (form, estimator.form_):
        return (
            f"it was fitted to {FORMS[estimator.form_]}, and {predictions.source} holds "
            f"{FORMS[form]}"
        )
    names, called = predictions.class_names, estimator.class_names_
    if to_apply and fitted and form != "toplabel" and names and called and names != called:
        return (
            f"it was fitted to the classes {listed(called)}, and {predictions.source} has "
            f"{listed(names)}, in this order"
        )
    if to_apply and "features" in estimator.needs and fitted:
        found, width = int(held["features"].shape[1]), estimator.feature_width
        if width is not None and found != width:
            return f"it was fitted for {width} features, and {predictions.source} has {found}"
    return None


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
    if predictions.kind == "toplabel":
        return "toplabel"
    return "binary" if predictions.binary else "rows"


def refuse_masks(estimator: Estimator, logits: Array) -> None:
    """Raise `NotApplicableError` if a class is masked in a row of (N, K) logits."""
    for part in row_chunks(logits):
        if masked_classes(logits[part]) is not None:
            raise NotApplicableError(
                f"method '{estimator.method}' can't be fitted on rows that mask classes with -inf"
            )


def check_kind(kind: FittedKind) -> FittedKind:
    """Return what scores are said to be; raise `InputError` for an unknown word."""
    if kind not in ("logits", "probs"):
        raise InputError(f"kind must be one of logits, probs, not {kind!r}")
    return kind
