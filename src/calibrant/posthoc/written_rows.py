"""What a calibrator writes of a file: people's rows, and beside them what it makes of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from calibrant.core.arrays import Array
from calibrant.core.errors import InputError, NotApplicableError
from calibrant.files.formats import open_writer
from calibrant.files.formats.base import Columns, RowWriter
from calibrant.files.options import ReadOptions
from calibrant.files.reading import PredictionFile
from calibrant.files.rewriting import RowsAgain
from calibrant.files.writing import scores_key
from calibrant.posthoc.applying import row_intervals
from calibrant.posthoc.placing import rows_of_event
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.scoring import said_of_top


@dataclass(frozen=True)
class Wanted:
    """What is written of each row besides its fields, its predicted class and its confidence.

    Attributes:
        probs: the probabilities of all classes, in place of the scores.
        interval: probability of an interval for the confidence, where the method has one; None for
            no interval.
        columns: what else is written, of rows with calibrated probabilities and, where there is
            one, of a column beside them.
        beside: the name of that column.
    """

    probs: bool = True
    interval: float | None = None
    columns: Callable[[Predictions, Array | None], Columns] | None = None
    beside: str | None = None

    def check(self, calibrator: Any) -> None:
        """Raise `InputError` for an interval that the method can't give."""
        if self.interval is None:
            return
        if not 0 < self.interval < 1:
            raise InputError(f"the level of the interval must lie in (0, 1), not {self.interval:g}")
        if not calibrator.interval_arrays(self.interval):
            raise NotApplicableError(
                f"method '{calibrator.method}' has no interval for the confidence of a row; leave "
                "out --interval"
            )


# Parameters: the file, what is read of it, and where it goes; the command line gives them apart.
def write_rows(
    calibrator: Any,
    where: str,
    options: ReadOptions,
    rows: int,
    batches: Iterable[tuple[slice, Predictions, Array | None]],
    out: str,
    wanted: Wanted,
) -> Predictions:
    """Write what a calibrator makes of the rows of a file, beside their fields; return the last.

    Args:
        calibrator: the fitted one.
        where: the file; options: how it is read; rows: how many there are.
        batches: its rows, at least one batch, by their ascending spans, with the column that is
            wanted beside them.
        out: where they are written.
        wanted: what is written of each.
    """
    wanted.check(calibrator)
    after: Predictions | None = None
    with ExitStack() as held:
        file = held.enter_context(PredictionFile(where, options))
        again = RowsAgain(file, out, probs=wanted.probs)
        given = list[slice]()
        kept, writer = again.kept(_coming(given)), None
        for span, before, beside in batches:
            given.append(span)
            given_back: Predictions = calibrator.apply_predictions(before)
            more = _more(calibrator, again, before, given_back, wanted, beside)
            columns = again.columns(next(kept), given_back, more)
            if writer is None:
                writer = held.enter_context(_opened(out, rows, columns, again, given_back))
            writer.write(columns)
            after = given_back
    assert after is not None
    return after


def _coming(given: list[slice]) -> Iterable[slice]:
    """Yield spans as they are put into a list."""
    while given:
        yield given.pop(0)


def _opened(
    out: str, rows: int, columns: Columns, again: RowsAgain, after: Predictions
) -> RowWriter:
    if not columns:
        raise InputError(
            f"{out}: holds scores and labels only, and neither is left to write without "
            "probabilities; write .npz or a table"
        )
    scores = scores_key(after.form) + ("s" if after.label_names is not None else "")
    if scores not in columns:  # what is spooled first may be any array
        scores = "confidence" if "confidence" in columns else next(iter(columns))
    # Labels and pixels of an input are rows of the map, and one entry of the file.
    writer = open_writer(out, rows * len(columns[scores]) // after.n, scores)
    writer.as_named, writer.numbered = again.table, again.noted
    return writer


def _called(after: Predictions, again: RowsAgain) -> Predictions:
    """Return rows whose classes are called as the labels beside them are written."""
    if after.class_names is not None or after.n_classes is None:
        return after
    numbers = np.arange(after.n_classes)
    written = again.as_labels(numbers)
    if np.array_equal(written, numbers):
        return after
    return replace(after, class_names=tuple(map(str, written.tolist())))


def _more(
    calibrator: Any,
    again: RowsAgain,
    before: Predictions,
    after: Predictions,
    wanted: Wanted,
    beside: Array | None,
) -> Columns:
    """Return what is written beside people's fields and the new scores."""
    if after.grid is not None:
        return {}
    confidence, predicted = said_of_top(after)
    found: Columns = {}
    if after.n_classes is not None:
        names = after.class_names if again.worded else None
        by_name = None if names is None else np.array(names)[predicted]
        found["predicted"] = again.as_labels(predicted) if by_name is None else by_name
        found["confidence"] = confidence
    if wanted.interval is not None:
        logits = rows_of_event(calibrator, before).logits
        low, high = row_intervals(calibrator, logits, confidence, wanted.interval)
        found |= {"low": low, "high": high}
    if wanted.columns is not None:
        found |= wanted.columns(_called(after, again), beside)
    return found
