"""What every result can do: say what was found, and go into notebooks, papers, frames and pages."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from os import PathLike
from typing import TYPE_CHECKING, Any

from calibrant.core.errors import MissingDependencyError
from calibrant.core.tables import Table
from calibrant.core.text import wrap

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame  # pyright: ignore[reportMissingTypeStubs]

# Pictures and pages are a room above all results, which know it by name only, as public names are
# known.
PICTURES = "calibrant.report.figures"
PAGES, ENGINE = "calibrant.report.pages", "calibrant.report.engine"


class Result:
    """Numbers that were found; `repr` is the finding, `str` the table with it.

    Results are values: they pickle, travel to other processes, and hold no function.
    """

    @abstractmethod
    def headline(self) -> str:
        """Return the finding in a sentence or two."""

    @abstractmethod
    def as_table(self) -> Table:
        """Return what it prints as a table of text."""

    @abstractmethod
    def records(self) -> list[dict[str, Any]]:
        """Return the numbers as rows of a data frame: fractions, not percent."""

    @abstractmethod
    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON takes it; fractions, not percent."""

    def above(self) -> tuple[str, ...]:
        """Return the paragraphs that it prints above the table."""
        return (self.headline(),)

    def below(self) -> tuple[str, ...]:
        """Return the paragraphs that it prints below the table and its notes."""
        return ()

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields, without what was made of them and can be made again."""
        names = [field.name for field in fields(self)] if is_dataclass(self) else vars(self)
        return {name: vars(self)[name] for name in names}

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.headline()}>"

    def __str__(self) -> str:
        table = self.as_table()
        below = map(wrap, (table.notes, *self.below()))
        return "\n\n".join([*map(wrap, self.above()), table.to_text(), *below])

    def to_markdown(self) -> str:
        """Return the table in Markdown, and what its columns mean."""
        return self.as_table().to_markdown()

    def to_latex(self) -> str:
        """Return the table in LaTeX, for the package booktabs."""
        return self.as_table().to_latex()

    def to_frame(self) -> DataFrame:
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

    def to_html(self, path: str | PathLike[str], **options: Any) -> None:
        """Write its page: one file with tables and charts that loads nothing.

        The page of an evaluation shows ``groups=`` as well, what `calibrant.evaluate_by` found on
        the same rows. Pages of evaluations and comparisons list some rows of every bin and class:
        ``ids=`` (N,) are what these are called in place of their numbers, and ``images=``
        (N, H, W) or (N, H, W, 3) uint8 are shown small beside them. N counts the rows as they were
        before any split.

        Args:
            path: the HTML file; an old one is replaced.
            options: see above.

        Raises:
            InputError: this page has no such option, or the path can't be written.

        Examples:
            >>> from pathlib import Path
            >>> import calibrant as cb
            >>> found = cb.evaluate(cb.load_sample("test"), metrics=["ece"], resamples=100)
            >>> found.to_html("test.html")
            >>> Path("test.html").read_text().count("<svg") > 1  # one file, pictures and all
            True
        """
        page = import_module(PAGES).page_of(self, **options)
        import_module(ENGINE).write_page(path, page)

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        from html import escape

        table = self.as_table()
        notes = f"<p><small>{escape(table.notes)}</small></p>" if table.notes else ""
        return f"<div><p>{escape(self.headline())}</p>\n{table.to_html()}\n{notes}</div>"


class FewNumbers(Result):
    """A result that is its fields: one row of numbers."""

    def records(self) -> list[dict[str, Any]]:
        """Return the fields as the row of a data frame."""
        return [self.as_dict()]

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as JSON takes them."""
        return self.__getstate__()


class Drawn(Result):
    """A result that has a picture."""

    def plot(self, ax: Axes | None = None, **options: Any) -> Axes:
        """Draw it with matplotlib, into `ax` or axes of its own, and return these.

        Of an evaluation that is the reliability diagram, whose options `reliability_diagram` names;
        of groups, comparisons and sets in their order the leading metric of each, with interval and
        floor, or another ``metric=``; of decisions the risk over coverage with its bound, the
        net benefit over thresholds, or the sizes of sets by class.

        Raises:
            InputError: there is nothing to draw, or the metric wasn't measured.
        """
        return import_module(PICTURES).plot(self, ax, **options)


def facts_html(title: str, facts: Mapping[str, str]) -> str:
    """Return what a notebook shows of a thing that is no table: a title and its facts."""
    from html import escape

    table = Table(["", ""], [[name, text] for name, text in facts.items() if text])
    body = table.to_html().partition("<tbody>")[2]
    return f"<div><p>{escape(title)}</p>\n<table>\n<tbody>{body}</div>"
