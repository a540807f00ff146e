"""Studies as programs: each says what it does without loading torch, and is where docs say."""

from __future__ import annotations

import ast
import json
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

from calibrant import studies
from calibrant.studies.catalogue import names as declared

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src/calibrant"
HEAVY = ("torch", "matplotlib", "lightning", "PIL", "pyarrow")
# What helpers of studies, which are no programs, don't have.
PROGRAM_MARK = 'if __name__ == "__main__":'
# Runs each study as `python -m` does, in one process, and says what it printed and loaded.
ASK_FOR_HELP = """
import contextlib, io, json, runpy, sys
said = {}
for name in sys.argv[1].split(","):
    sys.argv = [name, "--help"]
    printed, code = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        try:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        except SystemExit as ended:
            code = ended.code
    said[name] = [code, printed.getvalue(), [m for m in HEAVY if m in sys.modules]]
print(json.dumps(said))
"""


def programs() -> list[str]:
    """Return the names under which studies are run."""
    found: list[str] = []
    for module in pkgutil.walk_packages(studies.__path__, f"{studies.__name__}."):
        path = SOURCE.joinpath(*module.name.split(".")[1:])
        source = path / "__init__.py" if module.ispkg else path.with_suffix(".py")
        if PROGRAM_MARK in source.read_text(encoding="utf-8"):
            found.append(module.name.removesuffix(".__main__"))
    return sorted(found)


def places_of_names() -> list[Path]:
    """Return the files that may name a study."""
    pages = [*ROOT.glob("*.md"), ROOT / "Makefile", ROOT / "pyproject.toml"]
    pages += (ROOT / "docs").rglob("*.md")
    pages += [*(ROOT / "tests").glob("*.py"), *SOURCE.rglob("*.py")]
    # Their own docstrings aside.
    return [page for page in pages if SOURCE / "studies" not in page.parents]


def imported_by(source: str) -> set[str]:
    """Return the modules that a file imports at any depth."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.fixture(scope="module")
def said() -> dict[str, tuple[int | None, str, list[str]]]:
    program = ASK_FOR_HELP.replace("HEAVY", repr(HEAVY))
    done = subprocess.run(
        [sys.executable, "-c", program, ",".join(programs())],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return json.loads(done.stdout)


def test_there_are_the_studies_that_the_documentation_rests_on() -> None:
    several = {"second_stages", "second_stages.seeds", "second_stages.halves"}
    assert {name.removeprefix("calibrant.studies.") for name in programs()} == several


@pytest.mark.parametrize("study", programs())
def test_every_study_says_how_it_is_run_and_what_it_does(study: str, said) -> None:
    code, text, heavy = said[study]
    assert code == 0
    # Words, because lines of the usage are broken where the terminal ends.
    words = " ".join(text.split())
    assert words.startswith(f"usage: python -m {study} [-h]")
    # The docstring begins with a sentence and shows the command.
    summary, _, rest = text.partition("\n\n")[2].partition("\n\n")
    assert summary.endswith(".")
    assert f"    python -m {study} " in rest
    assert heavy == []


def test_every_study_that_is_named_somewhere_exists() -> None:
    known, named = set(programs()), set[str]()
    for place in places_of_names():
        text = place.read_text(encoding="utf-8")
        found = set(re.findall(r"python -m (calibrant\.studies\.[a-z_.]*[a-z_])", text))
        assert found <= known, place
        named |= found
        assert not re.search(r"scripts/(study|second_stage)_", text) or place == Path(__file__)
    assert "calibrant.studies.second_stages.seeds" in named


def test_every_declared_study_that_is_named_somewhere_exists() -> None:
    named = set[str]()
    for place in places_of_names():
        text = place.read_text(encoding="utf-8")
        found = set(re.findall(r"calibrant study (?:run|show) ([a-z][a-z0-9-]+)(?![\w.-])", text))
        assert found <= {*declared()}, place
        named |= found
    assert {"calibration-size", "beyond-smart", "interval-coverage"} <= named


def test_nothing_but_the_command_line_imports_studies() -> None:
    for place in SOURCE.rglob("*.py"):
        if not {SOURCE / "studies", SOURCE / "cli"} & {*place.parents}:
            modules = imported_by(place.read_text(encoding="utf-8"))
            assert not any(name.startswith("calibrant.studies") for name in modules), place


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
