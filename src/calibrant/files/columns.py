"""Tables: ``logit_0``, ``logit_1``, ... are the columns of one (N, K) array."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from calibrant.core.errors import PredictionsError
from calibrant.files.keys import OF_THE_NETWORK, Arrays, Keys, Wanted, select

STEMS = {"logits": "logit", "probs": "prob", "features": "feature"}
KEYS = {stem: key for key, stem in STEMS.items()}
EXPECTED_COLUMNS = (
    "the columns label with logit_0, logit_1, ... or prob_0, prob_1, ..., label with prob or logit "
    "of the positive class, or true_label, pred_label, confidence"
)


def select_columns(
    header: Sequence[str], wanted: Wanted, source: str
) -> tuple[Keys, dict[str, list[int]]]:
    """Choose what to read, and find for each key the positions of its columns, in their order.

    Raises:
        PredictionsError: a needed column is missing or there twice.
    """
    numbered: dict[str, list[tuple[int, int]]] = {}
    single: dict[str, list[int]] = {}
    for position, name in enumerate(header):
        match = re.fullmatch(r"(logit|prob|feature)_([0-9]{1,99})", name)
        if match:
            numbered.setdefault(KEYS[match[1]], []).append((int(match[2]), position))
        elif name not in STEMS and name not in OF_THE_NETWORK:
            single.setdefault(name, []).append(position)
    keys = select([*numbered, *single], wanted, source, expected=EXPECTED_COLUMNS, found=header)
    places: dict[str, list[int]] = {}
    for key in keys.used:
        if key in numbered:
            _check_numbers([number for number, _ in numbered[key]], STEMS[key], source)
            places[key] = [position for _, position in sorted(numbered[key])]
        else:
            places[key] = single[key]
            if len(single[key]) > 1:
                raise PredictionsError(f"{source}: the column '{key}' is there twice")
    return keys, places


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
    return np.stack(columns, axis=1) if key in STEMS else columns[0]


def split(arrays: Arrays) -> dict[str, NDArray[np.generic]]:
    """Return the named columns of a table that holds these arrays: the inverse of `join`.

    What is known of the network, not of a row, is left out.
    """
    columns: dict[str, NDArray[np.generic]] = {}
    # The short columns come first, where a reader of the file looks for them.
    of_rows = [key for key in arrays if key not in OF_THE_NETWORK]
    for key in sorted(of_rows, key=lambda key: key in STEMS):
        if key in STEMS:
            rows = arrays[key]
            columns |= {f"{STEMS[key]}_{i}": rows[:, i] for i in range(rows.shape[1])}
        else:
            columns["label" if key == "labels" else key] = arrays[key]
    return columns
