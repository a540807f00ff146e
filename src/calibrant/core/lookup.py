"""What goes by a name: one way to look it up, and one sentence where there is nothing by it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import TypeVar

from calibrant.core.errors import UnknownMethodError

T = TypeVar("T")


def named(table: Mapping[str, T], name: str, what: str) -> T:
    """Return the entry of `table` that goes by `name`.

    Args:
        table: entries by name.
        name: the name.
        what: what they are, in one word or two, such as ``"metric"``.

    Raises:
        UnknownMethodError: there is none; the message has the nearest name and all names.
    """
    if name not in table:
        raise unknown(table, name, what)
    return table[name]


def unknown(names: Iterable[str], name: str, what: str) -> UnknownMethodError:
    """Return the error about a name that there isn't; see `named`."""
    known = list(names)
    spelt = {other.lower().replace("_", "-"): other for other in known}
    close = get_close_matches(name.lower().replace("_", "-"), spelt, n=1)
    hint = f" did you mean '{spelt[close[0]]}'?" if close else ""
    return UnknownMethodError(f"no {what} is called '{name}';{hint} there are: {', '.join(known)}")
