"""What a method needs of rows besides logits and labels, and what rows lack of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from calibrant.core.errors import NotApplicableError
from calibrant.core.weights import are_counts
from calibrant.posthoc.contents import FittedForm
from calibrant.predictions.names import listed
from calibrant.predictions.predictions import Predictions

if TYPE_CHECKING:
    from calibrant.posthoc.base import Calibrator

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


def rows_for(calibrator: Calibrator, predictions: Predictions) -> Predictions:
    """Return the rows that count, with weights only if the method heeds them.

    A method that doesn't is given rows as often as whole weights say, copies of one as a cluster.

    Raises:
        NotApplicableError: it doesn't, and weights are no whole numbers, or too large.
    """
    rows = predictions.counted
    if rows.weights is None or calibrator.weighs:
        return rows
    if not are_counts(rows.weights):
        raise NotApplicableError(ONLY_COUNTS.format(calibrator.method))
    if rows.weights.sum() > MOST_REPEATS * rows.n:
        raise NotApplicableError(
            f"method '{calibrator.method}' would repeat {rows.n} rows {rows.weights.sum():.0f} "
            "times in all; take one that heeds weights"
        )
    return rows.repeated_together()


def lacking(calibrator: Calibrator, predictions: Predictions, *, to_apply: bool) -> str | None:
    """Return what `predictions` lack of what `calibrator` needs; see `Calibrator.lacks`."""
    if predictions.kind == "toplabel" and not calibrator.fits_top_label:
        return (
            f"it needs a score for every class, and {predictions.source} has only the "
            "confidence of the predicted label"
        )
    held: dict[str, Any] = {"features": predictions.features, "head": predictions.head}
    for need in calibrator.needs:
        if held[need] is None and (need == "features" or not to_apply):
            what, keys = NEEDS[need]
            return f"it needs {what}, and {predictions.source} has no {keys}"
    form = fitted_form(predictions)
    fitted = hasattr(calibrator, "fit_report_")
    if to_apply and fitted and form != calibrator.form_ and "toplabel" in (form, calibrator.form_):
        return (
            f"it was fitted to {FORMS[calibrator.form_]}, and {predictions.source} holds "
            f"{FORMS[form]}"
        )
    names, called = predictions.class_names, calibrator.class_names_
    if to_apply and fitted and form != "toplabel" and names and called and names != called:
        return (
            f"it was fitted to the classes {listed(called)}, and {predictions.source} has "
            f"{listed(names)}, in this order"
        )
    if to_apply and "features" in calibrator.needs and fitted:
        found, width = int(held["features"].shape[1]), calibrator.feature_width
        if width is not None and found != width:
            return (
                f"it was fitted for {width} features, and {predictions.source} has {found} of them"
            )
    return None


def fitted_form(predictions: Predictions) -> FittedForm:
    """Return what a calibrator that is fitted to `predictions` is about."""
    if predictions.kind == "toplabel":
        return "toplabel"
    return "binary" if predictions.binary else "rows"
