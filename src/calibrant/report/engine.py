"""What all pages are made of: templates, tables, and one file that loads nothing.

A page is a template that extends ``base.html.jinja``. Templates see `grouped` and
`table`, and find the macros in ``macros.html.jinja``. Charts are in `calibrant.report.charts`, and
what they are put together from in `calibrant.report.charts`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from calibrant._version import __version__
from calibrant.core.result import Table
from calibrant.core.text import strict_json
from calibrant.files import StrPath, replacing

OWN_PACKAGE = "calibrant.report"


@dataclass(frozen=True)
class Cell:
    """A cell of a page's table.

    Attributes:
        text: what is read; small: lines below it in small print.
        bold: whether it stands out.
        csv: what a copy of the table as CSV holds instead of the text; several values are several
            columns, none leave it out.
        signs: marks behind the text, each with what it means.
        marks: words below the text, such as a finding.
        picture: an SVG element, or other HTML, in the place of the text. kind: class of its column.
    """

    text: str = ""
    small: Sequence[str] = ()
    bold: bool = False
    csv: Sequence[Any] | None = None
    signs: Sequence[tuple[str, str]] = ()
    marks: str = ""
    picture: str = ""
    kind: str = ""

    def html(self, tag: str, attributes: str = "") -> str:
        """Return the element."""
        signs = "".join(
            f' <span title="{escape(title)}">{sign}</span>' for sign, title in self.signs
        )
        text = f"{escape(self.text)}{signs}"
        text = f"<b>{text}</b>" if self.bold else text
        small = "".join(f"<small>{escape(line)}</small>" for line in self.small if line)
        marks = f' <span class="marks"><b>{escape(self.marks)}</b></span>' if self.marks else ""
        if self.csv is not None:
            attributes += f' data-csv="{escape(json.dumps(list(self.csv)))}"'
        return f"<{tag}{attributes}>{self.picture}{text}{marks}{small}</{tag}>"


@dataclass(frozen=True)
class PageTable:
    """A table of a page.

    Attributes:
        label: what it is of, for those who hear the page.
        head: the headings.
        rows: as many cells each; the first `labels` of them name the row.
        labels: how many columns name the rows; the next `words` hold words, the others numbers.
        id: of the element, for scripts. tall: whether it scrolls by itself. kind: its class.
    """

    label: str
    head: Sequence[Cell | str]
    rows: Sequence[Sequence[Cell | str]]
    labels: int = 1
    words: Sequence[int] = ()
    id: str = ""
    tall: bool = False
    kind: str = ""

    @classmethod
    def of(cls, table: Table, label: str) -> PageTable:
        """Return a table of text as one of a page."""
        rows = [
            [Cell(text, bold=(i, j) in table.bold) for j, text in enumerate(row)]
            for i, row in enumerate(table.rows)
        ]
        return cls(label, table.head, rows, table.labels)

    def html(self) -> str:
        """Return the element, within one that scrolls where it is too wide.

        That one is a group, not a region: a page may have many tables of one name, and each region
        is a landmark, whose name has to be its own.
        """
        name = f' id="{escape(self.id)}"' if self.id else ""
        name += f' class="{self.kind}"' if self.kind else ""
        head = "".join(
            _cell(cell).html("th", f' scope="col"{self._class(j, cell)}')
            for j, cell in enumerate(self.head)
        )
        body = "\n".join(f"<tr>{self._row(row)}</tr>" for row in self.rows)
        tall = " tall" if self.tall else ""
        return (
            f'<div class="scroll{tall}" tabindex="0" role="group" '
            f'aria-label="{escape(self.label)}">'
            f"<table{name}>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>"
        )

    def _class(self, column: int, cell: Cell | str) -> str:
        kind = _cell(cell).kind
        if not kind and (column < self.labels or column in self.words):
            return ""
        return f' class="{kind or "number"}"'

    def _row(self, row: Sequence[Cell | str]) -> str:
        return "".join(
            _cell(cell).html("th", ' scope="row"')
            if j < self.labels
            else _cell(cell).html("td", self._class(j, cell))
            for j, cell in enumerate(row)
        )


def _cell(cell: Cell | str) -> Cell:
    return Cell(cell) if isinstance(cell, str) else cell


def render_page(template: str, package: str = OWN_PACKAGE, **content: Any) -> str:
    """Return a page.

    Args:
        template: name of a file in the folder ``page`` of a package.
        package: whose folder is looked into before that of this room.
        content: what the template reads.
    """
    from jinja2 import Environment, FunctionLoader, StrictUndefined
    from markupsafe import Markup

    def load(name: str) -> str:
        own = files(package).joinpath("page", name)
        return own.read_text(encoding="utf-8") if own.is_file() else resource(name)

    environment = Environment(
        loader=FunctionLoader(load),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )

    def table(shown: PageTable) -> Markup:
        return Markup(shown.html())

    def text_of(name: str) -> Markup:
        return Markup(load(name))

    def embedded(document: Any) -> Markup:
        return Markup(embedded_json(document))

    names: dict[str, Any] = {
        "version": __version__,
        "css": Markup(resource("page.css")),
        "resource": text_of,
        "embedded": embedded,
        "table": table,
        "grouped": grouped,
    }
    return environment.get_template(template, globals=names).render(**content)


def write_page(path: StrPath, html: str) -> None:
    """Write the page, whole or not at all.

    Raises:
        InputError: the folder doesn't exist, or `path` is no regular file.
    """
    with replacing(path) as temporary:
        Path(temporary).write_text(html, encoding="utf-8", errors="backslashreplace")


def embedded_json(document: Any) -> str:
    """Return JSON that may stand inside a script element, whatever its texts hold."""
    text = strict_json(document, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def grouped(value: Any) -> str:
    """Return a whole number with thin spaces between thousands."""
    return f"{value:,}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def typeset(text: str) -> str:
    """Return a text as a page sets it: narrow spaces before %, minus signs, curved apostrophes."""
    text = re.sub(r"(?<!\w)-(?=\d)", "\N{MINUS SIGN}", text)
    return text.replace(" %", "\N{NARROW NO-BREAK SPACE}%").replace(
        "'", "\N{RIGHT SINGLE QUOTATION MARK}"
    )


def resource(name: str) -> str:
    """Return the text of a file that pages are made of."""
    return files(OWN_PACKAGE).joinpath("page", name).read_text(encoding="utf-8")
