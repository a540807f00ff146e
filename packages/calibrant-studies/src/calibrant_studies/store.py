"""Where results are kept: one JSON file a cell, whole or not at all, found by its address.

A file is written beside its place and renamed, so that a process which is killed leaves nothing
half done, and two that compute the same cell leave one result.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from calibrant.core.errors import InputError
from calibrant.core.text import strict_json
from calibrant.files.atomic import replacing

DEFAULT_FOLDER = Path("calibrant-study")


@dataclass(frozen=True)
class Store:
    """A folder of results.

    Attributes:
        folder: holds ``cells``, and ``failed`` for what ended in an error, ``work`` for what takes
            long and resumes.
    """

    folder: Path

    def prepare(self) -> None:
        """Make the folders.

        Raises:
            InputError: they can't be made.
        """
        for name in ("cells", "failed"):
            try:
                (self.folder / name).mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InputError(
                    f"{self.folder}: can't make this folder ({error.strerror}); name another with "
                    "--out"
                ) from error

    def work(self, address: str) -> Path:
        """Return the folder in which a cell keeps what it goes on from."""
        return self.folder / "work" / address

    def result(self, address: str) -> dict[str, Any] | None:
        """Return what is kept of a cell, or None."""
        return _read(self.folder / "cells" / f"{address}.json")

    def failure(self, address: str) -> str | None:
        """Return why a cell failed when it was last tried, or None."""
        document = _read(self.folder / "failed" / f"{address}.json")
        return None if document is None else str(document.get("error"))

    def begin(self, address: str, life: str) -> None:
        """Say that a run computes a cell; what remains of that if its process is killed says so."""
        killed = "the process that computed it was killed, most likely for want of memory"
        document = {"error": killed, "life": life, "tries": self.tries(address, life) + 1}
        self.keep_failure(address, document)

    def tries(self, address: str, life: str) -> int:
        """Return how often a run has begun to compute a cell that it hasn't come to an end with."""
        document = _read(self.folder / "failed" / f"{address}.json") or {}
        return int(document.get("tries", 0)) if document.get("life") == life else 0

    def keep(self, address: str, document: Mapping[str, Any]) -> None:
        """Keep a result; an earlier failure is forgotten."""
        _write(self.folder / "cells" / f"{address}.json", document)
        self.forget_failure(address)

    def forget_failure(self, address: str) -> None:
        """Forget what was said of a cell that has a result by now."""
        (self.folder / "failed" / f"{address}.json").unlink(missing_ok=True)

    def keep_failure(self, address: str, document: Mapping[str, Any]) -> None:
        """Keep why a cell failed."""
        _write(self.folder / "failed" / f"{address}.json", document)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    # What a machine that lost its power has left of a file is computed again.
    except (OSError, ValueError):
        return None
    return cast("dict[str, Any]", document) if isinstance(document, dict) else None


def _write(path: Path, document: Mapping[str, Any]) -> None:
    with replacing(path) as temporary:
        temporary.write_text(strict_json(document) + "\n", encoding="utf-8")
