"""What Hugging Face notes in the metadata of Arrow tables and parquet files."""

from __future__ import annotations

import json
from typing import Any


def class_names_in(schema: Any, label: str | None) -> tuple[str, ...] | None:
    """Return the names of classes that Hugging Face notes for a column in Arrow's metadata."""
    metadata: dict[bytes, bytes] = schema.metadata or {}
    noted = metadata.get(b"huggingface")
    try:
        names = json.loads(noted)["info"]["features"][label]["names"] if noted and label else None
    except (ValueError, KeyError, TypeError):
        return None
    return tuple(str(name) for name in names) if isinstance(names, list) else None  # type: ignore[arg-type]
