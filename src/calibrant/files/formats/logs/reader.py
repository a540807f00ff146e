"""Logs behind the door that all files of predictions come through."""

from __future__ import annotations

import gc
import os
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from calibrant.core.arrays import FloatArray
from calibrant.core.errors import PredictionsError
from calibrant.core.text import counted, listed
from calibrant.files.formats.base import Columns, RowReader
from calibrant.files.formats.logs import LOG_FORMATS
from calibrant.files.formats.logs.base import LogFile, LogFormat, columns_of
from calibrant.files.gate import readable
from calibrant.files.opening import changed_at, extension_of, is_file, is_folder, is_url
from calibrant.files.options import ReadOptions
from calibrant.predictions.origin import LabelledSlice, Origin

# What logs end in; files with other endings are looked at only where they are named themselves.
LOG_EXTENSIONS = (".jsonl", ".json", ".eval", ".parquet", ".gz")
# A folder of logs has at most so many others below it; the root of a machine has more.
MOST_FOLDERS = 5000
# Formats of arrays are never logs.
NEVER = (
    *(".npz", ".npy", ".safetensors", ".pt", ".pth", ".h5", ".hdf5", ".arrow", ".feather"),
    *(".pkl", ".pickle", ".joblib", ".man"),
)
# Scores of a log, of which it has one.
SCORES = ("logits", "probs", "confidence", "score")
QUESTION = "question"

Found = list[tuple[LogFormat, LogFile]]


def logs_at(where: str) -> Found:
    """Return the logs that a path or URL stands for: a file, a run's folder, all logs in a folder.

    Nothing is found where it is no log.

    Raises:
        PredictionsError: a file could be of several tools.
    """
    if extension_of(where) in NEVER or not (is_file(where) or is_folder(where)):
        return []
    file = _latest(where, changed_at(where))
    own = _format_of(file)
    if own is not None:
        return [(own, file)]
    if not file.folder or is_url(where):
        return []
    found: Found = []
    # Unlike a pattern's search, a walk passes over what is gone before it is looked at.
    files: list[str] = []
    for number, (place, _, names) in enumerate(os.walk(where)):
        if number >= MOST_FOLDERS:
            raise PredictionsError(
                f"{where}: holds more than {MOST_FOLDERS} folders, too many to search for "
                "logs; name the folder that holds the files"
            )
        files += (os.path.join(place, name) for name in names if name.endswith(LOG_EXTENSIONS))
    files.sort()
    for extension in LOG_EXTENSIONS:
        below = [path for path in files if path.endswith(extension) and is_file(path)]
        logs = [(_format_of(LogFile(path)), LogFile(path)) for path in below[:1]]
        if logs and logs[0][0] is None and extension != ".json":
            continue  # one look at a folder of a thousand shards
        for path in below:
            log = LogFile(path)
            each = _format_of(log)
            if each is not None:
                found.append((each, log))
    return found


def is_log(where: str) -> bool:
    """Return whether a path or URL is a log, or a folder of them."""
    return bool(logs_at(where))


def _format_of(file: LogFile) -> LogFormat | None:
    claims = _claims(file.where, changed_at(file.where), tuple(LOG_FORMATS))
    if len(claims) > 1:
        raise PredictionsError(
            f"{file.where}: could be a log of {listed([LOG_FORMATS[c].tool for c in claims])}; "
            "uninstall the plug-in that claims it wrongly"
        )
    return LOG_FORMATS[claims[0]] if claims else None


@lru_cache(maxsize=1024)
def _claims(where: str, changed: str, formats: Sequence[str]) -> tuple[str, ...]:
    """Return the formats that take a file for their own: a document of 100 MB is looked at once."""
    file = _latest(where, changed)
    with readable("the beginning", where), _without_collection():
        return tuple(name for name in formats if LOG_FORMATS[name].recognises(file))


@lru_cache(maxsize=1)
def _latest(where: str, changed: str) -> LogFile:
    """Return a file with what is known of it: a document is parsed once for looking and reading."""
    return LogFile(where)


@contextmanager
def _without_collection() -> Generator[None]:
    """Look for no garbage: a log is a million small objects, none of which is any."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class NothingToMeasureError(PredictionsError):
    """A log whose rows all lack a confidence, such as one of generated texts, or an outcome."""


class LogReader(RowReader):
    """One or several logs as one set of rows.

    Args:
        where: what messages call them.
        options: how they are read.
        logs: the formats and files.

    Attributes:
        slice: of rows of which only some have an outcome, or one that is no event, all scores.
    """

    noun = "the log"
    slice: LabelledSlice | None = None

    def __init__(self, where: str, options: ReadOptions, logs: Found) -> None:
        self._logs = logs
        super().__init__(where, options)

    def open(self) -> None:
        """Read all rows."""
        with _without_collection():
            tables = [each.read(file, self.options) for each, file in self._logs]
        _latest.cache_clear()
        origin = Origin.together([table.origin() for table in tables])
        if not origin.rows:
            none = "" if origin.left_out else " and no answer is in it"
            raise NothingToMeasureError(f"{self.where}: no row has a confidence{none}. {origin}")
        used = [t for t in tables if t.cells]
        kinds = {key: t for t in used for key in SCORES if key in t.cells[0]}
        if len(kinds) > 1:
            said = listed([f"'{key}' ({t.signal})" for key, t in kinds.items()])
            raise PredictionsError(
                f"{self.where}: its logs hold scores of different kinds: {said}; measure them one "
                "by one, or say which signal to read by --signal (signal=)"
            )
        cells: list[dict[str, Any]] = []
        names = [file.name for _, file in self._logs]
        for (_, file), table in zip(self._logs, tables, strict=True):
            name = file.name if names.count(file.name) == 1 else file.where
            cells += [row | {"file": name} for row in table.cells]
        self.origin = origin
        self.columns = columns_of(cells)
        # What the log calls them is known to its format alone.
        for role in ("correct", "labels", "id"):
            name = getattr(self.options, role)
            if name is not None and name not in self.columns and role in self.columns:
                self.columns[str(name)] = self.columns[role]
        if "labels" in self.columns and self.options.labels_from:
            # Formats have found the places; who counts from another number takes it off again.
            self.columns["labels"] = self.columns["labels"] + self.options.labels_from
        self._keep_labelled()
        names = {table.names for table in used}
        self._names = names.pop() if len(names) == 1 else None
        questions = self.columns.get(QUESTION)
        apart = 0 if questions is None else len(np.unique(questions))
        if questions is not None and apart < len(questions):
            self.cluster = QUESTION
            some = counted(len(questions), "row") + " with an outcome" * (self.slice is not None)
            note = f"The {some} are of {apart} questions, which are the clusters."
            files = self.columns["file"]
            if len(np.unique(np.char.add(questions.astype(str), files.astype(str)))) > apart:
                note += (
                    " The same questions stand in several files; if these are runs of several "
                    "models, --each measures them one by one."
                )
            self.origin = replace(origin, notes=(*origin.notes, note))

    def _keep_labelled(self) -> None:
        """Leave out rows without an outcome, of which `slice` keeps the scores."""
        outcome = self.columns.get("correct")
        if "score" in self.columns:
            self.are = "score"
        if outcome is None or outcome.dtype.kind != "f" or not np.isnan(outcome).any():
            if outcome is not None and not np.isin(outcome, (0, 1)).all():
                self.slice = self._slice(outcome.astype(np.float64))
            return
        known = ~np.isnan(outcome)
        if not self.options.labelled:
            del self.columns["correct"]
            return
        if not known.any():
            raise NothingToMeasureError(
                f"{self.where}: no row says whether it is right; name a file that does by "
                "--outcomes FILE (outcomes=)"
            )
        self.slice = self._slice(outcome)
        self.columns = {name: column[known] for name, column in self.columns.items()}

    def _slice(self, outcome: FloatArray) -> LabelledSlice:
        score = next(self.columns[key] for key in ("score", "confidence") if key in self.columns)
        questions = self.columns.get(QUESTION)
        if questions is not None and len(np.unique(questions)) == len(questions):
            questions = None
        inclusion = self.columns.get("inclusion")
        if inclusion is not None:  # of weights it is known up to a factor
            inclusion = inclusion / max(1.0, float(inclusion.max()))
        return LabelledSlice(score.astype(np.float64), outcome, questions, inclusion)

    def names(self) -> Sequence[str]:
        """Return the columns."""
        return list(self.columns)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a column."""
        return self.columns[name].shape

    def type_of(self, name: str) -> str:
        """Return the type of a column."""
        kind = self.columns[name].dtype
        return "text" if kind.kind in "US" else str(kind)

    def read(
        self, names: Sequence[str], spans: Iterable[slice], words: Collection[str] = ()
    ) -> Iterator[Columns]:
        """Yield the columns span by span."""
        for span in spans:
            yield {name: self.columns[name][span] for name in names}

    def everything(self, names: Sequence[str], words: Collection[str] = ()) -> Columns:
        """Return whole columns."""
        return {name: self.columns[name] for name in names}

    def class_names(self, label: str | None) -> tuple[str, ...] | None:
        """Return what the choices are called, where all questions have the same."""
        return self._names
