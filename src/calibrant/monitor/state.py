"""The state of a monitor as a small file: safetensors with a header of JSON, written whole."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from os import fspath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.core.errors import CalibrantError, CalibratorFileError
from calibrant.files.atomic import StrPath
from calibrant.files.parameters import ParameterFormat
from calibrant.monitor.betting import ALTERNATIVES
from calibrant.monitor.evidence import Evidence
from calibrant.monitor.groups import Groups
from calibrant.monitor.trail import Trail

Arrays = dict[str, NDArray[Any]]

FORMAT = ParameterFormat("calibrant-monitor", 1, "the state of a monitor", "numpy")
_TRAIL = ("count", "row", "level", "sums")


def write_state(path: StrPath, header: dict[str, Any], arrays: Arrays) -> None:
    """Write header and arrays, whole or not at all.

    Raises:
        InputError: a folder that doesn't exist, or no room.
    """
    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    whole["alternatives"] = ALTERNATIVES
    FORMAT.write(path, {"monitor": json.dumps(header)}, whole)


def read_state(path: StrPath) -> tuple[dict[str, Any], Arrays]:
    """Return header and arrays of a file.

    Raises:
        CalibratorFileError: the file is missing, damaged or something else.
    """
    header, arrays = FORMAT.read(path)
    bets = arrays.get("alternatives")
    if bets is None or not np.array_equal(bets, ALTERNATIVES):
        raise CalibratorFileError(f"{fspath(path)}: was made with other bets; begin a new state")
    with damaged_is_said(path):
        return json.loads(header["monitor"]), arrays


@contextmanager
def damaged_is_said(path: StrPath) -> Generator[None]:
    """Turn whatever a damaged state raises in the body into one sentence."""
    try:
        yield
    except CalibrantError:
        raise
    except Exception as error:
        raise CalibratorFileError(f"{fspath(path)}: is a damaged state of a monitor") from error


def pack_trail(trail: Trail, name: str) -> Arrays:
    """Return a trail as arrays that begin with `name`."""
    return {f"{name}.{part}": getattr(trail, part) for part in _TRAIL}


def unpack_trail(trail: Trail, arrays: Arrays, name: str) -> Trail:
    """Return the trail packed under `name`, with the base of an empty one."""
    parts = {part: arrays[f"{name}.{part}"].copy() for part in _TRAIL}
    if parts["sums"].shape != (len(parts["count"]), trail.sums.shape[1]):
        raise ValueError("a trail of another width")
    return Trail(trail.base, trail.keep, **parts)


def pack_evidence(evidence: Evidence, name: str) -> Arrays:
    """Return evidence as arrays that begin with `name`."""
    return {
        f"{name}.rows": np.array([evidence.rows]),
        f"{name}.products": evidence.products,
        f"{name}.masses": evidence.masses,
        **pack_trail(evidence.trail, f"{name}.trail"),
    }


def unpack_evidence(empty: Evidence, arrays: Arrays, name: str) -> Evidence:
    """Return the evidence packed under `name`; `empty` is such evidence before any row."""
    return Evidence(
        int(arrays[f"{name}.rows"][0]),
        arrays[f"{name}.products"].copy(),
        arrays[f"{name}.masses"].copy(),
        unpack_trail(empty.trail, arrays, f"{name}.trail"),
    )


def pack_groups(groups: Groups) -> Arrays:
    """Return the evidence of all groups as arrays; their names go into the header."""
    arrays: Arrays = {}
    for i, (evidence, sums) in enumerate(zip(groups.evidence, groups.sums, strict=True)):
        arrays |= pack_evidence(evidence, f"group{i}") | {f"group{i}.cells": sums}
    return arrays


def unpack_groups(known: int | None, names: list[str], arrays: Arrays) -> Groups:
    """Return the groups packed by `pack_groups`."""
    every = range(len(names))
    return Groups(
        known,
        list(names),
        [unpack_evidence(Evidence.of_group(), arrays, f"group{i}") for i in every],
        [arrays[f"group{i}.cells"].copy() for i in every],
    )
