"""Everything that trains with torch; `import calibrant` does not load it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_ROOMS = ("heads",)


def __getattr__(name: str) -> Any:
    """Import a part of this package when it is first used (PEP 562)."""
    if name not in _ROOMS:
        raise AttributeError(f"module 'calibrant.training' has no attribute '{name}'")
    return import_module(f"calibrant.training.{name}")
