"""From a comparison or an evaluation to the document that the page shows: plain values for JSON.

Metrics keep every digit. Chart series are rounded to four or five, far finer than a pixel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from calibrant._version import __version__
from calibrant.comparison.comparison import UNCALIBRATED
from calibrant.core.arrays import FloatArray, IntArray
from calibrant.evaluation.formatting import show
from calibrant.evaluation.groups import GroupedEvaluation
from calibrant.evaluation.results import Evaluation, MetricResult, against_floor, weighing
from calibrant.metrics.bins import Strategy
from calibrant.metrics.registry import Metric
from calibrant.metrics.top_label import TopLabel
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.temperature.scaling import RowTemperature
from calibrant.predictions.predictions import Predictions
from calibrant.report.classes import class_table, classes_called, classes_to_show
from calibrant.report.engine import typeset
from calibrant.report.grouped import groups_document
from calibrant.report.margins import MarginTemperature, margin_groups, margin_temperature
from calibrant.report.series import (
    HISTOGRAM_BINS,
    Reliability,
    binned_reliability,
    confidence_histogram,
    in_worth,
    risk_coverage,
    rows_in_worth,
    smoothed_reliability,
)

SMOOTH_POINTS = 101
MARGIN_BINS = 48
WRITTEN = ("value", "low", "high", "floor", "floor_95")
# What the page of one evaluation calls the rows.
THESE = "these predictions"
Document = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Shown:
    """One set of confidences that the page can draw.

    Attributes:
        name: of the method, the same as in print and on the command line.
        evaluation: what was measured.
        calibrator: what made them, or None.
        ranked: whether it took part in the comparison.
    """

    name: str
    evaluation: Evaluation
    calibrator: Calibrator | None = None
    ranked: bool = True


def evaluation_document(
    evaluation: Evaluation, predictions: Predictions, groups: GroupedEvaluation | None = None
) -> Document:
    """Return what the page of one evaluation holds.

    Args:
        evaluation: what was measured.
        predictions: the rows that it was measured on.
        groups: the same rows measured within groups.
    """
    shown = Shown(THESE, evaluation)
    return document_of([shown], predictions) | {
        "verb": "measure",
        "before": None,
        "after": THESE,
        "rank_by": None,
        "fit": None,
        "groups": None if groups is None else groups_document(groups),
    }


def document_of(shown: Sequence[Shown], predictions: Predictions) -> Document:
    """Return what all pages hold of the methods that they show, best first."""
    first, predictions = shown[0].evaluation, predictions.counted
    margin = None if predictions.kind == "toplabel" else predictions.margins
    # The network itself first, then the best method.
    ordered = sorted(shown, key=lambda one: one.name != UNCALIBRATED)
    scores = [in_worth(one.evaluation)[1] for one in ordered]
    labels, classes = classes_to_show(scores, predictions.n_classes)
    return {
        "calibrant": __version__,
        "level": first.level,
        "z": NormalDist().inv_cdf((1 + first.level) / 2),
        "source": first.source,
        "kind": predictions.form,
        "positive": predictions.positive_name if predictions.binary else None,
        "n": first.n,
        "worth": first.effective_rows,
        "weighing": weighing(first),
        "n_classes": None if predictions.binary else predictions.n_classes,
        "labels": None if predictions.label_names is None else len(predictions.label_names),
        "metrics": {name: _metric(r.metric, r) for name, r in first.results.items()},
        "skipped_metrics": first.skipped,
        "smooth_grid": short(np.linspace(0, 1, SMOOTH_POINTS)),
        "histogram_bins": HISTOGRAM_BINS,
        "margin_histogram": None if margin is None else _margin_histogram(margin),
        **classes_called(labels, predictions.class_names),
        "class_count": classes,
        "methods": [_method(one, predictions, margin, labels) for one in shown],
    }


def _metric(metric: Metric, result: MetricResult) -> Document:
    return {
        "title": metric.title,
        "definition": metric.definition,
        "percent": metric.percent,
        "lower_is_better": metric.lower_is_better,
        "ideal": metric.ideal,
        "has_floor": result.floor is not None,
    }


def _words(result: MetricResult) -> Document:
    """Return a result as the page's tables write it."""
    return {
        **{name: figure_of(result.metric, getattr(result, name)) for name in WRITTEN},
        "against_floor": against_floor(result),
    }


def figure_of(metric: Metric, value: float | None) -> str:
    """Return a metric's value as the page writes it; nothing for one that isn't there."""
    return "" if value is None or not np.isfinite(value) else typeset(show(metric, value))


def _method(
    one: Shown, predictions: Predictions, margin: FloatArray | None, labels: IntArray
) -> Document:
    (rows, scores), level = in_worth(one.evaluation), one.evaluation.level
    risk, positive = risk_coverage(rows), one.evaluation.positive
    table = class_table(scores, labels, level)
    groups = [] if margin is None else margin_groups(scores, margin, level=level)
    return {
        "name": one.name,
        "ranked": one.ranked,
        "metrics": {
            name: result.as_dict() | {"at_floor": result.at_floor}
            for name, result in one.evaluation.results.items()
        },
        "words": {name: _words(result) for name, result in one.evaluation.results.items()},
        **_reliability(rows, level),
        "positive": None
        if positive is None
        else _reliability(rows_in_worth(one.evaluation, positive), level),
        "risk": {
            "threshold": short(risk.threshold, 6),
            "accepted": risk.accepted.tolist(),
            "wrong": risk.wrong.tolist(),
        },
        "margin_groups": [
            {
                "margin": short(np.array(group.margin)),
                "rows": group.rows,
                "confidence": group.confidence,
                "accuracy": group.accuracy,
                "low": group.low,
                "high": group.high,
                "points": _points(group.points),
            }
            for group in groups
        ],
        "temperature": _temperature(one.calibrator, predictions, margin),
        "classes": {
            "count": table.count.tolist(),
            "confidence": short(table.confidence),
            "accuracy": short(table.accuracy),
            "low": short(table.low),
            "high": short(table.high),
        },
    }


def _reliability(rows: TopLabel, level: float) -> Document:
    """Return what the reliability diagram draws of rows sorted by what they say."""
    histogram = confidence_histogram(rows)
    smooth = smoothed_reliability(rows, points=SMOOTH_POINTS, level=level)
    return {
        "confidence": histogram.confidence,
        "accuracy": histogram.accuracy,
        "bins": {
            strategy: _points(binned_reliability(rows, level=level, strategy=strategy))
            for strategy in get_args(Strategy)
        },
        "smooth": {
            # The curve is left out where rows are too few: at both ends, or between two clusters.
            "index": np.rint(smooth.confidence * (SMOOTH_POINTS - 1)).astype(int).tolist(),
            "accuracy": short(smooth.accuracy, 4),
            "low": short(smooth.low, 4),
            "high": short(smooth.high, 4),
        },
        "histogram": {"count": short(histogram.count), "correct": short(histogram.correct)},
    }


def _points(points: Reliability) -> Document:
    return {name: short(values) for name, values in vars(points).items()}


def _temperature(
    calibrator: Calibrator | None, predictions: Predictions, margin: FloatArray | None
) -> Document | None:
    if margin is None or not isinstance(calibrator, RowTemperature):
        return None
    curve: MarginTemperature = margin_temperature(calibrator, predictions.logits, margin)
    return {
        "margin": short(curve.margin),
        "temperature": short(curve.temperature),
        "is_function": curve.is_function,
    }


def _margin_histogram(margin: FloatArray) -> Document:
    count, edges = np.histogram(margin, MARGIN_BINS)
    return {"count": count.tolist(), "low": short(edges)[0], "high": short(edges)[-1]}


def short(values: NDArray[Any], digits: int = 5) -> list[float | int | None]:
    """Return numbers with few digits, whole ones as int, and NaN as None."""
    rounded = [float(f"{value:.{digits}g}") for value in values.tolist()]
    return [None if v != v else int(v) if v.is_integer() else v for v in rounded]
