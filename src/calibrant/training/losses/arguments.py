"""Checks of a loss's arguments: one sentence for what is out of range."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite
from numbers import Integral, Real
from typing import TypeVar

from calibrant.core.errors import InputError

Word = TypeVar("Word", bound=str)


def number(
    name: str,
    value: float,
    *,
    at_least: float = -inf,
    above: float = -inf,
    at_most: float = inf,
) -> float:
    """Return `value` as a float.

    Raises:
        InputError: it isn't a finite number within the limits.
    """
    bounds = ((" of at least", at_least), (" above", above), (" of at most", at_most))
    wanted = "a finite number" + " and".join(f"{w} {b:g}" for w, b in bounds if isfinite(b))
    if isinstance(value, bool) or not isinstance(value, Real) or not isfinite(value):
        raise InputError(f"{name} must be {wanted}, not {value!r}")
    if not (at_least <= value <= at_most and value > above):
        raise InputError(f"{name} must be {wanted}, not {value!r}")
    return float(value)


def whole(name: str, value: int, *, at_least: int) -> int:
    """Return `value` as an int.

    Raises:
        InputError: it isn't a whole number of at least `at_least`.
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or value < at_least:
        raise InputError(f"{name} must be a whole number of at least {at_least}, not {value!r}")
    return int(value)


def choice(name: str, value: Word, options: Sequence[str]) -> Word:
    """Return `value`.

    Raises:
        InputError: it is none of `options`.
    """
    if value not in options:
        raise InputError(f"{name} must be one of {', '.join(options)}, not {value!r}")
    return value
