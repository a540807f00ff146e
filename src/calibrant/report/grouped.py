"""Groups of rows as the page of one evaluation shows them."""

from __future__ import annotations

from typing import Any

from calibrant.evaluation.formatting import show
from calibrant.evaluation.groups import HEADINGS, GroupedEvaluation, said_and_true
from calibrant.evaluation.results import Evaluation
from calibrant.report.engine import typeset


def groups_document(groups: GroupedEvaluation) -> dict[str, Any]:
    """Return what the page shows of groups: what the printed table does, and the p-values."""
    marked = set(groups.miscalibrated)
    metric = groups[groups.worst][groups.metric].metric
    return {
        "by": HEADINGS.get(groups.by, groups.by),
        "of_positive": metric.of_positive,
        "metric": groups.metric,
        "title": metric.title,
        "percent": metric.percent,
        "lower_is_better": metric.lower_is_better,
        "marked": groups.miscalibrated,
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
