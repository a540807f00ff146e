"""docs/appendix/kinds-of-predictions.md runs from top to bottom, its Python and its commands."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest
from test_docstrings import _run
from typer.testing import CliRunner

from calibrant.cli.app import app

PAGE = Path(__file__).parents[1] / "docs/appendix/kinds-of-predictions.md"
BLOCKS = re.findall(r"```(python|sh)\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.S)


def test_the_page_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    assert {language for language, _ in BLOCKS} == {"python", "sh"}
    for language, block in BLOCKS:
        if language == "python":
            _run(block, names)
            for node in ast.parse(block).body:
                # A line that only compares says what is true.
                if isinstance(node, ast.Expr) and isinstance(node.value, ast.Compare | ast.BoolOp):
                    assert eval(ast.unparse(node.value), names), ast.unparse(node)
        else:
            for line in block.strip().splitlines():
                program, *words = shlex.split(line, comments=True)
                assert program == "calibrant"
                outcome = CliRunner().invoke(app, words)
                assert outcome.exit_code == 0, (line, outcome.output, outcome.exception)
