"""Ways to damage the bytes of a file, and arrays that no file should hold."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

Rng = np.random.Generator


def damaged(content: bytes, other: bytes, rng: Rng) -> bytes:
    """Return bytes that were flipped, cut, moved, mixed with another file's, or put in others'."""
    values, way = bytearray(content), int(rng.integers(9))
    place = int(rng.integers(len(values) + 1))
    some = int(rng.integers(1, 40))
    # Heads and ends of files matter more than what they hold.
    reach = int(rng.choice([64, 600, len(values)]))
    if way <= 1 and values:
        for _ in range(int(rng.integers(1, 9))):
            at = int(rng.integers(min(reach, len(values))))
            at = len(values) - 1 - at if rng.random() < 0.3 else at
            values[at] ^= 1 << int(rng.integers(8)) if way == 0 else int(rng.integers(1, 256))
        return bytes(values)
    if way == 2:
        return bytes(values[:place])
    if way == 3:
        return bytes(values[:place] + rng.bytes(some) + values[place:])
    if way == 4:
        return bytes(values[:place] + values[place + some :])
    if way == 5:
        return bytes(values[:place] + values[place : place + 200] * 2 + values[place + 200 :])
    if way == 6:
        return bytes(other[:reach] + values[reach:])
    if way == 7:
        return otherwise_numbered(bytes(values), reach, rng)
    return [rng.bytes(some), other, b"", b"\0" * 5000, bytes(values) * 2][int(rng.integers(5))]


ODD_NUMBERS = [
    *(b"0", b"1", b"2", b"7", b"99", b"-1", b".5", b"''", b"nan", b"inf", b"1e999", b"1e-999"),
    *(b"4294967295", b"9223372036854775807", b"18446744073709551616", b"9" * 400),
]


def otherwise_numbered(content: bytes, reach: int, rng: Rng) -> bytes:
    """Return bytes with another number in the place of one that is written out."""
    numbers = list(re.finditer(rb"-?\d+(\.\d+)?", content[:reach]))
    if not numbers:
        return content + b"7"
    found = numbers[int(rng.integers(len(numbers)))]
    new = ODD_NUMBERS[int(rng.integers(len(ODD_NUMBERS)))]
    if rng.random() < 0.5:  # lengths of headers are told before them, so keep them
        new = new[: len(found.group())].rjust(len(found.group()))
    return content[: found.start()] + new + content[found.end() :]


def odd_arrays(array: np.ndarray, rng: Rng) -> np.ndarray:
    """Return an array of another shape, dtype or content."""
    n = len(array) if array.ndim else 1
    made: list[Callable[[], Any]] = [
        lambda: array[:-1],
        lambda: array[:0],
        lambda: array[:1],
        lambda: array[..., None],
        lambda: array.T,
        lambda: array.ravel(),
        lambda: np.float64(1.0),
        lambda: np.zeros((n, 0)),
        lambda: np.zeros((0, 3)),
        lambda: np.concatenate([array, array]),
        lambda: array if array.dtype == bool else -array,
        lambda: array.astype(np.float16),
        lambda: array.astype(np.int8),
        lambda: array.astype(bool),
        lambda: array.astype(complex),
        lambda: array.astype(">f8"),
        lambda: array.astype("S8"),
        lambda: array.astype("U8"),
        lambda: np.array(array, order="F"),
        lambda: np.full(array.shape, np.nan),
        lambda: np.full(array.shape, np.inf),
        lambda: np.full(array.shape, -np.inf),
        lambda: np.full(array.shape, 1e308),
        lambda: np.full(array.shape, 2**62),
        lambda: np.full(array.shape, 0.5),
        lambda: np.zeros(n, [("a", "f4"), ("b", "i4")]),
        lambda: np.zeros(array.shape, "M8[s]"),
    ]
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.asarray(made[int(rng.integers(len(made)))]())
