"""From a document to one HTML file that works from a disk, without a network."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant.core.text import strict_json
from calibrant.files import StrPath, replacing

if TYPE_CHECKING:
    from calibrant.report.document import Document

SCRIPTS = ("charts.js", "tables.js", "saving.js", "view.js", "drawing.js", "page.js")


def render(document: Document, headline: str, deck: str) -> str:
    """Return the page of a document.

    Args:
        document: from `calibrant.report.document`.
        headline: the finding in one sentence.
        deck: the sentence below it.
    """
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(resource),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template = environment.get_template("page.html.jinja")
    return template.render(
        doc=document,
        grouped=grouped,
        headline=typeset(headline),
        deck=typeset(deck),
        data=embedded_json(document),
        css=resource("page.css"),
        script="\n".join(resource(name) for name in SCRIPTS),
    )


def write_page(path: StrPath, html: str) -> None:
    """Write the page, whole or not at all.

    Raises:
        InputError: the folder doesn't exist, or `path` is no regular file.
    """
    with replacing(path) as temporary:
        Path(temporary).write_text(html, encoding="utf-8", errors="backslashreplace")


def embedded_json(document: Document) -> str:
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
    return files("calibrant.report").joinpath("page", name).read_text(encoding="utf-8")
