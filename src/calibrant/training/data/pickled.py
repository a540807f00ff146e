"""CIFAR's version for Python: pickles, read by an unpickler that knows arrays only.

A pickle is a program: it may name any function and call it. What these files need is three names
of NumPy by which arrays are put together; whatever else one names is refused before it is looked
up.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from calibrant.core.errors import InputError
from calibrant.training.data.images import ImageSet

SIDE = 32
# Old and new names of the same three things.
_KNOWN = {
    (module, name)
    for module in ("numpy.core.multiarray", "numpy._core.multiarray")
    for name in ("_reconstruct", "scalar")
} | {("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")}


class _ArraysOnly(pickle.Unpickler):
    def __init__(self, content: bytes, source: str) -> None:
        # CIFAR's keys and file names are text of Python 2, which was bytes.
        super().__init__(io.BytesIO(content), encoding="bytes")
        self._source = source

    def find_class(self, module: str, name: str, /) -> Any:
        """Return what builds an array; refuse any other name."""
        if (module, name) not in _KNOWN:
            raise InputError(
                f"{self._source}: asks for {module}.{name}, which no array needs; a file like this "
                "could run any code, and isn't read"
            )
        if name == "encode":
            return _as_bytes
        if name == "ndarray":
            return np.ndarray
        if name == "dtype":
            return _plain_type
        multiarray: Any = np.zeros(1).__reduce__()[0]
        return multiarray if name == "_reconstruct" else _scalar

    def persistent_load(self, pid: Any, /) -> Any:
        """Refuse what lies outside of the file."""
        raise InputError(f"{self._source}: points to something outside of the file")


def _plain_type(kind: Any, *_: Any) -> np.dtype[Any]:
    """Return a type of whole numbers or bytes; arrays of objects could hold anything."""
    text = kind.decode() if isinstance(kind, bytes) else kind
    found = np.dtype(text) if isinstance(text, str) else None
    if found is None or found.kind not in "uib":
        raise InputError(f"holds an array of type {text!r}, not of whole numbers")
    return found


def _scalar(kind: np.dtype[Any], content: bytes) -> int:
    return int(np.frombuffer(content, dtype=kind)[0])


def _as_bytes(text: str, encoding: str) -> bytes:
    if encoding not in ("latin1", b"latin1"):
        raise InputError(f"holds text in '{encoding}', where bytes of an array should be")
    return text.encode("latin1")


def unpickled(content: bytes, source: str) -> dict[str, Any]:
    """Return the mapping that a pickle of CIFAR holds: arrays, lists, text, bytes and numbers.

    Args:
        content: of the file.
        source: begins the error message.

    Raises:
        InputError: the pickle names anything but arrays, is damaged or holds no mapping.
    """
    try:
        found = _ArraysOnly(content, source).load()
    except InputError as error:
        sentence = str(error)
        whole = sentence if sentence.startswith(source) else f"{source}: {sentence}"
        raise InputError(whole) from None
    # A damaged pickle makes the machine that runs it raise almost anything.
    except Exception as error:
        raise InputError(f"{source}: is no whole pickle ({type(error).__name__})") from error
    if not isinstance(found, Mapping):
        raise InputError(f"{source}: holds no mapping, but {type(found).__name__}")
    table = cast(Mapping[Any, Any], found)
    return {_text(key): value for key, value in table.items()}


def images_of(parts: list[dict[str, Any]], label: str, source: str) -> ImageSet:
    """Return the images of several files, rows of 3 x 32 x 32 bytes under "data".

    Raises:
        InputError: an entry is missing or of another form.
    """
    for part in parts:
        missing = next((name for name in ("data", label) if name not in part), None)
        if missing is not None:
            raise InputError(f"{source}: no '{missing}', only: {', '.join(part)}")
        if not isinstance(part[label], list):
            kind = type(part[label]).__name__
            raise InputError(f"{source}: '{label}' must be a list of class numbers, not {kind}")
        data = part["data"]
        form = getattr(data, "shape", None), getattr(data, "dtype", None)
        if not isinstance(data, np.ndarray) or form != ((len(part[label]), 3 * SIDE**2), np.uint8):
            raise InputError(
                f"{source}: 'data' must be ({len(part[label])}, 3072) bytes, not {form[1]} of "
                f"{form[0]}"
            )
    rows = np.concatenate([part["data"] for part in parts]).reshape(-1, 3, SIDE, SIDE)
    labels = np.concatenate([np.asarray(part[label]) for part in parts])
    return ImageSet.from_rows(rows.transpose(0, 2, 3, 1), labels, source)


def names_of(table: dict[str, Any], key: str) -> tuple[str, ...] | None:
    """Return the class names of CIFAR's file of metadata."""
    names = table.get(key)
    return None if not isinstance(names, list) else tuple(map(_text, cast(list[Any], names)))


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
