"""NumPy as a namespace of the array-API standard; without loading what nobody asks it for.

`array_api_compat.numpy` is that namespace too, but loads all of NumPy, its testing and its Fortran
generator included, which takes twice as long as NumPy itself. From NumPy 2.1 on NumPy's functions
are the standard's, but for the few in `_OTHERWISE`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, cast

import numpy as np

# NumPy sorts in ascending order only, and not stably by default.
_OTHERWISE = ("sort", "argsort")
_FOLLOWS_THE_STANDARD = hasattr(np, "__array_namespace_info__")


def clip(x: Any, /, min: Any = None, max: Any = None) -> Any:
    """Return `x` between bounds; its type stays, whatever that of the bounds."""
    low, high = (None if end is None else np.asarray(end, dtype=x.dtype) for end in (min, max))
    return cast(Any, np).clip(x, low, high)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    if _FOLLOWS_THE_STANDARD and name not in _OTHERWISE:
        found = getattr(np, name)
    else:
        found = getattr(import_module("array_api_compat.numpy"), name)
    globals()[name] = found
    return found
