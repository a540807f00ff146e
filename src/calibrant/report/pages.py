"""Write the page of an evaluation or a comparison."""

from __future__ import annotations

from calibrant.comparison.comparison import Comparison
from calibrant.core.errors import InputError
from calibrant.evaluation.groups import GroupedEvaluation
from calibrant.evaluation.results import Evaluation, heading, standing
from calibrant.files import StrPath
from calibrant.predictions.predictions import Predictions
from calibrant.report.compared import comparison_document, comparison_words, uncalibrated
from calibrant.report.document import evaluation_document
from calibrant.report.render import render, write_page


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


def _check_rows(predictions: Predictions, rows: int) -> None:
    if rows not in (predictions.n, predictions.counted.n):
        raise InputError(
            f"{predictions.source} has {predictions.n} rows, but {rows} were measured; the report "
            "needs the same ones"
        )
