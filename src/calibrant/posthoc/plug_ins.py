"""Methods of other packages, found by the entry point group ``calibrant.methods``.

A package that has in its ``pyproject.toml``

    [project.entry-points."calibrant.methods"]
    my-method = "my_package:MyMethod"

adds ``my-method`` to the command line, to comparisons and to what can be loaded. What doesn't work
is left out with a warning, and never takes the others down.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Collection, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast

from calibrant.core.errors import PlugInWarning
from calibrant.posthoc.base import Calibrator

GROUP = "calibrant.methods"


@cache
def plugged_in(taken: tuple[str, ...]) -> Mapping[str, type[Calibrator]]:
    """Return the methods of all plug-ins by name, loading them on the first call.

    Args:
        taken: names that plug-ins can't have.

    Warns:
        PlugInWarning: one that was left out, and why.
    """
    found: dict[str, type[Calibrator]] = {}
    points = sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value))
    for point in points:
        try:
            found[point.name] = _method(point, [*taken, *found])
        # Somebody else's code may fail in any way, and must not stop ours.
        except Exception as reason:
            origin = f" of package '{point.dist.name}'" if point.dist else ""
            text = str(reason).partition("\n")[0] or type(reason).__name__
            message = f"left out plug-in '{point.name}'{origin} ({point.value}): {text}"
            warnings.warn(PlugInWarning(message), stacklevel=2)
    return found


def _method(point: EntryPoint, taken: Collection[str]) -> type[Calibrator]:
    """Return the calibrator that an entry point names, or raise for the reason why it is none."""
    if point.name in taken:
        raise ValueError(f"another method is called '{point.name}' already")
    kind: Any = point.load()
    if not (inspect.isclass(kind) and issubclass(kind, Calibrator)):
        raise TypeError("it is not a class derived from calibrant.Calibrator")
    if inspect.isabstract(kind):
        missing = ", ".join(sorted(cast(Any, kind).__abstractmethods__))
        raise TypeError(f"{kind.__name__} lacks {missing}")
    for attribute in ("method", "keeps_prediction"):
        if not hasattr(kind, attribute):
            raise TypeError(f"{kind.__name__} has no class attribute '{attribute}'")
    if kind.method != point.name:
        raise ValueError(f"its class calls itself '{kind.method}'; the two names must be the same")
    kind()  # its arguments must have defaults
    return kind
