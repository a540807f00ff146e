"""Calibration by predicted class: when the model says k, how sure is it, and how often right?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrant.core.arrays import FloatArray, IntArray
from calibrant.core.weights import times
from calibrant.evaluation.uncertainty import DEFAULT_LEVEL, wilson_interval
from calibrant.metrics.binned import BinSums
from calibrant.predictions.scoring import RowScores

# Up to this many classes are all shown; of more, those that add most to the miscalibration.
ALL_CLASSES = 60


@dataclass(frozen=True, eq=False)
class ClassTable:
    """Rows by predicted class; all arrays (C,).

    Attributes:
        label: the class.
        count: rows predicted as it.
        confidence: their mean confidence, NaN without rows.
        accuracy: share of them that is right, NaN without rows.
        gap: confidence - accuracy.
        low: lower end of the gap's interval, from Wilson's for the accuracy.
        high: its upper end.
    """

    label: IntArray
    count: IntArray
    confidence: FloatArray
    accuracy: FloatArray
    low: FloatArray
    high: FloatArray

    @property
    def gap(self) -> FloatArray:
        """(C,) confidence - accuracy."""
        return self.confidence - self.accuracy

    @property
    def contribution(self) -> FloatArray:
        """(C,) |sum of confidence - correct|: how much each class adds to the miscalibration."""
        return np.asarray(np.abs(np.nan_to_num(self.gap)) * self.count, dtype=np.float64)


def class_table(scores: RowScores, labels: IntArray, level: float = DEFAULT_LEVEL) -> ClassTable:
    """Return a row for each of the ascending `labels`; rows predicted as another are passed over.

    Args:
        scores: N scored rows.
        labels: (C,) ascending classes to report.
        level: coverage of the intervals.
    """
    position = np.searchsorted(labels, scores.predicted)
    known = position < len(labels)
    known[known] = labels[position[known]] == scores.predicted[known]
    position, size = position[known], len(labels)
    weights = None if scores.weights is None else scores.weights[known]
    correct = scores.correct[known].astype(np.float64)
    sums = BinSums(
        np.bincount(position, weights, size).astype(np.float64),
        np.bincount(position, times(scores.confidence[known], weights), size).astype(np.float64),
        np.bincount(position, times(correct, weights), size).astype(np.float64),
    )
    low, high = wilson_interval(sums.correct, sums.count, level)
    mean = sums.mean_confidence
    return ClassTable(
        labels, np.rint(sums.count).astype(np.int64), mean, sums.accuracy, mean - high, mean - low
    )


def classes_to_show(
    shown: Sequence[RowScores], classes: int | None, limit: int = ALL_CLASSES
) -> tuple[IntArray, int]:
    """Return the classes of a table that several methods share, ascending, and how many there are.

    Of more than `limit` classes two thirds are the worst of the first method, the others the worst
    of the second.

    Args:
        shown: scored rows of each method, the one to look at first before the others.
        classes: K, or None to take the classes that are predicted at all.
        limit: how many classes at most.
    """
    labels: IntArray = np.arange(classes or 0)
    if classes is None:
        labels = np.unique(np.concatenate([scores.predicted for scores in shown]))
    if len(labels) <= limit:
        return labels, len(labels)
    second = shown[min(1, len(shown) - 1)]
    chosen: list[int] = []
    for scores, size in ((shown[0], 2 * limit // 3), (second, limit)):
        contribution = class_table(scores, labels).contribution
        worst = np.argsort(-contribution, kind="stable")[: np.count_nonzero(contribution)].tolist()
        chosen += [i for i in worst if i not in chosen][: size - len(chosen)]
    return labels[np.sort(np.array(chosen, dtype=np.int64))], len(labels)


def classes_called(labels: IntArray, names: Sequence[str] | None) -> dict[str, Any]:
    """Return what the page calls (C,) classes: their numbers, and names if they have any."""
    numbers = labels.tolist()
    named = None if names is None else [names[number] for number in numbers]
    return {"class_labels": numbers, "class_names": named}
