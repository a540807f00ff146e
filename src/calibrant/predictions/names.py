"""Names of classes: those of columns, and labels that are names instead of numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import Array, IntArray, as_array, column_names, is_table, to_numpy
from calibrant.core.checks import row_number
from calibrant.core.errors import (
    LabelFormWarning,
    NoCommonNamesWarning,
    PredictionsError,
    warn_caller,
)
from calibrant.core.text import first_few

ClassNames = tuple[str, ...]
# What a column of scores may be called beside the class, as in "logit_3" and "prob_cat".
PREFIX = re.compile(r"(logits?|probs?)_(?=.)")
# Of fewer rows all predictions may well be wrong.
ROWS_TO_SHARE_A_NAME = 20


def names_of_columns(scores: Any, source: str) -> ClassNames | None:
    """Return the classes that the columns of a table are named after; None of any other array.

    Columns that are numbered from 0, with or without ``logit_`` or ``prob_`` before it, have no
    names.

    Raises:
        PredictionsError: the numbers have gaps or another order, or a name occurs twice.
    """
    if not is_table(scores):
        return None
    names = [str(name) for name in column_names(scores)]
    if names and all(PREFIX.match(name) for name in names):
        names = [PREFIX.sub("", name, count=1) for name in names]
    numbers = [str(number) for number in range(len(names))]
    if names == numbers:
        return None
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise PredictionsError(f"{source}: the column '{twice}' occurs twice")
    if all(re.fullmatch(r"[0-9]{1,18}", name) for name in names):
        raise PredictionsError(
            f"{source}: the columns are numbered {listed(names)}, which could be the numbers of "
            "the classes or their names; order them as 0, 1, ..., or pass an array and class_names"
        )
    return tuple(names)


def check_names(names: Sequence[Any], n_classes: int, source: str) -> ClassNames:
    """Return the names of all classes as text.

    Raises:
        PredictionsError: there aren't as many names as classes, or a name occurs twice.
    """
    found = tuple(str(name) for name in names)
    if len(found) != n_classes or len(set(found)) < len(found):
        raise PredictionsError(
            f"{source}: class_names must be {n_classes} different names, one for each column of "
            f"scores, not {listed(found)}"
        )
    return found


def are_words(labels: Any) -> bool:
    """Return whether labels are text, or objects such as a column of text may hold."""
    return getattr(to_numpy(as_array(labels)), "dtype", np.dtype(float)).kind in "UOST"


def numbered(labels: Array, names: ClassNames | None, source: str, key: str = "labels") -> Array:
    """Return labels as numbers of classes: names by their place, numbers as they are.

    Raises:
        PredictionsError: a label that is none of the names, or names that nobody has told.
    """
    if not are_words(labels):
        return labels
    values = to_numpy(as_array(labels))
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1 or not all(isinstance(value, str) for value in values.tolist()):
        return values  # whatever it is, it is refused as no number
    found, place = np.unique(values.astype(str), return_inverse=True)
    if names is None:
        raise PredictionsError(
            f"{source}: '{key}' must hold numbers, not names such as {listed(found.tolist())}, "
            "unless class_names=[...] names the classes in the order of the columns, or columns of "
            "a table are named after them"
        )
    known = {name: number for number, name in enumerate(names)}
    unknown = np.array([name not in known for name in found.tolist()])
    plain = {_plain(name): number for name, number in known.items()}
    odd = found[unknown].tolist()
    if odd and len(plain) == len(names) and all(_plain(name) in plain for name in odd):
        other = names[plain[_plain(odd[0])]]
        said = f"labels spelt otherwise than the classes, such as '{odd[0]}' for '{other}'"
        warn_caller(LabelFormWarning(f"{source}: {said}, were read as these"))
        known |= {name: plain[_plain(name)] for name in odd}
    elif odd:
        row = int(unknown[place].argmax())
        raise PredictionsError(
            f"{source}: '{key}' holds '{values[row]}' in row {row_number(row)}, which is none of "
            f"the classes {listed(names)}"
        )
    return np.array([known[name] for name in found.tolist()], dtype=np.int64)[place]


def _plain(name: str) -> str:
    """Return a name without what spellings differ in: capitals, and marks between its words.

    Bytes that Python has printed are the text in them.
    """
    name = re.sub(r"^b(['\"])(.*)\1$", r"\2", name)
    return re.sub(r"[\W_]+", " ", name.casefold()).strip() or name


def as_class_numbers(labels: Array, rows: int, n_classes: int, source: str) -> Array:
    """Return labels as numbers of classes where their form leaves no doubt which these are.

    One-hot rows become the places of their ones, and of two classes truth values and -1 and 1
    become 0 and 1; anything else comes back as it is.
    """
    values = to_numpy(as_array(labels))
    kind = getattr(values, "dtype", np.dtype(object)).kind
    if n_classes == 2 and kind == "b" and values.ndim == 1:
        return values.astype(np.int64)
    if n_classes == 2 and values.ndim == 1:
        return of_signs(values, source)
    if rows < ROWS_TO_SHARE_A_NAME or kind not in "biuf" or values.shape != (rows, n_classes):
        return labels
    return of_one_hot(values, source)


def of_one_hot(labels: NDArray[Any], source: str) -> NDArray[Any]:
    """Return one-hot rows of three classes or more as the places of their ones, others as is.

    Of two columns, and in a few rows, many labels may just happen to be true one at a time.
    """
    if labels.ndim != 2 or labels.shape[1] < 3 or labels.dtype.kind not in "biuf":
        return labels
    if not np.isin(labels, (0, 1)).all() or (labels.sum(axis=1) != 1).any():
        return labels
    said = "labels are one-hot rows; the place of the 1 was read as the class"
    warn_caller(LabelFormWarning(f"{source}: {said}"))
    return labels.argmax(axis=1)


def all_alike(labels: IntArray | None) -> str:
    """Return what is said of rows whose labels are all the same, or nothing of others."""
    if labels is None or labels.ndim != 1 or not len(labels) or (labels != labels[0]).any():
        return ""
    return f"all {len(labels)} labels are the same, so nothing shows what distinguishes the classes"


def of_signs(labels: NDArray[Any], source: str) -> NDArray[Any]:
    """Return labels -1 and 1 as 0 and 1, and others as they are."""
    if labels.dtype.kind not in "if" or not len(labels) or labels.min() != -1:
        return labels
    if not np.isin(labels, (-1, 1)).all():
        return labels
    warn_caller(LabelFormWarning(f"{source}: labels are -1 and 1, which were read as 0 and 1"))
    return (labels > 0).astype(np.int64)


def numbered_pair(
    predicted: Array, labels: Array | None, source: str
) -> tuple[Array, Array | None, ClassNames | None]:
    """Return predicted and true labels as numbers, and the names that they were, in order.

    Raises:
        PredictionsError: one of them holds names and the other one numbers.
    """
    worded = [are_words(one) for one in (predicted, labels) if one is not None]
    if not any(worded):
        both = [to_numpy(as_array(one)) for one in (predicted, labels) if one is not None]
        if any(one.dtype.kind not in "iuf" for one in both) or min(map(np.ndim, both)) != 1:
            return predicted, labels, None
        signs = of_signs(np.concatenate(both), source)
        first = len(both[0])
        return signs[:first], labels if labels is None else signs[first:], None
    if not all(worded):
        raise PredictionsError(
            f"{source}: predicted and true labels must both be names, or both numbers"
        )
    texts = [to_numpy(as_array(one)) for one in (predicted, labels) if one is not None]
    if not all(isinstance(word, str) for text in texts for word in text.tolist()):
        return predicted, labels, None  # whatever they are, they are refused as no numbers
    names = tuple(sorted({word for text in texts for word in text.tolist()}))
    if labels is not None:
        _warn_of_no_common_names(texts[0], texts[1], source)
    said = numbered(predicted, names, source, "predicted labels")
    return said, None if labels is None else numbered(labels, names, source), names


def _warn_of_no_common_names(said: NDArray[Any], true: NDArray[Any], source: str) -> None:
    """Warn if no predicted label is also a true one, in rows enough to make that strange."""
    of_said, of_true = sorted(set(said.tolist())), sorted(set(true.tolist()))
    if len(true) < ROWS_TO_SHARE_A_NAME or len(of_true) < 2 or set(of_said) & set(of_true):
        return
    warn_caller(
        NoCommonNamesWarning(
            f"{source}: every prediction is wrong, since no predicted label ({listed(of_said)}) is "
            f"among the true ones ({listed(of_true)}); if these are the same classes, spell them "
            "alike"
        )
    )


def listed(names: Sequence[Any]) -> str:
    """Return the first of some names for a message."""
    return first_few([f"'{name}'" for name in names])
