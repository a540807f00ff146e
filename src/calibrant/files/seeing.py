"""What the first rows of a file hold, as far as they show it by themselves."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from calibrant.core.errors import PredictionsError
from calibrant.files.formats.base import OF_THE_NETWORK, Columns, RowReader
from calibrant.files.options import ScoresAre
from calibrant.predictions.rounding import lost_in_sums

# Rows that are looked at.
ROWS = 2000
# Names of classes as scikit-learn and others keep them.
NAMES = re.compile(r"(classes_?|class_names|labels_?|categories|names)")
# Sums of probabilities, and of the exponentials of their logarithms, may be off by so much.
TOLERANCE = 0.02


@dataclass(frozen=True)
class Seen:
    """What the first rows of a file hold.

    Attributes:
        wide: scores of several classes.
        single: numbers, one a row.
        whole: what labels may be: whole numbers, truth values and text.
        hot: rows of zeros with a single 1.
        several: rows of zeros and ones.
        deep: shapes of arrays of three dimensions or more; whole_rows: rows of whole numbers.
        sparse: columns that are numbered with gaps, their numbers and their names.
        names: texts of which there aren't as many as rows.
        numbers: columns of numbers, also those that belong to a wide one.
    """

    wide: list[tuple[str | tuple[str, ...], NDArray[Any]]] = field(
        default_factory=list[tuple[str | tuple[str, ...], NDArray[Any]]]
    )
    single: dict[str, NDArray[Any]] = field(default_factory=dict[str, NDArray[Any]])
    whole: dict[str, NDArray[Any]] = field(default_factory=dict[str, NDArray[Any]])
    hot: dict[str, NDArray[Any]] = field(default_factory=dict[str, NDArray[Any]])
    several: dict[str, NDArray[Any]] = field(default_factory=dict[str, NDArray[Any]])
    deep: dict[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    whole_rows: dict[str, NDArray[Any]] = field(default_factory=dict[str, NDArray[Any]])
    sparse: list[tuple[tuple[str, ...], tuple[str, ...]]] = field(
        default_factory=list[tuple[tuple[str, ...], tuple[str, ...]]]
    )
    names: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    numbers: dict[str, NDArray[Any]] = field(default_factory=dict[str, NDArray[Any]])


def seen_of(file: RowReader) -> Seen:
    """Return what the first rows of an open file hold."""
    names = [name for name in dict.fromkeys(file.names()) if name not in OF_THE_NETWORK]
    shapes: dict[str, tuple[int, ...]] = {}
    for name in names:
        with suppress(PredictionsError):  # it is no array
            shapes[name] = file.shape(name)
    rows = max((size for shape in shapes.values() for size in shape[:1]), default=0)
    seen = Seen()
    numbered: dict[tuple[str, str], list[tuple[int, str]]] = {}
    seen.deep.update({name: shape for name, shape in shapes.items() if len(shape) > 2})
    lengths = {n: min(s[0], ROWS) for n, s in shapes.items() if len(s) in (1, 2) and s[0]}
    first: Columns = {}
    # All of as many rows at once: a file of text is gone through each time.
    for length in set(lengths.values()):
        alike = [name for name in lengths if lengths[name] == length]
        first |= _first_of(file, alike, length)
    for name, values in ((name, first[name]) for name in lengths if name in first):
        if values.ndim == 2 and values.shape[1] == 1:
            values = values[:, 0]
        if values.ndim == 2 and values.shape[1] > 1 and values.dtype.kind in "fiub":
            if np.isin(values, (0, 1)).all():
                (seen.hot if is_one_hot(values) else seen.several)[name] = values
            elif values.dtype.kind != "f":
                seen.whole_rows[name] = values
            else:
                seen.wide.append((name, values))
        elif (
            values.ndim == 1
            and len(values) < min(rows, ROWS)
            and (values.dtype.kind in "US" or NAMES.fullmatch(name.lower()))
        ):
            seen.names[name] = tuple(map(str, values.tolist()))
        elif values.ndim == 1:
            match = re.fullmatch(r"(.*?)([0-9]{1,6})([^0-9]*)", name, flags=re.S)
            if match and values.dtype.kind in "fiu":
                numbered.setdefault((match[1], match[3]), []).append((int(match[2]), name))
            if values.dtype.kind not in "USb":
                seen.numbers[name] = values
            whole = name not in seen.numbers or (values == np.round(values)).all()
            (seen.whole if whole else seen.single)[name] = values
    for (stem, end), columns in numbered.items():
        _together(seen, stem, end, sorted(columns), names)
    return seen


def _first_of(file: RowReader, names: Sequence[str], rows: int) -> Columns:
    """Return the first rows of some fields, as text where they aren't numbers; none of neither."""
    words = [name for name in names if file.type_of(name) == "text"]
    # What is no number (`ValueError`) or can't be read (`PredictionsError`, which is one).
    with suppress(ValueError):
        return next(iter(file.read(names, [slice(0, rows)], words)))
    found: Columns = {}
    for name in names:  # a column that begins with blanks may be text
        for own in ([name], []) if name in words else ([], [name]):
            with suppress(ValueError):
                found |= next(iter(file.read([name], [slice(0, rows)], own)))
                break
    return found


def _together(
    seen: Seen, stem: str, end: str, columns: list[tuple[int, str]], names: Sequence[str]
) -> None:
    """Make columns that are numbered from 0 or 1 without gaps one field."""
    first, count = columns[0][0], len(columns)
    if count < 2:
        return
    if first > 1 or [n for n, _ in columns] != list(range(first, first + count)):
        seen.sparse.append((tuple(str(n) for n, _ in columns), tuple(name for _, name in columns)))
        return
    own = tuple(name for _, name in columns)
    kinds = [seen.single if name in seen.single else seen.whole for name in own]
    stacked = np.stack([kind[name] for kind, name in zip(kinds, own, strict=True)], axis=1)
    hot = is_one_hot(stacked)
    whole = all(kind is seen.whole for kind in kinds)
    if not hot and whole and kind_of_rows(stacked) not in ("probs", "percent"):
        return
    for kind, name in zip(kinds, own, strict=True):
        kind.pop(name)
    pattern = f"{stem}*{end}"
    alone = pattern != "*" and first == 0 and not re.search(r"[\[\]?*]", stem + end)
    known = frozenset(own)
    alone = alone and all(n in known for n in names if fnmatchcase(n, pattern))
    if hot:
        seen.hot[stem.removesuffix("_")] = stacked
    else:
        seen.wide.append((pattern if alone else own, stacked))


def is_one_hot(values: NDArray[Any]) -> bool:
    """Return whether rows hold a single 1 and are 0 elsewhere."""
    return bool(np.isin(values, (0, 1)).all() and (values.sum(axis=1) == 1).all())


def kind_of_rows(values: NDArray[Any]) -> ScoresAre | None:
    """Return what rows of scores look like; None for what can't be read."""
    if not np.isfinite(values).all():
        return "logits"
    sums, shares = values.sum(axis=1), values.min() >= 0 and values.dtype.kind in "fiu"
    for total, are in ((1, "probs"), (100, "percent")):
        if shares and values.max() <= total and (np.abs(sums - total) <= 0.3 * total).all():
            lost = lost_in_sums(values.astype(np.float64), total) or 0.0
            if (np.abs(sums - total) <= max(TOLERANCE * total, lost)).all():
                return cast("ScoresAre", are)
    if values.max() <= 0:
        totals = np.exp(values.astype(np.float64)).sum(axis=1)
        if (np.abs(totals - 1) <= TOLERANCE).all():
            return "log-probs"
    # Of one sign they may be shares, distances, votes or logarithms of another base.
    return "logits" if values.min() < 0 < values.max() else None
