"""Numbers that come out of one computation, each a metric of its own, computed once together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Part(Generic[T]):
    """A function that returns one of the numbers of another.

    Attributes:
        whole: returns an object that holds all of them.
        name: the attribute to return. A whole whose attributes are cached properties computes none
            that isn't asked for.
    """

    whole: Callable[..., Any]
    name: str

    def __call__(self, *arguments: Any) -> T:
        """Return the part; the arguments are those of the whole."""
        return getattr(self.whole(*arguments), self.name)


def each_once(functions: Mapping[str, Callable[..., T]], *arguments: Any) -> dict[str, T]:
    """Return what each function makes of the arguments, by name; a whole is called but once.

    Args:
        functions: by name; any of them may be a `Part`.
        arguments: of all of them.
    """
    wholes: dict[Callable[..., Any], Any] = {}
    found: dict[str, T] = {}
    for name, function in functions.items():
        if not isinstance(function, Part):
            found[name] = function(*arguments)
            continue
        if function.whole not in wholes:
            wholes[function.whole] = function.whole(*arguments)
        found[name] = getattr(wholes[function.whole], function.name)
    return found
