"""Every calibrator by name, and how one is made from words."""

from __future__ import annotations

from typing import Any

from calibrant.core.arguments import parse_settings
from calibrant.posthoc.auto import AutoCalibrator
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.methods import Methods

METHODS = Methods((AutoCalibrator,))


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
    return METHODS.named(method)().set_params(**arguments)


def parse_arguments(method: str, settings: list[str]) -> dict[str, Any]:
    """Return constructor arguments from ``key=value`` texts, typed like the method's defaults.

    Raises:
        InputError: no such argument, or a value of another type.
    """
    return parse_settings(settings, METHODS.named(method)().get_params(), f"method '{method}'")
