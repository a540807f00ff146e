"""Kinds of cells, each in a module of its own: ``calibration_size.py`` has `calibration-size`."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module

from calibrant.core.arguments import unknown
from calibrant_studies.kinds.base import Kind

_HELPERS = ("base",)


@cache
def kind_names() -> list[str]:
    """Return the names of all kinds."""
    modules = [module.name for module in pkgutil.iter_modules(__path__)]
    return [name.replace("_", "-") for name in modules if name not in _HELPERS]


def kind_named(name: str) -> Kind:
    """Return a kind.

    Raises:
        UnknownMethodError: there is none of that name.
    """
    if name not in kind_names():
        raise unknown(kind_names(), name, "kind of cell")
    module = import_module(f"{__name__}.{name.replace('-', '_')}")
    kind: Kind = module.KIND
    return kind
