"""Write the page of an evaluation or a comparison."""

from __future__ import annotations

from calibrant.comparison.comparison import Comparison
from calibrant.core.errors import InputError
from calibrant.evaluation.groups import GroupedEvaluation
from calibrant.evaluation.results import Evaluation, heading, standing
from calibrant.files import StrPath
from calibrant.predictions.predictions import Predictions
from calibrant.report.compared import comparison_document, comparison_words, uncalibrated
from calibrant.report.document import Document, evaluation_document
from calibrant.report.engine import Cell, PageTable, grouped, render_page, typeset, write_page

SCRIPTS = ("charts.js", "tables.js", "saving.js", "view.js", "drawing.js", "page.js")


def write_comparison_report(
    path: StrPath, comparison: Comparison, fit: Predictions, test: Predictions
) -> None:
    """Write the page of a comparison.

    Args:
        path: the HTML file; an old one is replaced.
        comparison: what `calibrant.compare` found.
        fit: the rows that the methods were fitted on.
        test: the rows that they were measured on.

    Raises:
        InputError: other rows than those of the comparison, or a path that can't be written.

    Examples:
        >>> from pathlib import Path
        >>> import calibrant as cb
        >>> from calibrant.report import write_comparison_report
        >>> val, test = cb.load_sample("validation"), cb.load_sample("test")
        >>> found = cb.compare(["none", "temperature"], fit=val, test=test, resamples=100)
        >>> write_comparison_report("comparison.html", found, val, test)
        >>> "Temperature" in Path("comparison.html").read_text()
        True
    """
    _check_rows(test, comparison.test_rows)
    _check_rows(fit, comparison.fit_rows)
    before = uncalibrated(comparison, test)
    document = comparison_document(comparison, before, fit, test)
    write_page(path, render(document, *comparison_words(comparison, before)))


def write_evaluation_report(
    path: StrPath,
    evaluation: Evaluation,
    predictions: Predictions,
    groups: GroupedEvaluation | None = None,
) -> None:
    """Write the page of one evaluation. What its kind of scores can't show is left out.

    Args:
        path: the HTML file; an old one is replaced.
        evaluation: what `calibrant.evaluate` found.
        predictions: the rows that it was measured on.
        groups: what `calibrant.evaluate_by` found on the same rows, to be shown as well.

    Raises:
        InputError: other rows than those of the evaluation, or a path that can't be written.

    Examples:
        >>> from pathlib import Path
        >>> import calibrant as cb
        >>> from calibrant.report import write_evaluation_report
        >>> test = cb.load_sample("test")
        >>> found = cb.evaluate(test, metrics=["ece"], resamples=100)
        >>> write_evaluation_report("test.html", found, test)
        >>> Path("test.html").read_text().count("<svg") > 1  # one file, pictures and all
        True
    """
    _check_rows(predictions, evaluation.n)
    document = evaluation_document(evaluation, predictions, groups)
    headline, deck = heading(evaluation), standing(evaluation)
    write_page(path, render(document, headline, deck))


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


def _check_rows(predictions: Predictions, rows: int) -> None:
    if rows not in (predictions.n, predictions.counted.n):
        raise InputError(
            f"{predictions.source} has {predictions.n} rows, but {rows} were measured; the report "
            "needs the same ones"
        )
