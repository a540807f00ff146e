"""From a comparison to the document that its page shows."""

from __future__ import annotations

from typing import Any

import numpy as np

from calibrant.comparison.comparison import (
    UNCALIBRATED,
    Comparison,
    change,
    marks,
)
from calibrant.comparison.verdict import ComparedMethod, DifferenceToBest
from calibrant.core.weights import mean
from calibrant.evaluation.evaluate import evaluate
from calibrant.evaluation.results import Evaluation, MetricResult, honest_would_show
from calibrant.posthoc.catalogue import formula_of, title_of
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.scoring import score_rows
from calibrant.report.document import Document, Shown, document_of, figure_of
from calibrant.report.engine import typeset


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
    document = document_of(shown, test)
    parts = {method.name: method for method in comparison.methods}
    metrics: list[str] = list(document["metrics"])
    for entry in document["methods"]:
        if entry["name"] in parts:
            _add_part(entry, parts[entry["name"]], comparison, metrics)
    before_fit = score_rows(fit)
    return document | {
        "verb": "compare",
        "before": UNCALIBRATED,
        "after": _first_shown(comparison).name,
        "rank_by": comparison.rank_by,
        "best": comparison.best,
        "tied_with_best": comparison.tied_with_best,
        "recommended": comparison.recommended,
        "why": typeset(comparison.verdict.why),
        "may_be_best": comparison.may_be_best,
        "words_by": {name: _words_by(comparison, before, name) for name in metrics},
        "skipped_methods": comparison.skipped,
        "groups": None,
        "fit": {
            "source": comparison.fit_source,
            "rows": comparison.fit_rows,
            "accuracy": mean(before_fit.correct.astype(np.float64), before_fit.weights),
            "confidence": mean(before_fit.confidence, before_fit.weights),
        },
    }


def uncalibrated(comparison: Comparison, test: Predictions) -> Evaluation:
    """Return the network's own confidences, measured as the comparison measured its methods."""
    if comparison.uncalibrated is not None:
        return comparison.uncalibrated.evaluation
    like = comparison.methods[0].evaluation
    resamples = max([len(result.replicates) for result in like.results.values()] + [2])
    return evaluate(test, metrics=list(like.results), resamples=resamples, level=like.level)


def comparison_words(
    comparison: Comparison, before: Evaluation, metric: str | None = None
) -> tuple[str, str]:
    """Return the headline of a comparison's page and the sentences below it.

    The headline is of the recommended method, the sentences are of the best by a metric.

    Args:
        comparison: what was compared.
        before: the network's own confidences on the test rows.
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
    rank = "the recommended method"
    return change(before, comparison[name].evaluation, better, metric, rank), deck


def _first_shown(comparison: Comparison) -> ComparedMethod:
    """Return the recommended method, or if that is none at all the best other one."""
    if comparison.recommended != UNCALIBRATED:
        return comparison[comparison.recommended]
    return comparison.best_calibrated or comparison.methods[0]


def _words_by(comparison: Comparison, before: Evaluation, metric: str) -> Document:
    headline, deck = comparison_words(comparison, before, metric)
    return {"headline": typeset(headline), "deck": typeset(deck)}


def _add_part(
    entry: Document, part: ComparedMethod, comparison: Comparison, metrics: list[str]
) -> None:
    """Add to a method's entry what the comparison knows of it."""
    found = {name: comparison.differences_by(name)[part.name] for name in metrics}
    sets = comparison.may_be_best
    for name, words in entry["words"].items():
        best, may_be = part.name == comparison.best_by(name), part.name in sets.get(name, ())
        words |= _rank_words(part.evaluation[name], found[name], best=best, may_be_best=may_be)
    kind = type(part.calibrator)
    entry |= {
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


def _rank_words(
    result: MetricResult, difference: DifferenceToBest, **standing: bool
) -> dict[str, Any]:
    """Return what the ranking says of a method by one metric."""
    value, low, high = (
        figure_of(result.metric, v) for v in (difference.value, difference.low, difference.high)
    )
    return {
        "marks": marks(result, significant=difference.significant, **standing),
        "difference": f"+{value}" if difference.value > 0 else value,
        "difference_low": low,
        "difference_high": high,
    }
