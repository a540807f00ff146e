"""The site builds without a warning and without the network, and its pages are short."""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from pathlib import Path

import pytest
from scripts.documentation.reference import FOLDERS, prose
from scripts.documentation.running import PageError, abridged, pages_that_run, run_page, same

from calibrant.cli.app import MODULES
from calibrant.metrics.registry import METRICS, POSITIVE_METRICS
from calibrant.posthoc.registry import METHODS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
# Of a page, with what commands print.
MOST_WORDS = 1_200
# Strokes between the columns of a table are none.
WORD = re.compile(r"(?<!\S)\S*\w\S*")
# What a browser would fetch by itself from somewhere else.
FETCHED = re.compile(
    r"<(?:script|img|iframe|source)[^>]*\ssrc=\"(?:https?:)?//[^\"]*"
    r"|<link[^>]*\shref=\"(?:https?:)?//[^\"]*|@import[^;]*https?://[^;]*|url\([\"']?https?://[^)]*"
)


def pages() -> list[Path]:
    """Return the pages that a reader is expected to read whole."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")]
    elsewhere = {"appendix", "_build", "made", *FOLDERS}
    return [page for page in found if not elsewhere & {*page.relative_to(ROOT).parts}]


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_short(page: Path) -> None:
    assert len(WORD.findall(page.read_text(encoding="utf-8"))) <= MOST_WORDS


@pytest.mark.parametrize("page", pages_that_run(), ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_prints_what_it_shows(page: Path, tmp_path: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for code in re.findall(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL):
        for package in re.findall(r"^(?:import|from) (\w+)", code, flags=re.MULTILINE):
            pytest.importorskip(package)
    found = run_page(page, tmp_path, DOCS / "made")
    differences = "\n\n".join(map(str, found.differences))
    mend = f"python -m scripts.documentation.running --write {page.relative_to(ROOT)}"
    assert not found.differences, f"{differences}\n\n{mend}"


def test_outputs_are_compared_to_the_printed_digit() -> None:
    assert same("ECE 6.12 %\nrow 7", "ECE 6.13 %\nrow 7")
    assert not same("ECE 6.12 %", "ECE 6.14 %")
    assert not same("row 7", "row 8")
    assert not same("T = 1.5", "T = 1.50")
    assert same("took 1.2 s, ...", "took 13 s, and more\nlines")
    table = "method   ECE  fit s\n-------------------\nnone    {}   {}\n\nend"
    assert same(table.format("6.12", "0.00"), table.format("6.12", "11.20"))
    assert not same(table.format("6.12", "0.00"), table.format("6.22", "0.00"))


def test_a_new_output_leaves_out_what_the_page_left_out() -> None:
    shown, printed = "$ a\n1\n...\n4\n$ b\n2\n", "$ a\n5\n6\n7\n8\n$ b\n3\n"
    assert abridged(shown, printed) == "$ a\n5\n...\n8\n$ b\n3\n"
    assert abridged("1\n...\n", "2\n3\n") == "2\n...\n"


def test_the_readme_takes_five_minutes() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_a_page_that_shows_something_else_differs(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n\nmore")
    folder = tmp_path / "run"
    folder.mkdir()
    found = run_page(page, folder)
    assert [(each.shown, each.printed) for each in found.differences] == [("3\n", "2\n")]
    assert found.text == page.read_text().replace("3", "2")
    page.write_text("```console\n$ calibrant measure missing.npz\n```\n")
    with pytest.raises(PageError, match="ended with exit code 2"):
        run_page(page, folder)
    page.write_text("![a picture](made/missing.png)")
    with pytest.raises(PageError, match="its run doesn't make it"):
        run_page(page, folder)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sphinx = pytest.importorskip("sphinx.cmd.build")
    pytest.importorskip("furo")
    out = tmp_path_factory.mktemp("site")
    # Pages make their pictures in the tests above.
    plain = "suppress_warnings=image.not_readable,misc.highlighting_failure"
    words = ["--quiet", "--fail-on-warning", "--keep-going", "--nitpicky", "-D", "whole=0"]
    complaints = io.StringIO()
    # Here, where what the reference is made of is loaded.
    with warnings.catch_warnings(), contextlib.redirect_stderr(complaints):
        warnings.simplefilter("ignore")
        code = sphinx.main([*words, "-D", plain, str(DOCS), str(out)])
    assert code == 0, complaints.getvalue()
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


def test_the_reference_has_a_page_for_each_name(site: Path) -> None:
    from calibrant.training.losses.registry import LOSSES

    names = {"methods": METHODS, "metrics": METRICS | POSITIVE_METRICS, "commands": MODULES}
    names |= {"losses": LOSSES}
    for folder, known in names.items():
        for name in known:
            text = (site / "reference" / folder / f"{name}.html").read_text(encoding="utf-8")
            assert name in text
    for page in ("posthoc", "SMART", "posthoc.Chain", "metrics.expected_calibration_error"):
        assert (site / f"reference/python/calibrant.{page}.html").is_file()
    # Commands of another package of this project, one page each.
    assert (site / "reference/commands/study-run.html").is_file()


def test_a_page_of_the_reference_is_short(site: Path) -> None:
    pages = [*(site / "_sources/reference").rglob("*.txt")]
    assert len(pages) > 200
    lengths = {page.stem: len(WORD.findall(page.read_text(encoding="utf-8"))) for page in pages}
    assert {page: n for page, n in lengths.items() if n > MOST_WORDS} == {}


def test_what_markdown_would_take_for_markup_is_shown_as_it_is() -> None:
    assert prose("a_b * [0, 1] < `x_y`") == r"a\_b \* \[0, 1\] \< `x_y`"
    assert prose("    a  b\n    1  2") == "```text\na  b\n1  2\n```"
    assert prose("- one\n  line\n- `two`") == "- one line\n- `two`"
    assert prose("see docs/appendix/scale.md") == "see [](../../appendix/scale.md)"


def test_every_loss_has_a_page_that_says_when_it_fails() -> None:
    pytest.importorskip("torch")
    from scripts.documentation.reference import loss_pages

    from calibrant.training.losses.registry import CLASSES, LOSSES

    assert all(kind.fails for kind in CLASSES)
    pages = loss_pages()
    assert set(pages) == {f"losses/{name}.md" for name in (*LOSSES, "index")}
    # By hand: (1 - .99)^3 times -log .99, and (1 - .6)^3 times -log .6, for gamma = 3.
    assert "| right, confidence 0.60 | 0.033 | 0.511 |" in pages["losses/focal.md"]
    assert "| wrong, confidence 0.60 |" in pages["losses/brier.md"]
    for name in LOSSES:
        (cost,) = re.findall(r"^\| cost \| (.*) \|$", pages[f"losses/{name}.md"], flags=re.M)
        assert len(re.findall(r"[\d.]+ \(\d+ x \d+\)", cost)) == 4
