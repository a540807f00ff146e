"""A user's script is typed: the strict mode of mypy, too, finds nothing to complain of.

That of pyright reads the script with the package, in `make types`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import calibrant

SCRIPT = Path(__file__).with_name("typed_script.py")


def test_strict_mypy_is_content_with_a_script_of_a_user(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy isn't installed")
    pytest.importorskip("matplotlib")
    words = ["-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(SCRIPT)]
    found = {"MYPYPATH": str(Path(calibrant.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | found,
    )
    assert done.stdout.startswith("Success"), done.stdout
