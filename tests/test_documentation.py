"""The site builds without a warning and without the network, and its pages are short."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
MOST_WORDS = 1_200
# What a browser would fetch by itself from somewhere else.
FETCHED = re.compile(
    r"<(?:script|img|iframe|source)[^>]*\ssrc=\"(?:https?:)?//[^\"]*"
    r"|<link[^>]*\shref=\"(?:https?:)?//[^\"]*|@import[^;]*https?://[^;]*|url\([\"']?https?://[^)]*"
)


def pages() -> list[Path]:
    """Return the pages that a reader is expected to read whole."""
    found = [*DOCS.rglob("*.md")]
    elsewhere = {"appendix", "_build", "made"}
    return [page for page in found if not elsewhere & {*page.relative_to(ROOT).parts}]


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_short(page: Path) -> None:
    assert len(page.read_text(encoding="utf-8").split()) <= MOST_WORDS


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sphinx")
    pytest.importorskip("furo")
    out = tmp_path_factory.mktemp("site")
    strict = ("--fail-on-warning", "--keep-going", "--nitpicky")
    command = [sys.executable, "-m", "sphinx", "--quiet", *strict, str(DOCS), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return out


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    files = [*site.rglob("*.html"), *site.rglob("*.css")]
    assert len(files) > 20
    fetched = {str(file): FETCHED.findall(file.read_text(encoding="utf-8")) for file in files}
    assert {file: found for file, found in fetched.items() if found} == {}


def test_the_site_has_a_list_for_language_models(site: Path) -> None:
    text = (site / "llms.txt").read_text(encoding="utf-8")
    links = re.findall(r"\]\((.+?)\): ", text)
    assert len(links) > 20
    assert [link for link in links if not (site / link).is_file()] == []
