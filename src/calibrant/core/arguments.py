"""Arguments of a constructor that know their own limits, so that each is checked in one way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from math import inf, isfinite
from numbers import Integral, Real
from typing import Any, cast

from calibrant.core.errors import InputError

_LIMITS = "limits"


@dataclass(frozen=True)
class _Limits:
    truth: bool
    whole: bool
    at_least: float
    above: float
    at_most: float
    below: float
    choices: tuple[str, ...]

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
    default: Any,
    *,
    at_least: float = -inf,
    above: float = -inf,
    at_most: float = inf,
    below: float = inf,
    choices: Sequence[str] = (),
) -> Any:
    """Return a dataclass field for a number within limits, a word out of several, or a truth value.

    A number is whole if its default is an int, and always finite.
    """
    truth, whole = isinstance(default, bool), isinstance(default, int)
    limits = _Limits(truth, whole, at_least, above, at_most, below, tuple(choices))
    return field(default=default, metadata={_LIMITS: limits})


def check_arguments(instance: Any) -> None:
    """Raise `InputError` for the first argument of a dataclass that is outside its limits."""
    for item in fields(instance):
        limits: _Limits | None = item.metadata.get(_LIMITS)
        value = getattr(instance, item.name, None)
        if limits is not None and not limits.allow(value):
            raise InputError(f"{item.name} must be {limits.expectation()}, not {value!r}")
