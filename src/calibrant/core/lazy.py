"""Public names of a package that are imported when they are first used (PEP 562).

They are listed once, in the stub ``__init__.pyi`` beside the package's ``__init__.py``, which type
checkers and editors read as well.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def public_face(
    package: str, init_file: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and the sorted public names of a package.

    Args:
        package: its name.
        init_file: path of its ``__init__.py``; the stub lies beside it.
    """
    homes = stub_names(Path(init_file).with_suffix(".pyi"))
    names = sorted(homes)

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        module, original = homes[name]
        if module == package:  # a room that is public as a whole
            return import_module(f"{package}.{original}")
        found = import_module(module)
        if hasattr(found, original):
            value = getattr(found, original)
        else:
            value = import_module(f"{module}.{original}")
        setattr(sys.modules[package], name, value)
        return value

    return find, lambda: list(names), names


def stub_names(stub: Path) -> dict[str, tuple[str, str]]:
    """Return the names that a stub gives away, each with its module and its name there.

    A stub holds a docstring and lines of the form ``from module import name as public``.
    """
    homes: dict[str, tuple[str, str]] = {}
    for line in ast.parse(stub.read_text(encoding="utf-8")).body:
        if isinstance(line, ast.ImportFrom) and line.module is not None:
            for alias in line.names:
                homes[alias.asname or alias.name] = (line.module, alias.name)
    return homes
