"""What callers hand over: arguments with limits, settings as ``key=value``, names of entries.

Each is checked in one way, and refused in one sentence.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from difflib import get_close_matches
from math import inf, isfinite
from numbers import Integral, Real
from typing import Any, TypeVar, cast

from calibrant.core.errors import InputError, UnknownMethodError

T = TypeVar("T")

_LIMITS = "limits"
# What JSON, YAML and shells call them; Python's own spellings are literals already.
_WORDS: dict[str, Any] = {"true": True, "false": False, "none": None, "null": None}
_OF_TYPE = {bool: "true or false", int: "a whole number", float: "a number"}


@dataclass(frozen=True)
class _Limits:
    truth: bool
    whole: bool
    at_least: float
    above: float
    at_most: float
    below: float
    choices: tuple[str, ...] = ()
    optional: bool = False

    def expectation(self) -> str:
        if self.truth:
            return "True or False"
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        bounds = (
            ("of at least", self.at_least),
            ("above", self.above),
            ("of at most", self.at_most),
            ("below", self.below),
        )
        words = [f"{word} {bound:g}" for word, bound in bounds if isfinite(bound)]
        kind = "a whole number" if self.whole else "a finite number"
        return " ".join([kind, " and ".join(words)]).rstrip()

    def allow(self, value: object) -> bool:
        if value is None:
            return self.optional
        if self.truth:
            return isinstance(value, bool)
        if self.choices:
            return value in self.choices
        if isinstance(value, bool) or not isinstance(value, Integral if self.whole else Real):
            return False
        number = float(cast(float, value))
        return (
            isfinite(number)
            and self.at_least <= number <= self.at_most
            and self.above < number < self.below
        )


def argument(
    default: Any = MISSING,
    *,
    whole: bool = False,
    at_least: float = -inf,
    above: float = -inf,
    at_most: float = inf,
    below: float = inf,
    choices: Sequence[str] = (),
) -> Any:
    """Return a dataclass field for a number within limits, a word out of several, or a truth value.

    A number is whole if its default is an int, or `whole` says so, and always finite. Without a
    default the argument has to be given; a default of None may be given in place of a number.
    """
    truth, whole = isinstance(default, bool), whole or isinstance(default, int)
    limits = _Limits(truth, whole, at_least, above, at_most, below, tuple(choices), default is None)
    return field(default=default, metadata={_LIMITS: limits})


# Parameters: each is a limit, as `argument` has them.
def within(
    name: str,
    value: Any,
    *,
    whole: bool = False,
    at_least: float = -inf,
    above: float = -inf,
    at_most: float = inf,
    below: float = inf,
    choices: Sequence[str] = (),
) -> Any:
    """Return a number within limits, or a known word; `InputError` as for an `argument` if not."""
    limits = _Limits(False, whole, at_least, above, at_most, below, tuple(choices))
    if not limits.allow(value):
        percent = min(at_most, below) == 1 and isinstance(value, Real) and 1 < float(value) <= 100
        hint = f"; it is a fraction: {value:g} % is {value / 100:g}" if percent else ""
        raise InputError(f"{name} must be {limits.expectation()}, not {value!r}{hint}")
    return value


def check_arguments(instance: Any) -> None:
    """Raise `InputError` for the first argument of a dataclass that is outside its limits."""
    for item in fields(instance):
        limits: _Limits | None = item.metadata.get(_LIMITS)
        if limits is None:
            continue
        value = getattr(instance, item.name, None)
        if not limits.allow(value):
            raise InputError(f"{item.name} must be {limits.expectation()}, not {value!r}")


def parse_settings(
    texts: Iterable[str], defaults: Mapping[str, Any] | None = None, owner: str = ""
) -> dict[str, Any]:
    """Return settings as values.

    A value is a Python literal, true, false, none or null in any case, or else text. A sequence is
    a literal, such as ``["a", "b"]``, or words between commas, such as ``a,b``. With `defaults`, a
    value has the type of the default: what is text stays text, unless it is a literal sequence.

    Args:
        texts: of the form ``key=value``; a later one replaces an earlier one.
        defaults: what there is to set, with the value that each has otherwise; None: anything.
        owner: whose settings they are, for errors, such as ``"method 'smart'"``.

    Raises:
        InputError: a text of another form; with `defaults`, also an unknown key, or a value of
            another type.
    """
    found: dict[str, Any] = {}
    for key, text in _split(texts):
        if defaults is None:
            found[key] = _value(text)
        elif key not in defaults:
            known = ", ".join(defaults) or "none"
            raise InputError(f"{owner} has no argument '{key}'; it has: {known}")
        else:
            try:
                found[key] = _like(text, defaults[key])
            except ValueError:
                wanted = _OF_TYPE[type(defaults[key])]
                raise InputError(
                    f"argument '{key}' of {owner} must be {wanted}, not '{text}'"
                ) from None
    return found


def _split(texts: Iterable[str]) -> Iterator[tuple[str, str]]:
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip().isidentifier():
            raise InputError(f"'{text}' is not of the form key=value")
        yield key.strip(), value.strip()


def _value(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return [_value(part.strip()) for part in text.split(",")] if "," in text else text


def _like(text: str, default: Any) -> Any:
    """Return a value of the default's type; `ValueError` if the text can't be one."""
    if isinstance(default, bool):  # bool("false") is True
        if text.lower() not in ("true", "false"):
            raise ValueError(text)
        return _WORDS[text.lower()]
    if isinstance(default, (int, float)):
        return type(default)(text)
    value = _value(text)
    if isinstance(default, str):
        return value if text[:1] in "[(" and not isinstance(value, str) else text
    return value


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
