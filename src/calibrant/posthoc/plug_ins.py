"""Methods of other packages, found by the entry point group ``calibrant.methods``."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, cast

from calibrant.core import plug_ins
from calibrant.posthoc.base import Calibrator

GROUP = "calibrant.methods"


def plugged_in(taken: tuple[str, ...]) -> Mapping[str, type[Calibrator]]:
    """Return the methods of all plug-ins by name, loading them on the first call.

    Args:
        taken: names that plug-ins can't have.

    Warns:
        PlugInWarning: one that was left out, and why.
    """
    return plug_ins.plugged_in(GROUP, "method", _method, taken)


def _method(name: str, kind: Any) -> type[Calibrator]:
    """Return the calibrator that an entry point names, or raise for the reason why it is none."""
    if not (inspect.isclass(kind) and issubclass(kind, Calibrator)):
        raise TypeError("it is not a class derived from calibrant.Calibrator")
    if inspect.isabstract(kind):
        missing = ", ".join(sorted(cast(Any, kind).__abstractmethods__))
        raise TypeError(f"{kind.__name__} lacks {missing}")
    for attribute in ("method", "keeps_prediction"):
        if not hasattr(kind, attribute):
            raise TypeError(f"{kind.__name__} has no class attribute '{attribute}'")
    if kind.method != name:
        raise ValueError(f"its class calls itself '{kind.method}'; the two names must be the same")
    kind()  # its arguments must have defaults
    return kind
