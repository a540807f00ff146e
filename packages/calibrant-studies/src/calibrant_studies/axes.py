"""The values of an axis of a study, as its declaration writes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from calibrant.core.errors import InputError


@dataclass(frozen=True)
class AxisValue:
    """One value of an axis.

    Attributes:
        name: what addresses it.
        label: what tables call it.
        attributes: more words about it, by which tables may group rows and columns.
        set: settings of its cells, over those of the study.
    """

    name: str
    label: str
    attributes: Mapping[str, str] = field(default_factory=dict[str, str])
    set: Mapping[str, Any] = field(default_factory=dict[str, Any])


def axis_values(items: Any, where: str) -> tuple[AxisValue, ...]:
    """Return the values of a list; `where` begins errors."""
    if not isinstance(items, list) or not items:
        raise InputError(f"{where}: must be a list of at least one value, not {items!r}")
    values = tuple(axis_value(item, where) for item in cast(list[Any], items))
    # Values of one label would be one line of a table, which says the mean of them.
    for words in ([value.name for value in values], [value.label for value in values]):
        twice = next((word for word in words if words.count(word) > 1), None)
        if twice is not None:
            raise InputError(f"{where}: '{twice}' is there twice")
    return values


def axis_value(item: Any, where: str) -> AxisValue:
    """Return a value: a name or number, or a table with `name` and more about it."""
    if isinstance(item, str | int | float) and not isinstance(item, bool):
        return AxisValue(str(item), str(item))
    if not isinstance(item, dict) or "name" not in item:
        raise InputError(f"{where}: a value is a name, or a table with a name, not {item!r}")
    table = cast(dict[str, Any], item)
    more = {k: v for k, v in table.items() if k not in ("name", "label", "set")}
    for key, word in more.items():
        if not isinstance(word, str):
            raise InputError(f"{where}: {key} of '{table['name']}' must be text, not {word!r}")
    settings = table.get("set", {})
    if not isinstance(settings, dict):
        raise InputError(f"{where}: set of '{table['name']}' must be a table, not {settings!r}")
    name = str(table["name"])
    return AxisValue(name, str(table.get("label", name)), more, cast(dict[str, Any], settings))
