"""One score a row: the probability, or the log odds, that a row is of the positive class.

Inside it is two classes, 0 for the negative and 1 for the positive one: a probability p as the row
[1 - p, p], log odds z as the logits [0, z]. Neither loses a digit of p or z, next to 0 and 1 too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arguments import within
from calibrant.core.arrays import Array, IntArray, as_array, namespace, to_numpy, working_dtype
from calibrant.core.checks import check_finite, check_labels, row_number
from calibrant.core.errors import (
    LooksLikeProbabilitiesWarning,
    PredictionsError,
    warn_caller,
)
from calibrant.core.text import first_few
from calibrant.predictions.names import of_signs

BinaryKind = Literal["prob", "logit"]
BINARY_KINDS: tuple[BinaryKind, ...] = ("prob", "logit")
ClassNames = tuple[str, ...]
SMALLEST_PROBABILITY = float(np.finfo(np.float32).tiny)

# What to do with what was taken for one probability a row.
AS_LOG_ODDS = "name it 'logit' (kind='logit') if these are log odds"


def two_columns(scores: Array, kind: BinaryKind, source: str) -> Array:
    """Return (N, 2) probabilities or logits of (N,) or (N, 1) scores, checked.

    Raises:
        PredictionsError: another shape, NaN, infinity, or what the kind can't be.
    """
    within("kind", kind, choices=BINARY_KINDS)
    values = as_array(scores)
    shape = tuple(getattr(values, "shape", ()))
    if len(shape) == 2 and shape[1] == 1:
        values, shape = values[:, 0], shape[:1]
    check_one_score(shape, kind, source)
    xp = namespace(values)
    if not xp.isdtype(values.dtype, ("real floating", "integral")):
        raise PredictionsError(f"{source}: '{kind}' must hold real numbers, not {values.dtype}")
    wide = xp.astype(values, working_dtype(values), copy=False)
    check_finite(wide[:, None], kind, source, 0)
    outside = (wide < 0) | (wide > 1)
    if kind == "logit":
        if not bool(xp.any(outside)) and bool(xp.any((wide > 0) & (wide < 1))):
            warn_caller(
                LooksLikeProbabilitiesWarning(
                    f"{source}: every 'logit' lies in [0, 1], as probabilities do; if they are "
                    "probabilities, name them 'prob' (kind='prob')"
                )
            )
        return xp.stack([xp.zeros_like(wide), wide], axis=1)
    if bool(xp.any(outside)):
        row = int(to_numpy(outside).argmax())
        raise PredictionsError(
            f"{source}: 'prob' must lie in [0, 1], but row {row_number(row)} holds "
            f"{float(wide[row])}",
            AS_LOG_ODDS,
        )
    return xp.stack([1 - wide, wide], axis=1)


def as_logits(xp: Any, scores: Array, kind: str, placing: tuple[float, ...] | None = None) -> Array:
    """Return the (N, K) logits that scores stand for, (N, 2) of one score a row.

    A pure function of arrays, so that an exported map reads what the calibrator does.

    Args:
        xp: array namespace of the scores, which are floats.
        scores: (N, K) logits or probabilities, or (N,) of them or of scores.
        kind: ``"logits"``, ``"probs"`` or ``"score"``.
        placing: (m, u) of scores s, of which (s - m) / u are taken for log odds; or of
            probabilities what zeros are raised to, None for the smallest normal float32.
    """
    if kind == "score":
        assert placing is not None
        place, unit = placing
        wide = (xp.astype(scores, xp.float64) - place) / unit
        scores = xp.astype(wide, scores.dtype)
    if len(scores.shape) == 1:
        other = 1 - scores if kind == "probs" else xp.zeros_like(scores)
        scores = xp.stack([other, scores], axis=1)
    if kind == "probs":
        (floor,) = placing or (SMALLEST_PROBABILITY,)
        scores = xp.log(xp.clip(scores, floor, None))
    return scores


def check_one_score(shape: tuple[int, ...], kind: str, source: str) -> None:
    """Raise `PredictionsError` unless scores of a shape are one a row; say what they look like."""
    if shape[1:] in ((), (1,)) and shape and shape[0] > 0:
        return
    wanted = f"{source}: '{kind}' must have shape (N,) or (N, 1), one score a row, not {shape}"
    if len(shape) == 2 and shape[0] > 0 and shape[1] > 1:
        many = "probs" if kind == "prob" else "logits"
        wanted += (
            f"; a column for each of {shape[1]} classes is called '{many}' "
            f"(Predictions.from_{many}); a column for each of {shape[1]} labels, several of "
            "which may be true, has kind 'many-labels' (from_many_labels)"
        )
    raise PredictionsError(wanted)


def binary_labels(
    labels: Array,
    rows: int,
    source: str,
    positive: Any = None,
    class_names: Sequence[str] | None = None,
) -> tuple[IntArray, ClassNames | None]:
    """Return (N,) labels, 1 for the positive class, and the names of both, if they have any.

    Args:
        labels: (N,) or (N, 1): 0 and 1, truth values, or the names of two classes.
        rows: N.
        source: begins the error message.
        positive: which label is the positive class; needed where labels are names.
        class_names: of the negative and of the positive class, or of classes 0 and 1 where
            `positive` says which of them it is.

    Raises:
        PredictionsError: other labels, more than two of them, or names without a `positive` one.
    """
    names = two_names(class_names, positive, source)
    values = to_numpy(as_array(labels))
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.shape != (rows,):
        raise PredictionsError(
            f"{source}: the labels of binary predictions must have shape ({rows},), one for each "
            f"score, not {values.shape}"
        )
    if values.dtype.kind == "b":
        values = values.astype(np.int64)
    numbers = values.dtype.kind in "iuf"
    if names is not None and class_names is not None and numbers:
        truth = _zeros_and_ones(values, source)
        return (truth if names[1] == str(class_names[1]) else 1 - truth), names
    if positive is None and names is None:
        return _zeros_and_ones(values, source), None
    words = [_word(value) for value in cast("list[object]", values.tolist())]
    found = sorted(set(words))
    said = names[1] if positive is None and names is not None else _word(positive)
    others = [name for name in found if name != said]
    listed = first_few([*map(repr, found)])
    if names is None and said not in found:
        raise PredictionsError(
            f"{source}: no row is labelled {said!r}, which is to be the positive class; there are "
            f"{listed}"
        )
    if len(others) > 1 or (names is not None and not set(found) <= set(names)):
        expected = "two classes" if names is None else f"the classes {names[0]!r} and {names[1]!r}"
        raise PredictionsError(f"{source}: labels must be of {expected}, but there are {listed}")
    if names is None and others:
        names = (others[0], said)
    return np.array([word == said for word in words], dtype=np.int64), names


def labels_of_columns(
    labels: Array, source: str, positive: Any
) -> tuple[IntArray, ClassNames | None]:
    """Return (N,) labels of two columns of scores, the second of which is of the positive class.

    Raises:
        PredictionsError: as `binary_labels`, or labels that are numbers of the columns themselves
            and another positive class than 1.
    """
    values = to_numpy(as_array(labels))
    if values.dtype.kind in "iufb" and positive is not None and _word(positive) != "1":
        raise PredictionsError(
            f"{source}: labels are the numbers of two columns of scores, so the positive class is "
            f"that of the second one, 1, not {positive}"
        )
    return binary_labels(values, len(values), source, positive)


def two_names(
    class_names: Sequence[str] | None, positive: Any, source: str
) -> tuple[str, str] | None:
    """Return the names of the negative and of the positive class, or None if there are none."""
    if class_names is None:
        return None
    names = tuple(str(name) for name in class_names)
    if len(names) != 2 or names[0] == names[1]:
        raise PredictionsError(
            f"{source}: class_names of binary predictions must be two names, that of the negative "
            f"class and that of the positive one, not {list(names)}"
        )
    if positive is None or _word(positive) == names[1]:
        return names[0], names[1]
    if _word(positive) == names[0]:
        return names[1], names[0]
    raise PredictionsError(f"{source}: the positive class {positive!r} is none of {list(names)}")


def _word(label: Any) -> str:
    """Return what a label is called: whole numbers as such, however they are stored."""
    if isinstance(label, bool):
        return str(int(label))
    if isinstance(label, float) and label.is_integer():
        return str(int(label))
    return str(label)


def _zeros_and_ones(values: NDArray[Any], source: str) -> IntArray:
    if values.dtype.kind in "US":
        words = np.char.lower(values.astype(str))
        if np.isin(words, ("true", "false")).all():
            return (words == "true").astype(np.int64)
    values = of_signs(values, source)
    if values.dtype.kind in "US" or values.dtype.kind == "O":
        some = [repr(word) for word in sorted({_word(value) for value in values.tolist()})]
        raise PredictionsError(
            f"{source}: labels are names ({first_few(some)}); say which of them is the positive "
            "class (positive=..., on the command line --positive NAME)"
        )
    if values.dtype.kind in "iu" or values.dtype.kind == "f":
        bad = (values != 0) & (values != 1)
        if bad.any():
            row = int(bad.argmax())
            raise PredictionsError(
                f"{source}: labels of binary predictions must be 0 or 1, but row "
                f"{row_number(row)} holds {_word(values[row].item())}; if there are two other "
                "labels, say which is the positive class (positive=..., on the command line "
                "--positive NAME)"
            )
    return check_labels(values, len(values), 2, source)
