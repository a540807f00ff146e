"""Files of learnt parameters: safetensors whose header says what they are and in which version."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from os import fspath
from pathlib import Path
from typing import Any, Literal, cast

from calibrant._version import __version__
from calibrant.core.errors import CalibratorFileError, InputError
from calibrant.core.outputs import StrPath, replacing
from calibrant.files.gate import check_regular


@dataclass(frozen=True)
class ParameterFormat:
    """One kind of file.

    Attributes:
        name: of the format, in the header; version: the newest that is read, and what is written.
        noun: what a file holds, as messages name it: "a calibrator".
        arrays: library of the arrays.
    """

    name: str
    version: int
    noun: str
    arrays: Literal["numpy", "torch"]

    def check_extension(self, path: StrPath) -> None:
        """Raise `InputError` unless `path` ends in ``.safetensors``."""
        if Path(path).suffix != ".safetensors":
            raise InputError(f"{fspath(path)}: {self.noun} is saved as .safetensors")

    def write(self, path: StrPath, header: Mapping[str, str], state: Mapping[str, Any]) -> None:
        """Write arrays by name, with a header of text, whole or not at all.

        Raises:
            InputError: a folder that doesn't exist.
        """
        own = {
            "format": self.name,
            "format_version": str(self.version),
            "calibrant_version": __version__,
        }
        save_file = import_module(f"safetensors.{self.arrays}").save_file
        with replacing(path) as temporary:
            save_file(dict(state), temporary, metadata=own | dict(header))
            _sort_header(temporary)

    def holds(self, path: StrPath) -> bool:
        """Return whether a file says that it is of this format."""
        from safetensors import safe_open

        try:
            with cast(Any, safe_open)(path, framework="numpy") as file:
                header = cast(dict[str, str], file.metadata() or {})
                return header.get("format") == self.name
        except Exception:  # whatever it is, it is none; who reads it says what it lacks
            return False

    def read(self, path: StrPath) -> tuple[dict[str, str], dict[str, Any]]:
        """Return the header and the arrays of a file; nothing is unpickled.

        Raises:
            CalibratorFileError: the file is missing, damaged, of another format or of a newer
                version.
        """
        from safetensors import safe_open

        source = fspath(path)
        check_regular(Path(path), source, CalibratorFileError)
        try:
            framework = "numpy" if self.arrays == "numpy" else "pt"
            with cast(Any, safe_open)(path, framework=framework) as file:  # it ships no types
                header = cast(dict[str, str], file.metadata() or {})
                names = cast(list[str], list(file.keys()))
                state = {name: file.get_tensor(name) for name in names}
        # It meets dtypes that NumPy doesn't know, and headers of any kind, with any exception.
        except Exception as error:
            raise CalibratorFileError(f"{source}: is not a readable safetensors file") from error
        if header.get("format") != self.name:
            raise CalibratorFileError(
                f"{source}: is a safetensors file, but not {self.noun} that Calibrant saved"
            )
        version = header.get("format_version", "")
        if not re.fullmatch("[0-9]{1,9}", version) or int(version) > self.version:
            raise CalibratorFileError(
                f"{source}: has format version {version[:20]!r}, this version reads up to "
                f"{self.version}; update Calibrant"
            )
        return header, state


def _sort_header(path: Path) -> None:
    """Put the entries of a file's header in order, so that equal contents are equal bytes.

    The library writes its text in an order that changes from process to process. The header is
    JSON behind its length in eight bytes, and may be followed by spaces.
    """
    with path.open("r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        text = json.dumps(header, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        ordered = text.encode()
        if len(ordered) <= length:  # it is the same text in another order
            file.seek(8)
            file.write(ordered.ljust(length))
