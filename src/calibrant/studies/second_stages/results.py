"""The file that keeps what was measured, so that a study that was broken off goes on from there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from calibrant.core.errors import InputError
from calibrant.files.atomic import replacing

# As they are called from the checkout.
PAGE = Path("docs/second-stages.md")


def kept(file: Path, part: str) -> dict[str, Any]:
    """Return a part of the results in a file; nothing if there is no such file yet.

    Raises:
        InputError: the file's folder doesn't exist, so that no result could be kept.
    """
    if not file.parent.is_dir():
        raise InputError(f"{file}: there is no folder {file.parent} to keep the results in")
    return json.loads(file.read_text(encoding="utf-8"))[part] if file.is_file() else {}


def keep(file: Path, document: dict[str, Any]) -> None:
    """Write all results, a number a line."""
    text = json.dumps(rounded(document), indent=0) + "\n"
    with replacing(file) as temporary:
        temporary.write_text(text, encoding="utf-8")


def rounded(value: Any) -> Any:
    """Return nested lists and dictionaries with five decimals, which is more than is known."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in cast(dict[str, Any], value).items()}
    if isinstance(value, list):
        return [rounded(item) for item in cast(list[Any], value)]
    return round(value, 5) if isinstance(value, float) else value
