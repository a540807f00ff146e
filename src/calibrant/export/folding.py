"""What hangs on no row is worked out at once, by NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar, cast

import array_api_compat.numpy as xnp

from calibrant.export.traced import Traced

Function = TypeVar("Function", bound=Callable[..., Any])


def worked_out(function: Function) -> Function:
    """Let NumPy do a function of nothing but NumPy arrays."""

    @wraps(function)
    def either(*operands: Any, **options: Any) -> Any:
        lone: Any = operands[0]
        given = cast(Sequence[Any], lone if type(lone) in (list, tuple) else operands)
        if any(isinstance(operand, Traced) for operand in given):
            return function(*operands, **options)
        options.pop("device", None)
        return getattr(xnp, function.__name__)(*operands, **options)

    return cast(Function, either)
