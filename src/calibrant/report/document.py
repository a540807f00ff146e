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
from calibrant.comparison.comparison import UNCALIBRATED, Comparison, DifferenceToBest
from calibrant.core.arrays import FloatArray, IntArray
from calibrant.core.weights import mean
from calibrant.evaluation import findings
from calibrant.evaluation.evaluate import Evaluation, MetricResult
from calibrant.evaluation.numbers import show
from calibrant.evaluation.printed import weighing
from calibrant.metrics.bins import Strategy
from calibrant.metrics.registry import Metric
from calibrant.metrics.top_label import TopLabel
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.temperature.per_row import RowTemperature
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.scoring import score_rows
from calibrant.report.classes import class_table, classes_called, classes_to_show
from calibrant.report.margins import MarginTemperature, margin_groups, margin_temperature
from calibrant.report.method_title import method_title
from calibrant.report.render import typeset
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


def comparison_document(
    comparison: Comparison, before: Evaluation, fit: Predictions, test: Predictions
) -> Document:
    """Return what the page of a comparison holds.

    Args:
        comparison: what was compared.
        before: the network's own confidences on the test rows, from `uncalibrated`.
        fit: the rows that the methods were fitted on.
        test: the rows that they were measured on.
    """
    shown = [Shown(m.name, m.evaluation, m.calibrator) for m in comparison.methods]
    if comparison.uncalibrated is None:
        shown.append(Shown(UNCALIBRATED, before, ranked=False))
    document = _document(shown, test)
    after = comparison.best_calibrated or comparison.methods[0]
    parts = {method.name: method for method in comparison.methods}
    to_best = {name: comparison.differences_by(name) for name in document["metrics"]}
    for entry in document["methods"]:
        if entry["name"] not in parts:
            continue
        part = parts[entry["name"]]
        found = {name: differences[part.name] for name, differences in to_best.items()}
        for name, words in entry["words"].items():
            result, best = part.evaluation[name], part.name == comparison.best_by(name)
            words |= _rank_words(result, found[name], best=best)
        entry |= {
            "stands_for": method_title(part.calibrator),
            "fit_seconds": part.fit_seconds,
            "apply_seconds": part.apply_seconds,
            "parameters": part.calibrator.n_parameters,
            "keeps_accuracy": part.keeps_accuracy,
            "warnings": list(part.warnings),
            "differences": {name: vars(difference) for name, difference in found.items()},
        }
    before_fit = score_rows(fit)
    return document | {
        "verb": "compare",
        "before": UNCALIBRATED,
        "after": after.name,
        "rank_by": comparison.rank_by,
        "best": comparison.best,
        "tied_with_best": comparison.tied_with_best,
        "skipped_methods": comparison.skipped,
        "fit": {
            "source": comparison.fit_source,
            "rows": comparison.fit_rows,
            "accuracy": mean(before_fit.correct.astype(np.float64), before_fit.weights),
            "confidence": mean(before_fit.confidence, before_fit.weights),
        },
    }


def evaluation_document(evaluation: Evaluation, predictions: Predictions) -> Document:
    """Return what the page of one evaluation holds.

    Args:
        evaluation: what was measured.
        predictions: the rows that it was measured on.
    """
    shown = Shown(THESE, evaluation)
    return _document([shown], predictions) | {
        "verb": "measure",
        "before": None,
        "after": THESE,
        "rank_by": None,
        "fit": None,
    }


def _document(shown: Sequence[Shown], predictions: Predictions) -> Document:
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
        "n_classes": predictions.n_classes,
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
        **{name: _figure(result.metric, getattr(result, name)) for name in WRITTEN},
        "against_floor": findings.against_floor(result),
    }


def _rank_words(result: MetricResult, difference: DifferenceToBest, *, best: bool) -> Document:
    """Return what the ranking says of a method by one metric."""
    value, low, high = (
        _figure(result.metric, v) for v in (difference.value, difference.low, difference.high)
    )
    return {
        "marks": findings.marks(result, best=best, significant=difference.significant),
        "difference": f"+{value}" if difference.value > 0 else value,
        "difference_low": low,
        "difference_high": high,
    }


def _figure(metric: Metric, value: float | None) -> str:
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
