"""One table, written for whoever reads it: a terminal, a paper, a wiki or a program."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from calibrant.core.errors import InputError
from calibrant.core.text import format_table

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

    Examples:
        >>> from calibrant.core.tables import Table
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

    def to_text(self) -> str:
        """Return the table for a terminal; what stands out in others doesn't here."""
        return format_table(self.head, self.rows, self.labels) if self.head else ""

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
            raise InputError(f"{path}: tables are written as {', '.join(forms)}; name it so")
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
