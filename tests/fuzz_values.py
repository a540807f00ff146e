"""Other values in documents that keep their form: headers, declarations, lines, graphs."""

from __future__ import annotations

import copy
import json
import struct
from typing import Any

import numpy as np
from fuzz_damage import Rng, damaged, odd_arrays

DEEP: Any = []
for _ in range(200):
    DEEP = [DEEP]
ODD: list[Any] = [
    None, True, False, 0, 1, -1, 2, 7, 0.5, -0.0, 1e-320, 1e35, 1e36, 1e308, float("nan"),
    float("inf"), 10**19, 10**400, "", "a", "0", "1", "nan", "é\n", "\ud800", "x" * 3000, "a/b",
    "__class__", "logits", "probs", "score", "rows", "temperature", "auto", [], {}, [0], [[]],
    {"": 0}, {"a": {"a": 1}}, [1, 2, 3], ["a", "a"], DEEP,
]  # fmt: skip


def other_values(document: Any, rng: Rng) -> Any:
    """Return a document of which one to three values are others, gone, doubled or moved."""
    document = copy.deepcopy(document)
    for _ in range(int(rng.integers(1, 4))):
        places = list(_places(document))
        if not places:
            return odd(rng)
        holder, key = places[int(rng.integers(len(places)))]
        way = rng.random()
        if way < 0.6:
            holder[key] = odd(rng)
        elif way < 0.75:
            del holder[key]
        elif way < 0.9:
            there, other = places[int(rng.integers(len(places)))]
            if not isinstance(there, list) or other < len(there):
                holder[key] = copy.deepcopy(there[other]) if other in _keys(there) else None
        elif isinstance(holder, list):
            holder.insert(key, holder[key])
        else:
            holder[f"{key}2"] = holder[key]
    return document


def odd(rng: Rng) -> Any:
    return copy.deepcopy(ODD[int(rng.integers(len(ODD)))])


def _keys(holder: Any) -> Any:
    return range(len(holder)) if isinstance(holder, list) else holder


def _places(document: Any, depth: int = 0) -> Any:
    if isinstance(document, dict | list) and depth < 8:
        for key in list(_keys(document)):
            yield document, key
            yield from _places(document[key], depth + 1)


def parted(content: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the header of a file of safetensors, and its numbers."""
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def joined(header: Any, body: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def other_state(content: bytes, rng: Rng) -> bytes:
    """Return a file of learnt numbers with other settings, or other numbers, in the same form."""
    header, body = parted(content)
    way = rng.random()
    if way < 0.5:
        about = header.get("__metadata__", {})
        key = str(rng.choice(sorted(about) or ["none"]))
        try:
            inner = json.loads(about[key])
        except (KeyError, ValueError):
            inner = about.get(key, "")
        if isinstance(inner, dict | list):
            inner = other_values(inner, rng)
            about[key] = json.dumps(inner)
        else:
            about[key] = str(odd(rng))
        return joined(header, body)
    if way < 0.6:
        return joined(other_values(header, rng), body)
    names = [name for name in header if name != "__metadata__"]
    if not names:
        return damaged(content, b"", rng)
    entry = header[str(rng.choice(names))]
    start, end = entry["data_offsets"]
    kinds = {"F64": "<f8", "F32": "<f4", "I64": "<i8", "I32": "<i4", "U8": "u1", "BOOL": "?"}
    if entry["dtype"] not in kinds or end == start:
        return damaged(content, b"", rng)
    values = np.frombuffer(body[start:end], kinds[entry["dtype"]]).copy()
    if way < 0.8:
        some = rng.integers(len(values), size=int(rng.integers(1, 4)))
        with np.errstate(all="ignore"):
            values[some] = np.array([0, -1, 1, 2, 1e-40, 1e35, 1e40, np.nan, np.inf, -np.inf, 0.5])[
                rng.integers(11, size=len(some))
            ].astype(values.dtype)
    else:
        found = odd_arrays(values, rng)
        if found.dtype == values.dtype and found.size == values.size:
            values = np.ascontiguousarray(found)
        else:
            rng.shuffle(values)
    return joined(header, body[:start] + values.tobytes() + body[end:])
