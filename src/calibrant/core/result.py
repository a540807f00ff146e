"""What every result can do: say what was found, and go into notebooks, papers, frames and pages.

Its `Table` is written for whoever reads it: a terminal, a paper, a wiki or a program.
"""

from __future__ import annotations

import csv
import io
import re
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant.core.errors import InputError, MissingDependencyError
from calibrant.core.text import format_table, wrap

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame  # pyright: ignore[reportMissingTypeStubs]


# What LaTeX takes for commands, and what stands for them.
_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    # In LaTeX's own encoding of fonts these two are other signs.
    "<": r"\textless{}",
    ">": r"\textgreater{}",
}
# The sign of a number, which as a hyphen would be half as long.
_MINUS = re.compile(r"(?<![\w.)\]])-(?=\.?\d)")


@dataclass(frozen=True)
class Table:
    """Cells of text under headings; the first columns name the rows.

    Without headings it is its notes alone.

    Attributes:
        head: headings.
        rows: cells, as many in each row as there are headings.
        bold: (row, column) of the cells that stand out, as the best of a column.
        notes: what marks and columns mean, a sentence or more.
        labels: how many columns name the rows.
        marks: signs that some numbers of a column end in, by its place.

    Examples:
        >>> from calibrant.core.result import Table
        >>> table = Table(["method", "ECE"], [["none", "6.1"], ["smart", "0.9"]], {(1, 1)})
        >>> print(table.to_markdown())
        | method | ECE |
        | --- | --: |
        | none | 6.1 |
        | smart | **0.9** |
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    bold: frozenset[tuple[int, int]] | set[tuple[int, int]] = frozenset()
    notes: str = ""
    labels: int = 1
    marks: Mapping[int, str] = field(default_factory=dict[int, str])

    def to_text(self) -> str:
        """Return the table for a terminal; what stands out in others doesn't here."""
        return format_table(self.head, self.rows, self.labels, self.marks) if self.head else ""

    def to_markdown(self) -> str:
        """Return the table in Markdown, and the notes below it."""
        if not self.head:
            return self.notes
        bars = ["---"] * self.labels + ["--:"] * (len(self.head) - self.labels)
        cells, head = self._cells(_cell, "**{}**"), [_cell(text) for text in self.head]
        lines = ["| " + " | ".join(line) + " |" for line in (head, bars, *cells)]
        return "\n".join([*lines, *(["", without_tags(self.notes)] if self.notes else [])])

    def to_latex(self) -> str:
        """Return a LaTeX tabular of the package booktabs, the notes as a comment above it."""
        form = "l" * self.labels + "r" * (len(self.head) - self.labels)
        comment = [f"% {line}".rstrip() for line in self.notes.splitlines()]
        if not self.head:
            return "\n".join(comment)
        cells = self._cells(_escaped, r"\textbf{{{}}}")
        head = [_escaped(text) for text in self.head]
        lines = [" & ".join(line) + r" \\" for line in (head, *cells)]
        return "\n".join(
            [
                *comment,
                rf"\begin{{tabular}}{{{form}}}",
                r"\toprule",
                lines[0],
                r"\midrule",
                # Behind \\ a bracket or a star would be its argument.
                *(f"{{}}{line}" if line[:1] in ("[", "*") else line for line in lines[1:]),
                r"\bottomrule",
                r"\end{tabular}",
            ]
        )

    def to_html(self) -> str:
        """Return an HTML table, without notes or styles but for the alignment."""
        if not self.head:
            return ""
        from html import escape

        cells = self._cells(escape, "<b>{}</b>")
        right = ' style="text-align: right"'

        def line(texts: Sequence[str], tag: str) -> str:
            parts = [
                f"<{tag}{right if i >= self.labels else ''}>{t}</{tag}>"
                for i, t in enumerate(texts)
            ]
            return f"<tr>{''.join(parts)}</tr>"

        head = line([escape(text) for text in self.head], "th")
        body = "\n".join(line(row, "td") for row in cells)
        return f"<table>\n<thead>{head}</thead>\n<tbody>\n{body}\n</tbody>\n</table>"

    def to_csv(self) -> str:
        """Return the table as CSV, without notes."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.head, *self.rows])
        return text.getvalue().rstrip("\n")

    def written_for(self, path: str | Path) -> str:
        """Return the text of a file whose name ends in .tex, .md or .csv.

        Raises:
            InputError: it ends otherwise.
        """
        forms = {".tex": self.to_latex, ".md": self.to_markdown, ".csv": self.to_csv}
        form = forms.get(Path(path).suffix.lower())
        if form is None:
            raise InputError(
                f"{path}: tables are written as {', '.join(forms)}; give it one of these endings"
            )
        return form() + "\n"

    def _cells(self, escaped: Callable[[str], str], emphasis: str) -> list[list[str]]:
        return [
            [
                emphasis.format(escaped(text)) if (i, j) in self.bold else escaped(text)
                for j, text in enumerate(row)
            ]
            for i, row in enumerate(self.rows)
        ]


def without_tags(text: str) -> str:
    """Return text in which Markdown shows tags, as names of files may hold them, as they are."""
    return re.sub(r"<(?=[A-Za-z/!?])", r"\<", text)


def _cell(text: str) -> str:
    return without_tags(text).replace("|", r"\|")


def _escaped(text: str) -> str:
    escaped = "".join(_LATEX.get(letter, letter) for letter in text)
    return _MINUS.sub("$-$", escaped.replace(" +- ", r" $\pm$ "))


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
