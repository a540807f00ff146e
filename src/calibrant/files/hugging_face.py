"""Folders that `save_to_disk` of Hugging Face writes: Arrow files and a list of them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from calibrant.core.errors import PredictionsError
from calibrant.files.bounds import check_regular
from calibrant.files.keys import optional, readable
from calibrant.files.table_rows import ColumnRows

STATE, SPLITS = "state.json", "dataset_dict.json"


def is_data_set(folder: str) -> bool:
    """Return whether a folder is one that `save_to_disk` wrote."""
    return any(os.path.isfile(os.path.join(folder, name)) for name in (STATE, SPLITS))


class HuggingFaceRows(ColumnRows):
    """A data set on disk; its files are mapped, so that columns are read when they are needed."""

    def open(self) -> None:
        """Map the files that the folder lists."""
        arrow = optional("pyarrow", "pyarrow", "arrow")
        folder = Path(self.source)
        if (folder / SPLITS).is_file():
            splits = _json(folder / SPLITS, self.source).get("splits", [])
            named = ", ".join(str(folder / str(name)) for name in splits[:5])
            raise PredictionsError(f"{self.source}: holds several splits; read one: {named}")
        state = _json(folder / STATE, self.source)
        tables: list[Any] = []
        with readable("the list of files", self.source):
            files = [str(item["filename"]) for item in state["_data_files"]]
        for name in files:
            if os.path.basename(name) != name:
                raise PredictionsError(f"{self.source}: lists a file elsewhere, {name!r}")
            check_regular(folder / name, f"{self.source}/{name}")
            with readable(f"'{name}'", self.source):
                mapped = self.held.enter_context(arrow.memory_map(str(folder / name)))
                tables.append(arrow.ipc.open_stream(mapped).read_all())
        if not tables:
            raise PredictionsError(f"{self.source}: lists no files of rows")
        if state.get("_indices_files"):
            raise PredictionsError(
                f"{self.source}: holds a selection of rows; call flatten_indices() before "
                "save_to_disk"
            )
        with readable("the files", self.source):
            self._table = arrow.concat_tables(tables)
        self.schema, self.rows = self._table.schema, self._table.num_rows

    def _tables(self, columns: list[str], start: int) -> Iterator[Any]:
        yield 0
        yield self._table.select(columns)


def _json(path: Path, source: str) -> dict[str, Any]:
    check_regular(path, str(path))
    with readable(f"'{path.name}'", source):
        found: Any = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise PredictionsError(f"{source}: '{path.name}' must hold an object")
        return cast(dict[str, Any], found)
