"""What is read at all: regular files, and no more than they can hold or a machine can take."""

from __future__ import annotations

import math
import os
import stat
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from numpy.lib import format as npy

from calibrant.core.errors import InputError, PredictionsError

# The best that deflate can do: 258 bytes for two bits, or a little less.
HIGHEST_COMPRESSION = 1032
# An array in a torch file may repeat its numbers, as one that was expanded does, up to this size.
MOST_REPEATED_BYTES = 1 << 26


def check_regular(
    path: Path,
    source: str,
    error: type[InputError] = PredictionsError,
    *,
    folders: bool = False,
) -> None:
    """Raise an error of the given class unless `path` is a regular file.

    A pipe or a device would wait for ever, or never end.

    Args:
        path: the file.
        source: what the message calls it.
        error: what to raise.
        folders: whether a folder will do as well.
    """
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise error(f"{source}: there is no such file") from None
    except (OSError, ValueError) as refusal:  # a name may be too long, or hold a zero
        reason = getattr(refusal, "strerror", None) or refusal
        raise error(f"{source}: can't be read: {reason}") from refusal
    if stat.S_ISDIR(mode) and not folders:
        raise error(f"{source}: there is no such file, but a folder")
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise error(f"{source}: is a pipe, a device or the like; only regular files are read")


def check_room(size: int, what: str, source: str) -> None:
    """Raise `PredictionsError` if an array of `size` bytes is more than the machine's memory."""
    memory = math.inf
    with suppress(AttributeError, OSError, ValueError):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > memory:
        raise PredictionsError(
            f"{source}: {what} takes {size / 2**30:.0f} GiB, more than this machine's memory"
        )


def check_members(archive: zipfile.ZipFile, source: str) -> None:
    """Raise `PredictionsError` where two members of a zip archive go by one name."""
    names = archive.namelist()
    if len(names) > len(set(names)):
        twice = next(name for name in names if names.count(name) > 1)
        raise PredictionsError(f"{source}: '{twice}' is there twice; which one counts?")


def check_member(archive: zipfile.ZipFile, key: str, source: str) -> None:
    """Raise `PredictionsError` if a member of an npz archive claims more than its bytes can hold.

    NumPy would reserve the memory that the header asks for, and read only then.
    """
    name = f"{key}.npy"
    is_array = name in archive.namelist()
    info = archive.getinfo(name if is_array else key)
    if info.file_size > HIGHEST_COMPRESSION * (info.compress_size + 1):
        raise PredictionsError(
            f"{source}: '{key}' can't be {info.file_size} bytes, packed into {info.compress_size}"
        )
    if not is_array:
        return
    with archive.open(name) as file:
        shape, dtype = _npy_header(file)
        held = info.file_size - file.tell()
    size = math.prod(shape) * dtype.itemsize
    if size > held and not dtype.hasobject:
        raise PredictionsError(
            f"{source}: '{key}' says that it has shape {tuple(shape)}, which takes {size} bytes, "
            f"but holds {held}"
        )
    check_room(size, f"'{key}'", source)


def _npy_header(file: Any) -> tuple[Sequence[int], Any]:
    version = npy.read_magic(file)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read(file)
    return shape, dtype
