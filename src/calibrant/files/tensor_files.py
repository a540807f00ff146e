"""Formats of the deep-learning world: safetensors, and torch's own (tensors only, no code)."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np

from calibrant.core.arrays import Array
from calibrant.core.errors import PredictionsError
from calibrant.files.bounds import MOST_REPEATED_BYTES, check_members
from calibrant.files.choosing import select
from calibrant.files.keys import CLASS_NAMES, Arrays, Wanted, assemble, native, optional, readable
from calibrant.predictions.predictions import Predictions


def _safetensors(module: str = "safetensors") -> Any:
    # Imported when first needed; `Any`, because its own types have gaps.
    return import_module(module)


def read_safetensors(path: Path, wanted: Wanted, source: str) -> Predictions:
    """Read the tensors needed from a safetensors file."""
    with readable("the safetensors file", source):
        file = _safetensors().safe_open(path, framework="numpy")
    with file:

        def get(key: str) -> Array:
            if file.get_slice(key).get_dtype() == "BF16":
                return _widened(path, key)
            return file.get_tensor(key)

        return assemble(select(file.keys(), wanted, source), get, source)


def _widened(path: Path, key: str) -> Array:
    """Return a bfloat16 tensor, which NumPy doesn't know, as float32: its upper half."""
    tensor = dict(_safetensors().deserialize(path.read_bytes()))[key]
    halves = np.frombuffer(tensor["data"], "<u2").astype(np.uint32) << 16
    return halves.view(np.float32).reshape(tensor["shape"])


def write_safetensors(arrays: Arrays, path: Path) -> None:
    """Write a safetensors file."""
    numbers = {key: array for key, array in arrays.items() if key != CLASS_NAMES}
    _safetensors("safetensors.numpy").save_file(numbers, path)


def _refuse_packed(path: Path, source: str) -> None:
    """Refuse a torch file whose parts are compressed, as torch never writes them."""
    with readable("the torch file", source):
        if not zipfile.is_zipfile(path):
            return
        with zipfile.ZipFile(path) as archive:
            check_members(archive, source)
            if sum(info.file_size for info in archive.infolist()) > path.stat().st_size:
                raise PredictionsError(f"{source}: is compressed, which torch files aren't")


def _named(parts: Sequence[Any], wanted: Wanted, source: str) -> dict[str, Any]:
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


def read_torch(path: Path, wanted: Wanted, source: str) -> Predictions:
    """Read a dict of tensors, or a pair of scores and labels, that `torch.save` wrote."""
    torch = optional("torch", "torch", "torch")
    _refuse_packed(path, source)
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    # As for `readable`; but torch's own words advise to switch the protection off.
    except Exception as error:
        raise PredictionsError(
            f"{source}: is damaged, or no torch file of tensors only (anything else could run "
            "code); save a dict of tensors, or a .npz"
        ) from error
    if isinstance(content, tuple | list):
        content = _named(cast(Sequence[Any], content), wanted, source)
    if not isinstance(content, dict):
        raise PredictionsError(
            f"{source}: must hold a dict of tensors, not a {type(content).__name__}"
        )
    tensors = cast(dict[Any, Any], content)

    def get(key: str) -> Array:
        if not isinstance(tensors[key], torch.Tensor):
            raise PredictionsError(
                f"{source}: '{key}' must be a tensor, not a {type(tensors[key]).__name__}"
            )
        tensor = tensors[key]
        size = tensor.numel() * tensor.element_size()
        # Of a tensor that repeats its numbers a small file may hold any size.
        if size > max(tensor.untyped_storage().nbytes(), MOST_REPEATED_BYTES):
            raise PredictionsError(
                f"{source}: '{key}' of shape {tuple(tensor.shape)} repeats the numbers that it "
                "holds; save what .contiguous() makes of it"
            )
        return native(tensor)

    return assemble(select([str(key) for key in tensors], wanted, source), get, source)
