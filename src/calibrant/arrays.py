"""The few array-API helpers that let row-wise code run on NumPy, torch, CuPy or JAX alike.

Rows stay where they are: a function that takes a torch tensor on a GPU computes there and returns
a tensor there. Everything per-row and small (a confidence, a margin) becomes float64 NumPy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device, is_torch_array
from numpy.typing import NDArray

Array = Any
"""An (N, K) array of any library that follows the array-API standard."""

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

# A chunk of rows and its temporaries should stay in the second-level cache of one core.
CHUNK_ELEMENTS_CPU = 1 << 16
# An accelerator wants few large launches; 64 Mi elements keep the temporaries under a gigabyte.
CHUNK_ELEMENTS_ACCELERATOR = 1 << 26


def as_array(values: Any) -> Array:
    """Return `values` unchanged if it is an array already, else as a NumPy array."""
    return np.asarray(values) if isinstance(values, (list, tuple)) else values


def namespace(array: Array) -> Any:
    """Return the array-API namespace of `array`."""
    return array_namespace(array)


def to_numpy(array: Array) -> NDArray[Any]:
    """Return `array` as NumPy, copied from its device and detached from autograd if need be."""
    if isinstance(array, np.ndarray):
        return array
    if is_torch_array(array):
        return array.detach().cpu().numpy()
    return np.asarray(array)


def like(values: NDArray[Any], reference: Array, dtype: Any = None) -> Array:
    """Return NumPy `values` as an array of `reference`'s kind, on its device."""
    if isinstance(reference, np.ndarray):
        return values if dtype is None else values.astype(dtype, copy=False)
    return namespace(reference).asarray(values, dtype=dtype, device=device(reference))


def working_dtype(array: Array) -> Any:
    """Return the dtype to compute in: float64 stays, narrower floats become float32.

    Integers count as exact and become float64.
    """
    xp = namespace(array)
    if xp.isdtype(array.dtype, "real floating"):
        return xp.float64 if array.dtype == xp.float64 else xp.float32
    return xp.float64


def row_chunks(array: Array) -> Iterator[slice]:
    """Yield slices that cover the rows of an (N, K) array, each small enough for the cache."""
    rows, width = array.shape
    on_cpu = isinstance(array, np.ndarray) or str(device(array)).startswith(("cpu", "Cpu", "TFRT"))
    budget = CHUNK_ELEMENTS_CPU if on_cpu else CHUNK_ELEMENTS_ACCELERATOR
    step = max(1, budget // max(1, width))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def pick(rows: Array, columns: Array) -> Array:
    """Return `rows[i, columns[i]]` for every row i of an (N, K) array."""
    xp = namespace(rows)
    return xp.take_along_axis(rows, columns[:, None], axis=1)[:, 0]
