"""Where results are kept: one JSON file a cell, whole or not at all, found by its address.

A file is written beside its place and renamed, so that a process which is killed leaves nothing
half done, and two that compute the same cell leave one result.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from calibrant.core.errors import InputError
from calibrant.core.outputs import replacing
from calibrant.core.text import strict_json
from calibrant_studies.cells import Cell
from calibrant_studies.inputs import Inputs

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
        return _read_json(self.folder / "cells" / f"{address}.json")

    def failure(self, address: str) -> str | None:
        """Return why a cell failed when it was last tried, or None."""
        document = _read_json(self.folder / "failed" / f"{address}.json")
        return None if document is None else str(document.get("error"))

    def begin(self, address: str, life: str) -> None:
        """Say that a run computes a cell; what remains of that if its process is killed says so."""
        killed = "the process that computed it was killed, most likely for want of memory"
        document = {"error": killed, "life": life, "tries": self.tries(address, life) + 1}
        self.keep_failure(address, document)

    def tries(self, address: str, life: str) -> int:
        """Return how often a run has begun to compute a cell that it hasn't come to an end with."""
        document = _read_json(self.folder / "failed" / f"{address}.json") or {}
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


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    # What a machine that lost its power has left of a file is computed again.
    except (OSError, ValueError):
        return None
    return cast("dict[str, Any]", document) if isinstance(document, dict) else None


def _write(path: Path, document: Mapping[str, Any]) -> None:
    with replacing(path) as temporary:
        temporary.write_text(strict_json(document) + "\n", encoding="utf-8")


# Results as an earlier run wrote them: they stand in for cells whose inputs are gone.
#
# ``calibrant study run NAME --json FILE`` writes every cell's result; given as ``--data FILE``, it
# has them for cells that lack what they need. What is there is computed. Of other settings a
# result is none; records from before settings were written are of those that the study declares.
# By what a cell is computed changes none of its numbers.

_NO_MATTER = ("accelerator",)
# Of a result, what is too long to be kept; without it there are no paired differences.
_LONG = ("replicates",)


def as_kept(study: str, version: str, cells: Iterable[tuple[Cell, Mapping[str, Any]]]) -> list[Any]:
    """Return cells with their results as JSON takes them.

    Args:
        study: whose cells they are.
        version: of their kind.
        cells: with results.
    """
    first: dict[tuple[int, str], int] = {}
    return [
        {
            "study": study,
            "version": version,
            "at": dict(cell.at),
            "seed": cell.seed,
            # Of seeds that change nothing there is one result, which mustn't count for several.
            "one_with": first.setdefault((id(result), str(dict(cell.at))), cell.seed),
            "settings": _settings(cell),
            "result": {key: of for key, of in result.items() if key not in _LONG},
        }
        for cell, result in cells
    ]


def kept_result(cell: Cell, version: str, inputs: Inputs) -> dict[str, Any] | None:
    """Return the result that a file among the inputs has of a cell, or None.

    Args:
        cell: which.
        version: of its kind; what another one computed is no result of this one.
        inputs: what is given.
    """
    key = _key(cell.study, version, cell.at, cell.seed)
    for given in inputs.values():
        if len(given.paths) == 1 and given.path.suffix == ".json" and given.path.is_file():
            entries = _read_kept(given.path, given.path.stat().st_mtime_ns)
            found = entries.get(key)
            if found is not None and _is_of(found, cell):
                return _of_seeds(found, entries)
    return None


def _of_seeds(entry: Mapping[str, Any], entries: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of an entry: one and the same for all seeds that change nothing."""
    seed = entry.get("one_with", entry["seed"])
    first = entries.get(_key(entry["study"], entry["version"], entry["at"], seed), entry)
    return first["result"]


def _settings(cell: Cell) -> dict[str, Any]:
    """Return the settings of a cell as JSON gives them back."""
    matter = {name: of for name, of in cell.settings.items() if name not in _NO_MATTER}
    return json.loads(json.dumps(matter))


def _is_of(entry: Mapping[str, Any], cell: Cell) -> bool:
    said = entry.get("settings")
    return not cell.forced.keys() - {*_NO_MATTER} if said is None else said == _settings(cell)


def _key(study: str, version: str, at: Mapping[str, str], seed: int) -> str:
    return json.dumps([study, version, dict(at), seed], sort_keys=True)


@lru_cache(maxsize=8)
def _read_kept(path: Path, state: int) -> dict[str, dict[str, Any]]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        entries = cast("list[dict[str, Any]]", document["kept"])
        return {_key(e["study"], e["version"], e["at"], e["seed"]): e for e in entries}
    except (OSError, ValueError, KeyError, TypeError):
        return {}  # another kind of file
