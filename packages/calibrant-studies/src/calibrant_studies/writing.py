"""A study's result as files: Markdown, LaTeX, CSV, and a page with figures."""

from __future__ import annotations

import base64
import csv
import io
import re
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from calibrant.core.errors import InputError
from calibrant.core.result import without_tags
from calibrant_studies.figures import content, draw
from calibrant_studies.requirements import what_to_provide
from calibrant_studies.results import LEFT_OUT, tables

if TYPE_CHECKING:
    from calibrant_studies.results import StudyResult

ENDINGS = (".md", ".tex", ".csv", ".html")
# Inches of a picture that a telephone still shows whole; wider ones scroll there.
_WIDE = 6.5


def written_for(result: StudyResult, path: str | Path) -> str:
    """Return the text of a file whose name ends in .md, .tex, .csv or .html.

    Raises:
        InputError: it ends otherwise.
    """
    check_ending(path)
    forms = {".md": to_markdown, ".tex": to_latex, ".csv": to_csv, ".html": to_html}
    return forms[Path(path).suffix.lower()](result) + "\n"


def check_ending(path: str | Path) -> None:
    """Refuse a name that ends in nothing that tables are written as; see `written_for`."""
    if Path(path).suffix.lower() not in ENDINGS:
        raise InputError(f"{path}: tables are written as {', '.join(ENDINGS)}; name it so")


def read_page(path: str | Path, study: str) -> str:
    """Return the text of a page that has a place for the tables of a study; see `filled`.

    Raises:
        InputError: it can't be read, or has no such place.
    """
    try:
        page = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: can't be read: {error}") from error
    if not _places(study).search(page):
        raise InputError(
            f"{path}: has no place for this study: <!-- study {study} -->, and <!-- end --> where "
            "it ends"
        )
    return page


def filled(page: str, result: StudyResult, where: str | Path) -> str:
    """Return a page with the tables of a study in the places that it keeps for them.

    Such a place begins with ``<!-- study NAME -->``, for the first table, or with ``<!-- study
    NAME: HEADING -->``, and ends at ``<!-- end -->``.

    Args:
        page: its text.
        result: of the study.
        where: what errors begin with.

    Raises:
        InputError: it has a place for a table that the study doesn't have.
    """
    known = dict(tables(result))

    def fill(match: re.Match[str]) -> str:
        heading = match[2] or ""
        if heading not in known:
            raise InputError(
                f"{where}: has a place for '{heading}' of {result.study.name}, which has: "
                f"{', '.join(filter(None, known)) or 'no table'}"
            )
        return f"{match[1]}\n{known[heading].to_markdown()}\n\n{match[3]}"

    return _places(result.study.name).sub(fill, page)


def _places(study: str) -> re.Pattern[str]:
    mark = rf"(<!-- study {re.escape(study)}(?:: ([^\n]*?))? -->\n).*?(<!-- end -->)"
    return re.compile(mark, re.DOTALL)


def to_markdown(result: StudyResult) -> str:
    """Return all tables under headings, and what is missing."""
    parts = [f"## {without_tags(result.study.title)}"]
    for heading, table in tables(result):
        parts += [f"### {without_tags(heading)}"] if heading else []
        parts.append(table.to_markdown())
    return "\n\n".join([*parts, *map(without_tags, _left_out(result))])


def to_latex(result: StudyResult) -> str:
    """Return the tables, each a tabular of booktabs; headings and notes are comments."""
    parts = [f"% {result.study.title}"]
    for heading, table in tables(result):
        parts += [f"% {heading}"] if heading else []
        parts.append(table.to_latex())
    return "\n\n".join(parts)


def to_csv(result: StudyResult) -> str:
    """Return a line for each number, with interval, floor and what was published."""
    records, text = result.records(), io.StringIO()
    writer = csv.DictWriter(text, list(records[0]) if records else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue().rstrip("\n")


def to_html(result: StudyResult) -> str:
    """Return a page of one file: the tables and the figure."""
    from markupsafe import Markup

    from calibrant.report.engine import PageTable, render_page

    study, picture, wide = result.study, "", False
    if result.estimates:
        figure = draw(result)
        picture = base64.b64encode(content(figure, "svg")).decode()
        wide = figure.get_figwidth() > _WIDE
    shown = [
        (
            heading,
            PageTable.of(table, heading or study.title) if table.head else None,
            [Markup(_said(note)) for note in table.notes.split("\n\n") if note],
        )
        for heading, table in tables(result)
    ]
    return render_page(
        "study.html.jinja",
        "calibrant_studies",
        study=study,
        picture=picture,
        wide=wide,
        tables=shown,
        left_out=[Markup(_said(text)) for text in _left_out(result)],
    )


def _said(text: str) -> str:
    """Return a text with what stands between backticks as code, and items on lines of their own."""
    coded = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
    return re.sub(r"\n+(?=- )", "<br>\n", coded)


def _left_out(result: StudyResult) -> list[str]:
    """Return what isn't there and what failed, a text each."""
    said: list[str] = []
    if result.missing:
        said.append(f"Left out, since it wasn't there:\n\n{what_to_provide(result.missing)}")
    if result.left_out:
        said.append("\n".join([f"{LEFT_OUT}\n", *(f"- {each}" for each in result.left_out)]))
    if result.failed:
        lines = [f"- {failed.cell}: {failed.error}" for failed in result.failed]
        said.append("\n".join(["Failed:\n", *lines]))
    return said
