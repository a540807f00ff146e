"""The arguments of a metric: scores of all classes, or (N,) scores of a kind that is named.

A vector of numbers in [0, 1] beside zeros and ones may be confidences with what was right, or
probabilities of the positive class with true labels. Which it is only the caller knows.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import Array, FloatArray, as_array, to_numpy
from calibrant.core.checks import check_labels
from calibrant.core.errors import InputError, PredictionsError
from calibrant.core.weights import check_weights
from calibrant.metrics.top_label import TopLabel

PairKind = Literal["confidence", "prob"]
"""What (N,) scores are: confidences in predicted labels, or probabilities of the positive class."""


def top_label(
    scores: Array,
    labels: Array,
    kind: PairKind | None = None,
    *,
    top: bool = False,
    sample_weight: Array | None = None,
) -> TopLabel:
    """Return a metric's arguments as sorted rows of what was said and what came true.

    Args:
        scores: (N, K) probabilities; or (N,) of the `kind` that is named.
        labels: (N,) true classes of (N, K) probabilities. Of ``"confidence"`` whether each
            prediction was right, of ``"prob"`` whether each row is of the positive class (bool, or
            0 and 1).
        kind: what (N,) scores are; None of (N, K).
        top: take the more probable of both classes for what ``"prob"`` predicts.
        sample_weight: (N,) how much each row counts; None where all count alike.

    Raises:
        PredictionsError: other shapes, values outside [0, 1], an empty set, (N,) scores of no named
            kind, or weights that are negative, not finite or all 0.
    """
    said, true = confidence_and_correct(scores, labels, kind, top=top)
    weight = checked_weight(sample_weight, len(said))
    return TopLabel.sort(said, true, weight)


def checked_weight(sample_weight: Array | None, rows: int) -> FloatArray | None:
    """Return (N,) weights of so many rows, checked; None where all count alike."""
    if sample_weight is None:
        return None
    return check_weights(sample_weight, rows, "sample_weight", "sample_weight")


def refuse_fractions(sample_weight: Array | None) -> None:
    """Refuse weights that don't count rows, for what counts rows."""
    if sample_weight is None:
        return
    values = to_numpy(as_array(sample_weight))
    odd = values != np.round(values)
    if odd.any():
        row = int(odd.argmax())
        raise PredictionsError(
            "sample_weight: this counts rows, so weights must be whole numbers, but row "
            f"{row} holds {values[row]}"
        )


def confidence_and_correct(
    scores: Array, labels: Array, kind: PairKind | None = None, *, top: bool = False
) -> tuple[FloatArray, NDArray[np.bool_ | np.int64]]:
    """Return the checked (N,) confidences and correctness of a metric's arguments, unsorted.

    See `top_label`.
    """
    values = as_array(scores)
    check_kind(len(values.shape), kind)
    if len(values.shape) == 2:
        from calibrant.predictions.predictions import Predictions
        from calibrant.predictions.scoring import score_top

        rows = score_top(Predictions.from_probs(values, labels))
        return rows.confidence, rows.correct
    said = to_numpy(values).astype(np.float64)
    if said.ndim != 1 or len(said) == 0:
        raise PredictionsError(
            "a metric needs (N, K) probabilities with (N,) labels, or (N,) confidences with (N,) "
            f"correctness, and N >= 1; got shape {said.shape}"
        )
    what, truth = ("confidence", "correct") if kind == "confidence" else ("prob", "labels")
    if not ((said >= 0) & (said <= 1 + 1e-6)).all():
        row = int(((said < 0) | ~(said <= 1 + 1e-6)).argmax())
        raise PredictionsError(f"{what}: row {row} holds {said[row]}, not in [0, 1]")
    hits = to_numpy(as_array(labels))
    if hits.dtype != np.bool_:
        hits = check_labels(hits, len(said), 2, what, key=truth)
    elif hits.shape != said.shape:
        raise PredictionsError(
            f"'{truth}' has shape {hits.shape}, but the scores ('{what}') {said.shape}"
        )
    if kind == "prob" and top:
        positive = said > 0.5
        return np.where(positive, said, 1 - said), hits.astype(np.bool_) == positive
    return said, hits


def check_kind(dimensions: int, kind: str | None) -> None:
    """Refuse (N,) scores that might be either of two things, and a kind where none is needed."""
    if kind is not None and kind not in get_args(PairKind):
        raise InputError(f"kind must be 'confidence' or 'prob', not {kind!r}")
    if dimensions == 2 and kind is not None:
        raise PredictionsError(
            f"kind='{kind}' is for scores of shape (N,); a column for each class needs no kind"
        )
    if dimensions == 1 and kind is None:
        raise PredictionsError(
            "scores of shape (N,) may be confidences, with whether each prediction was right "
            "(kind='confidence'), or probabilities of the positive class, with labels 0 and 1 "
            "(kind='prob'): say which; scores of all classes have shape (N, K)"
        )
