"""Things that other packages add to this one, found by groups of entry points.

A package that has in its ``pyproject.toml``

    [project.entry-points."calibrant.methods"]
    my-method = "my_package:MyMethod"

adds ``my-method`` to the methods. A plug-in that doesn't work is left out with a warning, and never
takes the others down. Entry points are read when a group is first asked for.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, TypeVar, cast

from calibrant.core.errors import PlugInWarning
from calibrant.core.text import reason_of

T = TypeVar("T")


def plugged_in(
    group: str, what: str, check: Callable[[str, Any], T], taken: tuple[str, ...] = ()
) -> Mapping[str, T]:
    """Return the plug-ins of a group by name, loading them on the first call.

    Args:
        group: name of the group of entry points.
        what: one such thing in words, for warnings.
        check: takes a name and the object of that entry point, and returns what is kept under the
            name; raises for whatever makes it unusable.
        taken: names that plug-ins can't have.

    Warns:
        PlugInWarning: one that was left out, and why.
    """
    return cast("Mapping[str, T]", _loaded(group, what, check, taken))


@cache
def _loaded(
    group: str, what: str, check: Callable[[str, Any], object], taken: tuple[str, ...]
) -> Mapping[str, object]:
    from importlib.metadata import entry_points

    found: dict[str, object] = {}
    for point in sorted(entry_points(group=group), key=lambda point: (point.name, point.value)):
        try:
            if point.name in (*taken, *found):
                raise ValueError(f"there is already a {what} called '{point.name}'")
            found[point.name] = check(point.name, point.load())
        # Somebody else's code may fail in any way, and must not stop ours.
        except Exception as reason:
            origin = f" of package '{point.dist.name}'" if point.dist else ""
            told = f"left out plug-in '{point.name}'{origin} ({point.value})"
            message = f"{told}: {reason_of(reason)}"
            warnings.warn(PlugInWarning(message), stacklevel=3)
    return found


class WithPlugIns(Mapping[str, T]):
    """Things of this package by name, and behind them those of other packages.

    Others are looked for when a name isn't one of these, and when all are listed.

    Args:
        group: name of the group of entry points.
        what: one such thing in words, for warnings.
        own: those of this package.
        check: see `plugged_in`.
        taken: more names that plug-ins can't have.
    """

    def __init__(
        self,
        group: str,
        what: str,
        own: Mapping[str, T],
        check: Callable[[str, Any], T],
        taken: tuple[str, ...] = (),
    ) -> None:
        self.own = own
        self._asked = group, what, check, (*own, *taken)

    def __getitem__(self, name: str) -> T:
        return self.own[name] if name in self.own else plugged_in(*self._asked)[name]

    def __iter__(self) -> Iterator[str]:
        return iter([*self.own, *plugged_in(*self._asked)])

    def __len__(self) -> int:
        return len(self.own) + len(plugged_in(*self._asked))


def forget_plug_ins() -> None:
    """Look for plug-ins anew when they are next asked for; after an installation, say."""
    _loaded.cache_clear()
