"""What the site needs of Sphinx beyond a theme: generated pages, links, and `llms.txt`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from scripts.documentation.pictures import draw_methods, draw_metrics
from scripts.documentation.reference import write_reference
from scripts.documentation.running import make_pictures, pages_that_run

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# Links of Markdown, not pictures.
LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?P<target>[^)#\s]+)(?:#[^)\s]*)?\)")


def setup(app: Any) -> dict[str, Any]:
    """Tell Sphinx what to call, and when."""
    # `-D whole=0` leaves out what takes time and isn't tried: pictures, search, and the bar at the
    # side of the reference.
    app.add_config_value("whole", True, "env", {bool, int, str})
    app.connect("builder-inited", _generate)
    app.connect("html-page-context", _leave_out_the_bar, priority=100)
    app.connect("source-read", _name_files_of_the_repository)
    app.connect("build-finished", _write_llms)
    return {"version": "1", "parallel_read_safe": True}


def _generate(app: Any) -> None:
    """Make the pages of the reference, and the pictures that pages show."""
    write_reference(DOCS / "reference")
    app.builder.search = bool(int(app.config.whole))
    if app.builder.search:
        draw_methods(DOCS / "made")
        draw_metrics(DOCS / "made")
        make_pictures(pages_that_run(), DOCS / "made")


def _leave_out_the_bar(app: Any, page: str, template: str, context: Any, tree: Any) -> None:
    if not int(app.config.whole) and page.startswith("reference/"):
        context.pop("toctree", None)  # the theme goes through all pages for each


def _name_files_of_the_repository(app: Any, page: str, source: list[str]) -> None:
    """Show a link to a file that isn't part of the site as the file's path in the repository."""
    folder = (DOCS / page).parent

    def named(link: re.Match[str]) -> str:
        if ":" in link["target"]:
            return link[0]
        path = (folder / link["target"]).resolve()
        if path.is_relative_to(DOCS) or not path.exists():
            return link[0]  # of the site, or dead: Sphinx warns of the latter
        return f"{link['text']} (`{path.relative_to(ROOT)}` in the repository)"

    source[0] = LINK.sub(named, source[0])


def _write_llms(app: Any, error: Exception | None) -> None:
    """Write `llms.txt`: every page's source with its first sentence, in the order of the site."""
    if error is not None or app.builder.name != "html":
        return
    lines = ["# Calibrant", "", f"> {_first_paragraph(app, 'index')}", ""]
    for section in app.env.toctree_includes["index"]:
        lines += [f"## {app.env.titles[section].astext()}", ""]
        lines += [_entry(app, page) for page in (section, *_pages_below(app, section))] + [""]
    Path(app.outdir, "llms.txt").write_text("\n".join(lines), encoding="utf-8")


def _pages_below(app: Any, page: str) -> list[str]:
    found = list[str]()
    for child in app.env.toctree_includes.get(page, ()):
        found += [child, *_pages_below(app, child)]
    if page == "reference/index":  # those that the bar at the side leaves out
        found += sorted(name for name in app.env.found_docs if name.startswith("reference/"))
    return list(dict.fromkeys(name for name in found if name != page))


def _entry(app: Any, page: str) -> str:
    source = f"_sources/{page}.md.txt"
    return f"- [{app.env.titles[page].astext()}]({source}): {_first_paragraph(app, page)}"


def _first_paragraph(app: Any, page: str) -> str:
    tree = app.env.get_doctree(page)
    for section in tree.findall(nodes.section):
        for paragraph in section.findall(nodes.paragraph):
            return " ".join(paragraph.astext().split())
    return ""
