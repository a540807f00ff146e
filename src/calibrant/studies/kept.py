"""Results as an earlier run wrote them: they stand in for cells whose inputs are gone.

``calibrant study run NAME --json FILE`` writes every cell's result; given as ``--data FILE``, it
has them for cells that lack what they need. What is there is computed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from calibrant.studies.cells import Cell
from calibrant.studies.inputs import Inputs

# Of a result, what is too long to be kept; without it there are no paired differences.
_LONG = ("replicates",)


def as_kept(study: str, version: str, cells: Iterable[tuple[Cell, Mapping[str, Any]]]) -> list[Any]:
    """Return cells with their results as JSON takes them.

    Args:
        study: whose cells they are.
        version: of their kind.
        cells: with results.
    """
    return [
        {
            "study": study,
            "version": version,
            "at": dict(cell.at),
            "seed": cell.seed,
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
            found = _read(given.path, given.path.stat().st_mtime_ns).get(key)
            if found is not None:
                return found
    return None


def _key(study: str, version: str, at: Mapping[str, str], seed: int) -> str:
    return json.dumps([study, version, dict(at), seed], sort_keys=True)


@lru_cache(maxsize=8)
def _read(path: Path, state: int) -> dict[str, dict[str, Any]]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        entries = cast("list[dict[str, Any]]", document["kept"])
        return {_key(e["study"], e["version"], e["at"], e["seed"]): e["result"] for e in entries}
    except (OSError, ValueError, KeyError, TypeError):
        return {}  # another kind of file
