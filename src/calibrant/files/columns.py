"""Tables: ``logit_0``, ``logit_1``, ... are the columns of one (N, K) array."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from calibrant.core.errors import InputError, PredictionsError
from calibrant.files.choosing import select
from calibrant.files.keys import (
    CLASS_NAMES,
    LABEL_NAMES,
    OF_THE_NETWORK,
    WEIGHT,
    Arrays,
    Keys,
    Wanted,
)

STEMS = {"logits": "logit", "probs": "prob", "features": "feature"}
KEYS = {stem: key for key, stem in STEMS.items()}
EXPECTED_COLUMNS = (
    "the columns label with logit_0, logit_1, ... or prob_0, prob_1, ..., label with prob or logit "
    "of the positive class, or true_label, pred_label, confidence, or columns named after classes "
    "and told by --class-columns"
)


def select_columns(
    header: Sequence[str], wanted: Wanted, source: str, lists: Collection[str] = ()
) -> tuple[Keys, dict[str, list[int]]]:
    """Choose what to read, and find for each key the positions of its columns, in their order.

    Args:
        header: the names of all columns.
        wanted: what to read.
        source: begins the error message.
        lists: columns that hold a list a row, which alone may be called as a key is.

    Raises:
        PredictionsError: a needed column is missing or there twice.
    """
    numbered: dict[str, list[tuple[int, int]]] = {}
    called: dict[str, list[tuple[str, int]]] = {}
    single: dict[str, list[int]] = {}
    told = [wanted.scores_key] if wanted.scores_key is not None else []
    several = {"label": "labels", WEIGHT: WEIGHT} if wanted.kind == "many-labels" else {}
    keys_of = KEYS | several | {stem: stem for stem in told}
    stems = "|".join(re.escape(stem) for stem in keys_of)
    for position, name in enumerate(header):
        match = re.fullmatch(rf"({stems})_(.+)", name, flags=re.S)
        if name in wanted.class_columns:
            called.setdefault(_kind_told(wanted, source), []).append((name, position))
        elif match and re.fullmatch(r"[0-9]{1,99}", match[2]):
            numbered.setdefault(keys_of[match[1]], []).append((int(match[2]), position))
        elif match and match[1] != "feature" and not match[2].isdigit():
            called.setdefault(keys_of[match[1]], []).append((match[2], position))
            single.setdefault(name, []).append(position)
        elif name in lists or (name not in STEMS and name not in OF_THE_NETWORK):
            single.setdefault(name, []).append(position)
    _check_called(called, numbered, wanted, header, source)
    known = dict.fromkeys([*numbered, *called, *single])
    keys = select(list(known), wanted, source, expected=EXPECTED_COLUMNS, found=header)
    places: dict[str, list[int]] = {}
    for key in keys.used:
        if key in called:
            names = [name for name, _ in called[key]]
            if wanted.class_columns:
                called[key].sort(key=lambda item: wanted.class_columns.index(item[0]))
                names = list(wanted.class_columns)
            if key == keys.scores:
                keys = replace(keys, class_names=tuple(names))
            elif keys.class_names is not None and key in several.values():
                _check_same(names, keys.class_names, key, source)
                called[key].sort(key=lambda item: keys.class_names.index(item[0]))  # type: ignore[union-attr]
            places[key] = [position for _, position in called[key]]
        elif key in numbered:
            stem = STEMS.get(key, "label" if key == "labels" else key)
            _check_numbers([number for number, _ in numbered[key]], stem, source)
            places[key] = [position for _, position in sorted(numbered[key])]
        else:
            places[key] = single[key]
            if len(single[key]) > 1:
                raise PredictionsError(f"{source}: the column '{key}' is there twice")
    return keys, places


def _kind_told(wanted: Wanted, source: str) -> str:
    if wanted.kind not in ("logits", "probs"):
        raise PredictionsError(
            f"{source}: columns named after classes may hold logits or probabilities; say which by "
            "--kind logits or --kind probs (kind=)"
        )
    return wanted.kind


def _check_called(
    called: dict[str, list[tuple[str, int]]],
    numbered: dict[str, list[tuple[int, int]]],
    wanted: Wanted,
    header: Sequence[str],
    source: str,
) -> None:
    """Refuse columns named after classes where others could be meant, or one is missing."""
    missing = [name for name in wanted.class_columns if name not in header]
    if missing:
        raise PredictionsError(f"{source}: there is no column '{missing[0]}' of a class")
    for key, columns in called.items():
        names = [name for name, _ in columns]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise PredictionsError(f"{source}: there are two columns of the class '{twice}'")
        if key in numbered:
            first, stem = names[0], STEMS.get(key, key)
            raise PredictionsError(
                f"{source}: '{key}' could be '{stem}_{numbered[key][0][0]}', ... or the columns "
                f"named after classes, such as '{first}'; leave one of them out, or choose by "
                "--class-columns and --kind"
            )


def _check_same(found: Sequence[str], names: Sequence[str], key: str, source: str) -> None:
    """Refuse columns that aren't named after the labels that the scores are named after."""
    odd = sorted(set(found) ^ set(names))
    if odd:
        there, lacking = ("scores", key) if odd[0] in names else (key, "scores")
        raise PredictionsError(
            f"{source}: the label '{odd[0]}' has a column among the {there}, but none among the "
            f"{lacking}"
        )


def _check_numbers(numbers: list[int], stem: str, source: str) -> None:
    present = set(numbers)
    for number in range(max(numbers) + 1):
        if number not in present:
            raise PredictionsError(
                f"{source}: the column '{stem}_{number}' is missing, though there is a "
                f"'{stem}_{max(numbers)}'; the numbers must run from 0 without gaps"
            )
    if len(numbers) > len(present):
        twice = next(number for number in numbers if numbers.count(number) > 1)
        raise PredictionsError(f"{source}: the column '{stem}_{twice}' is there twice")


def join(key: str, columns: list[NDArray[np.generic]]) -> NDArray[np.generic]:
    """Return the columns of a key as its array: (N, K) if numbered, else (N,)."""
    return np.stack(columns, axis=1) if key in STEMS or len(columns) > 1 else columns[0]


def split(arrays: Arrays) -> dict[str, NDArray[np.generic]]:
    """Return the named columns of a table that holds these arrays: the inverse of `join`.

    What is known of the network, not of a row, is left out.
    """
    columns: dict[str, NDArray[np.generic]] = {}
    # The short columns come first, where a reader of the file looks for them.
    of_rows = [key for key in arrays if key not in OF_THE_NETWORK]
    called = arrays.get(CLASS_NAMES, arrays.get(LABEL_NAMES))
    # A name of digits would be read as a number.
    names = [] if called is None else [str(name) for name in called.tolist()]
    if any(name.isdigit() for name in names):
        names = []
    deep = next((key for key in of_rows if arrays[key].ndim > 2), None)
    if deep is not None:
        raise InputError(
            f"'{deep}' of shape {arrays[deep].shape} is no column of a table, which has a "
            "prediction a row; write .npz, .npy or .safetensors"
        )
    for key in sorted(of_rows, key=lambda key: arrays[key].ndim):
        if arrays[key].ndim == 2:
            rows = arrays[key]
            ends = names if names and key != "features" else range(rows.shape[1])
            stem = STEMS.get(key, "label" if key == "labels" else key)
            columns |= {f"{stem}_{end}": rows[:, i] for i, end in enumerate(ends)}
        elif key == "labels":
            columns["label"] = np.array(names)[arrays[key]] if names else arrays[key]
        else:
            columns[key] = arrays[key]
    return columns
