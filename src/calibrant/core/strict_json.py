"""Documents as strict JSON takes them, which has no infinity and no NaN."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, cast


def strict_json(document: Any, **form: Any) -> str:
    """Return a document as JSON.

    Args:
        document: mappings, lists, tuples, text and numbers; what isn't finite is null, and keys are
            written as text.
        form: how `json.dumps` is to write it, as ``indent=2``.

    Examples:
        >>> from calibrant.core.strict_json import strict_json
        >>> strict_json({"gaps": (0.5, float("nan"))})
        '{"gaps": [0.5, null]}'
    """
    return json.dumps(_finite(document), allow_nan=False, **form)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in cast(Any, value).items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in cast(Any, value)]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
