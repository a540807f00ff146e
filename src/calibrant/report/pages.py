"""The page of an evaluation or a comparison; `to_html` of these finds it by name."""

from __future__ import annotations

from calibrant.comparison.comparison import Comparison
from calibrant.comparison.models import ModelComparison
from calibrant.core.errors import InputError
from calibrant.core.result import Result
from calibrant.evaluation.groups import GroupedEvaluation
from calibrant.evaluation.results import Evaluation, heading, standing
from calibrant.posthoc.worth import CrossValidated
from calibrant.report.document import (
    Document,
    comparison_document,
    comparison_words,
    evaluation_document,
)
from calibrant.report.engine import Cell, PageTable, grouped, render_page, typeset

SCRIPTS = ("charts.js", "tables.js", "saving.js", "view.js", "drawing.js", "page.js")


def page_of(result: Result, groups: GroupedEvaluation | None = None) -> str:
    """Return the page of a result. What its kind of scores can't show is left out.

    Args:
        result: an evaluation, a comparison of methods or of models, or what a fit is worth.
        groups: what `calibrant.evaluate_by` found on the rows of an evaluation, to be shown as
            well.

    Raises:
        InputError: another result, or groups of a comparison.
    """
    if isinstance(result, Comparison) and groups is None:
        return render(comparison_document(result), *comparison_words(result))
    if isinstance(result, CrossValidated | ModelComparison) and groups is None:
        return _page_of_table(result)
    if isinstance(result, Evaluation):
        result.sample.refuse_ranks("a page")
        document = evaluation_document(result, groups)
        return render(document, heading(result), standing(result))
    what = "with groups" if groups is not None else f"of a {type(result).__name__}"
    raise InputError(f"there is no page {what}; evaluations and comparisons have one")


def _page_of_table(result: CrossValidated | ModelComparison) -> str:
    """Return the page of a result that is a finding and a table."""
    table = result.as_table()
    lead, _, rest = result.headline().partition(". ")
    more = result.matched() if isinstance(result, ModelComparison) else result.advice()
    return render_page(
        "table.html.jinja",
        headline=typeset(f"{lead.removesuffix('.')}."),
        deck=typeset(f"{rest} {more}".strip()),
        shown=PageTable.of(table, "What was found"),
        notes=typeset(table.notes),
    )


def render(document: Document, headline: str, deck: str) -> str:
    """Return the page of a document.

    Args:
        document: from `calibrant.report.document`.
        headline: the finding in one sentence.
        deck: the sentence below it.
    """
    return render_page(
        "page.html.jinja",
        doc=document,
        headline=typeset(headline),
        deck=typeset(deck),
        metrics_table=_metrics_table(document),
        numbers_table=_numbers_table(document) if document["verb"] == "compare" else None,
        scripts=SCRIPTS,
    )


def _metrics_table(document: Document) -> PageTable:
    """Return what was measured of the first method, a row for each metric."""
    method = document["methods"][0]
    rows: list[list[Cell]] = []
    for name, result in method["metrics"].items():
        words, metric = method["words"][name], document["metrics"][name]
        rows.append(
            [
                Cell(metric["title"], csv=[name]),
                Cell(words["value"] + " %" * metric["percent"], bold=True, csv=[result["value"]]),
                Cell(f"{words['low']} to {words['high']}", csv=[result["low"], result["high"]]),
                Cell(words["floor"], csv=[result["floor"]]),
                Cell(words["floor_95"], csv=[result["floor_95"]]),
                Cell(words["against_floor"], csv=[result["p_value"]]),
            ]
        )
    head = [
        Cell("Metric", csv=["metric"]),
        Cell("Value", csv=["value"]),
        Cell("Interval", csv=["low", "high"]),
        Cell("Floor", csv=["floor"]),
        Cell("Floor, 95 %", csv=["floor_95"]),
        Cell("Finding", csv=["p_value"]),
    ]
    return PageTable("Table of metrics", head, rows, words=(5,), id="metrics-table")


def _numbers_table(document: Document) -> PageTable:
    """Return every metric of every method."""
    metrics = document["metrics"]
    ends = ("", "_low", "_high", "_floor", "_floor_95", "_p_value")
    head = [Cell("Method", csv=["method"])]
    for name, metric in metrics.items():
        title = metric["title"] + " %" * metric["percent"]
        head.append(Cell(title, csv=[f"{name}{end}" for end in ends]))
    head += [Cell(title) for title in ("Class kept", "Parameters", "Fit, s")]
    rows: list[list[Cell]] = []
    for method in document["methods"]:
        row = [Cell(method["name"], csv=[method["name"]])]
        for name in metrics:
            result, words = method["metrics"][name], method["words"][name]
            signs = [("◦", "at the floor")] if result["at_floor"] else []
            if name in method.get("may_be_best", ()):
                signs.append(("+", "may be the best"))
            small = [f"{words['low']}\N{EN DASH}{words['high']}"]
            if result["floor"] is not None:
                small.append(f"floor {words['floor']}, {words['floor_95']}")
            kept = ("value", "low", "high", "floor", "floor_95", "p_value")
            csv = [result[key] for key in kept]
            row.append(Cell(words["value"], small, bold=True, csv=csv, signs=signs))
        facts = [""] * 3
        if method["ranked"]:
            facts = [
                "yes" if method["keeps_accuracy"] else "no",
                grouped(method["parameters"]),
                f"{method['fit_seconds']:.2f}",
            ]
        rows.append([*row, *map(Cell, facts)])
    return PageTable("Table of all metrics", head, rows, id="numbers-table")
