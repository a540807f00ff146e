"""Studies as a whole: all are listed without loading torch, and are where docs say."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from calibrant.core.errors import InputError
from calibrant_studies import command
from calibrant_studies.catalogue import names as declared
from calibrant_studies.catalogue import study_named

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src/calibrant"
STUDIES = ROOT / "packages/calibrant-studies/src/calibrant_studies"
HEAVY = ("torch", "matplotlib", "lightning", "PIL", "pyarrow")
# Lists all studies and says what that has loaded.
LIST = """
import contextlib, io, json, sys
from calibrant.cli import main
sys.argv = ["calibrant", "study", "list", "--json", "-"]
printed = io.StringIO()
with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
    main()
print(json.dumps([json.loads(printed.getvalue()), [m for m in HEAVY if m in sys.modules]]))
"""


def places_of_names() -> list[Path]:
    """Return the files that may name a study."""
    pages = [*ROOT.glob("*.md"), ROOT / "Makefile", ROOT / "pyproject.toml"]
    pages += (ROOT / "docs").rglob("*.md")
    tests = ROOT / "packages/calibrant-studies/tests"
    pages += [*(ROOT / "tests").glob("*.py"), *tests.glob("*.py"), *SOURCE.rglob("*.py")]
    return [*pages, ROOT / "packages/calibrant-studies/README.md"]


def imported_by(source: str) -> set[str]:
    """Return the modules that a file imports at any depth."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_all_studies_are_listed_without_loading_what_takes_long() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIST.replace("HEAVY", repr(HEAVY))],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    listed, heavy = json.loads(done.stdout)
    assert [each["name"] for each in listed] == declared()
    assert all(each["title"] for each in listed)
    assert heavy == []


def test_studies_are_declared_and_none_is_a_program_of_its_own() -> None:
    for place in STUDIES.rglob("*.py"):
        assert "__main__" not in place.name + place.read_text(encoding="utf-8"), place
    for place in places_of_names():
        text = place.read_text(encoding="utf-8")
        assert not re.search(r"python -m calibrant[._]studies", text) or place == Path(__file__)
        assert not re.search(r"scripts/(study|second_stage)_", text) or place == Path(__file__)


def test_the_page_of_studies_names_every_one_of_the_package() -> None:
    page = (ROOT / "docs/appendix/studies.md").read_text(encoding="utf-8")
    own = [name for name in declared() if study_named(name).paper == "Calibrant"]
    assert own
    assert [name for name in own if f"`{name}`" not in page] == []


def test_every_declared_study_that_is_named_somewhere_exists() -> None:
    named = set[str]()
    for place in places_of_names():
        text = place.read_text(encoding="utf-8")
        found = set(re.findall(r"calibrant study (?:run|show) ([a-z][a-z0-9-]+)(?![\w.-])", text))
        assert found <= {*declared()}, place
        named |= found
    assert {"calibration-size", "beyond-smart", "interval-coverage"} <= named


def test_calibrant_does_without_its_studies() -> None:
    for place in SOURCE.rglob("*.py"):
        modules = imported_by(place.read_text(encoding="utf-8"))
        assert not any(name.startswith("calibrant_studies") for name in modules), place
    assert not (SOURCE / "studies").exists()


def test_wrong_input_of_a_study_is_one_sentence(tmp_path: Path) -> None:
    missing = tmp_path / "nothing.npz"
    done = subprocess.run(
        [sys.executable, "-m", "calibrant", "study", "run", "first-steps", "--data", str(missing)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert str(missing) in done.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a = " + "[" * 5000 + "]" * 5000, "nested too deep"),
        ("seeds = [" + "9" * 5000 + "]", "is no TOML"),
        ("[small]\naxes = 3", "small: axes must be a table, not 3"),
        ("[small]\nsettings = 3", "small: settings must be a table, not 3"),
        ("[small.axes]\nmethod = 3", "small.axes.method: must be a list"),
        ("[[axes]]", "axes must be a table"),
    ],
)
def test_a_hostile_declaration_ends_in_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    whole = 'title = "a"\nkind = "posthoc"\nmetrics = ["nll"]\n'
    axes = "" if "[[axes]]" in text else '[axes]\ninput = ["sample"]\nmethod = ["none"]\n'
    first, rest = ("", text) if text.startswith("[") else (text, "")
    (tmp_path / "x.toml").write_text(f"{whole}{first}\n{axes}{rest}\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"x\.toml: .*" + words) as caught:
        study_named(str(tmp_path / "x.toml"))
    assert "\n" not in str(caught.value)


def test_what_is_no_file_is_no_declaration(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    (tmp_path / "zero.toml").symlink_to("/dev/zero")
    (tmp_path / "folder.toml").mkdir()
    for name, words in (("pipe", "a pipe"), ("zero", "a device"), ("folder", "a folder")):
        with pytest.raises(InputError, match=rf"{name}\.toml: .*{words}"):
            study_named(str(tmp_path / f"{name}.toml"))


def test_the_list_says_that_every_study_runs_in_small(capsys: pytest.CaptureFixture[str]) -> None:
    command.list_studies(command.DataOptions(), command.OutputOptions())
    assert "every study runs with --small" in " ".join(capsys.readouterr().out.split())


def test_the_small_form_says_so_and_has_no_footnotes_of_the_full_one() -> None:
    study = study_named("smart-table-1")
    assert study.footnotes
    small = study.reduced()
    assert small.title.endswith("(in small)")
    assert set(small.footnotes).isdisjoint(study.footnotes)
    assert "say nothing of the full one" in small.footnotes[0]
