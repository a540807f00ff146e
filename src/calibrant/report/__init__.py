"""Reports: one self-contained HTML page, and static figures for papers.

The page needs no network and no server. `calibrant.report.figures` draws the same numbers with
matplotlib. Both are computed in `calibrant.report.series` and `calibrant.report.margins`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from calibrant.lazy import lazy_names

if TYPE_CHECKING:
    from calibrant.compared import Comparison
    from calibrant.evaluation import Evaluation
    from calibrant.files import StrPath
    from calibrant.predictions import Predictions
    from calibrant.report.figure_files import save_figures

__all__ = ["save_figures", "write_comparison_report", "write_evaluation_report"]


__getattr__ = lazy_names("calibrant.report", {"figure_files": ("save_figures",)})


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
    """
    from calibrant.report.document import comparison_document, uncalibrated, unique_titles
    from calibrant.report.render import render, write_page
    from calibrant.report.wording import comparison_deck, comparison_headline

    _check_rows(test, comparison.test_rows)
    _check_rows(fit, comparison.fit_rows)
    before = uncalibrated(comparison, test)
    document = comparison_document(comparison, before, fit, test)
    titles = unique_titles(comparison)
    headline = comparison_headline(comparison, before, titles)
    deck = comparison_deck(comparison, titles)
    write_page(path, render(document, headline, deck))


def write_evaluation_report(
    path: StrPath, evaluation: Evaluation, predictions: Predictions
) -> None:
    """Write the page of one evaluation. What its kind of scores can't show is left out.

    Args:
        path: the HTML file; an old one is replaced.
        evaluation: what `calibrant.evaluate` found.
        predictions: the rows that it was measured on.

    Raises:
        InputError: other rows than those of the evaluation, or a path that can't be written.
    """
    from calibrant.report.document import evaluation_document
    from calibrant.report.render import render, write_page
    from calibrant.report.wording import evaluation_deck, evaluation_headline

    _check_rows(predictions, evaluation.n)
    document = evaluation_document(evaluation, predictions)
    html = render(document, evaluation_headline(evaluation), evaluation_deck(evaluation))
    write_page(path, html)


def _check_rows(predictions: Predictions, rows: int) -> None:
    from calibrant.errors import InputError

    if predictions.n != rows:
        raise InputError(
            f"{predictions.source} has {predictions.n} rows, but {rows} were measured; the report "
            "needs the same ones"
        )
