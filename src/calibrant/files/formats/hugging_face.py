"""Data sets that Hugging Face's `save_to_disk` wrote: folders of Arrow files and a list of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from calibrant.core.errors import PredictionsError
from calibrant.files.formats.tables import ColumnReader, unpacked_sizes
from calibrant.files.gate import check_regular, load_json, optional, readable

STATE, SPLITS = "state.json", "dataset_dict.json"


class HuggingFaceReader(ColumnReader):
    """A data set that `save_to_disk` wrote: Arrow files, which are mapped, and a list of them."""

    def open(self) -> None:
        """Map the files that the folder lists."""
        arrow = optional("pyarrow", "pyarrow", "arrow")
        folder = Path(self.where)
        if (folder / SPLITS).is_file():
            splits = self._document(folder / SPLITS).get("splits", [])
            named = ", ".join(str(folder / str(name)) for name in splits[:5])
            raise PredictionsError(f"{self.where}: holds several splits; read one: {named}")
        state = self._document(folder / STATE)
        tables: list[Any] = []
        with readable("the list of files", self.where):
            files = [str(item["filename"]) for item in state["_data_files"]]
        for name in files:
            if os.path.basename(name) != name:
                raise PredictionsError(f"{self.where}: lists a file elsewhere, {name!r}")
            check_regular(folder / name, f"{self.where}/{name}")
            with readable(f"'{name}'", self.where):
                with open(folder / name, "rb") as raw:
                    self.check_bounded(sum(unpacked_sizes(raw)), f"'{name}'")
                mapped = self.held.enter_context(arrow.memory_map(str(folder / name)))
                tables.append(arrow.ipc.open_stream(mapped).read_all())
                tables[-1].validate(full=True)
        if not tables:
            raise PredictionsError(f"{self.where}: lists no files of rows")
        if state.get("_indices_files"):
            raise PredictionsError(
                f"{self.where}: holds a selection of rows; call flatten_indices() before "
                "save_to_disk"
            )
        with readable("the files", self.where):
            self._table = arrow.concat_tables(tables)
        self.schema, self.rows = self._table.schema, self._table.num_rows

    def _document(self, path: Path) -> dict[str, Any]:
        check_regular(path, str(path))
        with readable(f"'{path.name}'", self.where):
            found = load_json(path.read_bytes(), self.where, f"'{path.name}'")
            if not isinstance(found, dict):
                raise PredictionsError(f"{self.where}: '{path.name}' must hold an object")
            return cast(dict[str, Any], found)

    def tables(self, names: Sequence[str], start: int) -> Iterator[Any]:
        """Yield the whole table, of which nothing is read yet."""
        yield 0
        yield self._table.select(names)


def is_data_set(folder: str) -> bool:
    """Return whether a folder is one that `save_to_disk` wrote."""
    return any(os.path.isfile(os.path.join(folder, name)) for name in (STATE, SPLITS))
