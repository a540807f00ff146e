"""Formats of the deep-learning world: safetensors, and torch's own (tensors only, no code)."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from calibrant.core.arrays import Array
from calibrant.core.errors import PredictionsError
from calibrant.files.bounds import MOST_REPEATED_BYTES, check_members
from calibrant.files.choosing import select
from calibrant.files.keys import NAMES, Arrays, Wanted, assemble, native, optional, readable
from calibrant.files.opening import is_url, open_binary
from calibrant.predictions.predictions import Predictions


def _safetensors(module: str = "safetensors") -> Any:
    # Imported when first needed; `Any`, because its own types have gaps.
    return import_module(module)


def read_safetensors(path: Path, wanted: Wanted, source: str) -> Predictions:
    """Read the tensors needed from a safetensors file."""
    with readable("the safetensors file", source):
        file = _safetensors().safe_open(path, framework="numpy")
    with file:
        names = _names_in(file.metadata())

        def get(key: str) -> Array:
            if key in names:
                return np.array(names[key])
            if file.get_slice(key).get_dtype() == "BF16":
                return _widened(path, key)
            return file.get_tensor(key)

        return assemble(select([*file.keys(), *names], wanted, source), get, source)


def _names_in(header: dict[str, str] | None) -> dict[str, list[str]]:
    """Return names of classes or labels that a header holds as JSON; tensors hold no text."""
    found: dict[str, list[str]] = {}
    for key in NAMES:
        try:
            names: Any = json.loads((header or {}).get(key, "null"))
        except (ValueError, RecursionError):
            continue  # another program's, and no names
        if isinstance(names, list) and all(isinstance(name, str) for name in cast(Any, names)):
            found[key] = names
    return found


def _widened(path: Path, key: str) -> Array:
    """Return a bfloat16 tensor, which NumPy doesn't know, as float32: its upper half."""
    tensor = dict(_safetensors().deserialize(path.read_bytes()))[key]
    halves = np.frombuffer(tensor["data"], "<u2").astype(np.uint32) << 16
    return halves.view(np.float32).reshape(tensor["shape"])


def write_safetensors(arrays: Arrays, path: Path) -> None:
    """Write a safetensors file; names of classes and labels stand in its header."""
    numbers = {key: array for key, array in arrays.items() if key not in NAMES}
    names = {key: json.dumps(arrays[key].tolist()) for key in NAMES if key in arrays}
    _safetensors("safetensors.numpy").save_file(numbers, path, metadata=names or None)


def _refuse_packed(file: BinaryIO, source: str) -> bool:
    """Return whether an open torch file is a zip archive.

    Raises:
        PredictionsError: its parts are compressed, as torch never writes them.
    """
    with readable("the torch file", source):
        if not zipfile.is_zipfile(file):
            return False
        with zipfile.ZipFile(file) as archive:
            check_members(archive, source)
            if sum(info.file_size for info in archive.infolist()) > file.seek(0, os.SEEK_END):
                raise PredictionsError(f"{source}: is compressed, which torch files aren't")
    return True


def named_pair(parts: Sequence[Any], wanted: Wanted, source: str) -> dict[str, Any]:
    """Return scores and labels that are saved as a pair, by name."""
    shapes = [tuple(getattr(part, "shape", ())) for part in parts]
    if len(parts) != 2 or len(shapes[0]) != 2 or len(shapes[1]) not in (1, 2):
        raise PredictionsError(
            f"{source}: a tuple must hold two tensors, scores (N, K) and labels (N,), not shapes "
            f"{shapes}; save a dict of tensors"
        )
    if wanted.kind not in ("logits", "probs"):
        raise PredictionsError(
            f"{source}: holds a tuple of tensors of shapes {shapes[0]} and {shapes[1]}; say by "
            "--kind logits or --kind probs (kind=) what the first is"
        )
    return {wanted.kind: parts[0], "labels": parts[1]}


def load_torch(source: str) -> dict[str, Any] | Sequence[Any]:
    """Return what `torch.save` wrote to a path or URL: by name, or a tuple.

    Numbers of a path stay in the file, mapped into memory, until they are asked for, if the file is
    a zip archive, as torch has written since 2020. A URL, or an older file, is read whole.

    Raises:
        PredictionsError: anything else than tensors.
    """
    torch = optional("torch", "torch", "torch")
    with open_binary(source) as file:
        mapped = _refuse_packed(file, source) and not is_url(source)
        file.seek(0)
        try:
            options: dict[str, Any] = {"map_location": "cpu", "weights_only": True}
            content: Any = (
                torch.load(source, mmap=True, **options) if mapped else torch.load(file, **options)
            )
        # As for `readable`; but torch's own words advise to switch the protection off.
        except Exception as error:
            raise PredictionsError(
                f"{source}: is damaged, or no torch file of tensors only (anything else could run "
                "code); save a dict of tensors, or a .npz"
            ) from error
    if isinstance(content, tuple | list):
        return cast(Sequence[Any], content)
    if not isinstance(content, dict):
        raise PredictionsError(
            f"{source}: must hold a dict of tensors, not a {type(content).__name__}"
        )
    return {str(key): one for key, one in cast(dict[Any, Any], content).items()}


def checked_tensor(tensors: dict[str, Any], key: str, source: str) -> Any:
    """Return a tensor by its name.

    Raises:
        PredictionsError: it is none, or repeats few numbers to look large.
    """
    torch = optional("torch", "torch", "torch")
    tensor = tensors[key]
    if not isinstance(tensor, torch.Tensor):
        raise PredictionsError(f"{source}: '{key}' must be a tensor, not a {type(tensor).__name__}")
    size = tensor.numel() * tensor.element_size()
    # Of a tensor that repeats its numbers a small file may hold any size.
    if size > max(tensor.untyped_storage().nbytes(), MOST_REPEATED_BYTES):
        raise PredictionsError(
            f"{source}: '{key}' of shape {tuple(tensor.shape)} repeats the numbers that it "
            "holds; save what .contiguous() makes of it"
        )
    return tensor


def read_torch(path: Path, wanted: Wanted, source: str) -> Predictions:
    """Read a dict of tensors, or a pair of scores and labels, that `torch.save` wrote."""
    content = load_torch(source)
    tensors = content if isinstance(content, dict) else named_pair(content, wanted, source)

    def get(key: str) -> Array:
        return native(checked_tensor(tensors, key, source))

    return assemble(select(list(tensors), wanted, source), get, source)
