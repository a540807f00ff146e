"""Public names of a package that are imported when they are first used (PEP 562).

They are listed once, in the stub ``__init__.pyi`` beside the package's ``__init__.py``, which type
checkers and editors read as well.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any


def public_face(
    package: str,
    init_file: str,
    apart: tuple[str, ...] = (),
    renamed: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package.

    A name that isn't the package's, but that of a public package within it, is refused with a
    sentence that says where it is; a former one with what it is called now.

    Args:
        package: its name.
        init_file: path of its ``__init__.py``; the stub lies beside it.
        apart: names that need libraries which may not be installed, and that ``import *`` leaves
            out.
        renamed: former names, each with what took its place.
    """
    stub = Path(init_file).with_suffix(".pyi")

    def find(name: str) -> Any:
        if name.startswith("__") and name not in ("__all__", "__version__"):
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        homes = stub_names(stub)
        if name == "__all__":
            return sorted(set(homes) - set(apart))
        if name not in homes:
            places = "".join(f"; it is {place}.{name}" for place in _packages_of(name, stub, homes))
            if name in renamed:
                places = f"; it is now {renamed[name]}"
            raise AttributeError(f"module '{package}' has no attribute '{name}'{places}")
        module, original = homes[name]
        if module == package:  # a package that is public as a whole
            return import_module(f"{package}.{original}")
        found = import_module(module)
        if hasattr(found, original):
            value = getattr(found, original)
        else:
            value = import_module(f"{module}.{original}")
        setattr(sys.modules[package], name, value)
        return value

    return find, lambda: list(stub_names(stub))


def _packages_of(name: str, stub: Path, homes: Mapping[str, tuple[str, str]]) -> list[str]:
    """Return the public packages within a package that have a name; nothing is imported for it."""
    found: list[str] = []
    for public, (module, original) in homes.items():
        inner = stub.parent / original / stub.name
        if public == original and inner.exists() and name in stub_names(inner):
            found.append(f"{module}.{public}")
    return found


@cache
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
