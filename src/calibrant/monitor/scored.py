"""Rows of any form, scored: what was said, what came true, which id and group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from calibrant.core.arrays import FloatArray, IntArray, to_numpy
from calibrant.core.errors import InputError
from calibrant.monitor.monitor import Monitor
from calibrant.monitor.two_tests import Alarm
from calibrant.monitor.waiting import Outcome
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.scoring import said_of_top


@dataclass(frozen=True)
class Scored:
    """n rows.

    Attributes:
        confidence: (n,) what was said; NaN for outcomes that come alone.
        predicted: (n,) the class that it is the probability of; -1 where that isn't known.
        outcomes: (n,) what came true; None where it isn't known.
        ids: (n,) or None each.
        groups: (n,) names, or None.
    """

    confidence: FloatArray
    predicted: IntArray
    outcomes: Sequence[Outcome | None]
    ids: Sequence[object]
    groups: list[str] | None

    def feed(self, monitor: Monitor) -> list[Alarm]:
        """Let a monitor count the rows in their order, and return the alarms that rose."""
        alarms, start, n = list[Alarm](), 0, len(self.confidence)
        while start < n:
            kind, stop = self._kind(start), start + 1
            while stop < n and self._kind(stop) == kind:
                stop += 1
            alarms += self._feed(monitor, kind, range(start, stop))
            start = stop
        return alarms

    def _kind(self, i: int) -> str:
        known = self.outcomes[i] is not None
        if self.ids[i] is None:
            return "row" if known else "unlabelled"
        if np.isnan(self.confidence[i]):
            return "outcome"
        return "both" if known else "prediction"

    def _feed(self, monitor: Monitor, kind: str, at: range) -> Sequence[Alarm]:
        part = slice(at.start, at.stop)
        said, groups = self.confidence[part], None if self.groups is None else self.groups[part]
        if kind == "unlabelled":
            return monitor.update(said)
        classes = [None if label < 0 else label for label in self.predicted[part].tolist()]
        known = [outcome for outcome in self.outcomes[part] if outcome is not None]
        if kind == "row":
            right = [known[i].right(predicted) for i, predicted in enumerate(classes)]
            return monitor.update(said, np.array(right, dtype=np.bool_), groups)
        ids, alarms = [str(key) for key in self.ids[part]], list[Alarm]()
        if kind == "outcome":
            for key, outcome in zip(ids, known, strict=True):
                alarms += _learn(monitor, key, outcome)
            return alarms
        for i, key in enumerate(ids):
            group = None if groups is None else groups[i]
            alarms += monitor.predict(key, float(said[i]), classes[i], group)
            if kind == "both":
                alarms += _learn(monitor, key, known[i])
        return alarms


def _learn(monitor: Monitor, key: str, outcome: Outcome) -> tuple[Alarm, ...]:
    if outcome.is_label:
        return monitor.learn(key, outcome.value)
    return monitor.learn(key, correct=outcome.value)


def score(predictions: Predictions, of: int | None) -> tuple[FloatArray, IntArray]:
    """Return (n,) confidences and the (n,) classes that they are of.

    Args:
        predictions: of any kind, with or without labels.
        of: the class whose probability counts; None for each row's predicted one.

    Raises:
        InputError: there is no such class.
    """
    if of is None:
        return said_of_top(predictions)
    if predictions.kind == "toplabel":
        raise InputError(
            f"{predictions.source}: holds the confidence of the predicted class only, not that of "
            f"class {of}"
        )
    rows = to_numpy(predictions.probs)
    if not 0 <= of < rows.shape[1]:
        raise InputError(f"{predictions.source}: there is no class {of} among {rows.shape[1]}")
    return rows[:, of].astype(np.float64), np.full(len(rows), of, dtype=np.int64)
