"""From a comparison or an evaluation to the document that the page shows: plain values for JSON.

Metrics keep every digit. Chart series are rounded to four or five, far finer than a pixel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from calibrant._version import __version__
from calibrant.comparison.comparison import UNCALIBRATED, Comparison, change, marks
from calibrant.comparison.verdict import ComparedMethod, DifferenceToBest
from calibrant.core.arrays import IntArray
from calibrant.core.threads import each_at_once, worker_count
from calibrant.evaluation.formatting import show, with_interval
from calibrant.evaluation.groups import GroupedEvaluation, said_and_true
from calibrant.evaluation.results import (
    Evaluation,
    MetricResult,
    against_floor,
    finding,
    honest_would_show,
    sentence,
    weighing,
)
from calibrant.evaluation.uncertainty import deviations, wilson_interval
from calibrant.metrics.binned import Strategy
from calibrant.metrics.registry import Metric
from calibrant.metrics.top_label import TopLabel
from calibrant.posthoc.registry import formula_of, title_of
from calibrant.posthoc.temperature.scaling import MarginTemperature
from calibrant.report.charts import in_percent
from calibrant.report.classes import ClassTable, class_table, classes_called, classes_to_show
from calibrant.report.engine import typeset
from calibrant.report.rows import RowNames, rows_document
from calibrant.report.series import (
    HISTOGRAM_BINS,
    Reliability,
    binned_reliability,
    confidence_histogram,
    in_worth,
    margin_groups,
    quantile_ends,
    risk_coverage,
    rows_in_worth,
    smoothed_reliability,
)

SMOOTH_POINTS = 101
MARGIN_BINS = 48
WRITTEN = ("value", "low", "high", "floor", "floor_95")
WORDS = (*WRITTEN, "against_floor")
NUMBERS = (*WRITTEN, "p_value", "at_floor")
# What the page of one evaluation calls the rows.
THESE = "these predictions"
# So many metrics stand below the headline.
MOST_NUMBERS = 3
# Rows go by their numbers.
UNNAMED = RowNames()
Document = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Shown:
    """One set of confidences that the page can draw.

    Attributes:
        name: of the method, the same as in print and on the command line.
        evaluation: what was measured.
        by_margin: the temperature of its rows over the margin, or None.
        ranked: whether it took part in the comparison.
    """

    name: str
    evaluation: Evaluation
    by_margin: MarginTemperature | None = None
    ranked: bool = True


def evaluation_document(
    evaluation: Evaluation, groups: GroupedEvaluation | None = None, names: RowNames = UNNAMED
) -> Document:
    """Return what the page of one evaluation holds.

    Args:
        evaluation: what was measured.
        groups: the same rows measured within groups.
        names: what its rows are called and look like.
    """
    shown = Shown(THESE, evaluation)
    document = document_of([shown]) | {
        "verb": "measure",
        "before": None,
        "after": THESE,
        "rank_by": None,
        "fit": None,
        "groups": None if groups is None else groups_document(groups),
    }
    members = {} if groups is None else groups.members
    return document | _first_threshold(document) | _rows([shown], document, names, members)


def _rows(
    shown: Sequence[Shown], document: Document, names: RowNames, groups: dict[str, IntArray]
) -> Document:
    labels = np.array(document["class_labels"], dtype=np.int64)
    first = [name for name in (document["after"], document["before"]) if name is not None]
    of = [(one.name, one.evaluation) for one in shown]
    return {"rows": rows_document(of, first, labels, groups, names)}


def document_of(shown: Sequence[Shown]) -> Document:
    """Return what all pages hold of the methods that they show, best first."""
    first = shown[0].evaluation
    sample, binary = first.sample, first.sample.binary
    # The network itself first, then the best method.
    ordered = sorted(shown, key=lambda one: one.name != UNCALIBRATED)
    scores = [found for one in ordered if (found := in_worth(one.evaluation)[1]) is not None]
    classes = 2 if binary else first.n_classes
    labels, count = classes_to_show(scores, classes) if scores else (np.arange(0), 0)
    return {
        "calibrant": __version__,
        "level": first.level,
        "z": deviations(first.level),
        "source": first.source,
        "kind": first.kind,
        "positive": sample.positive_name,
        "n": first.n,
        "worth": first.effective_rows,
        "weighing": weighing(first),
        "n_classes": None if binary else first.n_classes,
        "labels": None if first.label_names is None else len(first.label_names),
        "metrics": {name: _metric(r.metric, r) for name, r in first.results.items()},
        "skipped_metrics": first.skipped,
        "smooth_grid": short(np.linspace(0, 1, SMOOTH_POINTS)),
        "histogram_bins": HISTOGRAM_BINS,
        "margin_histogram": None if sample.margins is None else _margin_histogram(sample.margins),
        **classes_called(labels, sample.class_names),
        "class_count": count,
        "methods": each_at_once(
            shown, lambda one: _method(one, list(first.results), labels), worker_count()
        ),
    }


# Round shares of wrong predictions that one may ask for.
TARGETS = (0.1, 0.05, 0.02, 0.01, 0.005, 0.001)


def _first_threshold(document: Document) -> Document:
    """Return the error that the page first asks for, and where the shown method meets it.

    It is a round one that most of the rows can meet: half of the error of all of them.
    """
    risk = next(m["risk"] for m in document["methods"] if m["name"] == document["after"])
    accepted, wrong = np.array(risk["accepted"]), np.array(risk["wrong"])
    error, half = wrong / accepted, wrong[-1] / accepted[-1] / 2
    target = next((t for t in TARGETS if t <= half), float(half))
    # The curve isn't monotone: of the points that meet the target the last one counts.
    met = np.flatnonzero(error <= target + 1e-12)
    i = int(met[-1]) if len(met) else 0
    low, high = wilson_interval(wrong[[i]], accepted[[i]], document["level"])
    point = {
        "met": bool(len(met)),
        "threshold": risk["threshold"][i],
        "coverage": float(accepted[i] / document["worth"]),
        "error": float(error[i]),
        "low": float(low[0]),
        "high": float(high[0]),
    }
    return {"risk_target": target, "risk_point": point}


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


def _method(one: Shown, metrics: Sequence[str], labels: IntArray) -> Document:
    evaluation, level = one.evaluation, one.evaluation.level
    (rows, scores), margins = in_worth(evaluation), evaluation.sample.margins
    risk, positive = risk_coverage(rows), evaluation.positive
    groups = (
        [] if margins is None or scores is None else margin_groups(scores, margins, level=level)
    )
    results = evaluation.results
    return {
        "name": one.name,
        "ranked": one.ranked,
        "metrics": {
            name: results[name].as_dict() | {"at_floor": results[name].at_floor}
            if name in results
            else dict.fromkeys(NUMBERS)
            for name in metrics
        },
        "words": {
            name: _words(results[name]) if name in results else dict.fromkeys(WORDS, "")
            for name in metrics
        },
        **_reliability(rows, level),
        "positive": None
        if positive is None
        else _reliability(rows_in_worth(evaluation, positive), level),
        "risk": {
            "threshold": short(risk.threshold, 6),
            "accepted": risk.accepted.tolist(),
            "wrong": risk.wrong.tolist(),
            "bound": short(risk.bound(level), 3),
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
        "temperature": _temperature(one.by_margin),
        "classes": None if scores is None else _classes(class_table(scores, labels, level)),
    }


def _classes(table: ClassTable) -> Document:
    return {
        "count": table.count.tolist(),
        "confidence": short(table.confidence),
        "accuracy": short(table.accuracy),
        "low": short(table.low),
        "high": short(table.high),
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
        "quantile_ends": quantile_ends(rows).tolist(),
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


def _temperature(curve: MarginTemperature | None) -> Document | None:
    if curve is None:
        return None
    return {
        "margin": short(curve.margin),
        "temperature": short(curve.temperature),
        "is_function": curve.is_function,
    }


def _margin_histogram(margin: NDArray[Any]) -> Document:
    count, edges = np.histogram(margin, MARGIN_BINS)
    return {"count": count.tolist(), "low": short(edges)[0], "high": short(edges)[-1]}


def short(values: NDArray[Any], digits: int = 5) -> list[float | int | None]:
    """Return numbers with few digits, whole ones as int, and NaN as None."""
    rounded = [float(f"{value:.{digits}g}") for value in values.tolist()]
    return [None if v != v else int(v) if v.is_integer() else v for v in rounded]


def comparison_document(comparison: Comparison, names: RowNames = UNNAMED) -> Document:
    """Return what the page of a comparison holds."""
    shown = [Shown(m.name, m.evaluation, m.by_margin) for m in comparison.methods]
    if comparison.uncalibrated is None:
        shown.append(Shown(UNCALIBRATED, comparison.before, ranked=False))
    document = document_of(shown)
    parts = {method.name: method for method in comparison.methods}
    metrics: list[str] = list(document["metrics"])
    for entry in document["methods"]:
        if entry["name"] in parts:
            _add_part(entry, parts[entry["name"]], comparison, metrics)
    document |= {
        "verb": "compare",
        "before": UNCALIBRATED,
        "after": _first_shown(comparison).name,
        "rank_by": comparison.rank_by,
        "best": comparison.best,
        "tied_with_best": comparison.tied_with_best,
        "recommended": comparison.recommended,
        "why": typeset(comparison.verdict.reasons),
        "may_be_best": comparison.may_be_best,
        "words_by": {name: _words_by(comparison, name) for name in metrics},
        "ranked_by": {name: comparison.ranked_by(name) for name in metrics},
        "scales": {name: _scale_of_ranking(comparison, name) for name in metrics},
        "skipped_methods": comparison.skipped,
        "groups": None,
        "fit": {
            "source": comparison.fit_source,
            "rows": comparison.fit_rows,
            "accuracy": comparison.network.fit_accuracy,
            "confidence": comparison.network.fit_confidence,
        },
    }
    return document | _first_threshold(document) | _rows(shown, document, names, {})


def comparison_words(comparison: Comparison, metric: str | None = None) -> tuple[str, str]:
    """Return the headline of a comparison's page and the sentences below it.

    The headline is of the recommended method, the sentences are of the best by a metric.

    Args:
        comparison: what was compared.
        metric: the one that ranks if None.
    """
    metric = metric or comparison.rank_by
    best = comparison[comparison.best_by(metric)]
    result = best.evaluation[metric]
    deck = comparison.ranking(metric)
    if result.floor is not None:
        deck += f" {honest_would_show(result, f'those of {best.name}')}"
    name = comparison.recommended
    better = None if name == UNCALIBRATED else name
    after = comparison[name].evaluation
    return change(comparison.before, after, better, metric, "the recommended method"), deck


def _headline(part: ComparedMethod, comparison: Comparison, metric: str) -> str:
    """Return the headline of the page while it shows one of the methods."""
    before = comparison.before
    if part.name == UNCALIBRATED:
        return sentence(finding(before, metric))
    which = "recommended" if part.name == comparison.recommended else "chosen"
    return change(before, part.evaluation, part.name, metric, f"the {which} method")


def _first_shown(comparison: Comparison) -> ComparedMethod:
    """Return the recommended method, or if that is none at all the best other one."""
    if comparison.recommended != UNCALIBRATED:
        return comparison[comparison.recommended]
    return comparison.best_calibrated or comparison.methods[0]


# How many methods the scale of a ranking makes room for at least.
FEWEST_CONTENDERS = 3


def _scale_of_ranking(comparison: Comparison, metric: str) -> list[float]:
    """Return the scale of an axis: it covers the methods that may be best, and a few others.

    The uncalibrated confidences, and whoever is as far off, get an arrow.
    """
    ranked, differences = comparison.ranked_by(metric), comparison.differences_by(metric)
    methods = [name for name in ranked if name != UNCALIBRATED]
    tied = [
        name
        for i, name in enumerate(methods)
        if i < FEWEST_CONTENDERS or not differences[name].significant
    ]
    return scale_of([comparison[name].evaluation[metric] for name in tied or ranked])


def scale_of(results: Sequence[MetricResult]) -> list[float]:
    """Return the ends of a scale that pictures of results share."""
    found = [result for result in results if np.isfinite(result.value)]
    if not found:
        return [0.0, 1.0]
    lows, highs = [r.low for r in found], sorted(r.high for r in found)
    floors = [r.floor_95 for r in found if r.floor_95 is not None]
    low, high = 0.0 if floors else min(lows), max(highs + floors)
    # A few that are off by far would leave the others no room.
    usual = highs[len(highs) // 2]
    return [low, 3 * usual if floors and high > 5 * usual else high]


def _words_by(comparison: Comparison, metric: str) -> Document:
    headline, deck = comparison_words(comparison, metric)
    return {"headline": typeset(headline), "deck": typeset(deck)}


def _add_part(
    entry: Document, part: ComparedMethod, comparison: Comparison, metrics: list[str]
) -> None:
    """Add to a method's entry what the comparison knows of it."""
    found = {name: comparison.differences_by(name)[part.name] for name in metrics}
    sets = comparison.may_be_best
    headlines = {name: typeset(_headline(part, comparison, name)) for name in metrics}
    usual = headlines[comparison.rank_by]
    for name, words in entry["words"].items():
        best, may_be = part.name == comparison.best_by(name), part.name in sets.get(name, ())
        words |= _rank_words(part.evaluation[name], found[name], best=best, may_be_best=may_be)
    kind = type(part.calibrator)
    entry |= {
        "numbers": _numbers(part.evaluation),
        "headline": usual,
        "headlines": {name: said for name, said in headlines.items() if said != usual},
        "stands_for": title_of(kind),
        "method": part.calibrator.method,
        "formula": formula_of(kind),
        "fails": None if kind.facts is None else kind.facts.fails,
        "fit_seconds": part.fit_seconds,
        "apply_seconds": part.apply_seconds,
        "parameters": part.calibrator.n_parameters,
        "keeps_accuracy": part.keeps_accuracy,
        "warnings": list(part.warnings),
        "differences": {name: vars(difference) for name, difference in found.items()},
        "may_be_best": [name for name in metrics if part.name in sets.get(name, ())],
    }


def _numbers(evaluation: Evaluation) -> str:
    """Return what stands below the headline while a method is shown: all that was measured."""
    results = evaluation.results
    accuracy = in_percent(float(evaluation.top.accuracy))
    said = [
        f"{result.metric.title} {typeset(with_interval(result.metric, result.ends))}"
        for result in results.values()
    ]
    return "; ".join([f"right {accuracy}", *said[:MOST_NUMBERS]])


def _rank_words(
    result: MetricResult, difference: DifferenceToBest, **standing: bool
) -> dict[str, Any]:
    """Return a method's place in the ranking by one metric."""
    value, low, high = (
        figure_of(result.metric, v) for v in (difference.value, difference.low, difference.high)
    )
    return {
        "marks": marks(result, significant=difference.significant, **standing),
        "difference": f"+{value}" if difference.value > 0 else value,
        "difference_low": low,
        "difference_high": high,
    }


def groups_document(groups: GroupedEvaluation) -> dict[str, Any]:
    """Return what the page shows of groups: what the printed table does, and the p-values."""
    marked = set(groups.miscalibrated)
    metric = groups[groups.worst][groups.metric].metric
    return {
        "by": groups.heading,
        "of_positive": metric.of_positive,
        "metric": groups.metric,
        "title": metric.title,
        "percent": metric.percent,
        "lower_is_better": metric.lower_is_better,
        "marked": groups.miscalibrated,
        "scale": scale_of([groups[name][groups.metric] for name in groups.groups]),
        "rows": [_group(name, groups[name], groups, name in marked) for name in groups.groups],
        "skipped": groups.skipped,
    }


def _group(name: str, group: Evaluation, groups: GroupedEvaluation, marked: bool) -> dict[str, Any]:
    result = group[groups.metric]
    said, true = said_and_true(group, result.metric)
    shown = {end: getattr(result, end) for end in ("value", "low", "high", "floor_95")}
    return {
        "name": name,
        "n": group.n,
        "confidence": said,
        "accuracy": true,
        **shown,
        "p_adjusted": groups.p_adjusted.get(name),
        "marked": marked,
        "words": {
            end: "" if value is None else typeset(show(result.metric, value))
            for end, value in shown.items()
        },
    }
