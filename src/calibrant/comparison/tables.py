"""A comparison as tables: for print, notebooks, papers and data frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from calibrant.core.notebook import Notebook
from calibrant.core.tables import Table
from calibrant.evaluation.formatting import in_percent, show
from calibrant.evaluation.results import MetricResult, honest_would_show
from calibrant.metrics.metric_types import Metric

if TYPE_CHECKING:
    from calibrant.comparison.comparison import Comparison

# What the printed table shows; everything is in `Comparison.as_dict`.
TABLE_METRICS = ("ece", "ece_positive", "adaece", "smce", "nll", "brier")
# Beside the numbers of those that may be the best in a column.
MAY_BE_BEST = "+"


class ComparisonTables(Notebook):
    """What a `Comparison` is as tables."""

    def said(self) -> str:
        """Return which method to use, and why."""
        of = cast("Comparison", self)
        lead = f"Use {of.recommended}. {of.verdict.why} " if len(of.methods) > 1 else ""
        return f"{lead}{of.headline()}"

    def records(self) -> list[dict[str, Any]]:
        """Return a row for each method and metric, in fractions."""
        of = cast("Comparison", self)
        return [
            {"method": method.name, "metric": name} | result.as_dict()
            for method in of.methods
            for name, result in method.evaluation.results.items()
        ]

    def as_table(self) -> Table:
        """Return the table that it prints, a method a row."""
        of = cast("Comparison", self)
        shown = [metric.name for metric in _shown(of)]
        # A mark has a place of its own, so that the numbers align.
        titles = [metric.title + " " for metric in _shown(of)]
        rows: list[list[str]] = []
        for method in of.methods:
            mark = "*" if method.name in (of.best, *of.tied_with_best) else ""
            measured = [method.evaluation[name] for name in shown]
            rows.append(
                [
                    method.name + mark,
                    *[_cell(of, result, method.name) for result in measured],
                    "yes" if method.keeps_accuracy else "no",
                    str(method.calibrator.n_parameters),
                    f"{method.fit_seconds:.2f}",
                ]
            )
        head = ["method", *titles, "kept", "params", "fit s"]
        return Table(head, rows, notes=_legend(of))


def _cell(of: Comparison, result: MetricResult, method: str) -> str:
    """Return a value, marked where the method may be the best in it."""
    of_several = len(of.methods) > 1
    marked = of_several and method in of.may_be_best.get(result.metric.name, ())
    return show(result.metric, result.value) + (MAY_BE_BEST if marked else " ")


def _shown(of: Comparison) -> list[Metric]:
    """Return the metrics that the table shows: the ranking one and the usual ones."""
    results = of.methods[0].evaluation.results
    names = [name for name in TABLE_METRICS if name in results]
    if of.rank_by not in names:
        names.insert(0, of.rank_by)
    return [results[name].metric for name in names]


def _legend(of: Comparison) -> str:
    best = of.methods[0].evaluation[of.rank_by]
    text = (
        f"{MAY_BE_BEST} may be the best in this column (of these methods, the truly best is "
        f"among those in {100 * of.methods[0].evaluation.level:g} % of cases). "
        f"* not distinguishable from the best in {best.metric.title} (paired bootstrap, Holm's "
        "correction for all pairs). kept: whether every row kept its predicted class. "
        f"{in_percent(_shown(of))}"
    )
    if best.floor is None:
        return text
    return f"{text} {honest_would_show(best, f'those of {of.best}')}"
