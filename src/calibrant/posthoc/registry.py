"""Every calibrator by name, and how one is made from words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from calibrant.core.errors import InputError
from calibrant.core.settings import split_settings
from calibrant.posthoc.auto import AutoCalibrator
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.methods import Methods

METHODS = Methods((AutoCalibrator,))


def calibrator_class(method: str) -> type[Calibrator]:
    """Return the class that goes by `method`, which may be a chain such as ``svs+top-rest``.

    Raises:
        UnknownMethodError: there is none; the message lists those that there are.
    """
    return METHODS.named(method)


def make_calibrator(method: str, **arguments: Any) -> Calibrator:
    """Return an unfitted calibrator.

    Raises:
        UnknownMethodError: no such method.
        InputError: no such argument.

    Examples:
        >>> import calibrant as cb
        >>> cb.make_calibrator("smart", n_bins=20).n_bins
        20
        >>> cb.make_calibrator("smarty")
        Traceback (most recent call last):
            ...
        calibrant.core.errors.UnknownMethodError: no method is called 'smarty'; did you mean
        'smart'? there are: ...
    """
    return calibrator_class(method)().set_params(**arguments)


EXPECTED_OF = {"bool": "true or false", "int": "a whole number", "float": "a number"}


def parse_arguments(method: str, settings: list[str]) -> dict[str, Any]:
    """Return constructor arguments from ``key=value`` texts, typed like the method's defaults.

    Raises:
        InputError: no such argument, or a value of another type.
    """
    defaults = calibrator_class(method)().get_params()
    arguments: dict[str, Any] = {}
    for key, text in split_settings(settings):
        if key not in defaults:
            known = ", ".join(defaults) or "none"
            raise InputError(f"method '{method}' has no argument '{key}'; it has: {known}")
        wanted = cast(Callable[[str], Any], type(defaults[key]))
        # bool("false") is True.
        convert = _as_bool if wanted is bool else wanted
        try:
            arguments[key] = convert(text)
        except ValueError:
            expected = EXPECTED_OF.get(wanted.__name__, f"of type {wanted.__name__}")
            raise InputError(
                f"argument '{key}' of method '{method}' must be {expected}, not '{text}'"
            ) from None
    return arguments


def _as_bool(text: str) -> bool:
    """Return what ``true`` and ``false`` say, in any case; anything else raises `ValueError`."""
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"
