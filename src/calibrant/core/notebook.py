"""How results are shown in notebooks and taken along: tables, frames, LaTeX, pictures."""

from __future__ import annotations

from abc import abstractmethod
from html import escape
from importlib import import_module
from typing import Any

from calibrant.core.errors import MissingDependencyError
from calibrant.core.tables import Table

# Pictures are a room above all results, which know it by name only, as public names are known.
PICTURES = "calibrant.report.plots"


class Notebook:
    """What every result can do beside printing itself."""

    @abstractmethod
    def as_table(self) -> Table:
        """Return what it prints as a table of text."""

    @abstractmethod
    def records(self) -> list[dict[str, Any]]:
        """Return the numbers as rows of a data frame: fractions, not percent."""

    @abstractmethod
    def said(self) -> str:
        """Return the finding in a sentence or two."""

    def to_markdown(self) -> str:
        """Return the table in Markdown, and what its columns mean."""
        return self.as_table().to_markdown()

    def to_latex(self) -> str:
        """Return the table in LaTeX, for the package booktabs."""
        return self.as_table().to_latex()

    def to_frame(self) -> Any:
        """Return the numbers as a pandas data frame: fractions, not percent.

        Raises:
            MissingDependencyError: pandas isn't installed.
        """
        try:
            pandas: Any = import_module("pandas")
        except ImportError as error:
            raise MissingDependencyError(
                "to_frame needs pandas: pip install 'calibrant[frames]'"
            ) from error
        return pandas.DataFrame(self.records())

    def plot(self, ax: Any = None, **options: Any) -> Any:
        """Draw it with matplotlib, into `ax` or axes of its own, and return these.

        Of an evaluation that is the reliability diagram, whose options `reliability_diagram` names;
        of groups and of a comparison the leading metric of each, with interval and floor, or
        another ``metric=``.
        """
        return import_module(PICTURES).plot(self, ax, **options)

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        table = self.as_table()
        notes = f"<p><small>{escape(table.notes)}</small></p>" if table.notes else ""
        return f"<div><p>{escape(self.said())}</p>\n{table.to_html()}\n{notes}</div>"
