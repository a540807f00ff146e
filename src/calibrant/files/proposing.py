"""Options that read a file which can't be read as it is, where its fields leave no doubt.

Nothing is read by what is found here: it is shown to whoever asked, as a line to paste.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from calibrant.files.formats import open_rows
from calibrant.files.formats.base import OF_THE_NETWORK, RowReader
from calibrant.files.options import ReadFields, ReadOptions, ScoresAre
from calibrant.files.schema import CORRECT, LABELS, PREDICTED

# Rows that are looked at.
ROWS = 2000
# What people call columns, in the order of how sure the name is.
TRUE = re.compile(r"(true|truth|gt|gold|target|targets|label|labels|y|y_?true|answer|outcome)")
SAID = re.compile(r"(pred|prediction|predicted|pred_?label|y_?(hat|pred)|said|guess|response)")
RIGHT = re.compile(r"(correct|is_correct|right|is_right|hit|accurate|acc)")
# Sums of probabilities, and of the exponentials of their logarithms, may be off by so much.
TOLERANCE = 0.02


@dataclass(frozen=True)
class _Seen:
    """What the first rows of a file hold: wide scores, single numbers, and what labels may be."""

    wide: list[tuple[str | tuple[str, ...], NDArray[Any]]]
    single: dict[str, NDArray[Any]]
    whole: dict[str, NDArray[Any]]


def propose(where: str, options: ReadOptions) -> str | None:
    """Return a command that reads a file, or None where its fields leave doubts.

    Args:
        where: a path or URL that can't be read with these options.
        options: those that were given.
    """
    try:
        with open_rows(where, options) as file:
            if file.origin is not None:
                return None
            found = list(_candidates(_seen(file)))
    # Whatever is wrong with the file was said before.
    except Exception:
        return None
    if len(found) != 1:
        return None
    fields = found[0]
    fields["labelled"] = True
    return command(where, options.but(**fields))


def command(where: str, options: ReadOptions, verb: str = "measure") -> str:
    """Return the command that reads a file with these options."""
    words = ["calibrant", verb, where]
    for each in fields(options):
        value: Any = getattr(options, each.name)
        if value != each.default and each.name not in ("labelled", "beside"):
            text = ",".join(cast(Any, value)) if isinstance(value, tuple) else str(value)
            words += [f"--{each.name.replace('_', '-')}", text]
    return shlex.join(words)


def _seen(file: RowReader) -> _Seen:
    names = [name for name in dict.fromkeys(file.names()) if name not in OF_THE_NETWORK]
    seen = _Seen([], {}, {})
    numbered: dict[str, list[tuple[int, str]]] = {}
    for name in names:
        shape, text = file.shape(name), file.type_of(name) == "text"
        if len(shape) not in (1, 2) or not shape[0]:
            continue
        span = slice(0, min(shape[0], ROWS))
        values = next(iter(file.read([name], [span], [name] if text else [])))[name]
        match = re.fullmatch(r"(.*?)([0-9]{1,6})", name, flags=re.S)
        if values.ndim == 2 and values.shape[1] > 1 and values.dtype.kind == "f":
            seen.wide.append((name, values))
        elif values.ndim == 1 and match and values.dtype.kind in "fiu":
            numbered.setdefault(match[1], []).append((int(match[2]), name))
            seen.single[name] = values
        elif values.ndim == 1:
            words = values.dtype.kind in "USb"
            kind = seen.whole if words or (values == np.round(values)).all() else seen.single
            kind[name] = values
    for stem, columns in numbered.items():
        columns.sort()
        if [number for number, _ in columns] == list(range(len(columns))) and len(columns) > 1:
            own = tuple(name for _, name in columns)
            pattern = f"{stem}*"
            alone = stem and all(name in own for name in names if fnmatchcase(name, pattern))
            stacked = np.stack([seen.single.pop(name) for name in own], axis=1)
            seen.wide.append((pattern if alone else own, stacked))
    return seen


def _candidates(seen: _Seen) -> Iterator[ReadFields]:
    """Yield each way in which the fields could be read."""
    if len(seen.wide) == 1:
        scores, values = seen.wide[0]
        labels = _labels(seen, values.shape[1])
        if labels is not None:
            are = _kind_of_rows(values)
            yield _said({"scores": scores, "are": are, "labels": labels})
    if seen.wide or len(seen.single) != 1:
        return
    (scores, values), names = next(iter(seen.single.items())), seen.whole
    share = values.min() >= 0 and values.max() <= 100
    percent: ScoresAre | None = "percent" if values.max() > 1 else None
    right = [name for name in names if RIGHT.fullmatch(name.lower()) and _binary(names[name])]
    said = [name for name in names if SAID.fullmatch(name.lower()) or name in PREDICTED]
    true = [name for name in names if TRUE.fullmatch(name.lower()) and name not in said]
    if share and len(right) == 1:
        yield _said({"scores": scores, "are": percent or "confidence", "correct": right[0]})
    elif share and len(said) == len(true) == 1:
        top: ScoresAre = percent or "confidence"
        yield _said({"scores": scores, "are": top, "predicted": said[0], "labels": true[0]})
    elif not said:
        events = [name for name in names if _binary(names[name])]
        if len(events) == 1:
            one: ScoresAre = (percent or "prob") if share else "logit"
            yield _said({"scores": scores, "are": one, "labels": events[0]})


def _said(options: ReadFields) -> ReadFields:
    """Return options without those that usual names make needless."""
    if options.get("labels") in LABELS:
        options.pop("labels")
    if options.get("correct") == CORRECT:
        options.pop("correct")
    return options


def _labels(seen: _Seen, classes: int) -> str | None:
    """Return the one field that can hold the true classes of so many columns."""
    fit = [
        name
        for name, values in seen.whole.items()
        if values.dtype.kind not in "USb" and values.min() >= 0 and values.max() < classes
    ]
    named = [name for name in fit if TRUE.fullmatch(name.lower())]
    usual = [name for name in fit if name in LABELS]
    found: Sequence[str] = usual or named or [n for n in fit if not SAID.fullmatch(n.lower())]
    return found[0] if len(found) == 1 else None


def _kind_of_rows(values: NDArray[Any]) -> ScoresAre:
    """Return what rows of scores look like."""
    sums = values.sum(axis=1)
    if values.min() >= 0 and (np.abs(sums - 1) <= TOLERANCE).all():
        return "probs"
    if values.min() >= 0 and (np.abs(sums - 100) <= 100 * TOLERANCE).all():
        return "percent"
    with np.errstate(over="ignore"):
        totals = np.exp(values.astype(np.float64)).sum(axis=1)
    return "log-probs" if (np.abs(totals - 1) <= TOLERANCE).all() else "logits"


def _binary(values: NDArray[Any]) -> bool:
    if values.dtype.kind in "US":
        return set(np.char.lower(values).tolist()) <= {"true", "false"}
    return bool(np.isin(values, (0, 1)).all())
