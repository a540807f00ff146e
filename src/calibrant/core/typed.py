"""Values of JSON as fields of known types have them: of another type none passes for them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

Reader = Callable[[Any], Any]


class OtherTypeError(ValueError):
    """A value that a field of its type can't have."""


def typed(hint: Any, value: Any, name: str) -> Any:
    """Return a value of JSON as something of a type.

    Args:
        hint: the type: a plain one, a union of one with None, a literal; lists, tuples and mappings
            from text; a dataclass, from an object with its fields, or a named tuple, from a list.
        value: what JSON holds.
        name: begins the error message.

    Raises:
        ValueError: it is of another type, or a number isn't finite.

    Examples:
        >>> from calibrant.core.typed import typed
        >>> typed(tuple[float, ...], [1, 2.5], "ends")
        (1.0, 2.5)
        >>> typed(int | None, True, "rows")
        Traceback (most recent call last):
        ...
        calibrant.core.typed.OtherTypeError: rows can't be True
    """
    try:
        return _reader(hint)(value)
    except OtherTypeError as error:
        raise OtherTypeError(f"{name} can't be {error}") from None


def _refused(value: Any) -> OtherTypeError:
    return OtherTypeError(f"{value!r:.40}")


@cache
def _reader(hint: Any) -> Reader:
    """Return what makes something of a type."""
    kind, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return lambda value: value
    if kind in (Union, UnionType):
        (only,) = (_reader(each) for each in inner if each is not NoneType)
        return lambda value: None if value is None else only(value)
    if kind is Literal:
        return lambda value: _checked(value, type(value) is str and value in inner)
    if is_dataclass(hint):
        return _of_dataclass(hint)
    if kind is dict:
        of_each = _reader(inner[1])
        return lambda value: {name: of_each(own) for name, own in _as(dict, value).items()}
    if kind is list or (kind is tuple and inner[-1] is Ellipsis):
        each, made = _reader(inner[0]), cast(Any, kind)
        return lambda value: made(map(each, _as(list, value)))
    if kind is tuple:
        return _of_parts(tuple, inner)
    names: tuple[str, ...] | None = getattr(hint, "_fields", None)
    if names is not None:
        hints = get_type_hints(hint)
        return _of_parts(hint._make, [hints[name] for name in names])
    if hint is float:
        return _number
    return lambda value: _checked(value, type(value) is hint)


def _checked(value: Any, holds: bool) -> Any:
    if not holds:
        raise _refused(value)
    return value


def _as(kind: type, value: Any) -> Any:
    return _checked(value, type(value) is kind)


def _number(value: Any) -> float:
    # A whole number beyond the largest float has no place among floats.
    holds = type(value) in (int, float) and -sys.float_info.max <= value <= sys.float_info.max
    return float(_checked(value, holds))


def _of_parts(make: Callable[[list[Any]], Any], hints: Any) -> Reader:
    readers = [_reader(each) for each in hints]

    def read(value: Any) -> Any:
        if type(value) is not list or len(cast(Any, value)) != len(readers):
            raise _refused(value)
        return make([of(each) for of, each in zip(readers, cast(Any, value), strict=True)])

    return read


def _of_dataclass(kind: Any) -> Reader:
    hints, own = get_type_hints(kind), [each for each in fields(kind) if each.init]
    readers = {each.name: _reader(hints[each.name]) for each in own}
    needed = {e.name for e in own if e.default is MISSING and e.default_factory is MISSING}

    def read(value: Any) -> Any:
        if not needed <= _as(dict, value).keys() <= readers.keys():
            raise OtherTypeError(f"of the fields {', '.join(value) or 'none'}"[:80])
        return kind(**{name: readers[name](each) for name, each in value.items()})

    return read
