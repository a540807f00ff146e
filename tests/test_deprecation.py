"""What goes is announced two minor versions before, to the line that uses it, and does go then."""

from __future__ import annotations

import ast
import warnings
from pathlib import Path

import pytest

import calibrant as cb
from calibrant.core.errors import deprecated, heard_warnings, removal_of

ROOT = Path(__file__).parents[1]
SOURCES = [ROOT / "src/calibrant", ROOT / "packages/calibrant-studies/src/calibrant_studies"]


def number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def announced(tree: ast.AST) -> list[tuple[int, str]]:
    """Return line and first version of every call of `deprecated`."""
    return [
        (node.lineno, ast.literal_eval(keyword.value))
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("deprecated")
        for keyword in node.keywords
        if keyword.arg == "since"
    ]


def overdue(tree: ast.AST, version: str) -> list[int]:
    return [
        line for line, since in announced(tree) if number(removal_of(since)) <= number(version)[:2]
    ]


def test_the_warning_says_when_it_goes_and_what_to_write_and_names_the_callers_line():
    with pytest.warns(cb.CalibrantDeprecationWarning) as found:
        deprecated("cb.old", since="0.3", instead="cb.new")
    assert str(found[0].message) == (
        "cb.old is deprecated since 0.3 and goes in 0.5; write cb.new instead"
    )
    assert found[0].filename == __file__


def test_the_line_is_that_of_the_caller_however_deep_the_package_finds_it():
    inside = {"__name__": "calibrant.somewhere", "deprecated": deprecated}
    exec("def old():\n    deprecated('old', since='0.3', instead='new')", inside)
    exec("def outer():\n    old()", inside)
    with pytest.warns(cb.CalibrantDeprecationWarning) as found:
        inside["outer"]()
    assert found[0].filename == __file__


def test_it_is_shown_by_default_and_never_kept_among_the_warnings_of_a_fit():
    with warnings.catch_warnings(record=True) as found, heard_warnings() as heard:
        warnings.resetwarnings()
        warnings.simplefilter("default", FutureWarning)
        deprecated("cb.old", since="0.3", instead="cb.new")
    assert len(found) == 1
    assert heard == []


@pytest.mark.parametrize(
    ("since", "goes"), [("0.2", "0.4"), ("0.9.1", "0.11"), ("1.0", "2.0"), ("1.7", "2.0")]
)
def test_a_name_goes_two_minor_versions_later_and_after_1_0_with_a_major_one(since, goes):
    assert removal_of(since) == goes


def test_what_is_overdue_is_found():
    tree = ast.parse("def old():\n    deprecated('old', since='0.3', instead='new')")
    assert overdue(tree, "0.4.9") == []
    assert overdue(tree, "0.5.0") == [2]


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_nothing_deprecated_is_overdue(source):
    texts = {file: file.read_text(encoding="utf-8") for file in source.rglob("*.py")}
    assert len(texts) > 30
    calling = {file: ast.parse(text) for file, text in texts.items() if "deprecated(" in text}
    found = {file.name: overdue(tree, cb.__version__) for file, tree in calling.items()}
    assert {name: lines for name, lines in found.items() if lines} == {}
