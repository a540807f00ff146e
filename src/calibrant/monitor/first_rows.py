"""The first rows of a stream, looked at as those of files are: are they what they are taken for?

A stream is counted as it comes. So its first rows are looked at before they are counted, as soon
as they are enough to say anything, and again when there are four times as many: what can hardly be
so is refused where nothing was counted yet, and is warned of once where something was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from calibrant.core.arrays import BoolArray, FloatArray, IntArray
from calibrant.core.errors import CalibrationWarning, MisreadWarning, warn_caller
from calibrant.files import ReadOptions
from calibrant.files.proposing import command
from calibrant.files.reading import LOOKS, MisreadError, judge, otherwise
from calibrant.monitor.delayed_labels import Outcome
from calibrant.predictions.plausibility import FEW, NUMBERS, ROWS, Look
from calibrant.predictions.predictions import Predictions

MORE = 4


class FirstRows:
    """Gathers the first rows of one stream, and judges them.

    Args:
        path: of the stream; ``-`` for standard input.
        read: how it is read.
        counted: whether rows of it were counted before.
    """

    def __init__(self, path: str, read: ReadOptions, *, counted: bool = False) -> None:
        self.path, self.read, self.counted = path, read, counted
        self.source = "standard input" if path == "-" else path
        # Rows of one form, with and without labels, by themselves.
        self._parts: dict[Any, list[Predictions]] = {}
        self._names: tuple[str, ...] = ()
        self._rows, self._due = 0, FEW
        self._told = set[str]()

    @property
    def enough(self) -> bool:
        """Whether no more rows are looked at."""
        return self._rows >= ROWS

    def scores(
        self, rows: Predictions, outcomes: Sequence[Outcome | None], names: Sequence[str]
    ) -> None:
        """Take rows with scores of classes, what came true of each, and the names of the fields."""
        self._names = self._names or tuple(names)
        is_label = np.array([one is not None and one.is_label for one in outcomes], dtype=np.bool_)
        labels = np.array([-1 if one is None else one.value for one in outcomes], dtype=np.int64)
        for with_label in (True, False):
            at = np.flatnonzero(is_label == with_label)
            if len(at):
                known = labels[at] if with_label else None
                self._take(replace(rows.take(at), known_labels=known), with_label)

    def right(self, confidence: FloatArray, correct: BoolArray) -> None:
        """Take rows of which is known whether they are right."""
        if len(confidence):
            self._take(Predictions.from_confidence(confidence, correct=correct), "right")

    def top(
        self, confidence: FloatArray, predicted: IntArray, outcomes: Sequence[Outcome | None]
    ) -> None:
        """Take confidences in a class, which may be -1 where it isn't known, and what came true."""
        known = [
            one is not None and (not one.is_label or predicted[i] >= 0)
            for i, one in enumerate(outcomes)
        ]
        is_label = [one is not None and one.is_label for one in outcomes]
        value = np.array([-1 if one is None else one.value for one in outcomes], dtype=np.int64)
        right = np.array(known, dtype=np.bool_) & ~np.array(is_label, dtype=np.bool_)
        both = np.array(known, dtype=np.bool_) & np.array(is_label, dtype=np.bool_)
        self.right(confidence[right], value[right] == 1)
        if both.any():
            rows = Predictions.from_confidence(confidence[both], predicted[both], value[both])
            self._take(rows, "classes")

    def _take(self, rows: Predictions, form: Any) -> None:
        wide = 1 if rows.top_only else int(rows.scores.shape[1])
        form = (form, rows.kind, rows.binary, wide)
        parts = self._parts.setdefault(form, [])
        room = max(256, min(ROWS, NUMBERS // wide)) - sum(part.n for part in parts)
        if room > 0:
            parts.append(rows.take(np.arange(min(rows.n, room))))
        self._rows += rows.n

    def hear(self, heard: Sequence[Warning]) -> None:
        """Issue warnings of how lines were read, each kind once; what they look like is judged."""
        for warning in heard:
            name = type(warning).__name__
            if isinstance(warning, CalibrationWarning) and not isinstance(warning, LOOKS):
                if name not in self._told:
                    warn_caller(warning)
                self._told.add(name)

    def judge(self, *, ended: bool = False) -> None:
        """Look at the rows that there are, if they are enough; at those of a stream that ended now.

        Raises:
            MisreadError: they can hardly be what they are taken for, and none was counted.
        """
        if not self._parts or self._rows < (FEW if ended else self._due):
            return
        self._due = MORE * self._rows
        findings = list[Any]()
        for parts in self._parts.values():
            look = Look(sum(part.n for part in parts))
            for part in parts:
                look.add(part)
            findings += [one for one in look.findings() if one.what not in self._told]
        if self.enough or ended:
            self._parts.clear()
        for finding in findings:
            self._told.add(finding.what)
            try:
                judge([finding], self.read, self.source, self._otherwise, self.path)
            except MisreadError as error:
                if not self.counted:
                    raise _proposing(error, self.path) from error
                warn_caller(
                    MisreadWarning(f"{error}. Its rows were misread so far: begin a new state")
                )

    def _otherwise(self, fix: Any) -> ReadOptions:
        return otherwise(self.read, fix, self._names, self._names)


def _proposing(error: MisreadError, path: str) -> MisreadError:
    """Return a refusal that ends with the command by which the stream is read."""
    if error.fix is None:
        return error
    line = command(path, error.fix, "monitor")
    return MisreadError(error.reason, error.details, line, fix=error.fix)
