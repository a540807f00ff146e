"""What is in a file of predictions, and how it would be read."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from os import fspath
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from calibrant.core.errors import CalibrantError, PredictionsError
from calibrant.core.outputs import StrPath
from calibrant.core.text import counted, first_few, format_table, wrap
from calibrant.files.formats import open_rows
from calibrant.files.formats.base import RowReader
from calibrant.files.formats.tables import is_data_set
from calibrant.files.gate import check_regular, readable
from calibrant.files.options import ReadFields, ReadOptions
from calibrant.files.proposing import command
from calibrant.files.reading import propose, read_predictions
from calibrant.files.seeing import ROWS, is_one_hot, kind_of_rows
from calibrant.predictions.predictions import Predictions

# Columns that differ in a number at the end are shown together from so many on.
TOGETHER = 4
SHOWN_NAMES = 12
# Values, and characters of one, that a table shows.
SHOWN_ROWS, SHOWN_CHARACTERS = 3, 16
# Whole numbers beyond this are hardly classes.
MOST_CLASSES = 100_000


@dataclass(frozen=True)
class Entry:
    """A key of a file, or columns that belong together.

    Attributes:
        name: what it is called; of columns that are numbered the first and the last.
        shape: of the array; (columns,) is unknown where a format doesn't say it: None.
        type: of its numbers, "text", or "" where only reading would tell.
        range: the least and the greatest number of the first rows; None of text.
        values: of the first three rows, of columns that belong together the first one's.
        seems: what they look like.
    """

    name: str
    shape: tuple[int, ...] | None
    type: str
    range: tuple[float, float] | None = None
    values: tuple[Any, ...] = ()
    seems: str = ""


@dataclass(frozen=True, eq=False)
class Inspection:
    """What `inspect_file` found; prints as a table.

    Attributes:
        source: the file.
        format: its extension, or what kind of folder it is.
        entries: what is in it.
        predictions: as they would be read, or None.
        refusal: why they can't be read, or None.
        command: a command that reads the file; None where nothing is sure to.

    Examples:
        >>> import numpy as np
        >>> from calibrant.files.inspecting import inspect_file
        >>> np.savez("out.npz", out=[[2.0, 0.0], [0.0, 1.0]], labels=[0, 1])
        >>> found = inspect_file("out.npz")
        >>> [(entry.name, entry.shape) for entry in found.entries], found.predictions
        ([('out', (2, 2)), ('labels', (2,))], None)
        >>> inspect_file("out.npz", scores="out", are="logits").predictions
        <Predictions 'out.npz': 2 rows x 2 classes, logits>
    """

    source: str
    format: str
    entries: list[Entry]
    predictions: Predictions | None
    refusal: str | None
    command: str | None

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON takes it."""
        rows = self.predictions
        return {
            "file": self.source,
            "format": self.format,
            "entries": [vars(entry) for entry in self.entries],
            "readable": rows is not None,
            "refusal": self.refusal,
            "command": self.command,
            "reading": None
            if rows is None
            else {
                "kind": rows.form,
                "n": rows.n,
                "n_classes": rows.n_classes,
                "class_names": None if rows.class_names is None else list(rows.class_names),
                "label_names": None if rows.label_names is None else list(rows.label_names),
                "labels": rows.known_labels is not None,
                "features": None if rows.features is None else int(rows.features.shape[1]),
                "weights": rows.weights is not None,
                "head": rows.head is not None,
                "origin": None if rows.origin is None else rows.origin.as_dict(),
            },
        }

    def reading(self) -> str:
        """Return how the file would be read, in a sentence, or why it can't be."""
        rows = self.predictions
        if rows is None:
            return f"can't be read: {self.refusal}"
        text = f"would be read as {rows.form} of {counted(rows.n, 'row')}"
        if rows.n_classes is not None:
            text += f" and {rows.n_classes} classes"
        if rows.label_names is not None:
            count = len(rows.label_names)
            text = f"would be read as {rows.form} of {counted(rows.n // count, 'row')}"
            text += f" and {counted(count, 'label')}"
        names = rows.class_names if rows.label_names is None else rows.label_names
        if names is not None:
            text += f" ({first_few(names, SHOWN_NAMES)})"
        text += ", with labels" if rows.known_labels is not None else ", without labels"
        more = [
            f"features of width {rows.features.shape[1]}" if rows.features is not None else "",
            "a last layer" if rows.head is not None else "",
            "weights" if rows.weights is not None else "",
        ]
        return ", ".join([text, *(item for item in more if item)])

    def __str__(self) -> str:
        table = [
            [
                entry.name,
                "" if entry.shape is None else " x ".join(map(str, entry.shape)),
                entry.type,
                "" if entry.range is None else " to ".join(map(_shown, entry.range)),
                ", ".join(_shown(value) for value in entry.values),
                entry.seems,
            ]
            for entry in self.entries
        ]
        parts = [f"{self.source} ({self.format})"]
        if table:
            titles = ["holds", "shape", "type", "range", "first values", "seems to be"]
            parts.append(format_table(titles, table))
        if any(entry.shape and entry.shape[0] > ROWS for entry in self.entries):
            parts.append(f"range and what it seems to be: of the first {ROWS} rows")
        proposed = self.predictions is None and self.command is not None
        if proposed:
            parts.append(f"to measure it:\n  {self.command}")
        parts.append(wrap(self.reading()))
        if self.predictions is not None and self.predictions.origin is not None:
            parts.append(wrap(str(self.predictions.origin)))
        if self.command is not None and not proposed:
            parts.append(f"to measure it:\n  {self.command}")
        return "\n\n".join(parts)


def inspect_file(
    path: StrPath, options: ReadOptions | None = None, **fields: Unpack[ReadFields]
) -> Inspection:
    """Say what is in a file of predictions, and how `read_predictions` would read it.

    Args:
        path: the file, a folder of ``.npy`` arrays or of Hugging Face's data sets.
        options: as `read_predictions` takes them; labels needn't be there.
        fields: those of `ReadOptions`, by name.

    Raises:
        PredictionsError: there is no such file.
    """
    source, file = fspath(path), Path(path)
    check_regular(file, source, folders=True)
    folder = "a data set of Hugging Face" if is_data_set(source) else "a folder"
    form = (
        folder if os.path.isdir(file) else file.suffix.lower().removeprefix(".") or "no extension"
    )
    options = (options or ReadOptions()).but(**fields)
    predictions, refusal, line = None, None, ""
    # Labels may have a name that is only taken for theirs where they are needed.
    for labelled in (True, False):
        try:
            predictions = read_predictions(path, options, labelled=labelled)
            refusal, line = None, ""
            break
        except CalibrantError as error:
            line, said = "", str(error)
            if isinstance(error, PredictionsError):
                line, said = error.line, error.sentence
            refusal = said.removeprefix(f"{source}: ")
    try:
        entries = _entries(source, options)
    except CalibrantError:
        entries = []
    known = predictions is not None and predictions.known_labels is not None
    if predictions is not None:
        found = None if known else propose(source, options)
        line = command(source, options) if known else "" if found is None else found.line
    return Inspection(source, form, entries, predictions, refusal, line or None)


def _entries(source: str, options: ReadOptions) -> list[Entry]:
    found: list[Entry] = []
    with readable("the file", source), open_rows(source, options) as file:
        for name in file.names():
            try:
                found.append(Entry(name, file.shape(name), file.type_of(name)))
            except PredictionsError:
                found.append(Entry(name, None, ""))
        return [_described(each, names, file) for each, names in _together(found)]


def _described(entry: Entry, names: Sequence[str], file: RowReader) -> Entry:
    """Return an entry with what its first rows hold."""
    if not entry.shape or not entry.shape[0]:
        return entry
    text, span = entry.type == "text", slice(0, min(entry.shape[0], ROWS))
    # Whatever can't be read has nothing to show.
    with suppress(Exception):
        columns = next(iter(file.read(names, [span], names if text else [])))
        values = columns[names[0]]
        if len(names) > 1:
            values = np.stack([columns[name] for name in names], axis=1)
        numbers = values.dtype.kind in "fiu" and values.size
        first = values[:SHOWN_ROWS] if values.ndim == 1 else values[0, :SHOWN_ROWS]
        return replace(
            entry,
            range=(float(values.min()), float(values.max())) if numbers else None,
            values=tuple(first.tolist()),
            seems=_seems(values),
        )
    return entry


def _seems(values: NDArray[Any]) -> str:
    """Return what values look like."""
    if values.dtype.kind in "USO":
        distinct = len(np.unique(values.astype(str)))
        return f"{distinct} names" if distinct * 2 <= len(values) else "text"
    if values.ndim == 2:
        if is_one_hot(values):
            return "one-hot labels"
        words = {"probs": "probabilities", "log-probs": "log-probabilities"}
        are = kind_of_rows(values)
        return "numbers" if are is None else words.get(are, f"{are} or features")
    if values.ndim != 1 or not np.isfinite(values).all():
        return ""
    low, high = values.min(), values.max()
    if (values == np.round(values)).all():
        if len(values) > 2 and (np.diff(values) == 1).all():
            return "a count of rows"
        if {low, high} <= {0, 1}:
            return "an event, or what is right"
        return "classes" if low in (0, 1) and high < MOST_CLASSES else "whole numbers"
    if low >= 0:
        return "probabilities" if high <= 1 else "percent" if high <= 100 else "numbers"
    return "logits or scores"


def _shown(value: Any) -> str:
    """Return a value of a table, short."""
    text = str(value)
    if isinstance(value, float):
        whole = value.is_integer() and abs(value) < 1e7
        text = f"{value:.0f}" if whole else f"{value:.4g}"
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "..."


def _together(entries: list[Entry]) -> list[tuple[Entry, list[str]]]:
    """Return the entries with runs of numbered columns as one, and the names of these."""
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        match = re.fullmatch(r"(.+_)[0-9]+", entry.name)
        groups.setdefault(match[1] if match else f"{entry.name}\0", []).append(entry)
    found: list[tuple[Entry, list[str]]] = []
    for group in groups.values():
        first, last = group[0], group[-1]
        if len(group) < TOGETHER:
            found += [(entry, [entry.name]) for entry in group]
            continue
        shape = None if first.shape is None else (*first.shape, len(group))
        whole = Entry(f"{first.name} ... {last.name}", shape, first.type)
        found.append((whole, [entry.name for entry in group]))
    return found
