"""Settings as the command line takes them: texts of the form ``key=value``."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Any

from calibrant.core.errors import InputError

# What JSON, YAML and shells call them; Python's own spellings are literals already.
_WORDS: dict[str, Any] = {"true": True, "false": False, "none": None, "null": None}


def split_settings(texts: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield key and value of each text.

    Raises:
        InputError: a text has another form.
    """
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip().isidentifier():
            raise InputError(f"'{text}' is not of the form key=value")
        yield key.strip(), value.strip()


def parse_literals(texts: Iterable[str]) -> dict[str, Any]:
    """Return settings whose values are Python literals, true, false, none or null; or else text.

    Raises:
        InputError: a text has another form.
    """
    return {key: _literal(value) for key, value in split_settings(texts)}


def _literal(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
