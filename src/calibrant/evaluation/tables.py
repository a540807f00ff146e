"""Evaluations as tables: for notebooks, papers and data frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from calibrant.core.notebook import Notebook
from calibrant.core.tables import Table
from calibrant.evaluation import findings, printed

if TYPE_CHECKING:
    from calibrant.evaluation.evaluate import Evaluation
    from calibrant.evaluation.groups import GroupedEvaluation


class EvaluationTables(Notebook):
    """What an `Evaluation` is as tables."""

    def as_table(self) -> Table:
        """Return the table that it prints, a metric a row."""
        return printed.evaluation_table(cast("Evaluation", self))

    def records(self) -> list[dict[str, Any]]:
        """Return a row for each metric: value, ends of the interval, floor, p-value; fractions."""
        results = cast("Evaluation", self).results
        return [{"metric": name} | result.as_dict() for name, result in results.items()]

    def said(self) -> str:
        """Return the finding in a sentence or two."""
        return findings.headline(cast("Evaluation", self))

    def __str__(self) -> str:
        return printed.evaluation_text(cast("Evaluation", self))


class GroupedTables(Notebook):
    """What a `GroupedEvaluation` is as tables."""

    def as_table(self) -> Table:
        """Return the table that it prints, a group a row; all groups."""
        return printed.grouped_table(cast("GroupedEvaluation", self))

    def records(self) -> list[dict[str, Any]]:
        """Return a row for each group and metric, with the number of rows in the group."""
        groups = cast("GroupedEvaluation", self).groups
        return [
            {"group": name, "n": group.n, "metric": metric} | result.as_dict()
            for name, group in groups.items()
            for metric, result in group.results.items()
        ]

    def said(self) -> str:
        """Return what is worst, in a sentence."""
        grouped = cast("GroupedEvaluation", self)
        by = printed.HEADINGS.get(grouped.by, grouped.by)
        title = grouped.results()[grouped.worst].metric.title
        return f"{len(grouped.groups)} groups by {by}; {title} is worst in {grouped.worst}."
