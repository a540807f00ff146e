"""Settings as the command line takes them: texts of the form ``key=value``."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from calibrant.core.errors import InputError

# What JSON, YAML and shells call them; Python's own spellings are literals already.
_WORDS: dict[str, Any] = {"true": True, "false": False, "none": None, "null": None}
_OF_TYPE = {bool: "true or false", int: "a whole number", float: "a number"}


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
